"""Clusters on a terminal: each says what it waits for, its members, what is wrong and the fix; nothing is too wide."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from orchestrator.cli import cluster_view as view
from orchestrator.cli.output import Output
from orchestrator.core.cluster_states import (
    ClusterStatus,
    ClusterSubject,
    MemberRole,
    MemberStatus,
    NodeTaskStatus,
    OperationKind,
    OperationStatus,
)
from orchestrator.core.clusters.rows import ClusterDemand, ClusterRow, Event
from orchestrator.diagnostics.clusters import ClusterProblem
from tests.unit.core.clusters.rows import BORN, NOW, cluster, member, node_task, operation, worker

WIDTHS = (80, 120, 200, None)
LONG = "slurmd does not answer: connect to 127.0.1.3 port 20503: Connection refused, tried 3 times within 12 s"


def shown(part: Callable[[Output], Any], width: int | None) -> list[str]:
    """The lines on a terminal so wide; None: in a pipe."""
    screen, output = StringIO(), Output()
    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    output.out = Console(file=screen, width=width or 1_000, force_terminal=bool(width), color_system=None, **plain)
    made = part(output)
    for one in [made] if hasattr(made, "__rich_console__") else made:
        kept = getattr(one, "overflow", None) == "ignore"
        output.out.print(one, crop=not kept, no_wrap=kept or None, overflow="ignore" if kept else None, soft_wrap=kept)
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def squeezed(lines: Sequence[str]) -> str:
    """Return the text without blanks, which a line break may add or remove."""
    return "".join("".join(lines).split())


def no_wider(lines: Sequence[str], width: int | None) -> bool:
    """Whether each line fits the terminal, but for a fix, which is copied in one piece."""
    return all(len(line) <= (width or 1_000) for line in lines if not line.startswith("fix: "))


BROKEN = member(3, status=MemberStatus.RECONCILING, adapter_detail={"slurmd_state": "down", "error": LONG})
FIX = "python -m orchestrator cluster reconcile train"
DIAGNOSIS = ClusterProblem("NODE_DOWN", BROKEN.worker_id, "slurmd does not run.", FIX, LONG)
UNJOINED = {"members": (), "unjoined": (worker(1),)}
MEMBERS = (member(1, role=MemberRole.CONTROLLER), member(2), BROKEN)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_list_has_a_line_for_each_cluster_and_what_it_waits_for(width: int | None) -> None:
    """With its price per hour, and until when it waits."""
    waits = cluster(id="eval", status=ClusterStatus.ALLOCATING, deadline_at=NOW + timedelta(minutes=30))
    rows = [cluster(members=MEMBERS), waits]
    lines = shown(lambda output: view.clusters(rows, output, NOW), width)
    assert no_wider(lines, width)
    assert len(lines) == (4 if width == 80 else 3)
    for words in ("train", "running", "2/4", "$6.00", "eval", "allocating", "0of4arepromoted", "in30m00s"):
        assert words in squeezed(lines), (words, lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_status_answers_what_it_is_what_it_waits_for_and_what_is_wrong(width: int | None) -> None:
    """Until when, its members with node name, role, status and Slurm's state, and the error of one of them."""
    row = cluster(
        status=ClusterStatus.DEPLOYING, deadline_at=NOW + timedelta(minutes=9), members=MEMBERS,
        unjoined=(worker(4),), waiting_for="slurmd of gpu-20261125-220003-00000003",
    )  # fmt: skip
    lines = shown(lambda output: view.cluster(row, output, NOW, [DIAGNOSIS]), width)
    assert no_wider(lines, width), lines
    assert lines[0] == "train  deploying 5m00s  pool train  2 of 4 nodes ready (at least 0, at most 4)"
    assert lines[1].startswith("WAITING ON orchestrator: slurmd of gpu-20261125-220003-00000003")
    assert any(line.startswith("until 2026-11-25 22:09:00Z (in 9m00s)") for line in lines)
    for words in ("gpu-20261125-220001-00000001", "controller", "ready", "ctldup,idle", "reconciling", "10.65.0.3"):
        assert words in squeezed(lines), (words, lines)
    assert squeezed([LONG]) in squeezed(lines)
    assert any(line.startswith(f"NODE_DOWN  {BROKEN.node_name}: slurmd does not run.") for line in lines)
    assert any(line.endswith("fix: python -m orchestrator cluster reconcile train") for line in lines)


