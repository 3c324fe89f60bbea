"""From the insert of a task to its claim by an idle worker, over each way to the database, and for the peers by LISTEN.

The clock starts before the insert is sent and stops when the claim's answer is read; one server, with durable commits.
*ours* waits in a long poll of the gateway, as an idle agent does, and has the bar: 20 ms. *direct* is the shortest way
to our own functions: LISTEN, then `worker_claim`, on one connection. *polling* is the agent's own loop over PostgREST,
which keeps no call open: after some seconds without work it asks every EMPTY_PAUSE_MAX_S. The gateway and the clients
run in this process; the database, PostgREST and the peers in others.
"""

import asyncio
import itertools
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg
import uvicorn

from bench import peers
from bench.figures import spread
from bench.queues import WORKER, Connection, Ours, database, results_of
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.store import SqlStore
from orchestrator.core.states import Stage, State
from orchestrator.migrate import migrate
from orchestrator.observability.health import Health
from orchestrator.ports import TASKS_CHANNEL
from orchestrator.web.app import build_app
from orchestrator.web.limits import bounded
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import mint, verifier
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.postgrest import EmbeddedPostgrest
from testbed.services.supabase_roles import create_roles
from worker import protocol
from worker.agent import EMPTY_PAUSE_MAX_S, Agent
from worker.agent_state import HeldTask
from worker.config import Config, RunDir
from worker.exits import Outcome
from worker.journal import Journal

TRIES = 500
GOALS = {"ours_p99_s": ("<=", 0.02)}
TOLD = ("direct_p99_s", "procrastinate_p99_s", "pgqueuer_p99_s", "polling_p99_s")
ROUNDS = 5  # the sides take turns
PEERS = ("procrastinate", "pgqueuer")
POLLERS = 8  # agents that poll side by side, each in a pool of its own: one try each a round
POLLERS_CALM_S = 3.5  # until each has found nothing so often that its pauses are at their longest
WAIT_S = 20.0
DEADLINE_S = 30.0
POLL_S = 0.001
CALLS = "/rest/v1/rpc/"
Turn = Callable[[int], Awaitable[list[float]]]  # so many tries: the seconds of each


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Seconds per task."""
    secret = secrets.token_hex(32)
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(directory / "postgres", keep=False))
        await create_roles(postgres.url)
        await migrate(postgres.url)
        db = await PostgresDb.open(postgres.url, pool_size=4)
        stack.push_async_callback(db.close)
        store = SqlStore(db, "default")
        rest = await stack.enter_async_context(EmbeddedPostgrest(postgres.url, secret))
        turns: dict[str, Turn] = {
            "ours": await gateway_turns(stack, db, store, secret),
            "direct": await direct_turns(stack, postgres.url, store),
            **await peer_turns(postgres),
            "polling": await polling_turns(stack, directory, rest, store, secret),
        }
        took_s: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(ROUNDS):
            for name, turn in turns.items():
                took_s[name] += await turn(max(1, tries // ROUNDS))
    return {
        "tries": len(took_s["ours"]),
        "polling_tries": len(took_s["polling"]),
        "polling_pause_s": EMPTY_PAUSE_MAX_S,
        **{f"{name}_{key}": value for name, all_s in took_s.items() for key, value in spread(all_s).items()},
    }


async def gateway_turns(stack: AsyncExitStack, db: PostgresDb, store: SqlStore, secret: str) -> Turn:
    """An HTTP client in our gateway's long poll."""
    signal = WakeupHub()
    url = await serve(stack, db, signal, secret)
    client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=DEADLINE_S))
    worker = await new_worker(store)
    client.headers["Authorization"] = f"Bearer {_token(secret, worker)}"
    claims = 0

    async def once() -> float:
        nonlocal claims
        claims += 1
        claim = {**worker, "p_claim_no": claims, "p_batch": 1, "p_wait_s": WAIT_S}
        waiting = asyncio.create_task(client.post(CALLS + protocol.CLAIM, json=claim))
        async with asyncio.timeout(DEADLINE_S):
            while not signal.waiting:
                await asyncio.sleep(POLL_S)
            began_s = time.perf_counter()
            [made] = await store.submit([_task("default")])
            [task] = (await waiting).json()["tasks"]
            took_s = time.perf_counter() - began_s
            assert task["id"] == made["id"]  # noqa: S101
            done = {"p_task_id": task["id"], "p_attempt": 1, "p_output_location": None, "p_result_data": None}
            (await client.post(CALLS + protocol.COMPLETE, json={**worker, **done})).raise_for_status()
        return took_s

    return lambda tries: _each(once, tries)


