"""Looks at the rows all the while: the sentences that an operator would be told, and waits that nobody ends."""

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import psycopg

LOOK_EVERY_S = 0.4
VERDICTS = ("ENDED", "ENDING", "FAILED")  # how the lines of `explain` begin that say it best
OVERDUE_S = 30  # a stage past its deadline for so long waits for nobody
Rows = Callable[..., Awaitable[Sequence[Mapping[str, Any]]]]
Explain = Callable[[str], Awaitable[str]]

# What the rows say, and of whom: a worker or task id, or `scaling`, as `explain` takes it.
SAID = """
    select e.worker_id as subject, e.to_state || ' ' || concat_ws(' ',
               case when e.to_state = 'terminating' then w.exit_cause end,
               case when e.to_state = 'terminating' then w.failure_code end, e.reason) as said
      from worker_events e join workers w on w.id = e.worker_id
    union all
    select worker_id, concat_ws(' ', stage, outcome, failure_code, exception_type, evidence ->> 'error')
      from worker_attempts where outcome <> 'ok'
    union all
    select id, concat_ws(' ', stage, waiting_on, waiting_for) from workers where status <> 'terminated'
    union all
    select id::text, concat_ws(' ', 'task failed', failure_code, error_message) from tasks where status = 'Failed'
    union all
    select 'scaling', blocked::text from decisions where blocked <> '[]'
"""
WAITS = """
    select id || ' waits in ' || stage || case when waiting_on is null or deadline_at is null
               or next_attempt_at is null then ' for nobody' else ' past its deadline' end as wait
      from workers
     where status <> 'terminated'
       and (waiting_on is null or deadline_at is null or next_attempt_at is null
            or (status in ('spawning', 'terminating') and deadline_at < now() - %s * interval '1 s'))
"""


class Witness:
    """Runs beside the trial; `named` is set once a sentence of `explain` names the cause."""

    def __init__(self, rows: Rows, explain: Explain, says: str) -> None:
        self._rows, self._explain, self._says = rows, explain, re.compile(says)
        self.wanted = bool(says)
        self.named = asyncio.Event()
        self.sentence = ""
        self.named_at = 0.0  # epoch seconds
        self.waits: set[str] = set()
        self._suspects: dict[str, float] = {}  # who a row that names the cause is about -> when it was first seen

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            with contextlib.suppress(psycopg.OperationalError):  # the trial may have taken the database away
                await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """One look at the rows; a subject whose row names the cause is explained, and the explanation must too."""
        self.waits |= {str(row["wait"]) for row in await self._rows(WAITS, OVERDUE_S)}
        if self.named.is_set() or not self.wanted:
            return
        for row in await self._rows(SAID):
            if self._says.search(row["said"]):
                self._suspects.setdefault(row["subject"], time.time())
        for subject in sorted(self._suspects, key=lambda one: (one == "scaling", one)):
            lines = [line for line in (await self._explain(subject)).splitlines() if self._says.search(line)]
            if lines:
                best = next((line for line in lines if line.startswith(VERDICTS)), lines[0])
                # The row counts, not how long this machine took to start the command that shows it.
                self.sentence, self.named_at = f"{subject}: {' '.join(best.split())}", self._suspects[subject]
                self.named.set()
                return
