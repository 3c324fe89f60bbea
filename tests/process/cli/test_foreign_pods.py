"""Pods of another database under our fleet id: all commands show them, only one with --database ends them."""

import asyncio
from pathlib import Path

from orchestrator.adapters.runpod import RunPodCloud
from testbed.runpod.server import Emulator
from tests.db.conformance.test_cloud import spec
from tests.process.cli.builders import Cli, Fleet


async def test_they_are_shown_and_ended_only_on_demand(cli: Cli, fleet: Fleet, fleet_id: str, tmp_path: Path) -> None:
    """Neither by `sync terminate_orphaned` nor by `shutdown`; with their database's identity they are."""
    async with Emulator(tmp_path, light=True) as emulator:
        cloud = RunPodCloud(emulator.api_key, base_url=emulator.url)
        theirs = await cloud.create_pod(spec(fleet_id=fleet_id, database_id="staging"))
        other = await cloud.create_pod(spec("gpu-2", fleet_id=fleet_id, database_id="gone"))
        asked = {**cli.environment, "RUNPOD_API_KEY": emulator.api_key, "RUNPOD_API_BASE_URL": emulator.url}
        end = ("sync", "terminate_orphaned", "--force")
        doctor, report, shutdown, reaped, refused = await asyncio.gather(
            *(Cli(asked)(*line) for line in (
                ("doctor", "pods"), ("health", "--json"), ("shutdown", "--force"), end,
                (*end, "--database", "x"),
            ))
        )  # fmt: skip
        assert {pod.id for pod in await cloud.list_pods()} == {theirs.id, other.id}
        fix = "if that database is gone: python -m orchestrator sync terminate_orphaned --database gone"
        for ran in (doctor, report, reaped):
            assert fix in ran.out + ran.err, ran
        assert (shutdown.code, reaped.code, refused.code) == (0, 0, 2)
        assert "Nothing is left" in shutdown.out
        assert f"belongs to another database ($0.69/h); left alone: {theirs.id}" in shutdown.err
        assert "the databases are: gone, staging" in refused.err
        planned = await Cli(asked)("plan")
        assert "2 more of this FLEET_ID belong to another database" in planned.err
        assert "foreign_pods_found" not in planned.out + planned.err, "a line of the log of a loop that does not run"
        ended = await Cli(asked)(*end, "--database", "gone", "--json")
        assert ended.code == 0, ended.err
        assert [one["database_id"] for one in ended.json()["pods_of_other_databases"]] == ["staging"]
        assert [pod.id for pod in await cloud.list_pods()] == [theirs.id]
