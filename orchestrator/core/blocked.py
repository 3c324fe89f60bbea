"""Blocked reasons as data: what a pool wants and does not get, and why.

The planner returns `Blocked(kind, count, unit, detail, until)`, the decision row stores it as JSON, and the
explanations read it back. `BlockedReason` is the catalogue: who must act, what happens then, the fix
and the sentence. The sentence is composed only for display (`text` and `line`). No code parses it.

A reason of a new kind needs a member of `BlockedReason`, and a `Blocked(...)` in the planner.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from string import Formatter
from typing import Any

from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.meanings import (
    BUDGET,
    CAPACITY,
    NOBODY,
    OPERATOR,
    ORCHESTRATOR,
    PROVIDER,
    Explained,
    Meaning,
)
from orchestrator.core.plurals import counted, queued
from orchestrator.core.provider import place_of, short_gpu

SPAWNS, INTENTS, WORKERS, TASKS = "spawn", "recorded worker", "worker", "task"  # units of `count`
ONE_THAT_FAILED = "python -m orchestrator list --all shows what failed; python -m orchestrator explain ID"
ROOM = "workers are started once it has room; a day's begins at 00:00 UTC"
MORE_MONEY = "raise DAILY_BUDGET_USD or MAX_HOURLY_COST_USD; python -m orchestrator cost --since 24h"
HOUR = (
    "The workers cost ${running_usd:.2f}/h and {gpu} costs ${rate_usd:.2f}/h: "
    "more than MAX_HOURLY_COST_USD={limit_usd:g}."
)
SPENT = "Spent today: ${spent_usd:.2f} of ${limit_usd:.2f}."
COMMITTED = "The running workers need ${committed_usd:.2f} more."
NEEDED = "{gpu} needs ${needed_usd:.2f}."
ROOM_PER_HOUR = (
    "With them, the workers would cost more than ${running_usd:.2f}/h + ${rate_usd:.2f}/h, "
    "and MAX_HOURLY_COST_USD={limit_usd:g}."
)
LIST_FIX = "see RUNPOD_API_KEY and RunPod's status; the list is requested again at each tick"


@dataclass(frozen=True, slots=True)
class BlockedRow(Meaning):
    """One kind of reason. `means` describes the kind; `words` are sentences about one reason.

    A sentence names facts of `detail` in braces, and is left out if one of its facts is missing. `ends`
    is the sentence about the time at which the reason may end.
    """

    words: tuple[str, ...]
    ends: str = "Next try at {until:%H:%M:%S}."


class BlockedReason(Explained):
    """Why something is blocked. The values are stored in `decisions.blocked`."""

    row: BlockedRow

    # fmt: off
    PAUSED = "paused", BlockedRow(
        "An operator paused spawning.", OPERATOR, "workers are started again", "python -m orchestrator resume",
        words=("Paused: {reason}.",), ends="It ends at {until:%H:%M:%S}.")
    CONCURRENCY = "concurrency", BlockedRow(
        "Tasks wait until their concurrency key or their type has room.",
        NOBODY, "each is ready as soon as a running task of the key or type ends", "python -m orchestrator limits list",
        words=("They wait for a concurrency key or a limit of their type.",))
    STORE_AWAY = "store_away", BlockedRow(
        "The object store does not answer.",
        PROVIDER, "workers claim and start again once it answers; running tasks keep their results",
        "see the store's status; python -m orchestrator doctor",
        words=("The object store does not answer since {since}: {error}.", "{waiting} of {ready} workers wait for it."))
    STORE_REFUSES = "store_refuses", BlockedRow(
        "The object store refuses our calls.",
        OPERATOR, "workers claim and start again once it takes objects",
        "python -m orchestrator doctor; correct S3_BUCKET, S3_ENDPOINT_URL or the AWS keys",
        words=("The object store refuses our calls since {since}: {error}.",))
    NO_POD_LIST = "no_pod_list", BlockedRow(
        "RunPod's pod list is unavailable.", PROVIDER, "the next complete list is used", LIST_FIX,
        words=("No pod is created, because RunPod gives no list of pods ({error}).",))
    OLD_POD_LIST = "old_pod_list", BlockedRow(
        "RunPod's newest pod list is old.", PROVIDER, "the next complete list is used", LIST_FIX,
        words=("Decided by an old list, because RunPod gives no new one ({error}).",))
    MAX_ACTIVE = "max_active", BlockedRow(
        "The pool has as many workers as it may have.",
        OPERATOR, "nothing more is started until it is raised", "raise MAX_ACTIVE_GPUS",
        words=("The pool has all the workers that it may have: MAX_ACTIVE_GPUS={limit}.",))
    SCHEDULED_SIZE = "scheduled_size", BlockedRow(
        "The size of the pool follows the time, and allows no more workers now.",
        NOBODY, "more are started when an entry with a higher max_active_gpus is due",
        "none needed; or change scheduled_sizes of the pool in POOLS_FILE",
        words=("At most {limit} by the entry {cron!r} of scheduled_sizes, since {since}.",),
        ends="The next entry is due at {until:%Y-%m-%d %H:%M} UTC.")
    SCALE_LIMIT = "scale_limit", BlockedRow(
        "An operator allows fewer workers for a time.",
        OPERATOR, "more are started once the limit ends", "python -m orchestrator scale unlimit",
        words=("At most {limit} in {where}: {reason}.",), ends="It ends at {until:%H:%M:%S}.")
    HOURLY_BUDGET = "hourly_budget", BlockedRow(
        "Another worker would cost more per hour than allowed.", BUDGET, ROOM, MORE_MONEY,
        words=(HOUR,))
    DAILY_BUDGET = "daily_budget", BlockedRow(
        "Another worker would cost more per day than allowed.", BUDGET, ROOM, MORE_MONEY,
        words=(SPENT, COMMITTED, NEEDED))
    CLUSTER_BUDGET = "cluster_budget", BlockedRow(
        "All missing nodes of a cluster together would cost more than allowed.", BUDGET,
        "all of them are started once there is room, or none; a day's begins at 00:00 UTC",
        MORE_MONEY + "; or create the cluster with fewer nodes",
        words=("Its {nodes} missing nodes start together or not at all.", ROOM_PER_HOUR, SPENT, COMMITTED,
               "The next node needs ${needed_usd:.2f}.", "The price of {gpu} ({cloud}) is not known."))
    NO_CLUSTER = "no_cluster", BlockedRow(
        "The pool has no live cluster.",
        OPERATOR, "its tasks wait until it has one", "python -m orchestrator cluster create NAME --pool POOL --nodes N",
        words=("The pool has no live cluster.",))
    PRICE_UNKNOWN = "price_unknown", BlockedRow(
        "A budget is set, and the price of the GPU is not known.", BUDGET, ROOM, MORE_MONEY,
        words=("A budget is set, and the price of {gpu} ({cloud}) is not known.",))
    DEAR_PODS = "dear_pods", BlockedRow(
        "The last pod of an offer cost more than the catalogue says, and more than the budget allows.", BUDGET,
        "the offer is tried again once the budget has room for this price, or after a time that doubles",
        MORE_MONEY + "; or name other types in RUNPOD_GPU_TYPE",
        words=("The last pod cost ${rate_usd:.2f}/h, and RunPod's catalogue says ${listed_usd:.2f}/h: {offer_place}.",
               HOUR, SPENT, COMMITTED, NEEDED))
    HALTED = "halted", BlockedRow(
        "RunPod refused for a reason that a person must correct.",
        OPERATOR, "one worker is tried, and the pause doubles while that is refused",
        "correct what it names: the account, RUNPOD_API_KEY, RUNPOD_WORKER_IMAGE or RUNPOD_GPU_TYPE",
        words=("RunPod refuses. {code_means} ({code}).",
               "RunPod refused before ({tried_after}), so one worker is tried."))
    BREAKER_OPEN = "breaker_open", BlockedRow(
        "Too many bring-ups failed.",
        ORCHESTRATOR, "one worker at a time is tried, with longer and longer pauses, until one succeeds",
        ONE_THAT_FAILED + "; after a correction: python -m orchestrator spawn",
        words=("Release {bad_release} fails its tasks on every worker.",
               "The last tasks failed on every worker ({failing}).",
               "Starting workers fails: {failed} of {ended} failed in {window_min:g} min.",
               "{soon_after} of them failed soon after their start.", "Last: {code_means} ({code}).",
               "Worker {canary} must complete a task or live long enough.", "One worker is tried at a time."))
    NEW_RELEASE = "new_release", BlockedRow(
        "No worker of this release was ever promoted.",
        ORCHESTRATOR, "the next is tried; its success allows the others", ONE_THAT_FAILED,
        words=("Release {release} is new, so one worker is tried first.",))
    PACED = "paced", BlockedRow(
        "The last worker failed.", ORCHESTRATOR, "the next is tried; its success allows the others", ONE_THAT_FAILED,
        words=("The last start of a worker failed ({bring_up_code}).",
               "The last worker failed soon after its start ({probation_code}).",
               "One worker is started in {pace_s:g} s."))
    OFFERS_REFUSED = "offers_refused", BlockedRow(
        "RunPod refused every offer.",
        CAPACITY, "it is asked again with one call, then with more", "add to RUNPOD_GPU_TYPE or RUNPOD_DATA_CENTERS",
        words=("No GPU to rent now.",))
    OFFER_AVOIDED = "offer_avoided", BlockedRow(
        "Hosts failed in this place.", ORCHESTRATOR, "it is asked in its turn again", ONE_THAT_FAILED,
        words=("Tried last, because hosts failed there: {offer_place}.",))
    OFFER_OUTSIDE_VOLUME = "offer_outside_volume", BlockedRow(
        "A network volume can be mounted in its own data centre only.",
        OPERATOR, "nothing until that is changed",
        "correct what it names: RUNPOD_STORAGE_NAME, RUNPOD_DATA_CENTERS or POOLS_FILE",
        words=("Not used, because network volume {volume} is in {data_center}: {offer_place}.",))
    NO_OFFER_AT_VOLUME = "no_offer_at_volume", BlockedRow(
        "No offer of the pool is in the data centre of its network volume.",
        OPERATOR, "nothing until that is changed",
        "correct what it names: RUNPOD_STORAGE_NAME, RUNPOD_DATA_CENTERS or POOLS_FILE",
        words=("No offer is in {data_center}, where network volume {volume} is.",))
    VOLUME_UNUSABLE = "volume_unusable", BlockedRow(
        "The pool's network volume cannot be used.",
        OPERATOR, "nothing until that is changed", "correct RUNPOD_STORAGE_NAME or POOLS_FILE",
        words=("The network volume cannot be used: {error}.",))
    REGISTRY_UNUSABLE = "registry_unusable", BlockedRow(
        "The registry credentials for the pool's private image cannot be used.",
        OPERATOR, "nothing until that is changed",
        "add them in the RunPod console (Settings, Container registry auth), or correct RUNPOD_REGISTRY_AUTH",
        words=("The registry credentials cannot be used: {error}.",))
    POOL_UNKNOWN = "pool_unknown", BlockedRow(
        "No pool of this name is configured.",
        OPERATOR, "nothing until that is changed", "correct POOLS_FILE, or submit with another --pool",
        words=("No pool {pool!r} is configured.",))
    OTHER = "other", BlockedRow(
        "A reason that another release wrote.",
        ORCHESTRATOR, "the next tick decides", "python -m orchestrator plan", words=("{text}",))
    # fmt: on


@dataclass(frozen=True, slots=True)
class Blocked:
    """A wanted action that is not done. `count` 0 marks a remark, which blocks nothing."""

    kind: BlockedReason
    count: int = 0
    unit: str = SPAWNS
    detail: Mapping[str, Any] = field(default_factory=dict)  # facts as strings and numbers, for `words`
    until: datetime | None = None  # when it may end by itself; None: not known

    @property
    def identity(self) -> tuple[object, ...]:
        """Identify the reason by its kind, its unit, and its facts without numbers and times."""
        words = sorted((name, value) for name, value in self.detail.items() if isinstance(value, str))
        return (self.kind, self.unit, *(word for word in words if word[0] not in TIMES))

    def as_json(self) -> dict[str, Any]:
        """Return the JSON that `decisions.blocked` stores."""
        until = self.until.isoformat() if self.until else None
        return {
            "kind": self.kind, "count": self.count, "unit": self.unit, "detail": dict(self.detail), "until": until
        }  # fmt: skip


TIMES = frozenset({"since"})  # facts of `detail` that are a time


def from_json(stored: object) -> Blocked:
    """Read a reason from a decision row. Earlier releases stored a sentence."""
    if not isinstance(stored, Mapping):
        return Blocked(BlockedReason.OTHER, detail={"text": str(stored)})
    until = stored.get("until")
    if stored["kind"] not in KINDS:  # a later release wrote it
        return Blocked(BlockedReason.OTHER, detail={"text": f"{stored['kind']} {dict(stored.get('detail') or {})}"})
    return Blocked(
        KINDS[stored["kind"]],
        int(stored.get("count") or 0),
        str(stored.get("unit") or SPAWNS),
        stored.get("detail") or {},
        datetime.fromisoformat(until) if until else None,
    )


CODES: dict[str, Explained] = {str(code): code for code in (*FailureCode, *ExitCause)}
KINDS: dict[str, BlockedReason] = {str(kind): kind for kind in BlockedReason}


def why(reason: Blocked) -> str:
    """Return the reason alone, in sentences, such as `Paused: new image.`, without a count."""
    facts = _told(reason.detail)
    parts = [part for part in reason.kind.row.words if _facts(part) <= facts.keys()]
    try:
        return " ".join(part.format_map(facts) for part in parts) or reason.kind.row.means
    except ValueError:  # another program wrote the row: a text instead of a number
        return f"{reason.kind.row.means} {dict(reason.detail)}"


def text(reason: Blocked) -> str:
    """Return what is blocked and why, such as `3 spawns blocked: Paused: new image`."""
    if not reason.count:
        return why(reason)
    return f"{counted(number(reason), reason.unit)} blocked: {why(reason)}"


def number(reason: Blocked) -> int:
    """Return how many are blocked: of tasks, a bound if the queue counts no further."""
    return queued(reason.count) if reason.unit == TASKS else reason.count


def line(reason: Blocked) -> str:
    """Return `text` with the end of the reason, if it is known."""
    return " ".join([text(reason), *([reason.kind.row.ends.format(until=reason.until)] if reason.until else [])])


def fix(reason: Blocked) -> str:
    """Return what the operator can do: about the refusal itself, if RunPod refused."""
    code = str(reason.detail.get("code") or reason.detail.get("tried_after") or "")
    is_refusal = reason.kind is BlockedReason.HALTED and code in CODES
    return str(CODES[code].row.fix if is_refusal else reason.kind.row.fix)


def _told(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts as they are told: no sum of nothing, an offer by its place, a code by its meaning."""
    facts = {name: value for name, value in detail.items() if name != "committed_usd" or value != 0}
    if "gpu_type" in detail:
        facts["gpu"] = short_gpu(str(detail["gpu_type"]))
    if "offer" in detail:
        facts["offer_place"] = place_of(str(detail["offer"]))
    if (code := str(detail.get("code", ""))) in CODES:
        facts["code_means"] = CODES[code].row.means.removesuffix(".")
    return facts


def _facts(part: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(part) if name}
