"""The agent's life: one start however often asked, a clean end however asked, nothing lost when the world is away."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.pods import agent_commands
from tests.process.worker.scripted import PATIENCE_S, TOKEN, Orchestrator, Pod, live, wait_for
from worker import protocol
from worker.agent import BATCH_S

WORK = """
import os, subprocess, time

def quick(params, task):
    return {"pid": os.getpid()}

def gated(params, task):
    # runs until the file `gate` appears; `begun` says that it runs
    helper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open(params["begun"], "w") as file:
        file.write(f"{os.getpid()} {helper.pid}\\n")
    while not os.path.exists(params["gate"]):
        time.sleep(0.01)
    helper.kill()
    return {"through": True}

def store(params, task):
    (task.dir / "x").write_bytes(b"x")
    while not os.path.exists(params["gate"]):
        time.sleep(0.01)
    return task.upload("x")
"""
HANDLERS = {name: f"work:{name}" for name in ("quick", "gated", "store")}
MOODS = ((503, "PGRST002"), (404, "PGRST202"), (404, "PGRST205"), (401, "PGRST303"), (500, "53400"), (500, "54000"))


@pytest.fixture
def pod(make_pod: Callable[..., Pod]) -> Pod:
    return make_pod({"work.py": WORK})


class Gate:
    """A handler that has begun and goes on when opened."""

    def __init__(self, folder: Path) -> None:
        self.params = {"gate": str(folder / "gate"), "begun": str(folder / "begun")}

    def begun(self) -> list[int]:
        """The handler's pids, once it runs."""
        begun = Path(self.params["begun"])
        pids = wait_for(lambda: begun.exists() and begun.read_text().endswith("\n") and begun.read_text())
        return [int(pid) for pid in pids.split()]

    def open(self) -> None:
        Path(self.params["gate"]).touch()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def test_start_is_idempotent(orchestrator: Orchestrator, pod: Pod) -> None:
    """Ten starts of one launch at once make one agent and print one line."""
    lines: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: lines.append(pod.start(HANDLERS))) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines.append(pod.start(HANDLERS))
    assert len(lines) == 11
    assert all(line == lines[0] for line in lines)
    assert lines[0]["code_sha256"] == pod.bundle.agent_sha
    assert (pod.run / "agent.pid").read_text() == f"{lines[0]['pid']}\n"
    assert f"run/{pod.nonce}" in Path(f"/proc/{lines[0]['pid']}/cmdline").read_text()
    orchestrator.until(lambda: orchestrator.count(protocol.CLAIM))
    assert orchestrator.count(protocol.REGISTER) == 1


def test_agent_is_detached(pod: Pod) -> None:
    """The agent has its own session, no terminal or pipe of the starter's, and its secrets are for its user only."""
    pid = pod.start(HANDLERS)["pid"]
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert fields[2:4] == [str(pid), str(pid)]
    targets = [str(Path(f"/proc/{pid}/fd/{fd}").readlink()) for fd in (0, 1, 2)]
    assert targets == ["/dev/null", *[str(pod.run / "logs" / "system.log")] * 2]
    assert (pod.run / "config.json").stat().st_mode & 0o777 == 0o600
    assert TOKEN not in Path(f"/proc/{pid}/environ").read_text()


def test_start_again_after_a_crash(orchestrator: Orchestrator, pod: Pod) -> None:
    """A launch whose agent was killed can be started again, with the configuration on disk, and claims again."""
    first = pod.start(HANDLERS)
    orchestrator.until(lambda: orchestrator.count(protocol.CLAIM))
    os.kill(first["pid"], signal.SIGKILL)
    wait_for(lambda: not live([first["pid"]]))
    status, second = pod.agent("start")
    assert (status, second["pid"] != first["pid"]) == (0, True)
    orchestrator.submit("again", "quick")
    orchestrator.completion("again")
    numbers = [call["p_claim_no"] for call in orchestrator.calls_of(protocol.CLAIM)]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"token": ""}, "BAD_CONFIG"),
        ({"api_url": "ftp://x"}, "BAD_CONFIG"),
        ({"heartbeat_s": "soon"}, "BAD_CONFIG"),
        ({"user_code": "0" * 64}, "STALE_CODE"),
        ({"setup_command": f"echo no package for {TOKEN}; exit 1"}, "SETUP_FAILED"),
    ],
)
def test_start_says_why_not(pod: Pod, config: dict[str, Any], code: str) -> None:
    """What cannot be started answers with one JSON line, a code, and status 1; no agent is left."""
    status, line = pod.agent("start", stdin=json.dumps(pod.config(HANDLERS, **config)))
    assert (status, line["code"]) == (1, code)
    assert TOKEN not in line["error"]
    assert pod.agent("probe")[1]["alive"] is False