async def direct_turns(stack: AsyncExitStack, url: str, store: SqlStore) -> Turn:
    """A connection that listens, and claims when it has heard."""
    pool = "direct"
    connection: Connection = await stack.enter_async_context(
        await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=1)
    )
    await connection.execute(f"listen {TASKS_CHANNEL}".encode())
    worker = tuple((await new_worker(store, pool)).values())
    claims = 0

    async def claim() -> Sequence[dict[str, Any]]:
        nonlocal claims
        claims += 1
        row = await (await connection.execute(Ours.CLAIM, (*worker, claims, 1))).fetchone()
        assert row is not None  # noqa: S101
        return list(row[0]["tasks"])

    async def once() -> float:
        assert not await claim()  # noqa: S101  idle
        async for _ in connection.notifies(timeout=0):
            pass  # of the other sides' tasks
        async with asyncio.timeout(DEADLINE_S):
            began_s = time.perf_counter()
            inserting = asyncio.create_task(store.submit([_task(pool)]))
            async for _ in connection.notifies(stop_after=1):
                pass
            [task] = await claim()
            took_s = time.perf_counter() - began_s
            await inserting
            await connection.execute(Ours.COMPLETE_MANY, (*worker, results_of([task])))
        return took_s

    return lambda tries: _each(once, tries)


async def peer_turns(postgres: EmbeddedPostgres) -> dict[str, Turn]:
    """Workers of the peers, each in a process that listens."""
    python = await peers.installed()

    def turn(name: str, url: str) -> Turn:
        return lambda tries: peers.drive(python, name, url, "pickup", tries)

    return {name: turn(name, await database(postgres, name)) for name in PEERS}


class Poller(Agent):
    """The agent's own loop, until it holds a task; what it would run is done at once."""

    claimed_s = 0.0

    def work(self) -> None:
        """Ask for tasks until there is one, and complete it."""
        self._work()

    def _run_all(self, tasks: list[HeldTask]) -> None:
        for held in tasks:
            self.claimed_s = time.perf_counter()
            self._reports.add(held, Outcome("done"))
            self._reports.flush()
            self.state.draining = True


async def polling_turns(
    stack: AsyncExitStack, directory: Path, rest: EmbeddedPostgrest, store: SqlStore, secret: str
) -> Turn:
    """Agents whose API is PostgREST alone; a turn takes as many tries as there are agents."""
    workers = {f"polling-{number}": await new_worker(store, f"polling-{number}") for number in range(POLLERS)}

    def poller(pool: str, worker: dict[str, str]) -> Poller:
        given = {"worker_id": worker["p_worker_id"], "nonce": worker["p_nonce"], "token": _token(secret, worker)}
        config = Config({**given, "api_url": rest.project_url, "api_key": rest.publishable_key})
        return Poller(config, RunDir(str(directory)), "", {}, Journal(str(directory / f"{pool}.log"), ()))

    threads = stack.enter_context(ThreadPoolExecutor(POLLERS))
    apart_s = EMPTY_PAUSE_MAX_S / POLLERS  # so an insert meets them all over their pauses, and elsewhere in each turn
    shifts = itertools.cycle(apart_s * number / ROUNDS for number in range(ROUNDS))

    async def turn(tries: int) -> list[float]:
        pollers = [poller(*one) for one in list(workers.items())[:tries]]
        running = []
        try:
            for one in pollers:
                running.append(asyncio.get_running_loop().run_in_executor(threads, one.work))
                await asyncio.sleep(apart_s)
            await asyncio.sleep(POLLERS_CALM_S + next(shifts))
            began_s = time.perf_counter()
            await store.submit([_task(pool) for pool in list(workers)[:tries]])
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.gather(*running)
        finally:
            for one in pollers:
                one.state.end("the turn is over")
        return [one.claimed_s - began_s for one in pollers]

    return turn


def _task(pool: str) -> dict[str, Any]:
    return {"task_type": "x", "params": {}, "pool": pool}


async def _each(once: Callable[[], Awaitable[float]], tries: int) -> list[float]:
    return [await once() for _ in range(tries)]


def _token(secret: str, worker: dict[str, str]) -> str:
    return mint(secret, worker["p_worker_id"], worker["p_nonce"], time.time())


async def new_worker(store: SqlStore, pool: str = "default") -> dict[str, str]:
    """One that may claim; its nonce is its token's id too."""
    name, nonce = f"gpu-{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
    term = (await store.lead("bench", 3_600)).term
    await store.spawn(term, {"id": name, "pool": pool, **WORKER})
    here, fields = (State.SPAWNING,), {"nonce": nonce, "token_jti": nonce}
    await store.move(term, name, from_states=here, reason="bench", fields=fields)
    await store.move(term, name, from_states=here, to_state=State.ACTIVE, stage=Stage.PROMOTED, reason="bench")
    return {"p_worker_id": name, "p_nonce": nonce}


async def serve(
    stack: AsyncExitStack, db: PostgresDb, signal: WakeupHub, secret: str, blobs: S3Blobs | None = None
) -> str:
    """Our gateway, until the stack closes; its address. Without `blobs`, no task may have an output."""

    async def listen() -> None:
        async for channel, payload in db.notifications():
            signal.on_notification(channel, payload)

    blobs = blobs or S3Blobs(None, "none", "none", "none", "", "us-east-1")
    health = Health(started_at_s=time.monotonic())
    app = build_app(db=db, blobs=blobs, verifier=verifier(secret), health=health, wakeups=signal)
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
