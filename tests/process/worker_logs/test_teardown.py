"""The end of a worker: what its row says in each step, and the last that was seen of its pod."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import asyncssh
import pytest

from orchestrator.adapters.s3 import S3Blobs
from orchestrator.adapters.ssh import AsyncSshShell
from orchestrator.adapters.ssh_pool import SshPool
from orchestrator.core.actions import Delete, Flush, Terminate, UpdateAddress
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Worker
from orchestrator.core.pod_tracking import LISTING_LAG_S
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.pods import final_snapshot
from orchestrator.pods.teardown import Teardown
from orchestrator.ports import BadArgument, PortError, Unavailable
from tests.db.conformance.loops import executor_over
from tests.process.bringup.rig import Rig
from tests.process.bringup.sshd import Sshd, pem_of
from tests.process.worker_logs.logs import Hauling
from tests.unit.core import build

DEAD_S3 = S3Blobs("http://127.0.0.1:9", "key", "secret", "bucket", "", "us-east-1")
SMI = """
case "$*" in
  *--query-gpu=*) echo '0, NVIDIA RTX, GPU-1, 570.1, P0, 1024, 24564, 97, 61, 301.50, [N/A]' ;;
  *) exit 2 ;;
esac
"""


@dataclass
class Provider:
    """The Cloud port as far as a delete goes: these answers, in order."""

    answers: list[bool | PortError]
    asked: list[str] = field(default_factory=list)

    async def delete_pod(self, pod_id: str) -> bool:
        """The next answer."""
        self.asked.append(pod_id)
        answer = self.answers.pop(0)
        if isinstance(answer, PortError):
            raise answer
        return answer


def teardown(hauling: Hauling, *answers: bool | PortError, blobs: S3Blobs | None = None, **policy: Any) -> Teardown:
    """A new process's: it knows what the database knows."""
    shipper = hauling.shipper(blobs=blobs)
    assert hauling.rig.lines is not None
    return Teardown(
        hauling.rig.store,
        Provider(list(answers)),  # type: ignore[arg-type]  # the rest of the port is not asked for
        take_snapshot=partial(final_snapshot.take, hauling.rig.lines),
        finish_logs=shipper.finish,
        policy=build.policy(**policy),
    )


def end(hauling: Hauling, cause: ExitCause = ExitCause.SCALE_DOWN, code: FailureCode | None = None) -> Terminate:
    """The decision that the worker must go."""
    return Terminate(hauling.worker.id, State.ACTIVE, cause, code, "the queue is empty")


async def now(hauling: Hauling) -> Worker:
    """The worker as the next snapshot has it."""
    rows = (await hauling.rig.store.snapshot()).workers
    return next(row for row in rows if row.id == hauling.worker.id)


async def claimed(hauling: Hauling, count: int) -> list[str]:
    """Tasks that the worker holds; their ids."""
    store, worker = hauling.rig.store, hauling.worker
    await store.submit([{"task_type": "t", "pool": worker.pool} for _ in range(count)])
    who = {"p_worker_id": worker.id, "p_nonce": worker.nonce, "p_claim_no": 1, "p_batch": count, "p_wait_s": 0}
    return [task["id"] for task in (await hauling.db.call("worker_claim", **who))["tasks"]]


def seconds(later: datetime, earlier: datetime) -> float:
    return (later - earlier).total_seconds()


async def last_snapshot(hauling: Hauling) -> Mapping[str, Any]:
    """What was kept of the pod."""
    kept: Mapping[str, Any] = (await hauling.rig.row(hauling.worker.id))["metadata"]["last_snapshot"]
    return kept


async def test_a_drain_names_its_tasks_and_its_deadline(hauling: Hauling) -> None:
    """The worker is waited for, by name of what it holds, until the grace is over."""
    held = await claimed(hauling, 7)
    parts = teardown(hauling, drain_grace_s=600)
    await parts.begin(hauling.rig.term, end(hauling))
    await parts.name_tasks(hauling.rig.term, end(hauling))
    worker = await now(hauling)
    assert (worker.state, worker.stage, worker.waiting_on) == (State.TERMINATING, Stage.DRAINING, WaitingOn.WORKER)
    assert worker.waiting_for is not None
    assert worker.waiting_for.startswith("the tasks it held when the drain began: ")
    assert worker.waiting_for.endswith(" and 2 more")
    assert sum(f"{task_id} attempt 1" in worker.waiting_for for task_id in held) == 5
    assert seconds(worker.deadline_at, worker.stage_since) == 600


