"""`explain <worker>`: for every state and every failure, whom it waits for and why, in the operators' form."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.cli.worker_rows import waits_for
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import SILENCES, FailureCode
from orchestrator.core.silence import CALLS_UNANSWERED
from orchestrator.core.stages import BRING_UP, STAGE_SPECS, StageSpec
from orchestrator.core.states import Stage, State
from orchestrator.core.worker_metadata import metadata
from orchestrator.diagnostics import causes, heartbeat_loss
from orchestrator.diagnostics.early_warnings import BUSY_BEAT_S, EARLY_S, STALLED
from orchestrator.diagnostics.workers import WANTED
from orchestrator.ports import LEASE_TTL_S
from tests.db.conformance.builders import FLEET, Fleet
from tests.db.diagnostics.build import GPU, POD, attempt, bring_up, explained, give_up, promoted, shown, times
from worker.heartbeat import ASK_S

SEEN: Mapping[str, Any] = {
    "local": "10.1.2.3:51422",
    "remote": "213.173.110.7:12086",
    "key": "SHA256:abc",
    "cause": "pair_mismatch",
}


async def test_a_stuck_worker_is_explained_in_five_lines(fleet: Fleet) -> None:
    """The form that operators know: head, whom it waits for, clocks and money, proof, what is usual and the fix."""
    for seconds in (100, 160, 360):
        await promoted(fleet, seconds)
    worker = await bring_up(fleet, Stage.SSH_AUTH)
    await fleet.submit(count=4)
    for _ in range(3):
        await attempt(fleet, worker, Stage.SSH_AUTH, code="AUTH_FAILED", kind="AuthFailed", error="it says no", **SEEN)
    head, waiting, clocks, proof, usual = await shown(fleet, worker)
    assert head == f"{worker}  spawning 2m06s  stage ssh_auth (attempt 3 of 6)"
    mismatch = "RUNPOD_SSH_PRIVATE_KEY does not match the public key on the pod"
    assert waiting == f"WAITING ON operator: {mismatch} (AUTH_FAILED/PAIR_MISMATCH)"
    assert clocks.split("   ") == [
        "since 12:12:22",
        "deadline 12:13:05",
        "then: terminate, respawn: another pod is rented while there is work",
        "holding up: 4 queued tasks",
        "spent: $0.03",
    ]
    assert proof.startswith(
        "evidence: ssh_auth failed 3 times (AuthFailed): 10.1.2.3:51422 -> 213.173.110.7:12086, it says"
    )
    assert usual.split("   ") == [
        "usual for NVIDIA GeForce RTX 4090: p50 2m40s, p95 5m40s (n=3)",
        'fix: set RUNPOD_SSH_PUBLIC_KEY="$(ssh-keygen -y -f ~/.ssh/id_ed25519)"',
    ]


@pytest.mark.parametrize("spec", BRING_UP, ids=lambda spec: spec.stage)
async def test_a_starting_worker_says_what_it_waits_for_and_what_then(fleet: Fleet, spec: StageSpec) -> None:
    """At each stage, although nothing has gone wrong yet."""
    stage = spec.stage
    worker = await bring_up(fleet, stage)
    explanation = await explained(fleet, worker)
    assert (explanation.who, explanation.code) == (STAGE_SPECS[stage].waiting_on, None)
    assert explanation.what == WANTED[stage]
    assert explanation.then == f"{STAGE_SPECS[stage].overdue}: terminate, respawn"
    assert explanation.deadline is not None
    assert times([explanation.deadline]) == [fleet.now + timedelta(seconds=STAGE_SPECS[stage].deadline_s)]


async def listed(fleet: Fleet) -> list[Any]:
    """The rows of `list`."""
    return list((await fleet.call("fleet_workers", p_fleet=FLEET, p_all=False, p_limit=10))["workers"])


@pytest.mark.parametrize("code", FailureCode)
async def test_each_failure_is_named_while_it_holds_a_worker_up(fleet: Fleet, code: FailureCode) -> None:
    """The code, its sentence, who must act, and the fix. `list` says the same, until an attempt succeeds."""
    worker = await bring_up(fleet, Stage.TCP)
    await attempt(fleet, worker, Stage.TCP, "lost", code, error="something was seen")
    explanation, cause = await explained(fleet, worker), causes.of(code)
    assert cause is not None
    assert (explanation.code, explanation.who, explanation.then) == (code, cause.who, cause.then)
    assert explanation.what == cause.means.rstrip(".")
    assert explanation.fix == cause.about(worker=worker).fix
    assert explanation.evidence == "tcp lost: something was seen"
    (row,) = await listed(fleet)
    assert waits_for(row) == f"{explanation.who}: {code}"
    await attempt(fleet, worker, Stage.TCP, "ok")
    (row,) = await listed(fleet)
    assert (waits_for(row), (await explained(fleet, worker)).code) == (STAGE_SPECS[Stage.TCP].waiting_on, None)


@pytest.mark.parametrize("code", [*FailureCode, "XID_79"])
async def test_each_failure_is_named_once_it_has_ended_a_worker(fleet: Fleet, code: str) -> None:
    """In the text: why it ended, what it cost, the sentence and the fix."""
    worker = await bring_up(fleet, Stage.TCP)
    await attempt(fleet, worker, Stage.TCP, code=code, error="something was seen")
    await give_up(fleet, worker, code)
    await fleet.move(worker, State.TERMINATING, State.TERMINATED)
    fleet.wait(3600)
    text, cause = "\n".join(await shown(fleet, worker)), causes.of(code)
    assert cause is not None
    assert f"{worker}  terminated 1h00m ago  lived 2m02s  last stage gone" in text
    assert "ENDED spawn_failed: Its bring-up did not succeed." in text
    assert f"ENDED {code}: {cause.means}" in text
    assert f"ENDED recorded reason: {code}: it did not work" in text
    assert "spent: $0.02 (booting $0.02" in text
    assert f"fix: {cause.about(worker=worker).fix}" in text
    assert "evidence: tcp failed: something was seen" in text


@pytest.mark.parametrize("cause", ExitCause)
async def test_each_exit_cause_is_explained(fleet: Fleet, cause: ExitCause) -> None:
    """Of a worker that ran and ended for it; with what was said when its end began, and not in a later step of it."""
    agent = await fleet.agent()
    await fleet.end(agent.id, State.ACTIVE, cause)
    await fleet.move(agent.id, State.TERMINATING, stage=Stage.DELETING, reason="its logs are safe")
    await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    explanation, meaning = await explained(fleet, agent.id), causes.ending(cause)
    assert meaning is not None
    assert (explanation.ended[0], explanation.ended[-1]) == (f"{cause}: {meaning.means}", "recorded reason: test")
    assert (explanation.who, explanation.then) == ("nobody", meaning.then)


LOOKED_AT = "2026-11-21T12:00:00+00:00"
LOOKS: Mapping[str, tuple[Any, str]] = {  # what the final snapshot shows: the proof
    "": (None, "no heartbeat for 6 s"),
    "KILLED": (
        {"known": True, "agent": {"exit_class": "killed", "pid": 17}, "cgroup": {"memory_events": {"oom_kill": 1}}},
        f"final snapshot {LOOKED_AT}: agent killed, oom_kill 1, pid 17",
    ),
    "ENDED": (
        {"known": True, "agent": {"exit_class": "ended", "pid": 17, "done": {"reason": "crashed", "status": 1}}},
        f"final snapshot {LOOKED_AT}: agent ended, pid 17, reason crashed, status 1",
    ),
    "RUNNING": (
        {"known": True, "agent": {"exit_class": "running", "pid": 17, "done": None}},
        f"final snapshot {LOOKED_AT}: agent running, pid 17",
    ),
    "UNREACHED": ({"known": False, "reached": False, "why": "no answer"}, f"final snapshot {LOOKED_AT}: no answer"),
}


@pytest.mark.parametrize("subcause", SILENCES)
async def test_the_explanation_of_a_lost_worker_has_the_final_snapshot(fleet: Fleet, subcause: str) -> None:
    """And not what a bring-up's missing heartbeat means; the proof is the look, or what was said then."""
    agent, (look, proof) = await fleet.agent(), LOOKS[subcause]
    await attempt(fleet, agent.id, Stage.HEARTBEAT, "timeout", "NO_HEARTBEAT", error="none came, long ago")
    lost: dict[str, Any] = {
        "exit_cause": "heartbeat_lost",
        "failure_code": "NO_HEARTBEAT",
        "waiting_on": "orchestrator",
    }
    lost |= {"reason": "no heartbeat for 6 s", "metadata": {"last_snapshot": look and {**look, "at": LOOKED_AT}}}
    await fleet.move(agent.id, State.ACTIVE, State.TERMINATING, stage=Stage.DRAINING, **lost)
    await attempt(fleet, agent.id, Stage.DELETING, "ok", known=True)
    await fleet.move(agent.id, State.TERMINATING, State.TERMINATED)
    explanation, cause = await explained(fleet, agent.id), causes.silence(subcause)
    code = f"NO_HEARTBEAT/{subcause}".rstrip("/")
    assert list(explanation.ended) == [
        "heartbeat_lost: Its heartbeats stopped.",
        f"{code}: {cause.means}",
        "recorded reason: no heartbeat for 6 s",
    ]
    assert (explanation.code, explanation.subcause, explanation.evidence) == ("NO_HEARTBEAT", subcause or None, proof)
    assert (explanation.then, explanation.fix) == (cause.then, cause.about(worker=agent.id).fix)


