"""The worker's life as data.

    spawning --promote--> active <--> idle --> terminating --> terminated
        +-------------------+----------+-----------^   from any live state, with a reason

A worker row is written before its pod is asked for, so a row may outlive every crash and a pod may not outlive its row.
`terminated` is final and means that the provider confirmed the pod's absence, or that no pod was ever created. No
heartbeat changes a state. The same transitions stand in the table `worker_transitions`, where a trigger refuses any
other; a test holds the two equal. The diagram in ARCHITECTURE.md is generated from TRANSITIONS.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class State(StrEnum):
    """`workers.status`."""

    SPAWNING = "spawning"  # intent recorded; climbing the ladder; has a deadline
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
    """`workers.stage`: the step being climbed (spawning) or taken (terminating) right now."""

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
    PROMOTED = "promoted"  # the ladder is complete: active and idle workers stay here
    DRAINING = "draining"  # finishing tasks, at most the grace
    FLUSHING = "flushing"  # agent stopped, last log bytes on their way to S3
    DELETING = "deleting"  # delete call sent, or about to be
    GONE = "gone"  # absence proven


@dataclass(frozen=True, slots=True)
class Rung:
    """One stage of bring-up: how long it may take, and what it is called when it takes longer."""

    stage: Stage
    deadline_s: float
    overdue: "FailureCode"  # the code when the deadline passes without a better one
    waiting_on: "WaitingOn"


class WaitingOn(StrEnum):
    """`workers.waiting_on`: who must act next."""

    ORCHESTRATOR = "orchestrator"
    PROVIDER = "provider"
    WORKER = "worker"
    OPERATOR = "operator"
    CAPACITY = "capacity"
    BUDGET = "budget"


class ExitCause(StrEnum):
    """`workers.exit_cause`; FAILURES except TASK_STUCK feed the breaker."""

    IDLE_TIMEOUT = "idle_timeout"
    SCALE_DOWN = "scale_down"
    MANUAL = "manual"
    SHUTDOWN = "shutdown"
    MAX_LIFETIME = "max_lifetime"
    BUDGET = "budget"
    SUPERSEDED = "superseded"
    SPAWN_FAILED = "spawn_failed"
    HEARTBEAT_LOST = "heartbeat_lost"
    TASK_STUCK = "task_stuck"
    GPU_FAULT = "gpu_fault"
    HOST_FAULT = "host_fault"
    POD_LOST = "pod_lost"
    STALE_CODE = "stale_code"
    AGENT_CRASHED = "agent_crashed"
    WORKER_SICK = "worker_sick"  # its tasks failed one after the other, and those of other workers did not
    RELEASE_BAD = "release_bad"  # … and so did those of other workers of its release


FAILURES = frozenset(
    {
        ExitCause.SPAWN_FAILED,
        ExitCause.HEARTBEAT_LOST,
        ExitCause.TASK_STUCK,
        ExitCause.GPU_FAULT,
        ExitCause.HOST_FAULT,
        ExitCause.POD_LOST,
        ExitCause.STALE_CODE,
        ExitCause.AGENT_CRASHED,
        ExitCause.WORKER_SICK,
        ExitCause.RELEASE_BAD,
    }
)


class FailureCode(StrEnum):
    """`workers.failure_code` and `worker_attempts.failure_code`: what went wrong, in one word.

    Besides the names below there is one code per NVIDIA Xid number: `FailureCode("XID_79")`.
    """

    INTENT_STALE = "INTENT_STALE"  # recorded, but nobody asked the provider in time
    NO_CAPACITY = "NO_CAPACITY"
    QUOTA = "QUOTA"
    BALANCE = "BALANCE"
    API_AUTH = "API_AUTH"
    BAD_SPEC = "BAD_SPEC"  # the provider rejected the request itself (unknown image, field or data centre)
    CREATE_UNKNOWN = "CREATE_UNKNOWN"  # no clear answer to the create call, and no pod of that name
    NO_RUNTIME = "NO_RUNTIME"
    IMAGE_PULL_SLOW = "IMAGE_PULL_SLOW"  # the pod's own log shows that its image is still coming
    POD_EXITED = "POD_EXITED"
    POD_ERROR = "POD_ERROR"
    POD_MISSING = "POD_MISSING"  # it was there, and two complete lists no longer show it
    SSH_DETAILS_MISSING = "SSH_DETAILS_MISSING"
    TCP_REFUSED = "TCP_REFUSED"
    TCP_TIMEOUT = "TCP_TIMEOUT"
    NOT_SSH = "NOT_SSH"
    HOST_KEY_CHANGED = "HOST_KEY_CHANGED"
    HOST_KEY_UNPROVEN = "HOST_KEY_UNPROVEN"  # what answers does not prove that it is the pod
    HOST_KEY_RELAYED = "HOST_KEY_RELAYED"  # the pod answers, through a machine with a host key of its own
    AUTH_FAILED = "AUTH_FAILED"
    EXEC_FAILED = "EXEC_FAILED"
    POD_MISMATCH = "POD_MISMATCH"
    DISK = "DISK"  # too little room where the agent works
    INODES = "INODES"
    CLOCK_SKEW = "CLOCK_SKEW"
    GPU_NOT_ATTACHED = "GPU_NOT_ATTACHED"  # nvidia-smi is absent, fails, hangs, or shows none
    GPU_COUNT = "GPU_COUNT"
    GPU_TYPE = "GPU_TYPE"
    GPU_MEMORY = "GPU_MEMORY"
    ECC = "ECC"  # uncorrected errors, or memory that waits to be remapped
    GPU_BUSY = "GPU_BUSY"  # memory is taken, and no program on the pod has it
    DRIVER_TOO_OLD = "DRIVER_TOO_OLD"  # for the CUDA version of the image
    NVLINK_INACTIVE = "NVLINK_INACTIVE"
    NVLINK_DEGRADED = "NVLINK_DEGRADED"  # fewer links than GPUs of this type have
    STALE_CODE = "STALE_CODE"
    SETUP_FAILED = "SETUP_FAILED"  # WORKER_SETUP_COMMAND ended with an error
    NO_PROCESS = "NO_PROCESS"
    NO_HEARTBEAT = "NO_HEARTBEAT"
    HOST_AVOIDED = "HOST_AVOIDED"  # the pod landed on a machine that failed lately, and was given back
    TASKS_FAIL_HERE = "TASKS_FAIL_HERE"  # in a row, while other workers complete tasks of these types
    TASKS_FAIL_EVERYWHERE = "TASKS_FAIL_EVERYWHERE"  # in a row, on several workers of this release
    TASKS_FAIL_UNJUDGED = "TASKS_FAIL_UNJUDGED"  # in a row, and no other worker gave a second opinion in time
    DISK_FULL = "DISK_FULL"  # the agent reports too little free space to begin a task
    CONNECTION_LOST = "CONNECTION_LOST"  # the SSH connection broke in the middle of a stage

    @classmethod
    def xid(cls, number: int) -> Self:
        """The code of an Xid, as the NVIDIA driver numbers its errors."""
        return cls(f"XID_{number}")

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str) or not _XID.fullmatch(value):
            return None
        code = str.__new__(cls, value)
        code._name_ = code._value_ = value
        return code


_XID = re.compile(r"XID_[1-9][0-9]{0,3}")


LADDER: tuple[Rung, ...] = (
    Rung(Stage.INTENT, 30, FailureCode.INTENT_STALE, WaitingOn.ORCHESTRATOR),
    Rung(Stage.POD_CREATED, 60, FailureCode.CREATE_UNKNOWN, WaitingOn.PROVIDER),
    Rung(Stage.POD_RUNNING, 600, FailureCode.NO_RUNTIME, WaitingOn.PROVIDER),
    Rung(Stage.SSH_DETAILS, 60, FailureCode.SSH_DETAILS_MISSING, WaitingOn.PROVIDER),
    Rung(Stage.TCP, 60, FailureCode.TCP_TIMEOUT, WaitingOn.PROVIDER),
    Rung(Stage.SSH_AUTH, 45, FailureCode.AUTH_FAILED, WaitingOn.OPERATOR),
    Rung(Stage.EXEC, 20, FailureCode.EXEC_FAILED, WaitingOn.WORKER),
    Rung(Stage.IDENTITY, 10, FailureCode.POD_MISMATCH, WaitingOn.WORKER),
    Rung(Stage.PLATFORM, 30, FailureCode.EXEC_FAILED, WaitingOn.WORKER),
    Rung(Stage.GPU_INVENTORY, 30, FailureCode.GPU_NOT_ATTACHED, WaitingOn.WORKER),
    Rung(Stage.GPU_HEALTH, 30, FailureCode.GPU_NOT_ATTACHED, WaitingOn.WORKER),
    Rung(Stage.GPU_FABRIC, 30, FailureCode.NVLINK_INACTIVE, WaitingOn.WORKER),
    Rung(Stage.DEPLOY, 120, FailureCode.STALE_CODE, WaitingOn.ORCHESTRATOR),
    Rung(Stage.PROCESS, 60, FailureCode.NO_PROCESS, WaitingOn.WORKER),
    Rung(Stage.HEARTBEAT, 60, FailureCode.NO_HEARTBEAT, WaitingOn.WORKER),
)

RUNGS = {rung.stage: rung for rung in LADDER}