def test_altered_agent_does_not_start(pod: Pod) -> None:
    """An agent file whose content is not what its name says is refused."""
    pyz = next((pod.home / ".orchestrator" / "code").glob("agent-*.pyz"))
    pyz.write_bytes(pyz.read_bytes() + b"\0")
    status, line = pod.agent("start", stdin=json.dumps(pod.config(HANDLERS)))
    assert (status, line["code"]) == (1, "STALE_CODE")
    pyz.write_bytes(pod.bundle.agent)


def test_setup_runs_once_per_pod(make_pod: Callable[..., Pod]) -> None:
    """The set-up command runs in the user's code before the first agent, and not again for the next launch."""
    pod = make_pod({"work.py": WORK, "requirements.txt": "x\n"})
    command = f"cat requirements.txt >> {pod.home}/ran"
    pod.start(HANDLERS, setup_command=command)
    pod.stop()
    pod.nonce = "launch-2"
    pod.start(HANDLERS, setup_command=command)
    assert (pod.home / "ran").read_text() == "x\n"
    pod.stop()


def test_setup_may_install_into_the_pods_python(make_pod: Callable[..., Pod]) -> None:
    """Pip may change an externally managed Python (PEP 668), unless WORKER_ENV says otherwise."""
    pod = make_pod({"work.py": WORK})
    command = f"echo $PIP_BREAK_SYSTEM_PACKAGES $PIP_DISABLE_PIP_VERSION_CHECK > {pod.home}/said"
    pod.start(HANDLERS, setup_command=command, env={"PIP_DISABLE_PIP_VERSION_CHECK": "0"})
    assert (pod.home / "said").read_text() == "1 0\n"
    pod.stop()


def test_drain_finishes_what_is_held(orchestrator: Orchestrator, pod: Pod, gate: Gate) -> None:
    """Told to drain, the agent finishes its batch, uploads included, claims nothing more and ends."""
    pod.start(HANDLERS, heartbeat_s=0.05, batch=2)
    with orchestrator.changed:
        orchestrator.submit("first", "store", gate.params)
        orchestrator.submit("second", "quick")
    orchestrator.until(lambda: len(orchestrator.running) == 2)
    orchestrator.tell(wanted=protocol.DRAIN)
    beats = orchestrator.count(protocol.HEARTBEAT)
    orchestrator.until(lambda: orchestrator.count(protocol.HEARTBEAT) > beats + 1)
    claims = orchestrator.count(protocol.CLAIM)
    orchestrator.submit("never", "quick")
    gate.open()
    orchestrator.completion("first")
    assert pod.ended() == "drained"
    assert orchestrator.count(protocol.CLAIM) == claims
    if orchestrator.released:  # on a busy machine the second one does not begin soon enough
        assert orchestrator.released == {"second": "not begun soon enough"}
    else:
        orchestrator.completion("second")


@pytest.mark.parametrize("wanted", [protocol.DRAIN, protocol.STOP])
def test_waiting_claim_is_broken_off(orchestrator: Orchestrator, pod: Pod, wanted: str) -> None:
    """An agent that waits for work hears over its heartbeat that it should go, and does not sit out the long poll."""
    pod.start(HANDLERS, claim_wait_s=2 * PATIENCE_S)
    orchestrator.until(lambda: orchestrator.count(protocol.CLAIM))
    with orchestrator.changed:  # not `tell`: the scripted claim would return at once
        orchestrator.wanted = wanted
    assert pod.ended() == ("drained" if wanted == protocol.DRAIN else "told to stop")


