"""The evidence of an attempt in one line of text."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
FIRST = ("error", "local", "remote", "address", "banner", "server", "key", "cause", "exit_status", "stderr", "log")
LONGEST = 160  # characters of one value
LONGEST_ERROR = 320  # of an error; its begin and its end are shown, because a program's output ends with the reason


def evidence_line(attempts: Sequence[Row], code: str | None) -> str | None:
    """Return the newest attempt with the code, or else the newest with any evidence, in one line. None without one."""
    closed = [attempt for attempt in attempts if attempt["outcome"] or attempt["evidence"]]
    bearing = [attempt for attempt in closed if code and attempt["failure_code"] == code]
    if not closed:
        return None
    attempt = (bearing or closed)[-1]
    times = sum(1 for one in bearing if one["stage"] == attempt["stage"])
    kind = f" ({attempt['exception_type']})" if attempt["exception_type"] else ""
    often = f" {times} times" if times > 1 else ""
    seen = evidence_text(attempt["evidence"] or {})
    return f"{attempt['stage']} {attempt['outcome'] or 'under way'}{often}{kind}" + (f": {seen}" if seen else "")


def evidence_text(evidence: Row) -> str:
    """Return evidence as text, the most important facts first."""
    facts = {name: value for name, value in evidence.items() if value not in (None, "", [], {})}
    parts = []
    if "local" in facts and "remote" in facts:
        parts.append(f"{facts.pop('local')} -> {facts.pop('remote')}")
    order = sorted(facts, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    parts += [_error(facts[name]) if name == "error" else f"{name} {_value(facts[name])}" for name in order]
    return ", ".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        is_log = bool(value) and all(isinstance(line, str) for line in value)  # its end is shown
        value = value[-1] if is_log else ", ".join("unknown" if one is None else str(one) for one in value)
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _error(value: Any) -> str:
    text = " ".join(str(value).split())
    if len(text) <= LONGEST_ERROR:
        return text
    head = LONGEST_ERROR // 5
    return f"{text[:head]} … {text[-(LONGEST_ERROR - head - 3) :]}"
