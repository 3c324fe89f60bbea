"""`logs`: from the ledger and the bucket, with every hole named."""

import asyncio
import gzip
import re
from collections.abc import Mapping

from orchestrator.core.states import Stage, State
from tests.process.cli.builders import PROGRAM, TIMEOUT_S, Cli, Fleet, Ran, ended, start

CLOCKED = re.compile(r"\d\d:\d\d:\d\d~ (\w+) +\| (.*)")  # written shortly before this time


async def _logs(cli: Cli, s3: Mapping[str, str], *arguments: str) -> Ran:
    return await cli("logs", *arguments, **s3)


def _lines(first: int, count: int) -> bytes:
    return "".join(f"frame {number} \N{SNOWMAN}\n" for number in range(first, first + count)).encode()


async def test_the_last_lines_of_each_stream(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str]
) -> None:
    """Across objects, in order, each line with its time and its stream; bare with --raw."""
    worker_id = await shipping_fleet.worker(upto=State.ACTIVE)
    head, middle, tail = _lines(0, 10), _lines(10, 10)[:-7], _lines(10, 10)[-7:] + _lines(20, 5) + b"half a li"
    first = 0
    for seq, content in enumerate((head, middle, tail)):
        await shipping_fleet.ship(worker_id, "handler", seq, first, content)
        first += len(content)
    await shipping_fleet.ship(worker_id, "agent", 0, 0, b"claimed\n")
    ran = await _logs(cli, s3_environment, worker_id, "--lines", "7")
    assert ran.code == 0, ran.err
    shown = [f"frame {number} \N{SNOWMAN}" for number in range(19, 25)] + ["half a li"]
    found = [CLOCKED.fullmatch(line) for line in ran.out.splitlines()]
    assert [match and match.groups() for match in found] == [("handler", text) for text in shown]
    ran = await _logs(cli, s3_environment, worker_id, "--stream", "handler", "--lines", "0", "--raw")
    assert ran.out.encode() == head + middle + tail + b"\n"
    ran = await _logs(cli, s3_environment, worker_id, "--stream", "agent", "--json")
    document = ran.json()
    assert document.pop("at")
    assert document == {
        "schema_version": 1, "at_is_exact": False, "worker_id": worker_id, "stream": "agent", "line": "claimed",
    }  # fmt: skip


async def test_lost_bytes_are_named(cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str]) -> None:
    """With their number, or as unknown, and the reason; also after the worker's end."""
    worker_id = await shipping_fleet.worker(upto=State.TERMINATED)
    for stream, last in (("agent", None), ("handler", 1_008)):
        await shipping_fleet.ship(worker_id, stream, 0, 0, b"started\n")
        lost = (worker_id, "boot-1", stream, 8, last, "the pod vanished")
        await shipping_fleet.store.log_lost(shipping_fleet.term, *lost)
    ran = await _logs(cli, s3_environment, worker_id, "--stream", "agent", "--stream", "handler")
    assert ran.code == 0, ran.err
    assert sorted(line.split(" ", 1)[1] for line in ran.out.splitlines()) == ["agent   | started", "handler | started"]
    assert "agent: an unknown number of bytes from byte 8 on are lost: the pod vanished" in ran.err
    assert "handler: 1000 B from byte 8 to 1008 are lost: the pod vanished" in ran.err


async def test_a_worker_without_logs_says_so(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str]
) -> None:
    """Nothing shipped is not the same as nothing written."""
    worker_id = await shipping_fleet.worker()
    ran = await _logs(cli, s3_environment, worker_id)
    assert ran.code == 0
    assert f"{worker_id}: not from S3: nothing was shipped yet\n" in ran.err
    assert "Its log is missing: no part of it was stored." in ran.err


