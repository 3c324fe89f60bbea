"""How the user called this program, so that help texts and fixes can be typed as they stand."""

import difflib
import os
import sys
from collections.abc import Iterable
from pathlib import PurePath

PROGRAM = "python -m orchestrator"  # how texts name the program until they are shown
CALLED_AS = "ORCHESTRATOR_CALLED_AS"  # `./run` sets it
MAX_CHARS = 100
SIMILARITY = 0.6  # ratio of difflib


def typed() -> str:
    """Return the words that start this program: `./run`, `orchestrator` or `python -m orchestrator`."""
    wrapper = os.environ.get(CALLED_AS, "")
    if wrapper and len(wrapper) <= MAX_CHARS and wrapper.isprintable():
        return wrapper
    return "orchestrator" if PurePath(sys.argv[0]).stem == "orchestrator" else PROGRAM


def as_typed(text: str) -> str:
    """Replace the program's name in a text by what the user typed."""
    return text.replace(PROGRAM, typed()) if PROGRAM in text else text


def quoted(word: str) -> str:
    """Return a word that a user typed, between quotes and without control characters."""
    return '"' + "".join(c if c.isprintable() else "?" for c in word[:MAX_CHARS]) + '"'


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean "x"?` for the most similar word; an empty text if none is similar."""
    names = {str(name).casefold(): str(name) for name in known}  # a code may be a member of an enumeration
    near = difflib.get_close_matches(word.casefold(), names, 1, SIMILARITY)
    return f" Did you mean {quoted(names[near[0]])}?" if near else ""
