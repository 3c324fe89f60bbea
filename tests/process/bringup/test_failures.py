"""Every bad end of a bring-up: the code in the row, the attempt that says why, and nothing sent that should not be."""

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import asyncssh
import pytest

from orchestrator.core.model import Worker
from orchestrator.core.provider import PodStatus
from orchestrator.core.states import READY, Stage
from tests.process.bringup.rig import DEADLINE_S, Rig
from tests.process.bringup.sshd import Sshd, pem_of

SHORT_S = 0.6  # the deadline of a stage that gets no result
LOG_S = 6.0  # … and reads the pod's log in the last quarter of it
TRIES_S = 3.0  # … and tries again and again


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that a test can wait for."""
    monkeypatch.setattr("orchestrator.pods.bringup_stages.PAUSES_S", (0.05,))
    monkeypatch.setattr("orchestrator.pods.bringup_stages.BANNER_TIMEOUT_S", 0.2)
    monkeypatch.setattr("orchestrator.pods.bringup_stages.PROCESS_CHECK_S", 0.2)


async def fails(rig: Rig, worker: Worker, *, code: str, stage: Stage, **given: Any) -> Mapping[str, Any]:
    """Bring up; the row must end with the code, and the last attempt at the stage too. That attempt."""
    await asyncio.wait_for(rig.bring_up(**given).bring_up(rig.term, worker), DEADLINE_S)
    row, attempts = await rig.row(worker.id), await rig.attempts(worker.id)
    assert (row["status"], row["exit_cause"], row["failure_code"]) == ("terminating", "spawn_failed", code)
    assert code in row["state_reason"]
    assert (attempts[-1]["stage"], attempts[-1]["failure_code"]) == (stage, code)
    assert attempts[-1]["ended_at"] is not None
    return attempts[-1]


@pytest.mark.parametrize(
    ("status", "code"),
    [(PodStatus.EXITED, "POD_EXITED"), (PodStatus.ERROR, "POD_ERROR"), (PodStatus.TERMINATED, "POD_EXITED")],
)
async def test_a_pod_that_the_provider_shows_as_ended_ends_the_bringup_at_once(
    rig: Rig, status: PodStatus, code: str
) -> None:
    """There is nothing to wait for."""
    worker, _ = await rig.worker(pod={"status": status})
    await fails(rig, worker, code=code, stage=Stage.POD_RUNNING)


@pytest.mark.parametrize("seen", [{"has_runtime": False}, {"status": PodStatus.STARTING}])
async def test_a_pod_without_a_runtime_has_a_deadline(rig: Rig, seen: Mapping[str, Any]) -> None:
    """RUNNING alone is not running."""
    rig.shorten(Stage.POD_RUNNING, seconds=SHORT_S)
    worker, _ = await rig.worker(pod=seen)
    attempt = await fails(rig, worker, code="NO_RUNTIME", stage=Stage.POD_RUNNING)
    assert (attempt["outcome"], attempt["exception_type"]) == ("timeout", "TimeoutError")


PULLING = "create container image\nlatest Pulling from library/image"
PULLED = f"{PULLING}\nStatus: Downloaded newer image for image\nstart container"


async def test_an_image_that_is_still_coming_gets_one_more_deadline(rig: Rig) -> None:
    """The pod's own log shows the pull: extended once, and then it is called slow."""
    rig.shorten(Stage.POD_RUNNING, seconds=LOG_S)
    worker, _ = await rig.worker(pod={"status": PodStatus.STARTING, "has_runtime": False})
    rig.pod_logs[worker.pod_id or ""] = [PULLING] * 3
    attempt = await fails(rig, worker, code="IMAGE_PULL_SLOW", stage=Stage.POD_RUNNING)
    attempts = await rig.attempts(worker.id)
    assert [(a["stage"], a["outcome"]) for a in attempts] == [("pod_running", "timeout")] * 2
    assert attempt["evidence"]["pod_log"] == PULLING.splitlines()
    assert (await rig.row(worker.id))["metadata"]["image_pull_extended"] is True


async def test_a_complete_pull_extends_no_deadline(rig: Rig) -> None:
    """Pulled, started, and still no runtime: one deadline is enough."""
    rig.shorten(Stage.POD_RUNNING, seconds=LOG_S)
    worker, _ = await rig.worker(pod={"has_runtime": False})
    rig.pod_logs[worker.pod_id or ""] = [PULLED]
    attempt = await fails(rig, worker, code="NO_RUNTIME", stage=Stage.POD_RUNNING)
    assert attempt["evidence"]["pod_log"][-1] == "start container"
    assert (await rig.row(worker.id))["machine_id"] == f"machine-{worker.pod_id}"  # and the machine is a suspect
    assert f"machine:machine-{worker.pod_id}" in [host["key"] for host in await rig.store.hosts(avoided=True)]
    assert len(await rig.attempts(worker.id)) == 1


