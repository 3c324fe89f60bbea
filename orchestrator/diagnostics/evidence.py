"""The proof line: what was seen, from the evidence that an attempt kept."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
FIRST = ("error", "local", "remote", "address", "banner", "server", "key", "cause", "exit_status", "stderr", "log")
LONGEST = 160  # characters of one value


def proof(attempts: Sequence[Row], code: str | None) -> str | None:
    """The newest attempt that bears the code, or the newest that has seen something, in one line; None without one."""
    closed = [attempt for attempt in attempts if attempt["outcome"] or attempt["evidence"]]
    bearing = [attempt for attempt in closed if code and attempt["failure_code"] == code]
    if not closed:
        return None
    attempt = (bearing or closed)[-1]
    times = sum(1 for one in bearing if one["stage"] == attempt["stage"])
    kind = f" ({attempt['exception_type']})" if attempt["exception_type"] else ""
    often = f" {times} times" if times > 1 else ""
    seen = told(attempt["evidence"] or {})
    return f"{attempt['stage']} {attempt['outcome'] or 'under way'}{often}{kind}" + (f": {seen}" if seen else "")


def told(evidence: Row) -> str:
    """Evidence in words, the telling facts first."""
    facts = {name: value for name, value in evidence.items() if value not in (None, "", [], {})}
    said = []
    if "local" in facts and "remote" in facts:
        said.append(f"{facts.pop('local')} -> {facts.pop('remote')}")
    order = sorted(facts, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    said += [_value(facts[name]) if name == "error" else f"{name} {_value(facts[name])}" for name in order]
    return ", ".join(said)


def _value(value: Any) -> str:
    if isinstance(value, list):
        value = value[-1] if value and all(isinstance(line, str) for line in value) else value  # a log: its last line
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
