"""The handler host: the child process in which handlers run. It stays warm, so a module loads its model once.

stdout and stderr go to logs/handler.log. Messages to the agent go over a socket. If the socket closes, the agent has
ended, and the host ends with all processes that it started.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import json
import os
import signal
import socket
import sys
import threading
import traceback

from . import output, protocol, rules, usercode
from .channel import PID, Channel, TaskChannel
from .handler_errors import Cancelled, failure_of
from .process_state import ProcessState
from .redaction import own_secrets
from .streams import StandardStreams
from .transfer_errors import ResultRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .task import Task

SHOWN_CHANGES = 5
IMPORTED_S = 60.0  # seconds for the agent to note the processes that the module has started
TRACE = "TRACEPARENT"  # environment variable of the running task's handler and of the processes that it starts
SET_TRACE, SET_PROFILE = sys.settrace, sys.setprofile
OOM_SCORE = "500"  # the OOM killer should end the handler before the agent that reports it


def serve(options: dict[str, str]) -> int:
    """Run the agent's requests one after the other until the agent ends the host, or no message reaches it."""
    own_secrets()  # before a handler can change the environment
    streams = StandardStreams()
    channel, terminate = Channel(socket.socket(fileno=int(options["fd"])), options.get("last")), threading.Event()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(OOM_SCORE)

    try:
        signal.signal(signal.SIGTERM, _cancel)
        _let_term_end_forks()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        channel.send({"op": "ready"})
        threading.Thread(target=channel.listen, args=(terminate,), name="agent", daemon=True).start()
        usercode.add_to_path(options.get("code"))
        host = Host(channel, streams, options.get("code"))
        while True:
            request = channel.requests.get()  # no timeout: the listener ends the process when the agent has ended
            if request["op"] == "program":
                from . import commands  # noqa: PLC0415 few workers have a program of their own

                channel.send(commands.program(request, terminate))
            elif not host.run(request):
                return 0  # the last message is in the file, and no request can come
    except Cancelled:
        return 143  # 128 + SIGTERM, as in a shell


def _cancel(*_: object) -> None:
    raise Cancelled


def _let_term_end_forks() -> None:
    """Give SIGTERM its default action in each process that a handler forks, from its first moment on.

    A process that inherits a Python handler loses a signal that arrives while the interpreter starts anew in it, and
    multiprocessing's pool, which ends its processes so, would wait for ever.
    """
    masks = threading.local()

    def block() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def restore_in_child() -> None:
        if signal.getsignal(signal.SIGTERM) is _cancel:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        restore()

    os.register_at_fork(before=block, after_in_parent=restore, after_in_child=restore_in_child)


