"""Why a promoted worker fell silent: what the final snapshot (`metadata.last_snapshot`) shows of its agent."""

from collections.abc import Mapping
from typing import Any

from orchestrator.core.failures import SILENCES
from orchestrator.diagnostics.evidence import evidence_text

UNREACHED = "UNREACHED"


def subcause(look: Any) -> str | None:
    """Return a key of SILENCES; None without a snapshot, or if it does not show the agent's end."""
    if not isinstance(look, Mapping):
        return None
    seen = UNREACHED if look.get("reached") is False else str(_section(look, "agent").get("exit_class")).upper()
    return seen if seen in SILENCES else None


def evidence_line(look: Any) -> str | None:
    """Return what the snapshot shows, or why there is none, in one line. None without a snapshot."""
    if not isinstance(look, Mapping) or not (look.get("known") or "reached" in look):
        return None
    agent = _section(look, "agent")
    last_word = {name: value for name, value in _section(agent, "done").items() if name != "at"}
    killed = _section(_section(look, "cgroup"), "memory_events").get("oom_kill") or None
    seen = {"agent": agent.get("exit_class"), "pid": agent.get("pid"), **last_word, "oom_kill": killed}
    return f"last look {look.get('at')}: {evidence_text(seen if look.get('known') else {'error': look.get('why')})}"


def _section(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of the snapshot; empty if it was too large to store, or could not be read."""
    part = of.get(name)
    return part if isinstance(part, Mapping) else {}
