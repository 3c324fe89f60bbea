"""From the insert of a task to an idle worker's hands, through the gateway, and the peers' by LISTEN; the bar is 20 ms.

The worker waits in a long poll, as every idle agent does; the clock starts before the insert is sent and stops when the
claim's answer is read. The server runs in this process, the database beside it.
"""

import asyncio
import secrets
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from bench import peers
from bench.figures import spread
from bench.queues import WORKER, database
from orchestrator.adapters.blobs import S3Blobs
from orchestrator.adapters.db_postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.core.states import Stage, State
from orchestrator.emulator.postgres import EmbeddedPostgres
from orchestrator.migrate import migrate
from orchestrator.web.app import build_app
from orchestrator.web.health import Health
from orchestrator.web.limits import bounded
from orchestrator.web.signal import TaskSignal
from orchestrator.web.tokens import mint, verifier
from worker import protocol

TRIES = 500
ROUNDS = 5  # the sides take turns
PEERS = ("procrastinate", "pgqueuer")
WAIT_S = 20.0
DEADLINE_S = 30.0
POLL_S = 0.001
CALLS = "/rest/v1/rpc/"


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Seconds per task."""
    secret = secrets.token_hex(32)
    python = await peers.installed()
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(directory / "postgres"))
        await migrate(postgres.url)
        theirs = {name: await database(postgres, name) for name in PEERS}
        db = await PostgresDb.open(postgres.url, pool_size=4)
        stack.push_async_callback(db.close)
        store, signal = SqlStore(db, "default"), TaskSignal()
        url = await serve(stack, db, signal, secret)
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=DEADLINE_S))
        worker = await new_worker(store)
        client.headers["Authorization"] = (
            f"Bearer {mint(secret, worker['p_worker_id'], worker['p_nonce'], time.time())}"
        )
        took_s: dict[str, list[float]] = {"ours": [], **{name: [] for name in PEERS}}
        number = 0
        for _ in range(ROUNDS):
            for _ in range(tries // ROUNDS):
                number += 1
                took_s["ours"].append(await _once(store, signal, client, worker, number))
            for name, url_of_peer in theirs.items():
                took_s[name] += await peers.drive(python, name, url_of_peer, "pickup", tries // ROUNDS)
    return {
        "tries": tries,
        **{f"{name}_{key}": value for name, all_s in took_s.items() for key, value in spread(all_s).items()},
    }


async def _once(
    store: SqlStore, signal: TaskSignal, client: httpx.AsyncClient, worker: dict[str, str], n: int
) -> float:
    claim = {**worker, "p_claim_no": n, "p_batch": 1, "p_wait_s": WAIT_S}
    waiting = asyncio.create_task(client.post(CALLS + protocol.CLAIM, json=claim))
    async with asyncio.timeout(DEADLINE_S):
        while not signal.waiting:
            await asyncio.sleep(POLL_S)
        began_s = time.perf_counter()
        [made] = await store.submit([{"task_type": "x", "params": {}, "pool": "default"}])
        [task] = (await waiting).json()["tasks"]
        took_s = time.perf_counter() - began_s
        assert task["id"] == made["id"]  # noqa: S101
        done = {"p_task_id": task["id"], "p_attempt": 1, "p_output_location": None, "p_result_data": None}
        (await client.post(CALLS + protocol.COMPLETE, json={**worker, **done})).raise_for_status()
    return took_s


async def new_worker(store: SqlStore) -> dict[str, str]:
    """One that may claim; its nonce is its token's id too."""
    name, nonce = f"gpu-{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
    term = (await store.lead("bench", 3_600)).term
    await store.spawn(term, {"id": name, "pool": "default", **WORKER})
    here, fields = (State.SPAWNING,), {"nonce": nonce, "token_jti": nonce}
    await store.move(term, name, from_states=here, reason="bench", fields=fields)
    await store.move(term, name, from_states=here, to_state=State.ACTIVE, stage=Stage.PROMOTED, reason="bench")
    return {"p_worker_id": name, "p_nonce": nonce}


async def serve(stack: AsyncExitStack, db: PostgresDb, signal: TaskSignal, secret: str) -> str:
    """Our gateway, until the stack closes; its address."""

    async def listen() -> None:
        async for channel, payload in db.notifications():
            signal.heard(channel, payload)

    blobs = S3Blobs(None, "none", "none", "none", "", "us-east-1")  # no task of these has an output
    health = Health(started_at_s=time.monotonic())
    app = build_app(db=db, blobs=blobs, verifier=verifier(secret), health=health, task_signal=signal)
    server = uvicorn.Server(bounded(app, "127.0.0.1", 0))
    running = [asyncio.create_task(server.serve()), asyncio.create_task(listen())]

    async def stop() -> None:
        signal.close()
        server.should_exit = server.force_exit = True
        running[1].cancel()
        await asyncio.gather(*running, return_exceptions=True)

    stack.push_async_callback(stop)
    async with asyncio.timeout(DEADLINE_S):
        while not server.started:
            await asyncio.sleep(POLL_S)
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
