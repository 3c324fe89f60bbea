"""The sources of the report: the database, RunPod, S3, the pods, the network and the local code, asked concurrently."""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.cli.progress import Progress
from orchestrator.cli.session import find_worker, utcnow
from orchestrator.cli.worker_rows import public
from orchestrator.core.clusters.rows import ClusterRow
from orchestrator.core.provider import Pod
from orchestrator.diagnostics import collect, scaling
from orchestrator.diagnostics.collect import Part, ReportLimits, part
from orchestrator.diagnostics.deployment import deployment
from orchestrator.diagnostics.drift import drift
from orchestrator.ports import DatabaseHalf, PortError, Unavailable

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.config.settings import Settings
    from orchestrator.ports import Blobs, Cloud, SessionPool

ABREAST = 100  # workers at once; each needs a connection to its pod
ELSEWHERE = "https://github.com"  # an address outside our systems and the providers'
T = TypeVar("T")
CALL_SHARE = 0.8  # of a part's time for a call of the database: it ends first, so that the cause is known
MONEY_S = 5.0  # for the balance, which RunPod does not show to every key


class ReportSources:
    """Asks the sources of one report, each within its time."""

    def __init__(
        self, settings: "Settings", stack: AsyncExitStack, only: str | None, limits: ReportLimits, progress: Progress
    ) -> None:
        self._settings, self._stack, self._only, self._limits = settings, stack, only, limits
        self._progress = progress
        self._until_s = time.monotonic() + limits.whole_s
        self._store: SqlStore | None = None
        self._rows: Sequence[Mapping[str, Any]] = ()
        self.half: DatabaseHalf | None = None  # what the database said to an observer
        self.clusters: Sequence[ClusterRow] = ()

    async def fill(self, report: Part, given: Mapping[str, str], *, deep: bool) -> None:
        """Ask all parts that the settings allow."""
        settings, part_s = self._settings, self._limits.part_s
        around = asyncio.create_task(self._around(given)) if deep else None
        database, (state, listed) = await asyncio.gather(
            self._counted("database", part(self._database(), part_s)),
            self._counted("RunPod", self._runpod(self._cloud())),
        )
        database = await self._workers_now(database)
        now = utcnow()
        pods: Sequence[Pod] = ()
        if listed is not None:
            found, pods = collect.runpod(listed, settings.fleet_id, database)
            state |= found
            if "error" not in database:
                differs = drift(listed, self._rows, settings.fleet_id, database["database_id"], now)
                state["mismatches"] = asdict(differs)
        report |= {"timestamp": now.isoformat(), "runpod_state": state}
        report["orchestrator_analysis"] = report["database_state"] = database
        if self._store is not None and "error" not in database:
            pod_of = {pod.id: pod for pod in pods}
            report["orchestrator_analysis"], report["workers"] = await asyncio.gather(
                self._analysis(database), self._workers(self._store, pod_of, deep=deep)
            )
        if settings.s3_bucket:  # last: to load its client takes a second, in which nothing else is answered
            store = await part(self._s3(), part_s)
            report["orchestrator_analysis"] = {**report["orchestrator_analysis"], "store": store}
        if "error" not in state:
            state["ssh_connectivity_tests"] = collect.connectivity(report["workers"], pods)
        if around is not None:
            report["network_tests"], report["deployment_verification"] = await around
            report["deployment_verification"]["code_consistency"] = self._code(database)

    async def _counted(self, name: str, asked: Awaitable[T]) -> T:
        """Wait for a part and count it."""
        self._progress.expect(name)
        answer = await asked
        self._progress.done(name)
        return answer

    async def _around(self, given: Mapping[str, str]) -> tuple[Part, Part]:
        """Check the network and the local code."""
        network = self._counted("network", self._network())
        return await asyncio.gather(network, self._counted("code", asyncio.to_thread(deployment, given)))

    def _cloud(self) -> "Cloud | None":
        from orchestrator import wiring
        from orchestrator.config.validation import lacks

        if lacks(self._settings, "cloud"):
            return None
        cloud = wiring.open_cloud(self._settings)
        self._stack.push_async_callback(cloud.close)
        return cloud

    async def _database(self) -> Part:
        from orchestrator import wiring
        from orchestrator.config.validation import lacks

        if missing := lacks(self._settings, "database"):
            raise Unavailable(missing)
        call_s = self._limits.part_s * CALL_SHARE
        store = await self._stack.enter_async_context(wiring.open_store(self._settings, call_timeout_s=call_s))
        found, self.half, self.clusters = await collect.database(store)
        self._store = store
        return found

    async def _workers_now(self, database: Part) -> Part:
        """Read the workers' rows after RunPod's list, so that a newer worker's pod is no orphan (see observe.py)."""
        if self._store is None or "error" in database:
            return database

        async def read() -> Part:
            assert self._store is not None  # noqa: S101  checked above
            self._rows = await self._store.workers()
            return database

        return await part(read(), self._limits.part_s)

    async def _runpod(self, cloud: "Cloud | None") -> tuple[Part, Sequence[Pod] | None]:
        if cloud is None:
            return {"error": "not asked: RUNPOD_API_KEY is not set"}, None
        listed: Sequence[Pod] | None = None

        async def asked() -> Part:
            nonlocal listed
            listed = await cloud.list_pods()
            return {}

        answers, money = await asyncio.gather(part(asked(), self._limits.part_s), part(self._money(), MONEY_S))
        return answers | {name: usd for name, usd in money.items() if name != "error"}, listed

    async def _money(self) -> Part:
        from orchestrator.diagnostics.account import account, money

        key = self._settings.runpod_api_key
        assert key is not None  # noqa: S101  there is a cloud
        async with account(self._settings.runpod_api_base_url, key.get_secret_value()) as client:
            balance_usd, _ = await money(client)
        return {"balance_usd": round(balance_usd, 2)}

    async def _s3(self) -> Part:
        from orchestrator import wiring
        from orchestrator.adapters.s3 import ONE_LOOK
        from orchestrator.config.validation import lacks

        if lacks(self._settings, "blobs"):
            return {}
        blobs = wiring.open_blobs(self._settings, patience=ONE_LOOK)
        self._stack.push_async_callback(blobs.close)
        return await collect.store(blobs)

    async def _analysis(self, database: Part) -> Part:
        """Return the last decisions, and each pool's present size."""
        names = ("recent_cycles", "error_patterns", "worker_lifecycle_events")
        found = {name: database.pop(name) for name in names}

        async def decisions() -> Part:
            from orchestrator import wiring

            assert self._store is not None  # noqa: S101  the database answered
            rows, made = await asyncio.gather(self._store.explain_scaling(), wiring.pool_decisions(self._settings))
            return {"pools": [asdict(pool) for pool in scaling.explained(rows, made, self._settings.policy())]}

        answers = await part(decisions(), self._limits.part_s)
        return {**found, "scaling_decisions": answers.get("pools", []), "scaling_error": answers.get("error")}

    async def _workers(self, store: "SqlStore", pods: Mapping[str, Any], *, deep: bool) -> Part:
        """Ask all live workers, or the named one, concurrently, each with its deadline."""
        from orchestrator import wiring
        from orchestrator.config.validation import lacks

        settings, names = self._settings, [row["id"] for row in self._rows]
        if self._only:
            names = [(await find_worker(store, self._only))["worker"]["id"]]
        ssh_pool: SessionPool | None = None
        blobs: Blobs | None = None
        if deep and not lacks(settings, "shell"):
            _, opened = wiring.open_ssh_pool(settings)
            self._stack.push_async_callback(opened.close)
            ssh_pool = opened
        if deep and not lacks(settings, "blobs"):
            blobs = wiring.open_blobs(settings)
        pod_of = {row["id"]: pods.get(row["pod_id"] or "") for row in self._rows}
        known: Mapping[str, Any] = {}
        if not self._only:
            with suppress(PortError, TimeoutError):  # then each is asked alone
                async with asyncio.timeout(self._limits.part_s):
                    known = await store.explain_workers()
        gate, policy = asyncio.Semaphore(ABREAST), settings.policy()

        def shown(row: Mapping[str, Any]) -> Part:
            return public(row, utcnow())

        async def one(name: str) -> Part:
            async with gate:
                if (left_s := self._until_s - time.monotonic()) <= 0:
                    return {"error": f"not asked: the report's {self._limits.whole_s:g} s were over"}
                return await part(asked(name), left_s)

        async def asked(name: str) -> Part:
            found = known.get(name) or await store.explain(name)  # it may have ended since the rows were read
            ledger = store if deep else None
            return await collect.worker(found, ledger, ssh_pool, blobs, pod_of.get(name), policy, shown, self._limits)

        answers = await asyncio.gather(*(self._counted(name, one(name)) for name in names))
        return dict(zip(names, answers, strict=True))

    async def _network(self) -> Part:
        import httpx

        from orchestrator.adapters.http_client import client as client_for
        from orchestrator.config.errors import SettingsError

        settings = self._settings
        gateway = None if settings.pods_use_supabase else settings.worker_url
        places = {
            "supabase": settings.supabase_url and f"{settings.supabase_url}/rest/v1/",
            "runpod_api": settings.runpod_api_base_url,
            "s3_storage": settings.s3_endpoint_url or f"https://s3.{settings.aws_region}.amazonaws.com",
            "worker_api": gateway and f"{gateway}/healthz",
            "elsewhere": ELSEWHERE,
        }

        async def get(url: str) -> int:
            try:
                async with client_for(url, timeout=self._limits.part_s) as client:
                    return (await client.get(url)).status_code
            except (httpx.HTTPError, SettingsError) as error:
                raise PortError(f"{type(error).__name__} {error}") from None

        return await collect.network({name: url for name, url in places.items() if url}, get, self._limits.part_s)

    def _code(self, database: Part) -> Part:
        """Compare the code on the pods and the schema in the database with the local ones."""
        from orchestrator.migrate import sql_files
        from orchestrator.pods.bundle import build_bundle

        ours, schema = build_bundle(None).agent_sha, sql_files().version
        there = database.get("schema_version")
        other = [row["id"] for row in self._rows if row.get("code_sha") not in (None, ours)]
        return {
            "agent_sha": ours,
            "workers_with_other_code": other,
            "schema_here": str(schema),
            "schema_in_database": there,
            "consistent": not other and (there is None or schema.standing(there) == "current"),
        }
