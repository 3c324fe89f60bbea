"""`explain`, `timeline` and `cost` as processes: the words on stdout, JSON with its version, the exit codes."""

import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.states import Stage, State
from tests.process.cli.builders import Cli, Fleet
from tests.process.emulator.build import emulated

ANSI = "\x1b["


async def test_a_task_that_waits_for_the_clock_says_when_it_starts(cli: Cli, fleet: Fleet) -> None:
    """It waits for no party."""
    later = {"task_type": "t", "params": {}, "run_after": "2099-01-01T00:00:00Z"}
    (task,) = await fleet.store.submit([later])
    ran = await cli("explain", str(task["id"]))
    assert re.search(r"^STARTS in \d+d\d\dh: it was submitted for later$", ran.out, re.MULTILINE), ran.out
    assert "nobody" not in ran.out


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
        "spent: ",
        "evidence: ssh_auth failed (PermissionDenied)",
        "fix: set ",
    ):
        assert words in text, words


async def test_the_end_of_a_worker_without_a_pod_speaks_of_no_delete(cli: Cli, fleet: Fleet) -> None:
    """Its create call got no answer: only a pod that appears would be deleted."""
    worker = await fleet.worker(upto=State.TERMINATING)
    texts = {True: "the delete is repeated until its pod is gone", False: "a pod of its name that appears"}
    for pod, then in texts.items():
        if not pod:
            await fleet.move(worker, State.TERMINATING, stage=Stage.DELETING, pod_id=None)
        assert f"then: {then}" in (await cli("explain", worker)).out


async def test_explain_shows_the_bring_up_of_a_worker_stage_by_stage(cli: Cli, fleet: Fleet) -> None:
    """The last attempt at each; what was not reached yet has neither succeeded nor failed. Exit 1 until all holds."""
    worker = await fleet.worker(upto=State.TERMINATING)
    ran = await cli("verify", worker)
    assert (ran.code, ran.err) == (1, "")
    assert re.search(r"^✗ +ssh_auth +failed at .*: AUTH_FAILED PermissionDenied$", ran.out, re.MULTILINE), ran.out
    assert re.search(r"^– +deploy +not reached yet$", ran.out, re.MULTILINE), ran.out
    assert ran.out.splitlines()[-1] == f"not ready   fix: python -m orchestrator explain {worker}"
    assert re.search(r"^✓ +intent +recorded at 20", ran.out, re.MULTILINE), ran.out
    assert re.search(r"^– +gpu_fabric +not needed: one GPU$", ran.out, re.MULTILINE), ran.out
    assert (await cli("verify", "gpu-none")).code == 3


async def test_a_program_gets_the_same_explanation(cli: Cli, fleet: Fleet) -> None:
    """Every field by name, under a version."""
    worker = await fleet.worker()
    explanation = (await cli("explain", worker, "--json")).json()
    assert (explanation["kind"], explanation["worker_id"], explanation["state"], explanation["stage"]) == (
        "worker",
        worker,
        "spawning",
        "ssh_auth",
    )
    assert explanation["who"] == "operator"
    assert {"what", "since", "deadline", "then", "holding_up", "spent_usd", "evidence", "usual", "fix"} <= set(
        explanation
    )


async def test_a_task_is_explained_by_its_id(cli: Cli, fleet: Fleet) -> None:
    """And what it depends on."""
    (first,) = await fleet.store.submit([{"task_type": "segment"}])
    (second,) = await fleet.store.submit([{"task_type": "stitch", "depends_on": [first["id"]]}])
    ran = await cli("explain", second["id"])
    assert f"WAITING ON worker: 1 of 1 dependencies: segment {first['id']} is Queued" in ran.out
    assert f"fix: python -m orchestrator explain {first['id']}" in ran.out
    assert (await cli("explain", str(uuid.uuid4()))).code == 3


async def test_a_word_that_is_no_worker_is_looked_up(cli: Cli, fleet: Fleet) -> None:
    """A single word may be a worker's id."""
    ran = await cli("explain", "matplotlib")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "U37: A figure is too large"), ran.err


