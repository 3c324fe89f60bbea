"""The state of modules of the standard library which a handler may be the first to load."""

from __future__ import annotations

import os
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class LibraryState:
    """The state of these modules now. A module that is not loaded yet has the state of a new one."""

    def __init__(self) -> None:
        self._start_method = getattr(_start_methods(), "_actual_context", None)
        self._filters: list[Any] = warnings.filters  # type: ignore[assignment]
        self._filtered = list(self._filters)
        self._disabled = getattr(_log_manager(), "disable", 0)
        self._policy = getattr(sys.modules.get("asyncio.events"), "_event_loop_policy", None)
        self._is_traced = getattr(sys.modules.get("_tracemalloc"), "is_tracing", bool)()
        self._opener = getattr(sys.modules.get("urllib.request"), "_opener", None)

    def restore(self, folder: str) -> None:
        """Put back what a handler changed. `folder`: of its task, which will be deleted."""
        if warnings.filters is not self._filters or self._filters != self._filtered:
            self._filters[:] = self._filtered
            warnings.filters = self._filters
            getattr(warnings, "_filters_mutated", int)()  # empties the cache of what was shown
        if _start_methods() is not None:
            _start_methods()._actual_context = self._start_method  # noqa: SLF001 it can be set only once
        if _log_manager() is not None:
            _log_manager().disable = self._disabled
            _close_log_files(os.path.join(os.path.realpath(folder), ""))
        faults = sys.modules.get("faulthandler")
        if faults is not None:
            faults.cancel_dump_traceback_later()  # it would end the process during the next task
        requests: Any = sys.modules.get("urllib.request")
        if requests is not None:
            requests._opener = self._opener  # noqa: SLF001 it may have a proxy or a password
        memory = sys.modules.get("tracemalloc")
        if memory is not None and not self._is_traced:
            memory.stop()
        _restore_asyncio(self._policy)


def _start_methods() -> Any:
    return getattr(sys.modules.get("multiprocessing.context"), "_default_context", None)


def _log_manager() -> Any:
    return getattr(getattr(sys.modules.get("logging"), "root", None), "manager", None)


def _close_log_files(folder: str) -> None:
    """Take the files in a folder from all loggers. The next task configures its log as the first one did."""
    logging: Any = sys.modules["logging"]
    handlers = [reference() for reference in logging._handlerList.copy()]  # noqa: SLF001 all that exist
    found = [
        one for one in handlers
        if isinstance(one, logging.FileHandler) and os.path.realpath(one.baseFilename).startswith(folder)
    ]  # fmt: skip
    loggers = [logging.root, *logging.root.manager.loggerDict.copy().values()] if found else []
    for logger in loggers:
        for one in found:
            if one in getattr(logger, "handlers", ()):
                logger.removeHandler(one)
    for one in found:
        one.close()


def _restore_asyncio(policy: Any) -> None:
    """Let the next task have an event loop. One that is open stays: the user's objects may belong to it.

    `policy`: that of the module. If it had none, Python's own stays, but not one that a handler has set.
    """
    events: Any = sys.modules.get("asyncio.events")
    if events is None:
        return
    events._set_running_loop(None)  # noqa: SLF001 a handler that was interrupted may have left it
    now = getattr(events, "_event_loop_policy", None)
    if now is not policy and (policy is not None or not type(now).__module__.startswith("asyncio.")):
        events._event_loop_policy = policy  # noqa: SLF001
    local = getattr(getattr(events, "_event_loop_policy", None), "_local", None)
    loop = getattr(local, "_loop", None)
    if local is not None and (loop is None or loop.is_closed()):
        local._loop, local._set_called = None, False  # noqa: SLF001 as before asyncio.run, which allows no other loop
