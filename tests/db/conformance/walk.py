"""Random writes of users between the calls of agents, and what must hold after each of them.

One session takes the steps, so that a seed repeats them. The laws name only what docs/tasks.md and docs/fairness.md
promise.
"""

import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, LiteralString

from psycopg import AsyncConnection, sql
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.states import State
from tests.db.conformance.builders import Agent, Fleet, Row
from tests.db.conformance.consistency import broken

Hand = AsyncConnection[DictRow]
POOLS = ("default", "big")
KEYS = {"one": 1, "two": 2}
TYPES = {"limited": 1}
SOME_TYPES = ("t", "t", "t", "limited")
MAX_ATTEMPTS = 2
QUEUED = "status = 'Queued'"
RUNNING_NEED = "id in (select unnest(t.depends_on) from tasks t where t.status = 'In Progress')"
EVERYTHING = 100  # tasks that a probing claim asks for
LOOKS = 5  # claims of a pool, each of EVERYTHING
NEEDED = "select unnest(depends_on)::text as id from tasks where status <> 'Complete'"

# Tasks that a claim should have taken: due, with every dependency complete, and with room in each limit. A task that
# waits for its type keeps its place in its key (docs/fairness.md), so other tasks of that key may wait too.
LEFT = """
    with running as (select concurrency_key, task_type from tasks where status = 'In Progress'),
    keys as (select k as name, (%(keys)s::jsonb->>k)::int - (select count(*) from running r
                                                            where r.concurrency_key = k) as room
               from jsonb_object_keys(%(keys)s) k),
    types as (select k as name, (%(types)s::jsonb->>k)::int - (select count(*) from running r
                                                              where r.task_type = k) as room
                from jsonb_object_keys(%(types)s) k)
    select t.id::text, t.pool, t.concurrency_key, t.task_type, t.attempts from tasks t
     where t.status = 'Queued' and (t.run_after is null or t.run_after <= now())
       and not exists (select from unnest(t.depends_on) n (id) left join tasks d on d.id = n.id
                        where d.status is distinct from 'Complete' and n.id::text <> all (%(kept)s))
       and coalesce((select room > (select count(*) from tasks o join types y on y.name = o.task_type and y.room <= 0
                                     where o.concurrency_key = keys.name and o.status = 'Queued')
                       from keys where name = t.concurrency_key), true)
       and coalesce((select room > 0 from types where name = t.task_type), true)"""
RUNNING = """
    select l.name, count(*) as n from tasks t cross join lateral (values (concurrency_key), (task_type)) l (name)
     where t.status = 'In Progress' and l.name is not null group by 1"""


