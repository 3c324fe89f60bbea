"""The log files on one worker's pod, over SSH. The waiting time counts for the worker's round."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from orchestrator.core.model import Worker
from orchestrator.core.states import State
from orchestrator.pods import agent_commands, agent_control
from orchestrator.ports import PortError, Session, SessionPool, Unavailable
from orchestrator.worker_logs.budget import Round
from orchestrator.worker_logs.generations import launch_of

LAST_CONNECT_S = 15.0  # to connect when the worker ends, because there is no later round
CONNECT_S = 5.0  # to connect in other rounds: the next one comes soon, and an error is reported soon
READ_TIMEOUT_S = 30.0
STOP_GRACE_S = 5.0  # for the agent to release its tasks, which had the drain before
LAUNCHES = 100  # of one pod; more directories are ignored
log = structlog.get_logger()


class PodFiles:
    """The files of one worker in one round. The methods raise Unavailable if the round has no time left."""

    def __init__(self, ssh_pool: SessionPool, python: str, worker: Worker, turn: Round) -> None:
        self._ssh_pool, self._python, self.worker, self.turn = ssh_pool, python, worker, turn

    async def launches(self) -> frozenset[str]:
        """Return the ids of the launches with a directory on the pod, LAUNCHES at most. More are logged."""
        async with self._session() as session:
            found = await session.list(agent_commands.RUNS_DIR, timeout_s=READ_TIMEOUT_S)
        launches = sorted(name for name in found or () if agent_commands.NONCE.fullmatch(name))
        if len(launches) > LAUNCHES:
            log.warning("log_launches_ignored", worker=self.worker.id, launches=len(launches), shipped=LAUNCHES)
        return frozenset(launches[:LAUNCHES])

    async def sizes(self, launch_id: str) -> dict[str, int]:
        """Return the sizes in bytes of a launch's log files, by file name."""
        async with self._session() as session:
            return dict(await session.list(_folder(launch_id), timeout_s=READ_TIMEOUT_S) or {})

    async def read(self, boot_id: str, stream: str, first: int, last: int) -> bytes:
        """Return the bytes from `first` to `last`, as far as they exist."""
        path = f"{_folder(launch_of(boot_id))}/{stream}.log"
        async with self._session() as session:
            return await session.read(path, first, last - first, timeout_s=READ_TIMEOUT_S) or b""

    async def free(self, launch_id: str, stream: str, last: int) -> None:
        """Free the disk space of the bytes before `last`. Errors are logged only: the next round tries again."""
        facts = {"worker": self.worker.id, "stream": stream}
        try:
            async with self._session() as session:
                command = agent_commands.cut_command(launch_id, stream, last)
                done = await session.run(command, timeout_s=READ_TIMEOUT_S)
        except PortError as error:
            log.info("log_uncut", **facts, error=f"{type(error).__name__}: {error}"[:300])
        else:
            log.info("log_cut", **facts, bytes=last, exit_status=done.exit_status)

    async def stop(self, launch_id: str) -> str | None:
        """Stop the agent of a launch. Return how it had ended before, if it did not report that itself."""
        if self.worker.code_sha is None:
            raise Unavailable(f"nothing is known of what runs on {self.worker.id}")
        async with self._session() as session:
            return await agent_control.stop(
                session, python=self._python, agent_sha=self.worker.code_sha, nonce=launch_id, grace_s=STOP_GRACE_S
            )

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        if self.turn.over:
            raise Unavailable(f"its pod has taken more than {self.turn.limit_s:g} s of one round to answer")
        began_s = time.monotonic()
        timeout_s = LAST_CONNECT_S if self.worker.state is State.TERMINATING else CONNECT_S
        try:
            async with self._ssh_pool.session(self.worker, timeout_s=timeout_s) as session:
                yield session
        finally:
            self.turn.waited_s += time.monotonic() - began_s


def _folder(launch_id: str) -> str:
    return f"{agent_commands.run_dir(launch_id)}/logs"
