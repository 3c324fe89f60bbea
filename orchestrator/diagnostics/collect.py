"""The facts of the report, each part under a deadline of its own: what cannot be had says why, and the rest goes on.

Nothing that is looked at is changed. Parts are plain JSON; what to make of them is advice.py's business.
"""

import asyncio
import gzip
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.adapters.functions import FUNCTIONS
from orchestrator.adapters.rows import worker_of
from orchestrator.adapters.store import SqlStore
from orchestrator.core.model import Pod, Policy
from orchestrator.diagnostics import workers
from orchestrator.pods import agent_commands
from orchestrator.pods.final_snapshot import look
from orchestrator.ports import AuthFailed, Blobs, PortError, SessionPool, UnknownWorker

CONNECTED = "✅ Connected"
PROBE = "gpu-diagnostics-nobody"  # no worker's id: a claim in its name is refused before anything is looked at
TAIL_LINES = 10
Row = Mapping[str, Any]
Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the report waits: whatever hangs costs its own part and holds up no other. Seconds."""

    whole_s: float = 27.0  # with the interpreter's start and its end: 30
    part_s: float = 10.0  # each of the parts but the workers; they are asked side by side
    connect_s: float = 5.0  # an SSH server that accepts and says nothing
    pod_s: float = 12.0  # all that is asked of one pod


LIMITS = Limits()


async def part(what: Awaitable[Part], timeout_s: float = LIMITS.part_s) -> Part:
    """A part of the report, or {"error": why there is none}."""
    try:
        async with asyncio.timeout(timeout_s):
            return await what
    except TimeoutError:
        return {"error": f"no answer within {timeout_s:g} s"}
    except PortError as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}


async def database(store: SqlStore) -> Part:
    """Workers, tasks, the queue, and whether the functions are there; probes never change anything."""
    told, described, seen = await asyncio.gather(store.report(), store.describe(), store.snapshot())
    return {
        **told,
        "database_id": seen.database_id,
        "schema_version": described["schema_version"],
        "rpc_function_tests": await functions(store, described),
    }


async def functions(store: SqlStore, described: Row) -> Part:
    """Whether each function this version calls is there, with its arguments; claiming is tried, as nobody."""
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
    """The pods of this fleet, what they cost, and how many others there are.

    Where the database does not tell which one it is, all that bear the fleet's name count.
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
    }, pods


async def worker(
    name: str,
    store: SqlStore,
    lines: SessionPool | None,
    blobs: Blobs | None,
    pod: Pod | None,
    policy: Policy,
    shown: Callable[[Row], Part],
    limits: Limits = LIMITS,
) -> Part:
    """Everything about one worker: its row as `shown`, its pod, SSH, its logs, its history, the explanation."""
    found, ledger = await asyncio.gather(store.explain(name), store.log_pieces(name))
    row = found["worker"]
    ssh, logs = await asyncio.gather(
        ssh_analysis(row, lines, limits), part(log_analysis(row, ledger, blobs), limits.part_s)
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


async def ssh_analysis(row: Row, lines: SessionPool | None, limits: Limits) -> Part:
    """Whether our key opens the pod, and whether its agent runs there; nothing is changed on it."""
    details = f"{row['ssh_host']}:{row['ssh_port']}" if row.get("ssh_host") else None
    found: Part = {"ssh_details": details, "processes": None, "worker_script": None, "workspace": None}
    if details is None or lines is None or row["status"] == "terminated":
        why = "no SSH details" if details is None else "SSH keys are not set" if lines is None else "it has ended"
        return found | {"connection_status": f"not tried: {why}"}
    whom = worker_of(row)
    try:
        async with asyncio.timeout(limits.pod_s):
            async with lines.session(whom, timeout_s=limits.connect_s) as session:
                code = await session.list(agent_commands.CODE_DIR, timeout_s=limits.pod_s) or {}
                evidence = dict(session.evidence)
            seen = await look(lines, whom)
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
    """What of its logs lies in S3, what was lost, and the last lines of each stream there."""
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
        for piece in {piece["stream"]: piece for piece in shipped}.values():  # the last of each
            text = gzip.decompress(await blobs.get(piece["key"])).decode("utf-8", "replace")
            found["last_lines"][piece["stream"]] = text.splitlines()[-TAIL_LINES:]
            found["s3_logs_available"] = True
    except (PortError, OSError, EOFError, zlib.error) as error:
        found["why"] = f"{type(error).__name__}: {error}"
    return found


async def network(places: Mapping[str, str], get: Callable[[str], Awaitable[int]], timeout_s: float) -> Part:
    """Whether each place answers at all: 401 and 404 are answers."""

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
