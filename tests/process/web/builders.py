"""The server under test over real HTTP, and workers that call it."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.store import SqlStore
from orchestrator.core.states import Stage, State
from orchestrator.observability.health import Health
from orchestrator.web.api.operations import Api
from orchestrator.web.app import build_app
from orchestrator.web.dashboard.dashboard import Dashboard
from orchestrator.web.limits import bounded
from orchestrator.web.token_renewal import Renewals
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import Claims, mint, verifier

SECRET = "a secret for tests, of more than 32 bytes"
RENEWALS = Renewals((SECRET,), deadman_s=900)
DEADLINE_S = 30.0  # of what should take milliseconds


def done(task_id: str, location: str | None = None) -> dict[str, Any]:
    """The arguments of a completion of a task's first attempt."""
    return {"p_task_id": task_id, "p_attempt": 1, "p_output_location": location, "p_result_data": {"n": 1}}


@dataclass(frozen=True, slots=True)
class Caller:
    """One worker's side of the gateway."""

    id: str
    pool: str
    jti: str
    nonce: str
    client: httpx.AsyncClient

    @property
    def token(self) -> str:
        """Its current token."""
        return mint(SECRET, self.id, self.jti, time.time(), 60)

    async def call(self, function: str, *, token: str | None = None, **args: Any) -> httpx.Response:
        """A call as the agent makes it."""
        body = {"p_worker_id": self.id, "p_nonce": self.nonce, **args}
        headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        return await self.client.post(f"/rest/v1/rpc/{function}", json=body, headers=headers)

    async def claim(self, number: int = 1, *, wait_s: float = 0, batch: int = 1) -> Mapping[str, Any]:
        """The answer to a claim, which must succeed."""
        reply = await self.call("worker_claim", p_claim_no=number, p_batch=batch, p_wait_s=wait_s)
        assert reply.status_code == 200, reply.text
        answer: Mapping[str, Any] = reply.json()
        return answer


@dataclass(frozen=True, slots=True)
class ServerUnderTest:
    """The server under test, and the parts behind it."""

    client: httpx.AsyncClient
    store: SqlStore
    signal: WakeupHub
    health: Health
    blobs: S3Blobs
    term: int
    unanswered: list[str]  # workers whose call was heard here and not answered

    async def worker(
        self,
        *,
        state: State = State.ACTIVE,
        pool: str | None = None,
        heartbeat_s: float = 20,
        lease_s: float = 60,
        cluster: str | None = None,
    ) -> Caller:
        """A worker in this state, with an agent that may call; its pool is its own unless named."""
        name, jti, nonce = (uuid.uuid4().hex[:12] for _ in range(3))
        caller = Caller(f"gpu-{name}", pool or f"pool-{name}", jti, nonce, self.client)
        intent = {
            "id": caller.id,
            "pool": caller.pool,
            "gpu_type": "NVIDIA GeForce RTX 4090",
            "gpu_count": 1,
        }
        terms = {"data_center": None, "reserved_usd": 0, "heartbeat_s": heartbeat_s, "lease_s": lease_s}
        why = {"own_program": False, "deadline_s": 60, "actor": "test", "reason": "test", "metadata": {}}
        reserved = {"cluster": cluster} if cluster else {}
        assert await self.store.spawn(self.term, intent | terms | why | reserved)
        await self.move(caller, (State.SPAWNING,), State.SPAWNING, nonce=nonce, token_jti=jti, pod_id=f"pod-{name}")
        if state is not State.SPAWNING:
            await self.move(caller, (State.SPAWNING,), State.ACTIVE)
        return caller

    async def move(self, caller: Caller, before: tuple[State, ...], after: State, **fields: Any) -> None:
        """Move a worker as the loop does."""
        stage = {State.ACTIVE: Stage.PROMOTED, State.TERMINATING: Stage.DRAINING, State.TERMINATED: Stage.GONE}
        await self.store.move(
            self.term,
            caller.id,
            from_states=before,
            to_state=None if after in before else after,
            stage=stage.get(after),
            reason="test",
            fields=fields,
        )

    async def submit(self, pool: str, count: int = 1, **fields: Any) -> list[str]:
        """So many tasks; their ids."""
        task = {"task_type": "t", "params": {}, "pool": pool, **fields}
        made = await self.store.submit([task] * count)
        return [task["id"] for task in made]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that must come soon."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if condition():
                    return
                await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(
    db: PostgresDb,
    blobs: S3Blobs,
    signal: WakeupHub,
    health: Health,
    on_unanswered: Callable[[str], None] = lambda _: None,
    check: Callable[[str], Claims] | None = None,
    proxy_hops: int = 0,
    api: Api | None = None,
    dashboard: Dashboard | None = None,
    port: int = 0,
) -> AsyncIterator[str]:
    """The application behind uvicorn on a free port, unless one is named; its URL."""
    app = build_app(
        db=db,
        blobs=blobs,
        verifier=check or verifier(SECRET),
        health=health,
        wakeups=signal,
        on_unanswered=on_unanswered,
        metrics_token=SECRET,
        proxy_hops=proxy_hops,
        sealed=lambda worker_id, jti: RENEWALS.sealed(worker_id, jti, time.time()),
        api=api,
        dashboard=dashboard,
    )
    server = uvicorn.Server(bounded(app, "127.0.0.1", port))
    running = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                if server.started:
                    break
                await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        signal.close()
        server.should_exit = server.force_exit = True
        await running


async def listen(db: PostgresDb, signal: WakeupHub) -> None:
    """Pass the database's notifications on, as the daemon does it."""
    async for channel, payload in db.notifications():
        signal.on_notification(channel, payload)
