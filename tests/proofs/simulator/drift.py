"""Compares the model of the SQL functions with the real ones: both get the same calls and must give the same answers.

The steps are random by a seed, and both sides get the same time. They are chosen so that most calls succeed and every
refusal occurs. `python -m tests.proofs.simulator.drift --steps N` runs it alone, on a server of its own.
"""

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.stages import BRING_UP
from orchestrator.migrate import migrate
from orchestrator.ports import PortError
from testbed.services.postgres import EmbeddedPostgres
from tests.proofs.simulator.coverage import ONLY_REAL
from tests.proofs.simulator.sql.records import Records

FLEET = "default"
START = datetime(2026, 11, 21, 22, 0, tzinfo=UTC)
LOOK_EVERY = 25  # steps, between two comparisons of everything
ROUND = 5_000  # steps on one database, run alone
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:?\d\d)?|Z)?")
CHAIN = re.compile(r"Dependency [0-9a-f-]{36} \([^)]*\) ended as (Failed|Cancelled)(: )?")
SEEN = ("status", "state", "pool", "attempts", "uncounted")  # of every task
WITHIN_MS = 10**3
WHILE = timedelta(seconds=40)
LIVE = ("spawning", "active", "idle", "terminating")
NEXT = {"spawning": ("active", "terminating"), "active": ("terminating", "idle"), "idle": ("terminating", "active"),
        "terminating": ("terminated",), "terminated": ("active",)}  # fmt: skip


class Drift(AssertionError):
    """Raised if the two sides differ."""


def plain(value: Any, *, at: str = "") -> Any:
    """Return a comparable form: times to the millisecond, numbers to six places."""
    if isinstance(value, dict):
        return {key: plain(one, at=key) for key, one in value.items()}
    if isinstance(value, list):
        known = [plain(one) for one in value]
        return sorted(known) if at in ("cancel", "stuck") else known
    if at == "state" and value == "waits_for_time":
        return "ready"  # the clock of the server tells whether its time has come
    if at == "database_id":
        return value is not None  # made at random
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return round(float(value), 5)
    text = str(value)
    if at in ("error_message", "message"):
        return MOMENT.sub("<time>", CHAIN.sub("", text))  # of several dependencies that failed, any may be named
    if MOMENT.fullmatch(text):
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    return text


def same(real: Any, model: Any) -> bool:
    """Whether all values of the model's answer equal the real ones, except for the rounding of a millisecond."""
    if isinstance(model, dict) and isinstance(real, dict):
        return all(key in real and same(real[key], one) for key, one in model.items())
    if isinstance(model, list) and isinstance(real, list):
        return len(model) == len(real) and all(map(same, real, model))
    if isinstance(model, int) and isinstance(real, int) and not isinstance(model, bool):
        return abs(real - model) <= 1
    if isinstance(model, float) and isinstance(real, float):
        return abs(real - model) <= 1e-4
    return bool(real == model)


