"""The same trouble in two pools is two conditions and two alerts: the first hides neither the second nor its end."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import EndedBringUp
from orchestrator.diagnostics.alerts import CLEAR_S, AlertPolicy, checked
from orchestrator.diagnostics.condition_kinds import ConditionKind as Kind
from orchestrator.diagnostics.conditions import Condition
from tests.unit.core.build import NOW, ago
from tests.unit.diagnostics.test_conditions import (
    UNPUBLISHED,
    Facts,
    facts,
    failed,
    failed_bringup,
    found_in,
    queue,
    seen,
    setting,
)

POOLS = ("default", "second")
SICK = {"promoted": True, "exit_cause": ExitCause.WORKER_SICK, "ending_since": ago(50)}
Change = Callable[[Sequence[str]], Callable[[Facts], None]]


def ended(code: str, **changes: object) -> Change:
    """Two bring-ups of each pool ended so, one after the other."""

    def of(name: str) -> list[EndedBringUp]:
        return [failed_bringup(code, 60 - n, worker_id=f"{name}-{n}", **changes | {"pool": name}) for n in range(2)]

    return lambda pools: seen(*(one for name in pools for one in of(name)))


def rows(path: str, row: Facts) -> Change:
    return lambda pools: setting(path, [row | {"pool": name} for name in pools])


TROUBLES: dict[Kind, Change] = {
    Kind.BRINGUPS_FAIL: ended("GPU_TYPE"),
    Kind.HALTED: ended(str(FailureCode.BAD_SPEC)),
    Kind.WORKERS_FAILED: ended("DISK_FULL", **SICK),
    Kind.NO_HANDLER: rows("database_state.waiting_types", {"task_type": "stitch", "n": 3}),
    Kind.TASKS_UNPUBLISHED: rows("database_state.unpublished_tasks", UNPUBLISHED),
}


def of_kind(kind: Kind, *pools: str) -> list[Condition]:
    """The conditions of a kind if these pools have the trouble. Tasks wait in both pools."""
    report = facts()
    report["workers"] = {}
    report["database_state"]["queue"] = [queue(pool=name, claimable=4, running=0) for name in POOLS]
    TROUBLES[kind](pools)(report)
    return [one for one in found_in(report) if one.kind is kind]


@pytest.mark.parametrize("kind", TROUBLES)
def test_the_same_trouble_of_two_pools_is_two_conditions(kind: Kind) -> None:
    """Each is what it would be alone."""
    assert [*of_kind(kind, "default"), *of_kind(kind, "second")] == of_kind(kind, *POOLS)
    first, second = of_kind(kind, *POOLS)
    assert first.subject != second.subject
    for name, one in zip(POOLS, (first, second), strict=True):
        assert name in f"{one.text} {one.evidence}"


@pytest.mark.parametrize("kind", TROUBLES)
def test_the_second_pools_alert_opens_and_ends_by_itself(kind: Kind) -> None:
    """While that of the first is open."""
    policy, lasts_s = AlertPolicy("fleet", max_per_hour=100), kind.row.after_s + kind.row.waits_s + 1
    first, both = of_kind(kind, "default"), of_kind(kind, *POOLS)
    if not first[0].kind.row.alert and first[0].severity != "HIGH":
        pytest.fail(f"{kind} is never sent: choose another kind")
    second = next(one.subject for one in both if one.subject != first[0].subject)
    alerts, now, told = (), NOW, list[tuple[str, str]]()
    for found, seconds in ((first, lasts_s), (both, lasts_s), (first, CLEAR_S + 1)):
        for at in (now, now + timedelta(seconds=seconds)):
            aged = [replace(one, since=None) for one in found]
            made = checked(aged, alerts, policy, at, sent_1h=0)
            alerts = made.alerts  # type: ignore[assignment]
            told += [(one["body"]["event"], one["body"]["subject"]) for one in made.messages]
        now = at
    assert told == [("opened", first[0].subject), ("opened", second), ("resolved", second)]


def test_two_causes_of_one_type_of_task_are_two_conditions() -> None:
    """Another code is another mistake."""
    report = facts()
    failed()(report)
    (row,) = report["database_state"]["failed_tasks"]
    report["database_state"]["failed_tasks"] = [row, row | {"code": "OOM"}]
    assert [one.subject for one in found_in(report)] == ["travel_segment HANDLER", "travel_segment OOM"]


def test_each_pool_has_its_own_evidence_of_the_same_code() -> None:
    """The second one's cause differs too: it is another person who must act."""
    causes = {"default": None, "second": "PAIR_MISMATCH"}
    row = {"code": "AUTH_FAILED", "stage": "ssh_auth", "n": 2, "workers": 2, "last_at": NOW.isoformat(), "ok_at": None}
    rows = [row | {"pool": name, "cause": cause, "evidence": {"error": name}} for name, cause in causes.items()]
    report = facts()
    report["database_state"]["failed_bringups"] = rows
    report["database_state"]["queue"] = [queue(pool=name, claimable=4, running=0) for name in POOLS]
    ended("AUTH_FAILED")(POOLS)(report)
    found = {one.subject: one for one in found_in(report) if one.kind is Kind.BRINGUPS_FAIL}
    for name, other in (POOLS, POOLS[::-1]):
        assert name in found[name].evidence
        assert other not in found[name].evidence
    assert found["default"].detail["means"] != found["second"].detail["means"]
