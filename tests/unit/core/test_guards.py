"""What the planner does about the findings of agents."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.actions import Plan, Spawn, Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.findings import GUARDS, MAX_SIGNALS, UNCHECKED, GuardFinding, Severity, findings_of
from orchestrator.core.guards import LASTS_S, PACE_S
from orchestrator.core.model import EndedBringUp, FaultedWorker, Snapshot, StoreOutage, Worker
from orchestrator.core.plan import plan
from orchestrator.core.states import State
from tests.unit.core.build import ago, busy, idle, policy, snapshot
from worker import findings as agent

XID_79 = ("XID_79", "C")


def record(code: str, severity: str, seconds: float = 10, **changes: Any) -> dict[str, Any]:
    return {
        "u": 22,
        "code": code,
        "severity": severity,
        "since": ago(seconds).timestamp(),
        "evidence": "seen",
    } | changes


def reports(*records: Any) -> tuple[GuardFinding, ...]:
    return findings_of({"findings": list(records)})


def sick(name: str = "gpu-1", *records: Any, **changes: Any) -> Worker:
    return busy(name, findings=reports(*(records or (record(*XID_79),))), created_at=ago(7200), **changes)


def fleet(count: int, **changes: Any) -> list[Worker]:
    return [busy(f"gpu-{n}", created_at=ago(7200), stage_since=ago(7000), **changes) for n in range(count)]


def made(seen: Snapshot) -> Plan:
    return plan(seen, policy(pool={"max_active": 50}))


def ends(seen: Snapshot) -> list[Terminate]:
    return [action for action in made(seen).actions if isinstance(action, Terminate)]


@pytest.mark.parametrize("code", sorted(code for code, guard in GUARDS.items() if guard.severity is Severity.REPLACE))
def test_a_c_finding_ends_its_worker_at_once_and_blames_its_host(code: str) -> None:
    """The code is the cause; the tasks do not wait."""
    (end,) = ends(snapshot(sick("gpu-1", record(code, "C")), *fleet(0), running=1))
    assert (end.cause, end.code) == (ExitCause.GPU_FAULT, GUARDS[code].code)
    assert end.blames_host
    assert code in end.reason


LASTING = sorted(code for code, one in GUARDS.items() if one.severity is Severity.BLOCK and code != UNCHECKED)


@pytest.mark.parametrize("code", LASTING)
def test_an_h_finding_makes_its_worker_no_capacity_and_ends_it_after_ten_minutes(code: str) -> None:
    """Until then, another worker may be started; then it finishes its task and is replaced."""
    lately = snapshot(sick("gpu-1", record(code, "H", LASTS_S - 1)), claimable=1, running=1)
    assert ends(lately) == []
    assert any(isinstance(action, Spawn) for action in made(lately).actions)
    (end,) = ends(snapshot(sick("gpu-1", record(code, "H", LASTS_S)), running=1))
    assert end.code == GUARDS[code].code
    assert end.cause.row.drains


def test_a_driver_without_an_answer_ends_no_worker_during_a_task() -> None:
    """However long that lasts: the agent checks it before the next task. An idle worker without a check ends."""
    hung = sick("gpu-1", record(UNCHECKED, "H", 9_000))
    assert ends(snapshot(hung, running=1)) == []
    assert any(isinstance(action, Spawn) for action in made(snapshot(hung, claimable=1, running=1)).actions)
    idle_for = [replace(idle("gpu-1", seconds), findings=hung.findings) for seconds in (LASTS_S - 1, LASTS_S)]
    assert ends(snapshot(idle_for[0])) == []
    (end,) = ends(snapshot(idle_for[1]))
    assert (end.cause, end.code) == (ExitCause.WORKER_SICK, FailureCode.GPU_HUNG)


def test_a_signal_without_an_answer_is_shown_and_has_no_effect() -> None:
    """As a warning, if each machine with a GPU gives this signal."""
    signals = {
        "nvidia_smi": "no answer within 4 s",
        "kernel_log": "Operation not permitted",
        5: 5,
        "x": None,
        "\x00": "",
    }
    found = findings_of({"unknown": signals, "findings": [record(*XID_79)]})
    assert [(one.code, one.severity, one.evidence) for one in found[1:]] == [
        ("SIGNAL_LOST", Severity.WARN, "nvidia_smi: no answer within 4 s"),
        ("SIGNAL_UNKNOWN", Severity.NOTE, "kernel_log: Operation not permitted"),
    ]
    assert [one.code for one in findings_of({"unknown": {"nvidia_smi": "No such file or directory"}})] == [
        "SIGNAL_UNKNOWN"
    ]
    assert len(findings_of({"unknown": {f"signal {n}": "?" for n in range(1_000)}})) == MAX_SIGNALS
    junk: tuple[Any, ...] = (None, 5, [], "nvidia_smi", {"a": {"b": 1}})
    for garbage in junk:
        assert findings_of({"unknown": garbage}) == ()
    worker = busy("gpu-1", findings=found[1:])
    assert worker.is_fit
    assert ends(snapshot(worker, running=1)) == []


@pytest.mark.parametrize("code", ["DISK_FULL", "INODES_FULL"])
def test_the_code_of_a_full_disk_decides_when_an_idle_worker_ends(code: str) -> None:
    """The agent reports both as a full disk, so both end an idle worker after 30 s, as DISK_FULL."""
    full = idle("gpu-1", 60, findings=reports(record(code, "H", 31)), disk_full_since=ago(31))
    assert [end.code for end in ends(snapshot(full, claimable=1))] == [FailureCode.DISK_FULL]
    then = FailureCode(code).row.then
    assert "an idle worker is replaced after half a minute" in then
    assert "as DISK_FULL" in then or code == "DISK_FULL"
    assert "inodes" in FailureCode.DISK_FULL.row.means


@pytest.mark.parametrize("since", [4e9, -4e9, None, "yesterday"])
def test_a_wrong_pod_clock_does_not_keep_a_blocked_worker_for_ever(since: Any) -> None:
    """It may jump by a year in both directions: then the time counts for which the worker has been idle."""
    wrong = reports(record("INODES_FULL", "H", since=since))
    blocked = idle("gpu-1", LASTS_S - 1, findings=wrong, created_at=ago(LASTS_S - 1))
    assert ends(snapshot(blocked, claimable=1)) == []
    later = replace(blocked, state_since=ago(LASTS_S), created_at=ago(7200))
    assert [end.code for end in ends(snapshot(later, claimable=1))] == [FailureCode.INODES_FULL]


@pytest.mark.parametrize("code", sorted(code for code, guard in GUARDS.items() if not guard.severity.blocks))
def test_warnings_and_notes_end_nothing(code: str) -> None:
    """However long they last; the worker goes on."""
    seen = snapshot(sick("gpu-1", record(code, GUARDS[code].severity, 86_400)), running=1)
    assert ends(seen) == []
    assert seen.workers[0].is_fit


@pytest.mark.parametrize(
    "wrong",
    [
        record("XID_9999", "C", 7200),
        record("XID_79", "H", 7200),
        record("XID_79", "?", 7200),
        record("XID_79", 7, 7200),  # type: ignore[arg-type]
        record("DISK_FULL", "C", 7200),
        record("DISK_FULL", "H", since="yesterday"),
        record("DISK_FULL", "H", since=float("inf")),
        record("DISK_FULL", "H", since=4e9),
        {"code": "XID_79"},
    ],
    ids=str,
)
def test_an_unknown_finding_ends_nothing(wrong: dict[str, Any]) -> None:
    """Unknown is shown, and not acted on."""
    worker = sick("gpu-1", wrong)
    assert ends(snapshot(worker, running=1)) == []
    assert len(worker.findings) == 1


@pytest.mark.parametrize("junk", [None, 5, "XID_79", [], {}, {"code": None}, {"code": 79}, {"code": ""}], ids=str)
def test_a_bad_record_affects_no_other(junk: Any) -> None:
    """A valid record next to it counts."""
    assert [one.code for one in reports(junk, record(*XID_79))] == ["XID_79"]
    assert findings_of({"findings": junk}) == findings_of(junk) == ()


def test_findings_are_bounded_where_they_enter() -> None:
    """In number and in length, and without control characters."""
    found = reports(*(record(*XID_79, evidence="\x1b[2J" + "x" * 9999) for _ in range(99)))
    assert len(found) == 32
    assert max(len(one.evidence) for one in found) <= 200
    assert "\x1b" not in found[0].evidence


def test_findings_of_a_silent_worker_end_nothing() -> None:
    """They may be over; the rule about heartbeats decides."""
    silent = sick(last_heartbeat=ago(61))
    assert ExitCause.GPU_FAULT not in [end.cause for end in ends(snapshot(silent, running=1))]


def test_an_ending_worker_is_not_ended_again() -> None:
    """Its row keeps the findings until it is gone."""
    ending = replace(sick(), state=State.TERMINATING, exit_cause=ExitCause.GPU_FAULT)
    assert ends(snapshot(ending)) == []


def alarm(affected: int, of: int, *gone: FaultedWorker, **changes: Any) -> Snapshot:
    workers = fleet(of)
    said = reports(record(*XID_79))
    workers[:affected] = [replace(one, findings=said) for one in workers[:affected]]
    return replace(snapshot(*workers, running=of), faults=gone, **changes)


def gone(name: str, seconds: float) -> FaultedWorker:
    return FaultedWorker(name, FailureCode.xid(79), ago(seconds))


@pytest.mark.parametrize(
    ("affected", "of", "ended"), [(5, 10, 5), (6, 10, 1), (10, 10, 1), (3, 3, 3), (3, 4, 1), (2, 4, 2)]
)
def test_a_finding_of_most_workers_replaces_one_at_a_time_and_blames_no_host(
    affected: int, of: int, ended: int
) -> None:
    """The cause is not the machines, unless there are too few to tell."""
    found = ends(alarm(affected, of))
    assert len(found) == ended
    assert all(end.blames_host for end in found) == (ended == affected)


def test_workers_that_ended_recently_count_for_the_alarm() -> None:
    """A false alarm that comes to one worker after the other must not empty the fleet either."""
    before = [gone(f"old-{n}", 60) for n in range(5)]
    assert ends(alarm(1, 4, *before)) == []
    assert len(ends(alarm(1, 4, *(replace(one, at=ago(900)) for one in before)))) == 1


def test_the_next_worker_drains_when_a_replacement_is_healthy_or_the_interval_is_over() -> None:
    """A replacement that reports the same is no reason to go on."""
    lately = gone("old", 120)
    assert ends(alarm(6, 8, lately)) == []
    assert len(ends(alarm(6, 8, replace(lately, at=ago(PACE_S))))) == 1
    well = busy("new", stage_since=ago(61))
    seen = alarm(6, 7, lately)
    assert len(ends(replace(seen, workers=(*seen.workers, well)))) == 1
    assert ends(replace(seen, workers=(*seen.workers, replace(well, stage_since=ago(30))))) == []
    assert ends(replace(seen, workers=(*seen.workers, replace(well, findings=reports(record(*XID_79)))))) == []


def test_a_finding_that_ends_a_worker_has_a_failure_code_and_no_other_has() -> None:
    """The code explains the end."""
    assert all((guard.code is not None) == guard.severity.blocks for guard in GUARDS.values())


def test_every_code_of_the_agent_is_in_the_catalogue_with_the_same_severity() -> None:
    """Otherwise it would be unknown."""
    theirs = {code: (u, Severity(severity)) for code, (u, severity) in agent.CODES.items()}
    assert theirs == {code: (GUARDS[code].u, GUARDS[code].severity) for code in theirs}
    assert (agent.MAX_FINDINGS, agent.EVIDENCE_CHARS) == (32, 200)


def test_an_outage_of_the_store_replaces_no_worker() -> None:
    """No other worker would reach it either."""
    mute = sick("gpu-1", record("STORE_UNREACHED", "H", LASTS_S + 1))
    assert [end.code for end in ends(snapshot(mute))] == [FailureCode.STORE_UNREACHED]
    assert ends(snapshot(mute, store_outage=StoreOutage(ago(60), "S3 does not answer"))) == []


def blocked_from_the_first(number: int, *, worked: bool = False, **changes: Any) -> tuple[Worker, EndedBringUp]:
    """A worker whose PyTorch lacks the GPU's architecture, and its promotion ten minutes ago."""
    name, at = f"gpu-{number}", ago(LASTS_S + 60)
    torch = reports(record("TORCH_ARCH", "H", LASTS_S))
    one = idle(
        name, LASTS_S, findings=torch, created_at=ago(LASTS_S + 200), release="image@1", machine_id=f"m-{number}"
    )
    return replace(one, **changes), EndedBringUp(name, "default", at, True, None, None, "image@1", worked=worked)


