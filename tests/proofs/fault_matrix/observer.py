"""Looks at the rows all the while: the sentences that an operator would be told, and waits that nobody ends."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import psycopg

from orchestrator.core.blocked import from_json, text

LOOK_EVERY_S = 0.4
VERDICTS = ("ENDED", "ENDING", "WAITING", "BLOCKED", "FAILED")  # beginnings of lines, the best first
CLOCKS = "since "  # … and the one that tells what would happen, and names codes that have not come true
OVERDUE_S = 30  # a stage past its deadline for so long waits for nobody
Rows = Callable[..., Awaitable[Sequence[Mapping[str, Any]]]]
Explain = Callable[[str], Awaitable[str]]
ExplainEach = Callable[[], Awaitable[Mapping[str, Sequence[str]]]]

# What rows say of tasks, of the pools and of who leads; workers and clusters are explained at every look.
SAID = """
    select task_id::text as subject, concat_ws(' ', 'attempt', outcome, failure_code) as said
      from task_attempts where outcome in ('failed', 'lost')
    union all
    select 'scaling', 'leader (term ' || term || ')'
                      || case when expires_at between now() and now() + interval '8 s' then ' is silent for' else '' end
      from fleet_lease
"""
BLOCKED = "select blocked from decisions where blocked <> '[]'"
WAITS = """
    select id || ' waits in ' || stage || case when waiting_on is null or deadline_at is null
               or next_attempt_at is null then ' for nobody' else ' past its deadline' end as wait
      from workers
     where status <> 'terminated'
       and (waiting_on is null or deadline_at is null or next_attempt_at is null
            or (status in ('spawning', 'terminating') and deadline_at < now() - %s * interval '1 s'))
"""


class Observer:
    """Runs beside the case; `named` is set once a sentence of `explain` names the cause."""

    def __init__(self, rows: Rows, explain: Explain, explain_each: ExplainEach, says: str) -> None:
        self._rows, self._explain, self._explain_each = rows, explain, explain_each
        self._says = re.compile(says)
        self.named = asyncio.Event()
        self.sentence = ""
        self.named_at = 0.0  # epoch seconds
        self.waits: set[str] = set()
        self._suspects: dict[str, float] = {}  # who a row that names the cause is about -> when it was first seen

    async def watch(self, has_begun: Callable[[], bool]) -> None:
        """Look until cancelled; what is said before the harm was done says nothing of it."""
        while True:
            try:
                await self.look(has_begun())
            except psycopg.OperationalError:  # the case has taken the database away: what does the command say?
                if has_begun() and not self.named.is_set():
                    self._settle("scaling", (await self._explain("scaling")).splitlines(), time.time())
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self, has_begun: bool = True) -> None:
        """One look at the rows; whom a row that names the cause is about is explained, and that must name it too."""
        self.waits |= {str(row["wait"]) for row in await self._rows(WAITS, OVERDUE_S)}
        if self.named.is_set() or not has_begun:
            return
        began = time.time()
        for subject, lines in (await self._explain_each()).items():
            if self._settle(subject, lines, began):
                return
        for row in [*await self._rows(SAID), *map(_blocked, await self._rows(BLOCKED))]:
            if self._says.search(row["said"]):
                self._suspects.setdefault(row["subject"], began)
        for subject in sorted(self._suspects, key=lambda one: (one == "scaling", one)):
            # The row counts, not how long this machine took to start the command that shows it.
            if self._settle(subject, (await self._explain(subject)).splitlines(), self._suspects[subject]):
                return

    def _settle(self, subject: str, lines: Sequence[str], at: float) -> bool:
        """Whether these lines name the cause: then the best of them is the sentence."""
        fitting = [line for line in lines if self._says.search(line) and not line.startswith(CLOCKS)]
        if not fitting or self.named.is_set():
            return False
        ranks = [next((n for n, how in enumerate(VERDICTS) if line.startswith(how)), len(VERDICTS)) for line in fitting]
        best = fitting[ranks.index(min(ranks))]
        self.sentence, self.named_at = f"{subject}: {' '.join(best.split())}", at
        self.named.set()
        return True


def _blocked(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a decision row says was blocked, in words."""
    return {"subject": "scaling", "said": "; ".join(text(from_json(reason)) for reason in row["blocked"])}
