"""The rows of schedules (functions/api/schedules.sql)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrator.adapters.rows import OPERATOR
from orchestrator.ports import Db

Row = Mapping[str, Any]


class ScheduleStore:
    """The schedules of a database. Every `term` is checked by the database (NotLeader)."""

    def __init__(self, db: Db, fleet: str) -> None:
        self._db, self._fleet = db, fleet

    async def _act(self, actor: str, action: str, name: str, args: Row) -> Row:
        """Do an action and note it in the audit log, in one transaction."""
        named = {"p_actor": actor, "p_action": action, "p_subject": name, "p_args": args}
        return dict(await self._db.call("fleet_act", p_fleet=self._fleet, **named))

    async def put(self, schedule: Row, *, actor: str = OPERATOR) -> Row:
        """Add or replace a schedule. Return {created, now, schedule}. BadArgument says what is wrong with it."""
        return await self._act(actor, "schedule.put", schedule["name"], dict(schedule))

    async def all(self) -> Row:
        """Return {now, schedules}; each with its last run."""
        return dict(await self._db.call("task_schedules"))

    async def pause(self, name: str, *, paused: bool, actor: str = OPERATOR) -> bool:
        """Pause or resume. Return whether there is such a schedule."""
        return bool((await self._act(actor, f"schedule.{'pause' if paused else 'resume'}", name, {}))["found"])

    async def remove(self, name: str, *, actor: str = OPERATOR) -> bool:
        """Remove a schedule with its runs. Return whether there was one."""
        return bool((await self._act(actor, "schedule.remove", name, {}))["found"])

    async def due(self, limit: int) -> tuple[datetime, Sequence[Row]]:
        """Return the database's time, and the schedules that the leader must look at."""
        row = await self._db.call("fleet_schedules_due", p_fleet=self._fleet, p_limit=limit)
        return datetime.fromisoformat(row["now"]), list(row["schedules"])

    async def run(
        self,
        term: int,
        name: str,
        seen: str | None,
        *,
        missed: Sequence[datetime],
        due_at: datetime | None,
        next_at: datetime,
    ) -> Row:
        """Close due times and continue with `next_at`. Return {outcome, task_id, reason}; "stale": `seen` changed."""
        times = {
            "p_missed": [moment.isoformat() for moment in missed],
            "p_due_at": due_at.isoformat() if due_at else None,
            "p_next_at": next_at.isoformat(),
        }
        return dict(
            await self._db.call(
                "fleet_schedule_run", p_fleet=self._fleet, p_term=term, p_name=name, p_seen=seen, **times
            )
        )

    async def set_aside(self, term: int, name: str, problem: str) -> None:
        """Record why due times cannot be worked out. The schedule waits until it is changed."""
        args = {"p_fleet": self._fleet, "p_term": term, "p_name": name, "p_problem": problem}
        await self._db.call("fleet_schedule_problem", **args)