@pytest.mark.parametrize("how", ["wanted", "TERM"])
def test_stop_hands_back_what_is_held(orchestrator: Orchestrator, pod: Pod, gate: Gate, how: str) -> None:
    """Told to stop, by an answer or a signal, the agent ends the handler, releases begun and other tasks, and goes."""
    pod.start(HANDLERS, batch=2)
    with orchestrator.changed:
        orchestrator.submit("begun", "gated", gate.params)
        orchestrator.submit("waiting", "quick")
    pids = gate.begun()
    if how == "TERM":
        assert pod.stop() == {"stopped": True}
    else:
        orchestrator.tell(wanted=protocol.STOP)
    assert pod.ended() == ("SIGTERM received" if how == "TERM" else "told to stop")
    assert set(orchestrator.released) == {"begun", "waiting"}
    assert not orchestrator.failures
    assert not live(pids)


def test_stop_ends_even_a_frozen_agent(orchestrator: Orchestrator, pod: Pod, gate: Gate) -> None:
    """An agent that does not react within the grace is killed, and with it every process of its handlers."""
    line = pod.start(HANDLERS)
    orchestrator.submit("held", "gated", gate.params)
    pids = gate.begun()
    os.kill(line["pid"], signal.SIGSTOP)
    assert pod.stop(grace_s=0.3) == {"stopped": True}
    assert not live([line["pid"], *pids])
    assert pod.stop(grace_s=0.3) == {"stopped": True, "exit": "MANUAL"}  # and again is fine


def test_a_start_that_comes_after_the_stop_starts_nothing(orchestrator: Orchestrator, pod: Pod) -> None:
    """A call that hung on its way must not bring up an agent, or a line of log, on a pod that is being deleted."""
    assert pod.stop() == {"stopped": True}
    status, line = pod.agent("start", stdin=json.dumps(pod.config(HANDLERS)))
    assert (status, line["code"]) == (1, "NO_PROCESS")
    assert "was stopped" in line["error"]
    assert not (pod.run / "logs" / "agent.log").exists()
    assert orchestrator.calls == []


def test_a_stop_that_the_set_up_outlives_is_seen_by_the_agent(orchestrator: Orchestrator, pod: Pod) -> None:
    """Whatever the set-up command makes of its end, no agent comes after it."""
    stopped_meanwhile = f"touch {pod.run}/stopped"
    status, line = pod.agent("start", stdin=json.dumps(pod.config(HANDLERS, setup_command=stopped_meanwhile)))
    assert (status, line["code"]) == (1, "NO_PROCESS")
    assert pod.agent("probe")[1]["alive"] is False
    assert orchestrator.calls == []


@pytest.mark.parametrize(("status", "code"), [(404, protocol.UNKNOWN_WORKER), (403, protocol.BAD_TOKEN)])
def test_final_refusal_ends_the_agent(orchestrator: Orchestrator, pod: Pod, gate: Gate, status: int, code: str) -> None:
    """A worker that is unknown, or whose token was revoked, ends its handler and itself, and asks no more."""
    pod.start(HANDLERS)
    orchestrator.submit("held", "gated", gate.params)
    pids = gate.begun()
    orchestrator.tell(refusal=(status, code))
    assert code in pod.ended()
    assert not live(pids)
    said = len(orchestrator.calls)
    assert pod.stop() == {"stopped": True}
    assert len(orchestrator.calls) == said


def test_handlers_end_with_their_agent(orchestrator: Orchestrator, pod: Pod, gate: Gate) -> None:
    """When the agent is killed, its handlers notice and end with all they started, in whatever session."""
    line = pod.start(HANDLERS)
    orchestrator.submit("held", "gated", gate.params)
    pids = gate.begun()
    assert len(live(pids)) == 2
    os.kill(line["pid"], signal.SIGKILL)
    wait_for(lambda: not live(pids))


