"""The stages of bring-up in order: each with its deadline, its failure code, and the party that must act."""

from dataclasses import dataclass

from orchestrator.core.failures import FailureCode
from orchestrator.core.states import Stage, WaitingOn


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage of bring-up."""

    stage: Stage
    deadline_s: float
    overdue: FailureCode  # the code when the deadline passes without a more precise one
    waiting_on: WaitingOn


BRING_UP: tuple[StageSpec, ...] = (
    StageSpec(Stage.INTENT, 30, FailureCode.INTENT_STALE, WaitingOn.ORCHESTRATOR),
    StageSpec(Stage.POD_CREATED, 60, FailureCode.CREATE_UNKNOWN, WaitingOn.PROVIDER),
    StageSpec(Stage.POD_RUNNING, 600, FailureCode.NO_RUNTIME, WaitingOn.PROVIDER),
    StageSpec(Stage.SSH_DETAILS, 60, FailureCode.SSH_DETAILS_MISSING, WaitingOn.PROVIDER),
    StageSpec(Stage.TCP, 60, FailureCode.TCP_TIMEOUT, WaitingOn.PROVIDER),
    StageSpec(Stage.SSH_AUTH, 45, FailureCode.AUTH_FAILED, WaitingOn.OPERATOR),
    StageSpec(Stage.EXEC, 20, FailureCode.EXEC_FAILED, WaitingOn.WORKER),
    StageSpec(Stage.IDENTITY, 10, FailureCode.POD_MISMATCH, WaitingOn.WORKER),
    StageSpec(Stage.PLATFORM, 30, FailureCode.EXEC_FAILED, WaitingOn.WORKER),
    StageSpec(Stage.GPU_INVENTORY, 30, FailureCode.GPU_NOT_ATTACHED, WaitingOn.WORKER),
    StageSpec(Stage.GPU_HEALTH, 30, FailureCode.GPU_NOT_ATTACHED, WaitingOn.WORKER),
    StageSpec(Stage.GPU_FABRIC, 30, FailureCode.NVLINK_INACTIVE, WaitingOn.WORKER),
    StageSpec(Stage.DEPLOY, 120, FailureCode.STALE_CODE, WaitingOn.ORCHESTRATOR),
    StageSpec(Stage.PROCESS, 60, FailureCode.NO_PROCESS, WaitingOn.WORKER),
    StageSpec(Stage.HEARTBEAT, 60, FailureCode.NO_HEARTBEAT, WaitingOn.WORKER),
)
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0)  # between two attempts at a stage; the last one repeats
STAGE_SPECS = {spec.stage: spec for spec in BRING_UP}
