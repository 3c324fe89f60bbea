"""`diagnose <worker>`: the report on one worker, and what of the fleet's conditions concerns it."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from orchestrator.cli import explain_view
from orchestrator.cli.output import PIPE_COLUMNS, one_line
from orchestrator.cli.tables import facts
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import clock, octets
from orchestrator.diagnostics.conditions import Condition
from orchestrator.diagnostics.workers import WorkerExplanation
from orchestrator.observability.redaction import plain

EVENTS = 8  # the newest changes of state that are shown
LINES = 5  # of each log
HERE = frozenset({"Environment", "SSH", "RunPod"})  # categories of conditions that may be about this machine alone


def concerning(found: Sequence[Condition], worker_id: str) -> list[Condition]:
    """Return the conditions about a worker, and those of the database, the leader and the store, which concern all."""
    return [one for one in found if _names(one, worker_id) or (one.pools is None and one.kind.row.category not in HERE)]


def _names(one: Condition, worker_id: str) -> bool:
    words = f"{one.subject} {one.detail.get('worker', '')} {one.evidence}"
    return worker_id in words.replace(",", " ").replace(";", " ").replace(":", " ").split()


def shown(report: Mapping[str, Any], worker_id: str, columns: int = PIPE_COLUMNS) -> Iterator[RenderableType]:
    """Show the worker's explanation, its pod, SSH, its logs and its last changes of state."""
    one, now = report["workers"][worker_id], datetime.fromisoformat(report["timestamp"])
    yield Text(f"\n{worker_id}", style="bold")
    if "error" in one:
        yield Text(f"Nothing is known of it: {plain(one_line(one['error']))}")
        return
    yield from explain_view.worker(WorkerExplanation(**one["explanation"]), now, columns)
    yield Text("\nEvidence", style="bold")
    yield facts(dict(_evidence(one)))


def _evidence(one: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    row, ssh, logs, pod = one["database_record"], one["ssh_analysis"], one["log_analysis"], one["runpod_pod"]
    runs = f"{pod['status']}{'' if pod['has_runtime'] else ', without a runtime'}" if pod else "not in RunPod's list"
    yield "pod", f"{row.get('pod_id') or 'none yet'}  RunPod: {runs}"
    yield "SSH", plain(one_line(f"{ssh['ssh_details'] or 'no address'}  {ssh['connection_status']}", 300))
    if ssh["processes"]:
        yield "agent", plain(one_line(ssh["processes"], 300))
    if script := ssh["worker_script"]:
        yield "code", f"{script['expected']}: {'there' if script['present'] else 'missing on the pod'}"
    if space := ssh["workspace"]:
        yield "machine", plain(one_line({name: value for name, value in space.items() if value is not None}, 400))
    if "error" in logs:
        yield "logs in S3", plain(one_line(logs["error"]))
    else:
        lost = f", {counted(len(logs['lost']), 'piece')} lost" if logs["lost"] else ""
        why = f" ({one_line(logs['why'])})" if logs.get("why") else ""
        yield "logs in S3", plain(f"{octets(logs['bytes_shipped'])} in {counted(logs['objects'], 'object')}{lost}{why}")
        for stream, lines in logs["last_lines"].items():
            yield f"end of {plain(stream)}", "\n".join(plain(one_line(line, 300)) for line in lines[-LINES:])
    steps = [
        f"{clock(event['at'])}  {event['to_state'] or event['from_state']}, {event['to_stage'] or '–'}: "
        f"{one_line(event['reason'] or '', 160)}"
        for event in one["lifecycle_events"][-EVENTS:]
    ]
    yield "last changes", plain("\n".join(steps)) if steps else "none"
