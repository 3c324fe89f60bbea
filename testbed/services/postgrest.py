"""A real PostgREST on loopback with what hosted Supabase has in front of it.

That is a path prefix (`/rest/v1`), a check of the `apikey` header, and a mapping of the keys that are no JWTs
(`sb_publishable_…`, `sb_secret_…`) to their roles. The server ends with the thread that started it.
"""

import asyncio
import json
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import jwt
import uvicorn
from psycopg.conninfo import make_conninfo
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from testbed.services.child_process import ChildProcess
from testbed.services.free_port import HOST
from testbed.services.postgrest_binary import program
from testbed.services.supabase_roles import create_roles

PREFIX = "/rest/v1"
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0
KEEP_ALIVE_S = 600
PASS_TIMEOUT_S = 60.0  # what hosted Supabase gives a request
POLL_S = 0.02
TURNS = 10  # of the event loop, in which it has read what had arrived
POOL_SIZE = 20
ROW_CAP = 1000
KEY_TTL_S = 10 * 365 * 86_400.0
BACKLOG = 512
METHODS = ["GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"]
HOP_BY_HOP = frozenset({"connection", "content-length", "date", "host", "keep-alive", "server", "transfer-encoding"})
NO_KEY = {"message": "No API key found in request", "hint": "No `apikey` request header or url param was found."}
BAD_KEY = {"message": "Invalid API key", "hint": "Double check your Supabase `anon` or `service_role` API key."}
# A proxy's page, not PostgREST's JSON, is what clients see while the server behind it is away.
BAD_GATEWAY = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"


class PostgrestFailed(Exception):
    """The server could not be started; the text ends with what it said."""


