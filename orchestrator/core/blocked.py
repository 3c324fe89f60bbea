"""Blocked reasons: what a pool wants and does not get, and why, as data.

The planner returns `Blocked(kind, count, unit, detail, until)`, the decision row stores it as JSON, and the
explanations read it back. `Kind` is the catalogue: who must act on a reason of that kind, what happens then, the fix,
and the words. The words are put together only where a reason is shown: `text` and `line`. No code reads them.

A reason of a new kind needs a member of `Kind`, and a `Blocked(...)` in the planner.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from string import Formatter
from typing import Any

from orchestrator.core.meanings import (
    BUDGET,
    CAPACITY,
    OPERATOR,
    ORCHESTRATOR,
    PROVIDER,
    Explained,
    Meaning,
)

SPAWNS, INTENTS, WORKERS, TASKS = "spawn", "recorded worker", "worker", "task"  # units of `count`
ONE_THAT_FAILED = "python -m orchestrator list --all, then explain one that failed"
ROOM = "workers are started once it has room; a day's begins at 00:00 UTC"
MORE_MONEY = "raise DAILY_BUDGET_USD or MAX_HOURLY_COST_USD; python -m orchestrator cost --since 24h"
DAY = (
    "${spent_usd:.2f} spent today + ${committed_usd:.2f} committed + ${needed_usd:.2f} for {gpu_type} "
    "> DAILY_BUDGET_USD={limit_usd:g}"
)
LIST_FIX = "see RUNPOD_API_KEY and RunPod's status; the list is requested again at each tick"


@dataclass(frozen=True, slots=True)
class KindRow(Meaning):
    """One kind of reason. `means` describes the kind; `words` are the parts of the sentence about one reason.

    A part names facts of `detail` in braces. A part of which a fact is missing is left out.
    """

    words: tuple[str, ...]


class Kind(Explained):
    """Why something is blocked. The values are stored in `decisions.blocked`."""

    row: KindRow

    # fmt: off
    PAUSED = "paused", KindRow(
        "An operator paused spawning.", OPERATOR, "workers are started again", "python -m orchestrator resume",
        words=("paused ({reason})",))
    STORE_AWAY = "store_away", KindRow(
        "The object store does not answer.",
        PROVIDER, "workers claim and start again once it answers; running tasks keep their results",
        "see the store's status; python -m orchestrator doctor",
        words=("the store is away since {since}: {error}", "{waiting} of {ready} workers wait for it"))
    STORE_REFUSES = "store_refuses", KindRow(
        "The object store refuses our calls.",
        OPERATOR, "workers claim and start again once it takes objects",
        "python -m orchestrator doctor; correct S3_BUCKET, S3_ENDPOINT_URL or the AWS keys",
        words=("the store is away since {since}: {error}",))
    NO_POD_LIST = "no_pod_list", KindRow(
        "RunPod's pod list is unavailable.", PROVIDER, "the next complete list is used", LIST_FIX,
        words=("no pod is created: no list of pods from the provider ({error})",))
    OLD_POD_LIST = "old_pod_list", KindRow(
        "RunPod's newest pod list is old.", PROVIDER, "the next complete list is used", LIST_FIX,
        words=("decided by an old list: no list of pods since ({error})",))
    MAX_ACTIVE = "max_active", KindRow(
        "The pool has as many workers as it may have.",
        OPERATOR, "nothing more is started until it is raised", "raise MAX_ACTIVE_GPUS",
        words=("MAX_ACTIVE_GPUS={limit}",))
    HOURLY_BUDGET = "hourly_budget", KindRow(
        "Another worker would cost more per hour than allowed.", BUDGET, ROOM, MORE_MONEY,
        words=("${running_usd:.2f}/h running + ${rate_usd:.2f}/h for {gpu_type} > MAX_HOURLY_COST_USD={limit_usd:g}",))
    DAILY_BUDGET = "daily_budget", KindRow(
        "Another worker would cost more per day than allowed.", BUDGET, ROOM, MORE_MONEY,
        words=(DAY,))
    PRICE_UNKNOWN = "price_unknown", KindRow(
        "A budget is set, and the price of the GPU is not known.", BUDGET, ROOM, MORE_MONEY,
        words=("a budget is set, and the price of {gpu_type} ({cloud}) is not known",))
    HALTED = "halted", KindRow(
        "RunPod refused for a reason that a person must correct.",
        OPERATOR, "one worker is tried, and the pause doubles while that is refused",
        "correct what it names: the account, RUNPOD_API_KEY, RUNPOD_WORKER_IMAGE or RUNPOD_GPU_TYPE",
        words=("halted by {code}, an operator must act", "one worker at a time after {tried_after}"))
    BREAKER_OPEN = "breaker_open", KindRow(
        "Too many bring-ups failed.",
        ORCHESTRATOR, "one is tried after the other, ever more rarely, until one succeeds",
        ONE_THAT_FAILED + "; after a correction, spawn tries one at once",
        words=("breaker open", "release {bad_release} fails its tasks on every worker",
               "{failed} of {ended} bring-ups failed within {window_min:g} min ({code})",
               "{soon_after} of them soon after promotion", "one canary at a time",
               "canary {canary} must complete a task or live long enough"))
    UNPROVEN = "unproven", KindRow(
        "No worker of this release was ever promoted.",
        ORCHESTRATOR, "the next one is tried, and a success lets all go", ONE_THAT_FAILED,
        words=("no worker of release {release} was promoted yet, a canary first",))
    PACED = "paced", KindRow(
        "The last worker failed.", ORCHESTRATOR, "the next one is tried, and a success lets all go", ONE_THAT_FAILED,
        words=("the last bring-up failed ({bring_up_code})",
               "the last promoted worker failed on probation ({probation_code})", "one spawn in {pace_s:g} s"))
    OFFERS_REFUSED = "offers_refused", KindRow(
        "RunPod refused every offer.",
        CAPACITY, "it is asked again, with one call, then with more", "add to RUNPOD_GPU_TYPE or RUNPOD_DATA_CENTERS",
        words=("every offer was refused recently",))
    OFFER_AVOIDED = "offer_avoided", KindRow(
        "Hosts failed in this place.", ORCHESTRATOR, "it is asked in its turn again", ONE_THAT_FAILED,
        words=("{offer} is tried last because hosts failed there",))
    OFFER_OUTSIDE_VOLUME = "offer_outside_volume", KindRow(
        "A network volume can be mounted in its own data centre only.",
        OPERATOR, "nothing until that is changed",
        "correct what it names: RUNPOD_STORAGE_NAME, RUNPOD_DATA_CENTERS or POOLS_FILE",
        words=("{offer} is not used: network volume {volume} is in {data_center}",))
    NO_OFFER_AT_VOLUME = "no_offer_at_volume", KindRow(
        "No offer of the pool is in the data centre of its network volume.",
        OPERATOR, "nothing until that is changed",
        "correct what it names: RUNPOD_STORAGE_NAME, RUNPOD_DATA_CENTERS or POOLS_FILE",
        words=("no offer is in {data_center}, where network volume {volume} is",))
    VOLUME_UNUSABLE = "volume_unusable", KindRow(
        "The pool's network volume cannot be used.",
        OPERATOR, "nothing until that is changed", "correct RUNPOD_STORAGE_NAME or POOLS_FILE",
        words=("{error}",))
    POOL_UNKNOWN = "pool_unknown", KindRow(
        "No pool of this name is configured.",
        OPERATOR, "nothing until that is changed", "correct POOLS_FILE, or submit with another --pool",
        words=("no pool {pool!r} is configured",))
    OTHER = "other", KindRow(
        "A reason that another release wrote.",
        ORCHESTRATOR, "the next tick decides", "python -m orchestrator plan", words=("{said}",))
    # fmt: on


@dataclass(frozen=True, slots=True)
class Blocked:
    """Something that is wanted and not done. `count` 0 is a remark: nothing is blocked by it alone."""

    kind: Kind
    count: int = 0
    unit: str = SPAWNS
    detail: Mapping[str, Any] = field(default_factory=dict)  # facts as strings and numbers, for `words`
    until: datetime | None = None  # when it may end by itself; None: no time ends it

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes this another reason: its kind, its unit, and its facts other than numbers and times."""
        words = sorted((name, value) for name, value in self.detail.items() if isinstance(value, str))
        return (self.kind, self.unit, *(word for word in words if word[0] not in TIMES))

    def as_json(self) -> dict[str, Any]:
        """Return it as it is stored in `decisions.blocked`."""
        until = self.until.isoformat() if self.until else None
        return {
            "kind": self.kind, "count": self.count, "unit": self.unit, "detail": dict(self.detail), "until": until
        }  # fmt: skip


