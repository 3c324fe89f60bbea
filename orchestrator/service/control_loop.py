"""Builds the control loop of one process from the settings."""

import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from orchestrator import __version__
from orchestrator.config.settings import Settings
from orchestrator.config.validation import TO_RUN, require
from orchestrator.core.actions import Plan
from orchestrator.core.model import Snapshot
from orchestrator.core.plan import plan
from orchestrator.core.policy import Policy
from orchestrator.leader_jobs.clusters import TICK_S, Clusters
from orchestrator.loop.daemon import Daemon
from orchestrator.loop.execute import Executor, PodOperations
from orchestrator.loop.hooks import Hooks
from orchestrator.loop.jobs import LeaderJob
from orchestrator.loop.learning import Learning
from orchestrator.loop.observe import FIRST_PATIENCE_S, Observer
from orchestrator.loop.runtime import Runtime
from orchestrator.loop.store_watch import StoreWatch
from orchestrator.observability.health import DEAD_AFTER_S, Health
from orchestrator.observability.metrics import Metrics
from orchestrator.outputs import abort_old_uploads, store_probe
from orchestrator.pods.ask_pod import ask_pod
from orchestrator.pods.bringup import BringUp, Credentials, LaunchConfig
from orchestrator.pods.bundle import Bundle, bundle_of
from orchestrator.pods.create import PodCreator
from orchestrator.pods.final_snapshot import take as take_snapshot
from orchestrator.pods.latest import Latest
from orchestrator.pods.provider_cache import Catalog
from orchestrator.pods.teardown import Teardown
from orchestrator.ports import Blobs, Db
from orchestrator.service.adapters import Adapters, open_adapters
from orchestrator.service.clusters import clusters_of
from orchestrator.service.jobs import jobs_of
from orchestrator.service.tokens import renewals_of, token_for
from orchestrator.wiring import nonces_of, policy_of
from orchestrator.worker_logs.shipper import Shipper


@dataclass(frozen=True, slots=True)
class Parts:
    """Objects that the HTTP server shares with the loop."""

    db: Db
    observer: Observer
    blobs: Blobs
    health: Health
    metrics: Metrics
    notified: list[Callable[[str, str], None]] = field(default_factory=list)  # also get the database's notifications
    on_lead: list[Callable[[bool], None]] = field(default_factory=list)  # called with whether this process leads


@asynccontextmanager
async def build_loop(
    settings: Settings,
    *,
    patience_s: float = FIRST_PATIENCE_S,
    planner: Callable[[Snapshot, Policy], Plan] = plan,
) -> AsyncIterator[tuple[Daemon, Parts]]:
    """Open the connections and build the loop. Raises SettingsError, or PortError without a usable database."""
    require(settings, *TO_RUN)
    bundle = bundle_of(settings)
    policy = replace(policy_of(settings, bundle), public_key=settings.login_pair().public.text)
    metrics, watch = Metrics(), StoreWatch()
    async with open_adapters(settings, metrics, watch) as adapters:
        store, cloud = adapters.store, adapters.cloud
        catalog, latest = Catalog(cloud, policy), Latest()
        health = health_of(settings, metrics, await store.check_functions())
        name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        runtime = Runtime(store, adapters.db, policy, health, metrics, latest, name, settings.orchestrator_poll_sec)
        shipper = Shipper(adapters.background_store, adapters.ssh_pool, adapters.blobs, python=settings.worker_python)
        observer = Observer(
            store,
            cloud,
            settings.fleet_id,
            catalog,
            slow_call_s=policy.heartbeat_s,
            patience_s=patience_s,
            store_watch=watch,
            learning=Learning(store, policy),
        )
        operations = _pod_operations(settings, policy, bundle, adapters, catalog, latest, shipper, observer)
        parts = Parts(adapters.db, observer, adapters.blobs, health, metrics)
        clusters = clusters_of(settings, policy, adapters, latest)
        hooks = _hooks(settings, policy, adapters, parts, watch, clusters)
        executor = Executor(store, cloud, operations, policy)
        daemon = Daemon(runtime, observer, executor, catalog=catalog, shipper=shipper, hooks=hooks, planner=planner)
        try:
            yield daemon, parts
        finally:
            await clusters.stop()


