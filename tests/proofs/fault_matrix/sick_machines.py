"""Trials of machines that fail while a task runs: the agent's finding ends the worker (docs/gpu-guards.md)."""

from typing import Any

from orchestrator.core.failures import FailureCode
from tests.proofs.fault_matrix.environment import UNTIL_S, Environment
from tests.proofs.fault_matrix.provider import A100, POD_PYTHON
from tests.proofs.fault_matrix.runner import Act, Case
from worker.nvidia_smi import LIMIT_S
from worker.signs import LOOK_S

REPLACED = "replaced at once; its task runs elsewhere, and the attempt does not count"
IDLE_S = "110"  # five questions and two checks without an answer take 75 s
ENDED = "select 1 from workers where id = %s and exit_cause = 'gpu_fault'"


def _machine(ends_s: float = UNTIL_S, **becomes: Any) -> Act:
    """The machine of one busy pod becomes sick; the cause is named, and the worker ends."""

    async def act(env: Environment) -> None:
        busy = await env.busy()
        env.mark_fault()
        await env.stack.control("POST", f"pods/{busy['pod']}/machine", becomes)
        await env.named()
        await env.until(ENDED, busy["worker"], timeout_s=ends_s)

    return act


def _sick(name: str, description: str, code: FailureCode, **becomes: Any) -> Case:
    settings = {**A100, **POD_PYTHON}  # it has ECC, and its agent reads the pod's own machine
    act = _machine(**becomes)
    return Case(name, description, REPLACED, f"{code}: ", act, settings=settings, ends_as=(code,), pods=8)


def _hung(name: str, description: str, **becomes: Any) -> Case:
    """Its driver hangs: it is named before the worker is checked and replaced, and the running task goes on."""
    outcome, code = "named; its task goes on; then it is checked and replaced", FailureCode.GPU_HUNG
    settings = {**A100, **POD_PYTHON, "GPU_IDLE_TIMEOUT_SEC": IDLE_S, "GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC": IDLE_S}
    act = _machine(120, **becomes)
    return Case(name, description, outcome, "SIGNAL_LOST: nvidia_smi", act, settings=settings, ends_as=(code,), pods=8,
                after_s=LOOK_S + LIMIT_S, limit_s=240)  # fmt: skip


SICK_MACHINES: tuple[Case, ...] = (
    _sick("machine_xid", "Xid 79 in the kernel log of a busy pod", FailureCode.xid(79), faults={"xid": "79"}),
    _sick("machine_gpu_lost", "the driver cannot reach the GPU of a busy pod", FailureCode.GPU_LOST,
          faults={"gpu_lost": ""}),
    _sick("machine_gpu_gone", "a GPU of a busy pod disappears", FailureCode.GPU_COUNT_DROPPED,
          faults={"gpu_missing": ""}),
    _sick("machine_ecc", "uncorrected memory errors on a busy pod", FailureCode.ECC_UNCORRECTED,
          faults={"ecc_errors": ""}),
    _sick("machine_recovery", "the driver of a busy pod wants a reset", FailureCode.GPU_RECOVERY,
          gpus={"gpu_recovery_action": "Reset"}),
    _hung("machine_smi_hangs", "nvidia-smi hangs on a busy pod", faults={"smi_hangs": ""}),
)  # fmt: skip