async def test_a_drain_of_an_empty_worker_waits_for_nothing(hauling: Hauling) -> None:
    """And says so."""
    parts = teardown(hauling)
    await parts.begin(hauling.rig.term, end(hauling))
    await parts.name_tasks(hauling.rig.term, end(hauling))
    assert (await now(hauling)).waiting_for == "nothing: it held no task when the drain began"


async def test_no_drain_time_for_a_failed_worker(hauling: Hauling) -> None:
    """What comes next is ours to do, and soon."""
    failed = end(hauling, ExitCause.HEARTBEAT_LOST, FailureCode.NO_HEARTBEAT)
    await teardown(hauling, flush_deadline_s=60).begin(hauling.rig.term, failed)
    worker = await now(hauling)
    assert (worker.waiting_on, worker.waiting_for) == (WaitingOn.ORCHESTRATOR, "the flush of its logs")
    assert seconds(worker.deadline_at, worker.stage_since) == 60


async def test_the_end_of_a_stuck_worker_says_for_how_long_a_task_may_stand_still(hauling: Hauling) -> None:
    """Which of its tasks did is asked of the database, when they are taken from it."""
    await teardown(hauling, task_stuck_s=900).begin(hauling.rig.term, end(hauling, ExitCause.TASK_STUCK))
    assert (await hauling.rig.row(hauling.worker.id))["metadata"]["stuck_s"] == 900


async def test_a_flush_says_how_much_is_left_and_its_deadline_stays(hauling: Hauling) -> None:
    """S3 is away: each try fails, the clock runs from the first one, and the row says what lies on the pod still."""
    hauling.write("agent", 1_000)
    await hauling.shipper().ship(hauling.rig.term, hauling.worker)
    hauling.write("agent", 234)
    hauling.write("handler", 66)
    parts = teardown(hauling, blobs=DEAD_S3, flush_deadline_s=60)
    await parts.begin(hauling.rig.term, end(hauling))
    deadlines = []
    for _ in range(2):
        with pytest.raises(Unavailable):
            await parts.flush(hauling.rig.term, Flush(hauling.worker.id, True, "nothing left"), await now(hauling))
        worker = await now(hauling)
        assert (worker.stage, worker.waiting_on) == (Stage.FLUSHING, WaitingOn.ORCHESTRATOR)
        waits, _, why = str(worker.waiting_for).partition(" (last try: ")
        assert waits == "the last 300 bytes of its logs to reach S3"
        assert "S3" in why
        deadlines.append(worker.deadline_at)
    assert deadlines[0] == deadlines[1] == worker.stage_since + timedelta(seconds=60)
    await teardown(hauling).flush(hauling.rig.term, Flush(worker.id, True, "again"), worker)
    worker = await now(hauling)
    assert (worker.stage, worker.waiting_for) == (Stage.DELETING, "the delete call")
    assert await hauling.shipped("agent") == hauling.file("agent").read_bytes()


async def test_logs_that_can_be_neither_shipped_nor_declared_do_not_keep_the_pod_for_ever(hauling: Hauling) -> None:
    """The final try goes on to the delete, and its event says what was given up, and why."""

    async def refuse(_term: int, _worker: Worker, _reachable: bool) -> int:
        raise BadArgument("the ledger has another piece there")

    parts = teardown(hauling)
    parts._finish_logs = refuse
    await parts.begin(hauling.rig.term, end(hauling))
    with pytest.raises(Unavailable):
        await parts.flush(hauling.rig.term, Flush(hauling.worker.id, False, "late"), await now(hauling))
    assert (await now(hauling)).stage is Stage.FLUSHING
    await parts.flush(hauling.rig.term, Flush(hauling.worker.id, False, "late", final=True), await now(hauling))
    worker = await now(hauling)
    assert worker.stage is Stage.DELETING
    events = (await hauling.rig.store.worker(worker.id))["events"]
    assert any("the ledger has another piece there" in str(event["reason"]) for event in events)


