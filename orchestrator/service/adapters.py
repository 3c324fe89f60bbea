"""The connections of one process to the database, RunPod, the bucket and the pods."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from orchestrator.adapters.metered import MeteredDb
from orchestrator.adapters.store import SqlStore
from orchestrator.config.settings import Settings
from orchestrator.loop.store_watch import StoreWatch
from orchestrator.observability.metrics import Metrics
from orchestrator.ports import Db, NotFound, PortError
from orchestrator.wiring import lane_of, open_blobs, open_cloud, open_db, open_ssh_pool, resize, store_over

if TYPE_CHECKING:
    from orchestrator.adapters.runpod import RunPodCloud
    from orchestrator.adapters.s3 import S3Blobs
    from orchestrator.adapters.ssh import AsyncSshShell
    from orchestrator.adapters.ssh_pool import SshPool

# Connections of a leader at most: the loop's, of which bring-ups and shipments may use two; the agents' calls'; and one
# that listens. These 7 and a standby's one fit twice into the 15 that Supabase's session pooler gives by default.
LOOP_POOL, BACKGROUND_LANE, GATEWAY_POOL, STANDBY_POOL = 3, 2, 3, 1
HTTP_POOL, HTTP_LANE = 7, 4  # HTTP connections, over Supabase's API: PostgREST has a pool of its own
HANG_UP_S = 5.0  # for all SSH connections together, when another process leads
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Adapters:
    """What the loop of one process uses of the outside world."""

    db: Db
    store: SqlStore  # for the calls for which a tick waits
    background_db: Db  # a share of the connections, for bring-ups, shipments and the jobs of a leader
    background_store: SqlStore
    cloud: "RunPodCloud"
    blobs: "S3Blobs"
    shell: "AsyncSshShell"
    ssh_pool: "SshPool"

    async def lead(self, leads: bool) -> None:
        """Open what only a leader uses, or close it."""
        await resize(self.db, LOOP_POOL if leads else STANDBY_POOL)
        if leads:
            self.ssh_pool.open()
            return
        try:
            async with asyncio.timeout(HANG_UP_S):
                await self.ssh_pool.close()
        except TimeoutError:
            log.warning("lines_cut_off", message=f"SSH connections were not closed within {HANG_UP_S:g} s")


@asynccontextmanager
async def open_adapters(settings: Settings, metrics: Metrics, watch: StoreWatch) -> AsyncIterator[Adapters]:
    """Open the connections of a standby. Their calls are counted in `metrics`; `watch` sees those to the bucket."""
    is_direct = settings.database_url is not None

    def on_blob_call(operation: str, error: PortError | None) -> None:
        metrics.stored(error is None or isinstance(error, NotFound))
        watch.note_call(operation, error)

    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(open_db(settings, pool_size=STANDBY_POOL if is_direct else HTTP_POOL))
        background_db = MeteredDb(lane_of(db, BACKGROUND_LANE if is_direct else HTTP_LANE), metrics)
        cloud, blobs = open_cloud(settings, metrics.called), open_blobs(settings, on_blob_call)
        stack.push_async_callback(cloud.close)
        shell, ssh_pool = open_ssh_pool(settings)
        stack.push_async_callback(ssh_pool.close)
        yield Adapters(
            db,
            store_over(MeteredDb(db, metrics), settings),
            background_db,
            store_over(background_db, settings),
            cloud,
            blobs,
            shell,
            ssh_pool,
        )
