"""One fleet with a past, over Supabase's API alone; an orchestrator leads it or not, as the incident needs."""

import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from testbed.services.processes import Child
from testbed.stack import ROOT, Stack
from tests.process.cli import forked
from tests.process.cli.builders import Ran
from tests.process.guide.conftest import Fleet, fleet_of

HANDLERS = (ROOT / "tests" / "process" / "e2e" / "handlers" / "plain.py", ROOT / "examples" / "travel" / "travel.py")
SETTINGS = {
    "WORKER_HANDLERS": "work=plain:work,travel_stitch=travel:stitch",
    "MAX_ACTIVE_GPUS": "1",
    "TASKS_PER_GPU_THRESHOLD": "1",
    "GPU_IDLE_TIMEOUT_SEC": "600",
    "GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC": "600",
    "HEARTBEAT_TIMEOUT_SEC": "15",
}
Row = Mapping[str, Any]


@dataclass
class Incident:
    """The operator's terminal, and ways to cause trouble in the fleet."""

    fleet: Fleet
    leading: Child | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # of the one that leads, over the fleet's own

    async def led(self, **settings: str) -> None:
        """Let an orchestrator run with these settings."""
        if self.leading is None or settings != self.settings:
            await self.unled()
            self.leading, self.settings = await self.fleet.orchestrator(**settings), settings

    async def unled(self) -> None:
        """Let none run."""
        if self.leading is not None:
            await self.leading.stop()
            self.leading = None
            await self.sql("update fleet_lease set expires_at = now()")  # a busy machine has no time to give it back

    async def diagnose(self, *arguments: str, cwd: Path = ROOT / "scripts", **changes: str | None) -> Ran:
        """Run the command of an operator who knows only the guide."""
        script = str(ROOT / "scripts" / "comprehensive_diagnostics.py")
        return await self.fleet.script(script, *arguments, cwd=cwd, **changes)

    async def fault(self, kind: str, **fields: Any) -> None:
        """A fault of the provider's."""
        await self.fleet.stack.control("POST", "faults", {"kind": kind, **fields})

    async def well(self) -> None:
        """No fault, no task."""
        await self.fleet.stack.control("DELETE", "faults")
        await self.fleet.sql.execute("delete from tasks where status <> 'Complete'")

    async def workers(self, where: str, *values: object) -> Sequence[Row]:
        """This fleet's workers of which this is true, once there are any."""
        fleet = self.fleet.environment["FLEET_ID"]
        return await self.fleet.until(f"select * from workers where fleet = %s and {where}", fleet, *values)  # noqa: S608

    async def forget_failures(self) -> None:
        """Let five minutes pass for the rule that spaces spawns after a failure."""
        await self.sql("update workers set bringup_ended_at = bringup_ended_at - interval '6 minutes'")

    async def sql(self, query: str, *values: object) -> None:
        """A change by hand."""
        await self.fleet.sql.execute(query.encode(), values)


@pytest.fixture(scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Everything but an orchestrator; its database is a Supabase project's, and no DATABASE_URL is known."""
    directory = tmp_path_factory.mktemp("incidents")
    (directory / "handlers").mkdir()
    for path in HANDLERS:
        shutil.copy(path, directory / "handlers")
    async with Stack(directory / "stack", boot_s=(0.2, 0.4), transport="supabase", start=forked.start) as it:
        it.environment |= SETTINGS | {"WORKER_CODE_DIR": str(directory / "handlers")}
        await it.migrate()
        yield it


@pytest.fixture(scope="module")
async def past(stack: Stack) -> AsyncIterator[Incident]:
    """A fleet that has done a task, and whose worker waits for more."""
    async with fleet_of(stack) as fleet:
        incident = Incident(fleet)
        await incident.led()
        await fleet.submit({"task_type": "work", "params": {"seconds": 0.1}})
        await fleet.until("select 1 from tasks where status = 'Complete'")
        await incident.workers("status = 'idle'")
        yield incident


@pytest.fixture
async def incident(past: Incident) -> AsyncIterator[Incident]:
    """The same, and as it was again afterwards."""
    yield past
    await past.well()