def _pod_operations(
    settings: Settings,
    policy: Policy,
    bundle: Bundle,
    adapters: Adapters,
    catalog: Catalog,
    latest: Latest,
    shipper: Shipper,
    observer: Observer,
) -> PodOperations:
    store, cloud, ssh_pool = adapters.background_store, adapters.cloud, adapters.ssh_pool
    credentials = Credentials(token_for(settings), nonces_of(settings))
    launch = launch_config(settings, policy, partial(store_probe, adapters.blobs))
    bringup = BringUp(store, ssh_pool, adapters.shell, bundle, latest, launch, credentials, cloud.pod_log)
    snapshots = partial(take_snapshot, ssh_pool)
    teardown = Teardown(store, cloud, take_snapshot=snapshots, finish_logs=shipper.finish, policy=policy)
    return PodOperations(
        PodCreator(store, cloud, policy, catalog, credentials.nonce_for),
        bringup.bring_up,
        partial(ask_pod, ssh_pool, store, observer.note_pod_answer),
        teardown,
        ssh_pool.drop,
    )


def _hooks(
    settings: Settings,
    policy: Policy,
    adapters: Adapters,
    parts: Parts,
    watch: StoreWatch,
    clusters: Clusters,
) -> Hooks:
    conditions, jobs = jobs_of(settings, policy, adapters, parts.metrics, watch)
    jobs = (*jobs, LeaderJob("clusters", TICK_S, clusters.step))
    parts.on_lead.append(lambda _leads: conditions.forget())

    async def lead(leads: bool) -> None:
        for callback in parts.on_lead:
            callback(leads)
        if not leads:
            await clusters.stop()
        await adapters.lead(leads)

    return Hooks(
        on_notify=lambda channel, payload: [listener(channel, payload) for listener in parts.notified],
        on_lead=lead,
        on_plan=conditions.planned,
        on_tick_failed=conditions.failed,
        probe_store=partial(watch.probe_if_due, adapters.blobs),
        on_retention=partial(abort_old_uploads, adapters.blobs),
        jobs=jobs,
    )


def health_of(settings: Settings, metrics: Metrics, schema: str) -> Health:
    """Return the health record of this process, which begins now."""
    runs = {"version": __version__, "commit": settings.railway_git_commit_sha, "schema": schema}
    metrics.build.labels(*(text or "" for text in runs.values())).set(1)
    # without changes, ticks are no more frequent than this
    dead_after_s = DEAD_AFTER_S + settings.orchestrator_poll_sec
    return Health(time.monotonic(), dead_after_s, runs=runs, depends=metrics.dependencies)


def launch_config(
    settings: Settings, policy: Policy, probe: Callable[[], Mapping[str, Any]] | None = None
) -> LaunchConfig:
    """Return the configuration of this fleet's agents. `probe`: requests with which an agent checks the bucket."""
    return LaunchConfig(
        api_url=settings.worker_url or "",
        api_key=settings.supabase_publishable_key if settings.pods_use_supabase else None,
        python=settings.worker_python,
        handlers=dict(settings.worker_handlers),
        keep_processes=[kind.name for kind in policy.task_types if kind.keep_processes],
        setup_command=settings.worker_setup_command,
        start_command=settings.worker_start_command,
        heartbeat_s=policy.heartbeat_s,
        lease_s=policy.heartbeat_timeout_s,
        deadman_s=settings.deadman_timeout_sec,
        spawning_timeout_s=settings.spawning_timeout_sec,
        deadlines_s=dict(settings.bringup_deadlines),
        batches={pool.name: pool.batch for pool in policy.pools},
        images={pool.name: pool.image for pool in policy.pools},
        env=settings.handler_env,
        pool_handlers={pool.name: pool.handlers for pool in policy.pools if pool.handlers is not None},
        pool_env={pool.name: pool.env for pool in policy.pools if pool.env is not None},
        store_probe=probe,
        renewal_key_for=renewals_of(settings).key_for,
    )
