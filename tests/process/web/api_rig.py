"""The API under test over real HTTP, in a fleet of its own."""

import asyncio
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from orchestrator.adapters.api_rows import ApiRows
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.store import SqlStore
from orchestrator.core.api_tokens import hash_of
from orchestrator.observability.health import Health
from orchestrator.web.api.operations import Api
from orchestrator.web.wakeups import WakeupHub
from testbed.services.plain_http import NO_TLS
from tests.process.web.builders import DEADLINE_S, Caller, ServerUnderTest, serving

ADMIN, VIEWER = "admin-" + "0123456789abcdef" * 3, "viewer-" + "0123456789abcdef" * 3
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ApiRig:
    """The server, and the parts behind it."""

    url: str
    rows: ApiRows
    store: SqlStore
    wakeups: WakeupHub
    blobs: S3Blobs
    api: Api
    client: httpx.AsyncClient  # without a token
    pool: str  # one of this test's own

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        url = httpx.URL(self.url)
        return url.host, url.port or 0

    async def token(self, *scopes: str, name: str | None = None, **restrictions: Any) -> str:
        """A new token."""
        token = f"gpo_{secrets.token_urlsafe(32)}"
        row = {"name": name or f"t-{uuid.uuid4().hex[:8]}", "hash": hash_of(token), "scopes": list(scopes)}
        await self.rows.create_token({"pools": None, "tenant": None, "expires_at": None, **row, **restrictions}, "test")
        return token

    async def call(self, method: str, path: str, token: str | None = ADMIN, **options: Any) -> httpx.Response:
        """One call."""
        headers = {**({"Authorization": f"Bearer {token}"} if token else {}), **options.pop("headers", {})}
        return await self.client.request(method, f"/api/v1{path}", headers=headers, **options)

    async def submit(self, token: str = ADMIN, **task: Any) -> str:
        """A task; its id."""
        answer = await self.call("POST", "/tasks", token, json={"task_type": "t", "pool": self.pool, **task})
        assert answer.status_code in {200, 201}, answer.text
        return str(answer.json()["id"])

    async def worker(self, cluster: str | None = None) -> Caller:
        """A worker of this test's pool, that may claim, or that a cluster reserves."""
        term = (await self.store.lead("tests", 3_600)).term
        gateway = ServerUnderTest(self.client, self.store, self.wakeups, Health(0), self.blobs, term, [])
        return await gateway.worker(pool=self.pool, cluster=cluster)


@asynccontextmanager
async def api_rig(
    db: PostgresDb, blobs: S3Blobs, *, admin: str | None = ADMIN, viewer: str | None = VIEWER, fleet: str | None = None
) -> AsyncIterator[ApiRig]:
    """The whole application, with a fleet that has no tokens but these."""
    fleet = fleet or f"fleet-{uuid.uuid4().hex[:12]}"
    rows, wakeups = ApiRows(db, fleet), WakeupHub()
    api = Api(rows, blobs, wakeups, admin_token=admin, viewer_token=viewer)
    health = Health(started_at_s=time.monotonic())
    async with (
        serving(db, blobs, wakeups, health, api=api) as url,
        httpx.AsyncClient(
            base_url=url, timeout=40, limits=httpx.Limits(max_connections=2_000), verify=NO_TLS
        ) as client,
    ):
        yield ApiRig(url, rows, SqlStore(db, fleet), wakeups, blobs, api, client, f"pool-{uuid.uuid4().hex[:12]}")


async def until(condition: Any, within_s: float = DEADLINE_S) -> None:
    """Wait for something that must come soon."""
    async with asyncio.timeout(within_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)
