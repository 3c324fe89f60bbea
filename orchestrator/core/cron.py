"""Cron expressions as other programs write them, as the five fields that CronSim reads."""

import re
from datetime import datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MACROS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
# The name of each field, the number of its values, what that many are together, and the letter of --every.
FIELDS = (
    ("minute", 60, "an hour", "m"),
    ("hour", 24, "a day", "h"),
    ("day", 31, "a month", "d"),
    ("month", 12, "a year", None),
    ("weekday", 7, "a week", "d"),
)
FORM = "use minute hour day month weekday"
MAX_CHARS = 200


class CronError(ValueError):
    """An expression that cannot be used. The text names the part."""


def times(text: str, after: datetime, zone: ZoneInfo, *, reverse: bool = False) -> CronSim:
    """Return the due times of an expression after a moment, or those before it, backwards. Raises CronError.

    A `?` of Quartz and AWS means any day. A step that is longer than its field is refused: `*/90` in the minutes would
    mean every hour.
    """
    fields = _fields(text)
    for part, (name, size, whole, letter) in zip(fields, FIELDS, strict=True):
        for step in re.findall(r"/(\d{1,6})", part):
            if int(step) > size:
                fix = f"; use --every {step}{letter}" if letter else ""
                raise CronError(f"the {name} {part!r} has a step beyond {whole}, so it would mean every one{fix}")
    try:
        return CronSim(" ".join(fields), after.astimezone(zone), reverse)
    except CronSimError as error:
        raise CronError(f"{error} in {text!r}: {FORM}") from error


def _fields(text: str) -> list[str]:
    """Return the five fields. Raises CronError for the forms of other programs that mean something else."""
    text = text.strip()[:MAX_CHARS]
    if text.startswith("@"):
        if text.lower() not in MACROS:
            raise CronError(f"{text!r} is none of {', '.join(MACROS)}; an interval is given by --every")
        text = MACROS[text.lower()]
    if re.match(r"(?:cron|rate)\(", text):
        raise CronError(f"{text!r} has the form of AWS: {FORM}, or --every")
    if re.match(r"(?:CRON_)?TZ=", text):
        raise CronError(f"{text!r} begins with a time zone: give it by --timezone")
    fields = text.split()
    if len(fields) != len(FIELDS):
        more = ", without seconds and years" if len(fields) > len(FIELDS) else ""
        raise CronError(f"Wrong number of fields in {text!r}, {len(fields)}: {FORM}{more}")
    if any(part.startswith("H") for part in fields):
        raise CronError(f"{text!r} has the H of Jenkins: write a number in its place")
    return [("*" if part == "?" and index in {2, 4} else part) for index, part in enumerate(fields)]
