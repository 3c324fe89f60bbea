"""Trials of workers on which every task fails, for five causes, and of a release that fails everywhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.core.failures import FailureCode
from tests.proofs.fault_matrix.environment import Environment, NotWithin
from tests.proofs.fault_matrix.provider import POD_PYTHON, until_applied
from tests.proofs.fault_matrix.runner import BOOT_S, Act, Case

HANDLERS = {
    "WORKER_HANDLERS": "work=cmd:python3 ./render.py",
    "WORKER_CODE_DIR": str(Path(__file__).parent / "handlers"),
}
GOOD, BAD = "work=cmd:sh -c 'sleep 0.8'", "work=cmd:sh -c 'echo no such model; exit 1'"
FILLS_S = 8.0  # after RUNNING: its bring-up has passed the check of the disk
HELD_BACK = r"different tasks failed in a row"
ALL_FAIL = """
    select 1 from decisions where blocked @> '[{"kind": "breaker_open"}]'
        and (select count(*) from workers where held_back is not null) > 1
"""
SICK = "a second worker gives its opinion; the sick one is replaced"
LIMIT_S = 180  # a failed task waits for half a minute
TASKS = 80  # so that the second worker still has work when the failed ones come back
PODS = 8


def lose_gpu(home: Path) -> None:
    """nvidia-smi can no longer reach the GPU."""
    (home.parent / "smi").write_text("lost\n")


def lose_library(home: Path) -> None:
    """A module of the deployed code is gone."""
    [library] = home.glob(".orchestrator/code/user-*/kernels.py")
    library.unlink()


def break_model(home: Path) -> None:
    """The model file is cut off."""
    [model] = home.glob(".orchestrator/code/user-*/model.txt")
    model.write_text(model.read_text()[:9])


def lose_network(home: Path) -> None:
    """Nothing answers where the pod looks for the inputs."""
    (home / ".hosts").write_text("127.0.0.1 9\n")


def sickened(damage: Callable[[Path], None]) -> Act:
    """Something breaks on one busy pod; it is named, and the worker ends."""

    async def act(env: Environment) -> None:
        busy = await env.busy()
        [pod] = [p for p in (await env.stack.control("GET", "ledger"))["pods"] if p["id"] == busy["pod"]]
        env.mark_fault()
        damage(Path(pod["home"]))
        await env.named()
        await env.until("select 1 from workers where id = %s and exit_cause = 'worker_sick'", busy["worker"])

    return act


async def corrected(env: Environment) -> None:
    """A release fails every task; once it is said that all of its workers fail, the next one is deployed."""
    await env.until("select 1 from task_attempts where outcome = 'failed'")
    env.mark_fault()
    await env.named()
    await env.until(ALL_FAIL, timeout_s=120)
    strikes = await env.rows("select key from hosts")
    if strikes:
        raise NotWithin(f"{len(strikes)} host(s) are blamed for the release")
    env.stack.environment["WORKER_HANDLERS"] = GOOD
    await env.orchestrators[0].stop()
    await env.start_orchestrator()


def _sick(name: str, description: str, damage: Callable[[Path], None], **more: Any) -> Case:
    more = {"outcome": SICK, "ends_as": (FailureCode.TASKS_FAIL_HERE,), "settings": HANDLERS, "tasks": TASKS, **more}
    return Case(name, description, says=HELD_BACK, act=sickened(damage), pods=PODS, limit_s=LIMIT_S, **more)


SICK_WORKERS: tuple[Case, ...] = (
    _sick("sick_gpu", "a busy pod loses its GPU: each task fails in milliseconds", lose_gpu, quick=True),
    _sick("sick_library", "a library is gone on a busy pod", lose_library),
    _sick("sick_model", "a model file is cut off on a busy pod", break_model),
    _sick("sick_network", "a busy pod cannot reach the store of the inputs", lose_network),
    _sick("sick_alone", "the only worker that is allowed loses its GPU", lose_gpu,
          outcome="replaced once its next tasks fail too; its successor does the work",
          ends_as=(FailureCode.TASKS_FAIL_UNJUDGED,),
          settings={**HANDLERS, "MAX_ACTIVE_GPUS": "1"}, tasks=24),
    Case("disk_fills", "the disk of one pod becomes full", "it claims nothing, and is replaced after 30 s",
          "DISK_FULL: ", until_applied, faults=({"kind": "disk_fills", "times": 1, "seconds": FILLS_S},),
          settings=POD_PYTHON, ends_as=(FailureCode.DISK_FULL,), after_s=BOOT_S[0] + FILLS_S, pods=PODS),
    Case("release_bad", "every task of a release fails, on each worker",
          "no worker ends, no host is blamed; the next release does it", HELD_BACK, corrected,
          settings={"WORKER_HANDLERS": BAD}, pods=PODS, limit_s=LIMIT_S),
)  # fmt: skip
