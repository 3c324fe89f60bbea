"""RunPod's bill next to our own records: the leader compares a day of both once an hour, for the page of the cost."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from orchestrator.adapters.store import SqlStore
from orchestrator.diagnostics.cost import reconciled
from orchestrator.observability.redaction import plain, redact
from orchestrator.ports import Cloud, PortError

EVERY_S = 600.0  # an hour that is compared is not compared again, so this is the pause after an error
SPAN = timedelta(days=1)
LATE = timedelta(hours=1)  # RunPod bills an hour some minutes after its end
MAX_PODS = 20  # that are recorded by their ids: the most expensive ones
MAX_ERROR_CHARS, MAX_ID_CHARS = 300, 200


class BillRecord:
    """The last comparison of one fleet."""

    def __init__(self, store: SqlStore, cloud: Cloud, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._store, self._cloud, self._now = store, cloud, now

    async def step(self, term: int) -> None:
        """Compare 24 full hours, unless they have been compared, and record the sums.

        If RunPod does not answer, record why. Raises PortError, also then.
        """
        until = self._now().replace(minute=0, second=0, microsecond=0) - LATE
        since = until - SPAN
        last = await self._store.bill()
        if last and last.get("until") and datetime.fromisoformat(last["until"]) == until:
            return
        try:
            charged = await self._cloud.billing(since, until)
        except PortError as error:
            why = " ".join(plain(redact(f"{type(error).__name__}: {error}")).split())
            await self._store.note_bill(term, {"error": why[:MAX_ERROR_CHARS]})
            raise
        report = await self._store.cost(since, until)
        both = reconciled(report, [one for one in charged if since <= one.since < until])
        row = {
            "since": since.isoformat(),
            "until": until.isoformat(),
            "ours_usd": round(both.ours_usd, 6),
            "theirs_usd": round(both.theirs_usd, 6),
            "pods": sum(one.theirs_usd > 0 for one in both.pods),
            "our_pods": len(both.pods),
            "unbooked_usd": round(sum(one.theirs_usd for one in both.unbooked), 6),
            "unbooked_pods": len(both.unbooked),
            "unbooked": [
                {"pod_id": one.pod_id[:MAX_ID_CHARS], "usd": round(one.theirs_usd, 6)}
                for one in both.unbooked[:MAX_PODS]
            ],
        }
        await self._store.note_bill(term, row)
