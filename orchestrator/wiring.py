"""The composition root: the only module that names adapters and the settings that each needs.

A command imports only the adapters that it uses: `list` needs the database, but not SSH, S3 or RunPod's SDK.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.adapters.cluster_store import ClusterStore
from orchestrator.adapters.schedule_store import ScheduleStore
from orchestrator.adapters.sharing_store import SharingStore
from orchestrator.adapters.store import SqlStore
from orchestrator.adapters.webhook_store import WebhookStore
from orchestrator.config.validation import require
from orchestrator.core.liveness import ObservationWindow
from orchestrator.core.plan import plan, plan_pools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from orchestrator.adapters.postgres import PostgresDb
    from orchestrator.adapters.runpod import RunPodCloud
    from orchestrator.adapters.s3 import Patience, S3Blobs
    from orchestrator.adapters.ssh import AsyncSshShell
    from orchestrator.adapters.ssh_pool import SshPool
    from orchestrator.adapters.webhook_sender import SendingRules
    from orchestrator.config.settings import Settings
    from orchestrator.core.actions import Plan, PoolDecision
    from orchestrator.core.model import Snapshot
    from orchestrator.core.policy import Policy
    from orchestrator.pods.bundle import Bundle
    from orchestrator.ports import Db, PortError

LIST_WAIT_S = 30.0  # for the pod list of a single observation
COMMAND_POOL = 4  # connections at most
CALL_TIMEOUT_S = 15.0  # for one answer of the database
CATALOG_WAIT_S = 5.0  # for prices; without them, the answer is still useful
RELEASE_DIGITS = 12  # of the code's sha256: enough to tell releases apart, short enough to read


@asynccontextmanager
async def open_db(
    settings: Settings, *, pool_size: int = COMMAND_POOL, call_timeout_s: float = CALL_TIMEOUT_S
) -> AsyncIterator[Db]:
    """Open the database by DATABASE_URL, or over Supabase's API."""
    require(settings, "database")
    db: Db
    if settings.database_url:
        db = await _direct(settings, pool_size, call_timeout_s=call_timeout_s)
    else:
        from orchestrator.adapters.supabase import SupabaseDb

        key = settings.supabase_service_role_key
        assert settings.supabase_url and key is not None  # noqa: S101, PT018  require() has checked it
        secret = key.get_secret_value()
        db = await SupabaseDb.open(settings.supabase_url, secret, pool_size=pool_size, call_timeout_s=call_timeout_s)
    try:
        yield db
    finally:
        await db.close()


@asynccontextmanager
async def open_worker_db(settings: Settings, *, pool_size: int) -> AsyncIterator[PostgresDb | None]:
    """The database for calls of pods through the gateway. None over Supabase's API, which pods call directly."""
    if settings.database_url is None:
        yield None
        return
    db = await _direct(settings, pool_size, kept=0)
    try:
        yield db
    finally:
        await db.close()


async def resize(db: Db, size: int) -> None:
    """Set the size of a direct connection's pool. Over Supabase's API, the connections are PostgREST's."""
    if (direct := as_direct(db)) is not None:
        await direct.resize(size)


def as_direct(db: Db) -> PostgresDb | None:
    """Return the same object if it is a direct connection to PostgreSQL, or None."""
    from orchestrator.adapters.postgres import PostgresDb

    return db if isinstance(db, PostgresDb) else None


def lane_of(db: Db, limit: int) -> Db:
    """Return a share of its connections; see adapters/connection_lanes.py."""
    from orchestrator.adapters.connection_lanes import ConnectionLane

    return ConnectionLane(db, limit)


async def _direct(
    settings: Settings, pool_size: int, *, kept: int = 1, call_timeout_s: float = CALL_TIMEOUT_S
) -> PostgresDb:
    from orchestrator.adapters.postgres import PostgresDb

    url = settings.database_url
    assert url is not None  # noqa: S101
    logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # the errors name the cause
    return await PostgresDb.open(url.get_secret_value(), pool_size=pool_size, kept=kept, call_timeout_s=call_timeout_s)


