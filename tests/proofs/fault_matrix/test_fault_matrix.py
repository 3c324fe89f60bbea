"""Faults under load, judged by the invariants of spec'd fleets; `./run faults` runs them all.

Here the cause must be named at all. How soon, and how fast a standby takes over, are figures of the machine, which
tests that run side by side would measure wrongly: `./run faults` alone judges them; docs/faults.md has what it saw.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.failures import FailureCode
from orchestrator.core.findings import GUARDS, Severity
from testbed.runpod.faults import KINDS
from testbed.shared_services import SharedServices
from tests.proofs.fault_matrix.__main__ import CASES, DOCUMENT
from tests.proofs.fault_matrix.clusters import CLUSTERS
from tests.proofs.fault_matrix.health import EXPECTED, UNSEEN
from tests.proofs.fault_matrix.invariants import committed, misnamed, unexplained, unowned_s
from tests.proofs.fault_matrix.report import document
from tests.proofs.fault_matrix.runner import Case, Result, run
from tests.proofs.fault_matrix.secret_scan import SecretScan, forms

# In ./run test: a lost pod, a lost answer, a lost server, a sick worker. The other quick ones are in ./run test --full;
# tests/process has tests of the same causes.
SLICE = {"pod_vanishes", "commit_then_cut", "postgres_restarts", "sick_gpu"}
QUICK = [
    pytest.param(case, id=case.name, marks=() if case.name in SLICE else pytest.mark.full)
    for case in CASES
    if case.quick and case not in CLUSTERS
]
SIDE_BY_SIDE = 3  # they wait for most of their time; with more, `health` is asked too seldom on two cores
OF_CLUSTERS = {
    FailureCode.MEMBER_LOST,
    FailureCode.MEMBER_UNUSABLE,
    FailureCode.SLURM_MISSING,
    FailureCode.ALLOCATION_TIMEOUT,
    FailureCode.DEPLOY_TIMEOUT,
    FailureCode.POOL_REMOVED,
}
Running = dict[str, asyncio.Task[Result]]


@pytest.fixture(scope="session")
async def running(
    shared: SharedServices, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    """Start the selected cases on common servers, each with a database, an emulator and an orchestrator of its own."""
    directory: Path = tmp_path_factory.mktemp("faults")
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    names = {item.callspec.id for item in functions if item.originalname == "test_the_fleet_survives"}
    selected = [case for case in CASES if case.name in names]
    gate = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(case: Case) -> Result:
        async with gate:
            return await run(case, shared, directory / case.name)

    tasks = {case.name: asyncio.create_task(one(case)) for case in sorted(selected, key=lambda t: -t.limit_s)}
    try:
        yield tasks
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize("case", QUICK)
async def test_the_fleet_survives(running: Running, case: Case) -> None:
    """Nothing lost, doubled, leaked or missing, and the cause named: what each case does is in its `description`."""
    result = await running[case.name]
    assert not result.wrong, f"{case.description}: {'; '.join(result.wrong)} (it said: {result.sentence or 'nothing'})"


def test_every_kind_of_fault_has_a_trial() -> None:
    """A kind added to the emulator must be survived too."""
    names = [case.name for case in CASES]
    assert set(KINDS) <= set(names)
    assert len(names) == len(set(names))


def test_a_case_names_the_program_that_this_machine_lacks() -> None:
    """Otherwise it would fail in its middle."""
    case = next(case for case in CASES if case.name == "nothing")
    assert case.lacks is None
    needs = (("sh", "dash", ""), ("no-such-program", "its-package", ""), ("another", "other", "fix: by hand"))
    assert replace(case, needs=needs).lacks == "no-such-program is not installed (Debian: apt-get install its-package)"
    assert replace(case, needs=needs[2:]).lacks == "another is not installed (fix: by hand)"


def test_every_failure_code_is_what_some_trial_must_end_as() -> None:
    """A code added to the product needs a fault that ends a running worker with it; of the Xids, one stands for all.

    Findings of severity H end a worker after 10 minutes only, claims that hang after 5, and a
    release that fails everywhere after several pauses: tests/unit/core/test_guards.py
    and test_fitness.py have them. Codes of clusters end no worker: clusters.py and tests/unit/core/clusters have them.
    """
    required = {code for case in CASES for code in case.ends_as}
    late = {guard.code for guard in GUARDS.values() if guard.severity is Severity.BLOCK}
    slow = {FailureCode.NOT_CLAIMING, FailureCode.TASKS_FAIL_EVERYWHERE}
    assert set(FailureCode) - late - OF_CLUSTERS - slow <= required
    assert any(code.startswith("XID_") for code in required)


def test_the_document_has_a_line_for_every_trial() -> None:
    """It is made by `./run faults --write`."""
    lines = re.findall(r"^\| (\w+) \|", DOCUMENT.read_text(), re.MULTILINE)
    assert lines == ["fault", *(case.name for case in CASES)]


def test_health_is_expected_to_name_every_fault() -> None:
    """Or it is known that there is nothing to see; no name of a fault that is no more."""
    names = {case.name for case in CASES}
    assert set(EXPECTED) | UNSEEN <= names
    assert not set(EXPECTED) & UNSEEN
    assert all(case.ends_as or case.name in set(EXPECTED) | UNSEEN for case in CASES)


def test_a_pod_without_a_live_row_is_seen() -> None:
    """One as it should be; one whose row ended 200 s before; one that nobody stood for; one that came twice."""
    times = {"created_at": "2026-11-20T10:00:00Z", "ended_at": "2026-11-20T10:10:00Z"}
    pods = [{"id": "p1", "name": "gpu-1", **times}]
    born = 1_795_168_800.0  # 2026-11-20T10:00:00Z
    assert unowned_s(pods, [{"id": "gpu-1", "pod_id": "p1", "ended": born + 3_000}]) == 0
    assert unowned_s(pods, [{"id": "gpu-1", "pod_id": "p1", "ended": born + 400}]) == pytest.approx(200)
    assert unowned_s(pods, []) == pytest.approx(600)
    assert unowned_s(pods, [{"id": "gpu-1", "pod_id": "other", "ended": None}]) == pytest.approx(600)


def test_a_failure_by_another_name_is_seen() -> None:
    """None where none may be; each as one of the codes, and each by some worker that some worker must end as."""
    both = (FailureCode.ECC, FailureCode.HOST_AVOIDED)
    assert misnamed({}, ()) == []
    assert misnamed({"gpu-1": "ECC", "gpu-2": "HOST_AVOIDED", "gpu-3": "ECC"}, both) == []
    assert misnamed({"gpu-1": "ECC"}, ()) == ["gpu-1 ended as ECC"]
    assert misnamed({"gpu-1": "ECC", "gpu-2": "DISK"}, both) == [
        "gpu-2 ended as DISK",
        "no worker ended as HOST_AVOIDED",
    ]
    assert misnamed({}, (), [FailureCode.CREATE_UNKNOWN]) == []
    assert misnamed({"gpu-1": "CREATE_UNKNOWN", "gpu-2": "ECC"}, (), [FailureCode.CREATE_UNKNOWN]) == [
        "gpu-2 ended as ECC"
    ]


def test_a_code_that_explain_does_not_put_in_words_is_seen() -> None:
    """The row has it, and an operator would be told nothing, or of another one."""
    failed = {"gpu-1": "AUTH_FAILED", "gpu-2": "task_stuck", "gpu-3": "ECC", "gpu-4": "DISK"}
    told = {
        "gpu-1": ["gpu-1  terminated", "ENDED AUTH_FAILED/REFUSED: The pod refuses our key."],
        "gpu-2": ["ENDED task_stuck: Its task was stuck, and its agent could not end it."],
        "gpu-3": ["ENDED ECC: not explained yet"],
    }
    assert [one.split()[0] for one in unexplained(failed, told)] == ["gpu-3", "gpu-4"]


def test_money_beyond_a_budget_is_seen() -> None:
    """Two at once cost twice as much an hour; what the first has spent by then, half of what was booked, counts too."""
    one = {"began": 0.0, "ended": 100.0, "usd_per_hour": 0.5, "usd": 0.03}
    spent = [{"began": 0.0, "ended": 100.0, "usd": 0.02}, {"began": 50.0, "ended": 50.0, "usd": 0.0}]
    assert committed([one, {**one, "began": 50.0, "ended": None}], spent) == pytest.approx((1.0, 0.07))
    assert committed([one, {**one, "began": 100.0, "ended": None}], spent) == pytest.approx((0.5, 0.05))
    assert committed([], []) == (0.0, 0.0)


@pytest.mark.parametrize("form", forms("key+of/ours=="))
def test_a_secret_is_seen_in_every_form(form: str) -> None:
    """As it is, URL-encoded, inside JSON, and as base64 of a text that it is in the middle of."""
    scan = SecretScan({"KEY": {"key+of/ours=="}, "OTHER": {"something else"}})
    scan.search("a table", f"nothing, then {form} and more")
    assert scan.hits == {("KEY", "a table")}


def test_what_is_wrong_is_not_hidden_in_the_document() -> None:
    """A case that fails says so in its line."""
    bad = Result("name", "harm", "outcome", False, ("1 task(s) lost",), (), 1.0, None, "", "", {}, 1, 0, 0.0, 1.0)
    assert "**not yet**: 1 task(s) lost" in document([bad])
