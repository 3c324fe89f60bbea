"""The orchestrator knows from its own calls whether the object store serves it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.adapters.s3 import S3Blobs
from orchestrator.loop import store_watch
from orchestrator.loop.store_watch import StoreWatch
from orchestrator.ports import BlobRefused, PortError, Unavailable
from testbed.services.s3 import REGION, EmbeddedS3

DEADLINE_S = 60.0


@pytest.fixture
async def own_s3(tmp_path: Path) -> AsyncIterator[EmbeddedS3]:
    """A server that may be stopped."""
    async with EmbeddedS3(tmp_path / "s3") as server:
        await server.create_bucket("bucket")
        yield server


async def until(watch: StoreWatch, blobs: S3Blobs, *, away: bool) -> str:
    """Look as the loop does until the store is (or is no longer) away; why it is."""
    async with asyncio.timeout(DEADLINE_S):
        while ((found := watch.outage()) is not None) is not away or not watch.is_known:
            await watch.probe_if_due(blobs)
            await asyncio.sleep(0.05)
    return found[1] if found else ""


async def test_an_outage_is_noticed_and_its_end_is_too(own_s3: EmbeddedS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a probe where nobody calls; one failure alone is a hiccup."""
    monkeypatch.setattr(store_watch, "QUIET_S", 0.1)
    watch = StoreWatch()
    blobs = S3Blobs(
        own_s3.endpoint_url, own_s3.access_key, own_s3.secret_key, "bucket", "fleet", REGION, on_call=watch.note_call
    )
    assert (watch.outage(), watch.is_known) == (None, False)
    await until(watch, blobs, away=False)
    await own_s3.stop()
    assert "S3 does not answer" in await until(watch, blobs, away=True)
    await own_s3.start()
    await until(watch, blobs, away=False)
    await blobs.put("after", b"x", content_type="text/plain")
    watch.stop()
    await blobs.close()


def test_each_outage_has_its_own_beginning() -> None:
    """The second one too, and an outage in which reads and writes fail begins with the first failure of its own."""
    now_s = 0.0
    watch = StoreWatch(lambda: now_s)
    for _ in range(2):
        now_s += 1_000
        for operation in ("get", "put", "put", "get"):
            watch.note_call(operation, Unavailable("cut"))
            now_s += 5
        found = watch.outage()
        assert found is not None
        assert found[0] == 20
        watch.note_call("put", None)
        assert watch.outage() is None
        watch.note_call("get", Unavailable("cut"))  # a hiccup between two outages
        watch.note_call("get", None)


async def test_an_outage_of_writes_alone_ends_too(own_s3: EmbeddedS3) -> None:
    """The bucket was read-only for a while. Nobody else writes meanwhile, so the probe does, however reads end."""
    watch = StoreWatch()
    blobs = S3Blobs(
        own_s3.endpoint_url, own_s3.access_key, own_s3.secret_key, "bucket", "fleet", REGION, on_call=watch.note_call
    )
    for _ in range(store_watch.FAILURES):
        watch.note_call("put", BlobRefused("AccessDenied"))
    assert watch.outage() is not None
    await until(watch, blobs, away=False)
    watch.stop()
    await blobs.close()


async def test_a_refusal_has_its_own_message_that_names_what_to_check(own_s3: EmbeddedS3) -> None:
    """A missing bucket or a wrong key is for the operator."""
    watch = StoreWatch()
    blobs = S3Blobs(
        own_s3.endpoint_url, own_s3.access_key, "wrong" * 8, "bucket", "fleet", REGION, on_call=watch.note_call
    )
    for _ in range(store_watch.FAILURES):
        with pytest.raises(PortError):
            await blobs.put("a", b"x", content_type="text/plain")
    found = watch.outage()
    assert found is not None
    assert "S3 refuses" in found[1]
    assert found[2]
    assert "check S3_BUCKET" in found[1]
    await blobs.close()
