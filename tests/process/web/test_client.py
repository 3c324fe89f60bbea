"""The Python client against the running service; each test with the ordinary client and with the one for asyncio."""

import asyncio
import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gpu_orchestrator_client
import httpx
import pytest
from gpu_orchestrator_client import (
    ApiError,
    AsyncClient,
    AsyncOutput,
    Client,
    IncompleteOutput,
    Output,
    ServiceUnavailable,
    WaitTimeout,
)
from gpu_orchestrator_client.protocol import LATE_S, file_name

from orchestrator import client as reexported
from testbed.services.free_port import free_port
from tests.process.web.api_rig import ADMIN, ApiRig
from tests.process.web.builders import DEADLINE_S, Caller, done

README = (Path(__file__).resolve().parents[3] / "clients" / "python" / "README.md").read_text()


class LosesAnswers(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Sends each request, and loses the first `count` answers."""

    def __init__(self, count: int) -> None:
        self._sync, self._async, self._left, self.sent = httpx.HTTPTransport(), httpx.AsyncHTTPTransport(), count, 0

    def _lose(self) -> None:
        self.sent += 1
        if self.sent <= self._left:
            raise httpx.ReadError("the connection broke")

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._sync.handle_request(request)
        self._lose()
        return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._async.handle_async_request(request)
        self._lose()
        return response


async def finish(rig: ApiRig, worker: Caller, task_id: str) -> None:
    """Run a task to its end, with progress and an output."""
    assert (await worker.claim())["tasks"][0]["id"] == task_id
    beat = {"id": task_id, "attempt": 1, "progress": {"done": 0.5}}
    await worker.call("worker_heartbeat", p_tasks=[beat], p_health=None, p_logs=None)
    key = f"outputs/{task_id}/1/film.mp4"
    await rig.blobs.put(key, b"a film", content_type="video/mp4")
    reply = await worker.call("worker_complete", **done(task_id, rig.blobs.location(key)))
    assert reply.json()["outcome"] == "ok"


def ordinary(url: str, pool: str, tell: Callable[[str], None], target: Path) -> list[Any]:
    """All that a program does with a task."""
    with Client(url, ADMIN) as client:
        task = client.submit("film", {"n": 1}, pool=pool)
        tell(task.id)
        seen = [event.name for event in task.events()]
        info = task.wait(DEADLINE_S)
        assert [one.id for one in client.tasks(task_type="film")][:1] == [task.id]
        assert task.log() == ""
        return [seen[0], seen[-1], info.succeeded, info.result, task.output().save(target).read_bytes()]


async def awaited(url: str, pool: str, tell: Callable[[str], None], target: Path) -> list[Any]:
    """The same with asyncio."""
    async with AsyncClient(url, ADMIN) as client:
        task = await client.submit("film", {"n": 1}, pool=pool)
        tell(task.id)
        seen = [event.name async for event in task.events()]
        info = await task.wait(DEADLINE_S)
        assert [one.id async for one in client.tasks(task_type="film")][:1] == [task.id]
        assert await task.log() == ""
        saved = await (await task.output()).save(target)
        return [seen[0], seen[-1], info.succeeded, info.result, saved.read_bytes()]


async def both(name: str, *args: Any) -> list[Any]:
    """Run one of them."""
    if name == "ordinary":
        return await asyncio.to_thread(ordinary, *args)
    return await awaited(*args)


@pytest.mark.parametrize("name", ["ordinary", "awaited"])
async def test_a_task_from_its_submission_to_its_output(rig: ApiRig, tmp_path: Path, name: str) -> None:
    """With its events; the output lies under its own name."""
    worker, loop = await rig.worker(), asyncio.get_running_loop()
    submitted: asyncio.Future[str] = loop.create_future()
    tell = lambda task_id: loop.call_soon_threadsafe(submitted.set_result, task_id)  # noqa: E731
    async with asyncio.timeout(DEADLINE_S):
        running = asyncio.create_task(both(name, rig.url, rig.pool, tell, tmp_path / "films"))
        await finish(rig, worker, await submitted)
        assert await running == ["state", "ended", True, {"n": 1}, b"a film"]
    assert [path.name for path in (tmp_path / "films").iterdir()] == ["film.mp4"]


async def twice(rig: ApiRig, act: Callable[[Client], Any], transport: LosesAnswers) -> Any:
    """A call of the ordinary client in a thread."""

    def run() -> Any:
        with Client(rig.url, ADMIN, retries=3, transport=transport) as client:
            return act(client)

    return await asyncio.to_thread(run)


async def test_a_submission_whose_answers_are_lost_is_done_once(rig: ApiRig) -> None:
    """One task, and several, with both clients."""
    lossy = LosesAnswers(2)
    task = await twice(rig, lambda client: client.submit("t", pool=rig.pool), lossy)
    assert lossy.sent == 3
    two = [{"task_type": "t", "pool": rig.pool}] * 2
    many = await twice(rig, lambda client: client.submit_many(two), LosesAnswers(1))
    async with AsyncClient(rig.url, ADMIN, transport=LosesAnswers(2)) as client:
        other = await client.submit("t", pool=rig.pool)
    token = await rig.token("read", pools=[rig.pool])
    listed = (await rig.call("GET", "/tasks", token)).json()["tasks"]
    assert {one["id"] for one in listed} == {task.id, other.id, *(one.id for one in many)}
    assert len(listed) == 4


async def test_a_retry_whose_answer_is_lost_is_not_repeated(rig: ApiRig) -> None:
    """It could be a second one. With the version that was seen, it is repeated: it then cannot be."""
    task_id = await rig.submit()
    cancelled = await twice(rig, lambda client: client.task(task_id).cancel(), LosesAnswers(2))
    lossy = LosesAnswers(1)
    with pytest.raises(ServiceUnavailable, match="the connection broke"):
        await twice(rig, lambda client: client.task(task_id).retry(), lossy)
    assert (lossy.sent, (await rig.call("GET", f"/tasks/{task_id}")).json()["status"]) == (1, "Queued")
    with pytest.raises(ApiError) as caught:
        await twice(rig, lambda client: client.task(task_id).retry(version=cancelled.version), LosesAnswers(1))
    assert (caught.value.status, caught.value.id) == (412, "E075")


async def test_a_refusal_and_silence_are_different_errors(rig: ApiRig) -> None:
    """With the stable id of a refusal, after as many tries as were asked for."""
    task_id = await rig.submit()
    with pytest.raises(WaitTimeout, match="Queued"):
        await twice(rig, lambda client: client.task(task_id).wait(0.2), LosesAnswers(0))
    with pytest.raises(ApiError, match="E077"):
        await twice(rig, lambda client: client.task(task_id).output(), LosesAnswers(0))
    with pytest.raises(ApiError, match="E052"):
        await twice(rig, lambda client: client.submit(""), LosesAnswers(0))
    lossy = LosesAnswers(10)
    with pytest.raises(ServiceUnavailable):
        await twice(rig, lambda client: client.task(task_id).info(), lossy)
    assert lossy.sent == 4
    async with AsyncClient(f"http://127.0.0.1:{free_port()}", ADMIN, retries=1) as client:
        with pytest.raises(ServiceUnavailable):
            await client.submit("t")
        with pytest.raises(ServiceUnavailable):
            await anext(aiter(client.task(task_id).events()))
    with pytest.raises(ValueError, match="GPU_ORCHESTRATOR_URL"):
        Client()


@pytest.mark.parametrize(
    ("location", "name"),
    [("s3://b/outputs/1/film.mp4", "film.mp4"), ("b/..", "output"), ("b/.ssh", "ssh"), ("s3://b/", "output"),
     ("s3://b/a\\..\\c", "a_.._c"), ("s3://b/" + "x" * 500, "x" * 200), ("s3://b/a\0b", "a_b")],
    ids=range(7),
)  # fmt: skip
def test_the_name_of_an_output_stays_within_its_directory(location: str, name: str) -> None:
    """Whatever a pod called it."""
    assert file_name(location) == name


def test_a_long_name_keeps_its_end_within_the_limit_of_a_file_system() -> None:
    """In bytes, whatever its letters."""
    name = file_name(f"s3://b/outputs/t/1/{'é' * 250}.mp4")
    assert name.endswith("é.mp4")
    assert len(name.encode()) in {199, 200}


class _Film(BaseHTTPRequestHandler):
    """A bucket with one object."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"a film")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def film() -> Iterator[str]:
    """The URL of an object."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Film) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/film.mp4"
        server.shutdown()


@pytest.mark.parametrize(
    ("size", "sha256", "why"),
    [
        (6, hashlib.sha256(b"a film").hexdigest(), None),
        (None, None, None),
        (7, None, "6 of 7 bytes of s3://b/film.mp4 arrived"),
        (6, "0" * 64, "other bytes of s3://b/film.mp4 arrived than were stored"),
    ],
)
async def test_a_download_has_every_byte_or_fails(
    film: str, tmp_path: Path, size: int | None, sha256: str | None, why: str | None
) -> None:
    """With both clients; no file has the output's name then."""
    facts = {"location": "s3://b/film.mp4", "url": film, "bytes": size, "sha256": sha256}
    with (
        Client("http://127.0.0.1:1", "t") as client,
        pytest.raises(IncompleteOutput) if why else nullcontext() as refused,
    ):
        assert Output(client, facts).save(tmp_path / "sync").read_bytes() == b"a film"
    async with AsyncClient("http://127.0.0.1:1", "t") as awaited_client:
        with pytest.raises(IncompleteOutput) if why else nullcontext():
            assert (await AsyncOutput(awaited_client, facts).save(tmp_path / "async")).read_bytes() == b"a film"
    assert why is None or (refused is not None and str(refused.value) == why)
    assert all((tmp_path / one / "film.mp4").exists() is (why is None) for one in ("sync", "async"))


async def test_the_program_of_its_page_works(
    rig: ApiRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands there, with another address; both packages have the same names."""
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    worker, token = await rig.worker(), await rig.token("submit", "read", pools=[rig.pool])
    program = program.replace("https://orchestrator.example.com", rig.url).replace(
        '{"frames": 48}', f'{{"frames": 48}}, pool="{rig.pool}"'
    )
    async with asyncio.timeout(DEADLINE_S):
        running = asyncio.create_task(asyncio.to_thread(exec, program, {"token": token}))
        while not (listed := (await rig.call("GET", "/tasks", token)).json()["tasks"]):
            await asyncio.sleep(0.05)
        await finish(rig, worker, listed[0]["id"])
        await running
    assert "film.mp4" in capsys.readouterr().out
    assert {name: getattr(reexported, name) for name in reexported.__all__} == {
        name: getattr(gpu_orchestrator_client, name) for name in gpu_orchestrator_client.__all__
    }


async def test_a_wait_ends_in_time_whatever_the_service_says() -> None:
    """A service that asks for a long pause, or says nothing, does not keep a caller longer than it has asked for."""
    reads: list[float] = []

    def busy(request: httpx.Request) -> httpx.Response:
        reads.append(request.extensions["timeout"]["read"])
        return httpx.Response(429, headers={"Retry-After": "30"}, json={})

    def ordinary() -> None:
        with Client("http://service", "token", transport=httpx.MockTransport(busy)) as client:
            client.task("7").wait(0.2)

    with pytest.raises(WaitTimeout, match="429"):
        await asyncio.to_thread(ordinary)
    async with AsyncClient("http://service", "token", transport=httpx.MockTransport(busy)) as client:
        with pytest.raises(WaitTimeout, match="429"):
            await client.task("7").wait(0.2)
    assert len(reads) == 2
    assert max(reads) <= 0.2 + LATE_S
