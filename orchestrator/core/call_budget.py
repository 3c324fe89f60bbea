"""The provider's rate limits: how many calls the account allows, and which calls may use them. Pure arithmetic.

RunPod counts the calls of an account in windows (minute, hour, day). The headers of each reply say how many are left.
All processes and environments of the account share the windows. Urgent calls may use up a window; other calls leave a
part of it, because without lists nothing is known about pods, and a late delete costs money. A reply can delay a kind
of call only up to a bound. After it, one call is tried, and its reply decides again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

RETRY_AFTER_S = 10.0  # after a 429 without a Retry-After header
TOO_MANY = 429  # HTTP status
MAX_WAIT_S = 86_400.0  # the longest window
LISTS_SHARE = 0.8  # of the rest of a window: at this pace, lists never use it up
MAX_HEADER_CHARACTERS = 1_024
MEMBER = re.compile(r'"([a-z]{1,16})"((?:;[a-z]=\d{1,9}){1,4})')


class Priority(IntEnum):
    """The purpose of a call, the most urgent first."""

    LIST = 0
    DELETE = 1
    CREATE = 2
    OTHER = 3


LEAVES = {Priority.LIST: 0.0, Priority.DELETE: 0.05, Priority.CREATE: 0.15, Priority.OTHER: 0.4}  # of the quota
# The longest delay between two calls of a kind, whatever the replies say: a pod that is not deleted costs money.
HOLDS_S = {Priority.LIST: 300.0, Priority.DELETE: 60.0, Priority.CREATE: 300.0, Priority.OTHER: 300.0}


@dataclass(frozen=True, slots=True)
class Window:
    """One window of the account, on the caller's clock."""

    quota: int
    length_s: float
    left: int
    resets_at_s: float


def windows(headers: Mapping[str, str], now_s: float) -> dict[str, Window]:
    """Read `RateLimit-Policy` ("minute";q=60;w=60) and `RateLimit` ("minute";r=12;t=30); {} if they are missing."""
    policy, state = _members(headers.get("RateLimit-Policy")), _members(headers.get("RateLimit"))
    found = {}
    for name, item in policy.items():
        quota, length_s = item.get("q", 0), float(item.get("w", 0))
        if quota <= 0 or not 0 < length_s <= MAX_WAIT_S:
            continue
        now = state.get(name, {})
        if "r" in now:
            resets_s = min(float(now.get("t", length_s)), length_s)
            found[name] = Window(quota, length_s, min(now["r"], quota), now_s + resets_s)
    return found


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Read `Retry-After` in seconds; a bounded default if it is missing or a date."""
    wait = headers.get("Retry-After", "").strip()
    return min(float(wait), MAX_WAIT_S) if re.fullmatch(r"\d{1,9}", wait) else RETRY_AFTER_S


def _members(header: str | None) -> dict[str, dict[str, int]]:
    text = (header or "")[:MAX_HEADER_CHARACTERS]
    return {
        name: {key: int(value) for key, value in (part.split("=") for part in item.strip(";").split(";"))}
        for name, item in MEMBER.findall(text)
    }


class CallBudget:
    """The calls of one process. Before the first reply nothing is known, and no call is delayed."""

    def __init__(self) -> None:
        self._windows: dict[str, Window] = {}
        self._closed_until_s = float("-inf")
        self._unanswered = 0
        self._held: dict[Priority, float] = {}  # since when it is delayed, or since its last call that was tried anyway
        self._is_tried = False  # whether a call was tried although a reply said to wait

    def take(self, priority: Priority, now_s: float) -> None:
        """Count a call that is sent now."""
        self._unanswered += 1
        self._windows = {name: replace(one, left=one.left - 1) for name, one in self._windows.items()}
        if priority in self._held and self._asked_s(priority, now_s) > 0:
            self._held[priority] = now_s
            self._is_tried = True

    def answered(self, status: int | None, headers: Mapping[str, str], now_s: float) -> None:
        """Take the headers of a reply. Without a status, the call ended without a reply."""
        self._unanswered = max(0, self._unanswered - 1)
        # The provider has not counted the calls that are still in progress.
        stated = windows(headers, now_s)
        if self._is_tried and status is not None:
            self._is_tried = False
            if status != TOO_MANY:  # it was served, so the limits of earlier replies no longer apply
                self._windows, self._closed_until_s = {}, float("-inf")
        self._windows |= {name: replace(one, left=one.left - self._unanswered) for name, one in stated.items()}
        if status == TOO_MANY:
            self._closed_until_s = max(self._closed_until_s, now_s + retry_after_s(headers))
        for priority in Priority:
            if self._asked_s(priority, now_s) > 0:
                self._held.setdefault(priority, now_s)
            else:
                self._held.pop(priority, None)

    def wait_s(self, priority: Priority, now_s: float) -> float:
        """Return the seconds for which a call of this priority must wait; 0 if it may be sent now."""
        asked_s = self._asked_s(priority, now_s)
        if asked_s <= 0:
            self._held.pop(priority, None)
            return 0.0
        held_s = self._held.setdefault(priority, now_s)
        return max(0.0, min(asked_s, held_s + HOLDS_S[priority] - now_s))

    def _asked_s(self, priority: Priority, now_s: float) -> float:
        """Return the seconds for which the provider's replies ask a call of this priority to wait."""
        share = LEAVES[priority]
        used_up = (w.resets_at_s - now_s for w in self._now(now_s) if w.left <= int(w.quota * share))
        return max(0.0, self._closed_until_s - now_s, *used_up)

    def pace_s(self, now_s: float) -> float:
        """Return the least seconds between two pages of lists at which no window is used up before it resets."""
        paces = [(window.resets_at_s - now_s) / (LISTS_SHARE * max(1, window.left)) for window in self._now(now_s)]
        return min(max([0.0, *paces]), HOLDS_S[Priority.LIST])

    def _now(self, now_s: float) -> list[Window]:
        """Return the windows; those whose time is over are full again."""
        for name, one in self._windows.items():
            if one.resets_at_s <= now_s:
                self._windows[name] = replace(one, left=one.quota, resets_at_s=now_s + one.length_s)
        return list(self._windows.values())
