"""RunPod's list compared with our rows: pods without a row, rows without a pod, rows whose pod has ended.

Only pods of this fleet count. Ownership is decided as in the loop (core/pod_tracking.py, core/orphans.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.core import moments
from orchestrator.core.plurals import at_least, dollars
from orchestrator.core.pod_evidence import DEAD
from orchestrator.core.pod_tracking import LISTING_LAG_S
from orchestrator.core.provider import Pod
from orchestrator.core.states import READY, State
from orchestrator.diagnostics.foreign_pods import ForeignPods, of_other_databases

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Orphan:
    """A pod that costs money and that no live worker row names."""

    pod_id: str
    worker_id: str | None  # the worker that its environment names
    status: str
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True)
class WorkerWithoutPod:
    """A worker row that should have a running pod and has none."""

    worker_id: str
    status: str
    pod_id: str
    pod_status: str | None  # None: RunPod does not list it


@dataclass(frozen=True, slots=True)
class Drift:
    """The differences between the list and the rows."""

    orphans: tuple[Orphan, ...]
    bereft: tuple[WorkerWithoutPod, ...]
    pods: int  # of this fleet
    foreign_pods: tuple[ForeignPods, ...]  # of a fleet of this name in another database
    foreign: int  # of other fleets in the account; they are not touched

    @property
    def usd_per_hour(self) -> float:
        """Return the cost of the orphans."""
        return sum(orphan.usd_per_hour or 0 for orphan in self.orphans)

    @property
    def cost(self) -> str:
        """Return the cost of the orphans in words. Those whose price is not known make it a lower bound."""
        unknown = sum(orphan.usd_per_hour is None for orphan in self.orphans)
        return at_least(f"{dollars(self.usd_per_hour)}/h", unknown)

    def __bool__(self) -> bool:
        return bool(self.orphans or self.bereft)


def drift(pods: Iterable[Pod], rows: Iterable[Row], fleet_id: str, database_id: str | None, now: datetime) -> Drift:
    """Compare a complete list with the live rows. A new pod that may not be listed yet does not count as missing."""
    listed = tuple(pods)
    ours = [pod for pod in listed if pod.is_of(fleet_id, database_id)]
    theirs = of_other_databases(listed, fleet_id, database_id)
    live = [row for row in rows if row["status"] != State.TERMINATED]
    pod_of = {row["id"]: row.get("pod_id") for row in live}
    named = set(pod_of.values())
    orphans = [
        Orphan(pod.id, pod.worker_id, pod.status.value, pod.price_usd_per_hour)
        for pod in ours
        if pod.id not in named and pod_of.get(pod.worker_id or "", "") is not None
    ]
    here = {pod.id: pod for pod in ours}
    bereft = []
    for row in live:
        pod = here.get(row.get("pod_id") or "")
        young = (now - moments.moment(row["created_at"])).total_seconds() <= LISTING_LAG_S
        wanted = row["status"] in READY | {State.SPAWNING} and row.get("pod_id")
        if wanted and (pod.status in DEAD if pod else not young):
            bereft.append(WorkerWithoutPod(row["id"], row["status"], row["pod_id"], pod.status.value if pod else None))
    foreign = len(listed) - len(ours) - sum(len(one.pods) for one in theirs)
    return Drift(tuple(orphans), tuple(bereft), len(ours), theirs, foreign)
