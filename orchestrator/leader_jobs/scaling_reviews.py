"""What each rule of scaling would have cost in the last week: a review of each pool, once a day.

The review has the rule that would have been cheapest (core/economics/guard.py). A new leader does not repeat a review
of the same day. In the first day of a database there is too little to say.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import structlog

from orchestrator.adapters.economics_store import EconomicsStore
from orchestrator.core.economics.review_json import question
from orchestrator.core.economics.scaling_settings import ScalingSettings
from orchestrator.core.replay_settings import with_choices
from orchestrator.leader_jobs.review_process import ReviewFailed, replayed

EVERY_S = 1_800.0  # how often it is looked whether a review is due
DAY = timedelta(days=1) - timedelta(seconds=EVERY_S)  # so that the time of the day does not wander
WEEK = timedelta(days=7)
LEAST = timedelta(days=1)  # of history
MOST_RUNS = 20_000  # of a pool, the newest ones: some seconds of one processor
Row = Mapping[str, Any]
log = structlog.get_logger()


class ScalingReviews:
    """The reviews of one fleet.

    `settings`: of its queue pools, between two moments. `ask`: replays, and returns the review.
    """

    def __init__(
        self,
        store: EconomicsStore,
        settings: Callable[[datetime, datetime], Mapping[str, ScalingSettings]],
        ask: Callable[[Row], Awaitable[Row]] = replayed,
    ) -> None:
        self._store, self._settings, self._ask = store, settings, ask

    async def step(self, term: int) -> None:
        """Review the pools whose last review is a day old, one after the other. Raises PortError."""
        known = await self._store.reviews()
        now = datetime.fromisoformat(known["now"])
        if known["first_at"] is None or now - datetime.fromisoformat(known["first_at"]) < LEAST:
            return
        reviewed_at = {one["pool"]: datetime.fromisoformat(one["at"]) for one in known["reviews"]}
        settings = self._settings(now - WEEK, now)
        due = [pool for pool in settings if pool not in reviewed_at or now - reviewed_at[pool] >= DAY]
        if not due:
            return
        in_force = with_choices(settings, await self._store.chosen_policies())
        for pool in due:
            await self._review(term, pool, in_force[pool], now)

    async def _review(self, term: int, pool: str, settings: ScalingSettings, now: datetime) -> None:
        window = await self._store.window(now - WEEK, pool=pool, most=MOST_RUNS)
        history = next((one for one in window.pools if one.pool == pool), None)
        if history is None or not history.tasks:
            return
        try:
            review = await self._ask(question(history, settings, window.since, window.until))
        except ReviewFailed as error:
            log.warning("review_failed", pool=pool, error=str(error), fix="the next one is tried in half an hour")
            return
        await self._store.record_review(term, pool, review)
        log.info("scaling_reviewed", pool=pool, tasks=review["tasks"], tomorrow=review["tomorrow"])
