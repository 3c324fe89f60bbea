"""A web app on the queue: upload pictures, watch the progress live, see the video. docs/webapp.md explains it.

Environment: GPU_ORCHESTRATOR_URL, GPU_ORCHESTRATOR_TOKEN (with a tenant of its own), PICTURES_DIR, and PUBLIC_URL, the
address of this app under which the pods fetch the pictures.
Start it with `uvicorn --factory --app-dir examples webapp.app:create`.
"""

import asyncio
import contextlib
import itertools
import json
import os
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gpu_orchestrator_client import ApiError, AsyncClient, ServiceUnavailable
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

MIN_PICTURES, MAX_PICTURES = 2, 8
MAX_PICTURE_BYTES, MAX_UPLOAD_BYTES = 12 << 20, 60 << 20
UPLOAD_S = 120.0  # for one upload to arrive
KEPT_S = 24 * 3600.0  # the pods have fetched a picture long before
KINDS = {b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n\x1a\n": "png"}  # the first bytes of a file
VIDEOS_PER_HOUR, HOUR_S = 30, 3600.0  # of all visitors together: each one costs GPU time
RENDERING = {"frames": 72, "fps": 24, "size": (960, 640)}  # of the part between two pictures
MAX_WATCHED = 10  # videos at a time; each has a connection for each of its tasks
RESEND_S = 15.0  # a proxy closes a connection on which nothing is sent


def create() -> Starlette:
    """The app, configured by the environment."""
    web = Web(AsyncClient(), Path(os.environ["PICTURES_DIR"]), os.environ["PUBLIC_URL"])
    routes = [
        Route("/videos", web.submit, methods=["POST"], max_body_size=MAX_UPLOAD_BYTES),
        Route("/videos/{id:uuid}", web.video),
        Route("/videos/{id:uuid}/events", web.events),
        Mount("/pictures", StaticFiles(directory=web.pictures)),
        Mount("/", StaticFiles(directory=Path(__file__).with_name("static"), html=True)),
    ]
    handlers: dict[Any, Any] = {ApiError: failed, ServiceUnavailable: failed}
    return Starlette(routes=routes, exception_handlers=handlers, lifespan=web.lifespan)


class Web:
    """What the app does with a request. The id of a video is the id of the task that joins its parts."""

    def __init__(self, client: AsyncClient, pictures: Path, public_url: str) -> None:
        pictures.mkdir(parents=True, exist_ok=True)
        self._client, self.pictures, self._public_url = client, pictures, public_url.rstrip("/")
        self._submitted: deque[float] = deque(maxlen=VIDEOS_PER_HOUR)
        self._watched: dict[str, Video] = {}
        self._places = asyncio.Semaphore(MAX_WATCHED)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Close the client at the end."""
        async with self._client:
            yield

    async def submit(self, request: Request) -> Response:
        """Store the pictures; submit a task for each part, and one that joins the parts."""
        try:
            async with asyncio.timeout(UPLOAD_S), request.form(max_files=MAX_PICTURES, max_fields=0) as form:
                urls = await self._stored([one for one in form.getlist("pictures") if isinstance(one, UploadFile)])
        except TimeoutError:
            raise HTTPException(408, "The pictures did not arrive in time.") from None
        parts: list[dict[str, Any]] = [
            {"task_type": "travel_segment", "params": {"start_url": start, "end_url": end, **RENDERING}}
            for start, end in itertools.pairwise(urls)
        ]
        join = {"task_type": "travel_stitch", "depends_on": [f"#{number}" for number in range(len(parts))]}
        tasks = await self._client.submit_many([*parts, join])
        return JSONResponse({"id": tasks[-1].id}, 201)

    async def _stored(self, files: list[UploadFile]) -> list[str]:
        """Store pictures under random names; return the addresses from which the pods fetch them."""
        if len(files) < MIN_PICTURES:
            raise HTTPException(422, "Please choose at least two pictures.")
        names = [f"{uuid.uuid4().hex}.{await kind_of(file)}" for file in files]
        now = time.time()
        if len(self._submitted) == VIDEOS_PER_HOUR and now - self._submitted[0] < HOUR_S:
            raise HTTPException(429, "Too many videos were made within the last hour. Please come back later.")
        self._submitted.append(now)
        for path in self.pictures.iterdir():
            if now - path.stat().st_mtime > KEPT_S:
                path.unlink()
        for file, name in zip(files, names, strict=True):
            (self.pictures / name).write_bytes(await file.read())
        return [f"{self._public_url}/pictures/{name}" for name in names]

    async def video(self, request: Request) -> Response:
        """Redirect to the video in the bucket; the address is valid for five minutes."""
        output = await self._client.task(str(request.path_params["id"])).output()
        return RedirectResponse(output.url, 302) if output.url else Response(status_code=404)

    async def events(self, request: Request) -> Response:
        """Server-sent events: the state of all parts, after each change."""
        states = self._states(str(request.path_params["id"]))
        return StreamingResponse(states, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def _states(self, video_id: str) -> AsyncIterator[str]:
        """A slow reader gets the newest state next, not every state in between."""
        if video_id not in self._watched:
            self._watched[video_id] = Video(self._client, video_id, self._places)
        video = self._watched[video_id]
        video.viewers += 1
        try:
            while True:
                changed, state = video.changed, video.state
                yield f"data: {json.dumps(state)}\n\n"
                if state["ended"]:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), RESEND_S)
        finally:
            video.viewers -= 1
            if not video.viewers:
                del self._watched[video_id]
                video.following.cancel()


class Video:
    """The tasks of one video. Each is followed once, however many people watch, until it ends or nobody watches."""

    def __init__(self, client: AsyncClient, video_id: str, places: asyncio.Semaphore) -> None:
        self._client, self._id, self._places = client, video_id, places
        self._parts: dict[str, dict[str, Any]] = {}  # the last one joins the others
        self.state: dict[str, Any] = {}  # what the page gets
        self.changed = asyncio.Event()  # a new one for each change
        self.viewers = 0
        self._show()
        self.following = asyncio.create_task(self._follow())

    def _show(self, *, ended: bool = False, problem: str = "") -> None:
        self.state = {"parts": list(self._parts.values()), "ended": ended, "problem": problem}
        self.changed, before = asyncio.Event(), self.changed
        before.set()

    async def _follow(self) -> None:
        problem = ""
        try:
            async with self._places, asyncio.TaskGroup() as group:
                joining = await self._client.task(self._id).info()
                self._parts = {one: {"status": "Queued"} for one in [*(joining.raw["depends_on"] or ()), self._id]}
                for task_id in self._parts:
                    group.create_task(self._follow_part(task_id))
        except* (ApiError, ServiceUnavailable) as errors:
            print(f"video {self._id}: {errors.exceptions[0]!r}", flush=True)
            problem = "This video cannot be followed. It may have been deleted."
        self._show(ended=True, problem=problem)

    async def _follow_part(self, task_id: str) -> None:
        task = self._client.task(task_id)
        async for event in task.events():
            error = (await task.info()).error if event.status == "Failed" else None
            part = {"status": event.status, "attempt": event.attempt, "progress": event.progress, "error": error}
            self._parts[task_id] = part
            self._show()


async def kind_of(file: UploadFile) -> str:
    """Return jpg or png, by the first bytes: neither the name nor the declared type is trusted."""
    if (file.size or 0) > MAX_PICTURE_BYTES:
        raise HTTPException(413, f"A picture is too large: at most {MAX_PICTURE_BYTES >> 20} MB each.")
    start = await file.read(8)
    await file.seek(0)
    for magic, kind in KINDS.items():
        if start.startswith(magic):
            return kind
    raise HTTPException(415, "Please choose JPEG or PNG pictures.")


async def failed(_: Request, error: Exception) -> Response:
    """The service refused, or did not answer. Its text is for operators: it goes to the log."""
    print(f"{type(error).__name__}: {error}", flush=True)
    if isinstance(error, ApiError) and error.status == 404:  # noqa: PLR2004 not found
        return PlainTextResponse("There is no such video.", 404)
    return PlainTextResponse("The service is not available. Please try again in a minute.", 503)
