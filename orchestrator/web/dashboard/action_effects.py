"""What an action would do, before anybody agrees; and how its fields are read."""

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.errors import BAD_ARGUMENT
from orchestrator.web.api.problems import Problem

Fields = Mapping[str, str]
MAX_REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class ActionEffect:
    """What an action would do, before anybody agrees."""

    question: str
    effects: tuple[str, ...]  # sentences, the cost among them
    command: str  # the same in a terminal
    back: str  # the page to which it belongs


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
    if not text.isdecimal() or not 0 < int(text[:9]) <= most:
        raise Problem(422, BAD_ARGUMENT, f"{what} is a whole number from 1 to {most}")
    return int(text[:9])