def only_real(real: Any, model: Any, path: str) -> Iterator[str]:
    """Return the places where the real answer has keys that the model's lacks."""
    if isinstance(model, dict) and isinstance(real, dict):
        for key, value in real.items():
            if key in model:
                yield from only_real(value, model[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    if isinstance(model, list) and isinstance(real, list):
        for one, other in zip(real, model, strict=False):
            yield from only_real(one, other, f"{path}[]")


class Pair:
    """Both databases."""

    def __init__(self, db: PostgresDb, seed: int) -> None:
        self._db, self.model, self.dice = db, Records(), random.Random(f"drift {seed}")
        self.now = START
        self.calls: Counter[str] = Counter()
        self.only_real: set[str] = set()  # keys of the real answers that the model's lack
        self.last: list[str] = []
        self._attempts: list[tuple[int, int]] = []  # the model's id of each, and the real one's
        self._ids = random.Random(f"ids {seed}")
        self._names = 0
        self._tasks: list[str] = []

    async def call(self, function: str, **args: Any) -> Any:
        """Make one call to both."""
        theirs = dict(args)
        self.last.append(f"{function} {args}")
        if function in ("fleet_attempt_close", "fleet_attempt_note"):
            args["p_id"], theirs["p_id"] = args["p_id"]
        real, model = await self._ask(theirs, function), self._model(function, args)
        self.calls[f"{function} {type(model).__name__ if isinstance(model, PortError) else 'ok'}"] += 1
        if isinstance(real, PortError) or isinstance(model, PortError):
            if type(real) is not type(model):
                raise Drift(f"{function}({args}): really {real!r}, by the model {model!r}")
            return None
        if function == "fleet_attempt_open":
            self._attempts.append((model["id"], real["id"]))
            return model
        if function == "fleet_record_decision":
            real, model = real["id"] is None, model["id"] is None
        left, right = plain(real), plain(model)
        if not same(left, right):
            raise Drift(f"{function}({args}) at {self.now}:\n really {left}\n model  {right}\n{_where(left, right)}")
        self.only_real |= set(only_real(left, right, function))
        return model

    async def _ask(self, args: dict[str, Any], function: str) -> Any:
        try:
            return await self._db.call(function, **args, p_now=self.now)
        except PortError as error:
            return error

    def _model(self, function: str, args: dict[str, Any]) -> Any:
        try:
            return self.model.call(function, self.now, args)
        except PortError as error:
            return error

    # --- steps

    async def step(self) -> None:
        """Make one random call."""
        self.now += timedelta(microseconds=self.dice.choice((1, 1000, 10**6, 5 * 10**6, 40 * 10**6)))
        acts = (
            (2, self._lead),
            (5, self._submit),
            (2, self._end_task),
            (5, self._spawn),
            (12, self._move),
            (20, self._agent),
            (4, self._attempt),
            (2, self._offer),
            (2, self._host),
            (2, self._rescue),
            (1, self._keep),
            (6, self._log),
            (2, self._rest),
            (1, self._deploy),
            (4, self._maintain),
        )
        await self.dice.choices([act for _, act in acts], [weight for weight, _ in acts])[0]()

    async def look(self) -> None:
        """Compare all that can be read."""
        listed = await self._db.call("task_list", p_status=None, p_task_type=None, p_limit=10000)
        shown = [self._model("task_get", {"p_id": task_id})["task"] for task_id in self.model.tasks]
        states, model = (
            {row["id"]: tuple(plain(row[name], at=name) for name in SEEN) for row in rows}
            for rows in (listed["tasks"], shown)
        )
        if states != model:
            differ = {name: (states.get(name), model.get(name)) for name in model if states.get(name) != model[name]}
            raise Drift(f"tasks (really, by the model): {differ}, last calls {self.last[-LOOK_EVERY:]}")
        await self.call("fleet_observe", p_fleet=FLEET)
        since = self.dice.choice((None, 0.0, (self.now - WHILE).timestamp()))
        await self.call("fleet_scaling_facts", p_fleet=FLEET, p_pools={"default": since, "big": 0.0})
        for task_id in self.dice.sample(self._tasks, min(3, len(self._tasks))):
            await self.call("task_get", p_id=task_id)
        for name in self.dice.sample(sorted(self.model.workers), min(2, len(self.model.workers))):
            await self.call("fleet_log_pieces", p_fleet=FLEET, p_worker_id=name)
            await self.call("fleet_log_ends", p_fleet=FLEET, p_worker_id=name)
            real = await self._ask({"p_fleet": FLEET, "p_worker_id": name}, "fleet_worker")
            model = self._model("fleet_worker", {"p_fleet": FLEET, "p_worker_id": name})
            for row in (*real["events"], *real["attempts"], *model["events"], *model["attempts"]):
                del row["id"]
            if not same(plain(real), plain(model)):
                raise Drift(f"fleet_worker({name}):\n{_where(plain(real), plain(model))}")
            self.only_real |= set(only_real(plain(real), plain(model), "fleet_worker"))

    def check_keys(self) -> None:
        """Raise Drift if an answer had keys that the model's lack without a reason in coverage.py."""
        if unknown := self.only_real - ONLY_REAL.keys():
            raise Drift(f"keys that the model lacks, and coverage.py does not name: {sorted(unknown)}")

    @property
    def _term(self) -> int:
        known = int(self.model.leases.get(FLEET, {}).get("term", 0))
        return known - 1 if self.dice.random() < 0.03 else known

    def _worker(self) -> str:
        return self.dice.choice([*sorted(self.model.workers)[-12:], "gpu-unknown"])

    async def _lead(self) -> None:
        holder = self.dice.choice(("a", "b"))
        if self.dice.random() < 0.8:
            await self.call("fleet_lead", p_fleet=FLEET, p_holder=holder, p_ttl_s=self.dice.choice((15, 600)))
        else:
            await self.call("fleet_resign", p_fleet=FLEET, p_holder=holder, p_term=self._term)

    async def _submit(self) -> None:
        dice, batch = self.dice, []
        for index in range(dice.randint(1, 4)):
            new = str(uuid.UUID(int=self._ids.getrandbits(128), version=4))
            task: dict[str, Any] = {"id": new, "task_type": dice.choice("ab"), "params": {"n": index}}
            known = [f"#{dice.randrange(index + 1)}", *self._tasks[-6:]]
            if dice.random() < 0.3:
                task["depends_on"] = dice.sample(known, min(len(known), dice.randint(1, 2)))
            if dice.random() < 0.2:
                task["dedupe_key"] = dice.choice("xyz")
                task |= {"task_type": "a", "labels": {"show": "7"}}
            if dice.random() < 0.2:
                task["run_after"] = (self.now + timedelta(seconds=30, microseconds=index)).isoformat()
            task |= {"priority": dice.choice((0, 0, 1)), "max_attempts": dice.choice((None, 1, 2, 3, 101))}
            task |= {"pool": dice.choice((None, None, "default", "big", "no pool"))} if dice.random() < 0.3 else {}
            if task.get("pool"):  # it does not move with its type: only the audit would follow the type's other values
                task |= {"timeout_s": 7, "max_attempts": task["max_attempts"] or 2}
            if task["max_attempts"] == 101 and dice.random() < 0.8:
                task["max_attempts"] = 2
            batch.append(task)
        answer = await self.call("task_submit", p_tasks=batch)
        self._tasks += [row["id"] for row in answer["tasks"] if row["created"]] if answer else []

    async def _maintain(self) -> None:
        await self.call("fleet_maintain", p_fleet=FLEET, p_term=self._term)

    async def _end_task(self) -> None:
        if self._tasks:
            await self.call(self.dice.choice(("task_cancel", "task_retry")), p_id=self.dice.choice(self._tasks[-30:]))

    async def _spawn(self) -> None:
        live = sum(w["status"] in LIVE for w in self.model.workers.values())
        if live > 8 and self.dice.random() < 0.8:
            await self._move()
            return
        self._names += self.dice.random() < 0.95
        budget = {
            "hourly_usd": self.dice.choice((None, 3.0)),
            "daily_usd": self.dice.choice((None, 2.0)),
            "useful_usd": 0.1,
        }
        worker = {
            "id": f"gpu-{self._names:05d}",
            "pool": self.dice.choice(("default", "default", "big")),
            "gpu_type": "A40",
            "release": self.dice.choice((None, "i@1", "i@2")),
            "reserved_usd": 0.2,
            "reserved_usd_per_hour": 0.4,
            "budget": self.dice.choice((None, budget)),
            "lease_s": self.dice.choice((30, 60)),
            "metadata": {"offer": "o"},
            "reason": "wanted",
        }
        await self.call("fleet_spawn", p_fleet=FLEET, p_term=self._term, p_worker=worker)

    async def _move(self) -> None:
        dice, name = self.dice, self._worker()
        row = self.model.workers.get(name, {"status": "spawning", "pod_id": None})
        to = dice.choice((None, None, *NEXT[row["status"]]))
        fields: dict[str, Any] = {
            "waiting_on": dice.choice(("provider", "worker")),
            "deadline_s": 30,
            "next_attempt_s": 2.5,
        }
        if row["status"] == "spawning":
            price = dice.choice((0.4, 0.75))
            shown = None if name.endswith(("2", "5")) else price  # the reply to a create call may lack it
            pod = {"pod_id": f"pod-{name}", "price_usd_per_hour": shown, "machine_id": "m1"}
            nonce = {"nonce": f"n{dice.randrange(3)}-{name}", "token_jti": "j"}
            fields |= dice.choice(({}, pod, pod | nonce, nonce))
        if to == "terminating":
            cause = dice.choice([*list(ExitCause), None])
            fields |= {"exit_cause": cause, "failure_code": dice.choice((None, "POD_MISSING", "GATEWAY_UNREACHED"))}
        if dice.random() < 0.2:
            fields |= {"ssh_host": "10.0.0.1", "ssh_port": dice.choice((1, 2))}
        if dice.random() < 0.2:
            listed_at = (self.now - timedelta(seconds=dice.choice((1, 20)))).isoformat()
            fields |= {
                "metadata": {"listed_at": listed_at, "stuck_s": 40},
                "reserved_usd": 0.3,
                "budget": {"hourly_usd": 4.0},
            }
        stage = dice.choice((None, dice.choice(BRING_UP).stage)) if to is None else None
        await self.call(
            "fleet_move",
            p_fleet=FLEET,
            p_term=self._term,
            p_worker_id=name,
            p_from=[row["status"]] if dice.random() < 0.95 else ["idle"],
            p_to=to,
            p_stage=stage,
            p_reason="because",
            p_fields=fields,
        )

    async def _deploy(self) -> None:
        """Let a worker claim a task that only another release can run, before or after that release is there."""
        dice = self.dice
        await self.call("fleet_lead", p_fleet=FLEET, p_holder="a", p_ttl_s=600)
        fleet = {"p_fleet": FLEET, "p_term": self._term}
        types = dice.choice((["a"], ["a", "b"]))
        await self.call("fleet_declare_release", **fleet, p_releases={"default": "i@2"}, p_task_types=types)
        for release in dice.choice((("i@1",), ("i@1", "i@2"), ("i@2", "i@1"), ("i@1", "i@1"))):
            self._names += 1
            name = f"gpu-{self._names:05d}"
            await self.call("fleet_spawn", **fleet, p_worker={"id": name, "release": release})
            path = {"p_worker_id": name, "p_from": ["spawning"], "p_stage": None, "p_reason": "up"}
            await self.call("fleet_move", **fleet, **path, p_to="active", p_fields={"nonce": "n"})
            who = {"p_worker_id": name, "p_nonce": "n"}
            await self.call("worker_claim", **who, p_claim_no=1, p_batch=3, p_wait_s=0)
            for row in list(self.model.running.get(name, {}).values()):
                self.now += timedelta(microseconds=1)  # of those that are due at the same time, any is first
                named = who | {"p_task_id": row["id"], "p_attempt": row["attempt"]}
                for _ in range(dice.choice((1, 2))):
                    await self.call("worker_fail", **named, p_failure={"code": "NO_HANDLER", "message": "none"})
            self.now += timedelta(seconds=dice.choice((1, 61)))

    async def _agent(self) -> None:
        dice, name = self.dice, self._worker()
        ready = [w["id"] for w in self.model.workers.values() if w["status"] in ("active", "idle") and w["nonce"]]
        busy = [one for one in ready if self.model.running.get(one)]
        if ready and dice.random() < 0.7:  # of others hardly a call does anything
            name = dice.choice(busy if busy and dice.random() < 0.7 else ready)
        row, last = self.model.workers.get(name, {"nonce": None}), self.model.launches.get(name, 0)
        nonce = row["nonce"] if row["nonce"] and dice.random() < 0.95 else "old"
        who = {"p_worker_id": name, "p_nonce": nonce}
        held = list(self.model.running.get(name, {}).values())
        what = dice.choice(
            ("register", "claim", "claim", "claim", "heartbeat", "complete", "complete", "fail", "release")
        )
        if what == "register":
            await self.call("worker_register", **who, p_agent={"protocol": 1})
        elif what == "claim":
            number = max(1, last + dice.choice((1, 1, 1, 0, -1)))
            await self.call("worker_claim", **who, p_claim_no=number, p_batch=dice.randint(1, 3), p_wait_s=0)
        elif what == "heartbeat":
            told = [
                {"id": t["id"], "attempt": t["attempt"], "progress": {"f": dice.randrange(3)}}
                | ({"still_s": dice.choice((0, 1.5, 30))} if dice.random() < 0.5 else {})
                for t in held
            ]
            if self._tasks and dice.random() < 0.3:
                told.append({"id": dice.choice(self._tasks), "attempt": 9})
            logs = dice.choice((None, {"handler": dice.randrange(1000)}))
            await self.call("worker_heartbeat", **who, p_tasks=told, p_health={"ok": 1}, p_logs=logs)
        elif self._tasks:
            known = [(t["id"], t["attempt"]) for t in held] * 4
            known += [(t, dice.randint(1, 2)) for t in dice.sample(self._tasks, min(2, len(self._tasks)))]
            task_id, attempt = dice.choice(known)
            token = who | {"p_task_id": task_id, "p_attempt": attempt}
            if what == "complete" and dice.random() < 0.3:
                ended = {t["id"]: t["attempt"] for t in dice.sample(held, min(2, len(held)))} | {task_id: attempt}
                said = [{"task_id": t, "attempt": n, "result_data": {"r": 2}} for t, n in ended.items()]
                if dice.random() < 0.5:
                    await self.call("worker_complete_many", **who, p_results=said)
                else:
                    number = max(1, last + dice.choice((1, 1, 0, -1)))
                    following = {"p_claim_no": number, "p_batch": dice.randint(1, 3)}
                    await self.call("worker_complete_and_claim", **who, p_results=said, **following)
            elif what == "complete":
                await self.call("worker_complete", **token, p_output_location="s3://b/k", p_result_data={"r": 1})
            elif what == "fail":
                failure: dict[str, Any] = {
                    "code": dice.choice(("BAD", "NO_HANDLER")),
                    "message": "broke",
                    "point": dice.choice(("Processing", "Nowhere")),
                }
                failure |= {"exit_class": "exception", "retryable": dice.random() < 0.8, "detail": {"d": 1}}
                await self.call("worker_fail", **token, p_failure=failure)
            else:
                await self.call("worker_release", **token, p_reason="draining")

    async def _attempt(self) -> None:
        if self._attempts and self.dice.random() < 0.5:
            outcome = self.dice.choice(("ok", "failed", "timeout"))
            both, evidence = self.dice.choice(self._attempts[-5:]), {"known": self.dice.random() < 0.5}
            args = {"p_outcome": outcome, "p_failure_code": None, "p_exception_type": "X", "p_evidence": evidence}
            if self.dice.random() < 0.3:
                told = {"p_failure_code": "TCP_REFUSED", "p_evidence": evidence}
                await self.call("fleet_attempt_note", p_fleet=FLEET, p_term=self._term, p_id=both, **told)
            else:
                await self.call("fleet_attempt_close", p_fleet=FLEET, p_term=self._term, p_id=both, **args)
        else:
            stage = self.dice.choice(("pod_created", "tcp", "deleting"))
            who = {"p_worker_id": self._worker(), "p_stage": stage}
            await self.call("fleet_attempt_open", p_fleet=FLEET, p_term=self._term, **who)

    async def _offer(self) -> None:
        said: dict[str, Any] = {
            "p_key": self.dice.choice("op"),
            "p_refused": self.dice.random() < 0.6,
            "p_code": "NO_CAPACITY",
        }
        await self.call("fleet_note_offer", p_fleet=FLEET, p_term=self._term, **said)

    async def _host(self) -> None:
        key = self.dice.choice(("machine:m1", "place:EU|A40"))
        said: dict[str, Any] = {"p_key": key, "p_code": "ECC", "p_evidence": {"why": "it broke"}}
        said |= {"p_avoid_s": 60, "p_after": self.dice.choice((1, 2)), "p_memory_s": 90}
        await self.call("fleet_strike", p_fleet=FLEET, p_term=self._term, **said)

    async def _keep(self) -> None:
        """Renew the leases of a worker's tasks: some have expired."""
        busy = [name for name in sorted(self.model.running) if self.model.running[name]]
        name = self.dice.choice(busy) if busy and self.dice.random() < 0.8 else self._worker()
        await self.call("fleet_keep_tasks", p_fleet=FLEET, p_term=self._term, p_worker_id=name)

    async def _rescue(self) -> None:
        whose, over_s = self.dice.choice((None, self._worker())), self.dice.choice((None, 0, 7.5, 60))
        if over_s is None:
            await self.call("fleet_rescue", p_fleet=FLEET, p_term=self._term, p_worker_id=whose)
        else:
            await self.call("fleet_rescue_overdue", p_fleet=FLEET, p_term=self._term, p_over_s=over_s)

    async def _log(self) -> None:
        dice, name = self.dice, self._worker()
        where = {"p_worker_id": name, "p_boot_id": "boot", "p_stream": dice.choice(("agent", "handler"))}
        pieces = self.model.log_objects.get((name, "boot", where["p_stream"]), [])
        fleet = {"p_fleet": FLEET, "p_term": self._term}
        what = dice.choice(("begin", "begin", "shipped", "shipped", "lost"))
        if what == "lost":
            shipped = max((p["last_byte"] for p in pieces if p["shipped_at"]), default=0)
            last = dice.choice((None, shipped + 10, shipped + 500))
            first = shipped if dice.random() < 0.9 else shipped + 1
            await self.call("fleet_log_lost", **fleet, **where, p_first=first, p_last=last, p_reason="gone")
            return
        end = pieces[-1] if pieces else {"seq": -1, "last_byte": 0}
        first = end["last_byte"] or 0
        piece: dict[str, Any] = {
            "p_seq": end["seq"] + 1,
            "p_first": first,
            "p_last": first + 100,
            "p_sha256": "s",
            "p_key": "k",
        }
        if (what == "shipped" and pieces) or dice.random() < 0.1:
            piece |= {"p_seq": end["seq"], "p_first": end.get("first_byte", 0), "p_last": end["last_byte"]}
        if piece["p_last"] is not None and piece["p_last"] > piece["p_first"] and piece["p_seq"] >= 0:
            await self.call(f"fleet_log_{what}", **fleet, **where, **piece)

    async def _rest(self) -> None:
        dice, fleet = self.dice, {"p_fleet": FLEET}
        what = dice.randrange(9)
        if what == 8:
            policy, pool = dice.choice((None, "fixed", "learned", "other")), dice.choice((None, "default"))
            await self.call("fleet_scaling_policy", **fleet, p_pool=pool, p_policy=policy)
        elif what == 7:
            row = {"pool": "default", "statistics": {"a": dice.random()}, "until": (self.now - WHILE).timestamp()}
            await self.call("fleet_learn", **fleet, p_term=self._term, p_rows=dice.choice(([], [row])))
        elif what == 6:
            most, pool = dice.choice((None, 0, 1, 3)), dice.choice((None, "default"))
            lasts: dict[str, Any] = {"p_reason": "a look", "p_for_s": dice.choice((None, 20, 0))}
            await self.call("fleet_scale_limit", **fleet, p_pool=pool, p_most=most, **lasts)
        elif what == 5:
            stuck_s = dice.choice((5, 40, 1200))
            await self.call("fleet_declare_programs", **fleet, p_term=self._term, p_pools=[], p_stuck_s=stuck_s)
        elif what == 4:
            await self.call("fleet_retain", **fleet, p_term=self._term, p_every_s=dice.choice((1, 60)))
        elif what == 0:
            reason, pool = dice.choice((None, "a look")), dice.choice((None, "default"))
            await self.call("fleet_pause", **fleet, p_pool=pool, p_reason=reason, p_for_s=dice.choice((None, 20, 0)))
        elif what == 1:
            who: dict[str, Any] = {"p_worker_id": self._worker(), "p_reason": "a wish"}
            await self.call("fleet_request_termination", **fleet, **who, p_now_not_drain=dice.random() < 0.5)
        elif what == 2:
            types = [{"task_type": "a", "pool": "big", "timeout_s": 9, "max_attempts": 2}]
            await self.call("fleet_declare_pools", **fleet, p_term=self._term, p_pools=dice.choice(([], types)))
        else:
            said = {
                "pool": "default",
                "rule": dice.choice("rs"),
                "target": 1,
                "inputs": {},
                "actions": [],
                "blocked": [],
            }
            await self.call("fleet_record_decision", **fleet, p_term=self._term, p_decision=said)


def _where(real: Any, model: Any, path: str = "") -> str:
    """Return the first difference."""
    if isinstance(model, dict) and isinstance(real, dict):
        for key, one in model.items():
            if key not in real:
                return f"{path}.{key} is only in the model"
            if not same(real[key], one):
                return _where(real[key], one, f"{path}.{key}")
    if isinstance(model, list) and isinstance(real, list) and len(model) == len(real):
        for index, pair in enumerate(zip(real, model, strict=True)):
            if not same(*pair):
                return _where(*pair, f"{path}[{index}]")
    return f"{path}: really {real!r}, by the model {model!r}"


async def drift(db: PostgresDb, seed: int, steps: int) -> Counter[str]:
    """Run so many steps. Return the calls by function and outcome. Raises Drift with the seed."""
    pair = Pair(db, seed)
    try:
        for number in range(steps):
            await pair.step()
            if number % LOOK_EVERY == 0:
                await pair.look()
        await pair.look()
        pair.check_keys()
    except Drift as error:
        raise Drift(f"seed {seed}, after {sum(pair.calls.values())} calls: {error}") from error
    return pair.calls


async def _alone(seed: int, steps: int) -> None:
    """Rounds of ROUND steps, each with a seed and a database of its own: everything is compared again and again."""
    calls, began = Counter[str](), time.monotonic()
    seeds = range(seed, seed + -(-steps // ROUND))
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedPostgres(Path(directory) / "data", durable=False, keep=False) as server:
            for number in seeds:
                url = server.url_of(f"round_{number}")
                async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
                    await connection.execute(f"create database round_{number}".encode())
                await migrate(url)
                db = await PostgresDb.open(url, call_timeout_s=30)
                calls += await drift(db, number, min(ROUND, steps - ROUND * (number - seed)))
                await db.close()
                print(f"seed {number}: as it should be, after {time.monotonic() - began:.0f} s", file=sys.stderr)
    for name, count in sorted(calls.items()):
        print(f"{count:8d} {name}")
    print(f"{len(seeds)} seeds from {seed}: {steps} steps, {calls.total()} calls, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5000)
    told = parser.parse_args()
    asyncio.run(_alone(told.seed, told.steps))
