"""`explain`, `timeline` and `cost` as processes: the words on stdout, JSON with its version, the exit codes."""

import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.states import Stage, State
from tests.process.cli.builders import Cli, Fleet
from tests.process.emulator.build import emulated

ANSI = "\x1b["


async def test_a_stuck_worker_is_explained_with_everything_that_operators_ask(cli: Cli, fleet: Fleet) -> None:
    """By its id, the end of it, or its pod's."""
    worker = await fleet.worker(upto=State.TERMINATING)
    pod = (await fleet.row(worker))["pod_id"]
    ran = await cli("explain", pod)
    assert (ran.code, ran.err) == (0, "")
    assert ANSI not in ran.out
    head, waiting, ending, code, *rest = ran.out.splitlines()
    assert re.fullmatch(rf"{worker}  terminating \d+s  stage deleting", head)
    assert waiting.startswith("WAITING ON operator: the delete call (AUTH_FAILED)")
    assert ending == "ENDING spawn_failed: Its bring-up did not succeed."
    assert code == "ENDING AUTH_FAILED: The pod refuses our SSH key."
    text = "\n".join(rest)
    for words in (
        "since ",
        "deadline ",
        "then: ",
        "spent: $",
        "proof: ssh_auth failed (PermissionDenied)",
        "fix: set ",
    ):
        assert words in text, words


async def test_what_was_proven_of_a_worker_is_told_rung_by_rung(cli: Cli, fleet: Fleet) -> None:
    """The last attempt at each; what is not come so far is neither proven nor failed. Exit 1 until all holds."""
    worker = await fleet.worker(upto=State.TERMINATING)
    ran = await cli("verify", worker)
    assert (ran.code, ran.err) == (1, "")
    assert re.search(r"^✗ +ssh_auth +failed at .*: AUTH_FAILED PermissionDenied$", ran.out, re.MULTILINE), ran.out
    assert re.search(r"^– +deploy +not come so far$", ran.out, re.MULTILINE), ran.out
    assert ran.out.splitlines()[-1] == f"not proven   fix: python -m orchestrator explain {worker}"
    assert re.search(r"^✓ +intent +recorded at 20", ran.out, re.MULTILINE), ran.out
    assert re.search(r"^– +gpu_fabric +not needed: one GPU$", ran.out, re.MULTILINE), ran.out
    assert (await cli("verify", "gpu-none")).code == 3


async def test_a_program_gets_the_same_explanation(cli: Cli, fleet: Fleet) -> None:
    """Every field by name, under a version."""
    worker = await fleet.worker()
    told = (await cli("explain", worker, "--json")).json()
    assert (told["kind"], told["worker_id"], told["state"], told["stage"]) == ("worker", worker, "spawning", "ssh_auth")
    assert told["who"] == "operator"
    assert {"what", "since", "deadline", "then", "holding_up", "spent_usd", "proof", "usual", "fix"} <= set(told)


async def test_a_task_is_explained_by_its_id(cli: Cli, fleet: Fleet) -> None:
    """And what it depends on."""
    (first,) = await fleet.store.submit([{"task_type": "segment"}])
    (second,) = await fleet.store.submit([{"task_type": "stitch", "depends_on": [first["id"]]}])
    ran = await cli("explain", second["id"])
    assert f"WAITING ON worker: 1 of 1 dependencies: segment {first['id']} is Queued" in ran.out
    assert f"fix: python -m orchestrator explain {first['id']}" in ran.out
    assert (await cli("explain", str(uuid.uuid4()))).code == 3


async def test_scaling_is_explained_while_runpod_is_away(cli: Cli, fleet: Fleet) -> None:
    """The arithmetic with what is now, what blocks it, the last decision, every offer."""
    await fleet.store.submit([{"task_type": "t", "pool": "default"} for _ in range(3)])
    await fleet.store.note_offer(fleet.term, "NVIDIA GeForce RTX 4090|EU-RO-1|SECURE", refused=True, code="NO_CAPACITY")
    decision: dict[str, Any] = {"pool": "default", "rule": "the old sum", "target": 0, "inputs": {}, "actions": []}
    await fleet.store.record_decision(fleet.term, {**decision, "blocked": ["1 spawn(s): none to be had"]})
    where = {"RUNPOD_DATA_CENTERS": "EU-RO-1,US-KS-2", "MAX_ACTIVE_GPUS": "0"}
    ran = await cli("explain", "scaling", **where)
    assert ran.code == 0
    assert ran.lines_with("leader: the test since ")
    assert ran.lines_with("now: ")
    assert "MAX_ACTIVE_GPUS=0" in ran.lines_with("BLOCKED, WAITING ON operator")[0]
    assert ran.lines_with("last decision ")[0].endswith("the old sum")
    assert "cooling" in ran.lines_with("EU-RO-1|SECURE")[0]
    assert "free" in ran.lines_with("US-KS-2|SECURE")[0]
    told = (await cli("explain", "scaling", "--json", **where)).json()
    assert [offer["state"] for offer in told["pools"][0]["offers"]] == ["cooling", "free"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("NO_CAPACITY", "NO_CAPACITY: The provider has no such GPU to rent now."),
        ("XID_79", "Xid 79: the GPU has fallen off the bus."),
        ("idle_timeout", "idle_timeout: There was nothing to do for it."),
        ("E010", "E010: the database does not answer (exit status 1)"),
    ],
)
async def test_a_code_is_explained_without_a_database(cli: Cli, word: str, says: str) -> None:
    """As it stands in a row or in an error."""
    ran = await cli("explain", word, DATABASE_URL=None)
    assert ran.code == 0
    assert says in ran.out
    assert "fix: " in ran.out
    assert (await cli("explain", word, "--json", DATABASE_URL=None)).json()["kind"] in {"code", "error"}


