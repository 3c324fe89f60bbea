"""nvidia-smi as a program: its answers, its refusals and its silence."""

import sys
from pathlib import Path

import pytest

from tests.process.worker.machine import Machine
from worker import nvidia_smi
from worker.limited import run_limited
from worker.nvidia_smi import GpuState, NvidiaSmi, unattributed_mib


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path / "machine", gpus=2)
    for name, value in made.install(sys.executable).items():
        monkeypatch.setenv(name, value)
    return made


def gpus() -> list[GpuState]:
    """What one answer shows."""
    found = NvidiaSmi().read().gpus
    assert found is not None
    return found


def without(machine: Machine, *fields: str) -> None:
    """A driver that does not know these fields."""
    path = machine.path / "gpus.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()]
    columns = [rows[0].index(field) for field in fields]
    kept = [[word for n, word in enumerate(row) if n not in columns] for row in rows]
    path.write_text("".join(",".join(row) + "\n" for row in kept))


def test_each_gpu_is_read(machine: Machine) -> None:
    machine.shows(utilization__gpu="93", temperature__gpu="71", clocks_event_reasons__active="0x0000000000000040")
    first, second = gpus()
    assert (first.index, first.bus, second.bus) == ("0", "0:1:0", "0:2:0")
    assert (first.util, first.temperature, first.thermal, first.recovery, first.ecc) == (93, 71, True, "None", 0)


def test_what_a_driver_does_not_know_is_unknown_and_the_rest_is_read(machine: Machine) -> None:
    """It refuses a query for the first field that it does not know."""
    without(machine, "clocks_event_reasons.active", "gpu_recovery_action")
    smi = NvidiaSmi()
    for answer in (smi.read(), smi.read()):
        assert [(gpu.recovery, gpu.thermal, gpu.ecc) for gpu in answer.gpus or ()] == [(None, None, 0)] * 2


@pytest.mark.parametrize("value", ["[N/A]", "[Not Supported]", "[Unknown Error]", "ERR!", "", "nan", "-1", "1e9"])
def test_a_value_that_is_no_number_is_unknown(machine: Machine, value: str) -> None:
    machine.shows(utilization__gpu=value, gpu_recovery_action=value)
    gpu, _ = gpus()
    assert gpu.util is None
    assert gpu.recovery in {None, "nan"}


def test_a_gpu_that_does_not_answer_is_lost_and_other_errors_are_unknown(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.says("lost")
    answer = NvidiaSmi().read()
    assert (answer.gpus, answer.lost[:39]) == (None, "Unable to determine the device handle f")
    machine.ails(zero_gpus="")
    assert NvidiaSmi().read().gpus == []
    machine.says("absent")
    answer = NvidiaSmi().read()
    assert (answer.gpus, answer.lost, answer.why) == (None, "", "nvidia-smi: not found")
    monkeypatch.setenv("PATH", str(machine.path))
    assert NvidiaSmi().read().why == "No such file or directory"


def test_silence_and_a_flood_are_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both end as unknown, and the program is gone."""
    with monkeypatch.context() as patch:
        patch.setattr(nvidia_smi, "LIMIT_S", 0.3)
        machine.says("hang")
        assert NvidiaSmi().read().why == "no answer within 0.3 s"
    monkeypatch.setattr(nvidia_smi, "LIMIT_S", 60.0)
    machine.says("flood")
    assert NvidiaSmi().read().why == "more than 64 KiB of output"


def test_memory_that_no_listed_program_uses_is_counted(machine: Machine) -> None:
    machine.shows(memory__used="9000")
    shown = gpus()
    assert unattributed_mib(shown) == ({gpu.uuid: 9000.0 for gpu in shown}, False)
    (machine.path / "apps").write_text(f"{shown[0].uuid}, 41, 5000\n{shown[0].uuid}, 42, 3000\n")
    assert unattributed_mib(shown) == ({shown[0].uuid: 1000.0, shown[1].uuid: 9000.0}, True)
    (machine.path / "apps").write_text(f"{shown[0].uuid}, 41, [N/A]\n")
    assert unattributed_mib(shown) == (None, False)


def test_of_a_long_output_the_end_is_kept() -> None:
    script = "i=0; while [ $i -lt 40000 ]; do echo line $i; i=$((i+1)); done"
    answer = run_limited(["sh", "-c", script], 20, 1 << 20, 100_000)
    assert answer.status == 0
    assert answer.text.endswith("line 39999\n")
    assert len(answer.text) < 200_000