async def test_an_image_that_comes_in_the_second_deadline_is_in_time(rig: Rig) -> None:
    """Nothing of the first one is held against the worker."""
    worker, _ = await rig.worker(pod={"status": PodStatus.STARTING, "has_runtime": False})
    deadlines_s: dict[str, float] = {Stage.POD_RUNNING: LOG_S}

    async def log(_: str) -> str:
        deadlines_s.pop(Stage.POD_RUNNING, None)  # the second one is not to pass
        return PULLING

    bring_up = rig.bring_up(pod_log=log, deadlines_s=deadlines_s)
    bringing_up = asyncio.create_task(bring_up.bring_up(rig.term, worker))
    async with asyncio.timeout(DEADLINE_S):
        while len(await rig.attempts(worker.id)) < 2:
            await asyncio.sleep(0.02)
    rig.show(replace(rig.listed[worker.pod_id or ""], status=PodStatus.RUNNING, has_runtime=True))
    await asyncio.wait_for(bringing_up, DEADLINE_S)
    assert (await rig.row(worker.id))["stage"] == Stage.PROMOTED


async def test_a_pod_is_booked_from_its_machine_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is billed; while it is PROVISIONING without one it costs nothing."""
    monkeypatch.setattr("orchestrator.pods.boot_stages.EARLY_S", 0.05)
    worker, _ = await rig.worker(pod={"status": PodStatus.PROVISIONING, "data_center": None, "has_runtime": False})
    created_at = (await rig.row(worker.id))["billing_since"]
    bring_up = asyncio.create_task(rig.bring_up().bring_up(rig.term, worker))
    async with asyncio.timeout(DEADLINE_S):
        while not any("shown" in (one["evidence"] or {}) for one in await rig.attempts(worker.id)):
            await asyncio.sleep(0.02)
        rig.show(replace(rig.listed[worker.pod_id or ""], status=PodStatus.ERROR, data_center="EU-RO-1"))
        await bring_up
    assert (await rig.row(worker.id))["billing_since"] > created_at


async def test_a_pod_without_an_address_has_a_deadline(rig: Rig) -> None:
    """The port for 22 is never mapped."""
    rig.shorten(Stage.SSH_DETAILS, seconds=SHORT_S)
    worker, _ = await rig.worker(pod={"ssh_port": None})
    await fails(rig, worker, code="SSH_DETAILS_MISSING", stage=Stage.SSH_DETAILS)


async def test_a_port_that_never_opens(rig: Rig, quick: None) -> None:
    """Refused to the end."""
    rig.shorten(Stage.TCP, seconds=TRIES_S)
    worker, _ = await rig.worker(server=False)
    attempt = await fails(rig, worker, code="TCP_REFUSED", stage=Stage.TCP)
    assert attempt["evidence"]["tries"] > 2


async def test_a_port_that_moves_during_the_attempts_is_followed(rig: Rig) -> None:
    """The newest list tells where; the row and the attempt name the address that was proven."""
    worker, sshd = await rig.worker()
    await sshd.stop()
    bringing_up = asyncio.create_task(rig.bring_up().bring_up(rig.term, worker))
    await rig.reaches(worker.id, Stage.TCP)
    sshd.port = 0
    await sshd.start()
    _move_to(rig, worker, sshd.port)
    await asyncio.wait_for(bringing_up, DEADLINE_S)
    row, attempts = await rig.row(worker.id), await rig.attempts(worker.id)
    assert (row["status"] in READY, row["ssh_port"]) == (True, sshd.port)
    assert [a["evidence"]["address"] for a in attempts if a["stage"] == Stage.TCP] == [f"127.0.0.1:{sshd.port}"]


async def test_a_port_that_sends_nothing(rig: Rig, quick: None) -> None:
    """Connected, and silence."""
    rig.shorten(Stage.TCP, seconds=SHORT_S)
    worker, _ = await rig.worker()
    async with await asyncio.start_server(lambda *_: asyncio.sleep(5), "127.0.0.1", 0) as server:
        _move_to(rig, worker, server.sockets[0].getsockname()[1])
        await fails(rig, worker, code="TCP_TIMEOUT", stage=Stage.TCP)


async def test_a_port_that_refuses_and_then_says_nothing_is_called_silent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last try is under way when the stage's time ends: its result counts, and not that of the tries before."""
    monkeypatch.setattr("orchestrator.pods.bringup_stages.PAUSES_S", (0.05,))
    rig.shorten(Stage.TCP, seconds=5.0)
    worker, sshd = await rig.worker(server=False)
    bringing_up = asyncio.create_task(fails(rig, worker, code="TCP_TIMEOUT", stage=Stage.TCP))
    await rig.meets(worker.id, "TCP_REFUSED")
    async with await asyncio.start_server(lambda *_: asyncio.sleep(5), "127.0.0.1", sshd.port):
        attempt = await bringing_up
    assert "sent no banner" in attempt["evidence"]["error"]


