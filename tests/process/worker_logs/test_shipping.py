"""Log bytes end to end: without a gap, never twice, and what is lost is declared."""

import asyncio
from dataclasses import replace
from typing import Any

import psutil
import psycopg
import pytest
from psycopg.rows import dict_row

import orchestrator.worker_logs.shipper as shipping
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.core.worker_metadata import WorkerMetadata
from orchestrator.pods import agent_commands
from orchestrator.ports import NotLeader, PortError, Unavailable
from orchestrator.worker_logs import pieces
from orchestrator.worker_logs.shipper import PIECE_BYTES
from testbed.audit import compare_logs
from testbed.services.s3 import REGION, EmbeddedS3
from tests.process.bringup.rig import DEADLINE_S, Rig
from tests.process.worker_logs.logs import Counting, Crash, Crashing, Hauling

STREAMS = ("agent", "handler", "system")
DEAD_S3 = ("http://127.0.0.1:9", "nobody", "nothing", "none", "", REGION)


async def test_random_bytes_arrive_unchanged_over_many_shipments_and_restarts(hauling: Hauling) -> None:
    """Three streams of two launches grow between shipments; every other shipment is a new process's."""
    shipper = hauling.shipper()
    total = 0
    for turn in range(6):
        for stream in STREAMS:
            hauling.write(stream, hauling.dice.choice((0, 1, 17, 4_096, 100_000, 300_000)))
        hauling.write("system", 1_000 + turn, boot_id="an-earlier-launch")
        if turn % 2:
            shipper = hauling.shipper()
        total += await shipper.ship(hauling.rig.term, hauling.worker)
    total += await hauling.shipper().ship(hauling.rig.term, hauling.worker)  # a new one looks for other launches
    for stream in STREAMS:
        assert await hauling.shipped(stream) == hauling.file(stream).read_bytes()
    earlier = hauling.file("system", "an-earlier-launch").read_bytes()
    assert await hauling.shipped("system", "an-earlier-launch") == earlier
    assert total == len(earlier) + sum(hauling.file(stream).stat().st_size for stream in STREAMS)


async def test_a_large_backlog_is_shipped_in_bounded_pieces(hauling: Hauling) -> None:
    """No piece is larger than the bound, so that memory is bounded too."""
    hauling.write("handler", 2 * PIECE_BYTES + 123)
    assert await hauling.shipper().ship(hauling.rig.term, hauling.worker) == 2 * PIECE_BYTES + 123
    sizes = [row["last"] - row["first"] for row in await hauling.pieces("handler")]
    assert sizes == [PIECE_BYTES, PIECE_BYTES, 123]
    assert await hauling.shipped("handler") == hauling.file("handler").read_bytes()


async def test_logs_stored_in_s3_are_deleted_on_the_pod(
    hauling: Hauling, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the newest of it, under the same offsets; what comes next is shipped as ever, by a new process too."""
    monkeypatch.setattr(shipping, "FREE_BYTES", 1 << 20)
    monkeypatch.setattr(shipping, "KEEP_BYTES", 1 << 18)
    file, shipper, written = hauling.file("handler"), hauling.shipper(), b""
    for size in (3 << 20, 100, 2 << 20, 1_000):
        shipper = hauling.shipper() if size == 1_000 else shipper
        hauling.write("handler", size)
        written += file.read_bytes()[len(written) :]
        assert await shipper.ship(hauling.rig.term, hauling.worker) == size
    assert await hauling.shipped("handler") == written
    assert file.stat().st_size == len(written)
    assert file.stat().st_blocks * 512 < 1 << 20
    assert file.read_bytes().endswith(written[-(1 << 18) :])
    async with await psycopg.AsyncConnection.connect(database, row_factory=dict_row) as sql:
        logs = await compare_logs(sql, [hauling.sshd.home], hauling.blobs)
    assert (logs.shipped, logs.missing) == (len(written), 0)


async def test_logs_are_shipped_although_the_pods_copy_cannot_be_deleted(
    hauling: Hauling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool is not on every image, and not every file system can do it."""
    monkeypatch.setattr(shipping, "FREE_BYTES", 1)
    monkeypatch.setattr(shipping, "KEEP_BYTES", 0)
    monkeypatch.setattr(agent_commands, "cut_command", lambda *_: "no-such-tool")
    shipper = hauling.shipper()
    for _ in range(2):
        hauling.write("handler", 1_000)
        assert await shipper.ship(hauling.rig.term, hauling.worker) == 1_000
    assert await hauling.shipped("handler") == hauling.file("handler").read_bytes()


async def test_without_new_logs_nothing_is_read(hauling: Hauling) -> None:
    """A quiet stream makes no object and no row."""
    blobs = Counting(hauling.blobs)
    shipper = hauling.shipper(blobs=blobs)
    hauling.write("agent", 100)
    assert await shipper.ship(hauling.rig.term, hauling.worker) == 100
    assert await shipper.ship(hauling.rig.term, hauling.worker) == 0
    assert len(blobs.put_keys) == len(await hauling.rig.store.log_pieces(hauling.worker.id)) == 1
    (piece,) = await hauling.pieces("agent")
    assert piece["key"] == f"logs/{hauling.worker.id}/{hauling.nonce}/agent/00000000-0-100.log.gz"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("part", "method"), [("store", "log_begin"), ("blobs", "put"), ("store", "log_shipped")])
