"""Cuts a connection to a real PostgreSQL: before a statement arrives, or after its COMMIT and before the answer."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.states import Stage, State
from orchestrator.ports import LostRace, Unavailable
from testbed.tcp_proxy import Break, TcpProxy
from tests.db.conformance.builders import Agent, Fleet, result

READY = b"Z\x00\x00\x00\x05"  # ReadyForQuery: the server has executed what was sent


class Line(TcpProxy):
    """A proxy before a database; `arm` cuts a connection at the n-th message of a client from then on."""

    def __init__(self, url: str) -> None:
        super().__init__(int(str(conninfo_to_dict(url)["port"])))
        self._url = url
        self._armed: list[Break] = []

    @property
    def url(self) -> str:
        """Return the URL of the database through this proxy."""
        return make_conninfo(self._url, host="127.0.0.1", port=self.port)

    @property
    def cuts(self) -> int:
        """Return how often a connection was cut."""
        return sum(one.happened.is_set() for one in self._armed)

    def arm(self, *, after: bool, message: int = 1) -> None:
        """Cut the connection at this message, counted from now on."""
        self.breaks = Break(b"", after, message, READY)
        self._armed.append(self.breaks)


@dataclass
class Cuts:
    """A fleet behind a proxy. Each check cuts one call, repeats it like its caller, and checks the result."""

    fleet: Fleet
    line: Line
    after: bool = False

    async def twice(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer of the repeated call."""
        self.line.arm(after=self.after)
        try:
            await call()
        except Unavailable:
            return await call()
        raise AssertionError("the call was answered over a connection that was cut")

    async def claim(self, agent: Agent) -> None:
        """The same task under the same token."""
        (task_id,) = await self.fleet.submit()
        number = next(agent.numbers)
        (task,) = await self.twice(lambda: agent.claim(number=number))
        assert (task["id"], task["attempt"]) == (task_id, 1)
        assert await agent.complete(task) == "ok"

    async def complete(self, agent: Agent) -> None:
        """Accepted once, and said so."""
        await self._word(agent, agent.complete, "ok", "already", "Complete")

    async def complete_and_claim(self, agent: Agent) -> None:
        """Accepted once, and the same next task."""
        _, following = await self.fleet.submit(count=2)
        (task,) = await agent.claim()
        number = next(agent.numbers)
        said = await self.twice(lambda: agent.complete_and_claim(result(task), number=number))
        assert said["outcomes"] == ["already" if self.after else "ok"]
        (claimed,) = said["tasks"]
        assert (claimed["id"], claimed["attempt"]) == (following, 1)
        assert await agent.complete(claimed) == "ok"

    async def fail(self, agent: Agent) -> None:
        """One attempt is used, not two."""
        await self._word(agent, agent.fail, "requeued", "already", "Queued")

    async def release(self, agent: Agent) -> None:
        """Given back once."""
        await self._word(agent, agent.release, "ok", "already", "Queued")

    async def _word(
        self, agent: Agent, say: Callable[[Any], Awaitable[str]], first: str, again: str, status: str
    ) -> None:
        (task_id,) = await self.fleet.submit()
        (task,) = await agent.claim()
        assert await self.twice(lambda: say(task)) == (again if self.after else first)
        row = await self.fleet.task(task_id)
        assert (row["status"], row["attempts"]) == (status, 1)
        if status == "Queued":
            await self.fleet.call("task_cancel", p_id=task_id)

    async def submit(self, _: Agent) -> None:
        """One task, whoever asks twice."""
        key = f"key-{self.line.cuts}-{self.after}"
        (task_id,) = await self.twice(lambda: self.fleet.submit(dedupe_key=key))
        (known,) = await self.fleet.submit(dedupe_key=key)
        assert known == task_id
        await self.fleet.call("task_cancel", p_id=task_id)

    async def spawn(self, _: Agent) -> None:
        """One intent; the second answer says that it stands."""
        worker_id = f"gpu-cut-{self.line.cuts}-{self.after}"
        intent = {"id": worker_id, "gpu_type": "GPU"}
        answer = await self.twice(lambda: self.fleet.fleet("spawn", p_worker=intent))
        assert answer == {"created": not self.after}

    async def terminate(self, _: Agent) -> None:
        """Begun once: the repetition loses the race against its own first half."""
        worker_id = await self.fleet.spawn(f"gpu-end-{self.line.cuts}-{self.after}")

        def end() -> Awaitable[Any]:
            fields = {"exit_cause": ExitCause.MANUAL}
            return self.fleet.move(worker_id, State.SPAWNING, State.TERMINATING, stage=Stage.DRAINING, **fields)

        try:
            await self.twice(end)
            assert not self.after
        except LostRace:
            assert self.after
        assert await self.fleet.status(worker_id) == "terminating"

    async def lead(self, _: Agent) -> None:
        """The same term."""
        lease = await self.twice(self.fleet.lead)
        assert (lease["leader"], lease["term"]) == (True, self.fleet.term)


CHECKS = ("claim", "complete", "complete_and_claim", "fail", "release", "submit", "spawn", "terminate", "lead")


async def cut_often(url: str, cuts: int, now: datetime) -> dict[str, int]:
    """Cut as often before as after COMMIT, in every check in turn. Return how many cuts each check resolved."""
    resolved: dict[str, int] = {}
    async with Line(url) as line:
        db = await PostgresDb.open(line.url, pool_size=1, call_timeout_s=10)
        fleet = Fleet(db, now=now)
        fleet.term = (await fleet.lead())["term"]
        agent = await fleet.agent()
        for number in range(cuts):
            for after in (False, True):
                name = CHECKS[number % len(CHECKS)]
                await getattr(Cuts(fleet, line, after), name)(agent)
                resolved[name] = resolved.get(name, 0) + 1
        await db.close()
    return resolved
