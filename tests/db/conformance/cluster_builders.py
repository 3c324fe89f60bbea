"""A Slurm cluster in a real database, on the clock of its fleet."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.cluster_store import ClusterStore
from orchestrator.core.cluster_states import ClusterStatus, MemberRole, MemberStatus
from orchestrator.core.clusters.rows import ClusterRow
from tests.db.conformance.builders import FLEET, Agent, Fleet

NAME, POOL = "train", "slurm"


class Clocked:
    """A database whose calls carry the fleet's time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def call(self, function: str, /, **args: Any) -> Any:
        """The function's jsonb, decoded."""
        return await self._fleet.call(function, **args)


@dataclass
class Cluster:
    """One cluster of a fleet that we lead, as its leader and its operators see it."""

    fleet: Fleet
    name: str = NAME
    pool: str = POOL
    agents: list[Agent] = field(default_factory=list)  # of its members, the controller first

    @property
    def rows(self) -> ClusterStore:
        """The store, at the fleet's time."""
        return ClusterStore(Clocked(self.fleet), FLEET)

    async def create(self, nodes: int = 2, **size: int) -> None:
        """Request it."""
        answer = await self.rows.create(self.name, self.pool, nodes=nodes, **size)  # type: ignore[arg-type]
        assert answer["outcome"] == "created"

    async def move(self, *path: ClusterStatus, **fields: Any) -> bool:
        """From the first state through the others."""
        for before, after in pairwise(path):
            if not await self.rows.move(self.fleet.term, self.name, [before], after, "test", **fields):
                return False
        return True

    async def member(self, status: MemberStatus = MemberStatus.READY) -> Agent:
        """One more promoted worker that has joined; the first one is the controller."""
        agent = await self.fleet.agent(pool=self.pool)
        role = MemberRole.WORKER if self.agents else MemberRole.CONTROLLER
        self.agents.append(agent)
        assert await self.rows.join(self.fleet.term, self.name, agent.id, role) is not None
        if status is not MemberStatus.PENDING:
            await self.move_member(agent, MemberStatus.PENDING, MemberStatus.RECONCILING)
        if status is MemberStatus.READY:
            await self.move_member(agent, MemberStatus.RECONCILING, MemberStatus.READY)
        return agent

    async def move_member(self, agent: Agent, before: MemberStatus, after: MemberStatus | None, **fields: Any) -> bool:
        """One move of a member."""
        return await self.rows.move_member(self.fleet.term, self.name, agent.id, [before], after, "test", **fields)

    async def running(self, nodes: int = 2) -> "Cluster":
        """With all its members, and the smoke job done."""
        await self.create(nodes)
        await self.move(ClusterStatus.REQUESTED, ClusterStatus.ALLOCATING)
        for _ in range(nodes):
            await self.member()
        await self.move(ClusterStatus.ALLOCATING, ClusterStatus.DEPLOYING, ClusterStatus.RUNNING)
        return self

    async def report(self) -> ClusterRow:
        """All that the database knows of it."""
        (row,) = (await self.rows.report(self.name)).clusters
        return row


async def count(hand: AsyncConnection[DictRow], table: str) -> int:
    """How many rows a table has."""
    (row,) = await (await hand.execute(f"select count(*) as n from {table}".encode())).fetchall()  # noqa: S608
    return int(row["n"])
