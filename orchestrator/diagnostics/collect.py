"""Collects the facts of the report, each part with its own deadline. A part that fails names its error.

A failed part stops no other part.

Collecting changes nothing. Parts are plain JSON; rules.py finds conditions in them.
"""

import asyncio
import gzip
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.adapters.cluster_rows import known_clusters
from orchestrator.adapters.functions import FUNCTIONS
from orchestrator.adapters.rows import worker_of
from orchestrator.adapters.store import SqlStore
from orchestrator.config.code_files import BadCode
from orchestrator.core.clusters.rows import ClusterRow
from orchestrator.core.policy import Policy
from orchestrator.core.provider import Pod
from orchestrator.diagnostics import workers
from orchestrator.diagnostics.facts import CONNECTED
from orchestrator.pods import agent_commands
from orchestrator.pods.final_snapshot import take as take_snapshot
from orchestrator.ports import AuthFailed, Blobs, DatabaseHalf, NotFound, PortError, SessionPool, UnknownWorker

PROBE = "gpu-diagnostics-nobody"  # no worker has this id: a claim in its name is refused before anything is read
TAIL_LINES = 10
NO_SSH = "only diagnose connects, if the SSH keys are set"
PROBED = "probes/store"  # the key that the loop asks for too (loop/store_watch.py)
Row = Mapping[str, Any]
Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportLimits:
    """The time limits of the report, in seconds. A part that hangs delays no other part."""

    whole_s: float = 27.0  # 30 s with the start and the end of the interpreter
    part_s: float = 10.0  # for each part except the workers; they run at the same time
    connect_s: float = 5.0  # for an SSH server that accepts and sends nothing
    pod_s: float = 12.0  # for all questions to one pod


LIMITS = ReportLimits()


async def part(what: Awaitable[Part], timeout_s: float = LIMITS.part_s) -> Part:
    """Return a part of the report, or {"error": why there is none}."""
    try:
        async with asyncio.timeout(timeout_s):
            return await what
    except TimeoutError:
        return {"error": f"no answer within {timeout_s:g} s"}
    except (PortError, BadCode) as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}


async def database(store: SqlStore) -> tuple[Part, DatabaseHalf, Sequence[ClusterRow]]:
    """Return workers, tasks, the queue, and whether the functions exist; clusters too. The probes change nothing."""
    began_s = time.monotonic()
    report, described, seen = await asyncio.gather(store.report(), store.describe(), store.snapshot())
    took_ms = round((time.monotonic() - began_s) * 1000)
    clusters = known_clusters(report.get("clusters"))
    return (
        {
            **{name: value for name, value in report.items() if name != "clusters"},
            "database_id": seen.database_id,
            "schema_version": described["schema_version"],
            "rpc_function_tests": await functions(store, described),
            "response_time_ms": took_ms,
        },
        seen,
        clusters,
    )


async def store(blobs: Blobs) -> Part:
    """Return whether the object store answers, and how fast. Writes nothing."""
    began_s = time.monotonic()
    with suppress(NotFound):
        await blobs.size(PROBED)
    return {"response_time_ms": round((time.monotonic() - began_s) * 1000)}


async def functions(store: SqlStore, described: Row) -> Part:
    """Return whether each function that this version calls exists, with its arguments. Claims for an unknown worker."""
    there = described["functions"] or {}
    found: Part = {}
    for name, args in FUNCTIONS.items():
        have = [arg for arg in there.get(name, ()) if arg != "p_now"]
        status = (
            "missing" if name not in there else "ok" if have == list(args) else f"other arguments: {', '.join(have)}"
        )
        found[name] = {"status": status}
    began_s = time.monotonic()
    try:
        await store.claim_as(PROBE)
    except UnknownWorker:
        found["worker_claim"] |= {"probe": "answers", "response_time_ms": round((time.monotonic() - began_s) * 1000)}
    except PortError as error:
        found["worker_claim"] |= {"status": "fails", "probe": f"{type(error).__name__}: {error}"}
    return found


def runpod(listed: Sequence[Pod], fleet_id: str, database: Part) -> tuple[Part, Sequence[Pod]]:
    """Return the pods of this fleet with their cost, and the number of other pods.

    If the database does not give its identity, all pods with the fleet's name count.
    """
    unknown = "error" in database
    named = [pod for pod in listed if pod.fleet_id == fleet_id]
    pods = [pod for pod in named if unknown or pod.is_of(fleet_id, database["database_id"])]
    return {
        "total_pods": len(pods),
        "foreign_pods": len(listed) - len(pods),
        "pods_by_status": dict(Counter(pod.status.value for pod in pods)),
        "active_pods": [
            {
                "id": pod.id,
                "worker_id": pod.worker_id,
                "status": pod.status.value,
                "gpu_type": pod.gpu_type,
                "usd_per_hour": pod.price_usd_per_hour,
            }
            for pod in pods
        ],
        "total_hourly_cost": round(sum(pod.price_usd_per_hour or 0 for pod in pods), 4),
        "unpriced_pods": sum(pod.price_usd_per_hour is None for pod in pods),
    }, pods