@pytest.mark.parametrize(
    "look",
    [
        "left out: too large",
        {"known": True, "agent": "left out: too large", "cgroup": None},
        {"known": True, "agent": {"exit_class": ["killed"], "done": "x"}, "cgroup": {"memory_events": 3}},
        {"known": False, "why": "heartbeat_lost: nothing to wait for"},
    ],
)
def test_an_inconclusive_snapshot_is_no_cause(look: Any) -> None:
    """Whatever was kept of it."""
    assert heartbeat_loss.subcause(look) is None
    assert (heartbeat_loss.evidence_line(look) is None) == (not isinstance(look, Mapping) or not look["known"])


async def test_the_cause_of_the_end_of_a_ready_worker_comes_from_reports_of_that_time(fleet: Fleet) -> None:
    """And not by the delete that went well."""
    agent = await fleet.agent()
    lost: dict[str, Any] = {"exit_cause": "pod_lost", "failure_code": "POD_EXITED", "waiting_on": "orchestrator"}
    lost["reason"] = "the provider says EXITED"
    await fleet.move(agent.id, State.ACTIVE, State.TERMINATING, stage=Stage.DRAINING, **lost)
    await attempt(fleet, agent.id, Stage.DELETING, "ok", known=True)
    assert (await explained(fleet, agent.id)).evidence == "the provider says EXITED"


