"""Why a worker fell silent in service: what the last look at its pod (`metadata.last_snapshot`) showed of its agent."""

from collections.abc import Mapping
from typing import Any

from orchestrator.core.failures import SILENCES
from orchestrator.diagnostics.evidence import told

UNREACHED = "UNREACHED"


def subcause(look: Any) -> str | None:
    """A key of SILENCES; None where there was no look, or it did not see what became of the agent."""
    if not isinstance(look, Mapping):
        return None
    seen = UNREACHED if look.get("reached") is False else str(_section(look, "agent").get("exit_class")).upper()
    return seen if seen in SILENCES else None


def proof(look: Any) -> str | None:
    """What was seen of the agent, or why nothing could be, in one line; None without a look."""
    if not isinstance(look, Mapping) or not (look.get("known") or "reached" in look):
        return None
    agent = _section(look, "agent")
    last_word = {name: value for name, value in _section(agent, "done").items() if name != "at"}
    killed = _section(_section(look, "cgroup"), "memory_events").get("oom_kill") or None
    seen = {"agent": agent.get("exit_class"), "pid": agent.get("pid"), **last_word, "oom_kill": killed}
    return f"last look {look.get('at')}: {told(seen if look.get('known') else {'error': look.get('why')})}"


def _section(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of the look; empty where it was too large to be kept, or could not be read."""
    part = of.get(name)
    return part if isinstance(part, Mapping) else {}
