"""The handler host: the child process in which handlers run. It stays, so that what a module loads is loaded once.

stdout and stderr are logs/handler.log; the agent is spoken to over a socket, and when that closes the agent is gone:
then the host ends with everything it started, rather than compute for nobody.
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

from . import output
from .channel import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESULT_BYTES = 1 << 20  # of a result's JSON; the orchestrator takes no more
MESSAGE_CHARS = 16_000  # of an error's text, its middle left out
TRACEBACK_CHARS = 2_000  # of a failed handler's, innermost end
OOM_SCORE = "500"  # the kernel should take the handler before the agent that reports it


class Cancelled(BaseException):
    """Raised in the handler's main thread when it must end; not an Exception, so that few handlers swallow it."""


def serve(fd: int) -> int:
    """Run what the agent asks for, one after the other; returns when told to end."""
    host = os.getpid()
    output.take_over()
    channel, terminate = Channel(socket.socket(fileno=fd)), threading.Event()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(OOM_SCORE)

    def on_term(number: int, _: object) -> None:
        if os.getpid() != host:  # forked by the handler: it never asked for our manners
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        raise Cancelled

    try:
        signal.signal(signal.SIGTERM, on_term)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        threading.Thread(target=channel.listen, args=(terminate,), name="agent", daemon=True).start()
        while True:
            request = channel.requests.get()  # no timeout: the listener ends the process when the agent has gone
            channel.send(_run(request, channel, terminate))
    except Cancelled:
        return 143  # 128 + SIGTERM, as a shell would say


def _run(request: dict[str, Any], channel: Channel, terminate: threading.Event) -> dict[str, Any]:
    """The last message about one request."""
    from . import commands  # noqa: PLC0415 pathlib and subprocess, when there is something to run
    from .task import Task  # noqa: PLC0415

    if request["op"] == "program":
        return commands.program(request, terminate)
    task = Task(request, channel)
    note(f"task {task.id} attempt {task.attempt} begins: {request['handler']}")
    try:
        os.chdir(task.dir)
        if request["handler"].startswith("cmd:"):
            last = commands.run(request["handler"][4:], task)
        else:
            last = task.ended(_function(request["handler"])(task.params, task))
        json.dumps(last, allow_nan=False)
        _check_result(last)
    except Cancelled:
        task.cancelled = True
        note(f"task {task.id} attempt {task.attempt} cancelled")
        raise
    except BaseException as error:  # noqa: BLE001 a handler's, SystemExit included: it is the task that failed, not the host
        traceback.print_exc()
        last = _failure(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
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
    """Raise ResultRefused for a result that nobody would take: the agent does not even try."""
    from . import messages  # noqa: PLC0415
    from .transfers import ResultRefused  # noqa: PLC0415

    text = json.dumps(last.get("result_data"), separators=(",", ":"), ensure_ascii=False)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > RESULT_BYTES:
        raise ResultRefused(
            f"the result has {size} bytes, at most {RESULT_BYTES} are taken: store it as an output file"
        )
    if messages.is_deep(last):
        raise ResultRefused(f"the result nests deeper than {messages.MAX_DEPTH} levels")


def _failure(error: BaseException) -> dict[str, Any]:
    from .transfers import TransferError  # noqa: PLC0415

    said = str(error)
    if len(said) > MESSAGE_CHARS:
        said = f"{said[: MESSAGE_CHARS // 2]} … {said[-MESSAGE_CHARS // 2 :]}"
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "op": "failed",
        "type": type(error).__name__,
        "message": said,
        "traceback": text[-TRACEBACK_CHARS:],
        "retryable": bool(getattr(error, "retryable", True)),
        "point": "Completion" if isinstance(error, TransferError) else "Processing",
        "outage": isinstance(error, TransferError) and error.outage,
        "code": error.code if isinstance(error, TransferError) else None,
    }


def note(text: str) -> None:
    """A line of our own in handler.log."""
    output.ERR.write(f"--- {text}\n".encode("utf-8", "replace"))
