"""The final snapshot of a pod: its GPUs, memory, processor, disk and kernel log, and its agent before the stop.

One command over SSH prints sections; it needs only a shell. A missing or unreadable value is null: unknown, not zero.
"""

import asyncio
import csv
import json
import re
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.machine_checks import UNLIMITED_BYTES
from orchestrator.core.model import Worker
from orchestrator.pods import agent_commands
from orchestrator.ports import HostKeyChanged, PortError, SessionPool

SNAPSHOT_S = 10.0  # seconds for the whole snapshot, with the connection
REACH_S = 5.0  # seconds for an empty command: a tool that hangs later does not make the pod unreachable
SMI_S = 4  # seconds for nvidia-smi, which hangs on a broken driver and must not delay the other sections
MAX_BYTES = 16 * 1024  # of the snapshot as JSON
MAX_ROWS = 16  # GPUs; file systems; lines of the kernel's log
MAX_TEXT = 300  # characters of one text
GPU_FIELDS = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "pstate",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "temperature.gpu",
    "power.draw",
    "ecc.errors.uncorrected.volatile.total",
)
GPU_TEXTS = frozenset({"name", "uuid", "driver_version", "pstate"})  # never parsed as numbers
# Our name -> possible paths of the cgroup's file, v2 first.
COUNTERS = {
    "memory_bytes": ("memory.current", "memory/memory.usage_in_bytes"),
    "memory_peak_bytes": ("memory.peak", "memory/memory.max_usage_in_bytes"),
    "memory_limit_bytes": ("memory.max", "memory/memory.limit_in_bytes"),
    "memory_events": ("memory.events", "memory/memory.oom_control"),
    "cpu": ("cpu.stat", "cpu/cpu.stat"),
    "pids": ("pids.current", "pids/pids.current"),
}
WHOLE = re.compile(r"[0-9]{1,19}")
# If the container may read the kernel log: the driver's messages, and processes that the OOM killer ended.
KERNEL = f"dmesg | grep -E 'NVRM|[Oo]ut of memory|oom-kill|Killed process' | tail -n {MAX_ROWS}"
SECTION = re.compile(r"^=== (\w+)\n", re.MULTILINE)


def command(nonce: str | None) -> str:
    """Return the command for the pod. With a launch, it also reads the agent's files."""
    parts = [
        'echo "=== disk"; df -Pk "$HOME" /',
        f"echo '=== kernel'; if dmesg >/dev/null; then echo read; {KERNEL}; fi",
    ]
    if nonce is not None:
        run = agent_commands.run_dir(nonce)
        parts += [
            f"echo '=== agent'; head -c 2000 {run}/agent.json; echo",
            f"echo '=== done'; head -c 2000 {run}/done.json; echo",
            f"echo '=== process'; tr '\\0' ' ' </proc/\"$(cat {run}/agent.pid)\"/cmdline; echo",
        ]
    for name, places in COUNTERS.items():
        paths = " ".join(f"/sys/fs/cgroup/{place}" for place in places)
        parts.append(f"echo '=== {name}'; for f in {paths}; do [ -r $f ] && head -c 2000 $f && break; done")
    query = f"nvidia-smi --query-gpu={','.join(GPU_FIELDS)} --format=csv,noheader,nounits"
    parts.append(
        f"echo '=== gpus'; if command -v timeout >/dev/null; then timeout {SMI_S} {query}; else {query}; fi; "
        'status=$?; echo "=== gpus_status"; echo $status'
    )
    return f"{{ {'; '.join(parts)}; }} 2>/dev/null"


async def take(ssh_pool: SessionPool, worker: Worker) -> dict[str, Any]:
    """Return the snapshot of a worker's pod within SNAPSHOT_S, or one with the reason for its absence.

    Raises HostKeyChanged.
    """
    reached = False
    try:
        async with asyncio.timeout(SNAPSHOT_S):
            async with asyncio.timeout(REACH_S), ssh_pool.session(worker, timeout_s=REACH_S) as session:
                await session.run(":", timeout_s=REACH_S)
            reached = True
            async with ssh_pool.session(worker, timeout_s=REACH_S) as session:
                done = await session.run(command(worker.nonce), timeout_s=SNAPSHOT_S)
    except HostKeyChanged:
        raise  # the answer of another machine is dropped
    except (PortError, TimeoutError) as error:
        why = f"{type(error).__name__}: {error}" if str(error) else f"no answer within {SNAPSHOT_S:.0f} s"
        return unknown(why) | {"reached": reached}
    return bounded(read(done.stdout.decode("utf-8", "replace"), worker.nonce))


