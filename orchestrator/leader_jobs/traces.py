"""The leader's side of tracing: it makes spans from the rows of attempts that have ended, and exports them.

Nothing waits for a trace: claims and completions only write their rows. A new leader begins ten minutes earlier; the
spans that it makes twice have the same ids. Attempts that ended in a longer time without a leader have no spans.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from orchestrator.core.task_spans import TaskSpan, spans_of
from orchestrator.ports import Db

EVERY_S = 5.0
LAG_S = 5.0  # transactions that began earlier have committed
LIMIT = 500  # attempts of one call
CALLS = 20  # of one step
Row = Mapping[str, Any]


class SpanSink(Protocol):
    """Takes spans without waiting."""

    def put(self, spans: Sequence[TaskSpan]) -> None: ...


class Traces:
    """The spans of one fleet."""

    def __init__(self, db: Db, fleet: str, sink: SpanSink) -> None:
        self._db, self._fleet, self._sink = db, fleet, sink
        self._place: tuple[int, Row | None] = -1, None  # the term, and the last attempt

    async def step(self, term: int) -> None:
        """Export what has ended since the last step. Raises PortError."""
        if self._place[0] != term:
            self._place = term, None
        for _ in range(CALLS):
            args = {"p_cursor": self._place[1], "p_lag_s": LAG_S, "p_limit": LIMIT}
            answer = await self._db.call("fleet_ended_attempts", p_fleet=self._fleet, p_term=term, **args)
            rows: list[Row] = answer["attempts"]
            self._sink.put([span for row in rows if row["is_ours"] for span in spans_of(row)])
            if rows:
                last = rows[-1]
                place = {"at": last["ended_at"], "task": last["task_id"], "attempt": last["attempt"]}
                self._place = term, place
            if len(rows) < LIMIT:
                return
