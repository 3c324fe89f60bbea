"""Gathering the report: opens what the settings allow, asks all parts side by side, and adds what to do about it."""

import asyncio
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli_render import Output, one_line
from orchestrator.cli_session import utcnow
from orchestrator.cli_workers import public
from orchestrator.core.model import ID_PATTERN
from orchestrator.diagnostics import advice, collect, scaling
from orchestrator.diagnostics.collect import Part, part
from orchestrator.diagnostics.environment import environment
from orchestrator.diagnostics.errors import BAD_ARGUMENT, NO_WORKER, Failure
from orchestrator.ports import PortError

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore
    from orchestrator.ports import Cloud
    from orchestrator.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
WORKER_S = 25.0  # all about one worker; they are asked side by side
ABREAST = 20  # workers at once
GIT_S = 5.0
ELSEWHERE = "https://github.com"  # what is neither ours nor a provider's
RAILWAY = ("SERVICE_NAME", "ENVIRONMENT_NAME", "DEPLOYMENT_ID", "GIT_COMMIT_SHA", "PUBLIC_DOMAIN")
NO_SETTINGS = {"error": "not asked: the settings cannot be used"}


async def gathered(output: Output, *, only: str | None = None, deep: bool = True, sensitive: bool = False) -> Part:
    """The whole report on this fleet, or on one worker; not `deep`: without pods, logs, network and deployment."""
    from orchestrator.settings import SettingsError, as_given, load

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
        async with AsyncExitStack() as stack:
            await _Gathering(output, settings, stack, only).fill(report, given, deep=deep)
    found = advice.recommendations(report)
    report["missing_critical"] = report["environment"]["missing_critical"]
    report["recommendations"] = [asdict(one) for one in found]
    report["healthy"] = advice.is_healthy(found)
    return report


class _Gathering:
    """One report on its way."""

    def __init__(self, output: Output, settings: "Settings", stack: AsyncExitStack, only: str | None) -> None:
        self._output, self._settings, self._stack, self._only = output, settings, stack, only
        self._store: SqlStore | None = None
        self._rows: Sequence[Mapping[str, Any]] = ()

    async def fill(self, report: Part, given: Mapping[str, str], *, deep: bool) -> None:
        """All parts that the settings allow."""
        settings = self._settings
        cloud = self._cloud()
        database, (state, pods) = await asyncio.gather(part(self._database()), self._runpod(cloud))
        now = utcnow()
        if pods is not None and "error" not in database:
            state["mismatches"] = collect.mismatches(pods, self._rows, settings.fleet_id, now)
        report |= {"timestamp": now.isoformat(), "runpod_state": state}
        report["orchestrator_analysis"] = database if "error" in database else await self._analysis(database)
        report["database_state"] = database
        if self._store is not None:
            pod_of = {pod.id: pod for pod in pods or ()}
            report["workers"] = await self._workers(self._store, pod_of, deep=deep)
        if state is not None and "error" not in state:
            state["ssh_connectivity_tests"] = _connectivity(report["workers"], pods or ())
        if deep:
            network, deployment = await asyncio.gather(self._network(), asyncio.to_thread(_deployment, given))
            report |= {"network_tests": network, "deployment_verification": deployment}
            report["deployment_verification"]["code_consistency"] = self._code(database)

    def _cloud(self) -> "Cloud | None":
        from orchestrator import wiring

        if self._settings.lacks("cloud"):
            return None
        cloud = wiring.open_cloud(self._settings)
        self._stack.push_async_callback(cloud.close)
        return cloud

    async def _database(self) -> Part:
        from orchestrator import wiring
        from orchestrator.ports import Unavailable

        if missing := self._settings.lacks("database"):
            raise Unavailable(missing)
        store = await self._stack.enter_async_context(wiring.open_store(self._settings))
        found, self._rows = await asyncio.gather(collect.database(store), store.workers())
        self._store = store
        return found

    async def _runpod(self, cloud: "Cloud | None") -> tuple[Part, Sequence[Any] | None]:
        if cloud is None:
            return {"error": "not asked: RUNPOD_API_KEY is not set"}, None
        pods: Sequence[Any] | None = None

        async def asked() -> Part:
            nonlocal pods
            state, pods = await collect.runpod(cloud, self._settings.fleet_id)
            return state

        return await part(asked()), pods

    async def _analysis(self, database: Part) -> Part:
        """What the orchestrator did lately, and what each pool's size comes to now."""
        names = ("recent_cycles", "error_patterns", "worker_lifecycle_events")
        found = {name: database.pop(name) for name in names}

        async def decisions() -> Part:
            from orchestrator import wiring

            assert self._store is not None  # noqa: S101  the database answered
            rows, made = await asyncio.gather(self._store.explain_scaling(), wiring.verdicts(self._settings))
            return {"pools": [asdict(pool) for pool in scaling.explained(rows, made, self._settings.policy())]}

        told = await part(decisions())
        return {**found, "scaling_decisions": told.get("pools", []), "scaling_error": told.get("error")}

    async def _workers(self, store: "SqlStore", pods: Mapping[str, Any], *, deep: bool) -> Part:
        """Every live worker, or the one asked for, side by side, each under its deadline."""
        from orchestrator import wiring

        settings, names = self._settings, [row["id"] for row in self._rows]
        if self._only:
            names = [row["id"] for row in self._rows if self._only in (row["id"], row["pod_id"])]
            if not names and not (await store.worker(self._only))["worker"]:
                raise Failure(NO_WORKER, why=f"the database knows no worker {self._only}")
            names = names or [self._only]
        lines = blobs = None
        if deep and not settings.lacks("shell"):
            _, lines = wiring.open_lines(settings)
            self._stack.push_async_callback(lines.close)
        if deep and not settings.lacks("blobs"):
            blobs = wiring.open_blobs(settings)
        pod_of = {row["id"]: pods.get(row["pod_id"] or "") for row in self._rows}
        gate, policy, tell = (
            asyncio.Semaphore(ABREAST),
            settings.policy(),
            progress(self._output, "workers", len(names)),
        )

        async def one(name: str) -> Part:
            async with gate:
                found = collect.worker(
                    name, store, lines, blobs, pod_of.get(name), policy, lambda row: public(row, utcnow())
                )
                told = await part(found, WORKER_S)
            tell()
            return told

        return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))

    async def _network(self) -> Part:
        import httpx

        settings = self._settings
        places = {
            "supabase": settings.supabase_url and f"{settings.supabase_url}/rest/v1/",
            "runpod_api": settings.runpod_api_base_url,
            "s3_storage": settings.s3_endpoint_url or f"https://s3.{settings.aws_region}.amazonaws.com",
            "worker_api": settings.worker_url and f"{settings.worker_url}/healthz",
            "elsewhere": ELSEWHERE,
        }
        async with httpx.AsyncClient(timeout=collect.PART_S, follow_redirects=False) as client:

            async def get(url: str) -> int:
                try:
                    return (await client.get(url)).status_code
                except httpx.HTTPError as error:
                    raise PortError(f"{type(error).__name__} {error}") from None

            return await collect.network({name: url for name, url in places.items() if url}, get)

    def _code(self, database: Part) -> Part:
        """Whether what runs on the pods, and in the database, is what lies here."""
        from orchestrator.bundle import build_bundle
        from orchestrator.migrate import read_migrations

        ours, schema = build_bundle(self._settings.worker_code_dir).agent_sha, read_migrations()[-1].version
        other = [row["id"] for row in self._rows if row.get("code_sha") not in (None, ours)]
        return {
            "agent_sha": ours,
            "workers_with_other_code": other,
            "schema_here": schema,
            "schema_in_database": database.get("schema_version"),
            "consistent": not other and database.get("schema_version") in (None, schema),
        }


