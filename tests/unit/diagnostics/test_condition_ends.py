"""Each condition ends when its cause has ended: in `health`, in `explain`, as a first cause, and as a message.

A case takes a condition of test_conditions.py and changes only what changes when the cause ends. What has happened
stays in the facts: failed bring-ups, lost tasks, members that failed.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.core.cluster_states import ClusterStatus, MemberRole, MemberStatus
from orchestrator.core.clusters.rows import ClusterRow
from orchestrator.core.provider import OfferState
from orchestrator.diagnostics import first_cause
from orchestrator.diagnostics.alerts import CLEAR_S, Alert, AlertPolicy, checked
from orchestrator.diagnostics.clusters import problems
from orchestrator.diagnostics.condition_kinds import ConditionKind as Kind
from orchestrator.diagnostics.conditions import Condition
from orchestrator.diagnostics.facts import RECENT_S
from orchestrator.diagnostics.task_rules import SHOWN_S
from tests.unit.core.build import NOW, ago
from tests.unit.core.clusters.rows import DETAIL, cluster, member
from tests.unit.diagnostics.test_conditions import (
    CASES,
    CAUSES,
    Facts,
    bringups,
    clustered,
    facts,
    failed_bringup,
    found_in,
    lost,
    queue,
    seen,
    setting,
    when,
    worker,
)

Change = Callable[[Facts], None]
RAISED: dict[str, Change] = {name: case[0] for name, case in CASES.items()}
RAISED |= {f"waits: {name}": case[0] for name, case in CAUSES.items()}


def back(*paths: str) -> Change:
    """What these paths lead to is as in a fleet without trouble."""

    def put(report: Facts) -> None:
        good = facts()
        for path in paths:
            value: Any = good
            for name in path.split("."):
                value = value.get(name)
            setting(path, value)(report)

    return put


def decided(report: Facts) -> None:
    """The planner blocks nothing any more; tasks wait still."""
    report["orchestrator_analysis"]["scaling_decisions"] = []


def together(*changes: Change) -> Change:
    def put(report: Facts) -> None:
        for change in changes:
            change(report)

    return put


def came_up(*before: str) -> Change:
    """A worker came up after these failures."""
    promoted = failed_bringup("", 5, promoted=True, exit_cause=None, failure_code=None)
    return seen(*map(failed_bringup, before), promoted)


GRANTED = OfferState("L4", None, 0, ago(60), ago(30))
WHOLE = (
    member(1, role=MemberRole.CONTROLLER, adapter_detail=DETAIL | {"slurmctld_pid": 7}),
    member(2, created_at=ago(20), status_since=ago(10)),
)
LOST = member(
    3, index_no=1, status=MemberStatus.FAILED, status_since=ago(60), worker=None, reason="its worker is gone",
    adapter_detail={"failure_code": "MEMBER_LOST"},
)  # fmt: skip
TORN = cluster(pool="default", nodes=2, members=(WHOLE[0], LOST), status=ClusterStatus.DEGRADED)
MENDED = replace(TORN, members=(*WHOLE, LOST), status=ClusterStatus.RUNNING)
RAISED["a lost node"] = clustered(TORN, WHOLE[0].worker_id)
WORKER, DECISION = back("workers.gpu-1"), together(decided)

# The kind -> a case that shows it, and what changes when its cause ends.
ENDS: dict[Kind, list[tuple[str, Change]]] = {
    Kind.SETTINGS_MISSING: [("missing keys", back("environment"))],
    Kind.SETTING_UNUSABLE: [("a setting that cannot be used", back("environment.problems"))],
    Kind.SSH_KEYS_UNUSABLE: [("wrong key pair", back("environment.ssh_keys"))],
    Kind.SCHEMA_MISMATCH: [("no schema", back("database_state"))],
    Kind.DATABASE_DOWN: [("login refused", back("database_state")), ("locks", back("database_state"))],
    Kind.SCHEMA_CHANGED: [("a schema that was changed", setting("database_state.schema_problems", []))],
    Kind.FUNCTIONS_MISSING: [("an older schema", back("database_state.rpc_function_tests"))],
    Kind.CLAIMING_BROKEN: [("claim function fails", back("database_state.rpc_function_tests"))],
    Kind.DATABASE_SLOW: [("a slow database", setting("database_state.response_time_ms", 20))],
    Kind.NO_LEADER: [("process not started", back("database_state.leader"))],
    Kind.TICKS_FAIL: [("ticks that fail", setting("database_state.tick_failed", None))],
    Kind.LEADER_SILENT: [
        ("a leader that is late", setting("database_state.leader", {"holder": "us", "expires_at": when(-14)}))
    ],
    Kind.STORE_DOWN: [("S3 is away", setting("database_state.store_away", None))],
    Kind.STORE_SLOW: [("S3 is slow", setting("orchestrator_analysis.store", {"response_time_ms": 30}))],
    Kind.STORE_UNREACHED: [("S3 takes nothing from one worker", WORKER)],
    Kind.STORE_UNSEEN: [("S3 cannot be reached from here", setting("orchestrator_analysis.store", {}))],
    Kind.BUCKET_FAR: [("pods far from the bucket", setting("workers.gpu-1", worker(data_center="EU-RO-1")))],
    Kind.API_KEY_REFUSED: [("RunPod refuses the key", back("runpod_state"))],
    Kind.PROVIDER_DOWN: [("RunPod is away", back("runpod_state"))],
    Kind.PROVIDER_UNSEEN: [("RunPod does not answer here", back("runpod_state"))],
    Kind.NO_MONEY: [("no money", setting("runpod_state.balance_usd", 12.5))],
    Kind.HALTED: [
        ("a refusal to rent", seen(failed_bringup("BALANCE"), offers={"L4": GRANTED})),
        ("a refusal to rent", came_up("BALANCE")),
        ("a refusal to rent", seen(failed_bringup("BALANCE", RECENT_S + 1))),  # and nothing was asked for since then
        ("waits: quota", DECISION),
    ],
    Kind.BUDGET_SPENT: [("waits: day's budget", DECISION)],
    Kind.DEAR_PODS: [("waits: dear pods", DECISION)],
    Kind.PRICE_UNKNOWN: [("waits: price", DECISION)],
    Kind.SOLD_OUT: [("waits: sold out", DECISION)],
    Kind.OFFERS_UNUSABLE: [("waits: volume", DECISION)],
    Kind.POOL_OFF: [("waits: a pool that is off", DECISION)],
    Kind.POOL_UNKNOWN: [("waits: unknown pool", DECISION)],
    Kind.CLUSTER_FAILED: [("a failed cluster", clustered(replace(MENDED, id="next"), WHOLE[0].worker_id))],
    Kind.NO_CLUSTER: [("waits: no cluster", DECISION)],
    Kind.CLUSTER_DEGRADED: [
        ("a lost node", clustered(MENDED, WHOLE[0].worker_id)),
        ("a node that is down", clustered(MENDED, WHOLE[0].worker_id)),
    ],
    Kind.NO_HANDLER: [("no handler", setting("database_state.waiting_types", []))],
    Kind.TASKS_UNPUBLISHED: [("tasks whose status a trigger hides", setting("database_state.unpublished_tasks", []))],
    Kind.BRINGUPS_FAIL: [
        ("bring-ups that fail", came_up("GPU_TYPE", "GPU_TYPE")),
        ("bring-ups that fail", seen(failed_bringup("GPU_TYPE", RECENT_S + 1))),
    ],
    Kind.BREAKER_OPEN: [("waits: breaker", DECISION)],
    Kind.SCALE_LIMITED: [("waits: limit", DECISION)],
    Kind.AUTH_FAILS: [
        ("SSH authentication before", bringups("AUTH_FAILED", "PAIR_MISMATCH", when(30))),
        ("SSH authentication now", WORKER),
    ],
    Kind.WORKERS_STUCK: [("stuck in tcp", WORKER), ("worker's end does not come", setting("workers", {}))],
    Kind.BRINGUP_SLOW: [("a bring-up that has met a failure", WORKER)],
    Kind.DELETES_FAIL: [("deletes without effect", setting("workers", {}))],
    Kind.DELETE_LATE: [("deleted, and still listed", setting("workers", {}))],
    Kind.POISON_TASK: [
        ("a poison task", lost(workers=3, last_at=when(30), status=status))
        for status in ("Failed", "Cancelled", "Complete")
    ],
    Kind.TASKS_LOST: [("a task lost with its worker, and queued again", lost(status="Complete"))],
    Kind.WORKERS_FAILED: [
        ("a worker that failed in service", seen(failed_bringup("X", promoted=True, ending_since=ago(SHOWN_S + 1))))
    ],
    Kind.PROCESS_ENDED: [("process died", WORKER)],
    Kind.GATEWAY_UNREACHED: [("agents that get no answer", WORKER)],
    Kind.WORKER_SILENT: [("no heartbeat", WORKER)],
    Kind.POD_UNSEEN: [("a pod that RunPod does not list", WORKER)],
    Kind.MACHINE_FAULT: [("a faulty machine", WORKER)],
    Kind.MACHINE_BLOCKED: [("a machine that is not fit, alone", WORKER)],
    Kind.NOT_CLAIMING: [("active but not claiming", setting("workers.gpu-1", worker(tasks_running=1)))],
    Kind.WORKER_UNFIT: [("a full disk", WORKER)],
    Kind.PODS_WITHOUT_ROWS: [("orphan pods", back("runpod_state.mismatches"))],
    Kind.ROWS_WITHOUT_PODS: [("stale rows", back("runpod_state.mismatches"))],
    Kind.NO_HOLDER: [("leases over", back("database_state.expired_leases"))],
    Kind.PAUSED: [("spawning paused", back("database_state.paused"))],
    Kind.BACKLOG: [("backlog of slow tasks", back("database_state.queue", "database_state.task_counts"))],
    Kind.TASKS_BLOCKED: [("all tasks blocked", setting("database_state.queue", [queue(claimable=1)]))],
    Kind.SEGMENTS_MISSING: [("stitch without segments", back("database_state.failed_tasks"))],
    Kind.TASKS_FAILED: [("failed tasks", back("database_state.failed_tasks"))],
    Kind.WEBHOOKS_UNDELIVERABLE: [("webhooks that were given up", setting("database_state.webhooks", {}))],
    Kind.WEBHOOKS_LATE: [("webhooks that nobody sends", setting("database_state.webhooks", {}))],
    Kind.SCHEDULE_FAILS: [("a schedule that is never due", setting("database_state.schedules", []))],
    Kind.MACHINE_WARNING: [("a warning of an agent", WORKER)],
    Kind.FOREIGN_PODS: [("pods of another database", back("runpod_state.mismatches"))],
    Kind.SSH_UNREACHABLE: [("SSH that does not answer", WORKER)],
    Kind.LOGS_LATE: [("logs that are late", WORKER)],
    Kind.SSH_FAILED: [("SSH unreachable", bringups("TCP_TIMEOUT", None, when(30)))],
    Kind.WORKERS_UNKNOWN: [("a worker that could not be asked", WORKER)],
    Kind.DEAR_DAY: [("an expensive day", back("database_state.spent"))],
    Kind.IDLE_MONEY: [("a worker paid for nothing", WORKER)],
    Kind.RETRIES_WAIT: [("only retries that are not due", setting("database_state.queue", [queue(claimable=3)]))],
    Kind.AUTH_RESOLVED: [("SSH authentication before, and corrected", back("database_state.failed_bringups"))],
    Kind.SSH_RESOLVED: [("SSH unreachable, and works again", back("database_state.failed_bringups"))],
    Kind.PLACE_UNREACHABLE: [("a place that cannot be reached", back("network_tests"))],
    Kind.MACHINE_NOTE: [("a note of an agent", WORKER)],
    Kind.OTHER_CODE: [("old code", back("deployment_verification"))],
}
EACH = [(kind, case, end) for kind, ends in ENDS.items() for case, end in ends]


def test_every_kind_has_an_end() -> None:
    """A new kind needs a case here."""
    assert set(ENDS) == set(Kind)


def of_kind(kind: Kind, report: Facts) -> tuple[list[Condition], list[Condition]]:
    """All conditions, and those of the kind."""
    found = found_in(report)
    return found, [one for one in found if one.kind is kind]


@pytest.mark.parametrize(("kind", "case", "end"), EACH, ids=[f"{kind}: {case}" for kind, case, _ in EACH])
def test_a_condition_ends_with_its_cause(kind: Kind, case: str, end: Change) -> None:
    """And its message says that it is over."""
    report = facts()
    RAISED[case](report)
    raised, own = of_kind(kind, report)
    assert own
    policy = AlertPolicy("fleet", max_per_hour=100)
    late = NOW + timedelta(seconds=kind.row.after_s + kind.row.waits_s)
    opened = checked(raised, [Alert.of(one, NOW) for one in raised], policy, late, sent_1h=0).alerts

    report = facts()
    RAISED[case](report)
    end(report)
    left, own = of_kind(kind, report)
    assert not own
    rows = [one.as_json() for one in left]
    for cause in (first_cause.of_fleet(rows), first_cause.of_pools(rows, ["default"])):
        assert cause is None or cause.kind != kind
    over = checked(left, opened, policy, late + timedelta(seconds=CLEAR_S), sent_1h=0)
    assert not [one for one in over.alerts if one.kind == kind]
    messages = [one["body"]["event"] for one in over.messages if one["body"].get("kind") == kind]
    assert messages == ["resolved"] * len({one.subject for one in opened if one.kind == kind and one.opened_at})


def codes(row: ClusterRow) -> list[str]:
    """What `cluster explain` says."""
    return [one.code for one in problems(row, NOW)]


def test_a_lost_node_is_a_problem_of_its_cluster_until_another_one_is_ready() -> None:
    """In `cluster explain`, which has the history as well. A second loss is shown alone."""
    assert codes(TORN) == ["NODES_MISSING", "MEMBER_LOST"]
    starts = replace(WHOLE[1], status=MemberStatus.RECONCILING)
    assert "MEMBER_LOST" in codes(replace(TORN, members=(WHOLE[0], starts, LOST)))
    assert codes(MENDED) == []
    second = replace(LOST, worker_id="gpu-2", status_since=ago(5), adapter_detail={"failure_code": "POD_MISSING"})
    again = replace(TORN, members=(WHOLE[0], LOST, second))
    assert codes(again) == ["NODES_MISSING", "POD_MISSING"]


def test_a_refused_request_of_one_pool_does_not_end_by_the_success_of_another() -> None:
    """RunPod rejected its image; that it rents for another image says nothing. A balance is the same for both."""
    for code, is_over in (("BAD_SPEC", False), ("BALANCE", True)):
        report = facts()
        refused = failed_bringup(code, offer="L4 of default")
        seen(refused, offers={"A40 of other": replace(GRANTED, key="A40 of other")})(report)
        assert ([one.kind for one in found_in(report)] == []) is is_over
        report = facts()
        seen(refused, offers={"L4 of default": replace(GRANTED, key="L4 of default")})(report)
        assert found_in(report) == []


def test_only_the_codes_that_still_fail_are_named() -> None:
    """One of two failures of SSH is over."""
    report = facts()
    row = {"cause": None, "n": 3, "workers": 3, "last_at": when(60), "pool": "default"}
    rows = [row | {"code": "TCP_REFUSED", "stage": "tcp", "ok_at": when(30)}]
    rows += [row | {"code": "NOT_SSH", "stage": "ssh_auth", "ok_at": None, "n": 2}]
    report["database_state"]["failed_bringups"] = rows
    [one] = found_in(report)
    assert (one.kind, one.text.endswith(": NOT_SSH"), one.evidence[:10]) == (Kind.SSH_FAILED, True, "2 attempts")