@pytest.mark.parametrize(("word", "error"), [("gpu-none", "E040"), ("E999", "E042"), ("NO_SUCH_CODE", "E042")])
async def test_what_is_not_there_cannot_be_explained(cli: Cli, fleet: Fleet, word: str, error: str) -> None:
    """Exit 3, in three lines."""
    ran = await cli("explain", word)
    assert ran.code == 3
    assert [line.split(" ")[0] for line in ran.err.splitlines()] == [f"error[{error}]:", "why:", "fix:"]


async def test_a_timeline_shows_everything_in_order(cli: Cli, fleet: Fleet) -> None:
    """For a person and for a program."""
    worker = await fleet.worker(upto=State.TERMINATED)
    ran = await cli("timeline", worker)
    order = [ran.out.index(word) for word in ("spawning", "pod_running", "ssh_auth attempt 1", "terminating", "in all")]
    assert (ran.code, order) == (0, sorted(order))
    told = (await cli("timeline", worker, "--json")).json()
    assert [entry["what"] for entry in told["entries"]][:3] == ["spawning", "pod_running", "ssh_auth"]
    assert {state["state"] for state in told["states"]} == {"spawning", "terminating"}
    assert (await cli("timeline", "gpu-none")).code == 3


async def test_the_cost_is_laid_beside_runpods_bill(cli: Cli, fleet: Fleet, tmp_path: Path) -> None:
    """Of a real pod: what we booked and what it was charged lie a moment apart."""
    async with emulated(tmp_path) as api:
        await api.emulator.control("POST", "/settings", {"offers": [{"price_usd_per_hour": 360.0}]})
        pod = await api.create()
        worker = f"gpu-{uuid.uuid4().hex[:8]}"
        await fleet.store.spawn(fleet.term, {"id": worker, "gpu_type": "GPU", "deadline_s": 600})
        fields = {"pod_id": pod["id"], "price_usd_per_hour": pod["cost"]}
        await fleet.move(worker, State.SPAWNING, stage=Stage.POD_RUNNING, **fields)
        await api.status(pod["id"], "RUNNING")
        await fleet.move(worker, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED)
        await api.call("DELETE", f"/v2/pods/{pod['id']}", status=204)
        await fleet.move(worker, State.ACTIVE, State.TERMINATING, stage=Stage.DELETING, exit_cause="manual")
        await fleet.move(worker, State.TERMINATING, State.TERMINATED, stage=Stage.GONE)
        await api.create("stranger")
        known = {"RUNPOD_API_KEY": api.emulator.api_key, "RUNPOD_API_BASE_URL": api.emulator.url}
        told = (await cli("cost", "--json", **known)).json()
        ran = await cli("cost", "--by", "kind", **known)
    (line,) = told["lines"]
    assert line["name"] == worker
    bill = {row["pod_id"]: row for row in told["bill"]["pods"]}
    assert bill[pod["id"]]["worker_id"] == worker
    assert bill[pod["id"]]["theirs_usd"] > 0
    assert abs(bill[pod["id"]]["difference_usd"]) < 0.1  # a second
    assert ran.lines_with("booting")
    assert ran.lines_with(pod["id"])
    assert "for 1 pod(s) that no worker in these books names" in ran.err


async def test_the_cost_is_told_without_runpod_too(cli: Cli, fleet: Fleet) -> None:
    """And says why there is no bill beside it."""
    await fleet.worker()
    ran = await cli("cost", "--since", "7d")
    assert ran.code == 0
    assert "RunPod's bill: not asked: RUNPOD_API_KEY is not set" in ran.err
    told = (await cli("cost", "--by", "type", "--json")).json()
    assert (told["bill"], told["lines"]) == (None, [])
    assert (await cli("cost", "--since", "soon")).code == 2


async def test_without_colour_off_a_terminal(cli: Cli, fleet: Fleet) -> None:
    """Nothing that would steer a terminal, even when colour is asked for by the environment's terminal."""
    worker = await fleet.worker()
    for command in (["explain", worker], ["timeline", worker]):
        ran = await cli(*command, TERM="xterm-256color", COLORTERM="truecolor")
        assert ANSI not in ran.out + ran.err