async def test_a_crash_at_any_point_is_finished_by_the_next_process(
    hauling: Hauling, part: str, method: str, when: str
) -> None:
    """The same range goes to the same object, once; what was written meanwhile follows it."""
    hauling.write("agent", 50_000)
    await hauling.shipper().ship(hauling.rig.term, hauling.worker)
    hauling.write("agent", 70_000)
    real: Any = hauling.rig.store if part == "store" else hauling.blobs
    dying = hauling.shipper(**{part: Crashing(real, method, when)})
    with pytest.raises(Crash):
        await dying.ship(hauling.rig.term, hauling.worker)
    hauling.write("agent", 90_000)
    blobs = Counting(hauling.blobs)
    await hauling.shipper(blobs=blobs).ship(hauling.rig.term, hauling.worker)
    assert await hauling.shipped("agent") == hauling.file("agent").read_bytes()
    begun = (part, method, when) != ("store", "log_begin", "before")
    bounds = [row["last"] for row in await hauling.pieces("agent")]
    assert bounds == ([50_000, 120_000, 210_000] if begun else [50_000, 210_000])
    arrived = method == "log_shipped" or (method, when) == ("put", "after")
    assert len(blobs.put_keys) == (1 if arrived or not begun else 2)


async def test_an_outage_of_s3_delays_and_loses_nothing(hauling: Hauling) -> None:
    """The begun piece waits in the ledger and on the pod."""
    shipper = hauling.shipper(blobs=S3Blobs(*DEAD_S3))
    hauling.write("system", 5_000)
    with pytest.raises(Unavailable):
        await shipper.ship(hauling.rig.term, hauling.worker)
    hauling.write("system", 5_000)
    assert await hauling.shipper().ship(hauling.rig.term, hauling.worker) == 10_000
    assert await hauling.shipped("system") == hauling.file("system").read_bytes()


async def test_a_connection_that_breaks_is_made_again_by_the_next_shipment(hauling: Hauling) -> None:
    """A shipment may fail; the one after it finds its way."""
    shipper = hauling.shipper()
    for _ in range(3):
        hauling.write("agent", 1_000)
        hauling.sshd.cut()
        async with asyncio.timeout(DEADLINE_S):
            while (await hauling.pieces("agent") or [{"last": 0}])[-1]["last"] < hauling.file("agent").stat().st_size:
                try:
                    await shipper.ship(hauling.rig.term, hauling.worker)
                except Unavailable:
                    continue
    assert await hauling.shipped("agent") == hauling.file("agent").read_bytes()


