"""Why a promoted worker fell silent: what the final snapshot (`metadata.last_snapshot`) shows of its agent."""

from collections.abc import Mapping
from typing import Any

from orchestrator.core.failures import SILENCES
from orchestrator.diagnostics.evidence import evidence_text

UNREACHED = "UNREACHED"


def subcause(snapshot: Any) -> str | None:
    """Return a key of SILENCES; None without a snapshot, or if it does not show the agent's end."""
    if not isinstance(snapshot, Mapping):
        return None
    seen = UNREACHED if snapshot.get("reached") is False else str(_section(snapshot, "agent").get("exit_class")).upper()
    return seen if seen in SILENCES else None


def evidence_line(snapshot: Any) -> str | None:
    """Return what the snapshot shows, or why there is none, in one line. None without a snapshot."""
    if not isinstance(snapshot, Mapping) or not (snapshot.get("known") or "reached" in snapshot):
        return None
    agent = _section(snapshot, "agent")
    last_record = {name: value for name, value in _section(agent, "done").items() if name != "at"}
    killed = _section(_section(snapshot, "cgroup"), "memory_events").get("oom_kill") or None
    seen = {"agent": agent.get("exit_class"), "pid": agent.get("pid"), **last_record, "oom_kill": killed}
    shown = seen if snapshot.get("known") else {"error": snapshot.get("why")}
    return f"final snapshot {snapshot.get('at')}: {evidence_text(shown)}"


def _section(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of the snapshot; empty if it was too large to store, or could not be read."""
    part = of.get(name)
    return part if isinstance(part, Mapping) else {}