@dataclass
class Walk:
    """A fleet, its agents, and what their answers have told so far."""

    fleet: Fleet
    hand: Hand
    dice: random.Random
    agents: list[Agent]
    probes: list[Agent]  # they claim only what is rolled back
    ids: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)  # deleted tasks
    held: list[tuple[Agent, Row]] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)  # of each task that was completed and not taken back
    numbers: Counter[str] = field(default_factory=Counter)  # the last attempt of each task
    counted: Counter[str] = field(default_factory=Counter)  # its attempts that count
    done: Counter[str] = field(default_factory=Counter)  # steps, by name

    async def write(self, statement: LiteralString, *values: Any, **names: sql.Composable) -> list[DictRow]:
        """One statement of a user, with `names` in its braces."""
        cursor = await self.hand.execute(sql.SQL(statement).format(**names), values)
        return await cursor.fetchall() if cursor.description else []

    async def some(self, *conditions: LiteralString) -> str:
        """A task with one of these conditions, most often one of the last; if there is none, an unknown id."""
        condition = sql.SQL(self.dice.choice(conditions or ("true",)))
        rows = await self.write("select id::text from tasks where {holds} order by created_at, id", holds=condition)
        known = [row["id"] for row in rows]
        return self.dice.choice(known[-12:] if self.dice.random() < 0.8 else known) if known else str(uuid.UUID(int=0))

    # --- agents

    async def claim(self) -> None:
        """An agent claims up to three tasks."""
        agent = self.dice.choice(self.agents)
        for task in await agent.claim(batch=self.dice.randint(1, 3)):
            await self.given(task)
            self.numbers[task["id"]] = task["attempt"]
            self.held.append((agent, task))

    async def given(self, task: Row) -> None:
        """A claimed task has a new number, and the results of all its dependencies."""
        assert task["attempt"] > self.numbers[task["id"]], task
        (row,) = await self.write("select depends_on::text[] from tasks where id = %s", task["id"])
        wanted = {needed: self.results[needed] for needed in row["depends_on"]}
        assert {d["id"]: d["result_data"] for d in task["dependencies"]} == wanted

    async def end(self, way: str) -> None:
        """An agent ends an attempt in this way; a task that was taken from it is fenced."""
        if not self.held:
            return
        agent, task = self.held.pop(self.dice.randrange(len(self.held)))
        (row,) = await self.write("select status, worker_id, attempts from tasks where id = %s", task["id"]) or (None,)
        holds = row is not None and (row["status"], row["worker_id"]) == ("In Progress", agent.id)
        holds = holds and row is not None and row["attempts"] == task["attempt"]
        if way == "complete":
            data = {"n": self.dice.randrange(1000)}
            said = await agent.complete(task, p_result_data=data)
            if holds:
                self.results[task["id"]] = data
        elif way == "release":
            said = await agent.release(task)
        else:
            said = await agent.fail(task, code="BROKEN", message="no", retryable=way == "fail")
            if holds:
                self.counted[task["id"]] += 1
                final = way == "never again" or self.counted[task["id"]] >= MAX_ATTEMPTS
                (row,) = await self.write("select status from tasks where id = %s", task["id"])
                assert row["status"] == ("Failed" if final else "Queued"), (task, self.counted[task["id"]])
        assert (said in ("fenced", "already")) is not holds, (way, said, row)

    async def lose(self) -> None:
        """A worker is gone, and its tasks are rescued: an attempt of each counts. Another worker comes."""
        agent = self.agents.pop(self.dice.randrange(len(self.agents)))
        state = State(await self.fleet.status(agent.id))
        await self.fleet.end(agent.id, state, ExitCause.POD_LOST)
        for row in (await self.fleet.fleet("rescue", p_worker_id=agent.id))["tasks"]:
            self.counted[row["id"]] += 1
        self.agents.append(await self.fleet.agent(pool=self.dice.choice(POOLS)))

    # --- users

    async def submit(self) -> None:
        """New tasks: with a key, a type that has a limit, a tenant or dependencies."""
        dice = self.dice
        task: dict[str, Any] = {"pool": dice.choice(POOLS), "task_type": dice.choice(SOME_TYPES)}
        task |= {"max_attempts": MAX_ATTEMPTS, "priority": dice.choice((0, 0, 1))}
        task |= {"concurrency_key": dice.choice((*KEYS, *KEYS, None)), "tenant": dice.choice((None, "acme", "best"))}
        live = [one for one in self.ids[-10:] if one not in self.gone]
        task["depends_on"] = dice.sample(live, min(len(live), dice.choice((0, 0, 1, 2))))
        self.ids += await self.fleet.submit(task, task if not task["depends_on"] else {"max_attempts": MAX_ATTEMPTS})

    async def delete(self) -> None:
        """A user deletes a task, in whatever state it and its dependants are."""
        task = await self.some("true", "concurrency_key is not null", RUNNING_NEED)
        if await self.write("delete from tasks where id = %s returning id", task):
            self.gone.append(task)
            await self.forget()

    async def insert_again(self) -> None:
        """A user inserts a task with the id of a deleted one."""
        if self.gone:
            task = self.gone.pop(self.dice.choice((-1, self.dice.randrange(len(self.gone)))))
            await self.write(
                "insert into tasks (id, task_type, concurrency_key, max_attempts) values (%s, %s, %s, %s)",
                task, self.dice.choice(SOME_TYPES), self.dice.choice((*KEYS, None)), MAX_ATTEMPTS,
            )  # fmt: skip
            self.results.pop(task, None)
            self.counted[task] = 0

    async def move(self) -> None:
        """A user moves one queued task alone to another pool."""
        await self.write("update tasks set pool = %s where id = %s and status = 'Queued'",
                         self.dice.choice(POOLS), await self.some(QUEUED))  # fmt: skip

    async def edit(self) -> None:
        """A user changes what decides about the turn or the limits of a queued task."""
        dice = self.dice
        column, value = dice.choice((
            ("priority", dice.randrange(3)), ("tenant", dice.choice((None, "acme", "best"))), ("concurrency_key", None),
            ("concurrency_key", dice.choice((*KEYS,))), ("task_type", dice.choice(SOME_TYPES)),
        ))  # fmt: skip
        edited = sql.Identifier(column)
        await self.write("update tasks set {edited} = %s where id = %s", value, await self.some(QUEUED), edited=edited)

    async def postpone(self) -> None:
        """A user lets a queued task wait for an hour."""
        await self.write("update tasks set run_after = now() + interval '1 hour' where id = %s",
                         await self.some(QUEUED))  # fmt: skip

    async def hurry(self) -> None:
        """A user lets no task wait for its time."""
        await self.write("update tasks set run_after = null where run_after is not null and status = 'Queued'")

    async def reset(self) -> None:
        """A user queues a task again with all its attempts, whatever its state."""
        task = await self.some("true", "attempts > 1", "status = 'Complete'")
        await self.write("update tasks set status = 'Queued', attempts = 0, run_after = null where id = %s", task)
        self.counted[task] = 0
        self.results.pop(task, None)

    async def finish(self) -> None:
        """A user ends a task."""
        status = self.dice.choice(("Complete", "Cancelled", "Failed"))
        data = f'{{"by": "{status}"}}'
        rows = await self.write("update tasks set status = %s, result_data = %s where id = %s and status <> 'Complete'"
                                " returning id::text", status, data, await self.some())  # fmt: skip
        for row in rows:
            self.results.pop(row["id"], None)
            if status == "Complete":
                self.results[row["id"]] = {"by": status}

    async def retry(self) -> None:
        """A person retries what has failed: all its attempts count anew, and those of what failed for it."""
        task = await self.some("status in ('Failed', 'Cancelled')")
        for one in (await self.fleet.call("task_retry", p_id=task)).get("tasks") or ():
            self.counted[str(one)] = 0

    async def forget(self) -> None:
        """The result of a deleted task may be lost, unless a task that may still run needs it."""
        needed = {row["id"] for row in await self.write(NEEDED)}
        for task in self.gone:
            if task not in needed:
                self.results.pop(task, None)

    # --- laws

    async def check(self) -> None:
        """What must hold now."""
        await self.fleet.snapshot()
        assert await broken(self.hand) == {}
        async with self.hand.transaction(force_rollback=True):
            for agent in self.probes:
                for _ in range(LOOKS):
                    args = (agent.id, agent.nonce, next(agent.numbers), EVERYTHING)
                    (row,) = await self.write("select worker_claim(%s, %s, %s, %s, 0) as it", *args)
                    for task in row["it"]["tasks"]:
                        await self.given(task)
            kept = [one for one in self.results if one in self.gone]
            limits = {"keys": Jsonb(KEYS), "types": Jsonb(TYPES), "kept": kept}
            left = await (await self.hand.execute(LEFT.encode(), limits)).fetchall()
            running = await self.write(RUNNING)
        assert left == [], "they may run, and no claim takes them"
        assert [row for row in running if row["n"] > (KEYS | TYPES).get(row["name"], row["n"])] == []

    def steps(self) -> list[Callable[[], Awaitable[None]]]:
        """Each step, as often as it should be taken."""

        def ending(way: str) -> Callable[[], Awaitable[None]]:
            async def end() -> None:
                await self.end(way)

            end.__name__ = way
            return end

        ways = {"complete": 3, "fail": 2, "never again": 1, "release": 2}
        often = {
            self.submit: 3, self.claim: 4, self.edit: 3, self.delete: 2, self.insert_again: 2, self.hurry: 2,
            self.retry: 2, self.lose: 1, self.reset: 1, self.finish: 1, self.move: 1, self.postpone: 1,
            **{ending(way): count for way, count in ways.items()},
        }  # fmt: skip
        return [step for step, count in often.items() for _ in range(count)]


class Live(Fleet):
    """A fleet whose calls happen at the database's own time, like the statements of users."""

    async def call(self, function: str, /, **args: Any) -> Any:
        """Any function, now."""
        return await self.db.call(function, **args)
