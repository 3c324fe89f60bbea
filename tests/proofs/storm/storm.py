"""Users' SQL on a busy queue, and the checks afterwards."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.ports import PortError
from tests.db.conformance.builders import Agent, Fleet, result
from tests.db.conformance.consistency import broken
from tests.proofs.storm.users import THEIR_OWN, Users, cleared

AGENTS, WRITERS, HOLDERS, BUILDERS, LEADERS = 14, 12, 4, 1, 1  # sessions: 32
CALL_TIMEOUT_S = 20.0
TRIES = 100  # of a call that a user's open transaction delays
OBSERVED_S = 0.2  # between two snapshots
RETAINED = 20  # snapshots between two retentions
AFTERWARDS = timedelta(hours=3)  # longer than every pause, and than the wait for a task that does not exist
# Tasks that did not end, with what keeps them.
ENDED = """
    select t.*, q.state, q.run_after as due, p.status as pending, p.reason
      from tasks t
      left join orchestrator.live q on q.task_id = t.id
      left join orchestrator.publications p on p.task_id = t.id
     where t.status not in ('Complete', 'Cancelled')"""
# Attempts that agents got, and how they ended.
NOTED = "select task_id::text, attempt, outcome from orchestrator.attempts where nonce <> ''"
# The queue as it is. A program's task is not looked at when it showed life the last time: reconcile() is a sign.
QUEUE = """
    select to_jsonb(q.*) - 'progress_at' as row from orchestrator.live q
    union all select to_jsonb(e.*) from orchestrator.edges e
    union all select to_jsonb(p.*) from orchestrator.publications p"""
ALL_BLOCKS = 1_000_000
LAST_AGENT = "select * from orchestrator.launches where worker_id = %s"
LAST_CLAIMS = 2_000  # each takes up to BATCH; if more are needed, the queue never ends
BATCH = 20
LATER = 3  # hours with rescue and retention: a rescued task waits; a cycle ends once all other dependencies have ended
HEARTBEAT = "heartbeat"  # also goes on while a user locks the whole table
PENDING = "pending"  # a user's open transaction has changed the task: an agent asks again
ASKED_AGAIN_S = 0.05
STUCK_S = 600  # until a task of a program that shows no life is queued again
LOCKED = "55P03"  # the call has waited long enough for a user's lock: an agent repeats it


class Now(Fleet):
    """A fleet whose calls happen at the database's own time, plus `ahead`."""

    ahead: timedelta | None = None

    async def call(self, function: str, /, **args: Any) -> Any:
        """Call a function at the database's time, plus `ahead`."""
        if self.ahead is not None:
            args["p_now"] = datetime.now(UTC) + self.ahead
        return await self.db.call(function, **args)


@dataclass
class Outcome:
    """The answers to agents, and what is wrong at the end."""

    calls: int = 0
    repeated: Counter[str] = field(default_factory=Counter)  # calls that waited for a user's lock, by function
    refused: Counter[str] = field(default_factory=Counter)  # of agents and the leader, by function and SQLSTATE
    said: dict[str, str] = field(default_factory=dict)
    claimed: Counter[tuple[str, int]] = field(default_factory=Counter)
    completed: Counter[tuple[str, int]] = field(default_factory=Counter)
    broken: dict[str, Mapping[str, list[Any]]] = field(default_factory=dict)
    lost: list[Any] = field(default_factory=list)  # attempts that were given or completed, and are not noted so
    left: list[Any] = field(default_factory=list)  # tasks that could neither be completed nor ended with a reason
    last_agent: Any = None  # the row of the worker that asked for these tasks
    users: Users | None = None

    def claims(self, tasks: Any) -> None:
        """Count the tasks of a claim."""
        self.claimed.update((task["id"], task["attempt"]) for task in tasks)

    @property
    def twice(self) -> list[tuple[str, int]]:
        """Return attempt numbers that were given twice, and completions that were accepted twice."""
        return [key for counts in (self.claimed, self.completed) for key, n in counts.items() if n > 1]

    def summary(self) -> str:
        """Return what happened, in one line."""
        users = self.users
        return (
            f"{self.calls} calls of agents, {sum(self.claimed.values())} claims, {sum(self.completed.values())} "
            f"completions, repeated {dict(self.repeated)}, refused {dict(self.refused)}; "
            f"users: {users and users.done} writes, refused {users and dict(users.refused)}"
        )

    async def asked(self, name: str, call: Awaitable[Any]) -> Any:
        """Return the answer of a call, or None for a refusal, which is counted."""
        return await self.until_answered(name, lambda: call, tries=1)

    async def until_answered(self, name: str, ask: Callable[[], Awaitable[Any]], tries: int = TRIES) -> Any:
        """Return the answer of a call that is repeated while a user's lock delays it. None: it was refused."""
        for left in reversed(range(tries)):
            self.calls += 1
            began = time.monotonic()
            try:
                answer = await ask()
                if answer in (PENDING, [PENDING]) and left:
                    self.repeated[name] += 1
                    await asyncio.sleep(ASKED_AGAIN_S)
                    continue
                return answer  # noqa: TRY300  the loop goes on after `continue`
            except PortError as error:
                state = getattr(error.__cause__, "sqlstate", None) or type(error).__name__
                if state == LOCKED and (left or self._may_be_refused(name, began)):
                    self.repeated[name] += 1
                    continue
                self.refused[f"{name}: {state}"] += 1
                place = getattr(getattr(error.__cause__, "diag", None), "context", "")
                self.said.setdefault(f"{name}: {state}", f"{error}: {place}")
                break
        return None

    def _may_be_refused(self, name: str, since: float) -> bool:
        """Whether the call may find the table locked: a slow machine holds that lock for longer than a call waits."""
        return name != HEARTBEAT and self.users is not None and self.users.has_locked_table(since)


