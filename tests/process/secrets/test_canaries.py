"""Twelve secrets through the failure paths of a running fleet: found in no sink, and a planted leak is found."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.process.secrets.canaries import SETUP_FAILS, over_supabase, searched
from tests.proofs.fault_matrix.__main__ import TRIALS
from tests.proofs.fault_matrix.runner import Case
from tests.proofs.fault_matrix.shared_services import SharedServices

QUICK = (SETUP_FAILS, *(over_supabase(case) for case in TRIALS if case.name == "agent_killed"))


@pytest.fixture(scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedServices]:
    """Postgres and S3 for all of them."""
    async with SharedServices(tmp_path_factory.mktemp("canaries")) as shared:
        yield shared


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
async def test_no_secret_is_left_anywhere(shared: SharedServices, tmp_path: Path, case: Case) -> None:
    """Both kinds of ends, and both transports; `./run soak secrets` takes every trial there is."""
    assert not await searched(case, shared, tmp_path)