def causes_of_ends(*rows: tuple[Worker | None, EndedBringUp]) -> list[ExitCause]:
    workers = [worker for worker, _ in rows if worker]
    return [end.cause for end in ends(snapshot(*workers, claimable=9, ended=tuple(ended for _, ended in rows)))]


def test_a_finding_on_every_machine_of_a_release_is_the_releases_fault() -> None:
    """Each replacement would cost ten minutes of a pod for nothing: the breaker opens."""
    first, second = blocked_from_the_first(1), blocked_from_the_first(2)
    assert causes_of_ends(first, second) == [ExitCause.RELEASE_BAD] * 2
    fell: dict[str, Any] = {
        "exit_cause": ExitCause.WORKER_SICK,
        "failure_code": FailureCode.TORCH_ARCH,
        "ending_since": ago(900),
    }
    assert causes_of_ends((None, replace(second[1], **fell)), first) == [ExitCause.RELEASE_BAD]


@pytest.mark.parametrize(
    "others",
    [
        (),
        (blocked_from_the_first(2, machine_id="m-1"),),
        (blocked_from_the_first(2, release="image@0"),),
        (blocked_from_the_first(2, worked=True),),
        (blocked_from_the_first(2, state=State.ACTIVE, tasks_running=1),),
        ((busy("gpu-2", release="image@1"), replace(blocked_from_the_first(2)[1], worked=True)),),
    ],
    ids=[
        "alone",
        "on the same machine",
        "of another release",
        "one that has worked",
        "during a task",
        "one that works",
    ],
)
def test_a_finding_on_one_machine_is_that_machines_fault(
    others: tuple[tuple[Worker, EndedBringUp], ...],
) -> None:
    assert ExitCause.RELEASE_BAD not in causes_of_ends(blocked_from_the_first(1), *others)
