"""What the screen can change. Each action is a command of this program, so there is one implementation of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from textual.binding import Binding, BindingType

LOG_LINES = "200"


class Action(NamedTuple):
    """A command that runs after a question. `{id}` is the row under the cursor."""

    key: str  # an empty text: another action chooses it
    needs: str  # worker, task, or an empty text
    question: str
    command: Sequence[str]


ACTIONS: Mapping[str, Action] = {
    "terminate": Action(
        "t", "worker", "Terminate worker {id}? It finishes its tasks first, then its pod is deleted.",
        ("terminate", "{id}", "--yes"),
    ),
    "terminate now": Action(
        "T", "worker", "Terminate worker {id} now? Its running tasks are queued again.",
        ("terminate", "{id}", "--now", "--yes"),
    ),
    "cancel": Action(
        "c", "task", "Cancel task {id}? A running task is stopped.", ("tasks", "cancel", "{id}", "--yes")
    ),
    "retry": Action(
        "r", "task", "Queue task {id} again? Its attempts count from zero.", ("tasks", "retry", "{id}", "--yes")
    ),
    "spawn": Action("s", "", "Start one more worker of the first pool? It costs money while it runs.", ("spawn",)),
    "pause": Action(
        "", "", "Pause spawning in all pools? Running workers continue.", ("pause", "--reason", "paused in top")
    ),
    "resume": Action("", "", "Resume spawning in all pools?", ("resume",)),
}  # fmt: skip
BINDINGS: Sequence[BindingType] = [
    Binding(action.key, f"change({name!r})", name.capitalize(), show=name != "terminate now")
    for name, action in ACTIONS.items()
    if action.key
]


def logs(kind: str, row_id: str) -> Sequence[str]:
    """Return the command that shows the last log lines of a worker or a task."""
    return ("logs", row_id, "--lines", LOG_LINES) if kind == "worker" else ("logs", "--task", row_id)
