"""The errors of the configuration, all at once, each with what, why and the fix."""

from collections.abc import Iterable
from typing import NamedTuple


class SettingProblem(NamedTuple):
    """One thing that cannot be used as it is."""

    what: str
    why: str
    fix: str


SHOWN_CHARS = 80  # of a value that cannot be used
LIBRARY_WORDS = "Value error, "  # pydantic writes them before what our validators say
PATH_CHARS = 200  # of a path, whose end says most


def shown(value: object, most_chars: int = SHOWN_CHARS) -> str:
    """A value in quotes, of a long one its beginning: an answer fits on a screen."""
    text = repr(value)
    return text if len(text) <= most_chars else f"{text[:most_chars]}… ({len(text):,} characters)"


class SettingsError(Exception):
    """The configuration cannot be used; `problems` lists everything that is wrong with it."""

    def __init__(self, problems: Iterable[SettingProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.what}: {p.why}" for p in self.problems))
