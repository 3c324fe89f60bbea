"""Faults of clusters: each runs Debian's Slurm on emulated pods, so `./run test --full` alone has them."""

from pathlib import Path

import pytest

from testbed.shared_services import SharedServices
from tests.proofs.fault_matrix.clusters import CLUSTERS
from tests.proofs.fault_matrix.runner import Case, run

QUICK = [
    pytest.param(case, id=case.name, marks=[pytest.mark.full, *(pytest.mark.needs_program(*one) for one in case.needs)])
    for case in CLUSTERS
    if case.quick
]


@pytest.mark.parametrize("case", QUICK)
async def test_a_cluster_survives(shared: SharedServices, tmp_path: Path, case: Case) -> None:
    """The cause is explained, the task ends, and nothing is left: what each case does is in its `description`."""
    result = await run(case, shared, tmp_path / "case")
    assert not result.wrong, f"{case.description}: {'; '.join(result.wrong)} (it said: {result.sentence or 'nothing'})"
