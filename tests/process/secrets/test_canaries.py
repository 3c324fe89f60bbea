"""Twelve secrets through the failure paths of a running fleet: found in no sink, and a planted leak is found."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.process.secrets.canaries import SETUP_FAILS, over_supabase, searched
from tests.proofs.fault_matrix.__main__ import TRIALS
from tests.proofs.fault_matrix.runner import Trial
from tests.proofs.fault_matrix.shared_services import Ground

QUICK = (SETUP_FAILS, *(over_supabase(trial) for trial in TRIALS if trial.name == "agent_killed"))


@pytest.fixture(scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Postgres and S3 for all of them."""
    async with Ground(tmp_path_factory.mktemp("canaries")) as ground:
        yield ground


@pytest.mark.parametrize("trial", QUICK, ids=lambda trial: trial.name)
async def test_no_secret_is_left_anywhere(ground: Ground, tmp_path: Path, trial: Trial) -> None:
    """Both kinds of ends, and both transports; `./run soak secrets` takes every trial there is."""
    assert not await searched(trial, ground, tmp_path)
