"""One orchestrator process: the product's own parts, put together as service/ does it, on simulated ports."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import requests

from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.adapters.runpod_lanes import CallLane, Lanes
from orchestrator.adapters.ssh_pool import SshPool
from orchestrator.adapters.store import SqlStore
from orchestrator.core.actions import Plan
from orchestrator.core.model import Snapshot
from orchestrator.core.plan import plan
from orchestrator.core.policy import Policy
from orchestrator.core.provider import Pod
from orchestrator.loop.daemon import Daemon
from orchestrator.loop.execute import Executor, PodOperations
from orchestrator.loop.hooks import Hooks
from orchestrator.loop.learning import Learning
from orchestrator.loop.observe import Observer
from orchestrator.loop.runtime import Runtime
from orchestrator.loop.store_watch import StoreWatch
from orchestrator.observability.metrics import Metrics
from orchestrator.pods import host_identity
from orchestrator.pods.ask_pod import ask_pod
from orchestrator.pods.bringup import BringUp, Credentials, LaunchConfig
from orchestrator.pods.create import PodCreator
from orchestrator.pods.final_snapshot import take as take_snapshot
from orchestrator.pods.latest import Latest
from orchestrator.pods.provider_cache import Catalog
from orchestrator.pods.teardown import Teardown
from orchestrator.ports import NotFound, PortError, Unavailable
from orchestrator.worker_logs.shipper import Shipper
from tests.proofs.simulator.clock import SimLoop
from tests.proofs.simulator.processes import ProcessLaws, SimHealth
from tests.proofs.simulator.provider import FLEET
from tests.proofs.simulator.shell import SECRET, SimShell

if TYPE_CHECKING:
    from tests.proofs.simulator.environment import World

DB_TIMEOUT_S = 15.0
S3_TIMEOUT_S = 20.0
MEASURED = 10  # one seed in so many has metrics

nonce_for = host_identity.nonces(b"a private key")


class SimDb:
    """The transport, over the simulated network."""

    def __init__(self, world: "World", loop: SimLoop) -> None:
        self._world, self._loop = world, loop
        self.news: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def call(self, function: str, /, **args: Any) -> Any:
        self._world.laws.clean(args, f"the arguments of {function}")

        def carried_out() -> Any:
            return self._world.commit(function, args, by=self._loop.name)

        return await self._world.carry(self._loop, "db", carried_out, timeout_s=DB_TIMEOUT_S)

    async def notifications(self) -> AsyncIterator[tuple[str, str]]:
        yield "connected", ""
        while True:
            yield await self.news.get()

    async def close(self) -> None:
        """Nothing is open."""


class SimLanes(Lanes):
    """The product's lanes, without their threads."""

    def __init__(self, world: "World", loop: SimLoop) -> None:
        super().__init__()
        self._world, self._loop = world, loop

    async def _in_thread(self, lane: CallLane, request: Callable[[], Any]) -> Any:
        def counted() -> Any:
            self._world.laws.called(self._loop.name)
            return request()

        return await self._world.carry(self._loop, "cloud", counted, timeout_s=3600)


class SimCloud(RunPodCloud):
    """The product's adapter, without its threads."""

    def __init__(self, world: "World", loop: SimLoop, laws: ProcessLaws) -> None:
        super().__init__("key", base_url="http://runpod")
        self._world, self._loop, self._laws = world, loop, laws
        self._lanes = SimLanes(world, loop)

    async def list_pods(self) -> tuple[Pod, ...]:
        try:
            pods = await super().list_pods()
        except PortError:
            self._laws.list_failed = True
            raise
        self._laws.list_failed = False
        return pods

    async def delete_pod(self, pod_id: str) -> bool:
        self._laws.deletes(pod_id)
        answered = False
        try:
            known = await super().delete_pod(pod_id)
            answered = True
        finally:
            self._laws.deleted(pod_id, answered=answered)
        return known

    async def pod_log(self, pod_id: str) -> str:
        def text() -> str:
            return self._world.faults.one_of(("pulling image", "image pulled"))

        try:
            said: str = await self._world.carry(self._loop, "cloud", text, timeout_s=20)
        except requests.ConnectionError as error:
            raise Unavailable("the log was cut") from error
        return said


class SimBlobs:
    """S3. The world keeps its objects."""

    def __init__(self, world: "World", loop: SimLoop, watch: StoreWatch) -> None:
        self._world, self._loop, self._watch = world, loop, watch

    async def _call(self, operation: str, act: Callable[[], Any]) -> Any:
        try:
            answer = await self._world.carry(self._loop, "s3", act, timeout_s=S3_TIMEOUT_S)
        except PortError as error:
            self._watch.note_call(operation, error)
            raise
        self._watch.note_call(operation, None)
        return answer

    async def put(self, key: str, content: bytes, *, content_type: str) -> None:
        def kept() -> None:
            self._world.laws.stored(key, content)
            self._world.bucket[key] = content

        await self._call("put", kept)

    async def get(self, key: str) -> bytes:
        def content() -> bytes:
            if key not in self._world.bucket:
                raise NotFound(key)
            return self._world.bucket[key]

        found: bytes = await self._call("get", content)
        return found

    async def size(self, key: str) -> int:
        return len(await self.get(key))

    async def look(self, key: str) -> Mapping[str, Any]:
        return {"bytes": await self.size(key), "etag": key}

    async def put_new(self, key: str, content: bytes) -> None:
        await self.put(key, content, content_type="")

    def sign(self, method: str, key: str, *, expires_s: int, **_: Mapping[str, str]) -> str:
        raise Unavailable("nobody asks for a URL here")

    async def abort_uploads(self, prefix: str, *, older_than: datetime) -> int:
        return 0

    def location(self, key: str) -> str:
        return f"s3://bucket/{key}"

    def key_of(self, location: str) -> str | None:
        return location.removeprefix("s3://bucket/")


