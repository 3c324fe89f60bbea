"""A disk that fills while tasks run: a real small file system where the tests may mount one."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process.worker.machine import Machine
from tests.process.worker.scripted import Orchestrator, Pod, wait_for
from worker import protocol

FAST = {"monitor_s": 0.1}
BLOCK = 16 << 10


@dataclass
class SmallDisk:
    """The disk of a pod. Without the right to mount one, the agent's statvfs answers from the machine's files."""

    home: Path
    machine: Machine
    is_real: bool

    def fill(self) -> None:
        if not self.is_real:
            self.machine.ails(disk_full="")
            return
        with (self.home / "filler").open("wb") as file:
            while (left := _free(self.home)) > 2 * BLOCK:
                file.write(bytes(min(BLOCK, left)))
                file.flush()

    def crowd(self) -> None:
        if not self.is_real:
            self.machine.ails(no_inodes="")
            return
        (self.home / "samples").mkdir()
        number = 0
        while _inodes(self.home) < 0.99:
            (self.home / "samples" / str(number)).symlink_to("x")  # takes an inode, and no block
            number += 1

    def clean(self) -> None:
        self.machine.ails()
        for path in [self.home / "filler", *self.home.glob("samples/*")]:
            path.unlink(missing_ok=True)


def _free(path: Path) -> int:
    system = os.statvfs(path)
    return system.f_bavail * system.f_frsize


def _inodes(path: Path) -> float:
    system = os.statvfs(path)
    return 1 - system.f_favail / system.f_files


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    home = tmp_path / "pod-0"  # where make_pod puts the first pod
    home.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m,nr_inodes=600", "tmpfs", str(home)]
    is_real = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield SmallDisk(home, Machine(tmp_path / "machine"), is_real)
    if is_real:
        subprocess.run(["umount", "-l", str(home)], check=True)


@pytest.fixture
def pod(small_disk: SmallDisk, make_pod: Callable[..., Pod]) -> Pod:
    made = make_pod()
    made.env = small_disk.machine.install(sys.executable)
    if not small_disk.is_real:
        made.python = str(small_disk.machine.bin / "python3")
    return made


@pytest.mark.parametrize(
    ("happen", "code"), [(SmallDisk.fill, "DISK_FULL"), (SmallDisk.crowd, "INODES_FULL")], ids=["bytes", "inodes"]
)
def test_a_pod_without_room_claims_nothing_until_it_has_room_again(
    orchestrator: Orchestrator, pod: Pod, small_disk: SmallDisk, happen: Callable[[SmallDisk], None], code: str
) -> None:
    """A task that could not write would fail, and so would the next one."""
    pod.start({"true": "cmd:true"}, **FAST, system_root=str(small_disk.machine.path / "root"))
    orchestrator.submit("before", "true")
    orchestrator.completion("before")
    happen(small_disk)
    orchestrator.until(lambda: code in orchestrator.findings())
    assert orchestrator.findings()[code]["severity"] == "H"
    assert orchestrator.health[protocol.DISK]["why"] == orchestrator.findings()[code]["evidence"]
    orchestrator.submit("after", "true")
    beats = orchestrator.count(protocol.HEARTBEAT)
    orchestrator.until(lambda: orchestrator.count(protocol.HEARTBEAT) > beats + 5)
    assert orchestrator.running == {}
    small_disk.clean()
    orchestrator.completion("after")
    orchestrator.until(lambda: orchestrator.findings() == {})
    assert protocol.DISK not in orchestrator.health
    if small_disk.is_real and code == "INODES_FULL":
        [began] = [event for event in pod.events("finding_began") if event["code"] == code]
        assert "inodes are in use" in began["evidence"]


def test_a_disk_that_a_task_filled_is_noticed_before_the_next_claim(
    orchestrator: Orchestrator, pod: Pod, small_disk: SmallDisk, tmp_path: Path
) -> None:
    """The call that reports a task claims the next one: it reads the disk as well, and no monitor has to."""
    gate = tmp_path / "gate"
    wait = f"cmd:sh -c 'until [ -e {gate} ]; do sleep 0.02; done'"
    handlers = {"wait": wait, "true": "cmd:true"}
    pod.start(handlers, monitor_s=3_600, system_root=str(small_disk.machine.path / "root"))
    orchestrator.submit("fills", "wait")
    orchestrator.until(lambda: "fills" in orchestrator.running)
    orchestrator.submit("next", "true")
    small_disk.fill()
    gate.touch()
    orchestrator.completion("fills")
    orchestrator.until(lambda: "DISK_FULL" in orchestrator.findings())
    assert [task["id"] for task in orchestrator.queued] == ["next"]
    small_disk.clean()
    orchestrator.completion("next")


@pytest.mark.parametrize("happen", [SmallDisk.fill, SmallDisk.crowd], ids=["bytes", "inodes"])
def test_an_agent_without_room_still_records_that_it_gets_no_answer(
    orchestrator: Orchestrator, pod: Pod, small_disk: SmallDisk, happen: Callable[[SmallDisk], None]
) -> None:
    """Otherwise the orchestrator would take it for an agent that makes no calls, and end it with its tasks."""
    pod.start({"true": "cmd:true"}, **FAST, system_root=str(small_disk.machine.path / "root"))
    orchestrator.until(lambda: orchestrator.count(protocol.HEARTBEAT))
    happen(small_disk)
    if small_disk.is_real and happen is SmallDisk.fill:
        with contextlib.suppress(OSError), (small_disk.home / "filler").open("ab") as file:
            while True:
                file.write(bytes(512))
                file.flush()
    orchestrator.down()
    wait_for(pod.calls_unanswered)
    orchestrator.up()