async def test_an_attempt_cut_short_before_it_connects_changes_no_evidence(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port refused before: that is what the worker ends with."""
    monkeypatch.setattr("orchestrator.pods.bringup_stages.PAUSES_S", (0.05,))
    rig.shorten(Stage.TCP, seconds=TRIES_S)  # not more than the patience of one try
    worker, sshd = await rig.worker(server=False)
    bringing_up = asyncio.create_task(fails(rig, worker, code="TCP_REFUSED", stage=Stage.TCP))
    await rig.meets(worker.id, "TCP_REFUSED")
    with (
        socket.create_server(("127.0.0.1", sshd.port), backlog=0) as server,
        socket.create_connection(server.getsockname()),  # nobody accepts it: there is no room for another one
    ):
        attempt = await bringing_up
    assert "refuses connections" in attempt["evidence"]["error"]


async def test_a_port_where_something_else_answers(rig: Rig, quick: None) -> None:
    """A web server is not a pod."""

    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    rig.shorten(Stage.TCP, seconds=TRIES_S)
    worker, _ = await rig.worker()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        _move_to(rig, worker, server.sockets[0].getsockname()[1])
        await fails(rig, worker, code="NOT_SSH", stage=Stage.TCP)


async def test_a_changed_host_key_ends_the_worker_before_anything_is_sent(rig: Rig) -> None:
    """A outsider on the address gets no user name, no key, no file and no token."""
    worker, sshd = await rig.worker()
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    worker = await rig.move(worker.id, fields={"host_key": " ".join(other.split()[:2])})
    await fails(rig, worker, code="HOST_KEY_CHANGED", stage=Stage.SSH_AUTH)
    assert (sshd.logins, sshd.commands, rig.tokens, list(sshd.home.iterdir())) == ([], [], [], [])


ANOTHER, RSA = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-rsa", key_size=2048)


@pytest.mark.parametrize(
    ("pem", "public", "cause", "dialled"),
    [
        ("", None, "no_private_key", False),
        ("no key", None, "bad_private_key", False),
        (pem_of(ANOTHER)[:-90], None, "bad_private_key", False),
        (pem_of(ANOTHER), "ssh-ed25519 AAAAmangled", "bad_public_key", False),
        (pem_of(ANOTHER), "ours", "pair_mismatch", False),
        (pem_of(RSA), "ours", "key_type_mix", False),
        (pem_of(ANOTHER), None, "refused", True),
    ],
)
async def test_a_login_that_fails_names_its_sub_cause(
    rig: Rig, pem: str, public: str | None, cause: str, dialled: bool
) -> None:
    """The attempt shows who must correct the key. A pair that cannot work is never tried."""
    worker, sshd = await rig.worker()
    ours = rig.key.export_public_key().decode() if public == "ours" else public
    attempt = await fails(rig, worker, code="AUTH_FAILED", stage=Stage.SSH_AUTH, pem=pem, public=ours)
    assert attempt["evidence"]["cause"] == cause
    assert bool(sshd.logins) is dialled


async def test_a_matching_pair_lets_the_bringup_continue(rig: Rig) -> None:
    """One of several lines of authorized_keys is enough, with newlines as environment variables carry them."""
    worker, _ = await rig.worker()
    lines = [key.export_public_key("openssh").decode().strip() for key in (ANOTHER, rig.key)]
    await asyncio.wait_for(rig.bring_up(public="\\n".join(lines)).bring_up(rig.term, worker), DEADLINE_S)
    assert (await rig.row(worker.id))["stage"] == Stage.PROMOTED


async def test_a_connection_that_breaks_again_and_again_ends_at_the_stages_deadline(rig: Rig, quick: None) -> None:
    """Second chances are no more time than the stage had."""
    rig.shorten(Stage.EXEC, seconds=TRIES_S)
    worker, sshd = await rig.worker()
    breaking = asyncio.create_task(_keep_breaking(sshd))
    await asyncio.wait_for(rig.bring_up().bring_up(rig.term, worker), DEADLINE_S)
    breaking.cancel()
    row, attempts = await rig.row(worker.id), await rig.attempts(worker.id)
    assert (row["status"], row["failure_code"]) == ("terminating", "CONNECTION_LOST")
    assert {a["outcome"] for a in attempts if a["stage"] == "exec"} <= {"lost", "timeout"}
    assert {a["failure_code"] for a in attempts if a["stage"] == "exec"} == {"CONNECTION_LOST"}


async def test_a_pod_where_no_shell_runs(rig: Rig) -> None:
    """Logging in proves no shell: the nonce has to come back."""
    worker, sshd = await rig.worker()
    sshd.shell = "/bin/echo"  # repeats the command and says 0
    await fails(rig, worker, code="EXEC_FAILED", stage=Stage.EXEC)


@pytest.mark.parametrize("said", ["another-pod", None])
async def test_a_pod_that_is_not_the_rows_is_never_promoted(rig: Rig, said: str | None) -> None:
    """Neither one that calls itself otherwise nor one that does not know who it is."""
    worker, sshd = await rig.worker()
    sshd.env["RUNPOD_POD_ID"] = said or ""
    attempt = await fails(rig, worker, code="POD_MISMATCH", stage=Stage.IDENTITY)
    assert attempt["evidence"] | {"expected": worker.pod_id, "reported": said} == attempt["evidence"]
    assert rig.tokens == []


async def test_code_that_never_arrives_as_it_was_sent(rig: Rig) -> None:
    """Sent twice, wrong twice: stale."""
    worker, sshd = await rig.worker()
    rig.install(
        sshd,
        "sha256sum",
        '[ $# -gt 0 ] || exec /usr/bin/sha256sum; for f in "$@"; do echo "$(printf %064d 0)  $f"; done',
    )
    attempt = await fails(rig, worker, code="STALE_CODE", stage=Stage.DEPLOY)
    assert len(attempt["evidence"]["pushed"]) == 2
    assert rig.tokens == []


async def test_an_interpreter_that_is_not_there(rig: Rig) -> None:
    """What the shell said is in the attempt."""
    worker, _ = await rig.worker()
    attempt = await fails(rig, worker, code="NO_PROCESS", stage=Stage.PROCESS, python="/nowhere/python3")
    assert attempt["evidence"]["exit_status"] == 127
    assert "not found" in attempt["evidence"]["stderr"]


async def test_a_set_up_command_that_fails(rig: Rig) -> None:
    """The agent's own code and its last words are kept; the token is not."""
    worker, _ = await rig.worker()
    attempt = await fails(
        rig, worker, code="SETUP_FAILED", stage=Stage.PROCESS, setup_command="echo no such package; exit 3"
    )
    assert attempt["evidence"]["error"].endswith("no such package")
    assert rig.tokens[0] not in json.dumps(attempt, default=str)


async def test_an_agent_that_is_gone_when_it_is_looked_for(rig: Rig) -> None:
    """What `start` says is not believed: the process is looked for."""
    worker, sshd = await rig.worker()
    line = {"pid": 2**22 - 1, "start_time": "1", "code_sha256": rig.bundle.agent_sha, "python": "3"}
    script = f"cat >/dev/null; d=$5; mkdir -p $d/logs; echo it broke >$d/logs/system.log; echo '{json.dumps(line)}'"
    python = rig.install(sshd, "python-that-lies", script)
    attempt = await fails(rig, worker, code="NO_PROCESS", stage=Stage.PROCESS, python=str(python))
    assert attempt["evidence"]["log"] == ["it broke"]


async def test_another_process_under_the_same_pid_is_not_the_agent(rig: Rig) -> None:
    """A pid that lives, with another start time and command line, proves nothing."""
    worker, sshd = await rig.worker()
    line = {"pid": os.getpid(), "start_time": "1", "code_sha256": rig.bundle.agent_sha, "python": "3"}
    python = rig.install(sshd, "python-that-lies", f"cat >/dev/null; echo '{json.dumps(line)}'")
    await fails(rig, worker, code="NO_PROCESS", stage=Stage.PROCESS, python=str(python))


async def test_an_agent_that_cannot_reach_the_database(rig: Rig, quick: None, closed_port: int) -> None:
    """SSH sees it alive, no heartbeat comes: that has a code of its own."""
    rig.shorten(Stage.HEARTBEAT, seconds=5.0)  # its log is looked at until it has lines
    worker, _ = await rig.worker()
    url = f"http://127.0.0.1:{closed_port}"
    attempt = await fails(rig, worker, code="NO_HEARTBEAT", stage=Stage.HEARTBEAT, api_url=url)
    assert attempt["outcome"] == "timeout"
    assert attempt["evidence"]["log"]


def _move_to(rig: Rig, worker: Worker, port: int) -> None:
    assert worker.pod_id is not None
    rig.show(replace(rig.listed[worker.pod_id], ssh_port=port))


async def _keep_breaking(sshd: Sshd) -> None:
    while True:
        sshd.cut_after = "printf"
        await asyncio.sleep(0.005)
