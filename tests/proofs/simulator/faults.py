"""Dice and faults: every bad thing that happens is drawn here, from the seed, and counted by its name."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
# What may become of one call: nothing was done and it says so; nothing or all was done and no answer comes, soon or in
# time; it is carried out after the caller has given up.
FATES = ("refused", "lost_before", "lost_after", "hung_before", "hung_after", "late")
HANGS_S = 45.0  # a call that hangs, and what waits for it
LASTS_S = 105.0  # the longest outage or frozen orchestrator, and then a call that hangs
CALM, BURST = 1.0, 8.0  # times the rates below
OFTEN = (0.0, 1.0, 1.0, 3.0)
FRAIL = 0.2  # of the seeds: in these agents die young, until nothing goes wrong any more
RATES = {"db": 0.01, "cloud": 0.08, "ssh": 0.04, "s3": 0.1, "rpc": 0.06}  # of calls, on an ordinary day


class Faults:
    """The seed's bad luck."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"faults of {seed}")
        self._weather = random.Random(f"weather of {seed}")
        self._how_often: dict[str, float] = {}
        self._frailty = random.Random(f"frailty of {seed}")
        self.frail = self._frailty.random() < FRAIL
        self.count: Counter[str] = Counter()
        self.active = True
        self.level = CALM
        self.over_s = -1e9  # when the last one will be over, by the kernel's clock
        self.clock: Callable[[], float] = lambda: 0.0

    def often(self, name: str) -> float:
        """How often in this seed, against others: not at all, as usual, or three times.

        A seed in which all goes wrong hardly comes to what only a working fleet can suffer.
        """
        if name not in self._how_often:
            self._how_often[name] = self._weather.choice(OFTEN)
        return self._how_often[name]

    def note(self, name: str, lasts_s: float = HANGS_S) -> None:
        """Count one; for so long it is felt."""
        self.count[name] += 1
        self.over_s = max(self.over_s, self.clock() + lasts_s)

    def happens(self, name: str, chance: float) -> bool:
        """Whether it happens this time."""
        if not self.active or self.dice.random() >= min(0.9, chance * self.level * self.often(name)):
            return False
        self.note(name)
        return True

    def lives_s(self) -> float | None:
        """For how long an agent that is launched now lives; None: as long as it is let."""
        if not self.active or not self.frail:
            return None
        lives_s = self._frailty.uniform(5, 60)
        self.note("agent_died_young", lives_s + HANGS_S)
        return lives_s

    def fate(self, link: str) -> str:
        """What becomes of a call over a link; "ok" mostly."""
        if not self.active or self.dice.random() >= min(0.9, RATES[link] * self.level * self.often(link)):
            return "ok"
        fate = self.dice.choice(FATES)
        self.note(f"{link}_{fate}")
        return fate

    def between(self, low: float, high: float) -> float:
        """A number."""
        return self.dice.uniform(low, high)

    def one_of(self, things: Sequence[T]) -> T:
        """One of them."""
        return self.dice.choice(things)
