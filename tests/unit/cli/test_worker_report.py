"""`diagnose <worker>` is about that worker: other conditions of the fleet are left out."""

import pytest

from orchestrator.cli.worker_report import concerning
from orchestrator.diagnostics.condition_kinds import ConditionKind as Kind
from orchestrator.diagnostics.fact_sources import of_report
from orchestrator.diagnostics.rules import conditions
from tests.unit.core.build import worker as live
from tests.unit.diagnostics.test_conditions import CASES, CAUSES, Facts, facts, seen, setting, waits, when, worker

SILENT = setting("workers.gpu-1", worker(last_heartbeat=when(700)))


def kinds(report: Facts, name: str) -> list[Kind]:
    """What is said of a worker."""
    half = report.pop("half", None)
    return [one.kind for one in concerning(conditions(of_report(report, half, about_one=True)), name)]


def test_the_conditions_of_other_workers_and_pools_are_left_out() -> None:
    """The fleet is UNHEALTHY because of gpu-1, and nothing is wrong with gpu-2; nor with gpu-10, which begins alike."""
    report = facts()
    SILENT(report)
    report["workers"] |= {name: worker(id=name) for name in ("gpu-2", "gpu-10")}
    assert kinds(report, "gpu-1") == [Kind.WORKER_SILENT]
    assert kinds(report, "gpu-2") == kinds(report, "gpu-10") == []
    CAUSES["day's budget"][0](report)
    assert kinds(report, "gpu-2") == []


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("process not started", Kind.NO_LEADER), ("S3 is away", Kind.STORE_DOWN), ("ticks that fail", Kind.TICKS_FAIL),
        ("login refused", Kind.DATABASE_DOWN), ("stale rows", Kind.ROWS_WITHOUT_PODS),
        ("SSH that does not answer", Kind.SSH_UNREACHABLE),
    ],
)  # fmt: skip
def test_what_concerns_it_is_shown(case: str, kind: Kind) -> None:
    """What it is named in, and what concerns every worker."""
    report = facts()
    CASES[case][0](report)
    assert kinds(report, "gpu-1") == [kind]


@pytest.mark.parametrize("case", ["missing keys", "RunPod is away", "no money", "an expensive day", "old code"])
def test_what_is_of_the_fleet_or_of_this_machine_is_not(case: str) -> None:
    report = facts()
    CASES[case][0](report)
    assert kinds(report, "gpu-9") == []


def test_the_workers_that_were_not_asked_count() -> None:
    """A report on one worker asks that one alone. Its pool has another one, which takes the tasks."""
    report = facts()
    waits({"Queued": 4}, claimable=4)(report)
    setting("workers.gpu-1", worker(health={"disk": {"since": 1, "why": "full"}}))(report)
    for others, severity in (((), "HIGH"), ((live("gpu-2"),), "MEDIUM")):
        seen(workers=(live("gpu-1"), *others))(report)
        half = report.pop("half")
        [one] = concerning(conditions(of_report(report, half, about_one=True)), "gpu-1")
        assert (one.kind, one.severity) == (Kind.WORKER_UNFIT, severity)
