"""The simulator's model of the rows of clusters against the real functions: the same calls, the same answers."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.adapters.cluster_store import ClusterStore
from orchestrator.core.cluster_states import (
    CLUSTER_TRANSITIONS,
    LIVE_CLUSTER,
    ClusterStatus,
    MemberRole,
    MemberStatus,
    NodeTaskKind,
    NodeTaskStatus,
    NodeTaskVia,
    OperationKind,
    OperationStatus,
)
from orchestrator.core.clusters.rows import ClusterDemand, ClusterReport
from orchestrator.core.failures import FailureCode
from orchestrator.core.states import State
from orchestrator.ports import PortError
from tests.db.conformance.builders import FLEET, Fleet
from tests.db.conformance.cluster_builders import POOL, Clocked
from tests.proofs.simulator.sql.clusters import WORKER_KEYS, ClusterTables

NAMES, WORKERS = ("one", "two", "three"), 16
STEPS = 600
NEW = {"operate": "operation", "node_task": "node_task"}
ID_AT = {"move_operation": "operation", "move_node_task": "node_task"}
NO_ID = 1_000_000_000
ACTOR = "ann"
ENDING = (ClusterStatus.DELETING, ClusterStatus.DELETED, ClusterStatus.FAILED)


class Modelled:
    """The calls of a store to the model, at the fleet's time."""

    def __init__(self, fleet: Fleet, tables: ClusterTables) -> None:
        self._fleet, self._tables = fleet, tables

    async def call(self, function: str, /, **args: Any) -> Any:
        """The model's answer."""
        return self._tables.call(function, self._fleet.now, args)