TIMES = frozenset({"since"})  # facts of `detail` that are a time


def from_json(stored: object) -> Blocked:
    """Return a reason as a decision row has it; earlier releases stored a sentence."""
    if not isinstance(stored, Mapping):
        return Blocked(Kind.OTHER, detail={"said": str(stored)})
    until = stored.get("until")
    if stored["kind"] not in KINDS:  # a later release wrote it
        return Blocked(Kind.OTHER, detail={"said": f"{stored['kind']} {dict(stored.get('detail') or {})}"})
    return Blocked(
        KINDS[stored["kind"]],
        int(stored.get("count") or 0),
        str(stored.get("unit") or SPAWNS),
        stored.get("detail") or {},
        datetime.fromisoformat(until) if until else None,
    )


KINDS: dict[str, Kind] = {str(kind): kind for kind in Kind}


def why(reason: Blocked) -> str:
    """Return the reason alone, in words: `paused (new image)`."""
    parts = [part for part in reason.kind.row.words if _facts(part) <= reason.detail.keys()]
    try:
        return ", ".join(part.format_map(reason.detail) for part in parts) or reason.kind.row.means
    except ValueError:  # a row that another program wrote: a text where a number belongs
        return f"{reason.kind.row.means} {dict(reason.detail)}"


def text(reason: Blocked) -> str:
    """Return what is blocked and why: `3 spawns blocked: paused (new image)`."""
    if not reason.count:
        return why(reason)
    return f"{reason.count} {reason.unit}{'s' if reason.count != 1 else ''} blocked: {why(reason)}"


def line(reason: Blocked) -> str:
    """Return `text`, and until when, if that is known."""
    return text(reason) + (f", until {reason.until:%H:%M:%S}" if reason.until else "")


def _facts(part: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(part) if name}