async def test_a_delete_says_how_often_it_was_asked_and_since_when(hauling: Hauling) -> None:
    """Refused once, taken once: then the provider is waited for."""
    parts = teardown(hauling, Unavailable("HTTP 500"), True)
    await parts.begin(hauling.rig.term, end(hauling))
    said = []
    for _ in range(2):
        await parts.flush(hauling.rig.term, Flush(hauling.worker.id, False, "its pod is gone"), await now(hauling))
        await parts.delete(hauling.rig.term, Delete(hauling.worker.id, "pod-x", "its work is done"))
        worker = await now(hauling)
        said.append((worker.waiting_on, (worker.waiting_for or "").partition(" since ")[0]))
        assert worker.next_attempt_at < worker.deadline_at
    assert said == [
        (WaitingOn.ORCHESTRATOR, "the delete call to succeed (asked 1 time"),
        (WaitingOn.PROVIDER, "RunPod's confirmation that the pod is gone (asked 2 times"),
    ]


async def test_the_pause_after_a_failed_delete_ends_before_the_deadline_and_counts_failures_in_a_row(
    hauling: Hauling,
) -> None:
    """Accepted deletes do not make the next failure's pause longer: a pod that is still listed costs money."""
    failure = Unavailable("HTTP 500")
    parts = teardown(hauling, True, True, True, True, *[failure] * 8, drain_grace_s=10)
    await parts.begin(hauling.rig.term, end(hauling))
    await parts.flush(hauling.rig.term, Flush(hauling.worker.id, False, "its pod is gone"), await now(hauling))
    for pause_s in (10, 10, 10, 10, 5, 10, 20, 40, 80, 160, 300, 300):
        before = datetime.now(UTC)
        await parts.delete(hauling.rig.term, Delete(hauling.worker.id, "pod-x", "its work is done"))
        after, worker = datetime.now(UTC), await now(hauling)
        shortest, longest = worker.next_attempt_at - after, worker.next_attempt_at - before
        assert shortest <= timedelta(seconds=pause_s) <= longest, pause_s
        assert worker.next_attempt_at < worker.deadline_at


async def test_a_short_grace_does_not_shorten_the_wait_for_lists(hauling: Hauling) -> None:
    """A pod that no list has shown yet is waited for as long as lists may lag: the row's deadline says so."""
    parts = teardown(hauling, True, drain_grace_s=10)
    await parts.begin(hauling.rig.term, end(hauling))
    await parts.flush(hauling.rig.term, Flush(hauling.worker.id, False, "its pod is gone"), await now(hauling))
    await parts.delete(hauling.rig.term, Delete(hauling.worker.id, "pod-x", "its work is done"))
    worker = await now(hauling)
    assert seconds(worker.deadline_at, worker.stage_since) >= LISTING_LAG_S


async def test_the_last_look_sees_the_real_agent_and_its_machine(rig: Rig) -> None:
    """Running at first; ended, with its own words, once it was stopped."""
    worker, sshd = await rig.worker()
    await rig.bring_up().bring_up(rig.term, worker)
    rig.install(sshd, "nvidia-smi", SMI)  # answers the look's query alone: the bring-up asks for more
    worker = next(row for row in (await rig.store.snapshot()).workers if row.id == worker.id)
    assert rig.lines is not None
    seen = await final_snapshot.take(rig.lines, worker)
    (agent,) = rig.agents(sshd)
    assert seen["agent"] == {"exit_class": "running", "pid": agent["pid"], "done": None}
    assert seen["gpus"] == [
        {
            "index": 0, "name": "NVIDIA RTX", "uuid": "GPU-1", "driver_version": "570.1", "pstate": "P0",
            "memory.used": 1024, "memory.total": 24564, "utilization.gpu": 97, "temperature.gpu": 61,
            "power.draw": 301.5, "ecc.errors.uncorrected.volatile.total": None,
        }
    ]  # fmt: skip
    assert all(disk["total_kib"] >= disk["free_kib"] > 0 for disk in seen["disk"])
    assert set(seen["cgroup"]) == set(final_snapshot.COUNTERS)
    script = f"{rig.config.python} -I .orchestrator/code/agent-{rig.bundle.agent_sha}.pyz stop --run-dir "
    async with rig.lines.session(worker, timeout_s=10) as session:
        await session.run(f"{script} .orchestrator/run/{worker.nonce}", timeout_s=20)
    ended = (await final_snapshot.take(rig.lines, worker))["agent"]
    assert (ended["exit_class"], ended["done"]["reason"], ended["done"]["status"]) == ("ended", "SIGTERM received", 0)


