"""examples/webapp against the running service: what visitors and pods may send to it, and what it passes on."""

import asyncio
import contextlib
import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from playwright.async_api import async_playwright, expect

from demo.sample_images import paint
from examples.webapp import app as example
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.observability.health import Health
from testbed.services import debian
from testbed.shared_services import SharedServices
from tests.process.web.api_rig import ApiRig, api_rig
from tests.process.web.builders import DEADLINE_S, Caller, ServerUnderTest, done

JPEG, PNG = b"\xff\xd8\xff" + bytes(100), b"\x89PNG\r\n\x1a\n" + bytes(100)
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


@dataclass(frozen=True, slots=True)
class WebApp:
    """The app, its service, and a visitor."""

    url: str
    rig: ApiRig
    worker: Caller
    visitor: httpx.AsyncClient
    directory: Path

    async def upload(self, *files: tuple[str, bytes], **headers: str) -> httpx.Response:
        """An upload of files with these names and contents."""
        form = [("pictures", (name, content, "image/png")) for name, content in files]
        return await self.visitor.post("/videos", files=form, headers=headers)

    async def submitted(self, count: int = 2) -> str:
        """The id of a video between so many pictures."""
        answer = await self.upload(*[(f"{number}.jpg", JPEG) for number in range(count)])
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def states(self, video: str) -> AsyncGenerator[dict[str, Any]]:
        """What the page gets."""
        async with self.visitor.stream("GET", f"/videos/{video}/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    def files(self) -> list[Path]:
        """The stored pictures."""
        return list(self.directory.iterdir())


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The app behind uvicorn; its URL."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    async with asyncio.timeout(DEADLINE_S):
        while not server.started:
            await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


@pytest.fixture
async def service(shared: SharedServices, blobs: S3Blobs) -> AsyncIterator[ApiRig]:
    """A service with a database of its own: the app submits to the default pool."""
    db = await PostgresDb.open((await shared.database()).url, pool_size=4)
    async with api_rig(db, blobs) as rig:
        yield rig
    await db.close()


@pytest.fixture
async def webapp(service: ApiRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebApp]:
    """The app with a token of its own."""
    term = (await service.store.lead("tests", 3_600)).term
    gateway = ServerUnderTest(service.client, service.store, service.wakeups, Health(0), service.blobs, term, [])
    worker = await gateway.worker(pool="default")
    token = await service.token("submit", "read", tenant=f"webapp-{worker.id}")
    monkeypatch.setenv("GPU_ORCHESTRATOR_URL", service.url)
    monkeypatch.setenv("GPU_ORCHESTRATOR_TOKEN", token)
    monkeypatch.setenv("PICTURES_DIR", str(tmp_path / "pictures"))
    monkeypatch.setenv("PUBLIC_URL", "http://pictures.test")
    async with served(example.create()) as url, httpx.AsyncClient(base_url=url, timeout=40) as visitor:
        yield WebApp(url, service, worker, visitor, tmp_path / "pictures")


async def test_pictures_are_stored_under_names_of_the_app(webapp: WebApp) -> None:
    """Whatever a visitor's file is called, and whatever type it declares; a pod can fetch each."""
    names = ("../../../etc/passwd", "a.png\0.html", "<b>.jpg", "x" * 255)
    answer = await webapp.upload(*[(name, JPEG if name[0] == "<" else PNG) for name in names])
    assert answer.status_code == 201, answer.text
    assert all(path.is_file() and re.fullmatch(r"[0-9a-f]{32}\.(jpg|png)", path.name) for path in webapp.files())
    assert len(webapp.files()) == len(names)
    claimed = [(await webapp.worker.claim(number + 1))["tasks"][0] for number in range(3)]
    urls = {task["params"][end] for task in claimed for end in ("start_url", "end_url")}
    for url in urls:
        picture = await webapp.visitor.get(url.removeprefix("http://pictures.test"))
        assert picture.content in {JPEG, PNG}
        assert picture.headers["content-type"] == ("image/jpeg" if picture.content == JPEG else "image/png")
    assert len(urls) == len(names)


@pytest.mark.parametrize(
    ("files", "headers", "status"),
    [
        ([("a.jpg", JPEG)], {}, 422),
        ([("a.jpg", JPEG)] * 9, {}, 400),
        ([("a.jpg", JPEG), ("b.jpg", b"<html><script>alert(1)</script>")], {}, 415),
        ([("a.jpg", JPEG), ("b.png", b"")], {}, 415),
        ([("a.jpg", JPEG), ("b.jpg", JPEG + bytes(example.MAX_PICTURE_BYTES))], {}, 413),
        ([("a.jpg", JPEG)] * 2, {"Content-Type": "multipart/form-data"}, 400),
        ([("a.jpg", JPEG)] * 2, {"Content-Type": "application/json"}, 422),
    ],
    ids=["one", "nine", "html", "empty", "large", "no boundary", "no form"],
)
async def test_other_uploads_are_refused_with_a_reason(
    webapp: WebApp, files: list[tuple[str, bytes]], headers: dict[str, str], status: int
) -> None:
    """Nothing is stored and nothing is submitted."""
    answer = await webapp.upload(*files, **headers)
    assert (answer.status_code, answer.text[-1]) == (status, ".")
    assert webapp.files() == []


@pytest.mark.parametrize("name", ["..%2fapp.py", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "a" * 32 + ".html", "x"])
async def test_no_other_file_is_shown(webapp: WebApp, name: str) -> None:
    """By any name."""
    assert (await webapp.visitor.get(f"/pictures/{name}")).status_code == 404
    assert (await webapp.visitor.get("/..%2fapp.py")).status_code == 404


async def test_an_upload_of_a_gigabyte_ends_early(webapp: WebApp) -> None:
    """Also without a declared length: the app answers 413 after 60 MB, and keeps none of it."""
    host, port = httpx.URL(webapp.url).host, httpx.URL(webapp.url).port
    reader, writer = await asyncio.open_connection(host, port)
    head = "POST /videos HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    start = b'--b\r\nContent-Disposition: form-data; name="pictures"; filename="a.jpg"\r\n\r\n' + JPEG
    writer.write(b"%x\r\n%s\r\n" % (len(start), start))
    answer = asyncio.create_task(reader.readline())
    part, sent = b"100000\r\n" + bytes(1 << 20) + b"\r\n", 0
    async with asyncio.timeout(60):
        while sent < 1 << 30 and not answer.done():
            try:
                writer.write(part)
                await writer.drain()
            except ConnectionError:
                break
            sent += 1 << 20
        with contextlib.suppress(ConnectionResetError):  # the refusal may be lost with what was still being sent
            assert b" 413 " in await answer
    assert sent < 2 * example.MAX_UPLOAD_BYTES
    writer.transport.abort()
    assert webapp.files() == []


async def test_a_picture_is_deleted_after_a_day(webapp: WebApp) -> None:
    """No pod needs it any more."""
    await webapp.submitted()
    for path in webapp.files():
        os.utime(path, (0, 0))
    await webapp.submitted(3)
    assert len(webapp.files()) == 3


async def test_visitors_make_a_bounded_number_of_videos_in_an_hour(
    webapp: WebApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pictures of one that is refused are not stored. A refused upload counts for nothing."""
    for _ in range(example.VIDEOS_PER_HOUR):
        assert (await webapp.upload(("a.jpg", JPEG))).status_code == 422
        await webapp.submitted()
    stored = len(webapp.files())
    assert (await webapp.upload(("a.jpg", JPEG), ("b.jpg", JPEG))).status_code == 429
    assert len(webapp.files()) == stored
    monkeypatch.setattr(example, "HOUR_S", 0.0)
    await webapp.submitted()


async def test_a_video_is_followed_until_it_is_made(webapp: WebApp) -> None:
    """Every part with its progress; a second viewer needs no second connection to the service."""
    video = await webapp.submitted()
    one, another = webapp.states(video), webapp.states(video)
    async with asyncio.timeout(DEADLINE_S), aclosing(one) as states, aclosing(another) as too:
        seen = [await anext(states)]
        while len(seen[-1]["parts"]) < 2:
            seen.append(await anext(states))
        await anext(too)
        for number in (1, 2):
            (task,) = (await webapp.worker.claim(number))["tasks"]
            beat = {"id": task["id"], "attempt": 1, "progress": {"fraction": 0.5, "message": "frame 9"}}
            await webapp.worker.call("worker_heartbeat", p_tasks=[beat], p_health=None, p_logs=None)
            while seen[-1]["parts"][number - 1].get("progress") != beat["progress"]:
                seen.append(await anext(states))
            key = f"outputs/{task['id']}/1/film.mp4"
            await webapp.rig.blobs.put(key, b"a film", content_type="video/mp4")
            await webapp.worker.call("worker_complete", **done(task["id"], webapp.rig.blobs.location(key)))
        seen += [state async for state in states]
        assert [state async for state in too][-1] == seen[-1]
    assert [part["status"] for part in seen[-1]["parts"]] == ["Complete", "Complete"]
    assert seen[-1]["ended"]
    assert not any(state["ended"] for state in seen[:-1])
    film = await webapp.visitor.get(f"/videos/{video}", follow_redirects=True)
    assert film.content == b"a film"


async def test_a_failed_video_is_followed_until_every_part_has_ended(webapp: WebApp) -> None:
    """The joining task fails at once with the first part, while another part runs: its end is shown too."""
    video = await webapp.submitted(3)
    first, second = [(await webapp.worker.claim(number))["tasks"][0]["id"] for number in (1, 2)]
    failure = {"code": "HANDLER_ERROR", "message": "no picture", "exit_class": "exception", "retryable": False}
    await webapp.worker.call("worker_fail", p_task_id=first, p_attempt=1, p_failure=failure)
    async with asyncio.timeout(DEADLINE_S), aclosing(webapp.states(video)) as states:
        state = await anext(states)
        while not state["parts"] or state["parts"][-1]["status"] != "Failed":
            state = await anext(states)
        await webapp.worker.call("worker_complete", **done(second))
        seen = [state, *[one async for one in states]]
    assert [part["status"] for part in seen[-1]["parts"]] == ["Failed", "Complete", "Failed"]
    assert seen[-1]["parts"][0]["error"] == "no picture"


async def test_a_video_of_another_user_is_not_shown(webapp: WebApp) -> None:
    """A task of another tenant looks like none; its output is not found."""
    other = await webapp.rig.submit(await webapp.rig.token("submit", tenant="another"))
    (state,) = [state async for state in webapp.states(other) if state["ended"]]
    assert "cannot be followed" in state["problem"]
    assert (await webapp.visitor.get(f"/videos/{other}")).status_code == 404
    assert (await webapp.visitor.get("/videos/1/events")).status_code == 404


async def test_viewers_that_do_not_read_delay_no_other_viewer(webapp: WebApp) -> None:
    """The state reaches the others."""
    video, slow = await webapp.submitted(), []
    for _ in range(5):
        _, writer = await asyncio.open_connection(httpx.URL(webapp.url).host, httpx.URL(webapp.url).port)
        writer.write(f"GET /videos/{video}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        slow.append(writer)
    async with asyncio.timeout(DEADLINE_S), aclosing(webapp.states(video)) as states:
        while len((await anext(states))["parts"]) < 2:
            pass
    for writer in slow:
        writer.transport.abort()


async def test_more_videos_than_are_followed_wait_for_a_place(webapp: WebApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their viewers get the state when others have gone. A second viewer of a video needs no place."""
    monkeypatch.setattr(example, "RESEND_S", 0.05)
    watched = [await webapp.submitted() for _ in range(example.MAX_WATCHED + 1)]
    async with asyncio.timeout(60), contextlib.AsyncExitStack() as others:
        for video in [*watched[:-1], watched[0]]:
            states = await others.enter_async_context(aclosing(webapp.states(video)))
            while len((await anext(states))["parts"]) < 2:
                pass
        async with aclosing(webapp.states(watched[-1])) as states:
            assert [(await anext(states))["parts"] for _ in range(10)] == [[]] * 10
            await others.aclose()
            while len((await anext(states))["parts"]) < 2:
                pass


@pytest.mark.full
@pytest.mark.needs_program("chromium", "chromium")
async def test_html_from_a_visitor_or_a_pod_is_shown_as_text(webapp: WebApp, tmp_path: Path) -> None:
    """In the name of a file, in the progress and in the error of a task. A file that is no picture is left out."""
    program = debian.find("chromium", "chromium")
    assert program is not None
    pictures = [
        path.rename(tmp_path / f"{HOSTILE.replace('/', '')[:100]}{path.name}") for path in paint(tmp_path, 2, 1)
    ]
    broken = tmp_path / "<b>broken.png"
    broken.write_bytes(PNG)
    async with async_playwright() as playwright:
        environment: dict[str, str | float | bool] = {**os.environ, **program.environment}
        browser = await playwright.chromium.launch(executable_path=str(program.path), env=environment)
        page = await browser.new_page()
        await page.goto(webapp.url)
        await page.locator("#files").set_input_files([*pictures, broken])
        await expect(page.get_by_role("alert")).to_have_text("<b>broken.png is not a picture that can be read.")
        await expect(page.locator("#chosen li")).to_have_count(2)
        await expect(page.locator("#chosen")).to_contain_text("<img src=x")
        await page.get_by_role("button", name="Make the video").click()
        await expect(page.locator("#parts li")).to_have_count(2)
        (task,) = (await webapp.worker.claim())["tasks"]
        beat = {"id": task["id"], "attempt": 1, "progress": {"fraction": 0.5, "message": HOSTILE}}
        await webapp.worker.call("worker_heartbeat", p_tasks=[beat], p_health=None, p_logs=None)
        await expect(page.locator("#parts li").first).to_contain_text(f"50 % · {HOSTILE}")
        failure = {"code": "HANDLER_ERROR", "message": HOSTILE, "exit_class": "exception", "retryable": False}
        fence = {"p_task_id": task["id"], "p_attempt": 1}
        answer = await webapp.worker.call("worker_fail", **fence, p_failure=failure)
        assert answer.json()["outcome"] == "failed", answer.text
        await expect(page.locator("#parts li").first).to_contain_text(f"failed: {HOSTILE}")
        await expect(page.get_by_role("heading", level=2)).to_have_text("The video could not be made")
        assert (await page.title(), await page.locator("#parts img, #chosen [onerror]").count()) == (
            "Travel between pictures",
            0,
        )
        await browser.close()
