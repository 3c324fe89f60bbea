"""Twelve secrets through the failure paths of a running fleet: found in no sink, and a planted leak is found."""

from pathlib import Path

import pytest

from testbed.shared_services import SharedServices
from tests.process.secrets.canaries import SETUP_FAILS, over_supabase, searched
from tests.proofs.fault_matrix.__main__ import CASES
from tests.proofs.fault_matrix.runner import Case

QUICK = (
    pytest.param(SETUP_FAILS, marks=pytest.mark.full),
    *(over_supabase(case) for case in CASES if case.name == "agent_killed"),
)


@pytest.mark.parametrize("case", QUICK, ids=("setup_fails", "agent_killed_over_supabase"))
async def test_no_secret_is_left_anywhere(shared: SharedServices, tmp_path: Path, case: Case) -> None:
    """Both kinds of ends, and both transports, with --full; `./run soak secrets` takes every case there is."""
    assert not await searched(case, shared, tmp_path)
