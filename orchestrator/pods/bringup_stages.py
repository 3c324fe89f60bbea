"""The stage checks of bring-up, one function per stage, in order. Each returns evidence or raises.

A check raises StageFailed if it fails, and TimeoutError without an answer in time. If the connection is lost, the
port's error passes: the result is unknown, and the bring-up begins again. No secret is sent before the row has the host
key: the facts of one stage are written with the move to the next.
"""

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Worker
from orchestrator.core.stages import PAUSES_S, STAGE_SPECS, StageSpec
from orchestrator.core.states import Stage
from orchestrator.core.worker_metadata import metadata
from orchestrator.pods import agent_commands, agent_control, host_identity
from orchestrator.pods.agent_control import StageFailed
from orchestrator.pods.boot_stages import BootStages
from orchestrator.pods.bringup_context import BringupContext, Evidence, StageCheck
from orchestrator.pods.bundle import Bundle
from orchestrator.pods.latest import WorkerView
from orchestrator.pods.machine_stages import MachineStages
from orchestrator.ports import (
    AuthFailed,
    ConnectionRefused,
    HostKeyChanged,
    NotSsh,
    Session,
    SessionPool,
    Shell,
    Unavailable,
)

BANNER_TIMEOUT_S = 10.0
# Connection attempts are short until a port has accepted once, so that its silence is recorded early.
FIRST_BANNER_S = 3.0
LAST_TRY_SHARE = 0.9  # of the stage's remaining time: a try ends before the deadline, so that its result counts
PROCESS_CHECK_S = 10.0  # seconds between checks of the process while no heartbeat has arrived
WITHOUT_SMI = "AMD "  # GPU types that nvidia-smi does not show
PUSHES = 2  # tries to send a file before its stage fails