@pytest.mark.parametrize(
    ("fields", "who", "what"),
    [
        ({"status": ClusterStatus.REQUESTED, "nodes": 0}, "nobody", "tasks of pool train"),
        ({"status": ClusterStatus.REQUESTED}, "nobody", "tasks of pool train"),  # no node is rented without a task
        ({"status": ClusterStatus.REQUESTED, "min_nodes": 4}, "orchestrator", "the leader"),
        ({"status": ClusterStatus.REQUESTED, "demand": ClusterDemand(1, 2, 2)}, "orchestrator", "the leader"),
        ({"status": ClusterStatus.ALLOCATING} | UNJOINED, "provider", "workers: 1 of 4 are promoted"),
        ({"status": ClusterStatus.DEPLOYING, "nodes": 2}, "orchestrator", "the smoke job"),
        ({"status": ClusterStatus.RUNNING}, "nobody", "tasks of pool train"),
        ({"status": ClusterStatus.DEGRADED, "reason": "a member is lost"}, "orchestrator", "a member is lost"),
        ({"status": ClusterStatus.DELETING}, "orchestrator", "the end of 3 nodes"),
    ],
)
def test_every_live_state_says_whom_it_waits_for(fields: dict[str, Any], who: str, what: str) -> None:
    """And a fix that can be typed."""
    lines = shown(lambda output: view.cluster(cluster(**({"members": MEMBERS} | fields)), output, NOW, []), 200)
    assert lines[1] == f"WAITING ON {who}: {what}"
    assert "fix: python -m orchestrator " in lines[2]


@pytest.mark.parametrize("status", [ClusterStatus.FAILED, ClusterStatus.DELETED])
def test_an_ended_cluster_says_why(status: ClusterStatus) -> None:
    """With its code."""
    row = cluster(status=status, reason="2 of 4 nodes within 30 min", failure_code="NO_CAPACITY")
    lines = shown(lambda output: view.cluster(row, output, NOW, []), 200)
    assert lines[0].startswith(f"train  {status} 5m00s ago")
    assert lines[1] == "ENDED: 2 of 4 nodes within 30 min (NO_CAPACITY)"


@pytest.mark.parametrize("width", WIDTHS)
def test_operations_and_node_tasks_say_how_far_they_are(width: int | None) -> None:
    """An open one says until when; a failed one, why."""
    operations = [
        operation(7, kind=OperationKind.BOOTSTRAP_SSH, status=OperationStatus.RUNNING),
        operation(6, status=OperationStatus.FAILED, error=LONG, worker_id=MEMBERS[0].worker_id),
    ]
    lines = shown(lambda output: view.operations(operations, output, NOW), width)
    assert no_wider(lines, width), lines
    for words in ("bootstrap_ssh", "running", "in1m00s", "everymember", "cli:operator", "failed", LONG):
        assert squeezed([words]) in squeezed(lines), (words, lines)
    tasks = [node_task(3), node_task(2, status=NodeTaskStatus.EXPIRED, error="the agent did not take it")]
    lines = shown(lambda output: view.node_tasks(tasks, output, NOW), width)
    assert no_wider(lines, width), lines
    for words in ("allocation.reconcile_managed_authorized_key", "queued", "agent", "expired", "the agent did not"):
        assert squeezed([words]) in squeezed(lines), (words, lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_an_explanation_has_causes_evidence_and_fixes(width: int | None) -> None:
    """Or it says that nothing is known to be wrong."""
    change = Event(1, "train", BROKEN.worker_id, ClusterSubject.MEMBER, "ready", "reconciling", LONG, BORN)
    row = cluster(status=ClusterStatus.DEGRADED, members=MEMBERS, events=(change,))
    lines = shown(lambda output: view.explained(row, output, NOW, [DIAGNOSIS]), width)
    assert no_wider(lines, width), lines
    for words in ("NODE_DOWN", "evidence:slurmd does not answer", FIX):
        assert squeezed([words]) in squeezed(lines), (words, lines)
    changes = shown(lambda output: view.history(row.events, output, NOW), width)
    assert no_wider(changes, width), changes
    for words in ("5m00sago", "readyreconciling", BROKEN.worker_id, LONG):
        assert squeezed([words]) in squeezed(changes), (words, changes)
    assert view.NOTHING_WRONG in shown(lambda output: view.explained(row, output, NOW, []), width)


def test_ended_clusters_say_when_and_why() -> None:
    """As the rows of the list have it."""
    row = {"id": "old", "status": "failed", "status_since": BORN, "pool": "train", "nodes": 4}
    rows = [row | {"failure_code": "NO_CAPACITY", "reason": "2 of 4 nodes"}]
    lines = shown(lambda output: view.ended(rows, output, NOW), 80)
    assert lines[1].split() == ["old", "failed", "5m00s", "ago", "train", "4", "NO_CAPACITY:", "2", "of", "4", "nodes"]


def test_control_characters_of_a_pod_reach_no_terminal() -> None:
    """Whatever the pod calls itself, and whatever it answers."""
    said = {"error": "no\x1b[2J\x07", "slurmd_state": "i\x1b[31mdle"}
    hostile = replace(BROKEN, adapter_detail=said, hostname="\x1b")
    row: ClusterRow = cluster(members=(hostile,), reason="x\x1b[0m")
    text = "".join(shown(lambda output: view.cluster(row, output, NOW, []), 200))
    assert text.isprintable(), text