class Host:
    """Runs tasks, and gives each one the process as the first one found it."""

    def __init__(self, channel: Channel, streams: StandardStreams, code: str | None) -> None:
        self._channel, self._streams, self._code, self._pid = channel, streams, code, PID()
        self._state: ProcessState | None = None  # None: no function was loaded yet
        self._is_loading = False

    def run(self, request: dict[str, Any]) -> bool:
        """Run one task and send its last message. Return False if the host must end."""
        from .task import Task  # noqa: PLC0415 imports pathlib and http.client, so only when there is a task

        channel = TaskChannel(self._channel, request["task"]["id"], request["task"]["attempt"])
        task = Task(request, channel)
        os.environ.pop(TRACE, None)
        if task.traceparent:
            os.environ[TRACE] = task.traceparent
        note(f"task {task.id} attempt {task.attempt} begins: {request['handler']}")
        last = self._outcome(request["handler"], task, channel)
        renew = self._settle(request["dir"])
        with contextlib.suppress(Exception):  # nothing may change the outcome any more
            task.flush_progress()
        os.chdir("/")
        if renew:
            note(f"the next task gets a new process, because this one left: {renew}")
        note(f"task {task.id} attempt {task.attempt} ends: {last['op']}")
        return channel.finish({**last, "renew": renew, "dropped_bytes": output.take_dropped()})

    def _outcome(self, handler: str, task: Task, channel: TaskChannel) -> dict[str, Any]:
        """Run the handler and return the last message. A process that it forked ends here, and reports nothing."""
        error: BaseException | None = None
        try:
            os.chdir(task.dir)
            last = self._run(handler, task, channel)
            _check_result(last)
            last = json.loads(json.dumps(last))  # the plain copy cannot run code of the handler's any more
        except BaseException as raised:  # noqa: BLE001 any error of a handler, SystemExit too: the task failed, not the host
            error = raised
        if PID() != self._pid:
            _end_fork(error)
        if isinstance(error, Cancelled):
            task.cancelled = True
            note(f"task {task.id} attempt {task.attempt} cancelled")
            raise error
        if error is not None:
            last = failure_of(error)
        return last

    def _run(self, handler: str, task: Task, channel: TaskChannel) -> dict[str, Any]:
        if handler.startswith("cmd:"):
            from . import commands  # noqa: PLC0415 imports subprocess

            return commands.run(handler[4:], task)
        if handler == protocol.SLURM_HANDLER:
            from . import slurm_job  # noqa: PLC0415 most tasks are no Slurm jobs

            return slurm_job.run(task)
        self._is_loading = self._state is None
        function = _function(handler, self._code)
        if self._state is None:
            with contextlib.suppress(TimeoutError):
                channel.ask({"op": "imported"}, IMPORTED_S)  # what the module has started may outlive the task
            self._streams.note_objects()
            self._state = ProcessState(usercode.places(self._code, handler))
        self._is_loading = False
        returned = self._call(function, task.params, task)
        if inspect.iscoroutine(returned):
            import asyncio  # noqa: PLC0415 few handlers are coroutines

            returned = self._call(asyncio.run, returned)
        return task.ended(returned)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the user's code. Afterwards the host's own code can run again, whatever was replaced."""
        assert self._state is not None  # noqa: S101 for the type checker
        self._state.begin()
        try:
            return contextvars.copy_context().run(_isolated, function, *arguments)
        finally:
            SET_TRACE(None)  # before any call of a Python function, at which a tracer may raise
            try:  # noqa: SIM105 a profiler may raise at a call of suppress too
                SET_PROFILE(None)
            except BaseException:  # noqa: BLE001, S110 it raised now, and so it has been removed
                pass
            self._state.restore_first()

    def _settle(self, folder: str) -> str | None:
        """Restore the process for the next task. Return what a handler changed for good; None if nothing."""
        try:
            left = self._state.restore(folder) if self._state else ["a part of its code"] if self._is_loading else []
            if not self._streams.restore():
                left.append("the standard streams")
        except Exception as error:  # noqa: BLE001 the handler may have replaced anything
            left = [f"a state that cannot be restored ({type(error).__name__})"]
        return ", ".join(left[:SHOWN_CHANGES]) or None


def _isolated(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a context of its own."""
    decimal = sys.modules.get("decimal")
    if decimal is not None:  # a context of decimal that the module has made is shared with this one
        decimal.setcontext(decimal.getcontext().copy())
    return function(*arguments)


def _end_fork(error: BaseException | None) -> None:
    """End a process that the handler has forked as Python ends a program. Never returns."""
    status = 0
    try:
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            status = (error.code or 0) & 0xFF
        elif error is not None:
            status = 1
            traceback.print_exception(type(error), error, error.__traceback__)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _function(handler: str, code: str | None) -> Any:
    module, _, path = handler.partition(":")
    found: Any = usercode.load(code, module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _check_result(last: dict[str, Any]) -> None:
    """Raise ResultRefused for a result that the orchestrator would refuse, so that the agent does not send it."""
    why = rules.location_problem(last.get("output_location")) or rules.result_problem(last.get("result_data"))
    if why:
        raise ResultRefused(f"the result cannot be stored: {why}; store large data as an output file")


def note(text: str) -> None:
    """Write a line of the host itself to handler.log."""
    output.ERR.write(f"--- {text}\n".encode("utf-8", "replace"))
