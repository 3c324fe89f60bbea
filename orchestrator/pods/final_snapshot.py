"""The last look at a pod: what its GPUs, memory, processor, disk and kernel were like, and its agent before the stop.

One command over SSH, for any shell and with no interpreter, in sections that are read here. What is not there or cannot
be read is null: unknown, which is not zero.
"""

import asyncio
import csv
import json
import re
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.model import Worker
from orchestrator.pods import agent_commands
from orchestrator.ports import HostKeyChanged, PortError, SessionPool

LOOK_S = 10.0  # for all of it, connecting included
REACH_S = 5.0  # for a shell to do nothing; a tool that hangs afterwards does not make the pod unreachable
SMI_S = 4  # for nvidia-smi, which hangs on a broken driver and must not take the rest along
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
GPU_TEXTS = frozenset({"name", "uuid", "driver_version", "pstate"})  # never read as numbers
# Our name -> where a cgroup's file may be, v2 first.
COUNTERS = {
    "memory_bytes": ("memory.current", "memory/memory.usage_in_bytes"),
    "memory_peak_bytes": ("memory.peak", "memory/memory.max_usage_in_bytes"),
    "memory_limit_bytes": ("memory.max", "memory/memory.limit_in_bytes"),
    "memory_events": ("memory.events", "memory/memory.oom_control"),
    "cpu": ("cpu.stat", "cpu/cpu.stat"),
    "pids": ("pids.current", "pids/pids.current"),
}
WHOLE = re.compile(r"[0-9]{1,18}")
# Where a container may read it: what the driver said of a GPU, and whom the kernel killed for want of memory.
KERNEL = f"dmesg | grep -E 'NVRM|[Oo]ut of memory|oom-kill|Killed process' | tail -n {MAX_ROWS}"
SECTION = re.compile(r"^=== (\w+)\n", re.MULTILINE)


def command(nonce: str | None) -> str:
    """What is run on the pod; of a launch, where there was one, its agent is looked at too."""
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


async def look(lines: SessionPool, worker: Worker) -> dict[str, Any]:
    """The snapshot of a worker's pod, within LOOK_S, or one that says why there is none; raises HostKeyChanged."""
    reached = False
    try:
        async with asyncio.timeout(LOOK_S):
            async with asyncio.timeout(REACH_S), lines.session(worker, timeout_s=REACH_S) as session:
                await session.run(":", timeout_s=REACH_S)
            reached = True
            async with lines.session(worker, timeout_s=REACH_S) as session:
                done = await session.run(command(worker.nonce), timeout_s=LOOK_S)
    except HostKeyChanged:
        raise  # no answer of another machine is worth keeping
    except (PortError, TimeoutError) as error:
        why = f"{type(error).__name__}: {error}" if str(error) else f"no answer within {LOOK_S:.0f} s"
        return unknown(why) | {"reached": reached}
    return bounded(read(done.stdout.decode("utf-8", "replace"), worker.nonce))


def unknown(why: str) -> dict[str, Any]:
    """The snapshot of a pod that cannot be seen."""
    return {"known": False, "why": why[:MAX_TEXT], "at": _now()}


def read(text: str, nonce: str | None) -> dict[str, Any]:
    """The snapshot from what `command` printed."""
    _, *found = SECTION.split(text)
    said = {name: content.strip() for name, content in zip(found[::2], found[1::2], strict=True)}
    counters = {name: _counter(said.get(name, "")) for name in COUNTERS}
    status = said.get("gpus_status", "")
    return {
        "known": True,
        "at": _now(),
        "agent": _agent(said, nonce),
        "gpus": _gpus(said.get("gpus", "")) if status == "0" else None,
        "gpus_why": None if status == "0" else _smi_failure(status, said.get("gpus", "")),
        "cgroup": counters,
        "disk": _disk(said.get("disk", "")),
        "kernel": _kernel(said.get("kernel", "")),
    }


def bounded(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The snapshot in MAX_BYTES: its largest parts give way."""
    parts = sorted(snapshot, key=lambda name: len(json.dumps(snapshot[name])))
    while len(json.dumps(snapshot).encode()) > MAX_BYTES:
        snapshot = {**snapshot, parts.pop(): "left out: too large"}
    return snapshot


def _agent(said: dict[str, str], nonce: str | None) -> dict[str, Any]:
    """How the agent was: running, ended (with its reason and status), killed (it left no word), or never there."""
    line, last = _object(said.get("agent", "")), _object(said.get("done", ""))
    running = nonce is not None and agent_commands.run_dir(nonce) in said.get("process", "")
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


def _smi_failure(status: str, said: str) -> str:
    if status == "124":
        return f"nvidia-smi did not answer within {SMI_S} s"
    return f"nvidia-smi ended with status {status or 'unknown'}: {said[:MAX_TEXT]}"


def _disk(text: str) -> list[dict[str, Any]] | None:
    """`df -Pk` on the home and the root, once each if they are one file system."""
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
    """The lines of the kernel's log, the newest last; None where the container may not read it."""
    readable, *lines = text.splitlines() or [""]
    return [line[:MAX_TEXT] for line in lines[-MAX_ROWS:]] if readable == "read" else None


def _counter(text: str) -> Any:
    """A number, "max", or the numbers of a file of `name value` lines; None where there was nothing to read."""
    pairs = [line.split() for line in text.splitlines()]
    if len(pairs) == 1 and len(pairs[0]) == 1:
        return _value(text)
    named = {pair[0][:MAX_TEXT]: pair[1] for pair in pairs[:32] if len(pair) == 2}  # noqa: PLR2004
    return {name: int(number) for name, number in named.items() if WHOLE.fullmatch(number)} or None


def _value(text: str) -> Any:
    """A number where it is one; None for what nvidia-smi does not know."""
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
