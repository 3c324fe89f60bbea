"""The worker's life as data.

    spawning --promote--> active <--> idle --> terminating --> terminated
        +-------------------+----------+-----------^   from any live state, with a reason

A worker row is written before its pod is asked for, so a row may outlive every crash and a pod may not outlive its row.
`terminated` is final and means that the provider confirmed the pod's absence, or that no pod was ever created. No
heartbeat changes a state. The same transitions stand in the table `worker_transitions`, where a trigger refuses any
other; a test holds the two equal. The diagram in ARCHITECTURE.md is generated from TRANSITIONS.
"""

from enum import StrEnum

from orchestrator.core import meanings
from orchestrator.core.meanings import Explained, Meaning


class State(StrEnum):
    """`workers.status`."""

    SPAWNING = "spawning"  # intent recorded; bring-up under way; has a deadline
    ACTIVE = "active"  # verified; holds a task, or has not asked for one since promotion
    IDLE = "idle"  # verified, asked, holds nothing; state_since is the idle clock
    TERMINATING = "terminating"  # takes no new task; finishing, flushing, being deleted or proven absent
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

READY = frozenset({State.ACTIVE, State.IDLE})  # verified capacity
LIVE = frozenset({State.SPAWNING, State.ACTIVE, State.IDLE, State.TERMINATING})


class Stage(StrEnum):
    """`workers.stage`: the current stage of bring-up (spawning) or of ending (terminating)."""

    INTENT = "intent"  # row and reservation committed; no create call sent yet
    POD_CREATED = "pod_created"  # a create call is or was under way; no pod id yet
    POD_RUNNING = "pod_running"
    SSH_DETAILS = "ssh_details"
    TCP = "tcp"
    SSH_AUTH = "ssh_auth"
    EXEC = "exec"
    IDENTITY = "identity"
    PLATFORM = "platform"
    GPU_INVENTORY = "gpu_inventory"
    GPU_HEALTH = "gpu_health"
    GPU_FABRIC = "gpu_fabric"  # only where there are several GPUs
    DEPLOY = "deploy"
    PROCESS = "process"
    HEARTBEAT = "heartbeat"
    PROMOTED = "promoted"  # bring-up is complete: active and idle workers stay here
    DRAINING = "draining"  # finishing tasks, at most the grace
    FLUSHING = "flushing"  # agent stopped, last log bytes on their way to S3
    DELETING = "deleting"  # delete call sent, or about to be
    GONE = "gone"  # absence proven


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
