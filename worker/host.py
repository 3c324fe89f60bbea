"""The handler host: the child process in which handlers run. It stays warm, so a module loads its model once.

stdout and stderr go to logs/handler.log. Messages to the agent go over a socket. If the socket closes, the agent has
ended, and the host ends with all processes that it started.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import threading
import traceback

from . import output, protocol
from .channel import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESULT_BYTES = 1 << 20  # bytes of a result's JSON: the limit of the orchestrator
MESSAGE_CHARS = 16_000  # characters of an error's text; its middle is cut
TRACEBACK_CHARS = 2_000  # characters of a traceback: its innermost end
TRACE = "TRACEPARENT"  # environment variable of the running task's handler and of the processes that it starts
OOM_SCORE = "500"  # the OOM killer should end the handler before the agent that reports it


class Cancelled(BaseException):
    """Raised in the handler's main thread when it must end. Not an Exception, so that few handlers catch it."""


def serve(fd: int) -> int:
    """Run the agent's requests one after the other until the agent ends the host."""
    host = os.getpid()
    output.take_over()
    channel, terminate = Channel(socket.socket(fileno=fd)), threading.Event()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(OOM_SCORE)

    def on_term(number: int, _: object) -> None:
        if os.getpid() != host:  # in a process that the handler forked: the default behaviour
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        raise Cancelled

    try:
        signal.signal(signal.SIGTERM, on_term)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        threading.Thread(target=channel.listen, args=(terminate,), name="agent", daemon=True).start()
        while True:
            request = channel.requests.get()  # no timeout: the listener ends the process when the agent has ended
            channel.send(_run(request, channel, terminate))
    except Cancelled:
        return 143  # 128 + SIGTERM, as in a shell


def _run(request: dict[str, Any], channel: Channel, terminate: threading.Event) -> dict[str, Any]:
    """Run one request and return its last message."""
    from . import commands  # noqa: PLC0415 imports pathlib and subprocess, so only when there is a task
    from .task import Task  # noqa: PLC0415

    if request["op"] == "program":
        return commands.program(request, terminate)
    task = Task(request, channel)
    os.environ.pop(TRACE, None)
    if task.traceparent:
        os.environ[TRACE] = task.traceparent
    note(f"task {task.id} attempt {task.attempt} begins: {request['handler']}")
    try:
        os.chdir(task.dir)
        if request["handler"].startswith("cmd:"):
            last = commands.run(request["handler"][4:], task)
        elif request["handler"] == protocol.SLURM_HANDLER:
            from . import slurm_job  # noqa: PLC0415 most tasks are no Slurm jobs

            last = slurm_job.run(task)
        else:
            last = task.ended(_function(request["handler"])(task.params, task))
        json.dumps(last, allow_nan=False)
        _check_result(last)
    except Cancelled:
        task.cancelled = True
        note(f"task {task.id} attempt {task.attempt} cancelled")
        raise
    except BaseException as error:  # noqa: BLE001 any error of a handler, SystemExit too: the task failed, not the host
        traceback.print_exc()
        last = _failure(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        task.flush_progress()
        os.chdir("/")
    note(f"task {task.id} attempt {task.attempt} ends: {last['op']}")
    return {**last, "dropped_bytes": output.take_dropped()}


def _function(handler: str) -> Any:
    module, _, path = handler.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _check_result(last: dict[str, Any]) -> None:
    """Raise ResultRefused for a result that the orchestrator would refuse, so that the agent does not send it."""
    from . import messages  # noqa: PLC0415
    from .transfer_errors import ResultRefused  # noqa: PLC0415

    text = json.dumps(last.get("result_data"), separators=(",", ":"), ensure_ascii=False)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > RESULT_BYTES:
        raise ResultRefused(f"the result has {size} bytes, more than {RESULT_BYTES}: store it as an output file")
    if messages.is_deep(last):
        raise ResultRefused(f"the result nests deeper than {messages.MAX_DEPTH} levels")


def _failure(error: BaseException) -> dict[str, Any]:
    from .transfer_errors import TransferError  # noqa: PLC0415

    message = str(error)
    if len(message) > MESSAGE_CHARS:
        message = f"{message[: MESSAGE_CHARS // 2]} … {message[-MESSAGE_CHARS // 2 :]}"
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "op": "failed",
        "type": type(error).__name__,
        "message": message,
        "traceback": text[-TRACEBACK_CHARS:],
        "retryable": bool(getattr(error, "retryable", True)),
        "point": "Completion" if isinstance(error, TransferError) else "Processing",
        "outage": isinstance(error, TransferError) and error.outage,
        "code": error.code if isinstance(error, TransferError) else None,
    }


def note(text: str) -> None:
    """Write a line of the host itself to handler.log."""
    output.ERR.write(f"--- {text}\n".encode("utf-8", "replace"))
