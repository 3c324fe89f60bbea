"""The model is the SQL: random walks through it, with calls that make no sense mixed in, against the real functions."""

import random
import sys
from collections.abc import Mapping
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.states import Stage, State
from orchestrator.ports import LostRace, NotLeader, PortError, UnknownWorker
from tests.db.conformance.builders import FLEET, Fleet
from tests.proofs.model import rows as sql
from tests.proofs.model.rows import NOBODY, Answer, Rows, Rules
from tests.proofs.model.world import WORDS, Scope, steps
from tests.proofs.model.world import State as World

WALKS = 80
STEPS = 40
NONSENSE = 0.25  # of the calls are what nobody in the world would call now
SCOPE = Scope(2, 2, brains=2, terms=4, launches=2, claims=4, ready=False)
REFUSALS: dict[type[PortError], Answer] = {
    NotLeader: sql.REFUSED_TERM,
    LostRace: sql.LOST_RACE,
    UnknownWorker: sql.GONE_WORKER,
}
MOVES: dict[str, dict[str, Any]] = {
    "ask": {"stage": Stage.POD_CREATED},
    "created": {"stage": Stage.PROCESS, "fields": {"pod_id": "pod"}},
    "refused": {"stage": Stage.INTENT},
    "launch": {"stage": Stage.PROCESS},
    "promote": {"stage": Stage.PROMOTED, "to": State.ACTIVE},
    "flush": {"stage": Stage.FLUSHING},
    "bury": {"to": State.TERMINATED, "stage": Stage.GONE},
}


