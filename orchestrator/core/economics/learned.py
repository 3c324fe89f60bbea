"""Start a worker when the waiting that it saves is worth 1.5 boots. Keep an idle one for its window (`windows.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.economics import statistics
from orchestrator.core.economics.rule import Decision, PoolView
from orchestrator.core.economics.statistics import Statistics
from orchestrator.core.economics.waiting import arrivals, remaining_s, starts
from orchestrator.core.economics.windows import cold_start_s, window

WORTH_BOOTS = 1.5  # of waiting saved, at which a worker is started
AHEAD_BOOTS = 2.0  # for how long arrivals are expected; a worker that is started later serves the others as well
MAX_WAIT_BOOTS = 4.0  # the default of the longest wait, in boots
REVIEW_S = 10.0  # while tasks wait and the pool may grow: also without events, what is expected changes
REVIEW_BOOTS = 0.01  # or so much of a boot, if that is longer
MAX_STARTS = 100  # of one decision


@dataclass(frozen=True, slots=True)
class Growth:
    """How many workers to start, and the arithmetic of the last one."""

    starts: int
    why: str


@dataclass(frozen=True, slots=True)
class Kept:
    """At which level, and for how many seconds, an idle worker is kept."""

    level: int
    kept_s: float

    def text(self, idle_s: float) -> str:
        """Return why it ends after so many seconds."""
        return f"idle for {idle_s:.0f} s; level {self.level} is kept for {self.kept_s:.0f} s"


def up(known: Statistics, view: PoolView, wait_price: float, max_wait_s: float) -> Growth:
    """Return how many workers to start now."""
    room = min(view.most - view.live, MAX_STARTS)
    if not view.queued or room <= 0:
        return Growth(0, "")
    saving = _by_saving(known, view, wait_price, room)
    late = _late(view, max_wait_s)
    missing = min(room, late - len(view.booting))
    if missing > saving.starts:
        return Growth(missing, f"start {missing}: {late} tasks have waited {max_wait_s:.0f} s")
    return saving


def _by_saving(known: Statistics, view: PoolView, wait_price: float, room: int) -> Growth:
    boot_s, run_s = known.boot_s, known.run_s
    free = [remaining_s(run_s, view.now - began) for began in view.busy]
    free += [remaining_s(boot_s, view.now - asked) for asked in view.booting]
    count, why = 0, ""
    if not free:
        count, why = 1, "start 1: tasks wait, and no worker is there"
        free.append(boot_s)
    arriving = arrivals(view.queued, known.arrivals_per_s(view.now), AHEAD_BOOTS * boot_s)
    price_s = WORTH_BOOTS * boot_s
    began = starts(arriving, free, run_s)
    while count < room and wait_price * _most_saved(began, arriving, boot_s) > price_s:
        free.append(boot_s)
        sooner = starts(arriving, free, run_s)
        saved_s = sum(began) - sum(sooner)
        if wait_price * saved_s <= price_s:
            break
        count, began = count + 1, sooner
        why = saving_text(count, saved_s, wait_price, price_s)
    return Growth(count, why)


def saving_text(count: int, saved_s: float, wait_price: float, price_s: float) -> str:
    """Return the arithmetic of the last of `count` starts."""
    last = "" if count == 1 else "the last one "
    worth = f"worth {wait_price * saved_s:.0f} s of GPU time"
    return f"start {count}: {last}saves {saved_s:.0f} s of waiting, {worth}; a boot costs {price_s:.0f} s"


def _most_saved(began: Sequence[float], arriving: Sequence[float], boot_s: float) -> float:
    """Return a bound of what a worker that is ready after a boot can save: it changes no earlier start."""
    return sum(start - max(boot_s, at) for start, at in zip(began, arriving, strict=True) if start > boot_s)


def _late(view: PoolView, max_wait_s: float) -> int:
    """Return how many tasks have waited too long, at most so many as workers may live."""
    late = 0
    for arrival in view.waiting:
        if late >= view.most or arrival + max_wait_s > view.now:
            break
        late += 1
    return late


@dataclass(slots=True)
class LearnedRule:
    """SCALING_POLICY=learned."""

    known: Statistics
    wait_price: float = 1.0
    max_wait_s: float | None = None  # None: MAX_WAIT_BOOTS

    def arrived(self, level: int, now: float) -> None:
        """Update the rate of arrivals and the gaps of the level."""
        self.known = statistics.arrived(self.known, level, now)

    def booted(self, boot_s: float) -> None:
        """Update the boot time."""
        self.known = statistics.booted(self.known, boot_s)

    def ended(self, level: int, run_s: float, now: float) -> None:
        """Update the run time and the last use of the level."""
        self.known = statistics.ended(self.known, level, run_s, now)

    def decide(self, view: PoolView) -> Decision:
        """Start workers for queued tasks; without such tasks, end those whose window is over."""
        if view.idle:
            return self.down(view)
        max_wait_s = MAX_WAIT_BOOTS * self.known.boot_s if self.max_wait_s is None else self.max_wait_s
        growth = up(self.known, view, self.wait_price, max_wait_s)
        return Decision(
            starts=growth.starts, review_at=self._review_at(view, growth.starts, max_wait_s), why=growth.why
        )

    def down(self, view: PoolView) -> Decision:
        """End the idle workers whose window is over. A worker's level counts from the one with the newest last use."""
        ends: list[int] = []
        review_at: float | None = None
        why = ""
        for place, (worker, kept) in enumerate(zip(view.idle, self.kept(view), strict=True)):
            due = worker.since + kept.kept_s
            if due > view.now:
                review_at = due if review_at is None else min(review_at, due)
            elif view.live - len(ends) > view.least:
                ends.append(place)
                why = f"end {len(ends)}: {kept.text(view.now - worker.since)}"
        if ends and review_at is not None:
            review_at = view.now  # those that are left count as other levels
        return Decision(ends=tuple(ends), review_at=review_at, why=why)

    def kept(self, view: PoolView) -> list[Kept]:
        """Return for each idle worker at which level, and for how long, it is kept."""
        levels = range(len(view.busy) + len(view.idle), len(view.busy), -1)
        return [Kept(level, self.window(level, view.now)) for level in levels]

    def window(self, level: int, now: float) -> float:
        """Return for how many seconds a worker that is idle at this level is kept."""
        gaps = self.known.gaps_of(level, now)
        return window(gaps, cold_start_s(self.known.boot_s, self.wait_price))

    def _review_at(self, view: PoolView, started: int, max_wait_s: float) -> float | None:
        if not view.queued or view.live + started >= view.most:
            return None
        review_at = view.now + max(REVIEW_S, self.known.boot_s * REVIEW_BOOTS)
        covered = len(view.booting) + started  # so many of the oldest tasks have a worker that boots
        late_at = view.waiting[covered] + max_wait_s if covered < len(view.waiting) else review_at
        return min(review_at, late_at) if late_at > view.now else review_at  # more than MAX_STARTS are late already


class ColdStartRule(LearnedRule):
    """The learned rule, but each idle worker is kept for one cold start."""

    __slots__ = ()

    def window(self, level: int, now: float) -> float:  # noqa: ARG002  a constant depends on nothing
        """Return the seconds of a cold start."""
        return cold_start_s(self.known.boot_s, self.wait_price)
