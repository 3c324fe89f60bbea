"""Trials of the failure codes that no pod is born with: what an operator, the market or a machine's history does."""

import asyncio
import time

from orchestrator.core.failures import FailureCode
from tests.proofs.fault_matrix.environment import Environment, NotWithin
from tests.proofs.fault_matrix.infrastructure import ASKING
from tests.proofs.fault_matrix.provider import ACCEPTED_LATER, REPLACED, WAVE, until_named
from tests.proofs.fault_matrix.runner import Case

SPAWNING_S = 12  # SPAWNING_TIMEOUT_SEC where it is to pass
AWAY_S = 20  # longer than that, and longer than the lease of a leader
NAMED_AGAIN_S = 10.0  # the bar for what a new leader finds
DRY_S = 20.0
DRY_CALLS = 4  # of two workers at two offers, each of which then cools down for longer than it is dry
MACHINE = "m-17"
ENDED = "select 1 from workers where failure_code = %s"
OLDER = "select 1 from workers where stage = 'intent' and created_at < now() - %s * interval '1 s'"


async def unasked(env: Environment) -> None:
    """An operator records a worker while nobody leads, and nobody does for longer than a bring-up may take."""
    await env.under_way()
    await env.orchestrators[0].kill()
    await env.stack.run("spawn")
    env.mark_fault()
    await env.named()
    await env.until(OLDER, AWAY_S)
    await env.start_orchestrator()
    began = time.monotonic()
    await env.until(ENDED, FailureCode.INTENT_STALE)
    env.figure("called INTENT_STALE", time.monotonic() - began, NAMED_AGAIN_S)


async def misconfigured(env: Environment) -> None:
    """Every worker's set-up fails, until an operator corrects the command."""
    env.mark_fault()
    await env.named()
    await env.orchestrators[0].stop()
    env.stack.environment["WORKER_SETUP_COMMAND"] = "true"
    await env.start_orchestrator()


async def dry(env: Environment) -> None:
    """No offer has stock, for longer than a worker may wait for it."""
    await env.named()
    await env.until(ENDED, FailureCode.NO_CAPACITY)
    await asyncio.sleep(max(0.0, env.fault_at + DRY_S - time.time()))
    calls = (await env.stack.control("GET", "ledger"))["calls"]["POST /v2/pods"]
    if calls > DRY_CALLS:
        raise NotWithin(f"{calls} create calls in {DRY_S:.0f} s of a dry market, more than {DRY_CALLS}")


async def met_again(env: Environment) -> None:
    """A machine shows that its memory is bad, and the next pods come up on it too."""
    await env.until(ENDED, FailureCode.ECC)
    await env.stack.control("DELETE", "faults")
    await env.fault("same_machine", detail=MACHINE, times=WAVE)
    await env.faults_applied()
    await env.named()


CODES: tuple[Case, ...] = (
    Case("intent_unasked", "a worker is asked for while nobody leads", "given up by the next leader; the work goes on",
          "WAITING ON orchestrator: the request for its pod", unasked, ends_as=(FailureCode.INTENT_STALE,),
          may_end_as=ASKING,
          settings={"SPAWNING_TIMEOUT_SEC": str(SPAWNING_S)}),
    Case("create_unauthorized", "401 to every create, and to nothing else", ACCEPTED_LATER, "API_AUTH", until_named,
          faults=({"kind": "unauthorized", "operation": "create"},), ends_as=(FailureCode.API_AUTH,)),
    Case("create_forbidden", "403 to every create, and to nothing else", ACCEPTED_LATER, "API_AUTH", until_named,
          faults=({"kind": "forbidden", "operation": "create"},), ends_as=(FailureCode.API_AUTH,)),
    Case("setup_command", "WORKER_SETUP_COMMAND=false", "corrected and redeployed; the work goes on", "SETUP_FAILED",
          misconfigured, settings={"WORKER_SETUP_COMMAND": "false"}, ends_as=(FailureCode.SETUP_FAILED,),
          may_end_as=ASKING, pods=8),
    Case("dry_market", "no stock of either GPU type for 20 s", "few calls; rented when there is stock", "NO_CAPACITY",
          dry, faults=({"kind": "no_capacity"},), ends_as=(FailureCode.NO_CAPACITY,), limit_s=180,
          settings={"RUNPOD_GPU_TYPE": "NVIDIA GeForce RTX 4090,NVIDIA L40S", "SPAWNING_TIMEOUT_SEC": str(SPAWNING_S)}),
    Case("same_machine", "bad memory, and the same machine once more", "given back; " + REPLACED, "HOST_AVOIDED",
          met_again, faults=({"kind": "ecc_errors", "times": WAVE},
                             {"kind": "same_machine", "detail": MACHINE, "times": WAVE}),
          ends_as=(FailureCode.ECC, FailureCode.HOST_AVOIDED), pods=8),
)  # fmt: skip
