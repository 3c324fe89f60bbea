"""The bring-up that succeeds, and what it leaves behind."""

import asyncio
import json
import stat
import time
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from orchestrator.core.failures import FailureCode
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import READY, Stage, State
from orchestrator.pods import agent_commands
from orchestrator.pods.latest import WorkerView
from orchestrator.ports import LostRace
from testbed.tasks import ended
from tests.process.bringup.rig import DEADLINE_S, GPU, Rig

STAGES_TO_READY = [
    "pod_running",
    "ssh_details",
    "tcp",
    "ssh_auth",
    "exec",
    "identity",
    "platform",
    "gpu_inventory",
    "gpu_health",
    "deploy",
    "process",
    "heartbeat",
]


@pytest.mark.parametrize("ahead_s", [300.0, -300.0])
async def test_the_orchestrators_own_wrong_clock_is_not_the_pods(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """The pod's clock is compared with the database's."""
    worker, _ = await rig.worker()
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + ahead_s)
    await rig.bring_up().bring_up(rig.term, worker)
    evidence = {a["stage"]: a["evidence"] for a in await rig.attempts(worker.id)}
    assert evidence["platform"]["clock_skew_s"] == pytest.approx(0, abs=20)


async def test_a_worker_is_proven_stage_by_stage_and_promoted(rig: Rig) -> None:
    """Every stage leaves one attempt that says what was seen; the row ends active, pinned and named."""
    worker, sshd = await rig.worker()
    with capture_logs() as logs:
        await rig.bring_up().bring_up(rig.term, worker)
    row, attempts = await rig.row(worker.id), await rig.attempts(worker.id)
    assert (row["status"] in READY, row["stage"]) == (True, "promoted")
    assert row["host_key"] == sshd.host_key
    assert (row["ssh_host"], row["ssh_port"]) == ("127.0.0.1", sshd.port)
    assert row["code_sha"] == rig.bundle.agent_sha
    assert (row["machine_id"], float(row["price_usd_per_hour"])) == (f"machine-{worker.pod_id}", 0.69)
    assert [a["stage"] for a in attempts] == STAGES_TO_READY
    assert {a["outcome"] for a in attempts} == {"ok"}
    evidence = {a["stage"]: a["evidence"] for a in attempts}
    assert evidence["ssh_auth"]["remote"] == f"127.0.0.1:{sshd.port}"
    assert evidence["ssh_auth"]["key"].startswith("SHA256:")
    assert evidence["identity"]["reported"] == worker.pod_id
    assert evidence["platform"]["clock_skew_s"] == pytest.approx(0, abs=20)  # the time that the call took
    assert evidence["gpu_inventory"]["names"] == [GPU]
    assert evidence["gpu_health"]["driver_cuda"] == "12.8"
    assert evidence["process"]["pid"] == rig.agents(sshd)[0]["pid"]
    assert evidence["heartbeat"]["nonce"] == row["nonce"]
    assert [log["message"] for log in logs if log["event"] == "worker_promoted"] == [
        "Worker startup completed successfully"
    ]


async def test_the_token_is_sent_over_stdin_into_a_private_file_and_nowhere_else(rig: Rig) -> None:
    """No command, row, attempt or event holds it."""
    worker, sshd = await rig.worker()
    with capture_logs() as logs:
        await rig.bring_up().bring_up(rig.term, worker)
    (token,) = rig.tokens
    (config,) = sshd.home.glob(".orchestrator/run/*/config.json")
    assert json.loads(config.read_text())["token"] == token
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    everything_else = json.dumps([await rig.store.worker(worker.id), sshd.commands, logs], default=str)
    assert token not in everything_else