async def test_a_worker_that_waits_for_capacity_says_so(fleet: Fleet) -> None:
    """It does not say that a person must correct something."""
    worker = await bring_up(fleet, Stage.INTENT, waiting_on="capacity", waiting_for="every offer was refused lately")
    await attempt(fleet, worker, Stage.POD_CREATED, code="NO_CAPACITY", error="no longer any instances available")
    explanation = await explained(fleet, worker)
    assert (explanation.who, explanation.code) == ("capacity", "NO_CAPACITY")
    assert explanation.evidence == "pod_created failed: no longer any instances available"
    assert "explain scaling" in explanation.fix


@pytest.mark.parametrize("stage", STALLED)
async def test_a_stage_that_finds_nothing_says_so_in_seconds(fleet: Fleet, stage: Stage) -> None:
    """Long before its deadline, and without another write: since when its attempt goes on."""
    worker = await bring_up(fleet, stage)
    await fleet.fleet("attempt_open", p_worker_id=worker, p_stage=stage)
    fleet.wait(EARLY_S - 1)
    assert (await explained(fleet, worker)).what == WANTED[stage]
    fleet.wait(2)
    explanation = await explained(fleet, worker)
    assert (explanation.what, explanation.code) == (
        f"{WANTED[stage]}; {STALLED[stage]}, for {EARLY_S + 1:.0f} s now",
        None,
    )


