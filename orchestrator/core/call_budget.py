"""How many calls the provider's account still allows, and who may make them: pure arithmetic over the reply headers.

RunPod counts the calls of an account in windows (minute, hour, day) and tells with each reply what is left. All
processes and environments of the account share it. Urgent calls may use a window up; the others leave a part of it:
without lists nothing is known about pods, and a delete that waits costs money. No reply holds a kind of call for longer
than its bound: then one call tries, and its answer decides anew.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

RETRY_AFTER_S = 10.0  # of a 429 that does not say when to come back
TOO_MANY = 429  # HTTP status
MAX_WAIT_S = 86_400.0  # the longest window
LISTS_SHARE = 0.8  # of what is left of a window: at this pace lists never use it up
MAX_HEADER_CHARACTERS = 1_024
MEMBER = re.compile(r'"([a-z]{1,16})"((?:;[a-z]=\d{1,9}){1,4})')


class Priority(IntEnum):
    """What a call is for, the most urgent first."""

    LIST = 0
    DELETE = 1
    CREATE = 2
    OTHER = 3


LEAVES = {Priority.LIST: 0.0, Priority.DELETE: 0.05, Priority.CREATE: 0.15, Priority.OTHER: 0.4}  # of the quota
# Between two calls of a kind that the provider's replies hold back, at most; a pod that is not deleted costs money.
HOLDS_S = {Priority.LIST: 300.0, Priority.DELETE: 60.0, Priority.CREATE: 300.0, Priority.OTHER: 300.0}


@dataclass(frozen=True, slots=True)
class Window:
    """One window of the account, on the clock of whoever asks."""

    quota: int
    length_s: float
    left: int
    resets_at_s: float


def windows(headers: Mapping[str, str], now_s: float) -> dict[str, Window]:
    """Read `RateLimit-Policy` ("minute";q=60;w=60) and `RateLimit` ("minute";r=12;t=30); {} if they say nothing."""
    policy, state = _members(headers.get("RateLimit-Policy")), _members(headers.get("RateLimit"))
    found = {}
    for name, said in policy.items():
        quota, length_s = said.get("q", 0), float(said.get("w", 0))
        if quota <= 0 or not 0 < length_s <= MAX_WAIT_S:
            continue
        now = state.get(name, {})
        if "r" in now:
            resets_s = min(float(now.get("t", length_s)), length_s)
            found[name] = Window(quota, length_s, min(now["r"], quota), now_s + resets_s)
    return found


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Read `Retry-After` in seconds; a bounded default where it is missing or a date."""
    said = headers.get("Retry-After", "").strip()
    return min(float(said), MAX_WAIT_S) if re.fullmatch(r"\d{1,9}", said) else RETRY_AFTER_S


def _members(header: str | None) -> dict[str, dict[str, int]]:
    text = (header or "")[:MAX_HEADER_CHARACTERS]
    return {
        name: {key: int(value) for key, value in (part.split("=") for part in said.strip(";").split(";"))}
        for name, said in MEMBER.findall(text)
    }


class CallBudget:
    """The calls of one process. Until the first reply nothing is known, and nothing is held back."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}
        self._closed_until_s = float("-inf")
        self._unanswered = 0
        self._held: dict[Priority, float] = {}  # since when, or since its last call that went out all the same
        self._is_tried = False  # whether a call went out although a reply said to wait

    def take(self, priority: Priority, now_s: float) -> None:
        """Count a call that goes out now."""
        self._unanswered += 1
        self._windows = {name: replace(one, left=one.left - 1) for name, one in self._windows.items()}
        if priority in self._held and self._asked_s(priority, now_s) > 0:
            self._held[priority] = now_s
            self._is_tried = True

    def answered(self, status: int | None, headers: Mapping[str, str], now_s: float) -> None:
        """Learn from a reply; with no status the call ended without one."""
        self._unanswered = max(0, self._unanswered - 1)
        # What is still under way is not among what the provider has counted.
        told = windows(headers, now_s)
        if self._is_tried and status is not None:
            self._is_tried = False
            if status != TOO_MANY:  # it was served: what earlier replies said does not hold any more
                self._windows, self._closed_until_s = {}, float("-inf")
        self._windows |= {name: replace(one, left=one.left - self._unanswered) for name, one in told.items()}
        if status == TOO_MANY:
            self._closed_until_s = max(self._closed_until_s, now_s + retry_after_s(headers))
        for priority in Priority:
            if self._asked_s(priority, now_s) > 0:
                self._held.setdefault(priority, now_s)
            else:
                self._held.pop(priority, None)

    def wait_s(self, priority: Priority, now_s: float) -> float:
        """Return how long a call of this priority has to wait; 0 if it may go out now."""
        asked_s = self._asked_s(priority, now_s)
        if asked_s <= 0:
            self._held.pop(priority, None)
            return 0.0
        held_s = self._held.setdefault(priority, now_s)
        return max(0.0, min(asked_s, held_s + HOLDS_S[priority] - now_s))

    def _asked_s(self, priority: Priority, now_s: float) -> float:
        """How long the provider's replies ask a call of this priority to wait."""
        share = LEAVES[priority]
        used_up = (w.resets_at_s - now_s for w in self._now(now_s) if w.left <= int(w.quota * share))
        return max(0.0, self._closed_until_s - now_s, *used_up)

    def pace_s(self, now_s: float) -> float:
        """Return the least seconds between two pages of lists at which no window is used up before it resets."""
        paces = [(window.resets_at_s - now_s) / (LISTS_SHARE * max(1, window.left)) for window in self._now(now_s)]
        return min(max([0.0, *paces]), HOLDS_S[Priority.LIST])

    def _now(self, now_s: float) -> list[Window]:
        """The windows, those that have reset since as new."""
        for name, one in self._windows.items():
            if one.resets_at_s <= now_s:
                self._windows[name] = replace(one, left=one.quota, resets_at_s=now_s + one.length_s)
        return list(self._windows.values())
