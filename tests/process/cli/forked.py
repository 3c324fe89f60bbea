"""Runs the program's commands as forks of one process that has imported it: an import takes most of a command's time.

Each command is a process with an environment, a working directory, input, output and an exit code of its own.
"""

import asyncio
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from testbed.services.child_process import die_with_parent
from testbed.services.processes import Child
from testbed.stack import Stack

ROOT = Path(__file__).resolve().parents[3]
IMPORTED = (
    *("orchestrator.cli", "orchestrator.adapters", "orchestrator.diagnostics", "orchestrator.wiring"),
    *("orchestrator.service", "testbed.runpod"),
)
IMPORTED_AT_FIRST_USE = ("boto3", "httpcore", "anyio._backends._asyncio")  # by those: clients of S3 and of HTTP
COMMAND_TIMEOUT_S = 60.0
IMPORT_TIMEOUT_S = 120.0  # the first request of a process waits for the imports, too
Die = Callable[[], None] | None
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LARGEST = 1 << 20  # bytes of a request
_sending = threading.Lock()


async def run(
    arguments: Sequence[str], *, stdin: str, cwd: Path, environment: Mapping[str, str], timeout_s: float
) -> tuple[int, str, str]:
    """`python <arguments>`, where the first is -m, -c or a script: its exit code, stdout and stderr."""
    return await asyncio.to_thread(_run, arguments, stdin, cwd, environment, timeout_s)


async def command(stack: Stack, *arguments: str, overrides: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """`python -m orchestrator <arguments>` with the environment of a stack: its exit code, stdout and stderr."""
    environment = {**stack.environment, **(overrides or {})}
    words = ("-m", "orchestrator", *arguments)
    return await run(words, stdin="", cwd=stack.directory, environment=environment, timeout_s=COMMAND_TIMEOUT_S)


def _run(
    arguments: Sequence[str], stdin: str, cwd: Path, environment: Mapping[str, str], timeout_s: float
) -> tuple[int, str, str]:
    request = json.dumps([list(arguments), str(cwd), dict(environment), 0]).encode()
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as into, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, ours:
        into.write(stdin.encode())
        into.seek(0)
        with _sending, theirs:
            socket.send_fds(_server(), [request], [file.fileno() for file in (into, out, err, theirs)])
        with ours.makefile("r") as said:
            ours.settimeout(IMPORT_TIMEOUT_S)
            pid = int(said.readline())
            ours.settimeout(timeout_s)
            try:
                code = int(said.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
        for file in (out, err):
            file.seek(0)
        return code, out.read().decode(), err.read().decode()


class ForkedProcess:
    """A process that runs on, with the part of `asyncio.subprocess.Process` that a `Child` needs."""

    def __init__(self, pid: int, line: Line, stdout: asyncio.StreamReader | None) -> None:
        self.pid, self.stdout = pid, stdout
        self.returncode: int | None = None
        self._ended = asyncio.create_task(self._end(*line))

    async def _end(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        said = await reader.readline()
        writer.close()
        self.returncode = int(said) if said else -signal.SIGKILL  # nothing: its watcher was killed, and it was, too
        return self.returncode

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, signal: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def start(
    name: str, command: Sequence[str], *, environment: Mapping[str, str], log: Path,
    death_signal: signal.Signals = signal.SIGKILL, piped: bool = False, cwd: Path | None = None,
) -> Child:  # fmt: skip
    """`Child.start` for `python -m …`, as a fork."""
    request = json.dumps([list(command[1:]), str(cwd or ROOT), dict(environment), int(death_signal)]).encode()
    ours, theirs = socket.socketpair()
    stdout, out = await _piped() if piped else (None, None)
    with tempfile.TemporaryFile() as nothing, log.open("ab") as sink, theirs:
        fds = [nothing.fileno(), sink.fileno() if out is None else out, sink.fileno(), theirs.fileno()]
        with _sending:
            socket.send_fds(_server(), [request], fds)
    if out is not None:
        os.close(out)
    async with asyncio.timeout(IMPORT_TIMEOUT_S):
        line = await asyncio.open_connection(sock=ours)
        pid = int(await line[0].readline())
    return Child(name, ForkedProcess(pid, line, stdout), log)


async def _piped() -> tuple[asyncio.StreamReader, int]:
    """A pipe: its end to read from, and the descriptor of the other."""
    source, sink = os.pipe()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source))
    return reader, sink


@functools.cache
def _server() -> socket.socket:
    """The line to the process that forks; it ends when this line does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for one in (ours, theirs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LARGEST)
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", "tests.process.cli.forked", str(theirs.fileno())],
            pass_fds=[theirs.fileno()], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    return ours


def _serve(line: socket.socket) -> None:
    for name in IMPORTED:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in IMPORTED_AT_FIRST_USE:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(line, LARGEST, 4)
        if not request:
            return
        die = die_with_parent(signal.SIGKILL)
        if os.fork() == 0:
            line.close()
            arguments, cwd, environment, death_signal = json.loads(request)
            _watch(arguments, cwd, environment, death_signal, fds, die)
        for fd in fds:
            os.close(fd)


def _watch(
    arguments: list[str], cwd: str, environment: dict[str, str], death_signal: int, fds: Sequence[int], die: Die
) -> NoReturn:
    """Run the command in one more process, and tell its pid and then its exit code.

    With a death signal it ends with us, we with the process that forks, and that with the tests.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    teller = socket.socket(fileno=fds[3])
    if death_signal and die is not None:
        die()
        os.setsid()
        die = die_with_parent(signal.Signals(death_signal))
    pid = os.fork()
    if pid == 0:
        teller.close()
        if death_signal and die is not None:
            die()
            os.setsid()
        _become(arguments, cwd, environment, fds[:3])
    teller.sendall(f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    teller.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(arguments: list[str], cwd: str, environment: dict[str, str], fds: Sequence[int]) -> NoReturn:
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(cwd)
    code: Any = 0
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            sys.path.insert(0, "")
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102  as `python -c` does
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - as the interpreter ends
        sys.excepthook(*sys.exc_info())
        code = 1
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