def test_a_call_is_repeated_after_a_server_error(orchestrator: Orchestrator, pod: Pod) -> None:
    """The answers of PostgREST 12 and 14 while a project starts, migrates or is full do not concern the worker."""
    pod.start(HANDLERS)
    orchestrator.until(lambda: orchestrator.count(protocol.HEARTBEAT) and orchestrator.count(protocol.CLAIM))

    def another(before: int) -> Callable[[], bool]:
        return lambda: orchestrator.count(protocol.HEARTBEAT) > before

    for mood in MOODS:
        orchestrator.tell(refusal=mood)
        orchestrator.until(another(orchestrator.count(protocol.HEARTBEAT)))
    orchestrator.tell(refusal=None)
    orchestrator.submit("t", "quick")
    orchestrator.completion("t")


def test_result_is_kept_while_the_orchestrator_is_away(orchestrator: Orchestrator, pod: Pod, gate: Gate) -> None:
    """A result that is ready while nobody answers is delivered once when somebody does again."""
    pod.start(HANDLERS)
    orchestrator.submit("patient", "gated", gate.params)
    gate.begun()
    orchestrator.down()
    gate.open()
    wait_for(lambda: len(pod.events("call_unanswered")) >= 2)
    orchestrator.up()
    assert orchestrator.completion("patient")["p_result_data"] == {"through": True}
    orchestrator.submit("next", "quick")
    orchestrator.completion("next")
    assert orchestrator.count(protocol.COMPLETE) + orchestrator.count(protocol.COMPLETE_AND_CLAIM) == 2


def test_result_is_kept_while_the_bucket_is_away(orchestrator: Orchestrator, pod: Pod) -> None:
    """Nobody can say whether the output is there: the agent asks again, and its heartbeats say what it waits for."""
    orchestrator.tell(bucket_away=True)
    pod.start(HANDLERS)
    orchestrator.submit("kept", "quick")
    orchestrator.until(
        lambda: any(
            "not yet acknowledged: try" in ((task.get("progress") or {}).get("message") or "")
            for beat in orchestrator.calls_of(protocol.HEARTBEAT)
            for task in beat["p_tasks"]
        )
    )
    orchestrator.tell(bucket_away=False)
    assert orchestrator.completion("kept")["p_attempt"] == 1
    assert "kept" not in orchestrator.failures


def test_cancel_reaches_a_task_whose_result_is_not_delivered(orchestrator: Orchestrator, pod: Pod) -> None:
    """A task whose result waits for the bucket can still be cancelled, and the next one has the slot."""
    orchestrator.tell(bucket_away=True)
    pod.start(HANDLERS)
    orchestrator.submit("unwanted", "quick")
    orchestrator.until(lambda: orchestrator.count(protocol.COMPLETE) > 1)
    orchestrator.tell(cancel={"unwanted"})
    assert orchestrator.failure("unwanted")["code"] == "CANCELLED"
    orchestrator.tell(bucket_away=False)
    orchestrator.submit("next", "quick")
    orchestrator.completion("next")


def test_upload_waits_for_the_orchestrator(orchestrator: Orchestrator, pod: Pod, gate: Gate) -> None:
    """A handler that wants to upload while nobody can sign for it waits, and the task succeeds."""
    pod.start(HANDLERS)
    orchestrator.submit("upload", "store", gate.params)
    orchestrator.until(lambda: orchestrator.running)
    orchestrator.down()
    gate.open()
    wait_for(lambda: pod.events("heartbeat_unanswered"))
    orchestrator.up()
    assert orchestrator.completion("upload")["p_output_location"] == "s3://bucket/x/outputs/upload/1/x"


def test_a_silent_agents_pod_shows_that_it_gets_no_answer(orchestrator: Orchestrator, pod: Pod) -> None:
    """The orchestrator's command is run on the pod: before the outage and during it."""
    pod.start(HANDLERS)
    orchestrator.until(lambda: orchestrator.count(protocol.HEARTBEAT))
    assert not pod.calls_unanswered()
    orchestrator.down()
    wait_for(pod.calls_unanswered)
    wait_for(lambda: pod.events("heartbeat_unanswered"))
    orchestrator.up()


