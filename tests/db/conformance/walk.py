"""Random writes of users between the calls of agents.

After each step and a second of the leader's work, `live` is what follows from `tasks`, and nothing is left pending.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.db.conformance.consistency import LAWS

TYPES = ("plain", "other", "limited")
KEYS = (None, None, "one", "two")
TENANTS = (None, None, "acme", "zeta")
POOLS = ("default", "default", "big")
STATUSES = ("Queued", "In Progress", "Complete", "Failed", "Cancelled")
WORKERS = {"w0": "default", "w1": "default", "w2": "big"}
START = datetime(2026, 11, 21, 12, tzinfo=UTC)
SECONDS = 6  # of the leader's work after a step: a task may wait for a key, then for a type
ABORTED = 0.2  # of users' transactions
RESET = """
    truncate tasks, task_results, concurrency_limits, orchestrator.rechecks, orchestrator.attempts, orchestrator.marks,
             orchestrator.publications, orchestrator.edges, orchestrator.live;
    truncate workers cascade;
    insert into concurrency_limits (scope, name, most, set_at)
    values ('type', 'limited', 2, now()), ('key', 'two', 2, now());
    insert into fleet_settings (fleet, name, value, reason, set_at)
    values ('default', 'programs', '{"pools": [], "stuck_s": 600}', '', now()) on conflict do nothing"""
WORKER = """
    insert into workers (id, status, stage, fleet, pool, nonce, token_jti, waiting_on, deadline_at, next_attempt_at)
    values (%s, 'spawning', 'intent', 'default', %s, 'launch', 'token', 'orchestrator', now() + '1 hour', now())"""
HELD = "select task_id::text, attempt, worker_id from orchestrator.live where state = 'running' and nonce is not null"


@dataclass
class Walk:
    """The walk of one seed."""

    connection: psycopg.Connection[Any]
    dice: random.Random
    now: datetime = START
    claims: int = 0
    numbers: dict[str, int] = field(default_factory=dict)  # the last attempt of each task

    @classmethod
    def begin(cls, connection: psycopg.Connection[Any], seed: int) -> "Walk":
        """Empty the queue."""
        connection.execute(RESET)
        for worker in WORKERS.items():
            connection.execute(WORKER, worker)
        connection.execute("update workers set status = 'active'")
        return cls(connection, random.Random(seed))

    def rows(self, statement: LiteralString, *values: Any) -> list[Any]:
        """What a statement finds."""
        return self.connection.execute(statement, values).fetchall()

    def call(self, function: str, *values: Any) -> Any:
        """One call of an agent, a client or the leader."""
        places = sql.SQL(", ").join(sql.Placeholder() * len(values))
        call = sql.SQL("select {}({}, p_now => %s)").format(sql.Identifier("public", function), places)
        return self.connection.execute(call, (*values, self.now)).fetchall()[0][0]

    def one(self) -> str | None:
        """Any task."""
        ids = [str(row[0]) for row in self.rows("select id from tasks order by created_at, id")]
        return self.dice.choice(ids) if ids else None

    def write(self, statement: LiteralString, *values: Any) -> None:
        """One transaction of a user; some are rolled back."""
        try:
            with self.connection.transaction():
                self.connection.execute(statement, values)
                if self.dice.random() < ABORTED:
                    raise psycopg.Rollback
        except psycopg.errors.UniqueViolation as error:
            if "live_dedupe" not in str(error):
                raise

    def steps(self) -> list[Callable[[], None]]:
        """What may happen next."""
        often = [self.submit, self.claim, self.complete, self.edit, self.set_status]
        return [
            *(2 * often),
            *(
                self.complete_and_claim,
                self.fail,
                self.release,
                self.beat,
                self.repeat,
                self.reset,
                self.delete,
                self.retry,
            ),
            *(self.insert_again, self.cancel, self.submit_once, self.time, self.rescue, self.limit, self.audit),
        ]

    def submit(self) -> None:
        """Up to three tasks."""
        tasks = []
        for number in range(self.dice.randint(1, 3)):
            task: dict[str, Any] = {"task_type": self.dice.choice(TYPES), "pool": self.dice.choice(POOLS)}
            task |= {"priority": self.dice.randint(0, 2), "concurrency_key": self.dice.choice(KEYS)}
            task |= {"tenant": self.dice.choice(TENANTS)}
            if self.dice.random() < 0.3:
                task["depends_on"] = list({one for _ in range(2) if (one := self.one())}) + ["#0"] * (number > 0)
            if self.dice.random() < 0.15:
                task["run_after"] = (self.now + timedelta(seconds=self.dice.choice((-5, 30)))).isoformat()
            tasks.append({name: value for name, value in task.items() if value is not None})
        self.call("task_submit", Jsonb(tasks))

    def submit_once(self) -> None:
        """A task with a key that one live task may have."""
        key = self.dice.choice(("a", "b"))
        ((there,),) = self.rows("select count(*) from orchestrator.live where dedupe_key = %s", key)
        (task,) = self.call("task_submit", Jsonb([{"task_type": "plain", "dedupe_key": key}]))["tasks"]
        assert task["created"] == (there == 0)

    def claim(self) -> None:
        """A number that no claim of the task had before."""
        self.claims += 1
        batch = self.dice.choice((1, 1, 3, 10))
        for task in self.call("worker_claim", self.dice.choice(list(WORKERS)), "launch", self.claims, batch, 0)[
            "tasks"
        ]:
            assert task["attempt"] > self.numbers.get(task["id"], 0)
            self.numbers[task["id"]] = task["attempt"]

    def held(self) -> tuple[str, int, str] | None:
        """Any attempt that an agent holds."""
        held = sorted(self.rows(HELD))
        return self.dice.choice(held) if held else None

    def complete(self) -> None:
        """A held task is completed."""
        if held := self.held():
            task, attempt, worker = held
            answer = self.call("worker_complete", worker, "launch", task, attempt, None, Jsonb({"done": attempt}))
            assert answer["outcome"] == "ok"

    def complete_and_claim(self) -> None:
        """All that one agent holds."""
        results = [{"task_id": task, "attempt": attempt} for task, attempt, worker in self.rows(HELD) if worker == "w0"]
        if results:
            self.claims += 1
            answer = self.call("worker_complete_and_claim", "w0", "launch", Jsonb(results), self.claims, 2)
            assert set(answer["outcomes"]) == {"ok"}
            self.numbers |= {task["id"]: task["attempt"] for task in answer["tasks"]}

    def fail(self) -> None:
        """For good, or not."""
        if held := self.held():
            failure = {"code": "BROKEN", "message": "no", "retryable": self.dice.random() < 0.7}
            assert self.call("worker_fail", held[2], "launch", held[0], held[1], Jsonb(failure))["outcome"] != "fenced"

    def release(self) -> None:
        """A held task is given back."""
        if held := self.held():
            assert self.call("worker_release", held[2], "launch", held[0], held[1], "draining")["outcome"] == "ok"

    def beat(self) -> None:
        """An agent names what it holds."""
        worker = self.dice.choice(list(WORKERS))
        held = [row for row in self.rows(HELD) if row[2] == worker]
        tasks = [{"id": task, "attempt": number, "progress": {"at": self.dice.random()}} for task, number, _ in held]
        answer = self.call("worker_heartbeat", worker, "launch", Jsonb(tasks), None, None)
        assert answer["outcome"] == "ok"
        assert answer["fenced"] == []

    def repeat(self) -> None:
        """A completion of an attempt that has ended comes late."""
        ended = self.rows(
            "select task_id, attempt, worker_id, outcome from orchestrator.attempts where worker_id <> ''"
        )
        if ended:
            task, attempt, worker, outcome = self.dice.choice(sorted(ended))
            answer = self.call("worker_complete", worker, "launch", task, attempt, None, None)
            assert answer["outcome"] == ("already" if outcome == "complete" else "fenced")

    def set_status(self) -> None:
        """Any status, by SQL."""
        if task := self.one():
            self.write("update tasks set status = %s where id = %s", self.dice.choice(STATUSES), task)

    def reset(self) -> None:
        """With all its attempts."""
        if task := self.one():
            self.write("update tasks set status = 'Queued', attempts = 0 where id = %s", task)

    def delete(self) -> None:
        """One task."""
        if task := self.one():
            self.write("delete from tasks where id = %s", task)

    def insert_again(self) -> None:
        """The same id, in another state."""
        if task := self.one():
            self.connection.execute("delete from tasks where id = %s", (task,))
            status = self.dice.choice(("Queued", "Queued", "Complete", "In Progress"))
            self.write("insert into tasks (id, task_type, status) values (%s, 'plain', %s)", task, status)

    def retry(self) -> None:
        """A failed task and those that failed with it."""
        if task := self.one():
            try:
                self.call("task_retry", task)
            except psycopg.Error as error:
                if "dedupe_key" not in str(error):
                    raise

    def cancel(self) -> None:
        """Through the API."""
        if task := self.one():
            self.call("task_cancel", task)

    def edit(self) -> None:
        """One column of the specification of one task, or a priority of many."""
        task, soon = self.one(), self.dice.choice((None, self.now, self.now + timedelta(seconds=20)))
        if task is None:
            return
        needs = [one for one in [self.one() for _ in range(self.dice.randint(0, 2))] if one]
        statement, value = self.dice.choice(
            (
                ("update tasks set priority = %s where id = %s", self.dice.randint(0, 2)),
                ("update tasks set pool = %s where id = %s", self.dice.choice((*POOLS, None))),
                ("update tasks set concurrency_key = %s where id = %s", self.dice.choice(KEYS)),
                ("update tasks set tenant = %s where id = %s", self.dice.choice(TENANTS)),
                ("update tasks set task_type = %s where id = %s", self.dice.choice(TYPES)),
                ("update tasks set run_after = %s where id = %s", soon),
                ("update tasks set depends_on = %s::uuid[] where id = %s", needs),
                ("update tasks set cancel_requested_at = %s where id = %s", self.now),
                ("update tasks set max_attempts = %s where id = %s", self.dice.choice((None, 1, 5))),
                ("update tasks set created_at = created_at - %s where id = %s", timedelta(minutes=1)),
                ("update tasks set priority = priority + %s where status = 'Queued' or id = %s", 1),
            )
        )
        self.write(statement, value, task)

    def time(self) -> None:
        """Time passes."""
        self.now += timedelta(seconds=self.dice.choice((1, 10, 40)))

    def rescue(self) -> None:
        """The tasks of a lost worker, or those whose leases have ended."""
        if self.dice.random() < 0.5:
            self.rows("select orchestrator.rescue(null, %s, 0, 'default')", self.now)
        else:
            self.rows("select orchestrator.rescue('w1', %s)", self.now)

    def limit(self) -> None:
        """A limit is changed, and looked at."""
        scope, name = self.dice.choice((("type", "limited"), ("key", "two")))
        most = self.dice.choice((0, 1, 2, 3))
        self.rows(
            "update concurrency_limits set most = %s where scope = %s and name = %s returning 1", most, scope, name
        )
        self.connection.execute("insert into orchestrator.rechecks (kind, name) values (%s, %s)", (scope, name))

    def audit(self) -> None:
        """A row is written while the triggers are off, and found."""
        self.connection.execute("set session_replication_role = replica")
        self.connection.execute("insert into tasks (task_type) values ('plain')")
        if task := self.one():
            self.connection.execute("delete from tasks where id = %s", (task,))
        self.connection.execute("set session_replication_role = origin")
        self.rows("select orchestrator.audit(1000)")

    def check(self) -> None:
        """After the leader's work, no law is broken."""
        for _ in range(SECONDS):
            self.rows("select orchestrator.maintain_at(%s)", self.now)
        found = {name: rows for name, law in LAWS.items() if (rows := self.rows(law))}
        assert not found, found
