"""A real agent on a machine that becomes sick while tasks run."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.process.worker.machine import BUS, Machine
from tests.process.worker.scripted import Orchestrator, Pod, live, wait_for
from worker import protocol

PodMaker = Callable[..., Pod]
FAST = {"monitor_s": 0.1}
WAITS = """
import os, time

def until(params, task):
    while not os.path.exists(params["gate"]):
        time.sleep(0.02)
    return {"pid": os.getpid()}
"""
XID = f"NVRM: Xid (PCI:{BUS}): {{}}, pid='<unknown>', name=<unknown>, something failed"
OTHER_BUS = "0000:9a:00"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


@pytest.fixture
def pod(make_pod: PodMaker, machine: Machine) -> Pod:
    """An agent whose interpreter, tools and files are those of the machine."""
    made = make_pod({"waits.py": WAITS})
    made.env = machine.install(sys.executable)
    made.python = str(machine.bin / "python3")
    return made


@dataclass
class Gate:
    """Tasks that run until a test opens it."""

    path: Path
    orchestrator: Orchestrator

    def submit(self, name: str) -> None:
        self.orchestrator.submit(name, "wait", {"gate": str(self.path)})

    def open(self) -> None:
        self.path.touch()


@pytest.fixture
def gate(tmp_path: Path, orchestrator: Orchestrator) -> Gate:
    return Gate(tmp_path / "gate", orchestrator)


def busy(orchestrator: Orchestrator, pod: Pod, gate: Gate) -> None:
    """The agent runs the task `held`, and has read its pod at least once."""
    pod.start({"wait": "waits:until"}, **FAST)
    gate.submit("held")
    orchestrator.until(lambda: "held" in orchestrator.running)
    wait_for(lambda: pod.events("host_started") and pod.events("pod_inspected"))


def pid(orchestrator: Orchestrator, name: str) -> int:
    """The handler host that ran a task."""
    return int(orchestrator.completion(name)["p_result_data"]["pid"])


def test_an_xid_during_a_task_is_reported_and_stops_claims(
    orchestrator: Orchestrator, pod: Pod, gate: Gate, machine: Machine
) -> None:
    """The task runs to its end; the next one is for another worker."""
    machine.logs(XID.format(48))  # before the agent's start: bring-up has checked it
    busy(orchestrator, pod, gate)
    machine.logs(XID.format(79).replace(BUS, OTHER_BUS))
    machine.logs(XID.format(79))
    orchestrator.until(lambda: "XID_79" in orchestrator.findings())
    found = orchestrator.findings()
    assert set(found) == {"XID_79", "XID_FOREIGN"}
    assert (found["XID_79"]["u"], found["XID_79"]["severity"]) == (22, "C")
    assert abs(found["XID_79"]["since"] - time.time()) < 60
    gate.open()
    orchestrator.completion("held")
    gate.submit("next")
    beats = orchestrator.count(protocol.HEARTBEAT)
    orchestrator.until(lambda: orchestrator.count(protocol.HEARTBEAT) > beats + 5)
    assert "next" not in orchestrator.running
    assert [event["why"][:6] for event in pod.events("claims_stopped")] == ["XID_79"]


def test_a_claim_that_waits_is_withdrawn(orchestrator: Orchestrator, pod: Pod, machine: Machine) -> None:
    """An idle agent has a claim open for many seconds: a task that comes meanwhile must not begin on this pod."""
    pod.start({"true": "cmd:true"}, **FAST, claim_wait_s=30)
    wait_for(lambda: pod.events("pod_inspected"))
    orchestrator.until(lambda: orchestrator.count(protocol.CLAIM))
    machine.logs(XID.format(79))
    orchestrator.until(lambda: "XID_79" in orchestrator.findings())
    orchestrator.until(lambda: orchestrator.calls_of(protocol.CLAIM)[-1]["p_wait_s"] == 0)
    orchestrator.submit("t", "true")
    beats = orchestrator.count(protocol.HEARTBEAT)
    orchestrator.until(lambda: orchestrator.count(protocol.HEARTBEAT) > beats + 5)
    assert orchestrator.running == {}


def test_after_a_programs_xid_the_next_task_gets_a_new_handler_host(
    orchestrator: Orchestrator, pod: Pod, gate: Gate, machine: Machine
) -> None:
    """The running task goes on, and the worker claims more."""
    busy(orchestrator, pod, gate)
    machine.logs(XID.format(31))
    orchestrator.until(lambda: "XID_31" in orchestrator.findings())
    assert orchestrator.findings()["XID_31"]["severity"] == "M"
    gate.open()
    first = pid(orchestrator, "held")
    gate.submit("second")
    second = pid(orchestrator, "second")
    gate.submit("third")
    assert first != second == pid(orchestrator, "third")
    assert len(pod.events("hosts_replaced")) == 1
    assert not pod.events("claims_stopped")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda machine: machine.says("lost"), "GPU_LOST"),
        (lambda machine: machine.ails(gpu_missing=""), "GPU_COUNT_DROPPED"),
        (lambda machine: machine.shows(ecc__errors__uncorrected__volatile__total="2"), "ECC_UNCORRECTED"),
        (lambda machine: machine.shows(gpu_recovery_action="Reboot"), "GPU_RECOVERY"),
    ],
)
def test_a_gpu_that_fails_during_a_task_is_reported(
    orchestrator: Orchestrator, pod: Pod, gate: Gate, machine: Machine, change: Callable[[Machine], None], code: str
) -> None:
    """The agent ends nothing: the orchestrator decides."""
    machine.gpus = 2
    machine.ails()
    busy(orchestrator, pod, gate)
    change(machine)
    orchestrator.until(lambda: code in orchestrator.findings())
    assert orchestrator.findings()[code]["severity"] == "C"
    gate.open()
    orchestrator.completion("held")


def test_the_kernel_log_is_read_by_dmesg_where_there_is_no_device(
    orchestrator: Orchestrator, pod: Pod, machine: Machine
) -> None:
    """Only a line that is newer than the agent counts; a log that may not be read is unknown."""
    machine.kmsg.unlink()
    pod.start({"true": "cmd:true"}, **FAST)
    orchestrator.until(lambda: "kernel_log" in orchestrator.health.get(protocol.UNKNOWN, {}))
    assert "Operation not permitted" in orchestrator.health[protocol.UNKNOWN]["kernel_log"]
    assert orchestrator.findings() == {}
    old, new = (f"[{time.monotonic() - age_s:12.6f}] {XID}\n" for age_s in (500, 0))
    (machine.path / "dmesg").write_text(old.format(48) + new.format(79))
    orchestrator.until(orchestrator.findings)
    assert set(orchestrator.findings()) == {"XID_79"}
    orchestrator.until(lambda: "kernel_log" not in orchestrator.health.get(protocol.UNKNOWN, {}))


def test_a_hanging_nvidia_smi_delays_neither_tasks_nor_heartbeats(
    orchestrator: Orchestrator, pod: Pod, machine: Machine
) -> None:
    """It is killed after 4 s, and a second one does not start before."""
    machine.says("hang")
    pod.start({"true": "cmd:true"}, **FAST)
    hanging = wait_for(lambda: sleepers(machine))
    for number in range(10):
        orchestrator.submit(f"t{number}", "true")
    for number in range(10):
        orchestrator.completion(f"t{number}")
    beats = orchestrator.count(protocol.HEARTBEAT)
    orchestrator.until(lambda: orchestrator.count(protocol.HEARTBEAT) >= beats + 5)
    assert len(sleepers(machine)) <= 1
    wait_for(lambda: not live(hanging))
    assert orchestrator.findings() == {}
    wait_for(lambda: sleepers(machine))
    assert pod.stop() == {"stopped": True}
    wait_for(lambda: not sleepers(machine))


def test_a_driver_that_stops_to_answer_is_checked_after_the_task(
    orchestrator: Orchestrator, pod: Pod, gate: Gate, machine: Machine
) -> None:
    """The running task ends as it would. No other one begins; the agent asks again, and reports that it failed too."""
    busy(orchestrator, pod, gate)
    wait_for(lambda: pod.events("pod_inspected"))
    machine.says("flood")
    orchestrator.until(lambda: "GPU_UNCHECKED" in orchestrator.findings())
    assert "nvidia_smi" in orchestrator.health[protocol.UNKNOWN]
    assert orchestrator.findings()["GPU_UNCHECKED"]["severity"] == "H"
    gate.open()
    orchestrator.completion("held")
    orchestrator.until(lambda: "GPU_HUNG" in orchestrator.findings())
    gate.submit("t")
    machine.says("ok")
    orchestrator.until(lambda: orchestrator.findings() == {})
    orchestrator.completion("t")


def sleepers(machine: Machine) -> list[int]:
    """The instances of nvidia-smi that hang."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("EMULATED_POD") == str(machine.path) and process.cmdline() == ["sleep", "3600"]:
                found.append(process.pid)
    return found


