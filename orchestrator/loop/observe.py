"""One observation: the pods first, then one statement for the whole database half.

In this order a worker that the rows show and the list does not may be newer than the list, never the other way round.
The list is asked for at most once in LIST_EVERY_S for each page that it has. Ticks in between see the last one, as does
a tick that a new one does not answer in time; absence is only counted on new ones. When the provider gives no list, the
snapshot says so; when the database gives no answer, there is none.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from math import ceil

import structlog

from orchestrator.core import store_outage
from orchestrator.core.liveness import ObservationWindow
from orchestrator.core.model import Pod, Snapshot, StoreAway
from orchestrator.core.pod_tracking import PAGE_PODS, PodTracker, fold
from orchestrator.loop.store_watch import StoreWatch
from orchestrator.observability import log_phrases
from orchestrator.pods.provider_cache import Catalog
from orchestrator.ports import ApiAuth, Cloud, PortError, Store

LIST_EVERY_S = 2.0  # per page, at least; longer where the account's limits would be used up at that pace
PATIENCE_S = 0.2  # of a tick with a list under way, once there is an earlier one
FIRST_PATIENCE_S = 2.0  # … of all ticks together, while there is none
LATE_S = 5.0  # a list that takes longer is told of
NAMED = 5  # pods of another database, in the line that tells of them
GAPS = 500  # remembered; what was before the oldest of them is forgotten
log = structlog.get_logger()


class Observer:
    """The memory between observations."""

    def __init__(
        self,
        store: Store,
        cloud: Cloud | None,
        fleet_id: str,
        catalog: Catalog,
        *,
        deaf_s: float = 15,
        patience_s: float = FIRST_PATIENCE_S,
        store_watch: StoreWatch | None = None,
    ) -> None:
        """Without a cloud nothing is known about pods; a database as slow as `deaf_s` heard no heartbeats meanwhile.

        The first list is waited for `patience_s`; whoever looks once, and not again in two seconds, has more.
        """
        self._store, self._cloud, self._fleet_id, self._catalog = store, cloud, fleet_id, catalog
        self._deaf_s, self._patience_s = deaf_s, patience_s
        self._store_watch = store_watch
        self._store_away: StoreAway | None = None  # at the last snapshot
        self._pod_tracker = PodTracker()
        self._pods: tuple[Pod, ...] | None = None
        self._listed_at_s = -1e9
        self._listing: asyncio.Future[tuple[Pod, ...]] | None = None  # under way
        self._began_s: float | None = None  # hearing, on the loop's clock
        self._heard_s = 0.0  # when the database last answered
        self._gaps: deque[tuple[float, float]] = deque()  # in which nobody could be heard
        self._deaf = True  # since _heard_s
        self._clocks: tuple[datetime, float] | None = None  # the database's at the last snapshot, the loop's before
        self._met_strangers = False
        self._knocks_s: dict[str, float] = {}  # worker id -> when, on the loop's clock
        self.cloud_error: str | None = None
        self.wake: Callable[[], object] = lambda: None  # when a list that a tick did not wait for has come

    def knocked(self, worker_id: str) -> None:
        """A worker called through our own door and got no answer from us: it is alive, whatever its row says."""
        self._knocks_s[worker_id] = asyncio.get_running_loop().time()

    @property
    def knows_the_store(self) -> bool:
        """Whether this process can tell that the object store is not away."""
        return self._store_watch is not None and self._store_watch.is_known

    def gap(self) -> None:
        """Something was missed (no lead, no database) since we last heard: it makes no silence until we hear again."""
        self._deaf = True
        self._pods, self._listed_at_s = None, -1e9
        if self._listing is not None:  # begun before the gap: it counts for nothing
            self._listing.cancel()
            self._listing = None

    def forget(self) -> None:
        """Somebody else may have led: what lists have not shown counts anew. A pod without a live row never has one."""
        self.gap()
        self._pod_tracker = PodTracker(orphan_since=self._pod_tracker.orphan_since)

    def heard(self) -> None:
        """The database answered us while we lead: whoever speaks is heard."""
        now_s = asyncio.get_running_loop().time()
        if self._began_s is None:
            self._began_s = now_s
        elif self._deaf:
            self._gaps.append((self._heard_s, now_s))
        if len(self._gaps) > GAPS:
            self._began_s = self._gaps.popleft()[1]
        self._heard_s, self._deaf = now_s, False

    async def observe(self, in_flight: frozenset[str], bringing_up: frozenset[str]) -> Snapshot:
        """What is now. Raises a port error when the database does not answer."""
        fresh = await self._list()
        asked_s = asyncio.get_running_loop().time()
        try:
            half = await self._store.snapshot()
        except PortError:
            self.gap()
            raise
        answered_s = asyncio.get_running_loop().time()
        if answered_s - asked_s > self._deaf_s:
            self.gap()
        self._compare_clocks(half.now, asked_s, answered_s)
        self.heard()
        clock_s, live = asyncio.get_running_loop().time(), {worker.id for worker in half.workers}
        self._knocks_s = {worker_id: at_s for worker_id, at_s in self._knocks_s.items() if worker_id in live}
        knocked = {name: half.now - timedelta(seconds=clock_s - at_s) for name, at_s in self._knocks_s.items()}
        pods, strangers = self._apart(half.database_id)
        if fresh and pods is not None:
            self._pod_tracker = fold(self._pod_tracker, pods, half.workers, self._fleet_id, half.now)
        away = self._store_watch.away() if self._store_watch else None
        own = StoreAway(half.now - timedelta(seconds=away[0]), away[1], refused=away[2]) if away else None
        self._store_away = store_outage.judge(own, half.workers, self._store_away, half.now)
        return Snapshot(
            now=half.now,
            window=self._window(half.now, clock_s),
            pods=pods,
            workers=half.workers,
            demand=half.demand,
            expired_leases=half.expired_leases,
            offers=half.offers,
            absent=self._pod_tracker.absent,
            exited=self._pod_tracker.ended,
            orphan_since=self._pod_tracker.orphan_since,
            in_flight=in_flight,
            bringing_up=bringing_up,
            last_spawn_at=half.last_spawn_at,
            paused=half.paused,
            ended=half.ended,
            proven=half.proven,
            spent=half.spent,
            avoid=half.avoid,
            prices=self._catalog.prices,
            volumes=self._catalog.volumes,
            knocked=knocked,
            unlisted=self._late() or (self.cloud_error if self._pods is None else None),
            database_id=half.database_id,
            store_away=self._store_away,
            strangers=strangers,
        )

    def _apart(self, database_id: str | None) -> tuple[tuple[Pod, ...] | None, tuple[Pod, ...]]:
        """The listed pods, and apart from them those of a fleet of this name in another database."""
        if self._pods is None:
            return None, ()
        apart: dict[bool, list[Pod]] = {True: [], False: []}
        for pod in self._pods:
            apart[pod.is_strange(self._fleet_id, database_id)].append(pod)
        strangers = tuple(apart[True])
        if strangers and not self._met_strangers:
            what = f"{len(strangers)} pod(s) of fleet {self._fleet_id} belong to another database and are left alone"
            fix = "give each environment a FLEET_ID of its own; see python -m orchestrator sync"
            log.warning("strange_pods_found", message=f"{what}; fix: {fix}", pods=[pod.id for pod in strangers[:NAMED]])
        self._met_strangers = bool(strangers)
        return tuple(apart[False]), strangers

    def _compare_clocks(self, now: datetime, asked_s: float, answered_s: float) -> None:
        """Hear anew from here where time has passed for the database and not for us.

        This machine was suspended, and its monotonic clock with it, so that agents called in vain; or the database's
        clock was set forward. What looks like silence then is none.
        """
        if self._clocks is not None:
            passed_s = (now - self._clocks[0]).total_seconds()
            if passed_s - (answered_s - self._clocks[1]) > self._deaf_s:
                log.warning("clocks_jumped", message=f"{passed_s:.0f} s of the database's clock were none of ours")
                self.forget()
                self._gaps.clear()
                self._began_s = None
        self._clocks = now, asked_s

    def _window(self, now: datetime, clock_s: float) -> ObservationWindow:
        """On the database's clock."""

        def at(moment_s: float) -> datetime:
            return now - timedelta(seconds=clock_s - moment_s)

        began_s = clock_s if self._began_s is None else self._began_s
        return ObservationWindow(at(began_s), tuple((at(began), at(ended)) for began, ended in self._gaps))

    def _late(self) -> str | None:
        """That a list is under way for too long."""
        late_s = asyncio.get_running_loop().time() - self._listed_at_s
        if self._listing is None or late_s < LATE_S:
            return None
        return f"asked for more than {LATE_S:g} s ago, and not answered yet"

    async def _list(self) -> bool:
        """Whether a new complete list came."""
        if self._cloud is None:
            return False
        clock_s = asyncio.get_running_loop().time()
        if self._listing is None:
            pages = max(1, ceil(len(self._pods or ()) / PAGE_PODS))
            if clock_s - self._listed_at_s < pages * max(LIST_EVERY_S, self._cloud.list_pause_s()):
                return False
            self._listed_at_s = clock_s
            self._listing = asyncio.ensure_future(self._cloud.list_pods())
        listing = self._listing
        left_s = self._listed_at_s + self._patience_s - clock_s if self._pods is None else PATIENCE_S
        await asyncio.wait({listing}, timeout=max(0.0, left_s))
        if listing is not self._listing:
            return False  # there was a gap meanwhile
        if not listing.done():
            listing.add_done_callback(lambda _: self.wake())
            return False  # a later tick will have it
        self._listing = None
        try:
            self._pods = listing.result()
        except PortError as error:
            self._pods = None
            self.cloud_error = str(error)
            words = log_phrases.AUTHENTICATION if isinstance(error, ApiAuth) else "the provider gave no list of pods"
            log.warning("pods_unlisted", message=f"{words}: {error}", error=type(error).__name__)
            return False
        self.cloud_error = None
        return True
