"""The actions of a plan: a closed union of frozen dataclasses.

Each action names its worker or pod and the reason. execute.py executes it with compare-and-set against the states in
the action, so an action of an outdated plan has no effect.
"""

import re
from dataclasses import dataclass
from datetime import datetime

from orchestrator.core.blocked import Blocked
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.provider import Offer
from orchestrator.core.states import State


@dataclass(frozen=True, slots=True)
class Spawn:
    """Record the intent for a new worker of a pool, then ask the provider for its pod."""

    worker_id: str
    pool: str
    offer: Offer
    reason: str
    usd_per_hour: float | None = None  # the offer's price, if known: the amount that is reserved
    cluster: str | None = None  # the Slurm cluster that reserves the worker


@dataclass(frozen=True, slots=True)
class Create:
    """Ask the provider for the pod of a recorded intent (an operator's request, or a retry after a refusal)."""

    worker_id: str
    pool: str
    offer: Offer
    reason: str
    usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """Assign a pod that has a live intent's id to the intent's row: the reply to the create call was lost."""

    worker_id: str
    pod_id: str
    reason: str
    usd_per_hour: float | None = None
    billed_s: float = 0  # seconds since the create call, for which the pod may have cost money


@dataclass(frozen=True, slots=True)
class ContinueBringUp:
    """Start the bring-up of a spawning worker with a pod, unless it runs in this process already."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Record which party a worker waits for, if that has changed."""

    worker_id: str
    from_state: State
    waiting_on: str
    waiting_for: str
    until_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True)
class UpdateAddress:
    """Record the pod's SSH address as the provider's list shows it. A restart changes the ports of a pod."""

    worker_id: str
    from_state: State
    host: str
    port: int
    reason: str


@dataclass(frozen=True, slots=True)
class SetActivity:
    """Move a worker that runs its own program between active and idle, according to its tasks."""

    worker_id: str
    from_state: State
    to_state: State
    reason: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Move a live worker to terminating: from this statement on, it gets no new task."""

    worker_id: str
    from_state: State
    cause: ExitCause
    code: FailureCode | None
    reason: str
    # For a missing pod: when a list last showed it, or when the first list lacked it. It cost money until then at most,
    # and the budget counts the most that may have been spent.
    listed_at: datetime | None = None
    blames_host: bool = True  # whether a code that blames the host or the place may count against it


@dataclass(frozen=True, slots=True)
class AskPod:
    """Ask a silent worker's pod over SSH whether its agent calls and gets no answer."""

    worker_id: str
    reason: str
    others_are_heard: bool  # most other workers are: this process has a network


@dataclass(frozen=True, slots=True)
class Flush:
    """Stop the agent of a terminating worker and ship the rest of its logs."""

    worker_id: str
    reachable: bool  # False: the pod is gone; declare the unshipped logs as lost
    reason: str
    final: bool = False  # continue with the delete, also after a failure


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the pod of a terminating worker."""

    worker_id: str
    pod_id: str
    reason: str
    listed: bool = True  # False: the last list lacked it, so lists without it prove less afterwards


@dataclass(frozen=True, slots=True)
class MarkTerminated:
    """Move a terminating worker to terminated: RunPod confirms that its pod is gone."""

    worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteOrphan:
    """Delete a pod of this fleet that no live row names."""

    pod_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rescue:
    """Requeue the tasks whose lease has expired. The attempt counts."""

    reason: str
    # the leases must have expired for at least so many seconds, because no agent could renew one meanwhile
    over_s: float = 0


# actions with a call to the outside world, after the row is written
Effect = Spawn | Create | AskPod | Flush | Delete | MarkTerminated | DeleteOrphan
Action = Effect | Adopt | ContinueBringUp | UpdateAddress | Wait | SetActivity | Terminate | Rescue


def kind_of(action: type[Action]) -> str:
    """The name of a kind of action in logs and JSON: `mark_terminated`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", action.__name__).lower()


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """The decision row of one pool: its size and the reasons."""

    pool: str
    rule: str  # the formula with its numbers
    target: int
    inputs: dict[str, object]  # decision_text.py makes a sentence of them
    blocked: tuple[Blocked, ...]  # wanted actions that are blocked, and the reasons
    review_at: datetime | None = None  # when to decide again, if nothing happens before

    @property
    def retry_at(self) -> datetime | None:
        """Return when the first blocked action may continue."""
        return min((reason.until for reason in self.blocked if reason.count and reason.until), default=None)


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of one tick's planning."""

    actions: tuple[Action, ...]
    decisions: tuple[PoolDecision, ...]