def unknown(why: str) -> dict[str, Any]:
    """Return the snapshot of an unreachable pod."""
    return {"known": False, "why": why[:MAX_TEXT], "at": _now()}


def read(text: str, nonce: str | None) -> dict[str, Any]:
    """Parse the output of `command`."""
    _, *found = SECTION.split(text)
    sections = {name: content.strip() for name, content in zip(found[::2], found[1::2], strict=True)}
    counters = {name: _counter(sections.get(name, "")) for name in COUNTERS}
    status = sections.get("gpus_status", "")
    return {
        "known": True,
        "at": _now(),
        "agent": _agent(sections, nonce),
        "gpus": _gpus(sections.get("gpus", "")) if status == "0" else None,
        "gpus_why": None if status == "0" else _smi_failure(status, sections.get("gpus", "")),
        "cgroup": counters,
        "disk": _disk(sections.get("disk", "")),
        "kernel": _kernel(sections.get("kernel", "")),
    }


def bounded(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Limit the snapshot to MAX_BYTES: its largest parts are left out."""
    parts = sorted(snapshot, key=lambda name: len(json.dumps(snapshot[name])))
    while len(json.dumps(snapshot).encode()) > MAX_BYTES:
        snapshot = {**snapshot, parts.pop(): "left out: too large"}
    return snapshot


def _agent(sections: dict[str, str], nonce: str | None) -> dict[str, Any]:
    """Return the agent's state: running, ended (with reason and status), killed (no record), or never started."""
    line, last = _object(sections.get("agent", "")), _object(sections.get("done", ""))
    running = nonce is not None and agent_commands.run_dir(nonce) in sections.get("process", "")
    state = "running" if running else "ended" if last else "killed" if line else "unknown"
    ended = {name: _short(last.get(name)) for name in ("reason", "status", "at")} if last else None
    return {"exit_class": state, "pid": line.get("pid") if line else None, "done": ended}


def _gpus(text: str) -> list[dict[str, Any]]:
    rows = list(csv.reader(text.splitlines(), skipinitialspace=True))[:MAX_ROWS]
    return [
        {name: _short(text) if name in GPU_TEXTS else _value(text) for name, text in zip(GPU_FIELDS, row, strict=True)}
        for row in rows
        if len(row) == len(GPU_FIELDS)
    ]


def _smi_failure(status: str, output: str) -> str:
    if status == "124":
        return f"nvidia-smi did not answer within {SMI_S} s"
    return f"nvidia-smi ended with status {status or 'unknown'}: {output[:MAX_TEXT]}"


def _disk(text: str) -> list[dict[str, Any]] | None:
    """Parse `df -Pk` of the home and the root; one entry if both are one file system."""
    found = {}
    for line in text.splitlines()[1:]:
        fields = line.rsplit(maxsplit=5)
        if len(fields) == 6 and WHOLE.fullmatch(fields[1]):  # noqa: PLR2004  the columns of POSIX df
            found[fields[5]] = {
                "mount": _short(fields[5]),
                "total_kib": int(fields[1]),
                "used_kib": _value(fields[2]),
                "free_kib": _value(fields[3]),
            }
    return list(found.values())[:MAX_ROWS] or None


def _kernel(text: str) -> list[str] | None:
    """Return the lines of the kernel log, the newest last. None if the container may not read it."""
    readable, *lines = text.splitlines() or [""]
    return [line[:MAX_TEXT] for line in lines[-MAX_ROWS:]] if readable == "read" else None


def _counter(text: str) -> Any:
    """Parse a number, "max", or lines of `name value`. None if there was nothing to read."""
    pairs = [line.split() for line in text.splitlines()]
    if len(pairs) == 1 and len(pairs[0]) == 1:
        number = _value(text)
        return "max" if isinstance(number, int) and number >= UNLIMITED_BYTES else number
    named = {pair[0][:MAX_TEXT]: pair[1] for pair in pairs[:32] if len(pair) == 2}  # noqa: PLR2004
    return {name: int(number) for name, number in named.items() if WHOLE.fullmatch(number)} or None


def _value(text: str) -> Any:
    """Parse a number; None for a value that nvidia-smi does not know."""
    text = text.strip()
    if text in {"", "[N/A]", "N/A", "[Not Supported]", "[Unknown Error]"}:
        return None
    if WHOLE.fullmatch(text):
        return int(text)
    return float(text) if re.fullmatch(r"-?[0-9]{1,18}\.[0-9]{1,18}", text) else text[:MAX_TEXT]


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _short(value: Any) -> Any:
    return value[:MAX_TEXT] if isinstance(value, str) else value if isinstance(value, int | float | None) else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