async def worker(
    found: Row,
    store: SqlStore | None,
    ssh_pool: SessionPool | None,
    blobs: Blobs | None,
    pod: Pod | None,
    policy: Policy,
    shown: Callable[[Row], Part],
    limits: ReportLimits = LIMITS,
) -> Part:
    """Return everything about one worker: its row as `shown`, its pod, SSH, logs, history and explanation.

    `found` is what the database has to explain it. Without a store, the ledger of its logs is not read.
    """
    row = found["worker"]
    ledger = await store.log_pieces(row["id"]) if store else []
    ssh, logs = await asyncio.gather(
        ssh_analysis(row, ssh_pool, limits), part(log_analysis(row, ledger, blobs), limits.part_s)
    )
    return {
        "database_record": shown(row),
        "runpod_pod": None
        if pod is None
        else {"id": pod.id, "status": pod.status.value, "has_runtime": pod.has_runtime},
        "ssh_analysis": ssh,
        "log_analysis": logs,
        "lifecycle_events": [
            {key: event[key] for key in ("at", "from_state", "to_state", "to_stage", "reason")}
            for event in found["events"]
        ],
        "explanation": asdict(workers.explained(found, policy)),
    }


async def ssh_analysis(row: Row, ssh_pool: SessionPool | None, limits: ReportLimits) -> Part:
    """Return whether our key opens the pod, and whether its agent runs there. Changes nothing on the pod."""
    details = f"{row['ssh_host']}:{row['ssh_port']}" if row.get("ssh_host") else None
    found: Part = {"ssh_details": details, "processes": None, "worker_script": None, "workspace": None}
    if details is None or ssh_pool is None or row["status"] == "terminated":
        why = "no SSH details" if details is None else NO_SSH if ssh_pool is None else "it has ended"
        return found | {"connection_status": f"not tried: {why}"}
    live = worker_of(row)
    try:
        async with asyncio.timeout(limits.pod_s):
            async with ssh_pool.session(live, timeout_s=limits.connect_s) as session:
                code = await session.list(agent_commands.CODE_DIR, timeout_s=limits.pod_s) or {}
                evidence = dict(session.evidence)
            seen = await take_snapshot(ssh_pool, live)
    except AuthFailed as error:
        return found | {"connection_status": f"❌ Authentication failed: {error}", "cause": error.cause}
    except TimeoutError:
        return found | {"connection_status": f"❌ no answer within {limits.pod_s:g} s"}
    except PortError as error:
        return found | {"connection_status": f"❌ {type(error).__name__}: {error}"}
    agent = f"agent-{row.get('code_sha')}.pyz"
    return found | {
        "connection_status": CONNECTED,
        "evidence": evidence,
        "processes": seen.get("agent"),
        "worker_script": {"expected": agent, "present": agent in code, "files": code},
        "workspace": {name: seen.get(name) for name in ("disk", "gpus", "gpus_why", "cgroup")},
    }


async def log_analysis(row: Row, ledger: Sequence[Row], blobs: Blobs | None) -> Part:
    """Return which of its logs S3 has, which were lost, and the last lines of each stream in S3."""
    shipped = [piece for piece in ledger if piece["shipped_at"]]
    lost = [piece for piece in ledger if piece["declared_lost"]]
    found: Part = {
        "s3_logs_available": False,
        "objects": len(shipped),
        "bytes_shipped": sum(piece["last"] - piece["first"] for piece in shipped),
        "lost": [{key: piece[key] for key in ("stream", "first", "last", "reason")} for piece in lost],
        "bytes_told": row.get("log_bytes") or {},
        "last_lines": {},
    }
    if blobs is None:
        return found | {"why": "S3 is not configured"}
    try:
        for piece in {piece["stream"]: piece for piece in shipped}.values():  # the last piece of each stream
            text = gzip.decompress(await blobs.get(piece["key"])).decode("utf-8", "replace")
            found["last_lines"][piece["stream"]] = text.splitlines()[-TAIL_LINES:]
            found["s3_logs_available"] = True
    except (PortError, OSError, EOFError, zlib.error) as error:
        found["why"] = f"{type(error).__name__}: {error}"
    return found


async def network(places: Mapping[str, str], get: Callable[[str], Awaitable[int]], timeout_s: float) -> Part:
    """Return whether each address answers at all; 401 and 404 are answers too."""

    async def asked(url: str) -> Part:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                status = await get(url)
        except (OSError, TimeoutError, PortError) as error:
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            return {"status_code": None, "response_time_ms": None, "accessible": False, "error": why}
        took_ms = round((time.monotonic() - began_s) * 1000, 1)
        return {"status_code": status, "response_time_ms": took_ms, "accessible": status < 500}  # noqa: PLR2004

    answers = await asyncio.gather(*(asked(url) for url in places.values()))
    return {name: {"url": url, **answer} for (name, url), answer in zip(places.items(), answers, strict=True)}


def connectivity(workers: Part, pods: Sequence[Any]) -> Part:
    """Return for each pod its SSH address, RunPod's status, and the result of a connection."""
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