class EmbeddedPostgrest:
    """One server behind Supabase's key check; an async context manager. `stop` and `start` keep URL and keys.

    `postgres_url` is a superuser's, or that of a project from `become_project`; where the roles are missing they are
    created, but migrations grant to the roles that they find, so those should exist first (`create_roles`).
    `jwt_secret` has at least 32 characters. `jwks`: further public keys whose tokens are accepted (ES256).
    """

    def __init__(self, postgres_url: str, jwt_secret: str, *, jwks: Sequence[Mapping[str, Any]] = ()) -> None:
        self._postgres_url = postgres_url
        self._jwt_secret = jwt_secret
        self._jwks = tuple(jwks)
        self.publishable_key = f"sb_publishable_{secrets.token_urlsafe(16)}"
        self.secret_key = f"sb_secret_{secrets.token_urlsafe(16)}"
        self._keys: dict[str, str] = {}  # an accepted apikey -> its JWT
        self.anon_key = self.issue("anon")
        self.service_role_key = self.issue("service_role")
        self._keys |= {self.publishable_key: self.anon_key, self.secret_key: self.service_role_key}
        self._directory = Path()
        self._program: ChildProcess | None = None
        self._upstream: httpx.AsyncClient | None = None
        self._listener: asyncio.Server | None = None
        self._state = ServerState()
        self._port = 0

    @property
    def url(self) -> str:
        """What PostgREST's clients are pointed at; `/rest/v1` included."""
        return f"{self.project_url}{PREFIX}"

    @property
    def project_url(self) -> str:
        """What SUPABASE_URL is set to."""
        return f"http://{HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """PostgREST's process id while it runs."""
        return self._program.pid if self._program else None

    def issue(self, role: str, *, ttl_s: float = KEY_TTL_S, user: str | None = None) -> str:
        """A JWT of the project for a role, accepted as `apikey` too, as the legacy keys are. `ttl_s` may be past.

        `user`: the id of a user who has signed in.
        """
        now = int(time.time())
        claims = {"iss": "supabase", "ref": "embedded", "role": role, "iat": now, "exp": now + int(ttl_s)}
        claims |= {"sub": user} if user else {}
        token = jwt.encode(claims, self._jwt_secret, algorithm="HS256")
        self._keys[token] = token
        return token

    async def __aenter__(self) -> Self:
        try:
            await self._open()
            await self.start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def start(self) -> None:
        """Start PostgREST and wait until it has read the schema."""
        if self.pid is not None:
            return
        binary = await asyncio.to_thread(program)
        self._socket.unlink(missing_ok=True)  # a killed server leaves it behind
        environment = {"PATH": os.environ.get("PATH", ""), **self._configuration()}
        self._program = ChildProcess([str(binary)], self._directory / "server.log", env=environment)
        try:
            await self._until_ready(self._program)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End PostgREST. The key check stays, and answers 502."""
        process, self._program = self._program, None
        if process is None:
            return
        await process.end(signal.SIGTERM, STOP_TIMEOUT_S)

    async def idle(self) -> None:
        """Wait until every call that has been sent is answered: its caller may have gone."""
        while True:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if not self._state.tasks:
                return
            await asyncio.sleep(POLL_S)

    @property
    def _socket(self) -> Path:
        return self._directory / "socket"

    def _configuration(self) -> dict[str, str]:
        key: str = self._jwt_secret
        if self._jwks:
            own = jwt.algorithms.HMACAlgorithm.to_jwk(self._jwt_secret.encode())
            key = json.dumps({"keys": [json.loads(own), *self._jwks]})
        return {
            "PGRST_DB_URI": make_conninfo(self._postgres_url, user="authenticator"),
            "PGRST_DB_SCHEMAS": "public",
            "PGRST_DB_ANON_ROLE": "anon",
            "PGRST_DB_POOL": str(POOL_SIZE),
            "PGRST_DB_MAX_ROWS": str(ROW_CAP),
            "PGRST_JWT_SECRET": key,
            "PGRST_SERVER_UNIX_SOCKET": str(self._socket),
            "PGRST_LOG_LEVEL": "error",
        }

    async def _until_ready(self, server: ChildProcess) -> None:
        assert self._upstream is not None  # noqa: S101  _open made it
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if server.pid is None:
                raise PostgrestFailed(f"postgrest ended while starting: {server.output_tail()}")
            try:
                answer = await self._upstream.post("/rpc/no_such_function", json={})
                if answer.status_code == httpx.codes.NOT_FOUND:  # 503 until it has read the schema
                    return
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                raise PostgrestFailed(f"not ready after {START_TIMEOUT_S:.0f} s: {server.output_tail()}")
            await asyncio.sleep(POLL_S)

    async def _open(self) -> None:
        await create_roles(self._postgres_url)
        self._directory = Path(tempfile.mkdtemp(prefix="orchestrator-postgrest-"))
        self._upstream = httpx.AsyncClient(
            base_url="http://postgrest",
            transport=httpx.AsyncHTTPTransport(uds=str(self._socket), limits=httpx.Limits(max_connections=None)),
            timeout=PASS_TIMEOUT_S,
        )
        app = Starlette(routes=[Route(PREFIX + "/{path:path}", self._pass_on, methods=METHODS)])
        # In the loop of a busy test, a timer that is overdue would close a connection that a request just took.
        config = uvicorn.Config(
            app, ws="none", lifespan="off", log_config=None, access_log=False, timeout_keep_alive=KEEP_ALIVE_S
        )
        config.load()
        # uvicorn's protocol without its Server: that one owns the process's signals. The loop makes the socket itself,
        # because it turns Nagle's algorithm off only then: 40 ms a call.
        self._listener = await asyncio.get_running_loop().create_server(
            lambda: H11Protocol(config, self._state, {}), HOST, self._port, backlog=BACKLOG
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        answering = list(self._state.tasks)
        for answer in answering:
            answer.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        if self._upstream is not None:
            await self._upstream.aclose()
        await self.stop()
        if self._directory != Path():
            shutil.rmtree(self._directory, ignore_errors=True)

    async def _pass_on(self, request: Request) -> Response:
        key = request.headers.get("apikey") or request.query_params.get("apikey")
        if not key:
            return JSONResponse(NO_KEY, status_code=401)
        if key not in self._keys:
            return JSONResponse(BAD_KEY, status_code=401)
        headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP]
        if key.startswith("sb_") and request.headers.get("authorization") in {None, f"Bearer {key}"}:
            headers = [pair for pair in headers if pair[0] != "authorization"]
            headers.append(("authorization", f"Bearer {self._keys[key]}"))
        assert self._upstream is not None  # noqa: S101  _open made it
        query = httpx.QueryParams(request.url.query).remove("apikey")
        try:
            answer = await self._upstream.request(
                request.method,
                f"/{request.path_params['path']}",
                params=query,
                headers=headers,
                content=await request.body(),
            )
        except httpx.TransportError:
            return Response(BAD_GATEWAY, status_code=502, media_type="text/html")
        kept = {name: value for name, value in answer.headers.items() if name not in HOP_BY_HOP}
        return Response(answer.content, status_code=answer.status_code, headers=kept)
