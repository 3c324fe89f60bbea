"""`tasks output`: what a task has stored, listed, as addresses, and downloaded below one directory."""

import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.process.cli.builders import TIMEOUT_S, Cli, Fleet

FOLDER = re.compile("outputs/([0-9a-f-]{36})/")


async def complete(
    cli: Cli, fleet: Fleet, result: Any, *, task: str | None = None, location: str | None = None, needs: Any = ()
) -> str:
    """A Complete task with this result; its id, which is that of the outputs' folder."""
    kind = f"kind-{uuid.uuid4().hex[:8]}"
    found = FOLDER.search(json.dumps([location, result]))
    task = task or (found[1] if found else str(uuid.uuid4()))
    await fleet.store.submit([{"id": task, "task_type": kind, "pool": kind, "depends_on": list(needs)}])
    statement = "update tasks set status = 'Complete', result_data = %s, output_location = %s where id = %s"
    async with await psycopg.AsyncConnection.connect(str(cli.environment["DATABASE_URL"])) as connection:
        await connection.execute(statement, (Jsonb(result), location, task))
    return task


async def stored(fleet: Fleet, name: str, content: bytes, task: str | None = None) -> dict[str, Any]:
    """An object as a task's result lists it."""
    assert fleet.blobs is not None
    key = f"outputs/{task or uuid.uuid4()}/1-0123456789a/{name.rpartition('/')[2]}"
    await fleet.blobs.put(key, content, content_type="application/octet-stream")
    return {"name": name, "location": fleet.blobs.location(key), "bytes": len(content)}


async def test_files_are_listed_linked_and_downloaded(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str], tmp_path: Path
) -> None:
    """Whole, under the names that the handler gave, and never over a file that is there."""
    name = str(uuid.uuid4())
    files = [
        await stored(shipping_fleet, "film.mp4", b"film" * 999, name),
        await stored(shipping_fleet, "frames/1.png", b"1", name),
    ]
    task = await complete(cli, shipping_fleet, {"outputs": files, "frames": 48}, location=files[0]["location"])
    listed = await cli("tasks", "output", task[:13], **s3_environment)
    assert listed.code == 0, listed.err
    assert '"frames": 48' in listed.out
    assert [line.split()[0] for line in listed.out.splitlines()[-2:]] == ["film.mp4", "frames/1.png"]
    urls = (await cli("tasks", "output", task, "--url", **s3_environment)).out.split()
    async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
        assert [len((await client.get(url)).content) for url in urls] == [3_996, 1]
    document = (await cli("tasks", "output", task, "--url", "--json", **s3_environment)).json()
    assert [url.partition("?")[0] for url in document["urls"]] == [url.partition("?")[0] for url in urls]
    into = ("-o", str(tmp_path / "results"))
    ran = await cli("tasks", "output", task, *into, **s3_environment)
    assert ran.code == 0, ran.err
    assert (tmp_path / "results/film.mp4").read_bytes() == b"film" * 999
    assert (tmp_path / "results/frames/1.png").read_bytes() == b"1"
    again = await cli("tasks", "output", task, *into, **s3_environment)
    assert (again.code, again.out) == (1, "")
    assert "a file is there already" in again.err
    assert (await cli("tasks", "output", task, *into, "--force", **s3_environment)).code == 0
    document = (await cli("tasks", "output", task, "--json", **s3_environment)).json()
    assert [(one["name"], one["size"]) for one in document["outputs"]] == [("film.mp4", 3_996), ("frames/1.png", 1)]


NAMES = ["../escape", "/etc/passwd", "a/../../escape", "a\\..\\..\\escape", "\x1b[2J"]


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.full) for name in NAMES[1:])])
async def test_a_name_that_leads_out_of_the_directory_is_refused(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str], tmp_path: Path, name: str
) -> None:
    """Nothing is written."""
    file = await stored(shipping_fleet, "x", b"x")
    task = await complete(cli, shipping_fleet, {"outputs": [file | {"name": name}]})
    ran = await cli("tasks", "output", task, "-o", str(tmp_path / "into"), **s3_environment)
    assert (ran.code, ran.out) == (1, "")
    assert "error[E033]" in ran.err
    assert list(tmp_path.rglob("*")) == []


