"""Other sources of a worker's log if the bucket has none: the pod over SSH, or the rows in the database."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.adapters.rows import worker_of
from orchestrator.cli.log_lines import LogLine, stamp
from orchestrator.cli.output import one_line
from orchestrator.diagnostics.amounts import moment
from orchestrator.diagnostics.log_delay import delay_of
from orchestrator.pods.agent_control import TAIL_BYTES
from orchestrator.ports import PortError

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings

DATABASE = "database"  # the stream of lines that come from rows
POD_TIMEOUT_S = 15.0  # for all streams of one pod, with the connection


async def on_the_pod(
    settings: "Settings", row: Mapping[str, Any], streams: Iterable[str], lines: int
) -> Mapping[str, Sequence[str]] | str:
    """Return the last lines of each stream, read over SSH, or why there are none. It changes nothing on the pod."""
    from orchestrator import wiring
    from orchestrator.config.validation import lacks
    from orchestrator.pods import agent_commands

    if not row.get("ssh_host") or not row.get("nonce"):
        return "its pod has no SSH address, or no agent was started on it"
    if missing := lacks(settings, "shell"):
        return missing
    _, ways = wiring.open_ssh_pool(settings)
    found = {}
    try:
        async with asyncio.timeout(POD_TIMEOUT_S), ways.session(worker_of(row), timeout_s=POD_TIMEOUT_S) as session:
            directory = f"{agent_commands.run_dir(row['nonce'])}/logs"
            sizes = await session.list(directory, timeout_s=POD_TIMEOUT_S) or {}
            for stream in streams:
                size = sizes.get(f"{stream}.log", 0)
                offset = max(0, size - TAIL_BYTES)
                text = await session.read(f"{directory}/{stream}.log", offset, TAIL_BYTES, timeout_s=POD_TIMEOUT_S)
                entries = (text or b"").decode("utf-8", "replace").splitlines()[1 if offset else 0 :]
                found[stream] = entries[-lines:] if lines else entries
    except TimeoutError:
        return f"its pod did not answer within {POD_TIMEOUT_S:.0f} s"
    except PortError as error:
        return f"its logs cannot be read now: {one_line(delay_of(f'{type(error).__name__}: {error}'))}"
    finally:
        await ways.close()
    return found


def in_the_database(found: Mapping[str, Any], lines: int) -> Sequence[LogLine]:
    """Return the log of a worker from its rows: events, log lines of failed stages, messages of its tasks."""
    entries: list[tuple[str, str]] = [
        (event["at"], f"{event['from_state'] or '–'} -> {event['to_state']}: {event['reason']}")
        for event in found.get("events", ())
        if event["from_state"] != event["to_state"]
    ]
    for attempt in found.get("attempts", ()):
        evidence = attempt["evidence"] or {}
        log = evidence.get("log")
        kept = [*(log if isinstance(log, list) else ()), evidence.get("error")]
        words = [f"{attempt['stage']}: {line}" for line in kept if line]
        entries += [(attempt["ended_at"] or attempt["started_at"], word) for word in words]
    for task in found.get("tasks", ()):
        if task["ended_at"]:
            message = f": {task['message']}" if task.get("message") else ""
            entries.append(
                (task["ended_at"], f"task {task['task_id']} attempt {task['attempt']} {task['outcome']}{message}")
            )
    name = found["worker"]["id"]
    ordered = [LogLine(moment(at), True, name, DATABASE, one_line(text, 500)) for at, text in sorted(entries)]
    return ordered[-lines:] if lines else ordered


async def each(worker_id: str, stream: str, texts: Iterable[str]) -> AsyncIterator[LogLine]:
    """Yield texts from a pod. A line without a time of its own has that of the line before."""
    last = None
    for text in texts:
        exact = stamp(text)
        last = exact or last
        yield LogLine(last, exact is not None, worker_id, stream, text)
