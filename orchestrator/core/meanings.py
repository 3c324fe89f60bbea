"""What an operator needs to know about a code: the common fields of all catalogues, and shared phrases.

In a fix, `<worker>` and `<task>` are placeholders for the id of the worker or task that is shown.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

ORCHESTRATOR, PROVIDER, WORKER, OPERATOR = "orchestrator", "provider", "worker", "operator"
CAPACITY, BUDGET, NOBODY = "capacity", "budget", "nobody"

# What happens by itself.
REPLACED = "terminate, respawn: another pod is rented while there is work"
AVOIDED = "terminate, respawn elsewhere: the host is avoided for a while"
RESCUED = "its tasks are queued again; another worker is started"
AGAIN = "it goes back to the queue, after a pause, until its attempts are used up"
REQUEUED = "it goes back to the queue, the attempt counted: at once after the first loss, then after a pause"

# Fixes.
START_LEADER = "python -m orchestrator run"
MORE = "python -m orchestrator timeline <worker>"
LOGS = "python -m orchestrator logs <worker>"
RETRY = "python -m orchestrator tasks retry <task>"
IMAGE = "set RUNPOD_WORKER_IMAGE to an image that "
PUBLIC_KEY = 'set RUNPOD_SSH_PUBLIC_KEY="$(ssh-keygen -y -f ~/.ssh/id_ed25519)"'
PRIVATE_KEY = 'set RUNPOD_SSH_PRIVATE_KEY="$(cat ~/.ssh/id_ed25519)"'


@dataclass(frozen=True, slots=True)
class Meaning:
    """The explanation of one code."""

    means: str  # one sentence
    who: str  # the party that must act: one of the names above
    then: str  # what happens by itself
    fix: str  # a command or a setting


class Explained(StrEnum):
    """A catalogue: a string enumeration whose members carry a row, written as `NAME = "value", Meaning(…)`."""

    row: Any  # a Meaning, or a row of the catalogue's own

    def __new__(cls, value: str, row: Any = None) -> Self:
        """Attach the row to the member."""
        if row is None:
            raise TypeError(
                f"{cls.__name__} {value} has no row: write NAME = {value!r}, Meaning(means, who, then, fix)"
            )
        member = str.__new__(cls, value)
        member._value_, member.row = value, row
        return member