def progress(output: Output, what: str, total: int) -> Callable[[], None]:
    """Count on a terminal, on one line of stderr; elsewhere say nothing until it is over."""
    done = 0

    def tell() -> None:
        nonlocal done
        done += 1
        if output.err.is_terminal:
            output.err.print(f"\r{what}: {done} of {total}", end="\n" if done == total else "")

    return tell


def _keys(settings: "Settings | None") -> Part:
    """Whether the key pair can be used, and why not."""
    from orchestrator.keys import BadKey

    if settings is None or settings.runpod_ssh_private_key is None or not settings.runpod_ssh_public_key:
        return {"usable": False, "cause": "no_private_key", "error": "not compared: one of the two is not set"}
    try:
        key = settings.login_pair().private.key
    except BadKey as error:
        return {"usable": False, "cause": error.cause, "error": error.mangling, "fix": error.fix}
    return {"usable": True, "type": key.get_algorithm(), "fingerprint": key.get_fingerprint()}


def _connectivity(workers: Part, pods: Sequence[Any]) -> Part:
    """By pod: where SSH is, what RunPod says, what came of connecting."""
    by_pod = {
        one["database_record"]["pod_id"]: one["ssh_analysis"]["connection_status"]
        for one in workers.values()
        if "database_record" in one
    }
    return {
        pod.id: {
            "ssh_details": {"ip": pod.ssh_host, "port": pod.ssh_port} if pod.ssh_host else None,
            "status": pod.status.value,
            "connection": by_pod.get(pod.id, "not tried"),
        }
        for pod in pods
    }


def _deployment(given: Mapping[str, str]) -> Part:
    """What is checked out here, and what Railway says of itself in the environment."""
    railway = {name.lower(): given[f"RAILWAY_{name}"] for name in RAILWAY if given.get(f"RAILWAY_{name}")}
    return {"git_status": _git(), "railway_status": railway or "not on Railway"}


def _git() -> Part | str:
    def asked(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, timeout=GIT_S, check=True, text=True
        )
        return done.stdout.strip()

    try:
        changed = asked("status", "--porcelain", "--untracked-files=no").splitlines()
        return {
            "commit": asked("rev-parse", "HEAD"),
            "branch": asked("rev-parse", "--abbrev-ref", "HEAD"),
            "message": one_line(asked("log", "-1", "--format=%s")),
            "changed_files": len(changed),
        }
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {type(error).__name__}"