@asynccontextmanager
async def open_store(settings: Settings, *, call_timeout_s: float = CALL_TIMEOUT_S) -> AsyncIterator[SqlStore]:
    """The fleet's rows, for a command. If the database is unreachable, raise the cause at once."""
    if settings.database_url is not None:
        from orchestrator.adapters.connection_test import try_connection

        await try_connection(settings.database_url.get_secret_value())
    async with open_db(settings, call_timeout_s=call_timeout_s) as db:
        yield store_over(db, settings)


@asynccontextmanager
async def open_schedules(settings: Settings) -> AsyncIterator[ScheduleStore]:
    """The schedules, for a command."""
    async with open_db(settings) as db:
        yield ScheduleStore(db, settings.fleet_id)


@asynccontextmanager
async def open_clusters(settings: Settings) -> AsyncIterator[tuple[ClusterStore, SqlStore]]:
    """The clusters, and the fleet's rows, for a command."""
    if settings.database_url is not None:
        from orchestrator.adapters.connection_test import try_connection

        await try_connection(settings.database_url.get_secret_value())
    async with open_db(settings) as db:
        yield ClusterStore(db, settings.fleet_id), store_over(db, settings)


@asynccontextmanager
async def open_webhooks(settings: Settings) -> AsyncIterator[WebhookStore]:
    """The webhooks, for a command."""
    async with open_db(settings) as db:
        yield WebhookStore(db, settings.fleet_id)


def sending_rules(settings: Settings) -> SendingRules | None:
    """How webhooks are sent; None if WEBHOOK_SECRET is not set."""
    from orchestrator.adapters.webhook_sender import SendingRules

    secrets = (settings.webhook_secret, settings.webhook_secret_previous)
    if settings.webhook_secret is None:
        return None
    return SendingRules(
        tuple(one.get_secret_value() for one in secrets if one),
        tuple(ipaddress.ip_network(one) for one in settings.webhook_private_networks),
    )


@asynccontextmanager
async def open_sharing(settings: Settings) -> AsyncIterator[SharingStore]:
    """The weights of tenants, for a command."""
    async with open_db(settings) as db:
        yield SharingStore(db)


def store_over(db: Db, settings: Settings) -> SqlStore:
    """The fleet's rows, over a database that is open already."""
    return SqlStore(db, settings.fleet_id)


def open_blobs(
    settings: Settings,
    on_call: Callable[[str, PortError | None], None] = lambda _operation, _error: None,
    *,
    patience: Patience | None = None,
) -> S3Blobs:
    """The bucket. `patience`: how long a call waits, if not as usual."""
    from orchestrator.adapters.s3 import USUAL, S3Blobs

    require(settings, "blobs")
    secret = settings.aws_secret_access_key
    assert secret is not None and settings.s3_bucket and settings.aws_access_key_id  # noqa: S101, PT018
    return S3Blobs(
        settings.s3_endpoint_url,
        settings.aws_access_key_id,
        secret.get_secret_value(),
        settings.s3_bucket,
        settings.s3_prefix,
        settings.aws_region,
        on_call=on_call,
        patience=patience or USUAL,
    )


def open_cloud(
    settings: Settings, on_call: Callable[[str, str], None] = lambda _operation, _status: None
) -> RunPodCloud:
    """The provider."""
    from orchestrator.adapters.http_deadline import session_for
    from orchestrator.adapters.runpod import RunPodCloud

    key = require(settings, "cloud").runpod_api_key
    assert key is not None  # noqa: S101
    session_for(settings.runpod_api_base_url).close()  # a proxy that cannot be used shows now, not in a call
    return RunPodCloud(key.get_secret_value(), base_url=settings.runpod_api_base_url, on_call=on_call)


