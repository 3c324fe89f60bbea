"""The service: the loop and its HTTP door as one process, put together from what wiring opens."""

import asyncio
import gc
import os
import resource
import signal
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog
from starlette.applications import Starlette

from orchestrator import __version__
from orchestrator.adapters.metered import MeteredDb, MeteredWorkerDb
from orchestrator.config.settings import Settings
from orchestrator.config.validation import require
from orchestrator.core import maintenance
from orchestrator.core.actions import Plan
from orchestrator.core.maintenance import MaintenanceJob
from orchestrator.core.model import Policy, Snapshot, Worker
from orchestrator.core.plan import plan
from orchestrator.loop.daemon import Daemon, Hooks
from orchestrator.loop.execute import Executor, PodOperations, Terms
from orchestrator.loop.observe import FIRST_PATIENCE_S, Observer
from orchestrator.loop.runtime import Runtime
from orchestrator.loop.store_watch import StoreWatch
from orchestrator.loop.watchdog import Watchdog
from orchestrator.observability.health import DEAD_AFTER_S, Health
from orchestrator.observability.logging import configure
from orchestrator.observability.metrics import Metrics
from orchestrator.outputs import Answers
from orchestrator.pods.bringup import BringUp, Credentials, LaunchConfig
from orchestrator.pods.bundle import build_bundle
from orchestrator.pods.create import PodCreator
from orchestrator.pods.final_snapshot import look
from orchestrator.pods.latest import Latest
from orchestrator.pods.provider_cache import Catalog
from orchestrator.pods.teardown import Teardown
from orchestrator.ports import Blobs, Db, NotFound, PortError
from orchestrator.web.app import build_app
from orchestrator.web.role_routing import RoleRoutedDb
from orchestrator.web.server import GatewayServer
from orchestrator.web.token_renewal import Renewals
from orchestrator.web.wakeups import WakeupHub
from orchestrator.wiring import (
    LIST_WAIT_S,
    as_direct,
    lane_of,
    nonces_of,
    open_blobs,
    open_cloud,
    open_db,
    open_ssh_pool,
    open_worker_db,
    policy_of,
    resize,
    store_over,
)
from orchestrator.worker_logs.shipper import Shipper
from orchestrator.worker_tokens import verifier

if TYPE_CHECKING:
    from orchestrator.adapters.ssh_pool import SshPool

FOLLOWS = frozenset({"starting", "standby"})  # the roles in which the gateway has no connections of its own
JOB_EVERY_S = 2.0  # a tick for an operator who waits
# Connections of a leader at most: the loop's, of which bring-ups and shipments may use two; the agents' calls'; and one
# that listens. These 7 and a standby's one fit twice into the 15 that Supabase's session pooler gives by default.
LOOP_POOL, ACTS_LANE, GATEWAY_POOL, STANDBY_POOL = 3, 2, 3, 1
HTTP_POOL, HTTP_LANE = 7, 4  # HTTP connections, over Supabase's API: PostgREST has a pool of its own
HANG_UP_S = 5.0  # for all SSH connections together, when another process leads
LEAVE_WITHIN_S = 2.5  # of a signal, whatever hangs: what is cut off is found by the next leader, as after a crash
SERVED_S = 0.5  # for the answers under way, long polls included, once the loop has stopped
CUT_SHORT = b'{"event": "orchestrator_cut_short", "level": "warning", "message": "something held up the end"}\n'
GC_THRESHOLDS = (50_000, 20, 20)  # allocations between two looks at the youngest objects; then looks, of each
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Parts:
    """What the HTTP server shares with the loop."""

    db: Db
    observer: Observer
    blobs: Blobs
    health: Health
    metrics: Metrics
    notified: list[Callable[[str, str], None]] = field(default_factory=list)  # also hear the database's notifications
    on_lead: list[Callable[[bool], None]] = field(default_factory=list)  # told whether this process leads


async def run(settings: Settings) -> int:
    """The daemon with its HTTP server until SIGTERM or SIGINT; then gone in LEAVE_WITHIN_S, at a second one at once."""
    configure(settings.log_level, settings.secrets())
    _make_room()
    stop = asyncio.Event()
    _leave_on_signals(stop)
    async with _built(settings) as (daemon, parts):
        door = GatewayServer(
            settings.host, settings.port, partial(_application, settings, parts, asyncio.get_running_loop())
        )
        parts.notified.append(door.heard)
        door.open()
        watching = asyncio.create_task(_stop_with(door, stop), name="watch_the_door")
        log.info("orchestrator_started", fleet=settings.fleet_id, port=settings.port, worker_url=settings.worker_url)
        with Watchdog(lambda: parts.health.steps, tick_limit_s=parts.health.dead_after_s).watching():
            await daemon.run(stop)
        died = door.closed.is_set()
        await door.close(SERVED_S)
        watching.cancel()
    log.info("orchestrator_stopped")
    return 1 if died else 0


