"""What readings of disk, memory, processors and the running task mean."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.xids import XidClass, xid_class
from tests.unit.worker.build import GIB, Pod, disk, gpu, smi
from worker import protocol
from worker.agent_state import AgentState
from worker.config import RunDir
from worker.disk import crowded_directories
from worker.finding_list import FindingList
from worker.findings import CODES, EVIDENCE_CHARS, MAX_FINDINGS, SEVERITIES, Found, many_small_files
from worker.journal import Journal
from worker.xids import XID_SEVERITIES

MIB = 1 << 20


@pytest.fixture
def findings(tmp_path: Path) -> FindingList:
    return FindingList(AgentState(900, RunDir(str(tmp_path))), Journal(str(tmp_path / "agent.log"), ()), str(tmp_path))


def health(findings: FindingList) -> dict[str, Any]:
    return findings._state.health


def test_each_code_has_a_guard_and_a_severity() -> None:
    assert all(1 <= guard <= 43 and severity in SEVERITIES for guard, severity in CODES.values())


def test_xids_are_as_severe_while_a_task_runs_as_before_the_first_claim() -> None:
    """Bring-up and the agent each have a table, because the agent has no part of the orchestrator."""
    severities = {XidClass.FATAL: "C", XidClass.REPEATABLE: "M", XidClass.PROGRAM: "M", XidClass.NOTED: "I"}
    assert {number: severities[xid_class(number)] for number in XID_SEVERITIES} == XID_SEVERITIES


@pytest.mark.parametrize(
    ("total", "free", "inodes_free", "code"),
    [
        (50 * GIB, 6 * GIB, 900, None),
        (50 * GIB, 4 * GIB, 900, "DISK_TIGHT"),
        (50 * GIB, 2 * GIB, 900, "DISK_FULL"),
        (1000 * GIB, 40 * GIB, 900, "DISK_TIGHT"),
        (1000 * GIB, 29 * GIB, 900, "DISK_FULL"),  # 97 %
        (120 * GIB, 4 * GIB, 900, "DISK_FULL"),
        (MIB, 128 << 10, 900, None),  # a small file system needs less
        (MIB, 32 << 10, 900, "DISK_FULL"),
        (50 * GIB, 25 * GIB, 90, "INODES_TIGHT"),
        (50 * GIB, 25 * GIB, 15, "INODES_FULL"),
    ],
)
def test_a_task_needs_free_space_and_free_inodes(total: int, free: int, inodes_free: int, code: str | None) -> None:
    """A twentieth of a disk below 100 GiB, 5 GiB above, at most 97 % in use; 2 % of the inodes."""
    assert Pod().passes(15, disk=disk(total, free, 1000, inodes_free)).codes == ({code} if code else set())


def test_a_file_system_without_inodes_and_an_unreadable_one_are_not_full() -> None:
    """Some file systems count no inodes. Unknown is not full."""
    assert Pod().passes(15, disk=disk(50 * GIB, 25 * GIB, 0, 0)).codes == set()
    assert Pod().passes(15, disk=None).codes == set()


def test_another_volume_that_is_full_only_warns() -> None:
    """It may be full of data that no task writes to; a new pod would find the same volume."""
    found = Pod().passes(15, volumes=[disk(50 * GIB, GIB, path="/workspace")]).found
    assert {code: one.severity for code, one in found.items()} == {"VOLUME_FULL": "M"}
    assert found["VOLUME_FULL"].evidence == "/workspace: 1024 of 51200 MiB are free"


def test_directories_that_hold_the_inodes_are_named(tmp_path: Path) -> None:
    """A cache behind a link too, and a loop of links ends."""
    cache, home = tmp_path / "cache", tmp_path / "home"
    for folder, count in ((cache, 150), (home / "few", 3)):
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / str(number)).touch()
    (home / "link").symlink_to(cache)
    (cache / "loop").symlink_to(home)
    assert crowded_directories([str(home), str(tmp_path / "missing")]) == f"{cache} has 151"


def test_memory_is_tight_after_a_minute_above_its_share() -> None:
    pod = Pod().passes(600).passes(45, memory_share=0.9)
    assert pod.codes == set()
    assert pod.passes(30).found["MEMORY_TIGHT"].evidence == "90% of the memory limit are in use"
    evidence = pod.passes(15, memory_share=0.91, processes=(17, 4200 << 20)).found["MEMORY_TIGHT"].evidence
    assert evidence == "91% of the memory limit are in use: 17 processes, the largest has 4200 MiB"
    assert pod.passes(15, memory_share=None).codes == set()


def test_a_kill_for_memory_stops_claims_for_a_minute() -> None:
    """The counter counts from the agent's start: what it was before says nothing of this worker."""
    pod = Pod().passes(60, oom_kills=7).passes(15, oom_kills=9)
    assert pod.found["OOM_KILLED"].severity == "H"
    assert pod.found["OOM_KILLED"].evidence == "the OOM killer ended 2 process(es) of this pod"
    assert pod.passes(15, oom_kills=None).codes == {"OOM_KILLED"}  # the loss of a signal takes nothing back
    assert pod.passes(60, oom_kills=9).codes == set()


