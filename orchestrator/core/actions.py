"""What a plan consists of: a closed union of frozen dataclasses.

Each names the worker or pod it is about and why; execute.py carries each out with compare-and-set against the states
named here, so that a plan made from an old snapshot does nothing rather than the wrong thing.
"""

import re
from dataclasses import dataclass
from datetime import datetime

from orchestrator.core.blocked import Blocked
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Offer
from orchestrator.core.states import State


@dataclass(frozen=True, slots=True)
class Spawn:
    """Record the intent for a new worker of a pool, then ask the provider for its pod."""

    worker_id: str
    pool: str
    offer: Offer
    reason: str
    usd_per_hour: float | None = None  # the offer's price, as far as it is known: what is reserved


@dataclass(frozen=True, slots=True)
class Create:
    """Ask the provider for the pod of an intent that exists already (an operator's, or one refused elsewhere)."""

    worker_id: str
    pool: str
    offer: Offer
    reason: str
    usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """Give a pod that bears a live intent's id to its row: the reply to the create call was lost."""

    worker_id: str
    pod_id: str
    reason: str
    usd_per_hour: float | None = None
    billed_s: float = 0  # for so long it may have cost money unseen: since it was asked for


@dataclass(frozen=True, slots=True)
class ContinueBringUp:
    """Make sure that the bring-up of a spawning worker with a pod is under way in this process."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Write down whom a worker waits for, when that has changed."""

    worker_id: str
    from_state: State
    waiting_on: str
    waiting_for: str
    until_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class UpdateAddress:
    """Write down where the provider's list shows SSH to a worker's pod now; a restart gives a pod other ports."""

    worker_id: str
    from_state: State
    host: str
    port: int
    reason: str


@dataclass(frozen=True, slots=True)
class SetActivity:
    """Move a worker that runs its own program between active and idle, by what it holds."""

    worker_id: str
    from_state: State
    to_state: State
    reason: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Move a live worker to terminating: it takes no new task from this statement on."""

    worker_id: str
    from_state: State
    cause: ExitCause
    code: FailureCode | None
    reason: str
    # When a list last showed a pod that is missing, or where none of ours did, first did not: it cost money until then
    # at most, and a budget is kept by what may have been spent.
    listed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Flush:
    """Stop the agent of a terminating worker and ship the rest of its logs."""

    worker_id: str
    reachable: bool  # False: the pod is gone; declare what was not shipped
    reason: str
    final: bool = False  # on to the delete, whatever comes of it


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the pod of a terminating worker."""

    worker_id: str
    pod_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class MarkTerminated:
    """Move a terminating worker whose pod is proven absent to terminated."""

    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteOrphan:
    """Delete a pod of this fleet that no live row names."""

    pod_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rescue:
    """Requeue the tasks whose lease ran out, the attempt counted."""

    reason: str
    over_s: float = 0  # for at least so long: meanwhile nobody could have renewed one


Effect = Spawn | Create | Flush | Delete | MarkTerminated | DeleteOrphan  # what takes the world, once it is written
Action = Effect | Adopt | ContinueBringUp | UpdateAddress | Wait | SetActivity | Terminate | Rescue


def kind_of(action: type[Action]) -> str:
    """The name of a kind of action in logs and JSON: `mark_terminated`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", action.__name__).lower()


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """Why one pool is the size it is: the decision row."""

    pool: str
    rule: str  # the formula with its numbers
    target: int
    inputs: dict[str, object]
    blocked: tuple[Blocked, ...]  # what is wanted and not done, and why

    @property
    def retry_at(self) -> datetime | None:
        """When the first of what is blocked may go on."""
        return min((reason.until for reason in self.blocked if reason.count and reason.until), default=None)


@dataclass(frozen=True, slots=True)
class Plan:
    """The outcome of one tick's thinking."""

    actions: tuple[Action, ...]
    decisions: tuple[PoolDecision, ...]
