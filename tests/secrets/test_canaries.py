"""Twelve secrets through the failure paths of a running fleet: found in no sink, and a planted leak is found."""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.demo.trials.__main__ import TRIALS
from orchestrator.demo.trials.ground import Ground
from orchestrator.demo.trials.scene import Scene
from orchestrator.demo.trials.trial import Trial, run
from tests.secrets.canaries import KEY, SETUP, TOKEN, Canaries, plant, released, report, search_what_stayed

SECRETS = 12
NAMED = {trial.name: trial for trial in TRIALS}
EXIT_3 = "echo fetching https://user:CANARY@packages.example/simple; env; cat ~/.orchestrator/run/*/config.json; exit 3"


async def setup_failed(scene: Scene) -> None:
    """Wait until a worker ended because its set-up command did."""
    await scene.until("select 1 from workers where failure_code = 'SETUP_FAILED' or exit_cause = 'spawn_failed'")
    await scene.rows("update tasks set status = 'Cancelled' where status = 'Queued' returning 1")


SETUP_FAILS = Trial(
    "setup_fails", "the set-up command fails and says too much", "", "", setup_failed,
    settings={"WORKER_SETUP_COMMAND": EXIT_3}, tasks=2, spares=False, keeps_logs=False, limit_s=60,
)  # fmt: skip
# Both kinds of ends in the ordinary run; CANARY_TRIALS=all takes every trial there is.
QUICK = (SETUP_FAILS, NAMED["agent_killed"])
CHOSEN = (SETUP_FAILS, *TRIALS) if os.environ.get("CANARY_TRIALS") == "all" else QUICK


@pytest.fixture(scope="session")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Postgres and S3 for all of them."""
    async with Ground(tmp_path_factory.mktemp("canaries")) as ground:
        yield ground


@pytest.mark.parametrize("trial", CHOSEN, ids=lambda trial: trial.name)
async def test_no_secret_is_left_anywhere(ground: Ground, tmp_path: Path, trial: Trial) -> None:
    """Not in output, rows, objects, command lines, pods, commands or HTTP; then one is planted in each, and found."""
    canaries = Canaries()
    planted: dict[str, str] = {}

    @contextlib.asynccontextmanager
    async def around(scene: Scene) -> AsyncIterator[None]:
        async with released(scene, canaries):
            yield
        clean.append(set(canaries.hits))
        planted.update(await plant(scene, canaries))
        await search_what_stayed(scene, canaries)

    clean: list[set[tuple[str, str]]] = []
    await run(replace(trial, name=f"canary_{trial.name}"), ground, tmp_path, around)
    assert clean == [set()], report(canaries)
    assert {KEY, TOKEN, SETUP} <= set(canaries.known)
    assert len(canaries.known) >= SECRETS, report(canaries)
    assert all(canaries.searched[sink] for sink in ("argv", "S3", "HTTP", "commands", "the orchestrators' output")), (
        report(canaries)
    )
    assert {(name, sink) for sink, name in planted.items()} <= canaries.hits, report(canaries)