async def test_the_suspected_cause_of_an_attempt_is_shown_before_it_ends(fleet: Fleet) -> None:
    """With what it saw as the proof; what it merely sees is no suspicion."""
    worker = await bring_up(fleet, Stage.TCP)
    opened = await fleet.fleet("attempt_open", p_worker_id=worker, p_stage=Stage.TCP)
    note = {"p_id": opened["id"], "p_failure_code": "TCP_TIMEOUT", "p_evidence": {"error": "no banner in 3 s"}}
    await fleet.fleet("attempt_note", **note)
    _, waiting, _, proof, _ = await shown(fleet, worker)
    assert waiting == f"WAITING ON provider: {causes.of('TCP_TIMEOUT').means.rstrip('.')} (TCP_TIMEOUT)"  # type: ignore[union-attr]
    assert proof == "evidence: tcp under way: no banner in 3 s"
    booting = await bring_up(fleet, Stage.POD_RUNNING)
    opened = await fleet.fleet("attempt_open", p_worker_id=booting, p_stage=Stage.POD_RUNNING)
    note = {"p_id": opened["id"], "p_failure_code": None, "p_evidence": {"shown": "RunPod shows it as STARTING"}}
    await fleet.fleet("attempt_note", **note)
    fleet.wait(3)
    explanation = await explained(fleet, booting)
    assert explanation.what == f"{WANTED[Stage.POD_RUNNING]}; RunPod shows it as STARTING, for 3 s now"


async def test_a_silent_worker_is_called_silent_before_it_is_given_up(fleet: Fleet) -> None:
    """By the heartbeats that it has missed."""
    worker = await promoted(fleet, 10)
    await fleet.move(worker, State.ACTIVE, State.IDLE, waiting_on="worker")
    fleet.wait(3 * 20)
    assert "its heartbeat: silent for" in (await explained(fleet, worker)).what
    assert BUSY_BEAT_S == ASK_S


async def test_a_silent_leader_is_named_before_its_lease_is_over(fleet: Fleet) -> None:
    """How long it has said nothing, and when another takes its place."""
    worker = await bring_up(fleet, Stage.TCP)
    fleet.wait(7200)
    await fleet.lead("them", LEASE_TTL_S)
    assert "silent" not in (await explained(fleet, worker)).then
    fleet.wait(8)
    assert (await explained(fleet, worker)).then.endswith(
        "its leader them is silent for 8 s, and is replaced after 15 s"
    )


async def test_odd_things_about_a_ready_worker_come_first(fleet: Fleet) -> None:
    """Its pod's absence from the lists, and logs that do not arrive; then what it does."""
    worker = await promoted(fleet, 10)
    odd: dict[str, Any] = {"waiting_on": "provider", "waiting_for": "its pod, which the lists have not shown"}
    await fleet.move(worker, State.ACTIVE, metadata=metadata(logs_late="Refused: nobody there"), **odd)
    explanation = await explained(fleet, worker)
    assert explanation.who == "provider"
    assert explanation.what == (
        "its pod, which the lists have not shown; its logs, which are late: nobody there; to ask for work"
    )