def open_ssh_pool(settings: Settings) -> tuple[AsyncSshShell, SshPool]:
    """Open the SSH client and the pool with one connection per worker."""
    from orchestrator.adapters.ssh import AsyncSshShell
    from orchestrator.adapters.ssh_pool import SshPool

    pair = require(settings, "shell").login_pair()
    shell = AsyncSshShell(pair.private.text, pair.public.text)
    return shell, SshPool(shell)


def nonces_of(settings: Settings) -> Callable[[str], str]:
    """Worker id -> the nonce with which its pod proves its host key."""
    from orchestrator.pods.host_identity import nonces

    return nonces(login_secret_of(settings))


def login_secret_of(settings: Settings) -> bytes:
    """The SSH private key, from which other secrets are derived."""
    # DER, because OpenSSH's own format writes the same key differently each time.
    return require(settings, "shell").login_pair().private.key.export_private_key("pkcs8-der")


def policy_of(settings: Settings, bundle: Bundle) -> Policy:
    """The planner's numbers, with the name of the code that a worker started now would get."""
    policy = settings.policy()
    kept = sorted(kind.name for kind in policy.task_types if kind.keep_processes)
    sent = f"{bundle.agent_sha}{bundle.code_sha or ''}{sorted(settings.worker_handlers) or ''}{kept or ''}"
    run = (settings.worker_setup_command, settings.worker_start_command)
    sent += f"{run}" if any(run) else ""
    return replace(policy, code_sha=hashlib.sha256(sent.encode()).hexdigest()[:RELEASE_DIGITS])


async def dry_run(settings: Settings) -> tuple[Snapshot, Plan]:
    """Return what the next tick would see and do. It uses the loop's own observer and planner, and writes nothing.

    A single observation has no memory. It assumes the memory of a leader without an outage: all heartbeats could be
    received, and every pod without a row has been seen since the leader's begin. Absence needs several lists, so it is
    never assumed. Raises ApiAuth if RunPod refuses the key; without a list for another reason, `pods` is None.
    """
    from orchestrator.core.moments import moment
    from orchestrator.loop.learning import Learning
    from orchestrator.loop.observe import Observer
    from orchestrator.pods.bundle import bundle_of
    from orchestrator.pods.provider_cache import Catalog
    from orchestrator.ports import ApiAuth

    async with open_store(settings) as store:
        cloud = open_cloud(settings)
        policy = policy_of(settings, bundle_of(settings))
        catalog = Catalog(cloud, policy)
        try:
            await catalog.refresh()
            learning = Learning(store, policy)
            observer = Observer(store, cloud, settings.fleet_id, catalog, patience_s=LIST_WAIT_S, learning=learning)
            seen = await observer.observe(frozenset(), frozenset())
            if isinstance(observer.cloud_error, ApiAuth):
                raise observer.cloud_error
            leader = (await store.leadership())["leader"]
        finally:
            await cloud.close()
    if leader:
        since, born = moment(leader["since"]), {pod.id: pod.created_at or seen.now for pod in seen.pods or ()}
        orphans = {pod_id: max(since, born[pod_id]) for pod_id in seen.orphan_since}
        seen = replace(seen, window=ObservationWindow(since), orphan_since=orphans)
    return seen, plan(seen, policy)


async def pool_decisions(settings: Settings) -> tuple[PoolDecision, ...]:
    """The planner's present decision for each pool, from the database alone: RunPod may be unavailable."""
    from orchestrator.loop.learning import Learning
    from orchestrator.loop.observe import Observer
    from orchestrator.pods.bundle import bundle_of
    from orchestrator.pods.provider_cache import Catalog

    policy = policy_of(settings, bundle_of(settings))
    catalog = Catalog(open_cloud(settings) if settings.runpod_api_key else None, policy)
    with suppress(TimeoutError):
        async with asyncio.timeout(CATALOG_WAIT_S):
            await catalog.refresh()
    async with open_store(settings) as store:
        observer = Observer(store, None, settings.fleet_id, catalog, learning=Learning(store, policy))
        seen = await observer.observe(frozenset(), frozenset())
    return tuple(decision for _, decision in plan_pools(seen, policy, []))
