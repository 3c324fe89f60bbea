"""A logger for modules that commands import too: structlog takes a fifth of a short command's time to load."""

from typing import Any


class LazyLogger:
    """`structlog.get_logger()`, loaded by the first event."""

    def __getattr__(self, method: str) -> Any:
        import structlog  # noqa: PLC0415

        return getattr(structlog.get_logger(), method)
