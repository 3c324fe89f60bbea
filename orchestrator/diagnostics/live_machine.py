"""Repeats the machine checks of bring-up on a live worker. Nothing is changed there."""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from orchestrator.adapters.rows import worker_of
from orchestrator.core import gpus, interconnect
from orchestrator.core.failures import FailureCode
from orchestrator.core.images import cuda_of
from orchestrator.core.machine_checks import CheckResult, Sections, platform, sections
from orchestrator.core.model import Worker
from orchestrator.core.plurals import counted
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage
from orchestrator.pods import agent_commands, agent_control, probe_scripts
from orchestrator.ports import PortError, SessionPool

CODE_FILE = re.compile(r"(?:agent|user)-[0-9a-f]{64}\.(?:pyz|zip)")  # files of a bundle, with their sha256


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One stage check, repeated now."""

    stage: Stage
    holds: bool | None  # None: no fault was found, but some values could not be read
    evidence: str
    code: FailureCode | None = None  # if the check failed


async def machine_checks(row: Mapping[str, Any], ssh_pool: SessionPool) -> list[MachineCheck]:
    """Repeat platform, gpu_inventory, gpu_health, gpu_fabric (several GPUs) and deploy.

    Each may take as long as its stage.
    """
    worker = worker_of({"tasks_running": 0, **row})
    parts = await asyncio.gather(_disk(worker, ssh_pool), _gpus(worker, ssh_pool), _code(worker, ssh_pool))
    return list(chain.from_iterable(parts))


async def _disk(worker: Worker, ssh_pool: SessionPool) -> list[MachineCheck]:
    asked_at_s, limit_s = time.time(), STAGE_SPECS[Stage.PLATFORM].deadline_s
    command = probe_scripts.platform_command(limit_s / 2)
    try:
        output = await _ask(worker, ssh_pool, command, probe_scripts.PLATFORM, limit_s)
    except (PortError, TimeoutError) as error:
        return [_unanswered(Stage.PLATFORM, error)]
    return [_check(Stage.PLATFORM, platform(output, asked_at_s, time.time()))]


async def _gpus(worker: Worker, ssh_pool: SessionPool) -> list[MachineCheck]:
    limit_s = STAGE_SPECS[Stage.GPU_INVENTORY].deadline_s
    command = probe_scripts.gpus_command(limit_s / 2, worker.gpu_count)
    try:
        output = await _ask(worker, ssh_pool, command, probe_scripts.GPUS, limit_s)
    except (PortError, TimeoutError) as error:
        return [_unanswered(Stage.GPU_INVENTORY, error)]
    image = (worker.release or "").rpartition("@")[0]
    checks = [
        _check(Stage.GPU_INVENTORY, gpus.inventory(output, worker.gpu_type, worker.gpu_count)),
        _check(Stage.GPU_HEALTH, gpus.health(output, cuda_of(image), in_use=True)),
    ]
    if worker.gpu_count > 1:
        checks.append(_check(Stage.GPU_FABRIC, interconnect.check(output, worker.gpu_type)))
    return checks


async def _code(worker: Worker, ssh_pool: SessionPool) -> list[MachineCheck]:
    """Check that the name of each code file has the file's sha256."""
    limit_s = STAGE_SPECS[Stage.PLATFORM].deadline_s
    try:
        async with asyncio.timeout(limit_s), ssh_pool.session(worker, timeout_s=limit_s) as session:
            there = await session.list(agent_commands.CODE_DIR, timeout_s=limit_s) or {}
            paths = sorted(f"{agent_commands.CODE_DIR}/{name}" for name in there if CODE_FILE.fullmatch(name))
            if agent_commands.agent_path(worker.code_sha or "") not in paths:
                why = f"its agent's file agent-{worker.code_sha}.pyz is not there"
                return [MachineCheck(Stage.DEPLOY, False, why, FailureCode.CODE_CHANGED)]
            done = await agent_control.run(session, agent_commands.digest_command(paths), timeout_s=limit_s)
    except (PortError, TimeoutError) as error:
        return [_unanswered(Stage.DEPLOY, error)]
    found = agent_commands.digests(done.stdout)
    changed = [path for path in paths if found.get(path, "unread") not in path]
    if changed:
        why = f"changed since it was sent: {', '.join(path.rpartition('/')[2] for path in changed)}"
        return [MachineCheck(Stage.DEPLOY, False, why, FailureCode.CODE_CHANGED)]
    return [MachineCheck(Stage.DEPLOY, True, f"{counted(len(paths), 'file has its', 'files have their')} sha256")]


async def _ask(worker: Worker, ssh_pool: SessionPool, command: str, script: str, limit_s: float) -> Sections:
    async with asyncio.timeout(limit_s), ssh_pool.session(worker, timeout_s=limit_s) as session:
        done = await agent_control.run(session, command, stdin=script.encode(), timeout_s=limit_s)
    return sections(done.stdout)


def _unanswered(stage: Stage, error: Exception) -> MachineCheck:
    """Return a failure if the tools do not answer in time, as in bring-up; unknown for an unreachable pod."""
    if isinstance(error, TimeoutError):
        return MachineCheck(stage, False, "no answer in time", STAGE_SPECS[stage].overdue)
    return MachineCheck(stage, None, f"not asked: {type(error).__name__}: {error}")


def _check(stage: Stage, result: CheckResult) -> MachineCheck:
    if result.fault is not None:
        code, why = result.fault
        return MachineCheck(stage, False, f"{code}: {why}", code)
    unknown = f"not known: {', '.join(sorted(result.unknown))}" if result.unknown else ""
    text = "; ".join([*result.warnings, unknown or "nothing is wrong"])
    return MachineCheck(stage, None if result.unknown else True, text)
