"""The times of rows. PostgreSQL's calendar is longer than Python's, and it knows `infinity`."""

from datetime import UTC, datetime

EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)  # leaves a day for arithmetic


def parsed(text: str) -> datetime:
    """Parse a time that somebody wrote; without a time zone it is UTC. Raises ValueError."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def moment(text: str) -> datetime:
    """Parse a time of a row. A time beyond Python's range becomes the first or last one that Python knows.

    A row with such a time (`-infinity` for a task that should run first) must not make every snapshot and every list
    fail. A column without a time zone, as in an older project, is in UTC.
    """
    try:
        return parsed(text)
    except ValueError:
        return EARLIEST if text.startswith("-") or text.endswith("BC") else LATEST


def maybe_moment(text: str | None) -> datetime | None:
    """Parse a time of a row that may be null."""
    return None if text is None else moment(text)