def test_hostile_tools_cost_nothing_but_their_signal(orchestrator: Orchestrator, pod: Pod, machine: Machine) -> None:
    """nvidia-smi prints without end, and the kernel log is full of garbage: the next line in it is still read."""
    pod.start({"true": "cmd:true"}, **FAST)
    wait_for(lambda: pod.events("pod_inspected"))
    before = memory_bytes(pod)
    machine.says("flood")
    with machine.kmsg.open("ab") as log:
        log.write(os.urandom(3 << 20) + b"NVRM: Xid (" * 300_000 + b"\n")
    machine.logs(XID.format(79))
    orchestrator.until(lambda: "XID_79" in orchestrator.findings())
    flood = "more than 64 KiB of output"
    orchestrator.until(lambda: orchestrator.health.get(protocol.UNKNOWN, {}).get("nvidia_smi") == flood)
    assert set(orchestrator.findings()) - {"GPU_UNCHECKED", "GPU_HUNG"} == {"XID_79"}
    assert memory_bytes(pod) - before < 30 << 20


def memory_bytes(pod: Pod) -> int:
    """Of the agent."""
    line = json.loads((pod.run / "agent.json").read_text())
    return int(psutil.Process(line["pid"]).memory_info().rss)


def test_a_heartbeat_carries_only_what_has_changed(orchestrator: Orchestrator, pod: Pod, machine: Machine) -> None:
    """What was not acknowledged is said again."""
    pod.start({"true": "cmd:true"}, **FAST)
    wait_for(lambda: pod.events("pod_inspected"))
    orchestrator.until(lambda: orchestrator.healths.count(None) > 5)
    assert orchestrator.healths[0] is not None
    with orchestrator.changed:
        said = len(orchestrator.healths)
        orchestrator.lose_replies_to = [protocol.HEARTBEAT] * 2
    machine.logs(XID.format(79))
    orchestrator.until(lambda: "XID_79" in orchestrator.findings())
    orchestrator.until(lambda: len(orchestrator.healths) > said + 12)
    with_finding = [one for one in orchestrator.healths[said:] if one and one.get(protocol.FINDINGS)]
    assert 1 <= len(with_finding) <= 3
    assert orchestrator.healths[-1] is None
