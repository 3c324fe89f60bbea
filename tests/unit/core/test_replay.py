"""The planner against arrivals in virtual time, with nothing but the planner being real."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from orchestrator.core.actions import Spawn, Terminate
from orchestrator.core.model import Demand, EndedBringUp, Worker
from orchestrator.core.plan import plan
from orchestrator.core.states import State
from tests.unit.core.build import NOW, brought_up, busy, idle, policy, snapshot, spawning

TICK_S = 10
BOOT_S = 300
RUN_S = 60


@dataclass
class Replay:
    """One pool: tasks arrive, pods boot and run one task at a time."""

    arrivals: deque[int]
    queue: int = 0
    boots: int = 0
    cancelled: int = 0
    done: int = 0
    born_s: dict[str, int] = field(default_factory=dict)
    since_s: dict[str, int] = field(default_factory=dict)  # of an idle or busy one
    until_s: dict[str, int] = field(default_factory=dict)  # of a busy one
    bringups: list[EndedBringUp] = field(default_factory=list)

    def advance(self, now_s: int) -> None:
        """Bring the pods and the queue up to a moment."""
        now = NOW + timedelta(seconds=now_s)
        while self.arrivals and self.arrivals[0] <= now_s:
            self.arrivals.popleft()
            self.queue += 1
        for name in [name for name, born_s in self.born_s.items() if now_s - born_s >= BOOT_S]:
            del self.born_s[name]
            self.since_s[name] = now_s
            self.bringups.append(
                brought_up(0, promoted=True, at=now, boot_s=float(BOOT_S), worker_id=name, worked=True)
            )
        for name in [name for name, until_s in self.until_s.items() if until_s <= now_s]:
            del self.until_s[name]
            self.since_s[name] = now_s
            self.done += 1
        for name in self.since_s:
            if self.queue and name not in self.until_s:
                self.queue -= 1
                self.until_s[name] = now_s + RUN_S

    def workers(self) -> Iterable[Worker]:
        """The rows."""
        for name, born_s in self.born_s.items():
            yield spawning(name, created_at=NOW + timedelta(seconds=born_s), deadline_at=NOW + timedelta(days=1))
        for name, since_s in self.since_s.items():
            since = NOW + timedelta(seconds=since_s)
            yield replace(busy(name) if name in self.until_s else idle(name, 0), state_since=since)

    def tick(self, now_s: int) -> None:
        """Plan, and do what the plan says at once."""
        self.advance(now_s)
        now = NOW + timedelta(seconds=now_s)
        rows = tuple(replace(row, last_heartbeat=now) for row in self.workers())
        demand = (Demand("default", self.queue, len(self.until_s), {}, None),)
        seen = replace(snapshot(*rows), now=now, demand=demand, ended=tuple(self.bringups[-100:]))
        for action in plan(seen, policy(pool={"max_active": 20})).actions:
            if isinstance(action, Spawn):
                self.boots += 1
                self.born_s[action.worker_id] = now_s
            elif isinstance(action, Terminate):
                self.cancelled += action.from_state is State.SPAWNING
                self.born_s.pop(action.worker_id, None)
                self.since_s.pop(action.worker_id, None)


def test_a_dip_in_demand_while_pods_boot_starts_no_second_boot() -> None:
    """Bursts of short tasks, boots of 300 s: work dips again and again before the pods that it asked for are ready."""
    bursts = deque(sorted(400 * burst + 10 * task for burst in range(18) for task in range(24)))
    replay = Replay(bursts)
    for now_s in range(0, 3 * 3600, TICK_S):
        replay.tick(now_s)
    assert replay.done == 18 * 24
    assert replay.cancelled == 0
    assert replay.boots <= 30  # idle pods leave after their timeouts; with cancelled boots it was 50