async def failed_early(rig: Rig) -> tuple[Worker, Sshd, Teardown]:
    """A worker that a sick GPU ended before anything was sent there; its pod, and a new process's teardown."""
    worker, sshd = await rig.worker(faults={"xid": "79"})
    await rig.bring_up().bring_up(rig.term, worker)
    ended = next(row for row in (await rig.store.snapshot()).workers if row.id == worker.id)
    assert (ended.stage, ended.nonce, ended.host_key) == (Stage.DRAINING, None, sshd.host_key)
    lines = SshPool(AsyncSshShell(pem_of(rig.key)))
    parts = Teardown(
        rig.store,
        Provider([]),  # type: ignore[arg-type]  # nothing is deleted here
        take_snapshot=partial(final_snapshot.take, lines),
        finish_logs=nothing_to_finish,
        policy=build.policy(),
    )
    return ended, sshd, parts


async def nothing_to_finish(_term: int, _worker: Worker, _reachable: bool) -> int:
    raise AssertionError("no agent ever wrote a log there")


async def test_a_pod_that_failed_before_its_agent_leaves_a_final_snapshot(rig: Rig) -> None:
    """What its GPUs, its cgroup, its disk and its kernel show; taken once, and of an agent nothing is said."""
    worker, sshd, parts = await failed_early(rig)
    for _ in range(2):
        await parts.flush(rig.term, Flush(worker.id, True, "it failed"), worker)
        row = await rig.row(worker.id)
        worker = next(row for row in (await rig.store.snapshot()).workers if row.id == worker.id)
    kept = row["metadata"]["last_snapshot"]
    assert (row["stage"], kept["known"]) == (Stage.DELETING, True)
    assert kept["agent"] == {"exit_class": "unknown", "pid": None, "done": None}
    assert (kept["gpus"][0]["name"], len(kept["kernel"])) == ("NVIDIA GeForce RTX 4090", 1)
    assert "Xid (PCI:0000:01:00): 79" in kept["kernel"][0]
    assert kept["disk"]
    assert set(kept["cgroup"]) == set(final_snapshot.COUNTERS)
    assert sum("=== gpus_status" in command for command in sshd.commands) == 1


@pytest.mark.parametrize("how", ["gone", "another key"])
async def test_an_empty_final_snapshot_does_not_keep_a_pod_without_an_agent(rig: Rig, how: str) -> None:
    """One try, within the look's bounds; why there is nothing is kept."""
    worker, sshd, parts = await failed_early(rig)
    await sshd.stop()
    if how == "another key":
        sshd.host_keys = [asyncssh.generate_private_key("ssh-ed25519")]
        await sshd.start()
    asked = len(sshd.commands)
    await parts.flush(rig.term, Flush(worker.id, True, "it failed"), worker)
    row = await rig.row(worker.id)
    kept = row["metadata"]["last_snapshot"]
    assert (row["stage"], kept["known"], len(sshd.commands)) == (Stage.DELETING, False, asked)
    assert kept["why"].startswith("ConnectionRefused" if how == "gone" else "HOST_KEY_CHANGED")


async def test_a_pod_that_ssh_never_reached_gets_no_final_snapshot(rig: Rig) -> None:
    """On to the delete at once."""
    worker, sshd, parts = await failed_early(rig)
    handshakes = sshd.handshakes
    await parts.flush(rig.term, Flush(worker.id, False, "nobody ever got in"), replace(worker, host_key=None))
    row = await rig.row(worker.id)
    assert (row["stage"], "last_snapshot" in row["metadata"], sshd.handshakes) == (Stage.DELETING, False, handshakes)


