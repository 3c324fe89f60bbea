"""A web app on the queue: upload pictures, watch the progress live, see the video. docs/webapp.md explains it.

Environment: GPU_ORCHESTRATOR_URL, GPU_ORCHESTRATOR_TOKEN (with a tenant of its own), PICTURES_DIR, and PUBLIC_URL, the
address of this app under which the pods fetch the pictures.
Start it with `uvicorn --factory --app-dir examples webapp.app:create`.
"""

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gpu_orchestrator_client import ApiError, AsyncClient, ServiceUnavailable
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .journeys import Journeys, stream
from .pictures import Pictures, Refused

STATIC = Path(__file__).with_name("static")
VIDEOS_PER_HOUR = 30  # of all visitors together: each one costs GPU time
FRAMES, FPS, SIZE = 72, 24, (960, 640)  # of the part between two pictures; pixels
HEADERS = {
    b"content-security-policy": b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' blob:; media-src *; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
}


def create() -> Starlette:
    """The app, configured by the environment."""
    return app_of(AsyncClient(), Pictures(Path(os.environ["PICTURES_DIR"]), os.environ["PUBLIC_URL"]))


def app_of(client: AsyncClient, pictures: Pictures) -> Starlette:
    """The app with these parts. It closes the client."""
    web = Web(client, pictures)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with client, web.journeys:
            yield

    routes = [
        Route("/", page),
        Route("/journeys/{id:uuid}", page),
        Route("/journeys", web.submit, methods=["POST"]),
        Route("/journeys/{id:uuid}/events", web.events),
        Route("/journeys/{id:uuid}/video", web.video),
        Route("/pictures/{name}", web.picture),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    handlers: dict[Any, Any] = {Refused: refused, ApiError: failed, ServiceUnavailable: failed}
    return Starlette(
        routes=routes, lifespan=lifespan, exception_handlers=handlers, middleware=[Middleware(SecureHeaders)]
    )


class Web:
    """What the app does with a request."""

    def __init__(self, client: AsyncClient, pictures: Pictures) -> None:
        self._client, self._pictures = client, pictures
        self.journeys = Journeys(client)
        self._submitted: deque[float] = deque(maxlen=VIDEOS_PER_HOUR)

    async def submit(self, request: Request) -> Response:
        """Store the pictures; submit a task for each part, and one that joins the parts."""
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise Refused(403, "Another site may not use this app.")
        urls = await self._pictures.receive(request)
        now = time.monotonic()
        if len(self._submitted) == VIDEOS_PER_HOUR and now - self._submitted[0] < 3600:  # noqa: PLR2004 an hour
            raise Refused(429, "Too many videos were made within the last hour. Please come back later.")
        self._submitted.append(now)
        parts: list[dict[str, Any]] = [
            {
                "task_type": "travel_segment",
                "params": {"start_url": start, "end_url": end, "frames": FRAMES, "fps": FPS, "size": SIZE},
            }
            for start, end in itertools.pairwise(urls)
        ]
        join = {"task_type": "travel_stitch", "depends_on": [f"#{number}" for number in range(len(parts))]}
        tasks = await self._client.submit_many([*parts, join])
        return JSONResponse({"id": tasks[-1].id}, 201)

    async def events(self, request: Request) -> Response:
        """Server-sent events: the state of all parts, after each change."""
        return stream(self.journeys.watch(str(request.path_params["id"])))

    async def video(self, request: Request) -> Response:
        """Redirect to the video in the bucket; the address is valid for five minutes."""
        output = await self._client.task(str(request.path_params["id"])).output()
        return RedirectResponse(output.url, 302) if output.url else Response(status_code=404)

    async def picture(self, request: Request) -> Response:
        """A picture, for the pods."""
        path, media_type = self._pictures.find(request.path_params["name"])
        return FileResponse(path, media_type=media_type)


async def page(_: Request) -> Response:
    """The page. Its script shows the journey that the address names."""
    return FileResponse(STATIC / "index.html")


async def refused(_: Request, error: Refused) -> Response:
    """Say why. The rest of a body that is too large is not read."""
    headers = {"Connection": "close"} if error.status == 413 else {}  # noqa: PLR2004 too large
    return JSONResponse({"error": error.text}, error.status, headers=headers)


async def failed(_: Request, error: Exception) -> Response:
    """The service refused, or did not answer. Its text is for operators: it goes to the log."""
    print(f"{type(error).__name__}: {error}", flush=True)
    missing = isinstance(error, ApiError) and error.status == 404  # noqa: PLR2004 not found
    text = "There is no such video." if missing else "The service is not available. Please try again in a minute."
    return JSONResponse({"error": text}, 404 if missing else 503)


class SecureHeaders:
    """Adds the headers that keep a page from running what others wrote."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS.items()]
            await send(message)

        await self._app(scope, receive, with_headers)
