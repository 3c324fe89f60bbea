"""The state diagram of ARCHITECTURE.md, drawn from the table: `python -m orchestrator.core.state_diagram`."""

from orchestrator.core.states import TRANSITIONS, State

LABELS = {
    (State.SPAWNING, State.ACTIVE): "promoted: every stage is complete",
    (State.SPAWNING, State.TERMINATING): "deadline, fatal code, or no work left",
    (State.ACTIVE, State.IDLE): "asked for a task, none was ready",
    (State.IDLE, State.ACTIVE): "claimed a task",
    (State.ACTIVE, State.TERMINATING): "lost, silent, or requested to end",
    (State.IDLE, State.TERMINATING): "idle timeout, scale-down, lost, or requested to end",
    (State.TERMINATING, State.TERMINATED): "drained, flushed, deleted, absence confirmed",
}


def mermaid() -> str:
    """Draw the transitions as a Mermaid state diagram."""
    order = list(State)
    ranked = sorted(TRANSITIONS, key=lambda pair: (order.index(pair[0]), order.index(pair[1])))
    lines = ["stateDiagram-v2", "    [*] --> spawning: intent recorded"]
    lines += [f"    {old} --> {new}: {LABELS[old, new]}" for old, new in ranked]
    return "\n".join([*lines, "    terminated --> [*]"])


if __name__ == "__main__":
    print(mermaid())  # noqa: T201