async def _stop_with(door: GatewayServer, stop: asyncio.Event) -> None:
    await door.closed.wait()
    stop.set()  # a port that is taken must not leave a deaf loop behind


@asynccontextmanager
async def _application(
    settings: Settings, parts: Parts, loop: asyncio.AbstractEventLoop, wakeups: WakeupHub
) -> AsyncIterator[Starlette]:
    """What the door serves; opened on its thread, with connections of its own."""
    async with open_worker_db(settings, pool_size=GATEWAY_POOL) as own:
        shared = as_direct(parts.db)
        db = RoleRoutedDb(own, shared, loop, lambda: parts.health.role not in FOLLOWS) if own and shared else None
        if own:
            here = asyncio.get_running_loop()
            parts.on_lead.append(lambda leads: None if leads else _shed(here, own.resize(GATEWAY_POOL)))
        yield build_app(
            db=MeteredWorkerDb(db, parts.metrics) if db else None,
            blobs=parts.blobs,
            verifier=verifier(*settings.token_keys()),
            health=parts.health,
            wakeups=wakeups,
            on_unanswered=lambda worker_id: _tell(loop, parts.observer.knocked, worker_id),
            metrics=parts.metrics,
            metrics_tokens=settings.metrics_tokens,
            proxy_hops=settings.proxy_hops,
            sealed=_sealed(settings),
        )


def _renewals(settings: Settings) -> Renewals:
    has_program = settings.worker_start_command is not None
    return Renewals(settings.token_keys(), settings.deadman_timeout_sec, own_program=has_program)


def _sealed(settings: Settings) -> Callable[[str, str], Sequence[str]]:
    """Worker id, jti -> its next token, sealed for it."""
    renewals = _renewals(settings)
    return lambda worker_id, jti: renewals.sealed(worker_id, jti, time.time())


def _shed(loop: asyncio.AbstractEventLoop, closing: Coroutine[Any, Any, None]) -> None:
    """Close the idle connections of another thread's pool."""
    try:
        asyncio.run_coroutine_threadsafe(closing, loop)
    except RuntimeError:  # the loop has closed, and they with it
        closing.close()


def _tell(loop: asyncio.AbstractEventLoop, hear: Callable[[str], None], what: str) -> None:
    with suppress(RuntimeError):  # the loop has gone: the process is about to
        loop.call_soon_threadsafe(hear, what)


async def once(settings: Settings) -> Plan | None:
    """One tick with its effects; None if another orchestrator leads."""
    configure(settings.log_level, settings.secrets())
    async with _built(settings, patience_s=LIST_WAIT_S) as (daemon, _):
        return await daemon.once()


async def lead_for(
    settings: Settings, job: MaintenanceJob, is_done: Callable[[], Awaitable[bool]], *, timeout_s: float
) -> None:
    """Lead while nobody else does, for one errand, until it is done or `timeout_s` is over; then give the lead back."""
    configure("WARNING", settings.secrets())
    often = settings.model_copy(update={"orchestrator_poll_sec": JOB_EVERY_S})
    async with _built(often, think=partial(maintenance.plan, job)) as (daemon, _):
        stop = asyncio.Event()
        leading = asyncio.create_task(daemon.run(stop), name="errand")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while not leading.done() and not await is_done():
                        await asyncio.sleep(JOB_EVERY_S)
        finally:
            stop.set()
            await leading