class Unmeasured(Metrics):
    """Metrics that count nothing: most seeds do not read them, and counting takes a tenth of the time."""

    def set_role(self, role: str) -> None:
        """Do nothing."""

    def note_tick(self, snapshot: Snapshot, made: Plan, policy: Policy, took_s: float) -> None:
        """Do nothing."""


UNMEASURED = Unmeasured()


class Replica:
    """A process and its parts."""

    def __init__(self, world: "World", name: str, policy: Policy) -> None:
        self.world, self.name = world, name
        self.loop = SimLoop(world.kernel, name)  # type: ignore[abstract]
        self.ended = False
        self.daemon: Daemon | None = None
        self.db: SimDb | None = None
        self.observer: Observer | None = None
        self.health = SimHealth(started_at_s=world.kernel.now)
        self.health.learnt_s = world.kernel.now
        self.laws = ProcessLaws(world, name, self.health)
        self._stop: asyncio.Event | None = None
        self.loop.create_task(self._run(policy))

    @property
    def up(self) -> bool:
        """Whether the process runs and is not frozen."""
        return not (self.loop.dead or self.loop.frozen or self.ended)

    def terminate(self) -> None:
        """SIGTERM."""
        if self._stop is not None:
            self.loop.call_soon(self._stop.set)

    def hears(self, channel: str, payload: str) -> None:
        """Receive a NOTIFY."""
        if self.db is not None and not self.loop.dead:
            self.loop.call_soon(self.db.news.put_nowait, (channel, payload))

    def note_unanswered(self, worker_id: str) -> None:
        """Note that the gateway could not answer a worker."""
        if self.observer is not None and self.up:
            self.loop.call_soon(self.observer.note_unanswered, worker_id)

    async def _run(self, policy: Policy) -> None:
        self._stop = asyncio.Event()
        self.daemon = self._build(policy)
        await self.daemon.run(self._stop)
        self.ended = True
        self.loop.kill()  # asyncio.run would cancel what is left, and the process ends

    def _build(self, policy: Policy) -> Daemon:
        world, loop, heartbeat_s = self.world, self.loop, policy.heartbeat_s
        db = self.db = SimDb(world, loop)
        watch = StoreWatch()
        store, cloud = SqlStore(db, FLEET), SimCloud(world, loop, self.laws)
        blobs = SimBlobs(world, loop, watch)
        shell = SimShell(world, loop, self.laws)
        lines, catalog = SshPool(shell), Catalog(cloud, policy)
        shipper, latest = Shipper(store, lines, blobs), Latest()
        launch = LaunchConfig(
            api_url="http://gateway",
            heartbeat_s=heartbeat_s,
            lease_s=policy.heartbeat_timeout_s,
            spawning_timeout_s=policy.spawning_timeout_s,
            handlers=dict.fromkeys(policy.handled, "module:function"),
            batches={pool.name: pool.batch for pool in policy.pools},
            images={pool.name: pool.image for pool in policy.pools},
        )
        bringup = BringUp(
            store, lines, shell, world.bundle, latest, launch,
            Credentials(lambda worker, jti: f"{SECRET}.{worker.id}.{jti}", nonce_for), cloud.pod_log,
        )  # fmt: skip
        self.observer = Observer(
            store, cloud, FLEET, catalog, slow_call_s=heartbeat_s, store_watch=watch, learning=Learning(store, policy)
        )

        async def lead(leads: bool) -> None:
            if leads:
                lines.open()
            else:
                await lines.close()

        def think(snapshot: Snapshot, policy: Policy) -> Plan:
            made = plan(snapshot, policy)
            self.laws.thought(snapshot, made.actions)
            return made

        metrics = UNMEASURED if world.seed % MEASURED else Metrics()
        runtime = Runtime(store, db, policy, self.health, metrics, latest, self.name, world.poll_s)
        operations = PodOperations(
            PodCreator(store, cloud, policy, catalog, nonce_for),
            partial(self.laws.bring_up, bringup.bring_up),
            partial(ask_pod, lines, store, self.observer.note_pod_answer),
            Teardown(
                store,
                cloud,
                take_snapshot=partial(take_snapshot, lines),
                finish_logs=shipper.finish,
                policy=policy,
            ),
            lines.drop,
        )
        return Daemon(
            runtime,
            self.observer,
            Executor(store, cloud, operations, policy),
            catalog=catalog,
            shipper=shipper,
            hooks=Hooks(on_lead=lead, probe_store=partial(watch.probe_if_due, blobs)),
            planner=think,
        )
