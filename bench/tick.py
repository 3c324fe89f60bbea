"""One tick with 10, 100 and 1,000 workers: wall time, processor time of the orchestrator, and of Postgres.

Half of the workers hold a task, the others are idle. A fifth of both is silent: their agents get no answer.
The daemon's own tick over a real Postgres: the observation, its plan, record and metrics; nothing is to be done.
The provider's list is a tuple that is available at once. A real tick does not wait for a list.
"""

import asyncio
import gc
import time
import uuid
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import psycopg

from bench.figures import quantile, servers_cpu_s
from bench.queues import WORKER, database
from orchestrator.adapters.metered import MeteredDb
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.core.actions import Plan
from orchestrator.core.policy import Policy, Pool
from orchestrator.core.provider import Offer, Pod, PodStatus
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.loop.daemon import Daemon
from orchestrator.loop.execute import Executor, PodOperations
from orchestrator.loop.observe import Observer
from orchestrator.loop.runtime import Runtime
from orchestrator.migrate import migrate
from orchestrator.observability.health import Health
from orchestrator.observability.logging import configure
from orchestrator.observability.metrics import Metrics
from orchestrator.pods.create import PodCreator
from orchestrator.pods.latest import Latest
from orchestrator.pods.provider_cache import Catalog
from orchestrator.ports import Cloud
from orchestrator.service.process import GC_THRESHOLDS
from testbed.services.postgres import EmbeddedPostgres
from worker import protocol

TRIES = 40  # ticks of each fleet
GOALS = {"orchestrator_ms_a_worker_at_1000_to_100": ("<=", 1.2)}  # no more for each, the more there are
SIZES = (10, 100, 1_000)
TASK = "insert into tasks (task_type) values ('x')"
AT_REST_S = 60.0
SILENT = "01"  # last digits of their numbers: as many idle ones as busy ones
# The others send heartbeats during the whole benchmark. No lease expires.
HEARD = """
    update orchestrator.live set lease_expires_at = now() + interval '1 hour' where state = 'running';
    update workers set last_heartbeat = now() + interval '1 hour' where pod_id !~ '[01]$';
    update workers set last_heartbeat = now() - interval '1 minute', waiting_on = 'operator'
     where pod_id ~ '[01]$'
"""
FLEET, GPU = "default", "NVIDIA A40"
LOGS = {"agent": 4_096, "handler": 65_536, "system": 0}
POOL = Pool(
    name="default", offers=(Offer(GPU, None, "SECURE"),), image="image", gpu_count=1, disk_gb=50, min_memory_gb=8,
    min_vcpu=2, volume_name=None, volume_mount_path="/workspace", min_active=0, max_active=max(SIZES), tasks_per_gpu=1,
    keep_idle=0, idle_timeout_s=3_600, overcapacity_idle_timeout_s=3_600,
)  # fmt: skip
POLICY = Policy(
    FLEET, (POOL,), spawning_timeout_s=900, spawning_grace_s=60, scale_down_grace_s=60, drain_grace_s=60,
    heartbeat_timeout_s=1,
)  # fmt: skip


