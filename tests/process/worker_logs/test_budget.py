"""One pod takes a bounded part of what shipping has: bytes an hour, and time of a round."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import asyncssh
import pytest

from orchestrator.core.model import Worker
from orchestrator.core.states import Stage, State
from orchestrator.worker_logs import budget, schedule
from orchestrator.worker_logs.pod_files import PodFiles
from orchestrator.worker_logs.schedule import LogSchedule
from orchestrator.worker_logs.shipper import PIECE_BYTES
from tests.process.bringup.relay import _LetIn
from tests.process.worker_logs.logs import Hauling, Row

SOON_S = 40.0  # less than the minute for which one shipment may hold its place
STALL_S = 1.0  # of the hostile server, before each answer to a listing
ASKED: list[float] = []


class Stalls(asyncssh.SFTPServer):
    """A directory of a hundred launches; each listing takes a while."""

    async def scandir(self, path: bytes) -> AsyncIterator[asyncssh.SFTPName]:
        ASKED.append(asyncio.get_running_loop().time())
        await asyncio.sleep(STALL_S)
        for _ in range(0 if path.endswith(b"/logs") else 100):
            yield asyncssh.SFTPName(uuid.uuid4().hex.encode(), attrs=asyncssh.SFTPAttrs(size=1))


@asynccontextmanager
async def stalling(hauling: Hauling) -> AsyncIterator[Worker]:
    """A second worker, whose pod answers slowly and without end."""
    ASKED.clear()
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=_LetIn, server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        sftp_factory=Stalls, encoding=None, gss_host=None,
    )  # fmt: skip
    worker, _ = await hauling.rig.worker()
    at = {"ssh_host": "127.0.0.1", "ssh_port": server.get_port(), "host_key": None, "nonce": uuid.uuid4().hex}
    try:
        yield replace(worker, state=State.ACTIVE, stage=Stage.PROMOTED, **at)  # type: ignore[arg-type]
    finally:
        server.close()


async def test_a_pod_that_answers_slowly_delays_no_other_worker_s_logs(
    hauling: Hauling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for one shipment at a time: the slow one ends early, then pauses for a multiple of what it took."""
    monkeypatch.setattr(schedule, "CONCURRENT", 1)
    monkeypatch.setattr(schedule, "PAUSE_FACTOR", 100.0, raising=False)
    monkeypatch.setattr(budget.Round, "__init__", _short_round)
    hauling.write("agent", 1_000)
    async with stalling(hauling) as slow:
        rounds = LogSchedule(hauling.rig.store, hauling.shipper())
        async with asyncio.timeout(SOON_S):
            while not await hauling.pieces("agent") or not ASKED:
                rounds.begin(hauling.rig.term, [slow, hauling.worker], ())
                await asyncio.sleep(0.05)
        asked = len(ASKED)
        for size in (2_000, 3_000):
            hauling.write("agent", 1_000)
            async with asyncio.timeout(SOON_S):
                while not _arrived((await hauling.pieces("agent"))[-1], size):
                    rounds.begin(hauling.rig.term, [slow, hauling.worker], ())
                    await asyncio.sleep(0.05)
        assert asked <= len(ASKED) <= 5  # one round, and no other since
        rounds.stop()
    assert await hauling.shipped("agent") == hauling.file("agent").read_bytes()


def _arrived(piece: Row, size: int) -> bool:
    return piece["last"] == size and piece["shipped_at"] is not None


def _short_round(self: Any) -> None:
    self.limit_s, self.waited_s, self.shipped_bytes, self.withheld_bytes = schedule.FREE_WAIT_S, 0.0, 0, 0


async def test_beyond_its_bytes_an_hour_a_worker_s_logs_wait(hauling: Hauling, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay on the pod, the row says so, and they go on once an hour's share has come back."""
    clock = _clock(monkeypatch)
    monkeypatch.setattr(budget, "LOG_BYTES_PER_HOUR", PIECE_BYTES + 100)
    hauling.write("handler", 2 * PIECE_BYTES)
    shipper, term = hauling.shipper(), hauling.rig.term
    for _ in range(2):
        with pytest.raises(budget.BudgetSpent, match=f"{PIECE_BYTES} bytes wait"):
            await shipper.ship(term, hauling.worker)
    assert [row["last"] for row in await hauling.pieces("handler")] == [PIECE_BYTES]
    clock.append(budget.HOUR_S / 2)  # half of the share has come back
    with pytest.raises(budget.BudgetSpent):
        await shipper.ship(term, hauling.worker)
    clock.append(budget.HOUR_S / 2)
    assert await shipper.ship(term, hauling.worker) == PIECE_BYTES
    assert await hauling.shipped("handler") == hauling.file("handler").read_bytes()


async def test_at_the_end_what_the_budget_does_not_allow_is_declared_lost_with_its_size(
    hauling: Hauling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod does not stay, and cost money, until the budget has come back; no byte goes without a record."""
    _clock(monkeypatch)
    monkeypatch.setattr(budget, "LOG_BYTES_PER_HOUR", PIECE_BYTES + 100)
    hauling.write("handler", 2 * PIECE_BYTES + 7)
    hauling.write("agent", 50)
    monkeypatch.setattr(PodFiles, "stop", _nothing_to_stop)
    lost = await hauling.shipper().finish(hauling.rig.term, hauling.worker, reachable=True)
    assert lost == PIECE_BYTES + 7
    kept, known, open_end = await hauling.pieces("handler")
    assert (kept["first"], kept["last"], kept["declared_lost"]) == (0, PIECE_BYTES, False)
    assert (known["first"], known["last"], known["declared_lost"]) == (PIECE_BYTES, 2 * PIECE_BYTES + 7, True)
    assert (open_end["first"], open_end["last"]) == (2 * PIECE_BYTES + 7, None)
    assert "bytes an hour" in known["reason"]
    assert await hauling.shipped("agent") == hauling.file("agent").read_bytes()


def _clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time for the budgets alone: the sum of what is appended."""
    passed: list[float] = []
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: sum(passed)))
    return passed


async def _nothing_to_stop(*_: Any) -> None:
    return None