async def test_an_end_by_an_outage_of_the_gateway_is_explained(fleet: Fleet) -> None:
    """What the final snapshot shows of the agent's end is a consequence."""
    worker = await promoted(fleet, 10)
    end = {"exit_cause": "heartbeat_lost", "failure_code": "GATEWAY_UNREACHED"}
    await fleet.move(worker, State.ACTIVE, State.TERMINATING, stage=Stage.DRAINING, **end)
    explanation = await explained(fleet, worker)
    assert explanation.ended[1].startswith("GATEWAY_UNREACHED: The worker's agent called and got no answer")
    assert "WORKER_API_URL" in explanation.fix


async def test_a_silent_worker_that_may_be_well_waits_for_an_operator(fleet: Fleet) -> None:
    """Its agent runs and its calls do not arrive: the way from the pods to the gateway is what must be corrected."""
    worker = await promoted(fleet, 10)
    await fleet.move(worker, State.ACTIVE, waiting_on="operator", waiting_for=CALLS_UNANSWERED, deadline_s=600)
    explanation = await explained(fleet, worker)
    assert explanation.who == "operator"
    assert explanation.what == f"{CALLS_UNANSWERED}; to ask for work"
    assert "WORKER_API_URL" in explanation.fix
    assert explanation.then.endswith("it ends (heartbeat_lost)")


async def test_a_silent_worker_that_finishes_its_tasks_waits_for_an_operator_too(fleet: Fleet) -> None:
    """How its tasks end cannot be heard until the way to the gateway is correct."""
    worker = await promoted(fleet, 10)
    told = {"waiting_on": "operator", "waiting_for": CALLS_UNANSWERED, "exit_cause": "manual"}
    await fleet.move(worker, State.ACTIVE, State.TERMINATING, stage=Stage.DRAINING, **told, deadline_s=600)
    explanation = await explained(fleet, worker)
    assert (explanation.who, explanation.what) == ("operator", f"{CALLS_UNANSWERED}; 0 tasks to end")
    assert "WORKER_API_URL" in explanation.fix


async def test_an_outsider_at_a_ready_workers_address_is_named(fleet: Fleet) -> None:
    """With the code, what was shown, and that the work goes on."""
    worker = await promoted(fleet, 10)
    await fleet.move(worker, State.ACTIVE, metadata=metadata(logs_late="HostKeyChanged: pod-1 shows another key"))
    await attempt(fleet, worker, Stage.SSH_AUTH, "failed", "HOST_KEY_CHANGED", error="pod-1 shows another key")
    explanation = await explained(fleet, worker)
    assert (explanation.code, explanation.who) == ("HOST_KEY_CHANGED", "worker")
    assert explanation.what.startswith("its logs, which are late: pod-1 shows another key")
    assert explanation.then.startswith("nothing is sent there; the worker continues")
    assert explanation.evidence == "ssh_auth failed: pod-1 shows another key"


async def test_a_failure_that_a_later_attempt_overcame_is_not_its_cause(fleet: Fleet) -> None:
    """The connection broke once, and the bring-up went on."""
    worker = await bring_up(fleet, Stage.DEPLOY)
    await attempt(fleet, worker, Stage.DEPLOY, "lost", "CONNECTION_LOST")
    await attempt(fleet, worker, Stage.TCP, "ok", banner="SSH-2.0-OpenSSH")
    explanation = await explained(fleet, worker)
    assert (explanation.code, explanation.who) == (None, "orchestrator")
    assert explanation.evidence == "tcp ok: banner SSH-2.0-OpenSSH"


async def test_without_a_leader_the_orchestrator_is_waited_for(fleet: Fleet) -> None:
    """Whatever the row says: nobody acts on it."""
    worker = await bring_up(fleet, Stage.TCP)
    fleet.wait(7200)
    explanation = await explained(fleet, worker)
    assert (explanation.who, explanation.then, explanation.fix) == (
        "orchestrator",
        "nothing: no orchestrator leads",
        "python -m orchestrator run",
    )


