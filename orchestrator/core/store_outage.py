"""Whether the object store is away: by this process's own calls, or because half of the workers wait for it.

While it is away no worker claims and no pod starts: what would run could not be kept, and would only wait and cost.
"""

from collections.abc import Sequence
from datetime import datetime

from orchestrator.core.blocked import TASKS, Blocked, Kind
from orchestrator.core.model import StoreAway, Worker
from orchestrator.core.states import READY

MIN_WAITING = 2  # workers; one alone may be cut off from the store itself


def judge(
    own: StoreAway | None, workers: Sequence[Worker], before: StoreAway | None, now: datetime
) -> StoreAway | None:
    """The outage that holds now, None if there is none; `before` is the last answer, whose beginning it keeps."""
    if own is not None:
        return StoreAway(min(own.since, before.since) if before else own.since, own.why, own.refused)
    ready = [worker for worker in workers if worker.state in READY]
    waiting = sum(worker.waits_for_store for worker in ready)
    if waiting >= MIN_WAITING and waiting * 2 >= len(ready):
        why = "workers wait for it, and this process reaches it"
        return StoreAway(before.since if before else now, why, waiting=waiting, ready=len(ready))
    return None


def reason(away: StoreAway, count: int = 0, unit: str = TASKS) -> Blocked:
    """The blocked reason of an outage."""
    detail: dict[str, object] = {"since": f"{away.since:%H:%M:%S}", "error": away.why}
    detail |= {"waiting": away.waiting, "ready": away.ready} if away.waiting else {}
    return Blocked(Kind.STORE_REFUSES if away.refused else Kind.STORE_AWAY, count, unit, detail)
