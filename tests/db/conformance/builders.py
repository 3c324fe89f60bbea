"""A fleet in a real database, on a clock that the test moves."""

import asyncio
import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.states import Stage, State
from orchestrator.ports import Db, NotLeader
from testbed.tasks import ended

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
FLEET = "default"
LONGEST_PAUSE_S = 600  # between two tries to write a row of tasks
SOON_S = 30.0  # for what should take a moment
Row = Mapping[str, Any]


@dataclass
class Agent:
    """One worker's side: its calls, with claims counted as an agent counts them."""

    fleet: "Fleet"
    id: str
    nonce: str
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def call(self, function: str, **args: Any) -> Row:
        """One worker_* call as this launch."""
        answer: Row = await self.fleet.call(
            f"worker_{function}", **({"p_worker_id": self.id, "p_nonce": self.nonce} | args)
        )
        return answer

    async def claim(self, *, batch: int = 1, number: int | None = None, wait_s: float = 0) -> Sequence[Row]:
        """What a claim hands over."""
        return list((await self.claiming(batch=batch, number=number, wait_s=wait_s))["tasks"])

    async def claiming(self, *, batch: int = 1, number: int | None = None, wait_s: float = 0) -> Row:
        """The whole answer to a claim."""
        number = next(self.numbers) if number is None else number
        await self.fleet.pass_time()
        return await self.call("claim", p_claim_no=number, p_batch=batch, p_wait_s=wait_s)

    async def beat(self, *tasks: Row, **others: Any) -> Row:
        """A heartbeat that names these tasks."""
        return await self.call("heartbeat", **({"p_tasks": list(tasks), "p_health": None, "p_logs": None} | others))

    async def complete(self, task: Row, **others: Any) -> str:
        """How the completion of a claimed task is received."""
        args = {"p_task_id": task["id"], "p_attempt": task["attempt"], "p_output_location": None, "p_result_data": None}
        return str((await self.call("complete", **(args | others)))["outcome"])

    async def complete_many(self, *results: Row) -> list[str]:
        """How the completions of claimed tasks in one call are received."""
        return list((await self.call("complete_many", p_results=list(results)))["outcomes"])

    async def complete_and_claim(self, *results: Row, number: int | None = None) -> Row:
        """The whole answer to completions with a claim of one."""
        number = next(self.numbers) if number is None else number
        return await self.call("complete_and_claim", p_results=list(results), p_claim_no=number, p_batch=1)

    async def fail(self, task: Row, **failure: Any) -> str:
        """How the failure of a claimed task is received."""
        args = {"p_task_id": task["id"], "p_attempt": task["attempt"], "p_failure": failure}
        return str((await self.call("fail", **args))["outcome"])

    async def release(self, task: Row) -> str:
        """How giving back a claimed task is received."""
        args = {"p_task_id": task["id"], "p_attempt": task["attempt"], "p_reason": "draining"}
        return str((await self.call("release", **args))["outcome"])


def result(task: Row, **data: Any) -> Row:
    """One entry of worker_complete_many, and of worker_complete_and_claim."""
    return {"task_id": task["id"], "attempt": task["attempt"], "result_data": data or None}


