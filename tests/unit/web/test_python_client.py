"""What the Python client sends, without a service: pages of tasks, the address and the token."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gpu_orchestrator_client import ApiError, AsyncClient, Client, IncompleteOutput, ServiceUnavailable
from gpu_orchestrator_client.models import TaskInfo

URL = "https://gpu.example.com"
PAGES = {None: (["a", "b"], "c1"), "c1": (["c", "d"], "c2"), "c2": (["e"], None)}
ROW: dict[str, Any] = {
    "id": "", "task_type": "film", "status": "Queued", "version": "1", "attempts": 0,
    "created_at": "2026-01-01T00:00:00+00:00",
}  # fmt: skip


class Pages(httpx.MockTransport):
    """A service with five tasks on three pages, and the questions that it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        super().__init__(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(dict(request.url.params))
        ids, following = PAGES[request.url.params.get("cursor")]
        return httpx.Response(200, json={"tasks": [ROW | {"id": one} for one in ids], "next": following})


@pytest.mark.parametrize(
    ("limit", "expected", "pages"),
    [(None, "abcde", 3), (3, "abc", 2), (2, "ab", 1), (1, "a", 1), (0, "", 0), (99, "abcde", 3)],
)
async def test_a_limit_counts_the_tasks_of_all_pages(limit: int | None, expected: str, pages: int) -> None:
    """No page more is asked for than is needed."""
    service = Pages()
    with Client(URL, "token", transport=service) as client:
        assert "".join(one.id for one in client.tasks(limit=limit, status="Queued")) == expected
    assert len(service.asked) == pages
    assert all(question["status"] == "Queued" for question in service.asked)
    async with AsyncClient(URL, "token", transport=service) as aclient:
        assert "".join([one.id async for one in aclient.tasks(limit=limit, status="Queued")]) == expected
    assert service.asked[:pages] == service.asked[pages:]


@pytest.mark.parametrize(
    "url", [f"{URL}/", f"{URL}/api/v1", f"{URL}/api/v1/", f"  '{URL}'\r\n", f'"{URL}/"', "http://[::1]:8080"]
)
def test_an_address_is_read_as_other_tools_write_it(url: str) -> None:
    """The path of the API may be a part of it."""
    with Client(url, "token\r\n") as client:
        assert str(client._http.base_url).endswith("/api/v1/")
        assert client._http.headers["authorization"] == "Bearer token"


@pytest.mark.parametrize(
    "url", ["gpu.example.com", "https://", "https://<host>/?x=1", "ftp://x", "https://x:port", "$URL"]
)
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    """And not after five repetitions of the first request."""
    with pytest.raises(ValueError, match="GPU_ORCHESTRATOR_URL"):
        Client(url, "token")


@pytest.mark.parametrize("token", ["two words", "a\nb", "ключ"])
def test_a_token_that_no_header_can_carry_is_refused_at_once(token: str) -> None:
    """Its text is not shown."""
    with pytest.raises(ValueError, match="GPU_ORCHESTRATOR_TOKEN") as refused:
        Client(URL, token)
    assert token not in str(refused.value)


class Broken(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that is not what its header says."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"no"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"no"


NOT_ANSWERS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a page": ({"html": "<html>login</html>"}, ApiError, "<html>login</html>"),
    "a redirect": ({"headers": {"location": "https://b.example/x"}}, ApiError, "to https://b.example/x"),
    "broken gzip": ({"headers": {"content-encoding": "gzip"}, "stream": Broken()}, ServiceUnavailable, "DecodingError"),
}


@pytest.mark.parametrize("case", NOT_ANSWERS)
async def test_an_answer_that_is_not_the_services_is_an_error_of_the_client(case: str) -> None:
    """A program catches two kinds of exception, whatever stands between it and the service."""
    parts, kind, said = NOT_ANSWERS[case]
    status = 301 if case == "a redirect" else 200
    transport = httpx.MockTransport(lambda _: httpx.Response(status, **parts))
    with Client(URL, "token", retries=0, transport=transport) as client, pytest.raises(kind, match=said) as raised:
        list(client.tasks())
    if isinstance(raised.value, ApiError):
        assert "GPU_ORCHESTRATOR_URL" in raised.value.fix
    async with AsyncClient(URL, "token", retries=0, transport=transport) as aclient:
        with pytest.raises(kind, match=said):
            await aclient.task("a").info()


@pytest.mark.parametrize(("sent", "promised"), [(b"abc", 10), (b"", 10), (b"abc", 3), (b"abcdefghijkl", 12)])
async def test_a_download_that_ends_early_is_an_incomplete_output_and_leaves_no_file(
    tmp_path: Path, sent: bytes, promised: int
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % promised + sent)
        await writer.drain()
        writer.close()

    bucket = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = bucket.sockets[0].getsockname()
    facts = {"location": "s3://b/k/o.bin", "url": f"http://{host}:{port}/o", "bytes": 10, "sha256": None}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=facts))
    async with bucket, AsyncClient(URL, "token", transport=transport) as aclient:
        output = await aclient.task("a").output()
        with pytest.raises(IncompleteOutput):
            await output.save(tmp_path / "async")
        with Client(URL, "token", transport=transport) as client, pytest.raises(IncompleteOutput):
            await asyncio.to_thread(client.task("a").output().save, tmp_path / "sync")
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == []


def test_an_action_of_a_token_that_may_not_read_has_id_status_and_version() -> None:
    """The service names no more."""
    acted = {"outcome": "cancelled", "id": "t", "status": "Cancelled", "version": "3"}
    info = TaskInfo.of_action({**acted, "task": None})
    assert (info.id, info.status, info.version, info.result) == ("t", "Cancelled", "3", None)
    whole = {"id": "t", "status": "Queued", "version": "4", "result_data": 7}
    assert TaskInfo.of_action({**acted, "task": whole}).result == 7
