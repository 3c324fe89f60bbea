"""Detects an outage of the object store: from this process's calls, or because half of the workers wait for it.

During an outage no worker claims and no pod starts: results could not be stored, and the wait would cost money.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.blocked import TASKS, Blocked, BlockedReason
from orchestrator.core.model import StoreOutage, Worker
from orchestrator.core.states import READY

TIME_CHARS = 40
MIN_WAITING = 2  # workers; a single worker may have its own network fault


def waiting_since(health: Any, earliest: datetime) -> datetime | None:
    """Return since when an agent has had a result that the object store does not take, as its health says.

    A time that is missing, unreadable or before `earliest` is `earliest`. None: it has none.
    """
    outage = health.get("store") if isinstance(health, Mapping) else None
    if not outage:
        return None
    try:
        since = datetime.fromisoformat(str(outage["since"])[:TIME_CHARS])
        return max(since if since.tzinfo else since.replace(tzinfo=UTC), earliest)
    except (KeyError, TypeError, ValueError, OverflowError):
        return earliest


def detect(
    own: StoreOutage | None, workers: Sequence[Worker], before: StoreOutage | None, now: datetime
) -> StoreOutage | None:
    """Return the present outage, or None. It keeps the begin of `before`, the last answer."""
    if own is not None:
        return StoreOutage(min(own.since, before.since) if before else own.since, own.why, own.refused)
    ready = [worker for worker in workers if worker.state in READY]
    waiting = sum(worker.store_wait_since is not None for worker in ready)
    if waiting >= MIN_WAITING and waiting * 2 >= len(ready):
        why = "workers wait for it, and this process reaches it"
        return StoreOutage(before.since if before else now, why, waiting=waiting, ready=len(ready))
    return None


def reason(away: StoreOutage, count: int = 0, unit: str = TASKS) -> Blocked:
    """Return the blocked reason of an outage."""
    detail: dict[str, object] = {"since": f"{away.since:%H:%M:%S}", "error": away.why}
    detail |= {"waiting": away.waiting, "ready": away.ready} if away.waiting else {}
    return Blocked(BlockedReason.STORE_REFUSES if away.refused else BlockedReason.STORE_AWAY, count, unit, detail)