async def test_what_cannot_be_fetched_is_said(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str], tmp_path: Path
) -> None:
    """A task that is not Complete, a place outside the bucket, an object that is gone or has another size."""
    (queued,) = await shipping_fleet.store.submit([{"task_type": "t", "pool": "nobody"}])
    ran = await cli("tasks", "output", queued["id"])
    assert (ran.code, "it is Queued" in ran.err) == (1, True)
    elsewhere = await complete(cli, shipping_fleet, None, location="https://example.com/film.mp4")
    assert (await cli("tasks", "output", elsewhere)).lines_with("https://example.com/film.mp4")
    ran = await cli("tasks", "output", elsewhere, "--url", **s3_environment)
    assert (ran.code, "the output is not in the bucket" in ran.err) == (1, True)
    file = await stored(shipping_fleet, "x", b"x")
    for wrong, why in (({"bytes": 2}, "has 1 bytes; 2 were stored"), ({"location": file["location"] + "y"}, "404")):
        task = await complete(cli, shipping_fleet, {"outputs": [file | wrong]})
        ran = await cli("tasks", "output", task, "-o", str(tmp_path), **s3_environment)
        assert (ran.code, why in ran.err) == (1, True), ran.err
        assert list(tmp_path.iterdir()) == []


async def test_a_location_outside_the_folders_of_its_tasks_is_not_followed(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str], tmp_path: Path
) -> None:
    """A pod wrote it: not to another task, a log, or a list of another one; a dependency's output is its to name."""
    assert shipping_fleet.blobs is not None
    other, first = await stored(shipping_fleet, "x", b"secret"), await stored(shipping_fleet, "y", b"y")
    log = {"name": "log", "location": shipping_fleet.blobs.location("logs/gpu-1/agent.log"), "bytes": 6}
    await shipping_fleet.blobs.put("logs/gpu-1/agent.log", b"secret", content_type="text/plain")
    mine = str(uuid.uuid4())
    beside = {"name": "z", "location": shipping_fleet.blobs.location(f"outputs/{mine}/../{mine}x/1/z"), "bytes": 6}
    wrong: list[dict[str, Any]] = [
        {"location": str(other["location"]), "result": None},
        {"location": str(log["location"]), "result": None},
        {"result": {"outputs": [log]}},
        {"result": {"outputs": [other]}},
        {"result": {"outputs": [beside]}, "task": mine},
        {"result": {"outputs_list": other["location"]}},
    ]
    for one in wrong:
        task = await complete(cli, shipping_fleet, **{"task": str(uuid.uuid4()), **one})
        for how in (("--url",), ("-o", str(tmp_path / "into"))):
            ran = await cli("tasks", "output", task, *how, **s3_environment)
            assert (ran.code, ran.out) == (1, ""), ran.err
            assert "not in the folder of this task or of a task that it depends on" in ran.err
    assert list(tmp_path.rglob("*")) == []
    need = await complete(cli, shipping_fleet, None, location=first["location"])
    task = await complete(cli, shipping_fleet, {"outputs": [first]}, task=str(uuid.uuid4()), needs=[need])
    ran = await cli("tasks", "output", task, "-o", str(tmp_path / "into"), **s3_environment)
    assert (ran.code, (tmp_path / "into/y").read_bytes()) == (0, b"y"), ran.err


async def test_a_long_list_of_files_is_read_from_the_bucket(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str]
) -> None:
    """As the agent stores it if there are more than 2,000."""
    files = [{"name": f"{n}.png", "location": f"s3://logs/tests/outputs/{n}.png", "bytes": n} for n in range(2_500)]
    listed = await stored(shipping_fleet, "l", "".join(f"{json.dumps(one)}\n" for one in files).encode())
    task = await complete(cli, shipping_fleet, {"outputs_list": listed["location"], "outputs_count": 2_500})
    document = (await cli("tasks", "output", task, "--json", **s3_environment)).json()
    assert [one["name"] for one in document["outputs"]] == [one["name"] for one in files]
