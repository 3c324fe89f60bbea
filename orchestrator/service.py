"""The service: the loop and its HTTP door as one process, put together from what wiring opens."""

import asyncio
import gc
import os
import resource
import signal
import socket
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

import structlog
import uvicorn

from orchestrator.bringup import BringUp, LaunchConfig, PodView, WorkerView
from orchestrator.bundle import build_bundle
from orchestrator.catalog import Catalog
from orchestrator.core import errands
from orchestrator.core.actions import Plan
from orchestrator.core.errands import Errand
from orchestrator.core.model import Policy, Snapshot
from orchestrator.core.plan import plan
from orchestrator.daemon import Daemon
from orchestrator.execute import Executor, Terms
from orchestrator.grants import Answers
from orchestrator.last_look import look
from orchestrator.logs import configure
from orchestrator.observe import Observer
from orchestrator.ports import Blobs
from orchestrator.settings import Settings
from orchestrator.shipping import Shipper
from orchestrator.web.app import build_app
from orchestrator.web.gateway import WorkerDb
from orchestrator.web.health import Health
from orchestrator.web.signal import TaskSignal
from orchestrator.web.tokens import mint, verifier
from orchestrator.wiring import open_blobs, open_cloud, open_db, open_lines, policy_of, store_over

# Connections at most, of the loop, the bring-ups and shipments, the agents' calls; with the one that listens they are
# the 15 that Supabase's session pooler gives by default.
POOLS = (3, 4, 7)
ERRAND_EVERY_S = 2.0  # a tick for an operator who waits
GC_THRESHOLDS = (50_000, 20, 20)  # allocations between two looks at the youngest objects; then looks, of each
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Parts:
    """A daemon and what it was built from."""

    daemon: Daemon
    observer: Observer
    db: WorkerDb
    blobs: Blobs
    signal: TaskSignal
    health: Health


async def run(settings: Settings) -> int:
    """The daemon with its HTTP server, until SIGTERM or SIGINT."""
    configure(settings.log_level, settings.secrets())
    _make_room()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with _parts(settings) as parts:
        app = build_app(
            db=parts.db,
            blobs=parts.blobs,
            verifier=verifier(*settings.token_keys()),
            health=parts.health,
            task_signal=parts.signal,
            on_unanswered=parts.observer.knocked,
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


async def lead_for(
    settings: Settings, errand: Errand, is_done: Callable[[], Awaitable[bool]], *, timeout_s: float
) -> None:
    """Lead while nobody else does, for one errand, until it is done or `timeout_s` is over; then give the lead back."""
    configure("WARNING", settings.secrets())
    often = settings.model_copy(update={"orchestrator_poll_sec": ERRAND_EVERY_S})
    async with _parts(often, think=partial(errands.plan, errand)) as parts:
        stop = asyncio.Event()
        leading = asyncio.create_task(parts.daemon.run(stop), name="errand")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while not leading.done() and not await is_done():
                        await asyncio.sleep(ERRAND_EVERY_S)
        finally:
            stop.set()
            await leading


@asynccontextmanager
async def _parts(settings: Settings, think: Callable[[Snapshot, Policy], Plan] = plan) -> AsyncIterator[Parts]:
    settings.require("database", "cloud", "shell", "blobs", "gateway")
    assert settings.runpod_ssh_public_key  # noqa: S101  require() has seen to it
    signing_key = settings.token_keys()[0]
    bundle = build_bundle(settings.worker_code_dir)
    policy = replace(policy_of(settings, bundle), public_key=settings.runpod_ssh_public_key.strip())
    async with AsyncExitStack() as stack:
        # Connections of their own for the loop, the bring-ups and the agents: a thousand calls of one queue up at once,
        # and the loop's must not be the last of them.
        db, acting, gateway = [await stack.enter_async_context(open_db(settings, pool_size=n)) for n in POOLS]
        store, acts = store_over(db, settings), store_over(acting, settings)
        await store.check_functions()
        cloud, blobs = open_cloud(settings), open_blobs(settings)
        catalog = Catalog(cloud, policy)
        stack.push_async_callback(cloud.close)
        shell, lines = open_lines(settings)
        stack.push_async_callback(lines.close)
        shipper = Shipper(acts, lines, blobs, python=settings.worker_python)
        pods, workers = PodView(), WorkerView()
        heartbeat_s = policy.heartbeat_timeout_s / 3
        bringup = BringUp(
            acts,
            lines,
            shell,
            bundle,
            pods,
            workers,
            _launch(settings, heartbeat_s, {pool.name: pool.image for pool in policy.pools}),
            token_for=lambda worker, jti: mint(signing_key, worker.id, jti, time.time()),
            pod_log=cloud.pod_log,
        )
        terms = Terms(heartbeat_s, policy.heartbeat_timeout_s, settings.worker_start_command is not None)
        task_signal = TaskSignal()
        health = Health(started_at_s=time.monotonic())
        observer = Observer(store, cloud, settings.fleet_id, catalog, deaf_s=heartbeat_s)
        daemon = Daemon(
            store=store,
            db=db,
            observer=observer,
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
            on_notify=task_signal.heard,
            think=think,
            answers=Answers(acts, blobs) if settings.pods_use_supabase else None,
        )
        yield Parts(daemon, observer, gateway, blobs, task_signal, health)


def _make_room() -> None:
    """Let this process have a thousand workers: an SSH session and two HTTP connections each, and many objects.

    Most objects here live as long as a worker does. With Python's own thresholds the garbage collector goes through all
    of them again and again, which is half of the process's time at that size.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS refuses what its kernel allows no process, whatever the limit says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.set_threshold(*GC_THRESHOLDS)


def _launch(settings: Settings, heartbeat_s: float, images: Mapping[str, str]) -> LaunchConfig:
    return LaunchConfig(
        api_url=settings.worker_url or "",
        api_key=settings.supabase_publishable_key if settings.pods_use_supabase else None,
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


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the daemon decides when the process ends."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
