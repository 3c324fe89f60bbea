"""docs/slurm-runbook.md: what each command of the page prints, for one cluster whose troubles follow one another.

`.venv/bin/python -m tests.process.cli.cluster_page` writes the outputs into the page, below each `$ orchestrator`. A
comment `<!-- scene: NAME -->` in the page brings the cluster into a state of SCENES. A test makes the page again and
compares everything but times, amounts and ids.
"""

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from psycopg import AsyncConnection

from orchestrator.adapters.cluster_store import ClusterStore
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.core.cluster_states import (
    ClusterStatus,
    MemberRole,
    MemberStatus,
    NodeTaskKind,
    NodeTaskStatus,
    NodeTaskVia,
    OperationKind,
    OperationStatus,
)
from orchestrator.core.states import State
from testbed.shared_services import SharedServices
from tests.process.cli.builders import ROOT, Fleet
from tests.process.cli.screens import shown

PAGE = ROOT / "docs" / "slurm-runbook.md"
FLEET_ID, NAME, COLUMNS = "default", "train", 80
WORKERS = ("gpu-20261125_220001-3f1c9a52", "gpu-20261125_220002-b7d04e18")
PROMPT, SCENE, INDENT = "    $ orchestrator ", re.compile(r"<!-- scene: (\w+) -->"), "    "
READY = {"phase": "slurm_ready", "slurmd_state": "idle", "munge_ok": True}
CONFIGURING = {"phase": "configuring", "munge_ok": True, "slurm_installed": True}
STARTED = {"slurmctld_state": "up", "slurmctld_pid": 417, "slurmctld_started_at": "2026-11-25T22:06:12+00:00"}
NO_SLURMCTLD = "slurmctld does not run on its controller"


@dataclass
class Story:
    """The cluster of the page, changed as the leader changes it."""

    fleet: Fleet
    rows: ClusterStore
    url: str  # of the database
    node_tasks: list[int] = field(default_factory=list)

    async def member(self, number: int, before: MemberStatus, after: MemberStatus | None, **detail: Any) -> None:
        """Move a member, with these details."""
        where = {"ssh_host": "213.173.110.7", "ssh_port": 12086 + number, "fabric_addr": f"10.65.0.{number + 3}"}
        fields = {**where, "hostname": f"c0ffee{number}", "adapter_detail": detail}
        worker, term = WORKERS[number], self.fleet.term
        why = detail.get("error") or f"reached; its private address is {where['fabric_addr']}"
        assert await self.rows.move_member(term, NAME, worker, [before], after, why, **fields)

    async def queue(self, worker: str, operation: int | None) -> int:
        """Queue the managed key for an agent; the number of the node task."""
        kind, via = NodeTaskKind.AUTHORIZED_KEY, NodeTaskVia.AGENT
        queued = await self.rows.node_task(
            self.fleet.term, NAME, worker, operation_id=operation, kind=kind, payload={}, via=via, deadline_s=300
        )
        assert queued is not None
        self.node_tasks.append(queued)
        return queued

    async def cluster(self, before: ClusterStatus, after: ClusterStatus, reason: str, **fields: Any) -> None:
        """Move the cluster."""
        assert await self.rows.move(self.fleet.term, NAME, [before], after, reason, **fields)


async def stalled(story: Story) -> None:
    """Both nodes are workers; slurmctld does not run; a task of the managed key waits for its agent."""
    rows, term = story.rows, story.fleet.term
    await rows.create(NAME, NAME, nodes=2, actor="cli:you")
    await story.cluster(ClusterStatus.REQUESTED, ClusterStatus.ALLOCATING, "2 nodes are wanted", deadline_s=1_800)
    for number, worker in enumerate(WORKERS):
        await story.fleet.worker(upto=State.ACTIVE, worker_id=worker, cluster=NAME)
        role = MemberRole.WORKER if number else MemberRole.CONTROLLER
        await rows.join(term, NAME, worker, role, node_name=worker.replace("_", "-"))
    down = {"slurmctld_state": "down", "slurmctld_pid": None, "error": NO_SLURMCTLD}
    await story.member(0, MemberStatus.PENDING, MemberStatus.RECONCILING, **CONFIGURING, **down)
    await story.member(1, MemberStatus.PENDING, MemberStatus.RECONCILING, **CONFIGURING)
    waits = {"waiting_for": f"slurmctld on {WORKERS[0].replace('_', '-')}", "deadline_s": 900}
    await story.cluster(ClusterStatus.ALLOCATING, ClusterStatus.DEPLOYING, "all nodes are promoted", **waits)
    failed = await rows.operate(term, NAME, WORKERS[0], OperationKind.RECONCILE, deadline_s=300)
    assert failed is not None
    steps = (OperationStatus.ACCEPTED, OperationStatus.DISPATCHED), (OperationStatus.DISPATCHED, OperationStatus.FAILED)
    for before, after in steps:
        error = NO_SLURMCTLD if after is OperationStatus.FAILED else None
        assert await rows.move_operation(term, failed, [before], after, error=error)