class Walk:
    """Random calls to both."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet, self.dice, self.tables = fleet, random.Random(f"clusters {seed}"), ClusterTables()
        self.tables.term = fleet.term
        self.stores = (ClusterStore(Clocked(fleet), FLEET), ClusterStore(Modelled(fleet, self.tables), FLEET))
        self.seen: set[str] = set()
        self.ids: dict[tuple[str, Any], int] = {}  # of the model -> PostgreSQL's
        self.workers: list[str] = []

    async def add_workers(self) -> None:
        """Some that a cluster reserves, and one without."""
        for number in range(WORKERS):
            state = State.TERMINATED if number == 1 else State.ACTIVE
            agent = await self.fleet.agent(state, pool=POOL, cluster=None if number == 0 else NAMES[number % 3])
            answer = await self.fleet.call("fleet_worker", p_fleet=FLEET, p_worker_id=agent.id)
            self.tables.workers[agent.id] = {key: answer["worker"].get(key) for key in WORKER_KEYS}
            self.workers.append(agent.id)

    async def step(self) -> None:
        """One call to both, with the same outcome."""
        name, args, kwargs = self._some()
        real_args = args
        if name in ID_AT:  # PostgreSQL leaves gaps between ids
            real_args = (args[0], self.ids.get((ID_AT[name], args[1]), NO_ID), *args[2:])
        real = await self._outcome(self.stores[0], name, real_args, kwargs)
        model = await self._outcome(self.stores[1], name, args, kwargs)
        if isinstance(real, list) and isinstance(model, list):
            for one, other in zip(real[1], model[1], strict=True):
                assert self.ids.setdefault(("operation", other), one) == one
            real, model = real[0], model[0]
        elif name in NEW and real is not None and isinstance(real, int):
            assert self.ids.setdefault((NEW[name], model), real) == real
            real = model
        assert real == model, (name, args, kwargs)
        self.seen.add(f"{name} {str(real)[:20]}")

    async def _outcome(self, store: ClusterStore, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            answer = await getattr(store, name)(*args, **kwargs)
        except PortError as error:
            return type(error).__name__
        if isinstance(answer, dict) and "outcome" in answer:
            return [answer["outcome"], [one["id"] for one in answer.get("operations", [])]]
        return answer

    def _some(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        dice = self.dice
        term = self.fleet.term + (dice.random() < 0.03)
        cluster = dice.choice((self._current(),) * 12 + (*NAMES, "none"))
        mine = [name for name, row in self.tables.workers.items() if row["cluster"] == cluster]
        worker = dice.choice(mine if mine and dice.random() < 0.9 else self.workers)
        row, member = self.tables.clusters.get(cluster), self.tables.members.get((cluster, worker))
        status = dice.choice(list(ClusterStatus))
        here = ClusterStatus(row["status"]) if row and dice.random() < 0.9 else dice.choice(list(ClusterStatus))
        legal = sorted(new for old, new in CLUSTER_TRANSITIONS if old is here and new not in ENDING)
        if legal and (dice.random() < 0.8 or (status in ENDING and dice.random() < 0.8)):
            status = dice.choice(legal)
        of_member = MemberStatus(member["status"]) if member else dice.choice(list(MemberStatus))
        open_id, task_id = (
            dice.randint(1, len(self.tables.operations) + 1),
            dice.randint(1, len(self.tables.node_tasks) + 1),
        )
        operation, task = self.tables.operations.get(open_id), self.tables.node_tasks.get(task_id)
        of_operation = OperationStatus(operation["status"]) if operation else OperationStatus.ACCEPTED
        of_task = NodeTaskStatus(task["status"]) if task else NodeTaskStatus.QUEUED
        to_member, kind = dice.choice((None, *MemberStatus)), dice.choice(list(OperationKind))
        ended = dice.choice(NAMES) if dice.random() < 0.05 else "none"
        node_task = {
            "operation_id": dice.choice((None, 1)), "kind": NodeTaskKind.AUTHORIZED_KEY, "payload": {"key": "a"},
            "via": dice.choice(list(NodeTaskVia)), "deadline_s": dice.choice((30, 900)),
        }  # fmt: skip
        size = {
            "nodes": dice.randint(0, 5),
            "min_nodes": dice.choice((None, 0, 2)),
            "max_nodes": dice.choice((None, 4)),
        }
        choices: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
            ("create", (cluster, dice.choice((POOL, POOL, "other"))), {**size, "actor": ACTOR}),
            ("scale", (cluster,), {**size, "actor": ACTOR}),
            ("scale", (cluster,), {"max_nodes": dice.randint(0, 66), "actor": ACTOR}),
            ("delete", (ended,), {"actor": ACTOR, "reason": dice.choice((None, "done"))}),
            ("drain", (cluster, worker), {"actor": ACTOR}),
            ("reconcile", (cluster, dice.choice((None, worker))), {"actor": ACTOR}),
            ("bootstrap_ssh", (cluster, dice.choice((None, worker))), {"actor": ACTOR}),
            ("move", (term, cluster, [here], status, "test"), self._fields()),
            ("wait", (term, cluster), self._fields()),
            ("join", (term, cluster, worker, dice.choice(list(MemberRole))), self._place()),
            ("join", (term, cluster, worker, MemberRole.WORKER), {}),
            ("move_member", (term, cluster, worker, [of_member], to_member, "test"), self._member()),
            ("operate", (term, cluster, dice.choice((None, worker)), kind), {"deadline_s": 60}),
            ("move_operation", (term, open_id, [of_operation], dice.choice(list(OperationStatus))),
             {"error": dice.choice((None, "bad")), "evidence": dice.choice((None, {"a": 1}))}),
            ("node_task", (term, cluster, worker), node_task),
            ("move_node_task", (term, task_id, [of_task], dice.choice(list(NodeTaskStatus))),
             {"error": dice.choice((None, "bad"))}),
            ("sweep", (term,), {}),
        ]  # fmt: skip
        return dice.choice(choices)

    def _current(self) -> str:
        """The first one that has not ended."""
        rows = self.tables.clusters
        return next((name for name in NAMES if name not in rows or rows[name]["status"] in LIVE_CLUSTER), NAMES[-1])

    def _fields(self) -> dict[str, Any]:
        every = {
            "nodes": self.dice.randint(0, 5), "conf_sha": "c0de", "waiting_for": "its nodes",
            "deadline_s": self.dice.choice((None, 60.5)), "failure_code": FailureCode.DEPLOY_TIMEOUT,
            "smoke_evidence": {"controller": "a"},
        }  # fmt: skip
        return {key: every[key] for key in every if self.dice.random() < 0.3}

    def _place(self) -> dict[str, Any]:
        return {"index_no": self.dice.randint(0, 3), "node_name": f"node{self.dice.randint(0, 3)}"}

    def _member(self) -> dict[str, Any]:
        every = {"role": self.dice.choice(list(MemberRole)), "fabric_addr": "10.0.0.1", "adapter_detail": {"cpus": 8}}
        return {key: every[key] for key in every if self.dice.random() < 0.2}

    async def look(self) -> None:
        """All rows of both are equal."""
        for name in (None, *NAMES):
            real, model = [await store.report(name) for store in self.stores]
            for one, other in zip(plain(real, {}), plain(model, self.ids), strict=True):
                different = [key for key in one.__slots__ if getattr(one, key) != getattr(other, key)]
                assert not different, [(key, getattr(one, key), getattr(other, key)) for key in different]


def plain(report: ClusterReport, ids: Mapping[tuple[str, Any], int]) -> list[Any]:
    """What the model has too, with PostgreSQL's ids."""
    found: list[Any] = []
    for row in report.clusters:
        operations = [replace(one, id=ids.get(("operation", one.id), one.id)) for one in row.operations]
        node_tasks = [replace(one, id=ids.get(("node_task", one.id), one.id)) for one in row.node_tasks]
        asked = replace(row, operations=tuple(operations), node_tasks=tuple(node_tasks))
        found.append(replace(asked, events=(), cost_usd=None, demand=ClusterDemand(0, 0, 0)))
    return found


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_model_of_the_clusters_has_not_drifted(fleet: Fleet, seed: int) -> None:
    """Random calls of the leader and of operators, also illegal ones, have the same result, and leave the same rows."""
    walk = Walk(fleet, seed)
    await walk.add_workers()
    for number in range(STEPS):
        await walk.step()
        if walk.dice.random() < 0.1:
            fleet.wait(walk.dice.choice((1, 40, 200)))
        if number % 20 == 0:
            await walk.look()
    await walk.look()
    assert "move_member True" in walk.seen
    assert {one.split(" ", 1)[1] for one in walk.seen} >= {"True", "False", "None", "NotLeader", "BadArgument"}
