"""A log that is truncated or replaced on its pod: the loss is declared, and the file goes on in a new generation."""

from dataclasses import replace

import pytest

from orchestrator.core.states import State
from orchestrator.worker_logs.generations import following, launch_of
from tests.process.worker_logs.logs import Crash, Crashing, Hauling


def test_generations_have_names_that_no_launch_has() -> None:
    """They sort by age, and lead back to their launch."""
    assert following("abc") == "abc.0002"
    assert following("abc.0002") == "abc.0003"
    assert launch_of("abc.0003") == launch_of("abc") == "abc"


@pytest.mark.parametrize("size", [400, 1_000, 5_000], ids=["smaller", "as large", "larger"])
async def test_a_replaced_file_is_shipped_from_its_start_and_the_loss_declared(hauling: Hauling, size: int) -> None:
    """logrotate, or a handler that opens its log for writing: nothing overlaps, and the ledger says what is missing."""
    shipper = hauling.shipper()
    hauling.write("handler", 1_000)
    await shipper.ship(hauling.rig.term, hauling.worker)
    old = hauling.file("handler").read_bytes()
    hauling.file("handler").unlink()
    hauling.write("handler", size)
    await shipper.ship(hauling.rig.term, hauling.worker)
    hauling.write("handler", 300)
    await shipper.ship(hauling.rig.term, hauling.worker)
    second = following(hauling.nonce)
    assert await hauling.shipped("handler", second) == hauling.file("handler").read_bytes()
    kept, lost = await hauling.pieces("handler")
    assert (kept["first"], kept["last"], kept["declared_lost"]) == (0, len(old), False)
    assert (lost["first"], lost["last"], lost["declared_lost"]) == (1_000, None, True)
    assert "truncated or replaced" in lost["reason"]


async def test_a_loss_has_its_size_if_a_heartbeat_reported_it(hauling: Hauling) -> None:
    """The old file had 1,700 bytes when its agent last said so: 700 of them are lost for certain."""
    shipper = hauling.shipper()
    hauling.write("handler", 1_000)
    await shipper.ship(hauling.rig.term, hauling.worker)
    await hauling.tells(handler=1_700)
    hauling.file("handler").write_bytes(b"")
    hauling.write("handler", 10)
    await shipper.ship(hauling.rig.term, hauling.worker)
    _, lost, rest = await hauling.pieces("handler")
    assert (lost["first"], lost["last"], lost["declared_lost"]) == (1_000, 1_700, True)
    assert (rest["first"], rest["last"], rest["declared_lost"]) == (1_700, None, True)


@pytest.mark.parametrize(("part", "method"), [("store", "log_begin"), ("blobs", "put"), ("store", "log_lost")])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_while_a_generation_begins_is_finished_by_the_next_process(
    hauling: Hauling, part: str, method: str, when: str
) -> None:
    """Whatever was written of it, the old one ends declared and the new one is shipped whole, once."""
    hauling.write("handler", 1_000)
    await hauling.shipper().ship(hauling.rig.term, hauling.worker)
    hauling.file("handler").write_bytes(b"")
    hauling.write("handler", 400)
    real = hauling.rig.store if part == "store" else hauling.blobs
    with pytest.raises(Crash):
        await hauling.shipper(**{part: Crashing(real, method, when)}).ship(hauling.rig.term, hauling.worker)
    await hauling.shipper().ship(hauling.rig.term, hauling.worker)
    assert await hauling.shipped("handler", following(hauling.nonce)) == hauling.file("handler").read_bytes()
    assert [row["declared_lost"] for row in await hauling.pieces("handler")] == [False, True]


async def test_a_file_that_is_empty_at_the_end_is_declared(hauling: Hauling) -> None:
    """Nothing follows that could show the loss: the end of the worker does."""
    shipper = hauling.shipper()
    hauling.write("handler", 1_000)
    await shipper.ship(hauling.rig.term, hauling.worker)
    hauling.file("handler").write_bytes(b"")
    await shipper.ship(hauling.rig.term, hauling.worker)
    assert len(await hauling.pieces("handler")) == 1
    await shipper.ship(hauling.rig.term, replace(hauling.worker, state=State.TERMINATING))
    _, lost = await hauling.pieces("handler")
    assert (lost["first"], lost["last"], lost["declared_lost"]) == (1_000, None, True)
