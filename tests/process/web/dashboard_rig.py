"""The dashboard under test over real HTTP, in a fleet of its own that has something to show."""

import asyncio
import re
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from orchestrator.adapters.api_rows import ApiRows
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.store import SqlStore
from orchestrator.core.api_tokens import ENV_ADMIN, hash_of
from orchestrator.core.states import State
from orchestrator.diagnostics.condition_kinds import HIGH
from orchestrator.observability.health import Health
from orchestrator.web.api.operations import Api
from orchestrator.web.dashboard.dashboard import Dashboard
from orchestrator.web.wakeups import WakeupHub
from testbed.services.plain_http import NO_TLS
from tests.process.web.api_rig import ADMIN, VIEWER
from tests.process.web.builders import DEADLINE_S, Caller, ServerUnderTest, serving

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\x1b[31m\u202eabc\u202c"
COOKIE = "gpo_session"
BILL = {
    "since": "2026-11-29T15:00:00+00:00", "until": "2026-11-30T15:00:00+00:00", "pods": 3, "our_pods": 3,
    "theirs_usd": 41.2, "ours_usd": 41.2, "unbooked_usd": 0, "unbooked_pods": 0, "unbooked": [],
}  # fmt: skip


@dataclass(slots=True)
class DashboardRig:
    """The server, and the parts behind it."""

    url: str
    rows: ApiRows
    store: SqlStore
    api: Api
    dashboard: Dashboard
    term: int
    client: httpx.AsyncClient  # without a session
    gateway: ServerUnderTest
    pool: str  # one of this test's own
    clients: AsyncExitStack
    workers: list[Caller] = field(default_factory=list)

    async def token(self, *scopes: str, **restrictions: Any) -> str:
        """A new token."""
        token = f"gpo_{secrets.token_urlsafe(32)}"
        row = {"name": f"t-{uuid.uuid4().hex[:8]}", "hash": hash_of(token), "scopes": list(scopes)}
        await self.rows.create_token({"pools": None, "tenant": None, "expires_at": None, **row, **restrictions}, "test")
        return token

    async def visitor(self, token: str | None = None, **headers: str) -> httpx.AsyncClient:
        """A browser, which is signed in if it has a token."""
        client = await self.clients.enter_async_context(
            httpx.AsyncClient(base_url=self.url, timeout=DEADLINE_S, headers=headers, verify=NO_TLS)
        )
        if token is not None:
            answer = await client.post("/login", data={"token": token})
            assert answer.status_code == 303, answer.text
        return client

    async def earlier(self, token: str) -> httpx.AsyncClient:
        """A browser with a session of an earlier version, in which every token could sign in."""
        client, cookie = await self.visitor(), await self.dashboard.sessions.sign_in(token, "127.0.0.1")
        client.cookies.set(COOKIE, cookie or "")
        return client

    async def link(self, lives_s: float = 60) -> str:
        """A one-time link's secret."""
        link, ends = secrets.token_urlsafe(32), datetime.now(UTC) + timedelta(seconds=lives_s)
        row = {"hash": hash_of(link), "token_hash": None, "is_link": True, "expires_at": ends.isoformat()}
        await self.rows.open_session(row, "test")
        return link

    async def worker(self, pool: str | None = None, **options: Any) -> Caller:
        """A worker of this test's pool, unless another is named."""
        worker = await self.gateway.worker(pool=pool or self.pool, **options)
        self.workers.append(worker)
        return worker

    async def decide(self, pool: str, target: int = 2) -> None:
        """A decision of the leader."""
        row = {"pool": pool, "rule": f"min({target}, 4) = {target}", "target": target, "inputs": {"queued": target}}
        await self.store.record_decision(self.term, row)

    async def furnish(self) -> None:
        """Workers in several states, tasks, and decisions, of this test's pool and of `other`."""
        for pool in (self.pool, "other"):
            for state in (State.ACTIVE, State.SPAWNING):
                await self.worker(pool, state=state)
            await self.gateway.submit(pool, 3)
            await self.decide(pool)
        ended = await self.worker()
        await self.gateway.move(ended, (State.ACTIVE,), State.TERMINATING, exit_cause="manual")
        await self.gateway.move(ended, (State.TERMINATING,), State.TERMINATED)
        await self.condition("2 workers of a pool are stuck", [self.pool])
        await self.rows.task_changes.start(ENV_ADMIN, "retry", {"task_type": HOSTILE, "pool": self.pool}, key=None)

    async def condition(
        self,
        issue: str,
        pools: list[str],
        detail: str = "see the log",
        subject: str | None = None,
        priority: str = HIGH,
        count: int = 1,
    ) -> None:
        """What the leader finds wrong, so many times, about this test's pool unless another subject is named."""
        row = {"kind": "NO_HANDLER", "subject": subject or self.pool, "issue": issue, "detail": detail, "pools": pools}
        more = {"priority": priority, "who": "you", "then": None, "action": "orchestrator list", "until": None}
        since = datetime.now(UTC).isoformat()
        found = [{**row, **more, "since": since, "issue": f"{issue} {n}" if count > 1 else issue} for n in range(count)]
        await self.store.note_conditions(self.term, found, for_s=3_600)


@asynccontextmanager
async def dashboard_rig(
    db: PostgresDb,
    blobs: S3Blobs,
    *,
    admin: str | None = ADMIN,
    viewer: str | None = VIEWER,
    fleet: str | None = None,
    proxy_hops: int = 0,
    port: int = 0,
) -> AsyncIterator[DashboardRig]:
    """The whole application, with a fleet that has no tokens but these."""
    fleet = fleet or f"fleet-{uuid.uuid4().hex[:12]}"
    rows, wakeups, health = ApiRows(db, fleet), WakeupHub(), Health(started_at_s=time.monotonic())
    api = Api(rows, blobs, wakeups, admin_token=admin, viewer_token=viewer)
    dashboard = Dashboard(api, fleet, has_proxy=proxy_hops > 0)
    store = SqlStore(db, fleet)
    term = (await store.lead("tests", 3_600)).term
    async with (
        serving(db, blobs, wakeups, health, proxy_hops=proxy_hops, api=api, dashboard=dashboard, port=port) as url,
        AsyncExitStack() as clients,
        httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, verify=NO_TLS) as client,
    ):
        gateway = ServerUnderTest(client, store, wakeups, health, blobs, term, [])
        pool = f"pool-{uuid.uuid4().hex[:12]}"
        yield DashboardRig(url, rows, store, api, dashboard, term, client, gateway, pool, clients)


async def until(condition: Any, within_s: float = DEADLINE_S) -> None:
    """Wait for something that must come soon: `condition` is an async function."""
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(0.02)


def csrf_of(answer: httpx.Response) -> str:
    """The session's secret for forms, from a page."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', answer.text)
    assert found, answer.text
    return found[1]


def is_signed_in(answer: httpx.Response) -> bool:
    """Whether it is a page of somebody who is signed in."""
    return answer.status_code == 200 and "/logout" in answer.text