@dataclass
class Fleet:
    """The orchestrator's side, leading with `term`; `now` is the time of every call."""

    db: Db
    term: int = 1
    now: datetime = START
    ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    has_waited: bool = False

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)
        self.has_waited = True

    async def pass_time(self) -> None:
        """Do what the leader has done by now, if time has passed."""
        if self.has_waited:
            self.has_waited = False
            with contextlib.suppress(NotLeader):
                await self.maintain(1)

    async def call(self, function: str, /, **args: Any) -> Any:
        """Any function, now."""
        return await self.db.call(function, **args, p_now=self.now)

    async def fleet(self, function: str, /, **args: Any) -> Any:
        """A fleet_* function that carries the term."""
        return await self.call(f"fleet_{function}", **({"p_fleet": FLEET, "p_term": self.term} | args))

    async def maintain(self, seconds: int = 2) -> None:
        """Some seconds of the leader's work on the queue, at one moment."""
        for _ in range(seconds):
            await self.fleet("maintain")

    async def lead(self, holder: str = "us", ttl_s: float = 3600) -> Row:
        """Ask for the lead."""
        answer: Row = await self.call("fleet_lead", p_fleet=FLEET, p_holder=holder, p_ttl_s=ttl_s)
        return answer

    async def submit(self, *tasks: Row, count: int = 0, **every: Any) -> list[str]:
        """Queue these tasks, or `count` plain ones; their ids."""
        wanted = tasks or ({},) * (count or 1)
        answer = await self.call("task_submit", p_tasks=[{"task_type": "t", **every, **task} for task in wanted])
        return [row["id"] for row in answer["tasks"]]

    async def task(self, task_id: str) -> Row:
        """One task's row."""
        row: Row = (await self.call("task_get", p_id=task_id))["task"]
        return row

    async def spawn(self, worker_id: str | None = None, **fields: Any) -> str:
        """A recorded intent; its worker's id."""
        worker_id = worker_id or f"gpu-{next(self.ids)}"
        await self.fleet("spawn", p_worker={"id": worker_id, "gpu_type": "GPU"} | fields)
        return worker_id

    async def move(
        self, worker_id: str, *path: State, stage: Stage | None = None, reason: str = "test", **fields: Any
    ) -> Row:
        """From the first state to the second; one state: stay in it."""
        answer = await self.fleet(
            "move",
            p_worker_id=worker_id,
            p_from=[path[0].value],
            p_to=path[1].value if len(path) > 1 else None,
            p_stage=stage,
            p_reason=reason,
            p_fields=fields,
        )
        row: Row = answer["worker"]
        return row

    async def agent(self, state: State = State.ACTIVE, **intent: Any) -> Agent:
        """A worker in this state with an agent that has registered."""
        worker_id = await self.spawn(**intent)
        nonce = f"launch-{worker_id}"
        await self.move(
            worker_id, State.SPAWNING, nonce=nonce, token_jti=f"jti-{worker_id}", pod_id=f"pod-{worker_id}",
            price_usd_per_hour=3.6,
        )  # fmt: skip
        agent = Agent(self, worker_id, nonce)
        await agent.call("register", p_agent={"protocol": 1})
        if state is not State.SPAWNING:
            await self.move(worker_id, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED)
        if state is State.IDLE:
            assert await agent.claim() == []
        if state in {State.TERMINATING, State.TERMINATED}:
            await self.end(worker_id, State.ACTIVE)
        if state is State.TERMINATED:
            await self.move(worker_id, State.TERMINATING, State.TERMINATED)
        return agent

    async def end(self, worker_id: str, state: State, cause: ExitCause = ExitCause.IDLE_TIMEOUT) -> Row:
        """Begin a worker's end."""
        return await self.move(worker_id, state, State.TERMINATING, stage=Stage.DRAINING, exit_cause=cause)

    async def snapshot(self) -> Row:
        """The database's half of an observation, after the leader's work of a second."""
        await self.maintain(1)
        row: Row = await self.call("fleet_observe", p_fleet=FLEET)
        return row

    async def settle(self) -> None:
        """The leader's work until nothing is left: also what waits for its next try."""
        self.wait(LONGEST_PAUSE_S)
        await self.maintain(6)

    async def status(self, worker_id: str) -> str:
        """A worker's state."""
        return str((await self.call("fleet_worker", p_fleet=FLEET, p_worker_id=worker_id))["worker"]["status"])


async def limit(fleet: Fleet, name: str, most: int | None, scope: str = "key") -> None:
    """Set or remove the limit of a concurrency key or of a task type."""
    await fleet.call("task_limit_set", p_kind=scope, p_name=name, p_most=most)


class Ear:
    """What a listener has heard.

    What is sent before it hears `("connected", "")` may be missed.
    """

    def __init__(self, db: Db) -> None:
        self.heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._task = asyncio.create_task(self._listen(db))

    async def _listen(self, db: Db) -> None:
        async for event in db.notifications():
            self.heard.put_nowait(event)

    async def next(self) -> tuple[str, str]:
        """The next event, which must come soon."""
        async with asyncio.timeout(SOON_S):
            return await self.heard.get()

    async def until(self, event: tuple[str, str]) -> None:
        """Wait for this one."""
        while await self.next() != event:
            pass

    async def forget(self, hand: AsyncConnection[DictRow]) -> None:
        """Whatever it hears after this was sent after it."""
        await hand.execute("notify orchestrator_tasks, 'a mark'")
        await self.until(("orchestrator_tasks", "a mark"))

    async def close(self) -> None:
        """Listen no more."""
        await ended(self._task)


async def rows_read(hand: AsyncConnection[DictRow], table: str) -> int:
    """How many rows of a table the transaction that is open has read so far, whichever way."""
    query = "select seq_tup_read + idx_tup_fetch as n from pg_stat_xact_user_tables where relname = %s"
    (row,) = await (await hand.execute(query, (table,))).fetchall()
    return int(row["n"])
