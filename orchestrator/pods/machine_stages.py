"""The stages between identity and deploy: whether the machine is the rented one, and healthy.

probe_scripts.py holds the probes; core/machine_checks.py, core/gpus.py and core/interconnect.py check their output.
No stage tests stdin separately: the probes arrive over stdin, and the stage `process` fails unless the agent reads its
configuration, with the token, from stdin and writes it to a private file.
"""

import asyncio
import itertools
import time

from orchestrator.core import gpus, interconnect
from orchestrator.core.failures import FailureCode
from orchestrator.core.images import cuda_of
from orchestrator.core.machine_checks import NOTHING, CheckResult, Sections, platform, sections
from orchestrator.pods import agent_control, probe_scripts
from orchestrator.pods.agent_commands import LaunchConfig
from orchestrator.pods.agent_control import StageFailed
from orchestrator.pods.bringup_context import BringupContext, Evidence
from orchestrator.ports import SessionPool

PROBE_SHARE = 2 / 3  # of a stage's time is for the probe; the rest is for its answer and the record
JOINING_PAUSE_S = 3.0  # before GPUs that are joining the fabric are checked again
BUSY_PAUSE_S = 5.0  # before GPU memory that the last tenant is still freeing is checked again


class MachineStages:
    """The checks of the machine over SSH, after the pod's identity is known."""

    def __init__(self, ssh_pool: SessionPool, config: LaunchConfig) -> None:
        self._ssh_pool, self._config = ssh_pool, config

    async def platform(self, context: BringupContext) -> Evidence:
        """Check disk space, inodes, and the clock (30 s), and read the cgroup's limits."""
        # By the database's clock: this process's own may be wrong, and the pod must not end for that.
        asked_at_s = time.time() - context.clock_ahead_s
        output = await self._ask(context, probe_scripts.platform_command(_share_s(context)), probe_scripts.PLATFORM)
        return _passed(platform(output, asked_at_s, time.time() - context.clock_ahead_s))

    async def gpu_inventory(self, context: BringupContext) -> Evidence:
        """Check the number, type and memory of the GPUs."""
        context.gpus = await self._gpus(context)
        return _passed(gpus.inventory(context.gpus, context.worker.gpu_type, context.worker.gpu_count))

    async def gpu_health(self, context: BringupContext) -> Evidence:
        """Check Xids, uncorrected ECC errors, pending remaps, free memory, and the driver's version for the image."""
        image = self._config.images.get(context.worker.pool)
        while True:
            result = gpus.health(context.gpus, cuda_of(image))
            if result.fault is None or result.fault[0] is not FailureCode.GPU_BUSY:
                return _passed(result)
            await context.suspects(FailureCode.GPU_BUSY, result.evidence | {"why": result.fault[1]})
            await asyncio.sleep(BUSY_PAUSE_S)
            again = await self._gpus(context)
            # without an answer, the memory is not known to be free
            if all(again.get(name, NOTHING).ok for name in ("gpus", "apps")):
                context.gpus = again

    async def gpu_fabric(self, context: BringupContext) -> Evidence:
        """Check the NVLinks between several GPUs. A GPU that is joining the fabric is checked again."""
        for looks in itertools.count(1):
            result = interconnect.check(context.gpus, context.worker.gpu_type)
            result.facts["looks"] = looks
            if result.fault is None or not interconnect.is_joining(context.gpus, context.worker.gpu_type):
                break
            code, why = result.fault
            await context.suspects(code, result.evidence | {"why": why})
            await asyncio.sleep(JOINING_PAUSE_S)
            again = await self._gpus(context)
            if again.get("fabric", NOTHING).ok:  # without an answer, it is not known to have joined
                context.gpus = again
        return _passed(result)

    async def _gpus(self, context: BringupContext) -> Sections:
        command = probe_scripts.gpus_command(_share_s(context), context.worker.gpu_count)
        return await self._ask(context, command, probe_scripts.GPUS)

    async def _ask(self, context: BringupContext, command: str, script: str) -> Sections:
        async with self._ssh_pool.session(context.worker, timeout_s=context.limit_s) as session:
            done = await agent_control.run(session, command, stdin=script.encode(), timeout_s=context.limit_s)
        return sections(done.stdout)


def _share_s(context: BringupContext) -> float:
    return context.limit_s * PROBE_SHARE


def _passed(result: CheckResult) -> Evidence:
    """Return the evidence of a result without a fault. Raises StageFailed for a fault."""
    if result.fault is None:
        return result.evidence
    code, why = result.fault
    raise StageFailed(code, why, result.evidence)