async def test_a_worker_that_runs_a_task_waits_for_no_other(cli: Cli, fleet: Fleet) -> None:
    """Its row still says that it waited for tasks before."""
    worker = await fleet.worker(upto=State.ACTIVE)
    await fleet.move(worker, State.ACTIVE, stage=Stage.PROMOTED, waiting_on="worker", waiting_for="tasks")
    await fleet.store.submit([{"task_type": "t", "params": {}, "priority": 1}])
    name = {"p_worker_id": worker, "p_nonce": "boot-1"}
    await fleet.db.call("worker_register", **name, p_agent={"protocol": 1})
    await fleet.db.call("worker_claim", **name, p_claim_no=1, p_batch=1, p_wait_s=0)
    status, listed = await cli("status", worker), await cli("list")
    assert re.search(r"^waiting on +worker$", status.out, re.MULTILINE), status.out
    (line,) = listed.lines_with(worker)
    assert line.endswith("  works on 1 task")


async def test_a_failed_task_quotes_the_knowledge_base(
    cli: Cli, shipping_fleet: Fleet, s3_environment: Mapping[str, str]
) -> None:
    """What the end of its own log matches; the log of the task before it says nothing about it."""
    fleet, worker = shipping_fleet, await shipping_fleet.worker(upto=State.ACTIVE)
    await fleet.store.submit([{"task_type": f"t-{worker}", "priority": 1, "max_attempts": 1}])
    name = {"p_worker_id": worker, "p_nonce": "boot-1"}
    await fleet.db.call("worker_register", **name, p_agent={"protocol": 1})
    [task] = (await fleet.db.call("worker_claim", **name, p_claim_no=1, p_batch=1, p_wait_s=0))["tasks"]
    failure = {"code": "HANDLER_ERROR", "message": "it failed", "retryable": False}
    about = {"p_task_id": task["id"], "p_attempt": task["attempt"], "p_failure": failure}
    await fleet.db.call("worker_fail", **name, **about)
    before = b"--- task x attempt 1 begins\nRuntimeError: iostream error\n--- task x attempt 1 ends: failed\n"
    own = f"--- task {task['id']} attempt 1 begins: a:b\nloading\nValueError: must be less than 2^16\n".encode()
    await fleet.ship(worker, "handler", 0, 0, before + own)
    ran = await cli("explain", task["id"], **s3_environment)
    assert ran.code == 0, ran.err
    assert "KNOWN U37: A figure is too large: ValueError: must be less than 2^16" in ran.out
    assert "U6" not in ran.out
    explanation = (await cli("explain", task["id"], "--json", **s3_environment)).json()
    assert [one["id"] for one in explanation["known"]] == ["U37"]


@pytest.mark.parametrize(
    ("typed", "meant"), [("NO_CAPACITI", "NO_CAPACITY"), ("scalling", "scaling"), ("autoscaling", "scaling")]
)
async def test_a_misspelt_subject_gets_the_similar_word(cli: Cli, typed: str, meant: str) -> None:
    """The word alone, as it can be typed."""
    ran = await cli("explain", typed)
    assert ran.code == 3
    assert f'Did you mean "{meant}"?' in ran.err


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
    assert "cooling" in ran.lines_with("EU-RO-1, secure cloud")[0]
    assert "free" in ran.lines_with("US-KS-2, secure cloud")[0]
    narrow = await cli("explain", "scaling", **where, COLUMNS="80")
    assert narrow.lines_with("  NO_CAPACITY: The provider has no such GPU to rent now.")
    assert max(map(len, narrow.lines_with("EU-RO-1, secure cloud"))) <= 80
    explanation = (await cli("explain", "scaling", "--json", **where)).json()
    assert [offer["state"] for offer in explanation["pools"][0]["offers"]] == ["cooling", "free"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("NO_CAPACITY", "NO_CAPACITY: The provider has no such GPU to rent now."),
        ("XID_79", "Xid 79: the GPU has fallen off the bus."),
        ("idle_timeout", "idle_timeout: There was nothing to do for it."),
        ("E010", "E010: the database does not answer (exit status 1)"),
        ("DISK_TIGHT", "DISK_TIGHT: The pod's disk is 90 % full."),
        ("U22", "U22: The GPU has failed"),
        ("U36", "U36: Equal runs give slightly different results"),
        ("must be less than 2^16", "U37: A figure is too large"),
    ],
)
async def test_a_code_is_explained_without_a_database(cli: Cli, word: str, says: str) -> None:
    """As it stands in a row or in an error."""
    ran = await cli("explain", word, DATABASE_URL=None)
    assert ran.code == 0
    assert says in ran.out
    assert "fix: " in ran.out
    assert (await cli("explain", word, "--json", DATABASE_URL=None)).json()["kind"] in {"code", "error", "known"}