class BringupStages:
    """Checks each stage over SSH, from the first connection to the first heartbeat."""

    def __init__(
        self,
        ssh_pool: SessionPool,
        shell: Shell,
        bundle: Bundle,
        boot: BootStages,
        workers: WorkerView,
        config: agent_commands.LaunchConfig,
        token_for: Callable[[Worker, str], str],
        nonce_for: Callable[[str], str],
    ) -> None:
        self._nonce_for = nonce_for
        self._ssh_pool, self._shell, self._bundle = ssh_pool, shell, bundle
        self._boot, self._machine = boot, MachineStages(ssh_pool, config)
        self._workers, self._config, self._token_for = workers, config, token_for

    def stage_checks(self, worker: Worker) -> tuple[tuple[StageSpec, StageCheck], ...]:
        """Return the stages in order, without those that do not apply to the worker."""
        machine, smi = self._machine, worker.gpu_count > 0 and not (worker.gpu_type or "").startswith(WITHOUT_SMI)
        steps = (
            (Stage.POD_RUNNING, self._boot.pod_running, True),
            (Stage.SSH_DETAILS, self._boot.ssh_details, True),
            (Stage.TCP, self.tcp, True),
            (Stage.SSH_AUTH, self.ssh_auth, True),
            (Stage.EXEC, self.exec, True),
            (Stage.IDENTITY, self.identity, True),
            (Stage.PLATFORM, machine.platform, True),
            (Stage.GPU_INVENTORY, machine.gpu_inventory, smi),
            (Stage.GPU_HEALTH, machine.gpu_health, smi),
            (Stage.GPU_FABRIC, machine.gpu_fabric, smi and worker.gpu_count > 1),
            (Stage.DEPLOY, self.deploy, True),
            (Stage.PROCESS, self.process, True),
            (Stage.HEARTBEAT, self.heartbeat, True),
        )
        return tuple((STAGE_SPECS[stage], check) for stage, check, needed in steps if needed)

    async def tcp(self, context: BringupContext) -> Evidence:
        """Check that an SSH server answers at the address."""
        backing_off, clock = pauses(), asyncio.get_running_loop().time
        until = clock() + context.limit_s
        for attempt in itertools.count(1):
            host, port = self._boot.address(context.worker)
            if host is None or port is None:
                raise StageFailed(FailureCode.SSH_DETAILS_MISSING, "the row has no address")
            try:
                never_accepted = context.suspect in {None, FailureCode.TCP_REFUSED}
                patience_s = FIRST_BANNER_S if never_accepted else BANNER_TIMEOUT_S
                timeout_s = min(patience_s, LAST_TRY_SHARE * max(until - clock(), 0.0))
                banner = await self._shell.banner(host, port, timeout_s=timeout_s)
            except (ConnectionRefused, NotSsh, Unavailable) as error:
                codes = {ConnectionRefused: FailureCode.TCP_REFUSED, NotSsh: FailureCode.NOT_SSH}
                code = codes.get(type(error), FailureCode.TCP_TIMEOUT)
                cut_short = timeout_s < patience_s and type(error) is Unavailable  # before a connection was established
                if context.suspect is None or not cut_short:
                    await context.suspects(code, {"tries": attempt, "error": str(error)[:300]})
            else:
                context.facts |= {"ssh_host": host, "ssh_port": port}
                return {"tries": attempt, "address": f"{host}:{port}", "banner": banner[:100]}
            # A booting pod refuses connections, so the next try comes soon: fifty pods that boot together must not all
            # wait for a long pause. After a wrong or slow answer, the pauses grow.
            is_refused = context.suspect is FailureCode.TCP_REFUSED
            await asyncio.sleep(PAUSES_S[0] if is_refused else next(backing_off))
        raise AssertionError("the loop never ends")

    async def ssh_auth(self, context: BringupContext) -> Evidence:
        """Check that the pod accepts our key, and that the host key is the pinned one. Pin it at first contact."""
        try:
            async with self._session(context) as session:
                context.facts["host_key"] = session.host_key
                return {**session.evidence, "pinned": "before" if context.worker.host_key else "now"}
        except HostKeyChanged as error:
            raise StageFailed(FailureCode.HOST_KEY_CHANGED, str(error)) from error
        except AuthFailed as error:
            raise StageFailed(FailureCode.AUTH_FAILED, str(error), {"cause": error.cause}) from error

    async def exec(self, context: BringupContext) -> Evidence:
        """Check that a shell runs commands: it joins the halves of a nonce. The same command prints the pod's id."""
        left, right = uuid.uuid4().hex[:16], uuid.uuid4().hex[:16]
        async with self._session(context) as session:
            done = await agent_control.run(session, agent_commands.echo_command(left, right), timeout_s=context.limit_s)
        _, nonce, pod_id = done.stdout.decode("utf-8", "replace").rpartition(left + right)
        if done.exit_status != 0 or not nonce:
            raise StageFailed(FailureCode.EXEC_FAILED, "the nonce did not come back", agent_control.shown(done))
        context.reported_pod_id = pod_id.strip()
        return {"exit_status": 0}

    async def identity(self, context: BringupContext) -> Evidence:
        """Check the pod's id, and that the host key is the pod's own."""
        evidence = {"expected": context.worker.pod_id, "reported": context.reported_pod_id[:100] or None}
        if context.reported_pod_id != context.worker.pod_id:
            raise StageFailed(FailureCode.POD_MISMATCH, "the pod's RUNPOD_POD_ID is not the row's", evidence)
        if not context.worker.metadata.bootstrap:
            return evidence | {"host_key": "taken as shown: an earlier release created the pod, without a nonce"}
        async with self._session(context) as session:
            for last in (False, True):  # a tool that was killed on the pod gives a wrong answer once, not twice
                command, script = host_identity.command(context.limit_s), host_identity.SCRIPT.encode()
                done = await agent_control.run(session, command, stdin=script, timeout_s=context.limit_s)
                refused = host_identity.refusal(done.stdout, self._nonce_for(context.worker.id), session.host_key)
                if refused is None:
                    return evidence | {"host_key": "proven"}
                if last or refused[0] is FailureCode.HOST_KEY_RELAYED:
                    raise StageFailed(*refused, evidence | agent_control.shown(done))
        raise AssertionError("the last try returns or raises")

    async def deploy(self, context: BringupContext) -> Evidence:
        """Check the SHA-256 of the files on the pod. Send missing and different files."""
        wanted = agent_commands.files(self._bundle)
        pushed: list[str] = []
        async with self._session(context) as session:
            there = await session.list(agent_commands.CODE_DIR, timeout_s=context.limit_s) or {}
            stale = {path for path, (content, _) in wanted.items() if there.get(_name(path)) != len(content)}
            for _ in range(PUSHES + 1):
                for path in sorted(stale):
                    await session.put(path, wanted[path][0], timeout_s=context.limit_s)
                    pushed.append(_name(path))
                command = agent_commands.digest_command(sorted(wanted))
                done = await agent_control.run(session, command, timeout_s=context.limit_s)
                found = agent_commands.digests(done.stdout)
                stale = {path for path, (_, sha) in wanted.items() if found.get(path) != sha}
                if not stale or max(map(pushed.count, map(_name, stale))) >= PUSHES:
                    break
            if stale:
                evidence = {"pushed": pushed, "found": {_name(path): found.get(path) for path in sorted(stale)}}
                raise StageFailed(
                    FailureCode.STALE_CODE, "the files on the pod differ from the files that were sent", evidence
                )
            await self._choose_launch(context, session)
        return {"pushed": pushed, "kept": sorted({_name(path) for path in wanted} - set(pushed))}

    async def process(self, context: BringupContext) -> Evidence:
        """Check the launch's process over SSH: its pid, start time and command line."""
        nonce = context.worker.nonce or ""
        adopted = context.agent is not None
        context.launched_at = context.entered_at
        async with self._session(context) as session:
            if context.agent is None:
                token = self._token_for(context.worker, context.worker.token_jti or "")
                context.agent = await agent_control.start(
                    session,
                    python=self._config.python,
                    agent_sha=self._bundle.agent_sha,
                    nonce=nonce,
                    config=agent_commands.configuration(self._config, context.worker, token, self._bundle.code_sha),
                    # a set-up command may take long; the whole bring-up has a limit
                    timeout_s=self._config.spawning_timeout_s,
                )
            if not await agent_control.lives(session, context.agent, nonce):
                tails = await agent_control.log_tails(session, nonce)
                raise StageFailed(FailureCode.NO_PROCESS, "the agent is gone", tails)
        return {"pid": context.agent.pid, "start_time": context.agent.start_time, "nonce": nonce, "adopted": adopted}

    async def heartbeat(self, context: BringupContext) -> Evidence:
        """Wait for a heartbeat of this launch in the row: the database refuses every other nonce."""
        nonce, since = context.worker.nonce or "", context.launched_at or context.entered_at
        while True:
            try:
                row = await self._workers.until(
                    context.worker.id,
                    lambda w: w.nonce == nonce and w.last_heartbeat is not None and w.last_heartbeat >= since,
                    PROCESS_CHECK_S,
                )
            except TimeoutError:
                await self._still_there(context, nonce)
            else:
                return {"nonce": nonce, "code_sha": row.code_sha, "at": str(row.last_heartbeat)}

    async def _still_there(self, context: BringupContext, nonce: str) -> None:
        """Distinguish an agent that ended from one that cannot reach the database, and keep its last log lines."""
        async with self._session(context) as session:
            alive = context.agent is not None and await agent_control.lives(session, context.agent, nonce)
            context.evidence = await agent_control.log_tails(session, nonce)
        if not alive:
            raise StageFailed(FailureCode.NO_PROCESS, "the agent ended before its first heartbeat", context.evidence)

    async def _choose_launch(self, context: BringupContext, session: Session) -> None:
        """Keep the row's launch if its agent runs this code, or never started. Otherwise choose a new nonce.

        The row is written before `start` is called. After a crash or a lost answer, the idempotent `start` is called
        again with the same nonce: one launch, one agent.
        """
        row, ours = context.worker, self._bundle
        context.agent = None
        if row.nonce and row.code_sha == ours.agent_sha and row.metadata.user_code == ours.code_sha:
            agent = await agent_control.recorded(session, row.nonce)
            if agent is None:
                return
            if await agent_control.lives(session, agent, row.nonce):
                context.agent = agent
                return
        context.facts |= {"nonce": uuid.uuid4().hex, "token_jti": uuid.uuid4().hex, "code_sha": ours.agent_sha}
        earlier = [*row.metadata.launches, *([row.nonce] if row.nonce else [])]  # their logs are shipped too
        context.facts["metadata"] = metadata(user_code=ours.code_sha, launches=earlier)

    def _session(self, context: BringupContext) -> AbstractAsyncContextManager[Session]:
        return self._ssh_pool.session(context.worker, timeout_s=context.limit_s)


def pauses() -> Iterator[float]:
    """Yield PAUSES_S; the last one repeats."""
    return itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1]))


def _name(path: str) -> str:
    return path.rpartition("/")[2]