def test_a_task_whose_release_got_no_answer_does_not_run_here(orchestrator: Orchestrator, pod: Pod, gate: Gate) -> None:
    """The call may have arrived, and another worker may have the task."""
    pod.start(HANDLERS, batch=2)
    with orchestrator.changed:
        orchestrator.submit("first", "gated", gate.params)
        orchestrator.submit("second", "quick")
    gate.begun()
    late = time.monotonic() + 1.5 * BATCH_S
    wait_for(lambda: time.monotonic() > late)
    orchestrator.lose_replies_to.extend([protocol.RELEASE] * 2)  # once more on a new connection
    gate.open()
    wait_for(lambda: pod.events("task_released"))
    assert pod.events("call_unanswered")
    assert orchestrator.released == {"second": "not begun soon enough"}
    assert "second" not in orchestrator.completed


def test_the_pod_of_an_agent_shows_that_its_registration_gets_no_answer(orchestrator: Orchestrator, pod: Pod) -> None:
    """The first call may have arrived, so its worker may be promoted before the agent has sent a heartbeat."""
    orchestrator.down()
    pod.start(HANDLERS)
    wait_for(pod.calls_unanswered)
    orchestrator.up()
    orchestrator.until(lambda: orchestrator.count(protocol.HEARTBEAT))


@pytest.mark.parametrize("refusal", [(200, "SIGN_IN"), (403, 403), (403, "Forbidden"), (409, "ERROR")])
def test_an_answer_of_something_else_is_no_answer(
    orchestrator: Orchestrator, pod: Pod, gate: Gate, refusal: tuple[int, Any]
) -> None:
    """A proxy's or a captive portal's JSON neither acknowledges a result nor counts as the orchestrator's voice."""
    pod.start(HANDLERS)
    orchestrator.submit("kept", "gated", gate.params)
    gate.begun()
    orchestrator.tell(refusal=refusal)
    wait_for(pod.calls_unanswered)
    gate.open()
    wait_for(lambda: pod.events("call_unanswered"))
    orchestrator.tell(refusal=None)
    orchestrator.completion("kept")
    assert "kept" not in orchestrator.failures


@pytest.mark.parametrize(
    ("text", "is_recent"),
    [
        (b"1700000000\n1700000060\n", True),
        (b"1700000060\n1700000000\n", True),  # the clock was set back a little
        (b"a login script's greeting\n1700000000\n1700000060\n", True),
        (b"1700000000\n1700000061\n", False),
        (b"\n1700000000\n", False),
        (b"1700000000\n", False),
        (b"", False),
        (b"yes\n1700000000\n", False),
        (b"1" * 20 + b"\n1700000000\n", False),
        ("\u0661\u0667\n17\n".encode(), False),
        (b"\xff\n17\n", False),
    ],
)
def test_a_pods_answer_about_its_calls_is_read_strictly(text: bytes, is_recent: bool) -> None:
    assert agent_commands.is_unanswered(text) is is_recent


@pytest.mark.parametrize("function", [protocol.REGISTER, protocol.CLAIM, protocol.COMPLETE_OUTPUT, protocol.GRANTS])
def test_lost_reply(orchestrator: Orchestrator, pod: Pod, gate: Gate, function: str) -> None:
    """A call whose reply was lost is made again, the same: a claim under its number, a completion of its attempt."""
    gate.open()
    orchestrator.lose_replies_to.append(function)
    orchestrator.submit("once", "store", gate.params)
    pod.start(HANDLERS)
    orchestrator.completion("once")
    orchestrator.until(lambda: orchestrator.count(protocol.CLAIM) >= 2)
    first, second = orchestrator.calls_of(function)[:2]
    assert first == second
    assert wait_for(lambda: pod.events("task_reported"))[0]["outcome"] in {"ok", "already"}
    assert len(pod.events("task_claimed")) == 1


