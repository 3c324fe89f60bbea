"""The composition root: the only module that names adapters, and says which settings each needs."""

import asyncio
import hashlib
import os
import signal
import socket
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import structlog
import uvicorn

from orchestrator.adapters.blobs import S3Blobs
from orchestrator.adapters.db_postgres import PostgresDb
from orchestrator.adapters.lines import SshLines
from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.adapters.ssh import AsyncSshShell
from orchestrator.adapters.store import SqlStore
from orchestrator.bringup import BringUp, LaunchConfig, PodView, WorkerView
from orchestrator.bundle import Bundle, build_bundle
from orchestrator.catalog import Catalog
from orchestrator.core.actions import Plan, Verdict
from orchestrator.core.model import Policy, Snapshot, Worker
from orchestrator.core.plan import plan, sizes
from orchestrator.daemon import Daemon
from orchestrator.execute import Executor, Terms
from orchestrator.last_look import look
from orchestrator.logs import configure
from orchestrator.observe import Observer
from orchestrator.settings import Settings
from orchestrator.shipping import Shipper
from orchestrator.web.app import build_app
from orchestrator.web.health import Health
from orchestrator.web.signal import TaskSignal
from orchestrator.web.tokens import mint, verify

TOKEN_TTL_S = 30 * 86_400.0  # revoking is one update of the row; the expiry only bounds what a forgotten one can do
CATALOG_WAIT_S = 5.0  # for prices, where an answer without them is better than none
RELEASE_DIGITS = 12  # of the code's sha256: enough to tell releases apart, short enough to read
log = structlog.get_logger()


@asynccontextmanager
async def open_db(settings: Settings) -> AsyncIterator[PostgresDb]:
    """The database, connected."""
    url = settings.require("database").database_url
    assert url is not None  # noqa: S101  require() has seen to it
    db = await PostgresDb.open(url.get_secret_value())
    try:
        yield db
    finally:
        await db.close()


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[SqlStore]:
    """The fleet's rows."""
    async with open_db(settings) as db:
        yield SqlStore(db, settings.fleet_id)


def open_blobs(settings: Settings) -> S3Blobs:
    """The bucket."""
    settings.require("blobs")
    secret = settings.aws_secret_access_key
    assert secret is not None and settings.s3_bucket and settings.aws_access_key_id  # noqa: S101, PT018
    return S3Blobs(
        settings.s3_endpoint_url,
        settings.aws_access_key_id,
        secret.get_secret_value(),
        settings.s3_bucket,
        settings.s3_prefix,
        settings.aws_region,
    )


def open_cloud(settings: Settings) -> RunPodCloud:
    """The provider."""
    key = settings.require("cloud").runpod_api_key
    assert key is not None  # noqa: S101
    return RunPodCloud(key.get_secret_value(), base_url=settings.runpod_api_base_url)


@dataclass(frozen=True, slots=True)
class Parts:
    """A daemon and what it was built from."""

    daemon: Daemon
    db: PostgresDb
    blobs: S3Blobs
    signal: TaskSignal
    health: Health


async def run(settings: Settings) -> int:
    """The daemon with its HTTP server, until SIGTERM or SIGINT."""
    configure(settings.log_level, settings.secrets())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with _parts(settings) as parts:
        secret = settings.worker_jwt_secret
        assert secret is not None  # noqa: S101
        app = build_app(
            db=parts.db,
            blobs=parts.blobs,
            verifier=partial(verify, secret.get_secret_value()),
            health=parts.health,
            task_signal=parts.signal,
        )
        server = _Server(
            uvicorn.Config(app, settings.host, settings.port, log_config=None, access_log=False, lifespan="off")
        )
        serving = asyncio.create_task(server.serve(), name="serve")
        serving.add_done_callback(lambda _: stop.set())  # a port that is taken must not leave a deaf loop behind
        log.info("orchestrator_started", fleet=settings.fleet_id, port=settings.port, worker_url=settings.worker_url)
        await parts.daemon.run(stop)
        parts.signal.close()
        died = serving.done()
        server.should_exit = server.force_exit = True
        await asyncio.gather(serving, return_exceptions=True)
    log.info("orchestrator_stopped")
    return 1 if died else 0


async def once(settings: Settings) -> Plan | None:
    """One tick with its effects; None if another orchestrator leads."""
    configure(settings.log_level, settings.secrets())
    async with _parts(settings) as parts:
        return await parts.daemon.once()


async def dry_run(settings: Settings) -> tuple[Snapshot, Plan]:
    """What the next tick sees and would do, through the loop's own observation and planner; writes nothing."""
    async with open_store(settings) as store:
        cloud = open_cloud(settings)
        policy = _policy(settings, build_bundle(settings.worker_code_dir))
        catalog = Catalog(cloud, policy)
        try:
            await catalog.refresh()
            seen = await Observer(store, cloud, settings.fleet_id, catalog).observe(frozenset(), frozenset())
        finally:
            await cloud.close()
    return seen, plan(seen, policy)


