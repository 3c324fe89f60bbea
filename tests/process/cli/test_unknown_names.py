"""A filter by a pool or a task type that does not exist is an error with the nearest name, and no empty list."""

import asyncio
import json
import re
import uuid
from pathlib import Path

import psycopg
import pytest

from orchestrator.core.states import State
from testbed.shared_services import Database
from tests.process.cli.builders import Cli, Fleet

FILTERS = (["tasks", "list"], ["tasks", "watch"], ["tasks", "cancel", "--yes"], ["tasks", "retry", "--yes"])
OF_A_POOL = (*FILTERS, ["list"], ["list", "--all", "--watch"], ["pause"], ["resume"],
             ["scale", "limit", "--max", "1", "--for", "1h"], ["scale", "unlimit"])  # fmt: skip


async def test_an_unknown_pool_is_named_with_the_nearest_one(cli: Cli) -> None:
    """By every command that takes one; it is a wrong argument, and nothing is done."""
    runs = await asyncio.gather(*(cli(*words, "--pool", "defualt") for words in OF_A_POOL))
    for words, ran in zip(OF_A_POOL, runs, strict=True):
        assert (ran.code, ran.out) == (2, ""), (words, ran.err)
        first, why, _ = ran.err.splitlines()
        assert first == "error[E052]: there is no pool 'defualt'"
        assert re.fullmatch(r'why: the pools are .*default.*\. Did you mean "default"\?', why), why
    assert "paused" not in (await cli("list", "--pool", "default")).err


async def test_an_unknown_task_type_is_named_with_the_nearest_one(cli: Cli) -> None:
    """The known ones are those of WORKER_HANDLERS here, and those of the database."""
    name = f"segment-{uuid.uuid4().hex[:8]}"
    for words in FILTERS:
        ran = await cli(*words, "--type", f"{name}x", WORKER_HANDLERS=f"{name}=travel:segment")
        assert (ran.code, ran.out) == (2, ""), (words, ran.err)
        assert ran.err.startswith(f"error[E052]: there is no task type '{name}x'\nwhy: ")
        assert f'Did you mean "{name}"?\n' in ran.err
    (error,) = (await cli("tasks", "list", "--type", f"{name}x", "--json")).json()["errors"]
    assert error["id"] == "E052"


@pytest.mark.parametrize("status", ["Queued", "Failed"])
async def test_a_name_that_only_a_task_has_is_known(cli: Cli, fleet: Fleet, status: str) -> None:
    """Also if other filters select none of its tasks: that is an empty list."""
    name = f"own-{uuid.uuid4().hex[:8]}"
    await fleet.store.submit([{"task_type": name, "params": {}, "pool": name}])
    by_type, by_pool, near = await asyncio.gather(
        cli("tasks", "list", "--type", name, "--status", status),
        cli("tasks", "list", "--pool", name, "--status", status),
        cli("tasks", "list", "--type", f"{name}x"),
    )
    for ran in (by_type, by_pool):
        assert (ran.code, "No tasks found." in ran.out) == (0, status == "Failed"), ran.err
    assert near.err.endswith(f'Did you mean "{name}"?\nfix: python -m orchestrator tasks list --help\n')


async def test_a_pool_that_only_an_ended_worker_or_the_leader_has_is_known(
    cli: Cli, fleet: Fleet, postgres: Database
) -> None:
    """The machine of the operator need not have the leader's POOLS_FILE."""
    worker_id = await fleet.worker(upto=State.TERMINATED)
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
        await sql.execute("update workers set pool = 'a-former-pool' where id = %s", (worker_id,))
    await fleet.store.declare_release(fleet.term, {"big": "1", "default": "1"}, ["train"])
    for words in ("list --pool a-former-pool", "pause --pool big", "tasks list --type train"):
        ran = await cli(*words.split())
        assert ran.code == 0, ran.err


async def test_a_pool_of_the_pools_file_here_is_known(cli: Cli, tmp_path: Path) -> None:
    """Before any leader knows it: it can be paused in advance."""
    (tmp_path / "pools.toml").write_text('[pools.large]\ngpu_types = ["NVIDIA A100 80GB PCIe"]\n')
    ran = await cli("pause", "--pool", "large", "--json", POOLS_FILE=str(tmp_path / "pools.toml"))
    assert (ran.code, list(json.loads(ran.out)["pools"])) == (0, ["large"]), ran.err
    assert (await cli("resume", "--pool", "large")).code == 0  # the pause is known without the file
