"""structlog set-up: one-line JSON with `level` and `message` for machines, sentences for terminals, no secrets.

Events are fixed `noun_verbed` names with facts as keys; `message` carries the phrases that operators grep for. Records
of third-party loggers, tracebacks, warnings and uncaught errors use the same output.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Iterable, MutableMapping
from types import TracebackType
from typing import Any, TextIO

import structlog

from orchestrator.observability.console_lines import console_line
from orchestrator.observability.redaction import hide, plain, redact

NOISY = ("asyncssh", "botocore", "boto3", "urllib3", "httpx", "httpcore", "apscheduler", "uvicorn.access", "paramiko")
log = structlog.get_logger()


def _steady(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Remove control characters from texts. The renderer shows other values by their repr."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = plain(value)
    return event


def configure(level: str = "INFO", secrets: Iterable[str] = (), stream: TextIO | None = None) -> None:
    """Send all logging of this process to `stream` (stderr) in one form, without these secrets."""
    hide(secrets)
    out = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _message,
    ]
    ending: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        _redacted,
        structlog.processors.JSONRenderer(default=str),
    ]
    if out.isatty():
        ending.insert(-1, _steady)
        ending[-1] = console_line
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = _Out(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=ending))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # A timer's job is skipped on purpose while the previous one still runs.
    logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)
    logging.getLogger("apscheduler.executors.default").addFilter(_is_no_cut)
    logging.captureWarnings(True)
    _log_uncaught_errors()


def _is_no_cut(record: logging.LogRecord) -> bool:
    """Drop records about cancelled jobs: only a shutdown cancels them, and it is no error."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class _Out(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Report a record that could not be written. logging's default would print its arguments unredacted."""
        kind = sys.exc_info()[0]
        sys.stderr.write(f"logging_failed: {kind.__name__ if kind else '?'} in a record of {record.name}\n")


def _log_uncaught_errors() -> None:
    def caught(where: str, error: BaseException | None) -> None:
        log.error("exception_uncaught", where=where, exc_info=error)

    def in_main(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
        caught("main", error)

    sys.excepthook = in_main
    threading.excepthook = lambda hooked: caught(hooked.thread.name if hooked.thread else "thread", hooked.exc_value)
    sys.unraisablehook = lambda hooked: caught(f"unraisable: {hooked.err_msg}", hooked.exc_value)


def _redacted(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    cleaned: dict[str, Any] = redact(event, by_name=True)
    return cleaned


def _message(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event.setdefault("message", str(event.get("event", "")).replace("_", " "))
    return event