async def verdicts(settings: Settings) -> tuple[Verdict, ...]:
    """What each pool's size comes to now, by the planner, from the database alone: RunPod may be away."""
    policy = _policy(settings, build_bundle(settings.worker_code_dir))
    catalog = Catalog(open_cloud(settings) if settings.runpod_api_key else None, policy)
    with suppress(TimeoutError):
        async with asyncio.timeout(CATALOG_WAIT_S):
            await catalog.refresh()
    async with open_store(settings) as store:
        seen = await Observer(store, None, settings.fleet_id, catalog).observe(frozenset(), frozenset())
    return tuple(verdict for _, verdict in sizes(seen, policy, []))


@asynccontextmanager
async def _parts(settings: Settings) -> AsyncIterator[Parts]:
    settings.require("database", "cloud", "shell", "blobs", "gateway")
    key, secret = settings.runpod_ssh_private_key, settings.worker_jwt_secret
    assert key is not None and secret is not None and settings.runpod_ssh_public_key  # noqa: S101, PT018
    bundle = build_bundle(settings.worker_code_dir)
    policy = replace(_policy(settings, bundle), public_key=settings.runpod_ssh_public_key.strip())
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(open_db(settings))
        store = SqlStore(db, settings.fleet_id)
        await store.check_functions()
        cloud, blobs = open_cloud(settings), open_blobs(settings)
        catalog = Catalog(cloud, policy)
        stack.push_async_callback(cloud.close)
        shell = AsyncSshShell(key.get_secret_value(), policy.public_key)
        lines = SshLines(shell)
        stack.push_async_callback(lines.close)
        shipper = Shipper(store, lines, blobs, python=settings.worker_python)
        pods, workers = PodView(), WorkerView()
        heartbeat_s = policy.heartbeat_timeout_s / 3
        bringup = BringUp(
            store,
            lines,
            shell,
            bundle,
            pods,
            workers,
            _launch(settings, heartbeat_s, {pool.name: pool.image for pool in policy.pools}),
            token_for=lambda worker, jti: _token(secret.get_secret_value(), worker, jti),
            pod_log=cloud.pod_log,
        )
        terms = Terms(heartbeat_s, policy.heartbeat_timeout_s, settings.worker_start_command is not None)
        task_signal = TaskSignal()
        health = Health(started_at_s=time.monotonic())
        daemon = Daemon(
            store=store,
            db=db,
            observer=Observer(store, cloud, settings.fleet_id, catalog),
            catalog=catalog,
            executor=lambda wake: Executor(
                store,
                cloud,
                climb=bringup.climb,
                look=partial(look, lines),
                finish_logs=shipper.finish,
                hang_up=lines.drop,
                catalog=catalog,
                policy=policy,
                terms=terms,
                wake=wake,
            ),
            shipper=shipper,
            pods=pods,
            workers=workers,
            health=health,
            policy=policy,
            poll_s=settings.orchestrator_poll_sec,
            holder=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}",
            on_notify=lambda channel, payload: _notify(task_signal, channel, payload),
        )
        yield Parts(daemon, db, blobs, task_signal, health)


def _policy(settings: Settings, bundle: Bundle) -> Policy:
    """The planner's numbers, with the name of the code that a worker started now would get."""
    both = f"{bundle.agent_sha}{bundle.code_sha or ''}"
    return replace(settings.policy(), code_sha=hashlib.sha256(both.encode()).hexdigest()[:RELEASE_DIGITS])


def _launch(settings: Settings, heartbeat_s: float, images: Mapping[str, str]) -> LaunchConfig:
    return LaunchConfig(
        api_url=settings.worker_url or "",
        python=settings.worker_python,
        handlers=dict(settings.worker_handlers),
        setup_command=settings.worker_setup_command,
        start_command=settings.worker_start_command,
        heartbeat_s=heartbeat_s,
        lease_s=settings.heartbeat_timeout_sec,
        deadman_s=settings.deadman_timeout_sec,
        spawning_timeout_s=settings.spawning_timeout_sec,
        deadlines_s=dict(settings.bringup_deadlines),
        images=images,
    )


def _token(secret: str, worker: Worker, jti: str) -> str:
    return mint(secret, worker.id, jti, time.time(), TOKEN_TTL_S)


def _notify(task_signal: TaskSignal, channel: str, payload: str) -> None:
    if channel == "orchestrator_tasks":
        task_signal.notify(payload)
    elif channel == "orchestrator_fleet":
        task_signal.notify_worker(payload)
    else:
        task_signal.notify_all()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the daemon decides when the process ends."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
