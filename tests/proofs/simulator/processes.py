"""Laws about a single orchestrator process and what it knows: its lease, its pod lists, its connections.

The other laws look at the database and at the provider, where several processes meet. A process that acts on outdated
knowledge, or holds a resource for too long, often breaks no other law in one seed. So these laws watch each process.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.core import actions as act
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Snapshot, Worker
from orchestrator.observability.health import Health

if TYPE_CHECKING:
    from tests.proofs.simulator.environment import World
    from tests.proofs.simulator.shell import SimSession

WEDGED_S = 120.0  # and one poll: then the watchdog would end the process
UNTAUGHT_S = 2.0  # a bring-up may go on for so long after its process learnt of another term
HELD_S = 10.0  # SSH connections, by a process that learnt that it stands by
MOVED_S = 20.0  # an SSH connection to an earlier address of its worker
DELETE_PAUSE_S = 5.0  # between two deletes of one pod that no live row names, by one process
OF_A_LIST = (act.Adopt, act.DeleteOrphan, act.Spawn, act.Create)
BEGINNINGS = (act.Create, act.ContinueBringUp)  # of what costs money
OF_ABSENCE = (FailureCode.POD_MISSING, FailureCode.POD_EXITED)


class SimHealth(Health):
    """The record of a process, with the time at which it learnt who leads."""

    __slots__ = ("learnt_s",)
    learnt_s: float

    def leads(self, term: int, holder: str) -> None:
        self._learn("leader", term)
        super().leads(term, holder)

    def stands_by(self, term: int, holder: str) -> None:
        self._learn("standby", term)
        super().stands_by(term, holder)

    def _learn(self, role: str, term: int) -> None:
        if (self.role, self.term) != (role, term):
            self.learnt_s = time.monotonic()


@dataclass
class ProcessLaws:
    """The laws about one process."""

    world: "World"
    name: str
    health: SimHealth
    list_failed: bool = False  # the last list of pods that ended gave none
    sessions: "list[SimSession]" = field(default_factory=list)
    _failed_at_thought: bool = False  # the same, when the last plan was made
    _bringups: dict[str, tuple[int, asyncio.Task[Any] | None]] = field(default_factory=dict)
    _deleted_s: dict[str, float] = field(default_factory=dict)  # pod -> when the last delete of it was answered
    _deleting: set[str] = field(default_factory=set)
    _steps: tuple[int, float] = (-1, 0.0)  # of its ticks, and since when
    _down_s: float = 0.0  # when it was last seen dead or frozen: what happened until then it may not know

    def _broken(self, law: str, what: str) -> None:
        self.world.laws.broken(law, f"{self.name} {what}")

    # --- lists

    def thought(self, snapshot: Snapshot, actions: tuple[act.Action, ...]) -> None:
        """Check a plan. The process knows of a failed list that ended before the previous plan."""
        acted_on = Counter(getattr(action, "worker_id", None) for action in actions)
        for action in actions:
            if isinstance(action, BEGINNINGS) and acted_on[action.worker_id] > 1:
                self._broken("plan", f"decided {action}, and something else for the same worker")
        failed, self._failed_at_thought = self._failed_at_thought and self.list_failed, self.list_failed
        if not failed:
            return
        workers = {worker.id: worker for worker in snapshot.workers}
        for action in actions:
            absent = isinstance(action, act.Terminate) and action.code in OF_ABSENCE
            gone = isinstance(action, act.MarkTerminated) and workers[action.worker_id].pod_id is not None
            if absent or gone or isinstance(action, OF_A_LIST):
                self._broken("list", f"decided {action}, and its last list of pods failed")

    # --- calls

    async def bring_up(self, up: Callable[[int, Worker], Awaitable[None]], term: int, worker: Worker) -> None:
        """Watch a bring-up from its begin to its end."""
        task = asyncio.current_task()
        self._bringups[worker.id] = term, task
        try:
            await up(term, worker)
        finally:
            del self._bringups[worker.id]

    def _taught(self) -> None:
        """Check that no bring-up continues in a term that this process knows to be over, unless it was cancelled."""
        known = (self.health.role, self.health.term)
        if self.world.kernel.now - self.health.learnt_s < UNTAUGHT_S or known[0] not in ("leader", "standby"):
            return
        for worker_id, (term, task) in self._bringups.items():
            if known != ("leader", term) and task is not None and not task.cancelling():
                self._broken("term", f"brings {worker_id} up for term {term}, and knows that it is {known}")

    def deletes(self, pod_id: str) -> None:
        """Note the begin of a delete call."""
        pod = self.world.provider.pods.get(pod_id)
        row = self.world.db.workers.get(pod.worker_id or "") if pod else None
        if row is None or row["status"] == "terminated":
            since_s = self.world.kernel.now - self._deleted_s.get(pod_id, -1e9)
            if pod_id in self._deleting:
                self._broken("calls", f"deletes {pod_id} twice at once")
            elif since_s < DELETE_PAUSE_S:
                self._broken("calls", f"deletes {pod_id} again {since_s:.1f} s after it was told that it is gone")
        self._deleting.add(pod_id)

    def deleted(self, pod_id: str, *, answered: bool) -> None:
        """Note the end of a delete call."""
        self._deleting.discard(pod_id)
        if answered:
            self._deleted_s[pod_id] = self.world.kernel.now

    # --- time

    def speaks(self, session: "SimSession") -> None:
        """Check a request over an SSH connection."""
        row = self.world.db.workers.get(session.worker_id or "")
        if row is None or row["ssh_host"] is None or (row["ssh_host"], row["ssh_port"]) == session.address:
            return
        now = self.world.kernel.now
        after_s = now - max(self._down_s, self.world.laws.addressed_s.get(row["id"], now))
        if row["pod_id"] == session.pod_id and after_s > MOVED_S:
            where = f"{row['ssh_host']}:{row['ssh_port']}"
            self._broken("address", f"speaks to {row['id']} at {session.address}; it is at {where} for {after_s:.0f} s")

    def look(self, *, up: bool) -> None:
        """Check the laws about time, once a second."""
        now = self.world.kernel.now
        if not up:
            self._down_s = now
        if not up or self.health.steps != self._steps[0]:
            self._steps = (self.health.steps, now)
        elif now - self._steps[1] > WEDGED_S + self.world.poll_s:
            self._broken("wedge", f"has made no step of a tick for {now - self._steps[1]:.0f} s: it would end itself")
        if up:
            self._taught()
        self.sessions = [session for session in self.sessions if not session.closed]
        if up and self.health.role == "standby" and self.sessions and now - self.health.learnt_s > HELD_S:
            self._broken("standby", f"stands by and holds {len(self.sessions)} SSH connections")
