"""Random faults: each fault is drawn here from the seed, and counted by its name."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
# The fates of one call: it fails with an error; it is lost, or its answer is, at once or after a while; it runs after
# the caller has given up.
FATES = ("refused", "lost_before", "lost_after", "hung_before", "hung_after", "late")
HANGS_S = 45.0  # a call that hangs, and what waits for it
LASTS_S = 105.0  # the longest outage or frozen orchestrator, and then a call that hangs
CALM, BURST = 1.0, 8.0  # times the rates below
OFTEN = (0.0, 1.0, 1.0, 3.0)
FRAIL = 0.2  # of the seeds: in these, agents crash soon after their start, until the faults stop
RATES = {"db": 0.01, "cloud": 0.08, "ssh": 0.04, "s3": 0.1, "rpc": 0.06}  # of the calls, in an ordinary seed


class Faults:
    """The faults of one seed."""

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
        """Return the frequency of a fault in this seed: never, as usual, or three times as often.

        With all faults, a seed would hardly reach the states that only a working fleet has.
        """
        if name not in self._how_often:
            self._how_often[name] = self._weather.choice(OFTEN)
        return self._how_often[name]

    def note(self, name: str, lasts_s: float = HANGS_S) -> None:
        """Count a fault whose effect lasts for so long."""
        self.count[name] += 1
        self.over_s = max(self.over_s, self.clock() + lasts_s)

    def happens(self, name: str, chance: float) -> bool:
        """Whether the fault occurs this time."""
        if not self.active or self.dice.random() >= min(0.9, chance * self.level * self.often(name)):
            return False
        self.note(name)
        return True

    def lives_s(self) -> float | None:
        """Return after how many seconds an agent that is launched now crashes; None: never."""
        if not self.active or not self.frail:
            return None
        lives_s = self._frailty.uniform(5, 60)
        self.note("agent_died_young", lives_s + HANGS_S)
        return lives_s

    def fate(self, link: str) -> str:
        """Return the fate of a call over a link, mostly "ok"."""
        if not self.active or self.dice.random() >= min(0.9, RATES[link] * self.level * self.often(link)):
            return "ok"
        fate = self.dice.choice(FATES)
        self.note(f"{link}_{fate}")
        return fate

    def between(self, low: float, high: float) -> float:
        """Return a random number."""
        return self.dice.uniform(low, high)

    def one_of(self, things: Sequence[T]) -> T:
        """Return one of them at random."""
        return self.dice.choice(things)