async def test_a_rewritten_file_is_declared_lost(hauling: Hauling) -> None:
    """A begun piece whose bytes are gone is lost by name; what follows goes on from its end."""
    hauling.write("handler", 1_000)
    with pytest.raises(Crash):
        await hauling.shipper(blobs=Crashing(hauling.blobs, "put", "before")).ship(hauling.rig.term, hauling.worker)
    hauling.file("handler").write_bytes(b"y" * 1_500)
    await hauling.shipper().ship(hauling.rig.term, hauling.worker)
    lost, kept = await hauling.pieces("handler")
    assert (lost["first"], lost["last"], lost["declared_lost"], lost["shipped_at"]) == (0, 1_000, True, None)
    assert (kept["first"], kept["last"], kept["declared_lost"]) == (1_000, 1_500, False)
    assert kept["shipped_at"] is not None


async def test_a_stale_leader_ships_nothing(hauling: Hauling) -> None:
    """The database refuses its term before anything is put."""
    hauling.write("agent", 10)
    blobs = Counting(hauling.blobs)
    with pytest.raises(NotLeader):
        await hauling.shipper(blobs=blobs).ship(hauling.rig.term - 1, hauling.worker)
    assert blobs.put_keys == []


async def test_the_end_stops_the_agent_and_ships_its_last_byte(rig: Rig, db: PostgresDb, blobs: S3Blobs) -> None:
    """Against the real agent: nothing of it runs any more, and S3 has what lies on the pod."""
    worker, sshd = await rig.worker()
    await rig.bring_up().bring_up(rig.term, worker)
    (agent,) = rig.agents(sshd)
    worker = next(row for row in (await rig.store.snapshot()).workers if row.id == worker.id)
    hauling = Hauling(rig, db, blobs, sshd, worker)
    shipper = hauling.shipper()
    await shipper.ship(rig.term, worker)
    await shipper.finish(rig.term, worker, reachable=True)
    assert not psutil.pid_exists(agent["pid"]) or psutil.Process(agent["pid"]).status() == psutil.STATUS_ZOMBIE
    files = {stream: hauling.file(stream).read_bytes() for stream in STREAMS}
    assert files["agent"]
    assert {stream: await hauling.shipped(stream) for stream in STREAMS} == files


async def test_an_agent_that_cannot_be_stopped_is_shipped_all_the_same(hauling: Hauling) -> None:
    """What can be saved is saved before the flush is tried again."""
    hauling.write("agent", 3_000)
    (hauling.sshd.home / agent_commands.agent_path(hauling.rig.bundle.agent_sha)).unlink()
    with pytest.raises(Unavailable):
        await hauling.shipper().finish(hauling.rig.term, hauling.worker, reachable=True)
    assert await hauling.shipped("agent") == hauling.file("agent").read_bytes()


async def test_logs_lost_with_their_host_are_declared_with_their_size(hauling: Hauling) -> None:
    """From the last byte that arrived to the size last told of, and an open end after it; twice is once."""
    hauling.write("agent", 1_000)
    await hauling.shipper().ship(hauling.rig.term, hauling.worker)
    await hauling.tells(agent=1_700, handler=40)
    await hauling.sshd.stop()
    for _ in range(2):
        await hauling.shipper().finish(hauling.rig.term, hauling.worker, reachable=False)
    kept, known, open_end = await hauling.pieces("agent")
    assert (kept["first"], kept["last"], kept["declared_lost"]) == (0, 1_000, False)
    assert (known["first"], known["last"], known["declared_lost"]) == (1_000, 1_700, True)
    assert (open_end["first"], open_end["last"], open_end["declared_lost"]) == (1_700, None, True)
    assert "1700 bytes" in known["reason"]
    assert [(r["first"], r["last"]) for r in await hauling.pieces("handler")] == [(0, 40), (40, None)]
    assert [(r["first"], r["last"]) for r in await hauling.pieces("system")] == [(0, None)]


async def test_a_launch_that_ended_before_anything_of_it_was_shipped_is_declared_too(hauling: Hauling) -> None:
    """Its row remembers it: neither the ledger nor a heartbeat has ever named it."""
    hauling.worker = replace(hauling.worker, metadata=WorkerMetadata(launches=("an-earlier-launch",)))
    await hauling.sshd.stop()
    await hauling.shipper().finish(hauling.rig.term, hauling.worker, reachable=False)
    for stream in STREAMS:
        (lost,) = await hauling.pieces(stream, "an-earlier-launch")
        assert (lost["first"], lost["last"], lost["declared_lost"]) == (0, None, True)


