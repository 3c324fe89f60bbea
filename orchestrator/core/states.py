"""The states of a worker and their transitions, as data.

    spawning --promote--> active <--> idle --> terminating --> terminated
        +-------------------+----------+-----------^   from any live state, with a reason

A worker's row is written before the create call of its pod, so every pod has a row, also after a crash.
`terminated` is final: RunPod confirms that the pod is gone, or no pod was ever created. No heartbeat changes a state.
The table `worker_transitions` has the same transitions, and a trigger rejects every other; a test compares the two. The
diagram in ARCHITECTURE.md is generated from TRANSITIONS.
"""

from enum import StrEnum

from orchestrator.core import meanings
from orchestrator.core.meanings import Explained, Meaning


class State(StrEnum):
    """`workers.status`."""

    SPAWNING = "spawning"  # the intent is recorded, and the bring-up runs until its deadline
    ACTIVE = "active"  # ready; holds a task, or has not claimed since its promotion
    IDLE = "idle"  # ready; claimed, and there was no task; state_since begins the idle timeout
    TERMINATING = "terminating"  # gets no new task; draining, flushing or deleting
    TERMINATED = "terminated"  # final


TRANSITIONS: frozenset[tuple[State, State]] = frozenset(
    {
        (State.SPAWNING, State.ACTIVE),
        (State.SPAWNING, State.TERMINATING),
        (State.ACTIVE, State.IDLE),
        (State.ACTIVE, State.TERMINATING),
        (State.IDLE, State.ACTIVE),
        (State.IDLE, State.TERMINATING),
        (State.TERMINATING, State.TERMINATED),
    }
)

READY = frozenset({State.ACTIVE, State.IDLE})  # capacity
LIVE = frozenset({State.SPAWNING, State.ACTIVE, State.IDLE, State.TERMINATING})


class Stage(StrEnum):
    """`workers.stage`: the current stage of bring-up (spawning) or of ending (terminating)."""

    INTENT = "intent"  # row and reservation committed; no create call sent yet
    POD_CREATED = "pod_created"  # a create call was sent; no pod id yet
    POD_RUNNING = "pod_running"
    SSH_DETAILS = "ssh_details"
    TCP = "tcp"
    SSH_AUTH = "ssh_auth"
    EXEC = "exec"
    IDENTITY = "identity"
    PLATFORM = "platform"
    GPU_INVENTORY = "gpu_inventory"
    GPU_HEALTH = "gpu_health"
    GPU_FABRIC = "gpu_fabric"  # only with several GPUs
    DEPLOY = "deploy"
    PROCESS = "process"
    HEARTBEAT = "heartbeat"
    PROMOTED = "promoted"  # the bring-up is complete: the stage of active and idle workers
    DRAINING = "draining"  # finishing tasks, for the grace period at most
    FLUSHING = "flushing"  # the agent is stopped; the rest of the logs is being shipped to S3
    DELETING = "deleting"  # the delete call is sent, or will be
    GONE = "gone"  # RunPod confirms that the pod is gone


class WaitingOn(Explained):
    """`workers.waiting_on`: who must act next."""

    row: Meaning

    # fmt: off
    ORCHESTRATOR = meanings.ORCHESTRATOR, Meaning(
        "The orchestrator must act.", meanings.ORCHESTRATOR, "the next tick acts",
        "python -m orchestrator run, if none leads")
    PROVIDER = meanings.PROVIDER, Meaning(
        "RunPod must act.", meanings.PROVIDER, "RunPod is asked again every few seconds, until the deadline",
        "python -m orchestrator status <worker>")
    WORKER = meanings.WORKER, Meaning(
        "The worker must act.", meanings.WORKER, "its heartbeats show progress", meanings.LOGS)
    OPERATOR = meanings.OPERATOR, Meaning(
        "A person must correct something.", meanings.OPERATOR, "it is tried again until the deadline, then given up",
        meanings.MORE)
    CAPACITY = meanings.CAPACITY, Meaning(
        "Every offer was refused recently.", meanings.CAPACITY, "the first one whose cool-down ends is asked again",
        "add to RUNPOD_GPU_TYPE or RUNPOD_DATA_CENTERS; python -m orchestrator explain scaling")
    BUDGET = meanings.BUDGET, Meaning(
        "The budget does not allow another worker now.", meanings.BUDGET, "it is started when the budget allows it",
        "raise DAILY_BUDGET_USD or MAX_HOURLY_COST_USD; python -m orchestrator cost")
    # fmt: on