async def test_what_lies_on_the_pod_already_is_not_sent_again(rig: Rig) -> None:
    """The second worker of a pod's home finds its code by hash."""
    worker, sshd = await rig.worker()
    await rig.bring_up().bring_up(rig.term, worker)
    code = sshd.home / agent_commands.agent_path(rig.bundle.agent_sha)
    before = code.stat()
    again, second = await rig.worker()
    second.home = sshd.home
    await rig.bring_up().bring_up(rig.term, again)
    assert (code.stat().st_ino, code.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    deploy = {a["stage"]: a["evidence"] for a in await rig.attempts(again.id)}["deploy"]
    assert (deploy["pushed"], len(deploy["kept"])) == ([], 1)


async def test_a_file_of_another_content_is_sent_again(rig: Rig) -> None:
    """The name and the size prove nothing."""
    worker, sshd = await rig.worker()
    code = sshd.home / agent_commands.agent_path(rig.bundle.agent_sha)
    code.parent.mkdir(parents=True)
    code.write_bytes(b"x" * len(rig.bundle.agent))
    await rig.bring_up().bring_up(rig.term, worker)
    assert code.read_bytes() == rig.bundle.agent
    assert (await rig.row(worker.id))["status"] in READY


async def test_a_port_that_opens_late_costs_tries_and_not_the_worker(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mapping comes before sshd: refused is tried again, inside one attempt."""
    monkeypatch.setattr("orchestrator.pods.bringup_stages.PAUSES_S", (0.05,))
    worker, sshd = await rig.worker(server=False)
    bringing_up = asyncio.create_task(rig.bring_up().bring_up(rig.term, worker))
    await rig.meets(worker.id, FailureCode.TCP_REFUSED)
    await sshd.start()
    await asyncio.wait_for(bringing_up, DEADLINE_S)
    tcp = [a for a in await rig.attempts(worker.id) if a["stage"] == "tcp"]
    assert len(tcp) == 1
    assert tcp[0]["evidence"]["tries"] > 1


async def test_a_connection_lost_in_a_stage_does_not_end_the_worker(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt is lost and its result unknown. The bring-up begins again and succeeds."""
    monkeypatch.setattr("orchestrator.pods.bringup_stages.PAUSES_S", (0.05,))
    worker, sshd = await rig.worker()
    sshd.cut_after = "sha256sum"
    await rig.bring_up().bring_up(rig.term, worker)
    attempts = await rig.attempts(worker.id)
    lost = [a for a in attempts if a["outcome"] != "ok"]
    assert [(a["stage"], a["outcome"], a["failure_code"]) for a in lost] == [("deploy", "lost", "CONNECTION_LOST")]
    assert (await rig.row(worker.id))["status"] in READY


async def test_an_unknown_exit_status_is_neither_good_nor_bad(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that a signal ended is asked again."""
    monkeypatch.setattr("orchestrator.pods.bringup_stages.PAUSES_S", (0.05,))
    worker, sshd = await rig.worker()
    once = 'if [ $# -gt 0 ] && mkdir once 2>/dev/null; then kill -9 $PPID; else exec /usr/bin/sha256sum "$@"; fi'
    rig.install(sshd, "sha256sum", once)
    await rig.bring_up().bring_up(rig.term, worker)
    attempts = await rig.attempts(worker.id)
    assert [a["outcome"] for a in attempts if a["stage"] == "deploy"] == ["lost", "ok"]
    assert (await rig.row(worker.id))["status"] in READY


async def test_a_restart_in_mid_bringup_finds_the_agent_that_runs(rig: Rig) -> None:
    """The row's nonce is proven again; nothing is started twice and the token stays."""
    worker, sshd = await rig.worker()
    blind = rig.bring_up(workers=WorkerView())
    first = asyncio.create_task(blind.bring_up(rig.term, worker))
    await rig.reaches(worker.id, Stage.HEARTBEAT)
    await ended(first)
    before = await rig.row(worker.id)
    rows = (await rig.store.snapshot()).workers
    await rig.bring_up().bring_up(rig.term, next(w for w in rows if w.id == worker.id))
    after = await rig.row(worker.id)
    assert after["status"] in READY
    assert (after["nonce"], after["token_jti"]) == (before["nonce"], before["token_jti"])
    assert len(rig.agents(sshd)) == len(rig.tokens) == 1
    outcomes = [(a["stage"], a["outcome"]) for a in await rig.attempts(worker.id)]
    assert ("heartbeat", "cancelled") in outcomes
    assert None not in {outcome for _, outcome in outcomes}


async def test_a_crash_between_the_row_and_the_start_uses_the_same_launch(rig: Rig) -> None:
    """The nonce in the row never ran: `start` is called under it, once."""
    worker, sshd = await rig.worker()
    named = {"nonce": "a" * 32, "token_jti": "j", "code_sha": rig.bundle.agent_sha, "metadata": {"user_code": None}}
    worker = await rig.move(worker.id, stage=Stage.PROCESS, fields=named)
    await rig.bring_up().bring_up(rig.term, worker)
    assert (await rig.row(worker.id))["nonce"] == "a" * 32
    assert len(rig.agents(sshd)) == 1


async def test_other_code_of_the_users_is_started_under_a_new_name(rig: Rig) -> None:
    """After a restart with other handlers and the same agent, the earlier launch still has the earlier code."""
    worker, sshd = await rig.worker()
    named = {"nonce": "a" * 32, "token_jti": "j", "code_sha": rig.bundle.agent_sha, "metadata": {"user_code": "0" * 64}}
    worker = await rig.move(worker.id, stage=Stage.PROCESS, fields=named)
    await rig.bring_up().bring_up(rig.term, worker)
    row = await rig.row(worker.id)
    assert row["nonce"] != "a" * 32
    assert (row["metadata"]["user_code"], row["metadata"]["launches"]) == (rig.bundle.code_sha, ["a" * 32])
    assert len(rig.agents(sshd)) == 1


async def test_an_agent_that_died_before_a_restart_is_launched_under_a_new_name(rig: Rig) -> None:
    """A launch that once ran is not run again: its nonce and its token are spent."""
    worker, sshd = await rig.worker()
    nonce = "b" * 32
    run_dir = sshd.home / agent_commands.run_dir(nonce)
    run_dir.mkdir(parents=True)
    dead = {"pid": 2**22 - 1, "start_time": "1", "code_sha256": rig.bundle.agent_sha, "python": "3"}
    (run_dir / "agent.json").write_text(json.dumps(dead))
    named = {"nonce": nonce, "token_jti": "j", "code_sha": rig.bundle.agent_sha, "metadata": {"user_code": None}}
    worker = await rig.move(worker.id, stage=Stage.HEARTBEAT, fields=named)
    await rig.bring_up().bring_up(rig.term, worker)
    row = await rig.row(worker.id)
    assert row["status"] in READY
    assert row["nonce"] != nonce
    assert row["token_jti"] != "j"
    (run_dir / "agent.json").unlink()  # it names no process of ours


async def test_ten_workers_start_in_parallel_and_one_that_hangs_delays_no_other(rig: Rig) -> None:
    """Each worker has its own deadline; a silent pod costs the others nothing."""
    pods = [await rig.worker() for _ in range(10)]
    silent = await asyncio.start_server(lambda *_: asyncio.sleep(DEADLINE_S), "127.0.0.1", 0)
    hanging, _ = pods[3]
    assert hanging.pod_id is not None
    seen = rig.listed[hanging.pod_id]
    port = silent.sockets[0].getsockname()[1]
    rig.show(replace(seen, ssh_port=port))
    bring_up = rig.bring_up()
    bringups = [asyncio.create_task(bring_up.bring_up(rig.term, worker)) for worker, _ in pods]
    await asyncio.wait_for(asyncio.gather(*bringups[:3], *bringups[4:]), DEADLINE_S)
    ready = [(await rig.row(worker.id))["status"] in READY for worker, _ in pods]
    assert ready == [True] * 3 + [False] + [True] * 6
    await ended(bringups[3])
    assert (await rig.attempts(hanging.id))[-1]["outcome"] == "cancelled"
    silent.close()


async def test_a_worker_that_an_operator_ends_during_bring_up_keeps_the_reason(rig: Rig) -> None:
    """The bring-up finds the row moved and stops; it overwrites nothing."""
    worker, sshd = await rig.worker(server=False)
    bringing_up = asyncio.create_task(rig.bring_up().bring_up(rig.term, worker))
    await rig.reaches(worker.id, Stage.TCP)
    manual = {"exit_cause": "manual", "waiting_on": "worker", "deadline_s": 60}
    await rig.move(worker.id, to_state=State.TERMINATING, stage=Stage.DRAINING, fields=manual)
    await sshd.start()
    with pytest.raises(LostRace):
        await asyncio.wait_for(bringing_up, DEADLINE_S)
    row = await rig.row(worker.id)
    assert (row["status"], row["exit_cause"], row["failure_code"]) == ("terminating", "manual", None)


async def test_the_hard_cap_ends_a_bringup_whatever_its_stages_may_take(rig: Rig) -> None:
    """The row's age counts, not this bring-up's."""
    worker, _ = await rig.worker(pod={"ssh_port": None})
    cap_s = 3.0  # it passes the stage before in this time, on a busy machine too
    await asyncio.wait_for(rig.bring_up(spawning_timeout_s=cap_s).bring_up(rig.term, worker), DEADLINE_S)
    row = await rig.row(worker.id)
    assert (row["status"], row["failure_code"]) == ("terminating", FailureCode.SSH_DETAILS_MISSING)
    assert STAGE_SPECS[Stage.SSH_DETAILS].deadline_s > cap_s