async def test_a_piece_stored_before_the_host_was_lost_is_not_declared_lost(hauling: Hauling) -> None:
    """S3 is asked before anything is declared."""
    hauling.write("agent", 1_000)
    with pytest.raises(Crash):
        await hauling.shipper(blobs=Crashing(hauling.blobs, "put", "after")).ship(hauling.rig.term, hauling.worker)
    await hauling.tells(agent=1_000)
    await hauling.sshd.stop()
    await hauling.shipper().finish(hauling.rig.term, hauling.worker, reachable=False)
    arrived, open_end = await hauling.pieces("agent")
    assert arrived["shipped_at"] is not None
    assert (open_end["first"], open_end["last"]) == (1_000, None)


@pytest.mark.parametrize("fault", ["away", "refuses"])
async def test_s3_that_gives_no_answer_does_not_keep_a_lost_pod(hauling: Hauling, s3: EmbeddedS3, fault: str) -> None:
    """Declaring goes on without S3, and says what is not known."""
    hauling.write("agent", 1_000)
    with pytest.raises(Crash):
        await hauling.shipper(blobs=Crashing(hauling.blobs, "put", "before")).ship(hauling.rig.term, hauling.worker)
    await hauling.sshd.stop()
    refusing = (s3.endpoint_url, s3.access_key, "a revoked secret", "bucket", "", REGION)
    blobs = S3Blobs(*(DEAD_S3 if fault == "away" else refusing))
    await hauling.shipper(blobs=blobs).finish(hauling.rig.term, hauling.worker, reachable=False)
    lost, open_end = await hauling.pieces("agent")
    assert (lost["first"], lost["last"], lost["declared_lost"]) == (0, 1_000, True)
    assert "unknown" in lost["reason"]
    assert open_end["last"] is None


async def test_s3_that_accepts_and_never_answers_does_not_keep_a_lost_pod(
    hauling: Hauling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client waits for longer than a flush may take, which would be cut off at each try."""
    monkeypatch.setattr(pieces, "ASK_S", 0.5)
    hauling.write("agent", 1_000)
    with pytest.raises(Crash):
        await hauling.shipper(blobs=Crashing(hauling.blobs, "put", "before")).ship(hauling.rig.term, hauling.worker)
    await hauling.sshd.stop()
    let_go = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await let_go.wait()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        blobs = S3Blobs(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "k", "s", "b", "", REGION)
        try:
            async with asyncio.timeout(20):  # a third of what a flush may take, and less than the client waits
                await hauling.shipper(blobs=blobs).finish(hauling.rig.term, hauling.worker, reachable=False)
        finally:
            let_go.set()
            await blobs.close()
    lost, open_end = await hauling.pieces("agent")
    assert (lost["first"], lost["last"], lost["declared_lost"]) == (0, 1_000, True)
    assert "S3 did not answer within" in lost["reason"]
    assert open_end["last"] is None


async def test_nothing_is_shipped_after_the_end_was_declared(hauling: Hauling) -> None:
    """A pod that comes back after all does not contradict the ledger."""
    hauling.write("agent", 500)
    await hauling.shipper().finish(hauling.rig.term, hauling.worker, reachable=False)
    assert await hauling.shipper().ship(hauling.rig.term, hauling.worker) == 0
    assert [row["declared_lost"] for row in await hauling.pieces("agent")] == [True]


async def test_a_pod_out_of_reach_fails_the_flush_and_declares_nothing(hauling: Hauling) -> None:
    """Whether to give up is the planner's decision."""
    hauling.write("agent", 500)
    await hauling.sshd.stop()
    with pytest.raises(PortError):
        await hauling.shipper().finish(hauling.rig.term, hauling.worker, reachable=True)
    assert await hauling.pieces("agent") == []