async def test_a_busy_worker_says_what_it_runs(fleet: Fleet) -> None:
    """Each task with its attempt, and when silence would end it."""
    (task,) = await fleet.submit()
    agent = await fleet.agent()
    await agent.claim()
    fleet.wait(30)
    explanation = await explained(fleet, agent.id)
    silence = "its heartbeat: silent for 30 s (12 heartbeats missed)"
    assert (explanation.who, explanation.what) == ("worker", f"{silence}; to finish t {task} (attempt 1 of 3)")
    assert explanation.deadline is not None
    assert times([explanation.deadline]) == [fleet.now + timedelta(seconds=30)]
    assert explanation.spent_usd == pytest.approx(0.03)
    text = "\n".join(await shown(fleet, agent.id))
    assert "evidence: last heartbeat 30s ago" in text
    assert f"runs t {task} for 30s, last sign of life 30s ago" in text
    assert "tasks: 0 done, 0 failed, 1 running" in text


async def test_an_idle_worker_says_until_when_it_stays(fleet: Fleet) -> None:
    """By the pool's idle timeout."""
    agent = await fleet.agent(State.IDLE)
    fleet.wait(50)
    explanation = await explained(fleet, agent.id, gpu_idle_timeout_sec=600)
    assert explanation.what == "tasks: pool default has none that is ready"
    assert explanation.deadline is not None
    assert times([explanation.deadline]) == [fleet.now + timedelta(seconds=550)]
    assert explanation.then.startswith("idle_timeout: terminate")


async def test_a_worker_that_is_held_back_says_why_and_until_when(fleet: Fleet) -> None:
    """Its tasks failed one after the other; it waits for others to try these tasks, and not for work."""
    await fleet.submit(count=9)
    agent = await fleet.agent()
    for _ in range(5):
        (task,) = await agent.claim()
        await agent.fail(task, code="HANDLER_ERROR", message="no CUDA device", exit_class="exception")
    fleet.wait(20)
    await agent.beat()
    text = "\n".join(await shown(fleet, agent.id))
    why = "another worker to try its tasks: 5 different tasks failed in a row (HANDLER_ERROR)"
    assert f"WAITING ON orchestrator: {why}" in text
    assert "worker_sick if they succeed there; if they fail there too, they say nothing" in text
    assert f"logs {agent.id}" in text
    explanation = await explained(fleet, agent.id)
    assert explanation.deadline is not None
    assert times([explanation.deadline]) == [fleet.now - timedelta(seconds=20) + timedelta(seconds=900)]


async def test_a_worker_with_a_full_disk_says_so(fleet: Fleet) -> None:
    """In the words of its agent."""
    agent = await fleet.agent()
    full = {"disk": {"since": fleet.now.timestamp(), "why": "3 of 90 MiB are free"}}
    await agent.beat(p_health=full)
    text = "\n".join(await shown(fleet, agent.id))
    assert "WAITING ON orchestrator: room to begin a task: its disk is full: 3 of 90 MiB are free" in text
    assert "worker_sick if that lasts for 30 s: it is replaced" in text


async def test_a_worker_says_what_its_agent_found(fleet: Fleet) -> None:
    """What stops its claims first, with what follows from it."""
    agent = await fleet.agent()
    hot = {"code": "GPU_OVERHEATED", "severity": "H", "since": fleet.now.timestamp() - 60, "evidence": "91 °C"}
    tight = {"code": "DISK_TIGHT", "severity": "M", "since": fleet.now.timestamp(), "evidence": "93 % full"}
    await agent.beat(p_health={"findings": [hot, tight]})
    text = "\n".join(await shown(fleet, agent.id))
    assert "its machine: DISK_TIGHT: 93 % full; its machine, which is not fit to begin a task: GPU_OVERHEATED" in text
    assert "after ten minutes it finishes its tasks and is replaced" in text


