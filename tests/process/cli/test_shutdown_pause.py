"""The pause of `shutdown`: it ends with the command, and no other does."""

import asyncio
from pathlib import Path

from orchestrator.core.model import Pause
from orchestrator.core.states import Stage, State
from testbed.runpod.server import Emulator
from tests.process.cli.builders import Cli, Fleet


async def test_a_shutdown_ends_its_own_pause_alone(cli: Cli, fleet: Fleet, tmp_path: Path) -> None:
    """Somebody stops everything on the dashboard meanwhile: it stays stopped. So does a pool that was paused then."""
    async with Emulator(tmp_path, light=True) as emulator:
        asked = Cli({**cli.environment, "RUNPOD_API_KEY": emulator.api_key, "RUNPOD_API_BASE_URL": emulator.url})
        for reason in ("a fire", None):
            worker = await fleet.worker(upto=State.TERMINATING)
            running = asyncio.create_task(asked("shutdown", "--force"))
            while (await fleet.row(worker))["stop_requested_at"] is None:
                await asyncio.sleep(0.05)
            if reason:
                await fleet.store.pause(reason, actor="somebody")
            await fleet.store.pause("a test", pool="training", actor="somebody")
            await fleet.move(worker, State.TERMINATING, State.TERMINATED, stage=Stage.GONE)
            ran = await running
            assert ran.code == 0, ran.err
            assert ("still paused: *, training" if reason else "still paused: training") in ran.err
            every = {"*": Pause(reason, None)} if reason else {}
            assert (await fleet.store.snapshot()).paused == every | {"training": Pause("a test", None)}
            await fleet.store.pause(None, actor="somebody")