async def test_an_object_that_was_changed_or_deleted_is_an_error(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str]
) -> None:
    """What the ledger says was shipped is checked, byte for byte."""
    worker_id = await shipping_fleet.worker()
    piece = await shipping_fleet.ship(worker_id, "agent", 0, 0, b"started\n")
    assert shipping_fleet.blobs is not None
    await shipping_fleet.blobs.put(piece.key, gzip.compress(b"forged!\n"), content_type="application/gzip")
    ran = await _logs(cli, s3_environment, worker_id, "--stream", "agent")
    assert (ran.code, ran.out) == (1, "")
    assert "error[E032]" in ran.err
    ran = await _logs(cli, {**s3_environment, "S3_PREFIX": "elsewhere"}, worker_id, "--stream", "agent")
    assert (ran.code, ran.out) == (1, "")
    assert "error[E031]" in ran.err


async def test_following_shows_what_comes_and_ends_with_the_worker(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str]
) -> None:
    """A line that is torn between two objects comes whole."""
    worker_id = await shipping_fleet.worker(upto=State.TERMINATING)
    await shipping_fleet.ship(worker_id, "agent", 0, 0, b"one\ntw")
    following = await start(
        *PROGRAM,
        "logs",
        worker_id,
        "-f",
        "--stream",
        "agent",
        "--raw",
        environment={**cli.environment, **s3_environment},
    )
    assert following.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        assert await following.stdout.readline() == b"one\n"
    await shipping_fleet.ship(worker_id, "agent", 1, 6, b"o\nthree\n")
    await shipping_fleet.move(worker_id, State.TERMINATING, State.TERMINATED, stage=Stage.GONE)
    ran = await ended(following)
    assert ran.code == 0, ran.err
    assert ran.out == "two\nthree\n"
    assert "has ended" in ran.err


async def test_without_a_bucket_the_database_tells_what_it_kept(cli: Cli, shipping_fleet: Fleet) -> None:
    """And which settings are missing; an ended worker's pod is not asked."""
    worker_id = await shipping_fleet.worker(upto=State.TERMINATED)
    ran = await cli("logs", worker_id)
    assert ran.code == 0
    assert f"{worker_id}: not from S3: S3_BUCKET is missing" in ran.err
    assert f"{worker_id}: not over SSH: it has ended" in ran.err
    assert f"{worker_id}: from the database, " in ran.err
    assert ran.lines_with("terminating -> terminated")
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d  database \| .*", line) for line in ran.out.splitlines())


async def test_all_live_workers_are_read_when_none_is_named(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str]
) -> None:
    """Each under its name; an ended one is not among them."""
    first, second = [await shipping_fleet.worker(upto=State.ACTIVE) for _ in range(2)]
    ended_one = await shipping_fleet.worker(upto=State.TERMINATED)
    for name in (first, second, ended_one):
        await shipping_fleet.ship(name, "agent", 0, 0, f"this is {name}\n".encode())
    ran = await _logs(cli, s3_environment, "--stream", "agent")
    expected = {f"{name} agent   | this is {name}" for name in (first, second)}
    assert {line.split(" ", 1)[1] for line in ran.out.splitlines()} == expected
    assert all(f"{name}: from S3" in ran.err for name in (first, second))
    assert ended_one not in ran.err


async def test_several_workers_are_merged_in_the_order_of_time(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str]
) -> None:
    """With the time that a line itself has; the agent's own log is shown on request, as text."""
    first, second = [await shipping_fleet.worker(upto=State.ACTIVE) for _ in range(2)]
    for worker_id, seconds in ((first, (1, 4)), (second, (2, 3))):
        text = "".join(f"2026-11-20 22:31:0{n},500 line {n}\nmore of {n}\n" for n in seconds)
        await shipping_fleet.ship(worker_id, "handler", 0, 0, text.encode())
        event = f'{{"at": "2026-11-20T22:31:0{seconds[0]}.000Z", "event": "task_claimed", "attempt": 1}}\n'
        await shipping_fleet.ship(worker_id, "agent", 0, 0, event.encode())
    ran = await _logs(cli, s3_environment, first, second)
    shown = [line.split(" ", 2) for line in ran.out.splitlines() if " line " in line]
    assert [words[2].split()[0] for words in shown] == [first, second, second, first]
    assert [words[2].rsplit(" ", 1)[1] for words in shown] == ["1", "2", "3", "4"]
    assert "task_claimed" not in ran.out
    ran = await _logs(cli, s3_environment, first, "--stream", "agent")
    assert ran.out == "11-20 22:31:01  agent   | task_claimed attempt=1\n"


