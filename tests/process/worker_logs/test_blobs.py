"""The bucket, over a real SeaweedFS."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psutil
import pytest

from orchestrator.adapters import s3
from orchestrator.adapters.s3 import MAX_PAGES, THREADS, S3Blobs
from orchestrator.ports import BlobRefused, NotFound, Unavailable
from testbed.services.free_port import free_port
from testbed.services.s3 import REGION, EmbeddedS3

DEADLINE_S = 60.0
START_AND_SLEEP = """
import asyncio, json, sys
from pathlib import Path
from testbed.services.free_port import free_port
from testbed.services.s3 import EmbeddedS3

async def main():
    server = EmbeddedS3(Path(sys.argv[1]))
    await server.start()
    print(json.dumps({"pid": server.pid}), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_stored_object_is_read_back_with_its_size(blobs: S3Blobs) -> None:
    """Bytes survive the way there and back, empty ones and several MiB of them included."""
    for content in (b"", b"a line\n", os.urandom(9_000_000)):
        await blobs.put("there/and/back", content, content_type="application/octet-stream")
        assert await blobs.size("there/and/back") == len(content)
        assert await blobs.get("there/and/back") == content


async def test_an_object_that_is_too_large_is_not_read_whole(blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fill the memory of the orchestrator, or of a command."""
    monkeypatch.setattr(s3, "MAX_GET_BYTES", 100)
    await blobs.put("large", bytes(100), content_type="application/octet-stream")
    assert await blobs.get("large") == bytes(100)
    await blobs.put("large", bytes(101), content_type="application/octet-stream")
    with pytest.raises(Unavailable, match="more than 100 bytes"):
        await blobs.get("large")


async def test_a_missing_object_is_not_found(blobs: S3Blobs) -> None:
    """Absence is an answer, not an outage."""
    with pytest.raises(NotFound):
        await blobs.get("never/put")
    with pytest.raises(NotFound):
        await blobs.size("never/put")


async def test_presigned_urls_carry_an_object_both_ways(blobs: S3Blobs) -> None:
    """A pod without S3 keys can put and fetch with what it was given, and with nothing less."""
    content = os.urandom(100_000)
    async with httpx.AsyncClient() as http:
        assert (await http.put(blobs.sign("PUT", "by/url", expires_s=60), content=content)).status_code == 200
        assert (await http.get(blobs.sign("GET", "by/url", expires_s=60))).content == content
        assert (await http.get(blobs.sign("GET", "by/url", expires_s=60).split("?")[0])).status_code == 403
        assert (await http.put(blobs.sign("GET", "by/url", expires_s=60), content=b"x")).status_code == 403
    assert await blobs.get("by/url") == content


async def test_old_uploads_that_were_never_completed_are_aborted(blobs: S3Blobs) -> None:
    """Those below the prefix alone, and not the young ones: an agent may still be at them."""
    now = datetime.now(UTC)
    async with httpx.AsyncClient() as http:
        for key in ("outputs/t/film", "elsewhere/film"):
            url = blobs.sign("POST", key, expires_s=60, query={"uploads": ""})
            upload_id = re.findall("<UploadId>(.*)</UploadId>", (await http.post(url)).text)[0]
            part = {"uploadId": upload_id, "partNumber": "1"}
            url = blobs.sign("PUT", key, expires_s=60, query=part)
            assert (await http.put(url, content=b"x")).status_code == 200
    assert await blobs.abort_uploads("outputs/", older_than=now - timedelta(hours=1)) == 0
    assert await blobs.abort_uploads("outputs/", older_than=now + timedelta(hours=1)) == 1
    assert await blobs.abort_uploads("outputs/", older_than=now + timedelta(hours=1)) == 0
    assert await blobs.abort_uploads("elsewhere/", older_than=now + timedelta(hours=1)) == 1


async def test_a_location_names_its_key_and_no_other_bucket_or_prefix(blobs: S3Blobs) -> None:
    """Location and key are inverse; a foreign location has no key here."""
    assert blobs.location("a/b") == "s3://bucket/fleet/one/a/b"
    assert blobs.key_of("s3://bucket/fleet/one/a/b") == "a/b"
    for foreign in ("s3://other/fleet/one/a", "s3://bucket/fleet/two/a", "s3://bucket/fleet/one/", "a/b", ""):
        assert blobs.key_of(foreign) is None


async def test_a_wrong_key_is_refused_and_not_named_in_the_error(s3: EmbeddedS3) -> None:
    """Refusal differs from an outage, and its text has no secret in it."""
    blobs = S3Blobs(s3.endpoint_url, s3.access_key, "not the secret at all", "bucket", "", REGION)
    with pytest.raises(BlobRefused) as caught:
        await blobs.put("k", b"x", content_type="text/plain")
    assert "not the secret" not in str(caught.value)
    await blobs.close()


async def test_a_store_without_a_listener_is_unavailable() -> None:
    """A dead endpoint is an outage, and attempts at it are bounded."""
    blobs = S3Blobs(f"http://127.0.0.1:{free_port()}", "a", "b", "bucket", "", REGION)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(Unavailable):
            await blobs.size("k")
    await blobs.close()


async def test_a_store_that_keeps_fewer_bytes_is_noticed() -> None:
    """A 200 for the PUT proves nothing: the HEAD's size does."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if head.startswith("PUT"):
            await reader.readexactly(5)
        size = 0 if head.startswith("PUT") else 4
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nETag: x\r\nConnection: close\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        blobs = S3Blobs(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "a", "b", "bucket", "", REGION)
        with pytest.raises(Unavailable, match="4 of the 5 bytes"):
            await blobs.put("k", b"12345", content_type="text/plain")
        await blobs.close()


UPLOAD = b"<Key>k</Key><UploadId>u</UploadId>"
ODD_REPLIES = {
    "no length": b"HTTP/1.1 200 OK\r\n\r\n",
    "a length that is no number": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    "a time that is none": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: x\r\nLast-Modified: then\r\n\r\n",
    "no ETag": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "a redirect of the bucket and of its region": (
        b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n"
    ),
    "an upload without a time": b"HTTP/1.1 200 OK\r\n\r\n<R><Upload>%s</Upload></R>" % UPLOAD,
    "an upload whose time is none": (
        b"HTTP/1.1 200 OK\r\n\r\n<R><Upload>%s<Initiated>then</Initiated></Upload></R>" % UPLOAD
    ),
}


@asynccontextmanager
async def answering(reply: Callable[[int], bytes]) -> AsyncIterator[tuple[S3Blobs, list[int]]]:
    """A bucket of a server with these replies, and the numbers of its requests."""
    asked: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.append(len(asked))
        writer.write(reply(asked[-1]))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        blobs = S3Blobs(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "a", "b", "bucket", "", REGION)
        yield blobs, asked
        await blobs.close()


@pytest.mark.parametrize("what", ODD_REPLIES)
async def test_a_reply_that_is_not_s3s_is_an_outage(what: str) -> None:
    """Any other error would end a shipment of logs, or a leader's job, without a word about the store."""
    async with answering(lambda _: ODD_REPLIES[what]) as (blobs, _):
        with pytest.raises(Unavailable, match=r"cannot be read|without an ETag"):
            await (blobs.abort_uploads("", older_than=datetime.now(UTC)) if "upload" in what else blobs.look("k"))


@pytest.mark.parametrize("call", ["size", "get", "look"])
async def test_a_web_page_in_place_of_an_object_is_an_outage(call: str) -> None:
    """A proxy or a portal answers so. The watch of the store asks for sizes, and would see no outage."""
    page = b"<html><body>Sign in</body></html>"
    reply = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(page)
    async with answering(lambda _: reply + (page if call == "get" else b"")) as (blobs, _):
        with pytest.raises(Unavailable, match="without an ETag"):
            await getattr(blobs, call)("k")


async def test_a_list_of_uploads_that_never_ends_is_given_up() -> None:
    """Each such call would hold one of a few threads for good."""

    def page(number: int) -> bytes:
        more = b"<IsTruncated>true</IsTruncated><NextKeyMarker>%d</NextKeyMarker>" % number
        return b"HTTP/1.1 200 OK\r\n\r\n<R>%s<NextUploadIdMarker>u</NextUploadIdMarker></R>" % more

    async with answering(page) as (blobs, asked), asyncio.timeout(DEADLINE_S):
        assert await blobs.abort_uploads("outputs/", older_than=datetime.now(UTC)) == 0
        assert len(asked) <= MAX_PAGES


async def test_calls_on_a_closed_client_are_unavailable_and_cancel_no_other() -> None:
    """More calls than there are threads, against a server that says nothing: the close drops what has not begun."""
    let_go = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await let_go.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    blobs = S3Blobs(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "k", "s", "b", "", REGION)
    calls = [asyncio.create_task(blobs.size("some/key")) for _ in range(THREADS + 2)]
    async with asyncio.timeout(DEADLINE_S), server:
        await asyncio.sleep(0)  # each call is handed to the threads
        closing = asyncio.create_task(blobs.close())
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)  # the two that have no thread
        let_go.set()
        answers = await asyncio.gather(*calls, blobs.get("a/later/one"), return_exceptions=True)
        await closing
    assert [type(answer) for answer in answers] == [Unavailable] * (THREADS + 3)


async def test_the_server_keeps_everything_over_a_restart_and_listens_on_loopback_only(tmp_path: Path) -> None:
    """Objects, keys and address are the same after a stop and a start."""
    async with EmbeddedS3(tmp_path / "s3") as server:
        await server.create_bucket("kept")
        await server.create_bucket("kept")
        blobs = S3Blobs(server.endpoint_url, server.access_key, server.secret_key, "kept", "", REGION)
        await blobs.put("a", b"still here", content_type="text/plain")
        await server.stop()
        with pytest.raises(Unavailable):
            await blobs.get("a")
        await server.start()
        assert await blobs.get("a") == b"still here"
        listening = {c.laddr.ip for c in psutil.Process(server.pid).net_connections("inet") if c.status == "LISTEN"}
        assert listening == {"127.0.0.1"}
        assert (tmp_path / "s3" / "s3.json").stat().st_mode & 0o777 == 0o600
        await blobs.close()


async def test_the_server_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """SIGKILL of its parent ends the server too."""
    program = [sys.executable, "-c", START_AND_SLEEP, str(tmp_path / "s3")]
    where = Path(__file__).parents[3]
    parent = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE, cwd=where)
    assert parent.stdout is not None
    server = psutil.Process(json.loads(await parent.stdout.readline())["pid"])
    parent.kill()
    await parent.wait()
    await asyncio.to_thread(psutil.wait_procs, [server], DEADLINE_S)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
