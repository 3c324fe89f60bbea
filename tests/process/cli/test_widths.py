"""What operators look at, on terminals of 80 to 200 columns, without colour: no line too wide, nothing lost."""

import asyncio
import re
from collections.abc import Mapping
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from orchestrator.cli.main import Commands
from orchestrator.cli.output import Output
from orchestrator.core.states import State
from tests.process.cli.builders import Cli, Fleet

FIX = re.compile(r" *fix: ")  # one line however long it is, to be copied
ISO = re.compile(r"\d{4}-\d\d-\d\d(T|.{9}\.\d)")  # for programs; a person gets ages
OOM = "the kernel ended the handler, which had taken 31.9 GiB of 32 GiB, in the middle of frame 12"
RAM = "raise RUNPOD_MIN_MEMORY_GB"
LONG = "RunPod's confirmation that the pod is gone, asked 3 times since 2026-11-21 15:11:48Z, and it is still there"


async def shown(width: int, *command: str) -> str:
    """The command's stdout on a terminal so wide."""
    output, screen = Output(), StringIO()
    plain = {"highlight": False, "markup": False, "emoji": False}
    output.out = Console(file=screen, width=width, force_terminal=True, color_system=None, **plain)  # type: ignore[arg-type]
    output.err = Console(file=StringIO(), width=width)
    await asyncio.to_thread(Commands().main, [*command], "orchestrator", standalone_mode=False, obj=output)
    return screen.getvalue()


async def running(fleet: Fleet) -> tuple[str, str]:
    """A task half done, retried after it had failed; and the worker that runs it."""
    urgent = {"task_type": "travel_segment", "params": {}, "max_attempts": 1, "priority": 1000}
    (made,) = await fleet.store.submit([urgent])
    worker = await fleet.worker(upto=State.ACTIVE)
    agent = {"p_worker_id": worker, "p_nonce": "boot-1"}
    await fleet.db.call("worker_register", **agent, p_agent={"protocol": 1})
    await claimed(fleet, agent, 1)
    failure = {"code": "OOM", "message": OOM, "exit_class": "oom", "point": "Processing"}
    await fleet.db.call("worker_fail", **agent, p_task_id=made["id"], p_attempt=1, p_failure=failure)
    await fleet.store.retry(made["id"])
    held = await claimed(fleet, agent, 2)
    held |= {"progress": {"fraction": 0.6111111, "message": "frame 88 of 144"}}
    await fleet.db.call("worker_heartbeat", **agent, p_tasks=[held], p_health=None, p_logs=None)
    return made["id"], worker


async def claimed(fleet: Fleet, agent: Mapping[str, str], number: int) -> dict[str, Any]:
    """The task that this claim gets, as a heartbeat names it."""
    answer = await fleet.db.call("worker_claim", **agent, p_claim_no=number, p_batch=1, p_wait_s=0)
    return {"id": answer["tasks"][0]["id"], "attempt": answer["tasks"][0]["attempt"]}


def squeezed(text: str) -> str:
    """Return the text without blanks, which a line break may add or remove."""
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("width", [80, *(pytest.param(width, marks=pytest.mark.full) for width in (120, 200))])
async def test_screens_fit_their_terminal(fleet: Fleet, cli: Cli, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """Every screen has what it is read for, whole, with lines no longer than the terminal's, and no raw timestamps."""
    for name in ("DATABASE_URL", "FLEET_ID"):
        monkeypatch.setenv(name, str(cli.environment[name]))
    going, busy = await fleet.worker(upto=State.TERMINATING), await fleet.worker(upto=State.ACTIVE)
    await fleet.db.call("fleet_move", p_fleet=cli.environment["FLEET_ID"], p_term=fleet.term, p_worker_id=going,
                        p_from=["terminating"], p_to=None, p_stage=None, p_reason="test",
                        p_fields={"waiting_for": LONG})  # fmt: skip
    ended = await fleet.worker(upto=State.TERMINATED)
    pod = (await fleet.row(going))["pod_id"]
    task, worker = await running(fleet)
    screens = {
        ("tasks", "list"): (task[:8], "In Progress", "travel_segment", worker[-8:], "61% frame 88 of 144"),
        ("tasks", "show", task): (task, worker, "61% frame 88 of 144"),
        ("explain", task): (worker, "WAITING ON worker", "61% frame 88 of 144", "attempt", "took", OOM, RAM),
        ("list",): (going, busy, "terminating", "RTX 4090", LONG, "3 workers", "$1.32"),
        ("list", "--all"): (ended, "ended", "ago: spawn_failed AUTH_FAILED"),
        ("status", going): (going, pod, LONG, "SSH: 213.173.110.7:12086", "ssh_auth"),
        ("explain", going): ("WAITING ON operator", LONG, "deadline", "spent: ", "fix: "),
        ("verify", going): ("ssh_auth", "AUTH_FAILED PermissionDenied", "heartbeat now", "not ready"),
        ("explain", "scaling"): ("leader: the test", "pool default", "RTX 4090, any data centre, secure cloud"),
        ("timeline", ended): ("ssh_auth attempt 1", "PermissionDenied", "in all"),
        ("doctor",): ("settings:", "database", "RUNPOD_API_KEY", "fail"),
        ("diagnose",): ("UNHEALTHY", "Missing critical environment variables", "Evidence", going, busy, "not tried"),
        ("health",): ("UNHEALTHY", "the test"),
        ("efficiency",): ("failed attempts", "7d", "$/task"),
        ("cost",): (going, busy, "booting"),
    }
    for command, essential in screens.items():
        text = await shown(width, *command)
        wide = [line for line in text.splitlines() if len(line.rstrip()) > width and not FIX.match(line)]
        assert not wide, (command, wide)
        assert not ISO.search(text), (command, text)
        lost = [words for words in essential if squeezed(words) not in squeezed(text)]
        assert not lost, (command, lost, text)
    copied = 'fix: set WORKER_JWT_SECRET="$(openssl rand -hex 32)", the same on every replica'
    assert copied in await shown(width, "doctor", "gateway"), "a fix is one line"
    assert "draining" in await shown(width, "cost"), "a column keeps its name in one piece"
    assert "OOM: oom: the kernel ended" in await shown(width, "tasks", "show", task), "a failure has room for its words"
