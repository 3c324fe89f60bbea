"""structlog set-up: one-line JSON with `level` and `message` for machines, colours for terminals, secrets for nobody.

Events are fixed `noun_verbed` names with facts as keys; `message` carries the phrases that operators grep for. Records
of third-party loggers take the same way out, tracebacks included.
"""

import logging
import sys
from collections.abc import Iterable, MutableMapping
from typing import Any, TextIO

import structlog

HIDDEN = "[redacted]"
SECRET_WORDS = ("secret", "password", "token", "api_key", "apikey", "private_key", "authorization", "database_url")
NOT_SECRET = ("token_jti",)


class Redact:
    """A processor that hides secrets by value, wherever they stand, and by the name of their key."""

    def __init__(self, secrets: Iterable[str]) -> None:
        parts = {s.strip() for s in secrets} | {line.strip() for s in secrets for line in s.splitlines()}
        self._values = sorted((p for p in parts if len(p) >= 8), key=len, reverse=True)  # noqa: PLR2004  shorter hides words

    def __call__(self, _logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for key in list(event):
            named = any(word in key.lower() for word in SECRET_WORDS) and key not in NOT_SECRET
            event[key] = HIDDEN if named else self.clean(event[key])
        return event

    def clean(self, value: Any) -> Any:
        """The value with every secret in it replaced."""
        if isinstance(value, str):
            for secret in self._values:
                value = value.replace(secret, HIDDEN)
            return value
        if isinstance(value, dict):
            return {k: self.clean(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.clean(v) for v in value]
        return value


def _message(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event.setdefault("message", str(event.get("event", "")).replace("_", " "))
    return event


def _steady(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Nothing from elsewhere steers the terminal; what is not text, the renderer shows by its repr."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = "".join(c if c.isprintable() or c in "\n\t" else "·" for c in value)
    return event


def configure(level: str = "INFO", secrets: Iterable[str] = (), stream: TextIO | None = None) -> None:
    """Send all logging of this process to `stream` (stderr) in one form."""
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
        Redact(tuple(secrets)),
        structlog.processors.JSONRenderer(default=str),
    ]
    if out.isatty():
        ending.insert(-1, _steady)
        ending[-1] = structlog.dev.ConsoleRenderer(event_key="message")
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=ending))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("asyncssh", "botocore", "urllib3", "httpx", "apscheduler", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