@pytest.mark.parametrize(
    ("word", "error"),
    [("gpu-none", "E040"), ("E999", "E042"), ("NO_SUCH_CODE", "E042"), ("U44", "E042"), ("no such word", "E042")],
)
async def test_what_is_not_there_cannot_be_explained(cli: Cli, fleet: Fleet, word: str, error: str) -> None:
    """Exit 3, in three lines."""
    ran = await cli("explain", word)
    assert ran.code == 3
    assert [line.split(" ")[0] for line in ran.err.splitlines()] == [f"error[{error}]:", "why:", "fix:"]
    assert "explain NO_CAPACITY" not in ran.err  # another thing than what was asked for


async def test_a_timeline_shows_everything_in_order(cli: Cli, fleet: Fleet) -> None:
    """For a person and for a program."""
    worker = await fleet.worker(upto=State.TERMINATED)
    ran = await cli("timeline", worker)
    order = [ran.out.index(word) for word in ("spawning", "pod_running", "ssh_auth attempt 1", "terminating", "in all")]
    assert (ran.code, order) == (0, sorted(order))
    explanation = (await cli("timeline", worker, "--json")).json()
    assert [entry["what"] for entry in explanation["entries"]][:3] == ["spawning", "pod_running", "ssh_auth"]
    assert {state["state"] for state in explanation["states"]} == {"spawning", "terminating"}
    assert (await cli("timeline", "gpu-none")).code == 3


async def test_the_cost_is_compared_with_runpods_bill(cli: Cli, fleet: Fleet, tmp_path: Path) -> None:
    """Of a real pod: what we booked and what it was charged lie a moment apart."""
    async with emulated(tmp_path) as api:
        await api.emulator.control("POST", "/settings", {"offers": [{"price_usd_per_hour": 360.0}]})
        began_s = time.monotonic()
        pod = await api.create()
        worker = f"gpu-{uuid.uuid4().hex[:8]}"
        await fleet.store.spawn(fleet.term, {"id": worker, "gpu_type": "GPU", "deadline_s": 600})
        fields = {"pod_id": pod["id"], "price_usd_per_hour": pod["cost"]}
        await fleet.move(worker, State.SPAWNING, stage=Stage.POD_RUNNING, **fields)
        await api.status(pod["id"], "RUNNING")
        starting_s = time.monotonic() - began_s
        await fleet.move(worker, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED)
        ending_s = time.monotonic()
        await api.call("DELETE", f"/v2/pods/{pod['id']}", status=204)
        await fleet.move(worker, State.ACTIVE, State.TERMINATING, stage=Stage.DELETING, exit_cause="manual")
        await fleet.move(worker, State.TERMINATING, State.TERMINATED, stage=Stage.GONE)
        ending_s = time.monotonic() - ending_s
        await api.create("outsider")
        known = {"RUNPOD_API_KEY": api.emulator.api_key, "RUNPOD_API_BASE_URL": api.emulator.url}
        explanation = (await cli("cost", "--json", **known)).json()
        ran = await cli("cost", "--by", "kind", **known)
    (line,) = explanation["lines"]
    assert line["name"] == worker
    bill = {row["pod_id"]: row for row in explanation["bill"]["pods"]}
    assert bill[pod["id"]]["worker_id"] == worker
    assert bill[pod["id"]]["theirs_usd"] > 0
    most_usd = 0.1 * (starting_s + ending_s)  # both began in the first span, and ended in the second
    assert abs(bill[pod["id"]]["difference_usd"]) <= most_usd + 0.01  # and each is rounded
    assert ran.lines_with("booting")
    assert ran.lines_with(pod["id"])
    assert "for 1 pod without a cost in our records of these hours" in ran.err


async def test_the_cost_is_shown_without_runpod_too(cli: Cli, fleet: Fleet) -> None:
    """It says why there is no bill."""
    await fleet.worker()
    ran = await cli("cost", "--since", "7d")
    assert ran.code == 0
    assert "RunPod's bill: not asked: RUNPOD_API_KEY is not set" in ran.err
    explanation = (await cli("cost", "--by", "type", "--json")).json()
    assert (explanation["bill"], explanation["lines"]) == (None, [])
    assert "No task ran: workers started, waited or ended." in (await cli("cost", "--by", "type")).out
    assert (await cli("cost", "--since", "soon")).code == 2


async def test_without_colour_off_a_terminal(cli: Cli, fleet: Fleet) -> None:
    """Nothing that would steer a terminal, even when colour is asked for by the environment's terminal."""
    worker = await fleet.worker()
    for command in (["explain", worker], ["timeline", worker]):
        ran = await cli(*command, TERM="xterm-256color", COLORTERM="truecolor")
        assert ANSI not in ran.out + ran.err
