"""The rows from which the queue can be replayed, and the reviews of the rules (functions/fleet/economics.sql)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from orchestrator.adapters.rows import scaling_policies_of
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.economics.recorded import PoolCosts, RecordedPool, RecordedRun, histories
from orchestrator.ports import ApiCalls

Row = Mapping[str, Any]
PAGE = 20_000  # runs of one call
ROLLED_UP = timedelta(days=8) - timedelta(minutes=1)  # see orchestrator.usage_since


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """What was recorded between two moments, in seconds since 1970."""

    since: float
    until: float
    pools: Sequence[RecordedPool]
    is_cut: bool  # earlier runs were left out, because there are too many


class EconomicsStore:
    """What was recorded of one fleet. Raises PortError."""

    def __init__(self, db: ApiCalls, fleet: str) -> None:
        self._db, self._fleet = db, fleet

    async def window(self, since: datetime, *, pool: str | None = None, most: int) -> RecordedWindow:
        """Return the newest runs since then, at most so many (and a page), and what the workers cost meanwhile."""
        costs = await self._costs(since, None)
        begin, until = datetime.fromisoformat(costs["since"]), datetime.fromisoformat(costs["until"])
        runs: list[RecordedRun] = []
        page_until: str | None = costs["until"]
        while page_until is not None and len(runs) < most:
            args = {"p_pool": pool, "p_since": begin, "p_until": page_until, "p_limit": min(PAGE, most)}
            page = await self._db.call("fleet_task_history", p_fleet=self._fleet, **args)
            runs += [_run(row) for row in page["runs"]]
            page_until = page["next"]
        if is_cut := page_until is not None and datetime.fromisoformat(page_until) > begin:
            begin = _known_from(datetime.fromisoformat(str(page_until)), until)
            costs = await self._costs(begin, until)
        paid = {name: _paid(row) for name, row in costs["pools"].items() if pool in (None, name)}
        found = histories(runs, paid, begin.timestamp(), until.timestamp())
        firsts = [one.tasks[0].arrival_s for one in found if one.tasks]
        if costs["first_at"] is not None:
            firsts.append(datetime.fromisoformat(costs["first_at"]).timestamp())
        first = max(begin.timestamp(), min(firsts, default=begin.timestamp()))
        return RecordedWindow(first, until.timestamp(), found, is_cut)

    async def _costs(self, since: datetime, until: datetime | None) -> Row:
        return dict(await self._db.call("fleet_pool_costs", p_fleet=self._fleet, p_since=since, p_until=until))

    async def chosen_policies(self) -> Mapping[str, ScalingPolicy]:
        """Return the rules that operators have chosen: {pool: fixed or learned}; `*` is every other pool."""
        return scaling_policies_of((await self._db.call("fleet_scaling_policies", p_fleet=self._fleet))["policies"])

    async def reviews(self) -> Row:
        """Return {now, first_at, reviews: [{pool, at, review}]}: the reviews of the last eight days."""
        return dict(await self._db.call("fleet_scaling_reviews", p_fleet=self._fleet))

    async def record_review(self, term: int, pool: str, review: Row) -> None:
        """Keep the review of a pool in place of the one before. NotLeader."""
        await self._db.call("fleet_record_review", p_fleet=self._fleet, p_term=term, p_pool=pool, p_review=review)


def _known_from(begin: datetime, until: datetime) -> datetime:
    """Return from when on the cost is known that was paid after `begin`: long ago, it is known of whole days (UTC)."""
    if until - begin < ROLLED_UP or begin == (day := begin.replace(hour=0, minute=0, second=0, microsecond=0)):
        return begin
    return min(day + timedelta(days=1), until)


def _run(row: Sequence[Any]) -> RecordedRun:
    pool, arrived, started, ended, worker = row
    return RecordedRun(str(pool), _seconds(arrived), _seconds(started), _seconds(ended), worker)


def _seconds(value: Any) -> float | None:
    """Return a number; None for anything else, such as the text that PostgreSQL makes of an infinite time."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _paid(row: Row) -> PoolCosts:
    return PoolCosts(
        usd=float(row["usd"]),
        paid_s=float(row["paid_s"]),
        boots=int(row["boots"]),
        boot_s=_seconds(row["boot_s"]),
        unpaid_s=_seconds(row["unpaid_s"]) or 0.0,
        ending_s=_seconds(row["ending_s"]) or 0.0,
    )
