"""The states of clusters, members, operations and node tasks are those of the core, for every writer."""

import itertools
from collections.abc import Mapping
from enum import StrEnum

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.core.cluster_states import (
    TRANSITIONS,
    ClusterStatus,
    ClusterSubject,
    MemberRole,
    MemberStatus,
    NodeTaskKind,
    NodeTaskStatus,
    NodeTaskVia,
    OperationKind,
    OperationStatus,
)
from tests.db.conformance.builders import Fleet

STATES: Mapping[ClusterSubject, type[StrEnum]] = {
    ClusterSubject.CLUSTER: ClusterStatus,
    ClusterSubject.MEMBER: MemberStatus,
    ClusterSubject.OPERATION: OperationStatus,
    ClusterSubject.NODE_TASK: NodeTaskStatus,
}
TABLES = {
    ClusterSubject.CLUSTER: "cluster_apps",
    ClusterSubject.MEMBER: "cluster_members",
    ClusterSubject.OPERATION: "member_operations",
    ClusterSubject.NODE_TASK: "node_tasks",
}
ADD = {
    ClusterSubject.CLUSTER: """insert into cluster_apps (id, fleet, pool, nodes, min_nodes, max_nodes, status)
                        values ('c', 'default', 'p', 2, 2, 2, %s)""",
    ClusterSubject.MEMBER: """insert into cluster_members (cluster, worker_id, role, node_name, index_no, status)
                       values ('c', 'w', 'worker', 'w', 0, %s)""",
    ClusterSubject.OPERATION: """insert into member_operations (cluster, kind, actor, deadline_at, status)
                          values ('c', 'add', 'me', now(), %s)""",
    ClusterSubject.NODE_TASK: """insert into node_tasks (cluster, worker_id, kind, via, deadline_at, status)
                          values ('c', 'w', 'allocation.reconcile_managed_authorized_key', 'ssh', now(), %s)""",
}


def path(subject: ClusterSubject, goal: StrEnum) -> list[StrEnum]:
    """The shortest way into a state from the first one, which is not part of it."""
    first = next(iter(STATES[subject]))
    ways: dict[StrEnum, list[StrEnum]] = {first: []}
    while goal not in ways:
        for before, after in TRANSITIONS[subject]:
            if before in ways and after not in ways:
                ways[after] = [*ways[before], after]
    return ways[goal]


async def add(hand: AsyncConnection[DictRow], subject: ClusterSubject, state: StrEnum) -> None:
    """A row in a state, by hand."""
    await hand.execute("delete from cluster_apps")
    first = next(iter(STATES[subject]))
    if subject is not ClusterSubject.CLUSTER:
        await hand.execute(ADD[ClusterSubject.CLUSTER].encode(), (ClusterStatus.REQUESTED,))
    await hand.execute(ADD[subject].encode(), (first,))
    for step in path(subject, state):
        await hand.execute(f"update {TABLES[subject]} set status = %s".encode(), (step,))  # noqa: S608


@pytest.mark.parametrize("subject", ClusterSubject)
async def test_by_hand_too_each_goes_only_where_it_may(
    fleet: Fleet, hand: AsyncConnection[DictRow], subject: ClusterSubject
) -> None:
    """Every transition of the core is accepted and leaves an event, and every other one is refused."""
    update = f"update {TABLES[subject]} set status = %s".encode()  # noqa: S608
    newest = "select * from cluster_events where subject = %s order by id desc limit 1"
    for before, after in itertools.permutations(STATES[subject], 2):
        await add(hand, subject, before)
        if (before, after) not in TRANSITIONS[subject]:
            with pytest.raises(psycopg.Error, match=f"cannot go from {before} to {after}") as refusal:
                await hand.execute(update, (after,))
            assert refusal.value.sqlstate == "OR007"
            continue
        await hand.execute(update, (after,))
        (event,) = await (await hand.execute(newest, (subject,))).fetchall()
        assert (event["cluster"], event["from_state"], event["to_state"]) == ("c", before, after)
        assert event["reason"] == "changed by hand"


@pytest.mark.parametrize("subject", ClusterSubject)
async def test_none_begins_in_the_middle(fleet: Fleet, hand: AsyncConnection[DictRow], subject: ClusterSubject) -> None:
    """A row begins in the first state."""
    first, *others = STATES[subject]
    await add(hand, subject, first)
    await hand.execute(f"delete from {TABLES[subject]}".encode())  # noqa: S608
    for state in others:
        with pytest.raises(psycopg.Error, match=f"cannot begin as {state}"):
            await hand.execute(ADD[subject].encode(), (state,))


async def test_transitions_and_words_are_those_of_the_core(hand: AsyncConnection[DictRow]) -> None:
    """The tables know every word that the core uses, and the transitions are the same."""
    rows = await (await hand.execute("select * from cluster_transitions")).fetchall()
    assert {(row["subject"], row["from_state"], row["to_state"]) for row in rows} == {
        (subject.value, before.value, after.value) for subject, pairs in TRANSITIONS.items() for before, after in pairs
    }
    words: list[tuple[type[StrEnum], str, str]] = [(STATES[one], TABLES[one], "status") for one in ClusterSubject]
    words += [
        (MemberRole, "cluster_members", "role"),
        (OperationKind, "member_operations", "kind"),
        (NodeTaskKind, "node_tasks", "kind"),
        (NodeTaskVia, "node_tasks", "via"),
        (ClusterSubject, "cluster_transitions", "subject"),
    ]
    for kind, table, column in words:
        query = "select pg_get_constraintdef(oid) as text from pg_constraint where conname = %s"
        (row,) = await (await hand.execute(query, (f"{table}_{column}_check",))).fetchall()
        texts = row["text"].count("'::text")
        assert texts == len(kind), (table, column)
        assert all(f"'{word.value}'::text" in row["text"] for word in kind), (table, column)


async def test_events_are_never_changed(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """History stays as it was written."""
    await add(hand, ClusterSubject.CLUSTER, ClusterStatus.RUNNING)
    with pytest.raises(psycopg.Error, match="cluster_events is append-only"):
        await hand.execute("update cluster_events set reason = 'something else'")
