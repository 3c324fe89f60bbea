"""What an action would do, before anybody agrees; and how its fields are read."""

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.plurals import at_least
from orchestrator.diagnostics.amounts import usd
from orchestrator.errors import BAD_ARGUMENT
from orchestrator.web.api.problems import Problem

Fields = Mapping[str, str]
MAX_REASON_CHARS = 200
KEY = "key"  # a field
FORM_KEY = re.compile(r"[0-9]{8}_[0-9]{6}-[0-9a-f]{32}")
ID_CHARS = 24  # of a key, in the id of a worker


@dataclass(frozen=True, slots=True)
class ActionEffect:
    """What an action would do, before anybody agrees."""

    question: str
    effects: tuple[str, ...]  # sentences, the cost among them
    command: str  # the same in a terminal
    back: str  # the page to which it belongs


def per_hour(workers: Iterable[Mapping[str, Any]]) -> str:
    """What these workers cost: `at least $0.44/h` if the price of a pod is not known."""
    listed = list(workers)
    known = sum(float(one["price_usd_per_hour"] or 0) for one in listed)
    return f"{at_least(usd(known), unpriced(listed))}/h"


def unpriced(workers: Iterable[Mapping[str, Any]]) -> int:
    """How many workers have a pod whose price is not known."""
    return sum(one["price_usd_per_hour"] is None and one["pod_id"] is not None for one in workers)


def form_key(now: datetime) -> str:
    """A new form's key: its moment and 128 random bits. Its begin is the end of a worker's id."""
    return f"{now:%Y%m%d_%H%M%S}-{secrets.token_hex(16)}"


def worker_of_form(fields: Fields) -> str:
    """The id of the worker that a form starts: the same one, however often the form is sent."""
    sent = fields.get(KEY, "")
    return f"gpu-{(sent if FORM_KEY.fullmatch(sent) else form_key(datetime.now(UTC)))[:ID_CHARS]}"


@dataclass(frozen=True, slots=True)
class ActionDone:
    """What was done, in a sentence, and the page that shows it."""

    said: str
    to: str


def reason_of(fields: Fields, usual: str) -> str:
    """The reason that somebody gave, or the usual one."""
    return fields.get("reason", "").strip()[:MAX_REASON_CHARS] or usual


def number_of(fields: Fields, name: str, most: int, what: str) -> int | None:
    """A field that is a whole number from 1 to `most`; None if it is empty. Raises Problem."""
    text = fields.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text[:9]) <= most:
        raise Problem(422, BAD_ARGUMENT, f"{what} is a whole number from 1 to {most}")
    return int(text[:9])