@asynccontextmanager
async def _built(
    settings: Settings,
    *,
    patience_s: float = FIRST_PATIENCE_S,
    think: Callable[[Snapshot, Policy], Plan] = plan,
) -> AsyncIterator[tuple[Daemon, Parts]]:
    require(settings, "database", "cloud", "shell", "blobs", "gateway")
    bundle = build_bundle(settings.worker_code_dir)
    policy = replace(policy_of(settings, bundle), public_key=settings.login_pair().public.text)
    is_direct = settings.database_url is not None
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(open_db(settings, pool_size=STANDBY_POOL if is_direct else HTTP_POOL))
        metrics, watch = Metrics(), StoreWatch()
        acting = lane_of(db, ACTS_LANE if is_direct else HTTP_LANE)
        store, acts = (store_over(MeteredDb(one, metrics), settings) for one in (db, acting))

        def on_blob_call(operation: str, error: PortError | None) -> None:
            metrics.stored(error is None or isinstance(error, NotFound))
            watch.called(operation, error)

        cloud, blobs = open_cloud(settings, metrics.called), open_blobs(settings, on_blob_call)
        stack.push_async_callback(cloud.close)
        shell, lines = open_ssh_pool(settings)
        stack.push_async_callback(lines.close)
        catalog, latest = Catalog(cloud, policy), Latest()
        health = _health(settings, metrics, await store.check_functions())
        name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        runtime = Runtime(store, db, policy, health, metrics, latest, name, settings.orchestrator_poll_sec)
        shipper = Shipper(acts, lines, blobs, python=settings.worker_python)
        heartbeat_s = policy.heartbeat_timeout_s / 3
        credentials = Credentials(_token_for(settings), nonces_of(settings))
        launch = _launch(settings, heartbeat_s, policy)
        bringup = BringUp(acts, lines, shell, bundle, latest, launch, credentials, cloud.pod_log)
        operations = PodOperations(
            PodCreator(acts, cloud, policy, catalog, credentials.nonce_for),
            bringup.bring_up,
            Teardown(acts, cloud, look=partial(look, lines), finish_logs=shipper.finish, policy=policy),
            lines.drop,
        )
        terms = Terms(heartbeat_s, policy.heartbeat_timeout_s, settings.worker_start_command is not None)
        observer = Observer(
            store, cloud, settings.fleet_id, catalog, deaf_s=heartbeat_s, patience_s=patience_s, store_watch=watch
        )
        parts = Parts(db, observer, blobs, health, metrics)
        hooks = Hooks(
            on_notify=lambda channel, payload: [hear(channel, payload) for hear in parts.notified],
            on_lead=partial(_lead, parts, lines),
            look_at_store=partial(watch.look, blobs),
            answers=Answers(acts, blobs, _sealed(settings)) if settings.pods_use_supabase else None,
        )
        executor = Executor(store, cloud, operations, policy, terms)
        yield (
            Daemon(runtime, observer, executor, catalog=catalog, shipper=shipper, hooks=hooks, think=think),
            parts,
        )


async def _lead(parts: Parts, lines: "SshPool", leads: bool) -> None:
    """Open what only a leader needs, or close it."""
    await resize(parts.db, LOOP_POOL if leads else STANDBY_POOL)
    for tell in parts.on_lead:
        tell(leads)
    if leads:
        lines.open()
    else:
        await _hang_up(lines)


def _token_for(settings: Settings) -> Callable[[Worker, str], str]:
    renewals = _renewals(settings)
    return lambda worker, jti: renewals.token(worker.id, jti, time.time())


async def _hang_up(lines: "SshPool") -> None:
    """Another process leads: it has connections of its own to the pods."""
    try:
        async with asyncio.timeout(HANG_UP_S):
            await lines.close()
    except TimeoutError:
        log.warning("lines_cut_off", message=f"SSH connections were not closed within {HANG_UP_S:g} s")


def _health(settings: Settings, metrics: Metrics, schema: str) -> Health:
    runs = {"version": __version__, "commit": settings.railway_git_commit_sha, "schema": schema}
    metrics.build.labels(*(text or "" for text in runs.values())).set(1)
    dead_after_s = DEAD_AFTER_S + settings.orchestrator_poll_sec  # a fleet at rest is looked at no more often than that
    return Health(time.monotonic(), dead_after_s, runs=runs, depends=metrics.dependencies)


def _leave_on_signals(stop: asyncio.Event) -> None:
    """Set `stop` at the first signal; end the process without a word more if it is still here LEAVE_WITHIN_S later.

    Not the loop's own handlers: they wait for a loop that may be held up, and a call that hangs in a thread would hold
    up the interpreter's end for as long as it hangs.
    """
    loop = asyncio.get_running_loop()
    asked: list[int] = []

    def leave(number: int, _frame: FrameType | None) -> None:
        if asked:
            os._exit(128 + number)
        asked.append(number)
        loop.call_soon_threadsafe(stop.set)
        late = threading.Timer(LEAVE_WITHIN_S, _cut_short)
        late.daemon = True
        late.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


def _cut_short() -> None:
    os.write(2, CUT_SHORT)  # not through logging: who hangs may hold its lock
    os._exit(0)


def _make_room() -> None:
    """Let this process have a thousand workers: an SSH session and two HTTP connections each, and many objects.

    Most objects here live as long as a worker does. With Python's own thresholds the garbage collector goes through all
    of them again and again, which is half of the process's time at that size.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS refuses what its kernel allows no process, whatever the limit says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.set_threshold(*GC_THRESHOLDS)


def _launch(settings: Settings, heartbeat_s: float, policy: Policy) -> LaunchConfig:
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
        batches={pool.name: pool.batch for pool in policy.pools},
        images={pool.name: pool.image for pool in policy.pools},
        env=settings.handler_env,
        pool_handlers={pool.name: pool.handlers for pool in policy.pools if pool.handlers is not None},
        pool_env={pool.name: pool.env for pool in policy.pools if pool.env is not None},
        renewal_key_for=_renewals(settings).key_for,
    )