async def hostname(story: Story) -> None:
    """Another program wrote the host name into the address; slurmctld runs by now."""
    await story.member(0, MemberStatus.RECONCILING, None, **CONFIGURING, **STARTED)
    where = {"ssh_host": "j27u15", "hostname": "j27u15"}
    seen = [MemberStatus.RECONCILING]
    assert await story.rows.move_member(story.fleet.term, NAME, WORKERS[1], seen, None, "imported", **where)


CUT_OFF = {"api_url": "https://pods.example", "api_error": "Name or service not known"}


async def unreachable(story: Story) -> None:
    """A pod does not reach the API."""
    await story.member(1, MemberStatus.RECONCILING, None, **CONFIGURING, api_reachable=False, **CUT_OFF)


async def expired(story: Story) -> None:
    """The log of its agent ends with an expired token."""
    await story.member(1, MemberStatus.RECONCILING, None, **CONFIGURING, agent_codes=["token_expired"], clock_skew_s=0)


async def invalid(story: Story) -> None:
    """… or with a token that was refused."""
    await story.member(1, MemberStatus.RECONCILING, None, **CONFIGURING, agent_codes=["token_invalid"])


async def starved(story: Story) -> None:
    """A node task waits for two minutes; its agent was never heard."""
    await story.member(1, MemberStatus.RECONCILING, None, **CONFIGURING)
    queued = await story.queue(WORKERS[1], None)
    async with await AsyncConnection.connect(story.url, autocommit=True) as sql:
        aged = "update node_tasks set created_at = now() - interval '2 minutes' where id = %s"
        await sql.execute(aged, [queued])


async def asked(story: Story) -> None:
    """The key was asked for; the agents have not taken the node tasks."""
    rows, term = story.rows, story.fleet.term
    for operation in (await rows.report(NAME)).clusters[0].operations:
        if operation.kind is OperationKind.BOOTSTRAP_SSH and operation.worker_id:
            await rows.move_operation(term, operation.id, [OperationStatus.ACCEPTED], OperationStatus.DISPATCHED)
            await story.queue(operation.worker_id, operation.id)


async def applied(story: Story) -> None:
    """The agents took the node tasks, and did them."""
    rows, term = story.rows, story.fleet.term
    for before, after in (
        (NodeTaskStatus.QUEUED, NodeTaskStatus.DISPATCHED), (NodeTaskStatus.DISPATCHED, NodeTaskStatus.COMPLETED)
    ):  # fmt: skip
        for one in story.node_tasks:
            assert await rows.move_node_task(term, one, [before], after)
    for operation in (await rows.report(NAME)).clusters[0].operations:
        await rows.move_operation(term, operation.id, [OperationStatus.DISPATCHED], OperationStatus.SUCCEEDED)


async def running(story: Story) -> None:
    """Both nodes are ready, and the smoke job succeeded."""
    for number in range(2):
        ready = READY if number else READY | STARTED
        await story.member(number, MemberStatus.RECONCILING, MemberStatus.READY, **ready)
    now = (await story.rows.report(NAME)).now
    await story.cluster(
        ClusterStatus.DEPLOYING, ClusterStatus.RUNNING, "the smoke job succeeded", smoke_at=now.isoformat()
    )


SCENES: Mapping[str, Callable[[Story], Awaitable[None]]] = {
    "stalled": stalled,
    "hostname": hostname,
    "unreachable": unreachable,
    "expired": expired,
    "invalid": invalid,
    "starved": starved, "asked": asked, "applied": applied, "running": running,
}  # fmt: skip


async def page(services: SharedServices, text: str) -> str:
    """Return the page with what its commands print now."""
    made: list[str] = []
    lines = text.splitlines()
    async with _story(services) as story:
        while lines:
            line = lines.pop(0)
            made.append(line)
            if scene := SCENE.fullmatch(line):
                await SCENES[scene[1]](story)
            elif line.startswith(PROMPT):
                del lines[: _length(lines)]
                output = await shown(COLUMNS, *line.removeprefix(PROMPT).split())
                made += [f"{INDENT}{one}".rstrip() for one in output.rstrip().splitlines()]
                if lines and lines[0]:
                    made.append("")
    return "\n".join(made) + "\n"


def _length(lines: Sequence[str]) -> int:
    """The number of lines that the output of a command takes on the page."""
    count = 0
    for number, line in enumerate(lines):
        if line.startswith(PROMPT) or (line and not line.startswith(INDENT)):
            break
        if line:
            count = number + 1
    return count


@asynccontextmanager
async def _story(services: SharedServices) -> AsyncIterator[Story]:
    database = await services.database()
    db = await PostgresDb.open(database.url, pool_size=2)
    store = SqlStore(db, FLEET_ID)
    fleet = Fleet(store, db, None, (await store.lead("host-1:17", 3_600)).term)
    empty = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG", "TMPDIR"}}
    settings = {"DATABASE_URL": database.url, "FLEET_ID": FLEET_ID, "LOGNAME": "you"}
    with mock.patch.dict(os.environ, {**empty, **settings}, clear=True):
        yield Story(fleet, ClusterStore(db, FLEET_ID), database.url)
    await db.close()


async def main() -> None:
    """Write the page."""
    with tempfile.TemporaryDirectory() as directory:
        async with SharedServices(Path(directory)) as services:
            PAGE.write_text(await page(services, PAGE.read_text()))


if __name__ == "__main__":
    asyncio.run(main())