async def storm(url: str, *, seed: int, seconds: float) -> Outcome:
    """Run users and agents for so long on a migrated database. Then finish the tasks that are left, and check."""
    db = await PostgresDb.open(url, pool_size=AGENTS + LEADERS, call_timeout_s=CALL_TIMEOUT_S)
    try:
        fleet = Now(db)
        fleet.term = (await fleet.lead())["term"]
        await fleet.fleet("declare_programs", p_pools=[], p_stuck_s=STUCK_S)
        await fleet.call("task_limit_set", p_kind="type", p_name="limited", p_most=3)
        agents = [await fleet.agent() for _ in range(AGENTS)]
        await fleet.submit(count=100)
        until = time.monotonic() + seconds
        users, outcome = Users(url, seed, until), Outcome()
        outcome.users = users
        async with asyncio.TaskGroup() as sessions:
            for number, agent in enumerate(agents):
                sessions.create_task(_work(outcome, agent, random.Random(f"{seed} agent {number}"), until))
            sessions.create_task(_lead(outcome, fleet, until))
            for act, count in ((users.write, WRITERS), (users.hold, HOLDERS), (users.rebuild, BUILDERS)):
                for number in range(count):
                    sessions.create_task(act(number))
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=dict_row) as hand:
            await _aftermath(outcome, fleet, await fleet.agent(), hand)  # the others may be held back by failures
    finally:
        await db.close()
    return outcome


async def _work(outcome: Outcome, agent: Agent, dice: random.Random, until: float) -> None:
    """Run an agent: claims, heartbeats, and each way to end a held task, or to forget it."""
    while time.monotonic() < until:
        answer = await outcome.asked("claim", agent.claiming(batch=dice.randint(1, 4)))
        tasks = [] if answer is None else answer["tasks"]
        outcome.claims(tasks)
        await outcome.asked(HEARTBEAT, agent.beat(*({"id": t["id"], "attempt": t["attempt"]} for t in tasks)))
        while tasks:
            task = tasks.pop()
            key, way = (task["id"], task["attempt"]), dice.random()
            if way < 0.3:
                if await outcome.until_answered("complete", partial(agent.complete, task)) == "ok":
                    outcome.completed[key] += 1
            elif way < 0.5:
                many = partial(agent.complete_many, result(task))
                if await outcome.until_answered("complete_many", many) == ["ok"]:
                    outcome.completed[key] += 1
            elif way < 0.7:
                ask = partial(agent.complete_and_claim, result(task), number=next(agent.numbers))
                answer = await outcome.until_answered("complete_and_claim", ask)
                if answer is not None:
                    outcome.completed[key] += answer["outcomes"] == ["ok"]
                    outcome.claims(answer["tasks"])
                    tasks += answer["tasks"]
                    if answer["outcomes"] == [PENDING]:
                        tasks.append(task)
            elif way < 0.8:
                fail = partial(agent.fail, task, code="X", message="no", retryable=way < 0.75)
                await outcome.until_answered("fail", fail)
            elif way < 0.9:
                await outcome.until_answered("release", partial(agent.release, task))
        await asyncio.sleep(dice.random() * 0.02)


