"""Gathering the report: opens what the settings allow, asks all parts side by side, and adds what to do about it."""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.cli.output import Output
from orchestrator.cli.progress import Progress, counting
from orchestrator.cli.session import utcnow
from orchestrator.cli.worker_rows import public
from orchestrator.core.model import ID_PATTERN, Pod
from orchestrator.diagnostics import advice, collect, scaling
from orchestrator.diagnostics.collect import LIMITS, Limits, Part, part
from orchestrator.diagnostics.deployment import deployment
from orchestrator.diagnostics.drift import drift
from orchestrator.diagnostics.environment import environment
from orchestrator.errors import BAD_ARGUMENT, NO_WORKER, Failure
from orchestrator.ports import PortError, Unavailable

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.config.settings import Settings
    from orchestrator.ports import Blobs, Cloud, SessionPool

ABREAST = 100  # workers at once; each is a connection to its pod
ELSEWHERE = "https://github.com"  # what is neither ours nor a provider's
T = TypeVar("T")
NO_SETTINGS = {"error": "not asked: the settings cannot be used"}


async def gathered(
    output: Output,
    *,
    only: str | None = None,
    deep: bool = True,
    sensitive: bool = False,
    limits: Limits = LIMITS,
) -> Part:
    """The whole report on this fleet, or on one worker; not `deep`: without pods, logs, network and deployment.

    Whatever hangs, it is there within `limits.whole_s`: what did not answer by then says so in its place.
    """
    from orchestrator.config.environment import as_given, load
    from orchestrator.config.errors import SettingsError

    if only and not ID_PATTERN.fullmatch(only):
        raise Failure(BAD_ARGUMENT, why=f"{only!r} is not a worker id")
    given = as_given()
    problems: Sequence[Sequence[str]] = ()
    settings: Settings | None = None
    try:
        settings = load()
    except SettingsError as error:
        problems = error.problems
    report: Part = {
        "timestamp": utcnow().isoformat(),
        "environment": environment(given, problems, sensitive=sensitive) | {"ssh_keys": _keys(settings)},
        "database_state": NO_SETTINGS,
        "runpod_state": NO_SETTINGS,
        "workers": {},
        "orchestrator_analysis": NO_SETTINGS,
        "network_tests": {},
        "deployment_verification": {},
    }
    if settings is not None:
        with counting(output, "asking every part of the fleet" if deep else None, limits.whole_s) as told:
            async with AsyncExitStack() as stack:
                await _Gathering(settings, stack, only, limits, told).fill(report, given, deep=deep)
    found = advice.recommendations(report)
    report["missing_critical"] = report["environment"]["missing_critical"]
    report["recommendations"] = [asdict(one) for one in found]
    report["healthy"] = advice.is_healthy(found)
    return report


