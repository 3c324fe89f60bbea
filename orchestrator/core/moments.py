"""The times of rows. PostgreSQL's calendar is longer than Python's, and it knows `infinity`."""

from datetime import UTC, datetime

EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)  # leaves a day for arithmetic


def moment(text: str) -> datetime:
    """Parse a time of the database. A time beyond Python's range becomes the first or last one that Python knows.

    A row with such a time (`-infinity` for a task that should run first) must not make every snapshot and every list
    fail.
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return EARLIEST if text.startswith("-") or text.endswith("BC") else LATEST
    # an older project may have a column without a time zone
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def maybe_moment(text: str | None) -> datetime | None:
    """Parse a time that may be null."""
    return None if text is None else moment(text)
