"""One observation: the pods first, then one statement for the whole database half.

In this order, a worker without a listed pod may be newer than the list, and no listed pod is newer than the rows. A
list is requested at most once in LIST_EVERY_S for each of its pages. Ticks in between use the last list, and so does a
tick for which the new list is late. Absence counts only with new lists. Without a list, the snapshot says so; without
an answer of the database, there is no snapshot.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from math import ceil

from orchestrator.core import store_outage
from orchestrator.core.liveness import ObservationWindow
from orchestrator.core.model import Snapshot, StoreOutage, Worker
from orchestrator.core.plurals import counted
from orchestrator.core.pod_tracking import PAGE_PODS, PodTracker, fold
from orchestrator.core.provider import Pod
from orchestrator.core.silence import NotedAnswer
from orchestrator.core.states import State
from orchestrator.loop.contacts import Contacts
from orchestrator.loop.learning import Learning
from orchestrator.loop.store_watch import StoreWatch
from orchestrator.observability import log_phrases
from orchestrator.observability.logger import LazyLogger
from orchestrator.pods.provider_cache import Catalog
from orchestrator.ports import ApiAuth, Cloud, PortError, Store, Unavailable

LIST_EVERY_S = 2.0  # per page, at least; longer if this pace would use up the account's limits
PATIENCE_S = 0.2  # how long a tick waits for a new list, if there is an earlier one
FIRST_PATIENCE_S = 2.0  # how long all ticks together wait for the first list
LATE_S = 5.0  # a list that takes longer is logged
NAMED = 5  # pods of another database in one log line
GAPS = 500  # the number of gaps that are remembered; the time before the oldest one is forgotten
log = LazyLogger()


class Observer:
    """Takes snapshots, and remembers between them what a single snapshot cannot show."""

    def __init__(
        self,
        store: Store,
        cloud: Cloud | None,
        fleet_id: str,
        catalog: Catalog,
        *,
        slow_call_s: float = 15,
        patience_s: float = FIRST_PATIENCE_S,
        store_watch: StoreWatch | None = None,
        learning: Learning | None = None,
    ) -> None:
        """Without a cloud, nothing is known about pods. A database call longer than `slow_call_s` counts as a gap.

        `patience_s` is the wait for the first list. A command that observes only once waits longer.
        """
        self._store, self._cloud, self._fleet_id, self._catalog = store, cloud, fleet_id, catalog
        self._slow_call_s, self._patience_s = slow_call_s, patience_s
        self._store_watch, self._learning = store_watch, learning
        self._store_outage: StoreOutage | None = None  # at the last snapshot
        self._pod_tracker = PodTracker()
        self._pods: tuple[Pod, ...] | None = None
        self._listed_at_s = -1e9
        self._listing: asyncio.Future[tuple[Pod, ...]] | None = None  # under way
        self._began_s: float | None = None  # the begin of the observation window, on the loop's clock
        self._answered_s = 0.0  # when the database last answered
        self._gaps: deque[tuple[float, float]] = deque()  # times in which no heartbeat could be received
        self._in_gap = True  # a gap since _answered_s
        # the database's clock at the last snapshot, and the loop's clock before its call
        self._clocks: tuple[datetime, float] | None = None
        self._reported_foreign_pods = False
        self._contacts = Contacts()
        self._claim_numbers: dict[str, tuple[int, datetime]] = {}  # idle worker -> its number, and since when
        self.cloud_error: PortError | None = None  # of the last pod list
        self.wake: Callable[[], object] = lambda: None  # called when a late list has arrived

    def note_unanswered(self, worker_id: str) -> None:
        """Note a worker whose call the gateway could not answer: the worker is alive."""
        self._contacts.note_unanswered(worker_id)

    def note_pod_answer(self, worker: Worker, calls_unanswered: bool | None, others_are_heard: bool) -> NotedAnswer:
        """Note what the pod of a silent worker answered: see `PodAnswer`."""
        has_network = others_are_heard or self._no_answer() is None
        return self._contacts.note_pod_answer(worker, calls_unanswered, has_network=has_network)

    def _no_answer(self) -> str | None:
        """Return why the provider counts as unavailable; None if it answers."""
        return self._late_list() or (str(self.cloud_error) if isinstance(self.cloud_error, Unavailable) else None)

    def _unlisted(self) -> str | None:
        """Return why there is no list of pods. The class of the error comes first: a refused key is no outage."""
        error = self.cloud_error if self._pods is None else None
        return self._late_list() or (f"{type(error).__name__}: {error}" if error else None)

    @property
    def knows_the_store(self) -> bool:
        """Whether this process knows that the object store answers."""
        return self._store_watch is not None and self._store_watch.is_known

    def gap(self) -> None:
        """Begin a gap (no leadership, no database): until the next answer, silence does not count."""
        self._in_gap = True
        self._pods, self._listed_at_s = None, -1e9
        if self._listing is not None:  # the list began before the gap, so it does not count
            self._listing.cancel()
            self._listing = None

    def forget(self) -> None:
        """Restart the counting of absence, because another process may have led. Orphans stay known."""
        self.gap()
        self._pod_tracker = PodTracker(orphan_since=self._pod_tracker.orphan_since)
        self._claim_numbers = {}
        self._contacts.forget_answers()
        if self._learning is not None:
            self._learning.forget()

    def note_answer(self) -> None:
        """Note an answer of the database while this process leads: heartbeats can be received."""
        now_s = asyncio.get_running_loop().time()
        if self._began_s is None:
            self._began_s = now_s
        elif self._in_gap:
            self._gaps.append((self._answered_s, now_s))
        if len(self._gaps) > GAPS:
            self._began_s = self._gaps.popleft()[1]
        self._answered_s, self._in_gap = now_s, False

    async def observe(self, in_flight: frozenset[str], bringing_up: frozenset[str]) -> Snapshot:
        """Return a snapshot. Raises a port error if the database does not answer."""
        fresh = await self._list()
        asked_s = asyncio.get_running_loop().time()
        try:
            half = await self._store.snapshot()
        except PortError:
            self.gap()
            raise
        answered_s = asyncio.get_running_loop().time()
        if answered_s - asked_s > self._slow_call_s:
            self.gap()
        self._compare_clocks(half.now, asked_s, answered_s)
        self.note_answer()
        clock_s = asyncio.get_running_loop().time()
        self._contacts.keep(worker.id for worker in half.workers)

        def moment(at_s: float) -> datetime:
            return half.now - timedelta(seconds=clock_s - at_s)

        pods, foreign_pods = self._own_and_foreign(half.database_id)
        if fresh and pods is not None:
            self._pod_tracker = fold(self._pod_tracker, pods, half.workers, self._fleet_id, half.now)
        away = self._store_watch.outage() if self._store_watch else None
        own = StoreOutage(half.now - timedelta(seconds=away[0]), away[1], refused=away[2]) if away else None
        self._store_outage = store_outage.detect(own, half.workers, self._store_outage, half.now)
        learned = await self._learning.read(half) if self._learning is not None else {}
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
            scale_limits=half.scale_limits,
            scaling_policies=half.scaling_policies,
            learned=learned,
            ended=half.ended,
            pod_prices=half.pod_prices,
            promoted_releases=half.promoted_releases,
            faults=half.faults,
            clusters=half.clusters,
            spent=half.spent,
            avoid=half.avoid,
            prices=self._catalog.prices,
            volumes=self._catalog.volumes,
            registry_problems=self._catalog.registry_problems,
            unanswered_at=self._contacts.unanswered_at(moment),
            pod_answers=self._contacts.pod_answers(moment),
            heard_again_at=self._contacts.heard_again_at(half.workers, half.now, self._slow_call_s),
            claim_seen_at=self._claims_seen(half.workers, half.now),
            unlisted=self._unlisted(),
            database_id=half.database_id,
            store_outage=self._store_outage,
            database_s=answered_s - asked_s,
            foreign_pods=foreign_pods,
        )

    async def keep_learned(self, term: int) -> None:
        """Store what the learned rule knows, about once a minute."""
        if self._learning is not None:
            await self._learning.keep(term)

    def _claims_seen(self, workers: Iterable[Worker], now: datetime) -> dict[str, datetime]:
        """Return for each idle worker when its present claim number was first seen."""
        before, self._claim_numbers = self._claim_numbers, {}
        for worker in workers:
            if worker.state is State.IDLE:
                number, seen_at = before.get(worker.id, (None, now))
                self._claim_numbers[worker.id] = (worker.claim_no, seen_at if number == worker.claim_no else now)
        return {name: seen_at for name, (_, seen_at) in self._claim_numbers.items()}

    def _own_and_foreign(self, database_id: str | None) -> tuple[tuple[Pod, ...] | None, tuple[Pod, ...]]:
        """Split the listed pods into this database's and those of a fleet of this name in another database."""
        if self._pods is None:
            return None, ()
        apart: dict[bool, list[Pod]] = {True: [], False: []}
        for pod in self._pods:
            apart[pod.is_foreign(self._fleet_id, database_id)].append(pod)
        foreign_pods = tuple(apart[True])
        if foreign_pods and not self._reported_foreign_pods:
            what = f"{counted(len(foreign_pods), 'pod')} of fleet {self._fleet_id}: of another database, left alone"
            fix = "give each environment a FLEET_ID of its own; see python -m orchestrator sync"
            log.warning(
                "foreign_pods_found", message=f"{what}; fix: {fix}", pods=[pod.id for pod in foreign_pods[:NAMED]]
            )
        self._reported_foreign_pods = bool(foreign_pods)
        return tuple(apart[False]), foreign_pods

    def _compare_clocks(self, now: datetime, asked_s: float, answered_s: float) -> None:
        """Begin a gap if more time has passed for the database than for this process.

        This machine was suspended with its monotonic clock, and agents' calls failed; or the database's clock was set
        forward. Then silence does not count.
        """
        if self._clocks is not None:
            passed_s = (now - self._clocks[0]).total_seconds()
            if passed_s - (answered_s - self._clocks[1]) > self._slow_call_s:
                why = f"{passed_s:.0f} s passed on the database's clock, and fewer on this machine's"
                log.warning("clocks_jumped", message=why)
                self.forget()
                self._gaps.clear()
                self._began_s = None
        self._clocks = now, asked_s

    def _window(self, now: datetime, clock_s: float) -> ObservationWindow:
        """Return the observation window on the database's clock."""

        def at(moment_s: float) -> datetime:
            return now - timedelta(seconds=clock_s - moment_s)

        began_s = clock_s if self._began_s is None else self._began_s
        return ObservationWindow(at(began_s), tuple((at(began), at(ended)) for began, ended in self._gaps))

    def _late_list(self) -> str | None:
        """Return what is wrong with a list that takes too long; None if none does."""
        late_s = asyncio.get_running_loop().time() - self._listed_at_s
        if self._listing is None or late_s < LATE_S:
            return None
        return f"asked for more than {LATE_S:g} s ago, and not answered yet"

    async def _list(self) -> bool:
        """Return whether a new complete list has arrived."""
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
            return False  # a later tick will use it
        self._listing = None
        try:
            self._pods = listing.result()
        except PortError as error:
            self._pods = None
            self.cloud_error = error
            words = log_phrases.AUTHENTICATION if isinstance(error, ApiAuth) else "the provider gave no list of pods"
            log.warning("pods_unlisted", message=f"{words}: {error}", error=type(error).__name__)
            return False
        self.cloud_error = None
        return True