def test_dead_mans_switch(orchestrator: Orchestrator, pod: Pod, gate: Gate) -> None:
    """When nobody has answered for the dead-man's time, the agent ends its handler and itself, and says why."""
    pod.start(HANDLERS, deadman_s=0.8, system_root=str(pod.home))
    orchestrator.submit("held", "gated", gate.params)
    pids = gate.begun()
    orchestrator.down()
    assert pod.ended().startswith("dead-man's switch: no answer for")
    assert not live(pids)
    assert pod.events("agent_ended")[0]["reason"].startswith("dead-man's switch")


def test_fenced_result_is_dropped(orchestrator: Orchestrator, pod: Pod, gate: Gate) -> None:
    """An agent that was frozen past its lease is told that its result is stale, drops it, and works on."""
    line = pod.start(HANDLERS, heartbeat_s=30)
    orchestrator.submit("stale", "gated", gate.params)
    gate.begun()
    os.kill(line["pid"], signal.SIGSTOP)
    gate.open()
    orchestrator.tell(overtaken={"stale"})
    os.kill(line["pid"], signal.SIGCONT)
    orchestrator.submit("fresh", "quick")
    orchestrator.completion("fresh")
    assert "stale" not in orchestrator.completed
    said = [call["p_results"] for call in orchestrator.calls_of(protocol.COMPLETE_AND_CLAIM)]
    assert [[one["task_id"] for one in results] for results in said] == [["stale"], ["fresh"]]
    assert pod.events("task_reported")[0]["outcome"] == "fenced"


def test_freeze_longer_than_the_dead_mans_time(orchestrator: Orchestrator, pod: Pod) -> None:
    """A pod frozen for longer than the dead-man's time asks first, and goes on when it is answered."""
    line = pod.start(HANDLERS, deadman_s=0.3, heartbeat_s=0.1, claim_wait_s=0.2)
    orchestrator.until(lambda: orchestrator.count(protocol.CLAIM))
    os.kill(line["pid"], signal.SIGSTOP)
    frozen = time.monotonic()
    wait_for(lambda: time.monotonic() - frozen > 0.6)
    os.kill(line["pid"], signal.SIGCONT)
    orchestrator.submit("after", "quick")
    orchestrator.completion("after")


PROGRAM = """
import os, pathlib, signal, sys, time
token = pathlib.Path(os.environ["WORKER_TOKEN_FILE"]).read_text()
print("id", os.environ["WORKER_ID"], "api", os.environ["WORKER_API_URL"][:7], "token", len(token))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
sys.exit(5)
"""


def test_own_program_is_supervised(orchestrator: Orchestrator, make_pod: Callable[..., Pod], gate: Gate) -> None:
    """A program of one's own gets identity and a token file, is kept by heartbeats, and its end is reported."""
    pod = make_pod({"program.py": PROGRAM})
    pod.start(start_command=f"exec {pod.python} program.py {gate.params['gate']}")
    beats = orchestrator.calls_of
    orchestrator.until(lambda: {"program": {"running": True}} in [x["p_health"] for x in beats(protocol.HEARTBEAT)])
    wait_for(lambda: "id gpu-2026" in pod.log("handler"))
    assert f"api http:// token {len(TOKEN)}" in pod.log("handler")
    gate.open()
    assert pod.ended() == "the handler's process ended with status 5"
    last = orchestrator.calls_of(protocol.HEARTBEAT)[-1]["p_health"]["program"]
    assert last == {"running": False, "status": 5, "exit_class": "exception"}
    assert orchestrator.count(protocol.CLAIM) == 0


@pytest.mark.parametrize("wanted", [protocol.DRAIN, protocol.STOP])
def test_own_program_is_asked_to_end(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], gate: Gate, wanted: str
) -> None:
    """Drain and stop reach a program of one's own as SIGTERM."""
    pod = make_pod({"program.py": PROGRAM})
    pod.start(start_command=f"{pod.python} program.py {gate.params['gate']}; echo ended with $?")
    wait_for(lambda: "id gpu-2026" in pod.log("handler"))
    orchestrator.tell(wanted=wanted)
    assert pod.ended() == ("drained" if wanted == protocol.DRAIN else "told to stop")