class Listing:
    """A provider whose list is available at once."""

    def __init__(self, pods: tuple[Pod, ...]) -> None:
        self._pods = pods

    async def list_pods(self) -> tuple[Pod, ...]:
        """All of them."""
        return self._pods

    def list_pause_s(self) -> float:
        """It has no limits."""
        return 0


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Milliseconds at each size, and how they grow for each worker."""
    gc.set_threshold(*GC_THRESHOLDS)
    configure("WARNING", ())
    figures: dict[str, Any] = {}
    ours_ms: dict[int, float] = {}
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(directory / "postgres", durable=False, keep=False))
        for size in SIZES:
            url = await database(postgres, f"fleet_{size}")
            await migrate(url)
            db = await PostgresDb.open(url)
            stack.push_async_callback(db.close)
            store = SqlStore(db, FLEET)
            term = (await store.lead("bench", 3_600)).term
            sql = await stack.enter_async_context(await psycopg.AsyncConnection.connect(url, autocommit=True))
            pods = []
            for number in range(size):
                if number % 2:
                    await sql.execute(TASK)  # the next worker claims it
                pods.append(await add_worker(db, store, term, number))
            wall_s, ours_s, postgres_s = await _ticks(_daemon(db, Listing(tuple(pods))), term, sql, tries)
            figures[f"wall_ms_at_{size}"] = _spread_ms(wall_s)
            figures[f"orchestrator_ms_at_{size}"] = _spread_ms(ours_s)
            figures[f"postgres_ms_at_{size}"] = round(postgres_s * 1e3, 1)
            ours_ms[size] = quantile(ours_s, 0.5) * 1e3
    for small in SIZES[:-1]:
        growth = (ours_ms[SIZES[-1]] / SIZES[-1]) / (ours_ms[small] / small)
        figures[f"orchestrator_ms_a_worker_at_{SIZES[-1]}_to_{small}"] = round(growth, 2)
    return figures


async def _ticks(daemon: Daemon, term: int, sql: Any, tries: int) -> tuple[list[float], list[float], float]:
    """Wall and processor seconds of each tick, and of Postgres of one on average."""
    wall_s, ours_s = [], []
    await daemon._tick.run(term)  # noqa: SLF001  the first one prepares statements, and says more
    await sql.execute(HEARD)
    await asyncio.sleep(POLICY.heartbeat_timeout_s)  # silence counts only if it was observed
    silent = [worker for worker in daemon._tick.fleet if str(worker.pod_id)[-1] in SILENT]  # noqa: SLF001
    assert sum(worker.tasks_running for worker in silent) == len(silent) // 2  # noqa: S101  the others are idle

    async def tick() -> Plan:
        for worker in silent:
            daemon._observer.note_pod_answer(worker, calls_unanswered=True, others_are_heard=True)  # noqa: SLF001
        began = (time.perf_counter(), time.process_time())
        made = await daemon._tick.run(term)  # noqa: SLF001  without its timers
        wall_s.append(time.perf_counter() - began[0])
        ours_s.append(time.process_time() - began[1])
        return made

    async with asyncio.timeout(AT_REST_S):
        while (await tick()).actions:  # the first ticks record what the silent workers wait for
            await asyncio.sleep(0.1)
    wall_s.clear()
    ours_s.clear()
    servers_s = await servers_cpu_s(sql)
    for _ in range(tries):
        made = await tick()
        assert not made.actions, made.actions[:3]  # noqa: S101  a fleet at rest
    return wall_s, ours_s, (await servers_cpu_s(sql) - servers_s) / tries


async def add_worker(db: PostgresDb, store: SqlStore, term: int, number: int) -> Pod:
    """Add a worker that was promoted, sent a heartbeat, and claimed. Return its pod."""
    name, nonce = f"gpu-20261121_101500-{number:08x}", uuid.uuid4().hex
    await store.spawn(term, {"id": name, "pool": POOL.name, **WORKER, "metadata": {"offer": POOL.offers[0].key}})
    here, address = (State.SPAWNING,), (f"10.0.{number // 250}.{number % 250}", 22)
    fields = {
        "nonce": nonce, "token_jti": nonce, "pod_id": f"pod{number}", "ssh_host": address[0], "ssh_port": address[1],
        "host_key": "ssh-ed25519 AAAA", "code_sha": "c0de", "machine_id": f"m{number}", "price_usd_per_hour": 0.4,
        "waiting_on": WaitingOn.WORKER, "waiting_for": "tasks",
    }  # fmt: skip
    await store.move(term, name, from_states=here, reason="bench", fields=fields)
    await store.move(term, name, from_states=here, to_state=State.ACTIVE, stage=Stage.PROMOTED, reason="bench")
    who = {"p_worker_id": name, "p_nonce": nonce}
    await db.call(protocol.HEARTBEAT, **who, p_tasks=[], p_health={}, p_logs=LOGS)
    await db.call(protocol.CLAIM, **who, p_claim_no=1, p_batch=1, p_wait_s=0)
    return Pod(
        id=f"pod{number}",
        name=name,
        status=PodStatus.RUNNING,
        fleet_id=FLEET,
        worker_id=name,
        has_runtime=True,
        ssh_host=address[0],
        ssh_port=address[1],
        gpu_type=GPU,
        gpu_count=1,
        data_center="EU-1",
        machine_id=f"m{number}",
        price_usd_per_hour=0.4,
        created_at=datetime.now(UTC),
    )


def _daemon(db: PostgresDb, cloud: Listing) -> Daemon:
    """Build the daemon like the service, without the parts that only act."""
    metrics, provider, nobody = Metrics(), cast("Cloud", cloud), cast("Any", None)
    store = SqlStore(MeteredDb(db, metrics), FLEET)
    catalog = Catalog(provider, POLICY)
    health = Health(started_at_s=time.monotonic())
    runtime = Runtime(store, db, POLICY, health, metrics, Latest(), "bench", 30)
    creator = PodCreator(store, provider, POLICY, catalog, str)
    operations = PodOperations(creator, nobody, nobody, nobody, nobody)
    executor = Executor(store, provider, operations, POLICY)
    return Daemon(runtime, Observer(store, provider, FLEET, catalog), executor, catalog=catalog, shipper=nobody)


def _spread_ms(values_s: list[float]) -> str:
    return f"p50 {quantile(values_s, 0.5) * 1e3:.1f}, max {max(values_s) * 1e3:.1f}"