async def test_a_hanging_driver_hides_no_other_section(hauling: Hauling, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is there, and the reason; an agent that left no word was killed."""
    monkeypatch.setattr(final_snapshot, "SMI_S", 1)
    hauling.rig.install(hauling.sshd, "nvidia-smi", "sleep 100")
    run = hauling.file("agent").parent.parent
    (run / "agent.json").write_text('{"pid": 999999}')
    (run / "agent.pid").write_text("999999\n")
    hauling.shipper()
    assert hauling.rig.lines is not None
    seen = await final_snapshot.take(hauling.rig.lines, hauling.worker)
    assert (seen["gpus"], seen["gpus_why"]) == (None, "nvidia-smi did not answer within 1 s")
    assert seen["agent"] == {"exit_class": "killed", "pid": 999999, "done": None}
    assert seen["disk"]


async def test_a_pod_that_does_not_answer_is_unknown_in_time(hauling: Hauling, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason: nothing is made up."""
    hauling.shipper()
    assert hauling.rig.lines is not None
    hauling.rig.install(hauling.sshd, "df", "sleep 100")
    with monkeypatch.context() as patch:
        patch.setattr(final_snapshot, "SNAPSHOT_S", 1)
        assert (await final_snapshot.take(hauling.rig.lines, hauling.worker))["known"] is False
    await hauling.sshd.stop()
    seen = await final_snapshot.take(SshPool(AsyncSshShell(pem_of(hauling.rig.key))), hauling.worker)
    assert seen["known"] is False
    assert "Refused" in seen["why"]


async def test_the_first_final_snapshot_is_kept_and_precedes_the_stop_of_the_agent(hauling: Hauling) -> None:
    """A second flush finds less; what the first one saw stays."""
    hauling.rig.install(hauling.sshd, "nvidia-smi", SMI)
    hauling.write("agent", 10)
    parts = teardown(hauling)
    await parts.begin(hauling.rig.term, end(hauling))
    await parts.flush(hauling.rig.term, Flush(hauling.worker.id, True, "done"), await now(hauling))
    first = await last_snapshot(hauling)
    assert (first["known"], first["gpus"][0]["utilization.gpu"]) == (True, 97)
    commands = hauling.sshd.commands
    look, stop = (next(n for n, one in enumerate(commands) if word in one) for word in ("nvidia-smi", " stop "))
    assert look < stop
    await hauling.sshd.stop()
    await parts.flush(hauling.rig.term, Flush(hauling.worker.id, False, "gone"), await now(hauling))
    assert await last_snapshot(hauling) == first


async def test_the_state_of_an_agent_is_not_taken_from_a_snapshot_after_its_stop(
    hauling: Hauling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look hung, and the agent was stopped all the same: the second sees the machine alone."""
    hauling.write("agent", 10)
    parts = teardown(hauling, blobs=DEAD_S3)
    await parts.begin(hauling.rig.term, end(hauling))
    known = []
    for tool, limit_s in (("sleep 100", 1), ("exit 1", 60)):
        monkeypatch.setattr(final_snapshot, "SNAPSHOT_S", limit_s)
        hauling.rig.install(hauling.sshd, "df", tool)
        with pytest.raises(Unavailable):
            await parts.flush(hauling.rig.term, Flush(hauling.worker.id, True, "done"), await now(hauling))
        known.append((await last_snapshot(hauling))["known"])
    assert known == [False, True]
    assert (await last_snapshot(hauling))["agent"] is None


async def test_an_unreachable_pod_leaves_unknown_with_the_reason(hauling: Hauling) -> None:
    """The planner knew why."""
    parts = teardown(hauling)
    await parts.begin(hauling.rig.term, end(hauling))
    await parts.flush(hauling.rig.term, Flush(hauling.worker.id, False, "pod_lost: EXITED"), await now(hauling))
    kept = await last_snapshot(hauling)
    assert (kept["known"], kept["why"]) == (False, "pod_lost: EXITED")


async def test_attempts_that_do_not_reach_the_pod_count_and_those_without_a_bucket_do_not(hauling: Hauling) -> None:
    """What proves that the rest of the logs will not come is a pod where nobody answers, again and again."""
    hauling.write("agent", 100)
    parts = teardown(hauling, blobs=DEAD_S3)
    await parts.begin(hauling.rig.term, end(hauling))
    counts = []
    for reachable in (False, False, True):
        await (hauling.sshd.start() if reachable else hauling.sshd.stop())
        with pytest.raises(Unavailable):
            await parts.flush(hauling.rig.term, Flush(hauling.worker.id, True, "done"), await now(hauling))
        counts.append((await now(hauling)).metadata.unreached)
    assert counts == [1, 2, 0]
    assert (await now(hauling)).stage is Stage.FLUSHING


async def test_tries_at_an_earlier_address_do_not_count_at_the_new_one(hauling: Hauling) -> None:
    """The port of a pod moved while it ended: its last logs are fetched from there, and not given up before a try."""
    hauling.write("agent", 100)
    parts, rig, sshd = teardown(hauling), hauling.rig, hauling.sshd
    await parts.begin(rig.term, end(hauling))
    await sshd.stop()
    flush = Flush(hauling.worker.id, True, "done")
    for _ in range(3):
        with pytest.raises(Unavailable):
            await parts.flush(rig.term, flush, await now(hauling))
    before, sshd.port = await now(hauling), 0
    await sshd.start()
    moved = UpdateAddress(before.id, before.state, "127.0.0.1", sshd.port, "moved")
    await executor_over(rig.store, None, build.policy()).start(rig.term, build.snapshot(before), (moved,))
    after = await now(hauling)
    assert (before.metadata.unreached, after.metadata.unreached) == (3, 0)
    assert (after.ssh_port, after.host_key) == (sshd.port, before.host_key)
    await parts.flush(rig.term, flush, after)
    assert await hauling.shipped("agent") == hauling.file("agent").read_bytes()


async def test_another_machine_at_the_pods_address_is_not_waited_for(hauling: Hauling) -> None:
    """Nothing is sent to it; what had not been shipped is declared lost, as far as its size is known."""
    hauling.write("agent", 100)
    assert await hauling.shipper().ship(hauling.rig.term, hauling.worker) == 100
    hauling.write("agent", 50)
    parts = teardown(hauling)
    await hauling.sshd.stop()
    hauling.sshd.host_keys = [asyncssh.generate_private_key("ssh-ed25519")]
    asked = len(hauling.sshd.commands)
    await hauling.sshd.start()
    await parts.begin(hauling.rig.term, end(hauling))
    worker = replace(await now(hauling), log_bytes={hauling.nonce: {"agent": 150}})
    await parts.flush(hauling.rig.term, Flush(hauling.worker.id, True, "done"), worker)
    assert (await now(hauling)).stage is Stage.DELETING
    lost = [(row["first"], row["last"]) for row in await hauling.pieces("agent") if row["declared_lost"]]
    assert lost == [(100, 150), (150, None)]
    assert len(hauling.sshd.commands) == asked
    events = (await hauling.rig.store.worker(hauling.worker.id))["events"]
    assert any("HOST_KEY_CHANGED" in event["reason"] for event in events)


@pytest.mark.parametrize("text", ["max", "9223372036854771712"])
def test_no_limit_of_memory_is_one_word_for_both_versions_of_cgroups(text: str) -> None:
    """Version 1 writes a number near 2**63. Counters are numbers."""
    seen = final_snapshot.read(f"=== memory_limit_bytes\n{text}\n=== memory_bytes\n4096\n", None)["cgroup"]
    assert (seen["memory_limit_bytes"], seen["memory_bytes"]) == ("max", 4096)


def test_the_snapshot_is_small_whatever_a_pod_prints() -> None:
    """Rubbish of any size and form becomes at most 16 KiB of JSON."""
    for text in (
        "",
        "=== gpus\n" + "x, " * 100_000,
        "=== disk\nh\n" + "a 1 1 1 1% /m\n" * 9_999,
        "=== agent\n[]\n\0\udcff",
    ):
        seen = final_snapshot.bounded(final_snapshot.read(text, "n"))
        assert len(json.dumps(seen).encode()) <= final_snapshot.MAX_BYTES
        assert seen["known"]
    big = final_snapshot.bounded({"known": True, "a": "x" * 20_000, "b": "y" * 100})
    assert big == {"known": True, "a": "left out: too large", "b": "y" * 100}