@pytest.mark.parametrize(
    ("stage", "what"),
    [
        (Stage.DRAINING, "1 task to end"),
        (Stage.FLUSHING, "RunPod's confirmation that the pod is gone"),  # the row knows best, here and below
        (Stage.DELETING, "RunPod's confirmation that the pod is gone"),
    ],
)
async def test_a_terminating_worker_says_what_it_waits_for_and_why_it_ends(
    fleet: Fleet, stage: Stage, what: str
) -> None:
    """At each step of its end."""
    await fleet.submit()
    agent = await fleet.agent()
    await agent.claim()
    await fleet.end(agent.id, State.ACTIVE, ExitCause.MANUAL)
    waiting: dict[str, Any] = {
        "waiting_on": "provider",
        "waiting_for": "RunPod's confirmation that the pod is gone",
        "deadline_s": 60,
    }
    await fleet.move(agent.id, State.TERMINATING, stage=stage, **waiting)
    explanation = await explained(fleet, agent.id)
    assert (explanation.who, explanation.what) == ("provider", what)
    assert explanation.ended[0] == "manual: An operator asked for its end."
    assert "ENDING manual" in "\n".join(await shown(fleet, agent.id))


async def test_usual_durations_come_only_from_earlier_bringups_of_that_gpu(fleet: Fleet) -> None:
    """Half took so long, and nineteen in twenty no longer than that."""
    nothing = await fleet.call("fleet_usual", p_fleet=FLEET, p_gpu_type=GPU)
    assert (nothing["n"], nothing["p50_s"]) == (0, None)
    for seconds in range(10, 211, 10):
        await promoted(fleet, seconds)
    await fleet.agent()  # of another type
    usual = await fleet.call("fleet_usual", p_fleet=FLEET, p_gpu_type=GPU)
    assert (usual["n"], usual["p50_s"], usual["p95_s"]) == (21, 110, 200)
    assert (await fleet.call("fleet_usual", p_fleet=FLEET, p_gpu_type=None))["n"] == 22


async def test_the_usual_duration_of_a_stage_is_shown_while_it_runs(fleet: Fleet) -> None:
    """Of those who were promoted; a pull that takes longer than ever is seen to."""
    for seconds in (20, 40, 60):
        worker = await fleet.spawn(gpu_type=GPU)
        await attempt(fleet, worker, Stage.POD_RUNNING, "ok", took_s=seconds)
        await fleet.move(worker, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED, waiting_on="worker", **POD)
    failed = await bring_up(fleet, Stage.TCP)
    await give_up(fleet, failed, "TCP_TIMEOUT")
    worker = await bring_up(fleet, Stage.POD_RUNNING)
    usual = f"usual for {GPU}: p50 40s, p95 58s (n=3), of which pod_running: p50 40s, p95 58s (n=3)"
    assert (await shown(fleet, worker))[-1].startswith(f"{usual}   fix: ")


async def test_a_worker_of_another_fleet_is_not_found(fleet: Fleet) -> None:
    """Nor one that never was."""
    worker = await bring_up(fleet, Stage.TCP)
    assert (await fleet.call("fleet_explain", p_fleet="other", p_worker_id=worker))["worker"] is None
    assert (await fleet.call("fleet_explain", p_fleet=FLEET, p_worker_id="nobody"))["worker"] is None


async def test_all_live_workers_are_explained_in_one_call(fleet: Fleet) -> None:
    """As each alone; without those that have ended, and without those of another fleet."""
    ended, *live = [await bring_up(fleet, Stage.TCP) for _ in range(3)]
    await give_up(fleet, ended, "TCP_TIMEOUT")
    await fleet.move(ended, State.TERMINATING, State.TERMINATED)
    alone = {one: await fleet.call("fleet_explain", p_fleet=FLEET, p_worker_id=one) for one in live}
    assert await fleet.call("fleet_explain_workers", p_fleet=FLEET) == {"workers": alone}
    assert await fleet.call("fleet_explain_workers", p_fleet="other") == {"workers": {}}