class Real:
    """The functions, called as the model calls its own; workers and tasks by number."""

    def __init__(self, fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
        self._fleet, self._hand = fleet, hand
        self._lives = [0] * SCOPE.brains
        self._tasks: list[str] = []

    async def begin(self) -> None:
        """A fleet that nobody leads, and the tasks."""
        self._tasks = await self._fleet.submit(count=SCOPE.tasks, max_attempts=sql.MAX_ATTEMPTS)

    async def call(self, name: str, *args: Any) -> Answer | None:
        """One call's answer in the model's words."""
        try:
            answer: Answer | None = await getattr(self, f"_{name}")(*args)
        except PortError as error:
            return REFUSALS[type(error)]
        return answer

    async def _claim(self, w: int, launch: int, number: int, held: int = 0) -> Answer:
        answer = await self._worker(w, launch, "claim", p_claim_no=number, p_batch=1, p_wait_s=20 * held)
        tasks = sorted((self._tasks.index(task["id"]), task["attempt"]) for task in answer["tasks"])
        return sql.FENCED if answer["outcome"] == "fenced" else ("ok", answer["wanted"], tuple(tasks))

    async def _heartbeat(self, w: int, launch: int, t: int, attempt: int) -> Answer:
        named = [{"id": self._tasks[t], "attempt": attempt}]
        answer = await self._worker(w, launch, "heartbeat", p_tasks=named, p_health=None, p_logs=None)
        if answer["outcome"] == "fenced":
            return sql.FENCED
        return "ok", "fenced" if answer["fenced"] else "cancel" if answer["cancel"] else "held"

    async def _complete(self, w: int, launch: int, t: int, attempt: int) -> Answer:
        return await self._word("complete", w, launch, t, attempt, p_output_location=None, p_result_data=None)

    async def _fail(self, w: int, launch: int, t: int, attempt: int) -> Answer:
        return await self._word("fail", w, launch, t, attempt, p_failure={"code": "X"})

    async def _release(self, w: int, launch: int, t: int, attempt: int) -> Answer:
        return await self._word("release", w, launch, t, attempt, p_reason="r")

    async def _word(self, word: str, w: int, launch: int, t: int, attempt: int, **rest: Any) -> Answer:
        return ((await self._worker(w, launch, word, p_task_id=self._tasks[t], p_attempt=attempt, **rest))["outcome"],)

    async def _worker(self, w: int, launch: int, function: str, **args: Any) -> Mapping[str, Any]:
        who = {"p_worker_id": f"w{w}", "p_nonce": f"launch-{launch}"}
        answer: Mapping[str, Any] = await self._fleet.call(f"worker_{function}", **who, **args)
        return answer

    async def _lead(self, o: int) -> Answer:
        answer = await self._fleet.lead(f"{o}.{self._lives[o]}", ttl_s=60)
        return ("leads", answer["term"]) if answer["leader"] else ("waits",)

    async def _spawn(self, term: int, w: int) -> Answer:
        answer = await self._fleet.fleet("spawn", p_term=term, p_worker={"id": f"w{w}", "gpu_type": "GPU"})
        return ("created",) if answer["created"] else ("exists",)

    async def _move(self, term: int, w: int, name: str) -> Answer:
        wanted, fields = MOVES[name], dict(MOVES[name].get("fields", {}))
        if name == "launch":
            now = await self._row(f"w{w}")
            fields["nonce"] = f"launch-{int(((now or {}).get('nonce') or 'launch-0')[7:]) + 1}"
        return await self._moved(term, w, sql.MOVES[name][0], wanted.get("to"), wanted["stage"], fields)

    async def _terminate(self, term: int, w: int, seen: str) -> Answer:
        why = {"exit_cause": ExitCause.MANUAL}
        return await self._moved(term, w, frozenset({seen}), State.TERMINATING, Stage.DRAINING, why)

    async def _moved(
        self, term: int, w: int, froms: frozenset[str], to: State | None, stage: Stage, fields: Mapping[str, Any]
    ) -> Answer:
        rest = {"p_from": sorted(froms), "p_to": to, "p_stage": stage, "p_reason": "r", "p_fields": fields}
        await self._fleet.fleet("move", p_term=term, p_worker_id=f"w{w}", **rest)
        return ("moved",)

    async def _rescue(self, term: int, w: int) -> Answer:
        answer = await self._fleet.fleet("rescue", p_term=term, p_worker_id=None if w == NOBODY else f"w{w}")
        return "rescued", len(answer["tasks"])

    async def _cancel(self, t: int) -> Answer:
        return ((await self._fleet.call("task_cancel", p_id=self._tasks[t]))["outcome"],)

    async def _crash(self, o: int) -> None:
        self._lives[o] += 1

    async def _lapse(self, t: int) -> None:
        await self._hand.execute("update tasks set lease_expires_at = '2000-01-01' where id = %s", (self._tasks[t],))

    async def _come_due(self, t: int) -> None:
        await self._hand.execute("update tasks set run_after = null where id = %s", (self._tasks[t],))

    async def _lapse_lead(self) -> None:
        await self._hand.execute("update fleet_lease set expires_at = '2000-01-01'")

    async def _row(self, worker_id: str) -> DictRow | None:
        query = """select w.status, w.stage, w.nonce, greatest(w.claim_no, (
                       select max(a.claim_no) from task_attempts a
                        where a.worker_id = w.id and a.nonce = w.nonce)) as claim_no from workers w where w.id = %s"""
        return await (await self._hand.execute(query, (worker_id,))).fetchone()

    async def rows(self) -> Rows:
        """What the tables hold, as the model writes it."""
        return Rows(
            tuple([await self._task(task_id) for task_id in self._tasks]),
            tuple([_worker(await self._row(f"w{w}")) for w in range(SCOPE.workers)]),
            await self._leads(),
        )

    async def _task(self, task_id: str) -> sql.Task:
        row = await (await self._hand.execute("select * from tasks where id = %s", (task_id,))).fetchone()
        query = "select * from task_attempts where task_id = %s order by attempt"
        attempts = await (await self._hand.execute(query, (task_id,))).fetchall()
        assert row is not None
        assert [a["attempt"] for a in attempts] == [*range(1, row["attempts"] + 1)]
        over = row["lease_expires_at"] is not None and row["lease_expires_at"] <= self._fleet.now
        return sql.Task(
            row["status"],
            row["uncounted"],
            int(row["worker_id"][1:]) if row["worker_id"] else NOBODY,
            sql.OVER if over else sql.FRESH if row["lease_expires_at"] else sql.NO_LEASE,
            row["cancel_requested_at"] is not None,
            row["run_after"] is None,
            tuple((int(a["worker_id"][1:]), int(a["nonce"][7:]), a["claim_no"], a["outcome"] or "") for a in attempts),
        )

    async def _leads(self) -> sql.Lease:
        row = await (await self._hand.execute("select * from fleet_lease where fleet = %s", (FLEET,))).fetchone()
        if row is None:
            return sql.Lease()
        o, _, life = row["holder"].partition(".")
        holder = int(o) if life == str(self._lives[int(o)]) else sql.FORMER
        return sql.Lease(holder, row["term"], row["expires_at"] > self._fleet.now)


def _worker(row: DictRow | None) -> sql.Worker:
    if row is None:
        return sql.Worker()
    return sql.Worker(row["status"], row["stage"], int((row["nonce"] or "launch-0")[7:]), row["claim_no"])


def _nonsense(draw: random.Random, state: World) -> tuple[Any, ...]:
    """A call with any arguments."""
    w, launch, t = draw.randrange(SCOPE.workers), draw.randint(1, 2), draw.randrange(SCOPE.tasks)
    term, attempt = draw.randint(1, state.rows.lease.term + 1), draw.randint(1, 3)
    calls: list[tuple[Any, ...]] = [
        ("claim", w, launch, draw.randint(1, 6), draw.randint(0, 1)),
        (draw.choice([*WORDS]), w, launch, t, attempt),
        ("heartbeat", w, launch, t, attempt),
        ("move", term, w, draw.choice([*sql.MOVES])),
        ("terminate", term, w, draw.choice(sorted(sql.LIVE))),
        ("rescue", term, draw.choice([NOBODY, w])),
        ("spawn", term, w),
        ("cancel", t),
    ]
    return draw.choice(calls)


async def test_the_model_answers_as_the_functions_do(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Answer for answer and row for row; a walk's seed says how to have it again."""
    called: dict[str, int] = {}
    for seed in range(WALKS):
        await hand.execute(
            "delete from task_attempts; delete from tasks; delete from workers; delete from fleet_lease;"
            " delete from task_floors"
        )
        draw, real = random.Random(seed), Real(fleet, hand)
        await real.begin()
        state, walk = SCOPE.start(), []
        for _ in range(STEPS):
            if draw.random() < NONSENSE:
                call = _nonsense(draw, state)
                rows, answer = getattr(sql, call[0])(Rules(), state.rows, *call[1:])
                label, after = str(call), state._replace(rows=rows)
            else:
                choices = [step for step in steps(Rules(), SCOPE, state) if not step.label.startswith("another")]
                if not choices:
                    break
                step = draw.choice(choices)
                label, after, answer = step.label, step.state, step.answer
                call = step.call or ()
            walk.append(label)
            if call:
                called[call[0]] = called.get(call[0], 0) + 1
                said = await real.call(*call)
                assert said == answer, (seed, walk)
            assert await real.rows() == after.rows, (seed, walk)
            state = after
    sys.stdout.write(f"{dict(sorted(called.items()))}\n")
    assert {*WORDS, "claim", "heartbeat", "lead", "spawn", "move", "terminate", "rescue", "cancel"} <= {*called}