def test_a_throttled_task_with_an_idle_gpu_is_a_finding() -> None:
    """Throttling alone is what a quota is for."""
    pod = Pod()
    pod.throttled_share = 0.4
    assert pod.passes(600, smi(gpu(util="95"))).codes == set()
    assert "CPU_THROTTLED" not in pod.passes(120, smi(gpu(util="10"))).codes
    assert pod.passes(300, smi(gpu(util="10"))).found["CPU_THROTTLED"].severity == "M"
    assert "CPU_THROTTLED" not in pod.passes(60, smi(gpu(util="[N/A]"))).codes
    pod.throttled_share = 0.1
    assert "CPU_THROTTLED" not in pod.passes(600, smi(gpu(util="10"))).codes


def test_a_noisy_neighbour_is_a_note_if_our_threads_wait_and_our_slice_has_room() -> None:
    busy = smi()
    assert Pod().passes(600, busy, load=490.0, pressure=30.0).found["NOISY_NEIGHBOUR"].severity == "I"
    assert Pod().passes(600, busy, load=490.0, pressure=1.0).codes == set()
    assert Pod().passes(600, busy, load=490.0, pressure=None).codes == set()
    ours = Pod()
    ours.cores = 11.9  # of 12: what we wait for is our own quota
    assert ours.passes(600, busy, load=490.0, pressure=30.0).codes == set()


def test_a_task_without_any_sign_of_life_is_shown_as_stalled() -> None:
    """Ten minutes without a report, output, processor time and GPU time. Each of them alone is a sign of life."""
    idle = smi(gpu(util="0", sm="210", power="70"))

    def silent(**changed: Any) -> Pod:
        pod = Pod()
        pod.reports, pod.cores = False, 0.0
        for name, value in changed.items():
            setattr(pod, name, value)
        return pod

    assert silent().passes(590, idle).codes == set()
    stalled = silent().passes(690, idle).found
    assert {code: one.severity for code, one in stalled.items()} == {"TASK_STALLED": "M"}
    assert "TASK_STALLED" not in silent(reports=True).passes(900, idle).codes
    assert "TASK_STALLED" not in silent(cores=0.5).passes(900, idle).codes
    assert "TASK_STALLED" not in silent(task=None).passes(900, idle).codes
    assert "TASK_STALLED" not in silent().passes(900, smi(gpu(util="40"))).codes
    assert "TASK_STALLED" not in silent().passes(900, smi(gpu(util="[N/A]"))).codes
    assert "TASK_STALLED" not in silent().passes(900).codes  # nvidia-smi does not answer
    assert "TASK_STALLED" not in silent().passes(420, idle).passes(420, idle, log_bytes=2000).codes


def test_a_pod_that_was_frozen_has_no_past() -> None:
    """Two readings an hour apart are no hour of silence."""
    pod = Pod()
    pod.reports, pod.cores = False, 0.0
    idle = smi(gpu(util="0"))
    pod.passes(300, idle)
    pod.now_s += 3600
    assert pod.passes(60, idle).codes == set()


def test_a_task_that_works_on_the_processors_is_a_note() -> None:
    found = Pod().passes(600, smi(gpu(util="2", sm="210", power="70"))).found
    assert {code: one.severity for code, one in found.items()} == {"CPU_BOUND": "I"}


def test_the_list_is_bounded_and_the_worst_come_first(findings: FindingList) -> None:
    """Hostile evidence is cut, and holds no control characters."""
    every = [Found(code, 0.0, "\x1b[2J\0\n" + "x" * 10_000) for code in CODES]
    findings.update("window", every)
    told = health(findings)[protocol.FINDINGS]
    assert len(CODES) > len(told) == MAX_FINDINGS
    assert [SEVERITIES.index(one["severity"]) for one in told] == sorted(
        SEVERITIES.index(one["severity"]) for one in told
    )
    assert all(len(one["evidence"]) <= EVIDENCE_CHARS and one["evidence"].isprintable() for one in told)
    assert len(json.dumps(told)) < 16 << 10
    assert set(told[0]) == {"u", "code", "severity", "since", "evidence"}


def test_a_finding_keeps_its_beginning_and_its_evidence(findings: FindingList) -> None:
    """Otherwise each heartbeat would carry the free bytes of that moment."""
    findings.update("disk", [Found("DISK_FULL", 100.0, "28 of 51200 MiB are free")])
    first = dict(health(findings))
    findings.update("disk", [Found("DISK_FULL", 115.0, "27 of 51200 MiB are free")])
    assert health(findings) == first
    assert first[protocol.DISK]["why"] == "28 of 51200 MiB are free"
    findings.update("disk", [])
    assert health(findings) == {}


def test_findings_of_severity_c_and_h_stop_claims(findings: FindingList) -> None:
    findings.update("window", [Found("XID_13", 1.0, "an illegal access"), Found("GPU_STARVED", 1.0, "slow")])
    assert findings.blocking() is None
    findings.update("disk", [Found("DISK_FULL", 1.0, "none free")])
    assert findings.blocking() == "DISK_FULL: none free"
    findings.update("window", [Found("XID_79", 1.0, "fallen off the bus")])
    assert findings.blocking() == "XID_79: fallen off the bus"


def test_many_small_files_are_worth_a_warning() -> None:
    """U25: more than 10,000 of any size, or a thousand below 64 KiB on average; a few small ones are not."""
    for files, size, expected in ((10_001, 1 << 40, True), (1_000, 1_000, True), (999, 999, False), (5, 0, False)):
        assert bool(many_small_files(files, size, 0.0)) is expected
    assert many_small_files(1_000, 1_000 * (64 << 10), 0.0) is None
    assert many_small_files(0, 0, 0.0) is None
