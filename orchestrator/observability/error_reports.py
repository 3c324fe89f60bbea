"""Reports the daemon's own unexpected errors to Sentry: log records of the level ERROR that have an exception.

A report has the types of the exceptions, the places in the code, and the name of the log event. It has no messages of
exceptions, no values of variables, no facts of the log event, and no environment: all of these can contain params of
tasks or secrets.
"""

import logging
import os
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from orchestrator.core.proxies import BadProxy, proxy_of

EVENT = re.compile(r"[a-z][a-z0-9_]{0,63}")  # the name of a log event
SAME_AGAIN_S = 60.0  # between two reports of one error
MAX_REMEMBERED = 200  # errors
MAX_EXCEPTIONS, MAX_FRAMES = 10, 100  # of one report
FLUSH_S = 0.5  # for reports that are being sent when the process ends
FRAME = ("filename", "function", "module", "lineno", "in_app")
Json = dict[str, Any]
log = structlog.get_logger()


@contextmanager
def reporting_errors(
    dsn: str | None, fleet: str, version: str, expected: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Report errors meanwhile, also the one that ends the process, unless it is an expected one.

    Without a DSN that can be used, nothing is reported.
    """
    reports = None if dsn is None else _opened(dsn, fleet, version)
    if reports is None:
        yield
        return
    root = logging.getLogger()
    root.addHandler(reports)
    try:
        yield
    except Exception as error:
        if not isinstance(error, expected):
            reports.report(error, "orchestrator_crashed", __name__)
        raise
    finally:
        root.removeHandler(reports)
        reports.close()


def _opened(dsn: str, fleet: str, version: str) -> "ErrorReports | None":
    try:
        return ErrorReports(dsn, fleet, version)
    except ModuleNotFoundError as error:
        words = f"no errors are reported: {error.name} is not installed; fix: pip install 'gpu-orchestrator[sentry]'"
    except BadProxy as error:
        words = f"no errors are reported: {error}"
    except ValueError:  # its text quotes the DSN
        words = "no errors are reported: SENTRY_DSN is no DSN; fix: copy it from the project's settings again"
    log.warning("error_reports_off", message=words)
    return None


class ErrorReports(logging.Handler):
    """A handler of the root logger. Reports are sent from a thread; more than its queue holds are dropped."""

    def __init__(self, dsn: str, fleet: str, version: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raise ModuleNotFoundError without sentry-sdk, and ValueError if the DSN is none."""
        from sentry_sdk import Client  # noqa: PLC0415  needed only with a DSN
        from sentry_sdk.utils import event_from_exception  # noqa: PLC0415

        super().__init__(logging.ERROR)
        self._clock, self._facts = clock, event_from_exception
        through = proxy_of(dsn, os.environ) or ""  # an empty text keeps the library from the environment
        self._told: OrderedDict[tuple[str, ...], float] = OrderedDict()
        # A client of our own: no integration, so nothing but `emit` makes a report.
        self._client = Client(
            dsn=dsn,
            http_proxy=through,
            https_proxy=through,
            release=version,
            environment=re.sub(r"[^A-Za-z0-9._-]", "_", fleet)[:64],
            server_name="",
            default_integrations=False,
            auto_enabling_integrations=False,
            auto_session_tracking=False,
            send_client_reports=False,
            include_local_variables=False,
            include_source_context=False,
            max_breadcrumbs=0,
            before_send=_bare,
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Report the record's exception, if it has one."""
        error = _error_of(record)
        if error is None or record.name.startswith(("sentry_sdk", "urllib3")):
            return
        name = record.msg.get("event", "") if isinstance(record.msg, dict) else ""
        name = name if isinstance(name, str) and EVENT.fullmatch(name) else record.name
        self.report(error, name, record.name)

    def report(self, error: BaseException, name: str, logger: str) -> None:
        """Report an error under the name of a log event, unless it was reported within a minute."""
        event, _ = self._facts(error, client_options=self._client.options)
        event = {**event, "logger": logger, "transaction": name, "level": "error"}
        if self._is_new(event, name):
            self._client.capture_event(event)

    def close(self) -> None:
        """Wait shortly for what is being sent."""
        self._client.close(timeout=FLUSH_S)
        super().close()

    def _is_new(self, event: Mapping[str, Any], name: str) -> bool:
        found = _exceptions(event)
        last = (found[-1]["stacktrace"]["frames"] or [{}])[-1] if found else {}
        kind = (name, *(one["type"] for one in found), str(last.get("filename")), str(last.get("lineno")))
        now_s = self._clock()
        if now_s - self._told.get(kind, -SAME_AGAIN_S) < SAME_AGAIN_S:
            return False
        self._told[kind] = now_s
        self._told.move_to_end(kind)
        if len(self._told) > MAX_REMEMBERED:
            self._told.popitem(last=False)
        return True


def _error_of(record: logging.LogRecord) -> BaseException | None:
    """The exception of a record, or of the structlog event that it carries."""
    given: Any = record.exc_info or (record.msg.get("exc_info") if isinstance(record.msg, dict) else None)
    if given is True:
        given = sys.exc_info()
    if isinstance(given, tuple):
        given = given[1]
    return given if isinstance(given, BaseException) else None


def _bare(event: Any, _hint: Any) -> Any:
    """What leaves the process: an allow-list."""
    kept = ("event_id", "timestamp", "platform", "level", "logger", "release", "environment", "transaction", "sdk")
    return {name: event[name] for name in kept if name in event} | {"exception": {"values": _exceptions(event)}}


def _exceptions(event: Mapping[str, Any]) -> list[Json]:
    """Types and frames."""
    values = (event.get("exception") or {}).get("values") or []
    return [
        {
            "type": str(one.get("type"))[:200],
            "module": one.get("module"),
            "stacktrace": {
                "frames": [
                    {name: frame.get(name) for name in FRAME}
                    for frame in ((one.get("stacktrace") or {}).get("frames") or [])[-MAX_FRAMES:]
                ]
            },
        }
        for one in values[-MAX_EXCEPTIONS:]
    ]
