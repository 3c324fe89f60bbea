"""The stages between identity and deploy: whether the machine is what was rented, and well.

probe_scripts.py holds the probes; core/machine_checks.py, core/gpus.py and core/interconnect.py judge their output.
That stdin can deliver a secret needs no test of its own: the probes themselves arrive that way, and the stage `process`
fails unless the agent read its configuration, token included, from stdin and wrote it to a private file.
"""

import asyncio
import itertools
import time

from orchestrator.core import gpus, interconnect
from orchestrator.core.failures import FailureCode
from orchestrator.core.images import cuda_of
from orchestrator.core.machine_checks import NOTHING, Sections, Verdict, platform, sections
from orchestrator.pods import agent_control, probe_scripts
from orchestrator.pods.agent_commands import LaunchConfig
from orchestrator.pods.agent_control import StageFailed
from orchestrator.pods.bringup_context import BringupContext, Evidence
from orchestrator.ports import SessionPool

PROBE_SHARE = 2 / 3  # of a stage's time is the probe's: what it said must still come back and be written down
JOINING_PAUSE_S = 3.0  # before GPUs that are just being registered with their switches are looked at again
BUSY_PAUSE_S = 5.0  # memory that the last tenant is just giving back is looked at again


class Checks:
    """What is asked over SSH once the pod is known to be the right one."""

    def __init__(self, lines: SessionPool, config: LaunchConfig) -> None:
        self._lines, self._config = lines, config

    async def platform(self, context: BringupContext) -> Evidence:
        """Room and inodes where the agent will work, and a clock that is ours within 30 s; the cgroup's limits."""
        asked_at_s = time.time()
        said = await self._ask(context, probe_scripts.platform_command(_share_s(context)), probe_scripts.PLATFORM)
        return _passed(platform(said, asked_at_s, time.time()))

    async def gpu_inventory(self, context: BringupContext) -> Evidence:
        """As many GPUs as are rented, of the type that is rented, each with its memory."""
        context.gpus = await self._gpus(context)
        return _passed(gpus.inventory(context.gpus, context.worker.gpu_type, context.worker.gpu_count))

    async def gpu_health(self, context: BringupContext) -> Evidence:
        """No fatal Xid, no uncorrected ECC error, no pending remap, memory free, a driver new enough for the image."""
        image = self._config.images.get(context.worker.pool)
        while True:
            verdict = gpus.health(context.gpus, cuda_of(image))
            if verdict.fault is None or verdict.fault[0] is not FailureCode.GPU_BUSY:
                return _passed(verdict)
            await context.suspects(FailureCode.GPU_BUSY, verdict.evidence | {"why": verdict.fault[1]})
            await asyncio.sleep(BUSY_PAUSE_S)
            again = await self._gpus(context)
            if all(again.get(name, NOTHING).ok for name in ("gpus", "apps")):  # no answer does not mean that it is free
                context.gpus = again

    async def gpu_fabric(self, context: BringupContext) -> Evidence:
        """Between several GPUs, the NVLinks that their type has; a fabric that is being joined is looked at again."""
        for looks in itertools.count(1):
            verdict = interconnect.judge(context.gpus, context.worker.gpu_type)
            verdict.facts["looks"] = looks
            if verdict.fault is None or not interconnect.is_joining(context.gpus, context.worker.gpu_type):
                break
            code, why = verdict.fault
            await context.suspects(code, verdict.evidence | {"why": why})
            await asyncio.sleep(JOINING_PAUSE_S)
            again = await self._gpus(context)
            if again.get("fabric", NOTHING).ok:  # no answer does not mean that it has joined
                context.gpus = again
        return _passed(verdict)

    async def _gpus(self, context: BringupContext) -> Sections:
        command = probe_scripts.gpus_command(_share_s(context), context.worker.gpu_count)
        return await self._ask(context, command, probe_scripts.GPUS)

    async def _ask(self, context: BringupContext, command: str, script: str) -> Sections:
        async with self._lines.session(context.worker, timeout_s=context.limit_s) as session:
            done = await agent_control.run(session, command, stdin=script.encode(), timeout_s=context.limit_s)
        return sections(done.stdout)


def _share_s(context: BringupContext) -> float:
    return context.limit_s * PROBE_SHARE


def _passed(verdict: Verdict) -> Evidence:
    """The evidence of a verdict that rules nothing out; Unproven for one that does."""
    if verdict.fault is None:
        return verdict.evidence
    code, why = verdict.fault
    raise StageFailed(code, why, verdict.evidence)
