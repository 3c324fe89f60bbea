"""Log lines for a person at a terminal: a time, a sentence, and its facts in words. Machines get JSON."""

import json
import os
from collections.abc import MutableMapping
from typing import Any

from orchestrator.observability.redaction import plain

OWN = frozenset({"timestamp", "level", "event", "message", "exception", "stack", "exc_info"})
CLOCK = slice(11, 19)  # of an ISO 8601 time
LOUD = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


def console_line(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> str:
    """Return `16:02:11Z  worker promoted: worker gpu-1, pool default`. A warning or an error begins with that word."""
    level, said = str(event.get("level", "info")), str(event.get("message") or event.get("event", ""))
    facts = [f"{name.replace('_', ' ')} {_shown(value)}" for name, value in event.items() if name not in OWN]
    is_sentence = " ".join(str(event.get("event", "")).split("_")) != said
    text = said
    if facts:
        text = f"{said} ({', '.join(facts)})" if is_sentence else f"{said}: {', '.join(facts)}"
    text = f"{level}: {text}" if level in LOUD else text
    time = f"{str(event.get('timestamp', ''))[CLOCK]}Z"
    if not os.environ.get("NO_COLOR"):
        text = f"{LOUD[level]}{text}{PLAIN}" if level in LOUD else text
        time = f"{DIM}{time}{PLAIN}"
    more = [str(event[name]) for name in ("exception", "stack") if event.get(name)]
    return "\n".join([f"{time}  {text}", *more])


def _shown(value: Any) -> str:
    """Return a value in words: the items of a list or an object one after the other."""
    if isinstance(value, str):
        return " ".join(plain(value).split())
    if isinstance(value, dict):
        return ", ".join(f"{plain(str(name))} {_shown(item)}" for name, item in value.items()) or "none"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(_shown, value)) or "none"
    return "none" if value is None else plain(json.dumps(value, default=str))
