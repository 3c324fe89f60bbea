"""The daemon's planner on the model of the database, in virtual time: no network, no agents, and no faults but boots.

Observation, learning and plan are the product's own. A tick follows each event, and each time at which a decision asks
for one. Boots and tasks take as long as the test says. Work goes to the worker whose last task ended last.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from typing import Any
from uuid import UUID

from orchestrator.adapters.store import SqlStore
from orchestrator.core.actions import Spawn, Terminate
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.liveness import ObservationWindow
from orchestrator.core.model import Snapshot
from orchestrator.core.plan import plan
from orchestrator.core.policy import Policy
from orchestrator.loop.daemon import TRANSITION_S
from orchestrator.loop.learning import Learning
from tests.proofs.simulator.sql.records import Records
from tests.unit.core import build

FLEET = "test"
START = datetime(2026, 11, 21, tzinfo=UTC)
POLL_S = 30.0  # between two ticks without an event, while there are tasks or workers
REST_S = 3600.0  # otherwise
NONCE = "nonce"


class VirtualFleet:
    """A fleet with one pool. Times are seconds since its start."""

    def __init__(self, boot_s: float, *, boots_fail: Callable[[int], bool] = lambda _: False, **pool: Any) -> None:
        """`boots_fail` says of the first, second, … boot whether it fails. `pool` are fields of the pool."""
        self.boot_s, self._boots_fail = boot_s, boots_fail
        self.db, self.now_s = Records(), 0.0
        self.policy: Policy = build.policy(
            fleet_id=FLEET, heartbeat_timeout_s=1e6, pool={"scaling_policy": ScalingPolicy.LEARNED, **pool}
        )
        self.starts: list[tuple[float, str]] = []  # when a worker was asked for, and why
        self.ends: list[tuple[float, str]] = []  # when an idle worker ended, and why
        self.broken: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._claims = count(1), count(1)
        self._last_use: dict[str, float] = {}
        self._durations: dict[str, float] = {}
        self._term = self._call("fleet_lead", p_fleet=FLEET, p_holder="us", p_ttl_s=3600)["term"]
        self.store = SqlStore(self, FLEET)  # type: ignore[arg-type]
        self.learning = Learning(self.store, self.policy)

    def _call(self, function: str, **args: Any) -> Any:
        return self.db.call(function, START + timedelta(seconds=self.now_s), args)

    async def call(self, function: str, /, **args: Any) -> Any:
        """Call a function of the database now."""
        return self._call(function, **args)

    def submit(self, tasks: Sequence[tuple[float, float]]) -> None:
        """Let tasks arrive at these times; each runs for so long."""
        for arrival_s, duration_s in tasks:
            self._at(arrival_s, lambda duration_s=duration_s: self._arrive(duration_s))  # type: ignore[misc]

    async def run(self, until_s: float) -> None:
        """Run until a time."""
        review_s = 0.0
        while (self._events and self._events[0][0] <= until_s) or review_s <= until_s:
            self.now_s = max(self.now_s, min(self._events[0][0] if self._events else review_s, review_s))
            self.db.leases[FLEET]["expires_at"] = START + timedelta(seconds=self.now_s + 3600)
            while self._events and self._events[0][0] <= self.now_s:
                heappop(self._events)[2]()
            self._claim_all()
            review_s = await self._tick()
        self.now_s = until_s

    async def _tick(self) -> float:
        snapshot = await self._observed()
        made = plan(snapshot, self.policy)
        for action in made.actions:
            if isinstance(action, Spawn):
                self._start(action)
            elif isinstance(action, Terminate):
                self._end(action)
        await self.learning.keep(self._term)
        self._check(snapshot)
        review_at = made.decisions[0].review_at
        due_s = self.now_s + REST_S if review_at is None else (review_at - START).total_seconds()
        if any(isinstance(action, Terminate) for action in made.actions):
            due_s = min(due_s, self.now_s + TRANSITION_S)  # as the daemon does while a worker ends
        return max(self.now_s + 0.001, min(self.now_s + (POLL_S if self._has_work() else REST_S), due_s))

    def _has_work(self) -> bool:
        return bool(self.db.live) or any(w["status"] != "terminated" for w in self.db.workers.values())

    async def _observed(self) -> Snapshot:
        half = await self.store.snapshot()
        return build.snapshot(
            *half.workers,
            now=half.now,
            window=ObservationWindow(half.now),
            demand=half.demand,
            ended=half.ended,
            last_spawn_at=half.last_spawn_at,
            scale_limits=half.scale_limits,
            scaling_policies=half.scaling_policies,
            paused=half.paused,
            learned=await self.learning.read(half),
        )

    def _check(self, before: Snapshot) -> None:
        """Check that no more workers live than may, and that late tasks have a boot each, as far as they may."""
        pool = self.policy.pools[0]
        states = [row["status"] for row in self.db.workers.values()]
        live, booting = sum(s in ("spawning", "active", "idle") for s in states), states.count("spawning")
        if live > pool.max_active:
            self.broken.append(f"{live} workers live at {self.now_s:.0f} s")
        known = before.learned.get(pool.name)
        longest_s = pool.max_wait_s or 4 * (known.known.boot_s if known else self.boot_s)
        longest_s = max(longest_s, 4 * self.boot_s) + self.boot_s
        waits = [before.now.timestamp() - at for at in (known.waiting if known else ())]
        late = sum(wait > longest_s for wait in waits)
        if late > booting and live < pool.max_active:
            self.broken.append(f"{late} tasks wait longer than {longest_s:.0f} s at {self.now_s:.0f} s")

    # --- events

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heappush(self._events, (at_s, next(self._numbers), act))

    def _arrive(self, duration_s: float) -> None:
        task_id = str(UUID(int=next(self._numbers)))
        self._durations[task_id] = duration_s
        self._call("task_submit", p_tasks=[{"id": task_id, "task_type": "t"}])

    def _start(self, spawn: Spawn) -> None:
        self.starts.append((self.now_s, spawn.reason))
        worker = {"id": spawn.worker_id, "release": "image@", "lease_s": 1e6, "deadline_s": 1e6}
        self._call("fleet_spawn", p_fleet=FLEET, p_term=self._term, p_worker=worker)
        self._move(spawn.worker_id, "spawning", None, {"pod_id": f"pod-{spawn.worker_id}", "nonce": NONCE})
        fails = self._boots_fail(len(self.starts))
        self._at(self.now_s + self.boot_s, lambda: self._booted(spawn.worker_id, fails=fails))

    def _booted(self, worker_id: str, *, fails: bool) -> None:
        if self.db.workers[worker_id]["status"] != "spawning":
            return
        if fails:
            cause = {"exit_cause": ExitCause.SPAWN_FAILED.value, "failure_code": "NO_RUNTIME"}
            self._move(worker_id, "spawning", "terminating", cause)
            self._move(worker_id, "terminating", "terminated", {})
            return
        self._move(worker_id, "spawning", "active", {}, stage="promoted")
        self._last_use[worker_id] = self.now_s

    def _end(self, action: Terminate) -> None:
        if self.db.running.get(action.worker_id):
            self.broken.append(f"{action.worker_id} was busy at {self.now_s:.0f} s: {action.reason}")
        self.ends.append((self.now_s, action.reason))
        self._move(action.worker_id, action.from_state, "terminating", {"exit_cause": action.cause.value})
        self._move(action.worker_id, "terminating", "terminated", {})

    def _move(
        self, worker_id: str, state: str, to: str | None, fields: dict[str, Any], stage: str | None = None
    ) -> None:
        args = {"p_fleet": FLEET, "p_term": self._term, "p_worker_id": worker_id, "p_from": [str(state)]}
        self._call("fleet_move", **args, p_to=to, p_stage=stage, p_reason="test", p_fields=fields)

    def _claim_all(self) -> None:
        """Give ready tasks to free workers, the one used last first. A worker that gets none is idle."""
        free = [w["id"] for w in self.db.workers.values() if w["status"] in ("active", "idle")]
        free = [worker_id for worker_id in free if not self.db.running.get(worker_id)]
        for worker_id in sorted(free, key=lambda one: (self._last_use[one], one), reverse=True):
            who = {"p_worker_id": worker_id, "p_nonce": NONCE}
            if self.db.workers[worker_id]["status"] == "idle" and not any(
                row["state"] == "ready" for row in self.db.live.values()
            ):
                continue
            answer = self._call("worker_claim", **who, p_claim_no=next(self._claims), p_batch=1, p_wait_s=0)
            for task in answer["tasks"]:
                self._at(self.now_s + self._durations[task["id"]], lambda who=who, task=task: self._complete(who, task))  # type: ignore[misc]

    def _complete(self, who: dict[str, str], task: dict[str, Any]) -> None:
        self._last_use[who["p_worker_id"]] = self.now_s
        result = {"p_task_id": task["id"], "p_attempt": task["attempt"], "p_output_location": None}
        self._call("worker_complete", **who, **result, p_result_data=None)
