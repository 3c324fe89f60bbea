"""Child processes that end with their parent, and the end of whose output can be quoted."""

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from testbed.services.child_process import die_with_parent
from testbed.tasks import exited

STOP_GRACE_S = 20.0
QUOTED_LINES = 20


class ChildFailed(Exception):
    """A child process ended when it should not have; the text quotes the end of its log."""


class Process(Protocol):
    """What a child needs of `asyncio.subprocess.Process`."""

    stdout: asyncio.StreamReader | None

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def send_signal(self, signal: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    async def wait(self) -> int: ...


class Child:
    """One process of ours; its stderr (and its stdout, unless `piped`) is appended to `log`."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        death_signal: signal.Signals = signal.SIGKILL,
        piped: bool = False,
        cwd: Path | None = None,
    ) -> Self:
        """Start a command with exactly this environment; on Linux `death_signal` reaches it when we die."""
        with log.open("ab") as sink:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=dict(environment),
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if piped else sink,
                stderr=sink,
                start_new_session=True,  # the terminal's Ctrl-C is ours; children are stopped in order
                preexec_fn=die_with_parent(death_signal),
            )
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def first_line(self, timeout_s: float) -> bytes:
        """The first line on stdout of a piped child; ChildFailed if it ends or stays silent."""
        assert self.process.stdout is not None  # noqa: S101  only for children started with piped=True
        try:
            async with asyncio.timeout(timeout_s):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise ChildFailed(f"{self.name} said nothing for {timeout_s:.0f} s{self.output_tail()}") from None
        if not line:
            await exited(self.process)
            raise ChildFailed(f"{self.name} ended with {self.process.returncode}{self.output_tail()}")
        return line

    async def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await exited(self.process)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> int:
        """End it politely (SIGTERM), then at once; the exit status."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            try:
                await exited(self.process, grace_s)
            except TimeoutError:
                await self.kill()
        return await exited(self.process)

    def output_tail(self) -> str:
        """The end of its log, to be appended to a message."""
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            tail = "".join(f"    {line}" for line in deque(lines, QUOTED_LINES))
        return f"; the end of {self.log}:\n{tail}" if tail else f"; {self.log} is empty"