class _Gathering:
    """One report on its way."""

    def __init__(
        self, settings: "Settings", stack: AsyncExitStack, only: str | None, limits: Limits, progress: "Progress"
    ) -> None:
        self._settings, self._stack, self._only, self._limits = settings, stack, only, limits
        self._progress = progress
        self._until_s = time.monotonic() + limits.whole_s
        self._store: SqlStore | None = None
        self._rows: Sequence[Mapping[str, Any]] = ()

    async def fill(self, report: Part, given: Mapping[str, str], *, deep: bool) -> None:
        """All parts that the settings allow."""
        settings, part_s = self._settings, self._limits.part_s
        around = asyncio.create_task(self._around(given)) if deep else None
        database, (state, listed) = await asyncio.gather(
            self._told("database", part(self._database(), part_s)), self._told("RunPod", self._runpod(self._cloud()))
        )
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
        if "error" not in state:
            state["ssh_connectivity_tests"] = collect.connectivity(report["workers"], pods)
        if around is not None:
            report["network_tests"], report["deployment_verification"] = await around
            report["deployment_verification"]["code_consistency"] = self._code(database)

    async def _told(self, name: str, asked: Awaitable[T]) -> T:
        """A part, counted when it is there."""
        self._progress.expect(name)
        answer = await asked
        self._progress.done(name)
        return answer

    async def _around(self, given: Mapping[str, str]) -> tuple[Part, Part]:
        """What the fleet stands on: the network, and the code here."""
        network = self._told("network", self._network())
        return await asyncio.gather(network, self._told("code", asyncio.to_thread(deployment, given)))

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
        store = await self._stack.enter_async_context(wiring.open_store(self._settings))
        found, self._rows = await asyncio.gather(collect.database(store), store.workers())
        self._store = store
        return found

    async def _runpod(self, cloud: "Cloud | None") -> tuple[Part, Sequence[Pod] | None]:
        if cloud is None:
            return {"error": "not asked: RUNPOD_API_KEY is not set"}, None
        listed: Sequence[Pod] | None = None

        async def asked() -> Part:
            nonlocal listed
            listed = await cloud.list_pods()
            return {}

        return await part(asked(), self._limits.part_s), listed

    async def _analysis(self, database: Part) -> Part:
        """What the orchestrator did lately, and what each pool's size comes to now."""
        names = ("recent_cycles", "error_patterns", "worker_lifecycle_events")
        found = {name: database.pop(name) for name in names}

        async def decisions() -> Part:
            from orchestrator import wiring

            assert self._store is not None  # noqa: S101  the database answered
            rows, made = await asyncio.gather(self._store.explain_scaling(), wiring.pool_decisions(self._settings))
            return {"pools": [asdict(pool) for pool in scaling.explained(rows, made, self._settings.policy())]}

        told = await part(decisions(), self._limits.part_s)
        return {**found, "scaling_decisions": told.get("pools", []), "scaling_error": told.get("error")}

    async def _workers(self, store: "SqlStore", pods: Mapping[str, Any], *, deep: bool) -> Part:
        """Every live worker, or the one asked for, side by side, each under its deadline."""
        from orchestrator import wiring
        from orchestrator.config.validation import lacks

        settings, names = self._settings, [row["id"] for row in self._rows]
        if self._only:
            names = [row["id"] for row in self._rows if self._only in (row["id"], row["pod_id"])]
            if not names and not (await store.worker(self._only))["worker"]:
                raise Failure(NO_WORKER, why=f"the database knows no worker {self._only}")
            names = names or [self._only]
        lines: SessionPool | None = None
        blobs: Blobs | None = None
        if deep and not lacks(settings, "shell"):
            _, opened = wiring.open_ssh_pool(settings)
            self._stack.push_async_callback(opened.close)
            lines = opened
        if deep and not lacks(settings, "blobs"):
            blobs = wiring.open_blobs(settings)
        pod_of = {row["id"]: pods.get(row["pod_id"] or "") for row in self._rows}
        gate, policy = asyncio.Semaphore(ABREAST), settings.policy()

        def shown(row: Mapping[str, Any]) -> Part:
            return public(row, utcnow())

        async def one(name: str) -> Part:
            async with gate:
                if (left_s := self._until_s - time.monotonic()) <= 0:
                    return {"error": f"not asked: the report's {self._limits.whole_s:g} s were over"}
                found = collect.worker(name, store, lines, blobs, pod_of.get(name), policy, shown, self._limits)
                return await part(found, left_s)

        told = await asyncio.gather(*(self._told(name, one(name)) for name in names))
        return dict(zip(names, told, strict=True))

    async def _network(self) -> Part:
        import httpx

        settings = self._settings
        gateway = None if settings.pods_use_supabase else settings.worker_url
        places = {
            "supabase": settings.supabase_url and f"{settings.supabase_url}/rest/v1/",
            "runpod_api": settings.runpod_api_base_url,
            "s3_storage": settings.s3_endpoint_url or f"https://s3.{settings.aws_region}.amazonaws.com",
            "worker_api": gateway and f"{gateway}/healthz",
            "elsewhere": ELSEWHERE,
        }
        async with httpx.AsyncClient(timeout=self._limits.part_s, follow_redirects=False) as client:

            async def get(url: str) -> int:
                try:
                    return (await client.get(url)).status_code
                except httpx.HTTPError as error:
                    raise PortError(f"{type(error).__name__} {error}") from None

            return await collect.network({name: url for name, url in places.items() if url}, get, self._limits.part_s)

    def _code(self, database: Part) -> Part:
        """Whether what runs on the pods, and in the database, is what lies here."""
        from orchestrator.migrate import sql_files
        from orchestrator.pods.bundle import build_bundle

        ours, schema = build_bundle(self._settings.worker_code_dir).agent_sha, sql_files().version
        there = database.get("schema_version")
        other = [row["id"] for row in self._rows if row.get("code_sha") not in (None, ours)]
        return {
            "agent_sha": ours,
            "workers_with_other_code": other,
            "schema_here": str(schema),
            "schema_in_database": there,
            "consistent": not other and (there is None or schema.standing(there) == "current"),
        }


def _keys(settings: "Settings | None") -> Part:
    """Whether the key pair can be used, and why not."""
    from orchestrator.config.ssh_keys import BadKey

    if settings is None or settings.runpod_ssh_private_key is None or not settings.runpod_ssh_public_key:
        return {"usable": False, "cause": "no_private_key", "error": "not compared: one of the two is not set"}
    try:
        key = settings.login_pair().private.key
    except BadKey as error:
        return {"usable": False, "cause": error.cause, "error": error.mangling, "fix": error.fix}
    return {"usable": True, "type": key.get_algorithm(), "fingerprint": key.get_fingerprint()}