async def test_a_tasks_part_of_the_log_is_cut_out(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str]
) -> None:
    """From where the handler's log stood when it was claimed to where it stood at its end; what is missing is said."""
    fleet, worker_id = shipping_fleet, await shipping_fleet.worker(upto=State.ACTIVE)
    first = {"task_type": f"t-{worker_id}", "params": {}, "priority": 1_000}  # before what other tests left
    [submitted] = await fleet.store.submit([first])
    name = {"p_worker_id": worker_id, "p_nonce": "boot-1"}
    await fleet.db.call("worker_register", **name, p_agent={"protocol": 1})
    size = {"handler": 7}
    await fleet.db.call("worker_heartbeat", **name, p_tasks=[], p_health=None, p_logs=size)
    claim = {"p_claim_no": 1, "p_batch": 1, "p_wait_s": 0}
    [task] = (await fleet.db.call("worker_claim", **name, **claim))["tasks"]
    assert task["id"] == submitted["id"]
    size = {"handler": 21}
    held = [{"id": task["id"], "attempt": task["attempt"]}]
    await fleet.db.call("worker_heartbeat", **name, p_tasks=held, p_health=None, p_logs=size)
    ending = {"p_task_id": task["id"], "p_attempt": task["attempt"], "p_output_location": None, "p_result_data": None}
    await fleet.db.call("worker_complete", **name, **ending)
    await fleet.ship(worker_id, "handler", 0, 0, b"before\nduring")
    ran = await _logs(cli, s3_environment, "--task", task["id"], "--raw")
    assert (ran.code, ran.out) == (0, "during\n"), ran.err
    assert f"attempt {task['attempt']} on {worker_id}: complete: from S3; 8 B of 14 B are missing" in ran.err


async def test_a_quick_tasks_part_ends_at_its_own_mark(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str]
) -> None:
    """It may be over before a heartbeat tells how long the log is; what others wrote around it is not its own."""
    fleet, worker_id = shipping_fleet, await shipping_fleet.worker(upto=State.ACTIVE)
    [submitted] = await fleet.store.submit([{"task_type": f"t-{worker_id}", "params": {}, "priority": 1}])
    name = {"p_worker_id": worker_id, "p_nonce": "boot-1"}
    await fleet.db.call("worker_register", **name, p_agent={"protocol": 1})
    claim = {"p_claim_no": 1, "p_batch": 1, "p_wait_s": 0}
    [task] = (await fleet.db.call("worker_claim", **name, **claim))["tasks"]
    ending = {"p_task_id": task["id"], "p_attempt": task["attempt"], "p_output_location": None, "p_result_data": None}
    await fleet.db.call("worker_complete", **name, **ending)
    mine = f"--- task {task['id']} attempt 1"
    log = f"--- task x attempt 1 begins: a:b\nx\n{mine} begins: a:b\nmine\n{mine} ends: done\n--- task y begins: a:b\n"
    await fleet.ship(worker_id, "handler", 0, 0, log[:60].encode())
    await fleet.ship(worker_id, "handler", 1, 60, log[60:].encode())
    ran = await _logs(cli, s3_environment, "--task", submitted["id"], "--raw")
    assert ran.out == f"{mine} begins: a:b\nmine\n{mine} ends: done\n"
    assert f"attempt 1 on {worker_id}: complete: from S3\n" in ran.err
