"""What the screen asks the database, one question at a time, and the last answer to each."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.diagnostics import first_cause
from orchestrator.diagnostics.first_cause import FirstCause
from orchestrator.ports import PortError

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.ports import DatabaseHalf

DECISIONS = 10
ENDED = 50  # ended workers, if they are shown
TASKS = 100
RUNNING = "In Progress"


@dataclass(slots=True)
class TopState:
    """The last answers, and the question that is open. Times are seconds of the monotonic clock."""

    workers: Sequence[Mapping[str, Any]] = ()
    queue: "DatabaseHalf | None" = None
    leader: Mapping[str, Any] | None = None
    first_cause: FirstCause | None = None  # of what is wrong with the fleet
    tasks: Sequence[Mapping[str, Any]] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    beyond: Sequence[str] = ()  # statuses of which there are more than counted
    decisions: Sequence[Mapping[str, Any]] = ()
    asking: str | None = None  # what the open question is about
    asked_at_s: float = 0.0
    complete_at_s: float | None = None  # when the last round was complete
    error: str | None = None  # why the last question has no answer
    with_ended: bool = False

    def questions(self, store: "SqlStore") -> Sequence[tuple[str, Callable[[], Awaitable[None]]]]:
        """Return the questions of one round, each with its name. A call stores the answer."""

        async def workers() -> None:
            self.workers = await store.workers(all=self.with_ended, limit=ENDED)

        async def queue() -> None:
            self.queue = await store.snapshot()

        async def leader() -> None:
            standing = await store.leadership()
            self.leader, self.first_cause = standing["leader"], first_cause.of_standing(standing)

        async def tasks() -> None:
            newest = await store.find.tasks({}, TASKS)
            running = await store.find.tasks({"status": [RUNNING]}, TASKS)
            others = [row for row in newest["tasks"] if row["status"] != RUNNING]
            self.tasks, self.counts = [*running["tasks"], *others][:TASKS], newest["counts"]
            self.beyond = newest.get("counts_beyond", ())

        async def decisions() -> None:
            self.decisions = await store.decisions(DECISIONS)

        named = {"workers": workers, "tasks": tasks, "the queue": queue, "the leader": leader, "decisions": decisions}
        return tuple(named.items())

    async def ask(self, name: str, question: Callable[[], Awaitable[None]]) -> bool:
        """Ask one question and wait for its answer, however long that takes. Return whether it came."""
        self.asking, self.asked_at_s = name, time.monotonic()
        try:
            await question()
        except PortError as error:
            self.error = str(error) or type(error).__name__
            return False
        finally:
            self.asking = None
        return True

    def completed(self) -> None:
        """Note the end of a round in which every question was answered."""
        self.complete_at_s, self.error = time.monotonic(), None
