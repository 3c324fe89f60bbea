"""RunPod's bill next to our own records: the leader compares a day of both once an hour, for the page of the cost."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from orchestrator.adapters.store import SqlStore
from orchestrator.diagnostics.cost import reconciled
from orchestrator.ports import Cloud

EVERY_S = 3_600.0
SPAN = timedelta(days=1)
LATE = timedelta(hours=1)  # RunPod bills an hour some minutes after its end


class BillRecord:
    """The last comparison of one fleet."""

    def __init__(self, store: SqlStore, cloud: Cloud, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._store, self._cloud, self._now = store, cloud, now

    async def step(self, term: int) -> None:
        """Compare 24 full hours, and record the sums. Raises PortError if RunPod or the database does not answer."""
        until = self._now().replace(minute=0, second=0, microsecond=0) - LATE
        since = until - SPAN
        charged = await self._cloud.billing(since, until)
        report = await self._store.cost(since, until)
        both = reconciled(report, [one for one in charged if since <= one.since < until])
        row = {
            "since": since.isoformat(),
            "until": until.isoformat(),
            "ours_usd": round(both.ours_usd, 6),
            "theirs_usd": round(both.theirs_usd, 6),
            "pods": len(both.pods),
            "foreign_usd": round(sum(one.theirs_usd for one in both.foreign), 6),
            "foreign_pods": len(both.foreign),
        }
        await self._store.note_bill(term, row)