async def _lead(outcome: Outcome, fleet: Fleet, until: float) -> None:
    """Run the orchestrator: snapshots, rescues, and now and then the hourly jobs."""
    turn = 0
    while time.monotonic() < until:
        await outcome.asked("snapshot", fleet.snapshot())
        await outcome.asked("rescue", fleet.fleet("rescue", p_worker_id=None))
        if turn % RETAINED == RETAINED - 1:
            await outcome.asked("retention", fleet.fleet("retention"))
        turn += 1
        await asyncio.sleep(OBSERVED_S)


async def _aftermath(outcome: Outcome, fleet: Now, agent: Agent, hand: AsyncConnection[DictRow]) -> None:
    await cleared(hand)
    for late in range(1, LATER + 1):
        fleet.ahead = late * AFTERWARDS
        fleet.term = (await fleet.lead())["term"]
        await fleet.maintain()
        await fleet.fleet("rescue", p_worker_id=None)
        await fleet.fleet("retention")
        outcome.broken[f"after retention {late}"] = await _broken(hand)
        await _finish(outcome, fleet, agent)
    outcome.broken["after the last claim"] = await _broken(hand)
    rows = await (await hand.execute(ENDED)).fetchall()
    outcome.last_agent = await (await hand.execute(LAST_AGENT, (agent.id,))).fetchone()
    outcome.left = [row for row in rows if row["status"] != "Failed" or not row["failure_code"]]
    ended = {(row["task_id"], row["attempt"]): row["outcome"] for row in await (await hand.execute(NOTED)).fetchall()}
    outcome.lost = [key for key in outcome.claimed if key not in ended]
    outcome.lost += [
        (*key, ended.get(key)) for key, n in outcome.completed.items() if n and ended.get(key) != "complete"
    ]


async def _broken(hand: AsyncConnection[DictRow]) -> Mapping[str, list[Any]]:
    """The laws that do not hold. Nor does anything change if the queue is made again from `tasks`, after an audit."""
    found = dict(await broken(hand))
    for _ in range(2):  # to the end of each table, and then all of it
        await hand.execute("select orchestrator.audit(%s)", (ALL_BLOCKS,))
    async with hand.transaction(force_rollback=True):
        before = [row["row"] for row in await (await hand.execute(QUEUE)).fetchall()]
        await hand.execute("select orchestrator.reconcile(array(select id from tasks))")
        after = [row["row"] for row in await (await hand.execute(QUEUE)).fetchall()]
    if changed := [row for row in before if row not in after] + [row for row in after if row not in before]:
        found["the queue does not follow from the tasks"] = changed
    return found


async def _finish(outcome: Outcome, fleet: Fleet, agent: Agent) -> None:
    for _ in range(LAST_CLAIMS):
        tasks = await agent.claim(batch=BATCH)
        if not tasks:
            return
        outcome.claims(tasks)
        for task, said in zip(tasks, await agent.complete_many(*map(result, tasks)), strict=True):
            outcome.completed[task["id"], task["attempt"]] += said == "ok"
        await fleet.snapshot()


def wrong(outcome: Outcome) -> list[str]:
    """Return a sentence for every broken promise."""
    found = [f"given or accepted twice: {key}" for key in outcome.twice]
    found += [f"{when}: {rule}: {rows[:3]}" for when, rules in outcome.broken.items() for rule, rows in rules.items()]
    found += [f"given or accepted, and not noted: {key}" for key in outcome.lost[:5]]
    found += [f"neither complete nor ended with a reason: {row}" for row in outcome.left[:5]]
    if outcome.left:
        found.append(f"in all {len(outcome.left)}; the last agent: {outcome.last_agent}")
    users = outcome.users
    said = users.said if users else {}
    found += [f"a user's statement failed: {text}" for key, text in said.items() if key not in THEIR_OWN]
    found += [f"refused {n} times: {key}: {outcome.said[key][:600]}" for key, n in outcome.refused.items()]
    return found
