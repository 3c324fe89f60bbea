"""What answers of nvidia-smi and lines of the kernel log mean."""

from pathlib import Path

import pytest

from tests.unit.worker.build import H100, Pod, gpu, smi
from worker.findings import CODES
from worker.gpu_findings import is_suspicious
from worker.nvidia_smi import SmiReading
from worker.readings import has_gpu_device
from worker.xids import XID_SEVERITIES

XID = "NVRM: Xid (PCI:0000:41:00): {}, pid='<unknown>', name=<unknown>, something failed"
THEIRS = "NVRM: Xid (PCI:0000:9a:00): 79, pid=1, GPU has fallen off the bus."
LOST = SmiReading(None, lost="Unable to determine the device handle for GPU0000:41:00.0: Unknown Error")
NO_ANSWER = SmiReading(None, why="no answer within 4 s")
SECOND = {"index": "1", "uuid": "GPU-1", "pci.bus_id": "00000000:5D:00.0"}


@pytest.mark.parametrize(("number", "severity"), XID_SEVERITIES.items())
def test_an_xid_of_our_gpu_is_a_finding(number: int, severity: str) -> None:
    """C stays; M and I are shown for ten minutes."""
    pod = Pod().asks(smi()).logs(XID.format(number))
    (found,) = pod.found.values()
    assert (found.code, found.severity) == (f"XID_{number}", severity)
    assert f"Xid (0000:41:00): {number}, pid=" in found.evidence
    assert pod.passes(900, smi()).codes == ({f"XID_{number}"} if severity == "C" else set())


def test_a_second_nvlink_error_is_fatal_and_the_lines_of_one_event_are_one() -> None:
    pod = Pod().asks(smi()).logs(XID.format(74)).logs(XID.format(74))
    assert pod.codes == {"XID_74"}
    pod.passes(60, smi()).logs(XID.format(74))
    assert {one.severity for one in pod.found.values()} == {"C"}
    assert pod.codes == {"XID_74_REPEATED"}


def test_the_xid_of_another_containers_gpu_is_a_note() -> None:
    """All containers of a host share its kernel log."""
    found = Pod().asks(smi()).logs(THEIRS).found
    assert {code: one.severity for code, one in found.items()} == {"XID_FOREIGN": "I"}


@pytest.mark.parametrize(("line", "code"), [(THEIRS, "XID_FOREIGN"), (XID.format(79), "XID_79")])
def test_an_xid_waits_while_our_addresses_are_unknown(line: str, code: str) -> None:
    """All pods of the host share the log: another pod's GPU must not end this worker. The first answer decides."""
    pod = Pod().passes(15).logs(line)
    assert pod.codes == set()
    assert pod.window.xids.unclaimed
    assert pod.asks(NO_ANSWER).codes == set()
    assert pod.asks(smi()).codes == {code}
    assert not pod.window.xids.unclaimed


def test_the_xids_that_wait_are_bounded() -> None:
    """The newest ones are kept."""
    pod = Pod().passes(15)
    for number in range(1_000):
        pod.logs(XID.format(number))
    assert len(pod.window.xids.unclaimed) <= 64


def test_an_xid_that_the_table_lacks_is_a_note() -> None:
    pod = Pod().asks(smi()).logs(XID.format(154)).logs(XID.format(999999999))
    assert {code: one.severity for code, one in pod.found.items()} == {"XID_OTHER": "I"}
    assert len(pod.window.xids.others) == 1


@pytest.mark.parametrize("line", ["NVRM: Xid (" * 500, "Xid 79", "NVRM: Xid (PCI:0000:41:00): 79x", "\0" * 1000, ""])
def test_a_hostile_line_is_no_xid(line: str) -> None:
    assert Pod().asks(smi()).logs(line).codes == set()


def test_a_gpu_is_lost_if_two_answers_say_so() -> None:
    """nvidia-smi fails now and then: an answer that is unknown neither confirms nor denies."""
    pod = Pod().asks(smi(), LOST)
    assert pod.codes == set()
    assert is_suspicious(pod.window)  # so that it is asked again soon
    assert pod.asks(NO_ANSWER).codes == set()
    found = pod.asks(LOST).found
    assert (found["GPU_LOST"].severity, found["GPU_LOST"].evidence) == ("C", LOST.lost)
    assert pod.asks(smi()).codes == set()


def test_a_driver_that_gives_no_answer_is_checked_before_the_next_claim() -> None:
    """The running task goes on. Two checks without an answer end the worker; any answer ends the doubt."""
    pod = Pod().asks(smi(), *[NO_ANSWER] * 4)
    assert pod.codes == set()
    found = pod.asks(NO_ANSWER).found
    assert {code: (one.severity, one.evidence) for code, one in found.items()} == {
        "GPU_UNCHECKED": ("H", f"nvidia-smi: {NO_ANSWER.why or 'no answer'}")
    }
    assert pod.asks(smi()).codes == set()
    check = SmiReading(None, why="no answer within 15 s")
    check.is_check = True
    assert pod.asks(*[NO_ANSWER] * 5, check).codes == {"GPU_UNCHECKED"}
    assert pod.asks(check).found["GPU_HUNG"].severity == "C"
    assert pod.asks(smi()).codes == set()


def test_a_machine_whose_nvidia_smi_never_answered_is_unknown() -> None:
    assert Pod().asks(*[NO_ANSWER] * 20).codes == set()
    absent = SmiReading(None, why="No such file or directory")
    assert Pod(has_device=True).asks(*[absent] * 20).codes == set()


def test_an_agent_that_starts_again_beside_a_hung_driver_has_it_checked() -> None:
    """It never had an answer, but the pod has the device."""
    pod = Pod(has_device=True).asks(*[NO_ANSWER] * 4)
    assert pod.codes == set()
    assert pod.asks(NO_ANSWER).codes == {"GPU_UNCHECKED"}
    check = SmiReading(None, why="no answer within 15 s")
    check.is_check = True
    assert pod.asks(check, check).codes == {"GPU_HUNG"}
    assert pod.asks(smi()).codes == set()


def test_the_device_of_a_gpu_has_its_number_on_the_host(tmp_path: Path) -> None:
    assert not has_gpu_device(str(tmp_path))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert not has_gpu_device(str(tmp_path))
    (tmp_path / "dev/nvidia5").touch()
    assert has_gpu_device(str(tmp_path))


def test_a_gpu_that_is_no_longer_shown_is_a_finding() -> None:
    two = smi(gpu(), gpu(**SECOND))
    pod = Pod().asks(two, smi(), two)
    assert pod.codes == set()
    found = pod.asks(smi(), smi()).found
    assert {code: one.severity for code, one in found.items()} == {"GPU_COUNT_DROPPED": "C"}
    assert found["GPU_COUNT_DROPPED"].evidence == "nvidia-smi shows 1 GPUs, it showed 2; missing: GPU 1 at 0:5d:0"
    assert Pod().asks(smi(), SmiReading([]), SmiReading([])).codes == {"GPU_COUNT_DROPPED"}


def test_new_uncorrected_errors_are_fatal_unless_they_were_contained() -> None:
    """Bring-up has checked those from before the agent's start."""
    pod = Pod().asks(smi(gpu(ecc="3"))).asks(smi(gpu(ecc="5")), smi(gpu(ecc="5")))
    assert pod.found["ECC_UNCORRECTED"].severity == "C"
    assert pod.found["ECC_UNCORRECTED"].evidence == "GPU 0: 2 more uncorrected ECC errors"
    pod.logs(XID.format(94))
    assert {code: one.severity for code, one in pod.found.items()} == {"ECC_CONTAINED": "M", "XID_94": "M"}
    assert Pod().asks(*[smi(gpu(ecc="[N/A]"))] * 3).codes == set()


def test_what_the_driver_wants_done_is_fatal() -> None:
    pod = Pod().asks(smi(), smi(gpu(recovery="Reset")))
    assert pod.codes == set()
    assert pod.asks(smi(gpu(recovery="Reset"))).found["GPU_RECOVERY"].severity == "C"
    assert Pod().asks(*[smi(gpu(recovery="[Not Supported]"))] * 3).codes == set()


def test_heat_that_slows_a_busy_gpu_warns_and_stops_claims_after_ten_minutes() -> None:
    hot = smi(gpu(temperature="88", sm="1200"))
    pod = Pod().asks(smi(), smi(), smi(), hot, hot)
    assert pod.codes == set()
    assert pod.asks(hot).found["GPU_HOT"].severity == "M"
    pod.asks(*[hot] * 8)
    assert {code: one.severity for code, one in pod.found.items()} == {"GPU_OVERHEATED": "H"}
    assert pod.found["GPU_OVERHEATED"].evidence == "GPU 0: 88 °C, 1200 of 1980 MHz"
    thermal = smi(gpu(temperature="80", sm="1200", reasons="0x0000000000000040"))
    assert Pod().asks(*[thermal] * 5).codes == {"GPU_HOT"}


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": "88"},  # at full speed
        {"temperature": "80", "sm": "1200", "reasons": "0x0000000000000004"},  # a power cap alone
        {"temperature": "88", "sm": "210", "util": "0"},  # idle
        {"temperature": "[N/A]", "sm": "1200", "reasons": "[N/A]"},
    ],
)
def test_a_hot_or_slow_gpu_alone_is_normal(changed: dict[str, str]) -> None:
    assert Pod().asks(*[smi(gpu(**changed))] * 15).codes.isdisjoint({"GPU_HOT", "GPU_OVERHEATED"})


def test_full_utilisation_at_little_power_is_a_note() -> None:
    assert Pod().asks(*[smi(gpu(util="99", power="200"))] * 3).found["GPU_UNDERFED"].severity == "I"
    assert Pod().asks(*[smi(gpu(util="99", sm="800"))] * 3).codes == {"GPU_UNDERFED"}
    assert Pod().asks(*[smi(gpu(util="99", power="[N/A]", sm="[N/A]"))] * 3).codes == set()


def test_a_gpu_that_waits_for_input_is_a_note_if_the_task_has_become_slower() -> None:
    """Half busy at the rate that it always had is how this task is."""
    half = smi(gpu(util="45", power="400"))
    assert Pod().passes(1200, half, rate=0.0002).codes == set()
    found = Pod().passes(600, half, rate=0.0002).passes(600, half, rate=0.0001).found
    assert {code: one.severity for code, one in found.items()} == {"GPU_STARVED": "I"}
    assert "at 50% of its best rate" in found["GPU_STARVED"].evidence
    silent = Pod().passes(600, half, rate=0.0002)
    silent.reports = False
    assert silent.passes(600, half).codes == set()  # without reports there is no rate


@pytest.mark.parametrize(("users", "is_listed", "is_found"), [(0, False, True), (1, False, False), (1, True, True)])
def test_memory_beside_a_warm_host_is_found_if_it_cannot_be_the_hosts(
    users: int, is_listed: bool, is_found: bool
) -> None:
    """It is not if the host does not use the GPU, or if nvidia-smi lists less for it. An empty list says nothing."""
    held = smi(gpu(used="20000", util="0"))
    held.unattributed_mib, held.lists_programs = {"GPU-0": 20_000.0}, is_listed
    pod = Pod().asks(held, held)
    pod.task, pod.gpu_users = None, users
    assert pod.asks(held, held).codes == ({"GPU_MEMORY_HELD"} if is_found else set())


def test_gpu_memory_in_use_by_no_process_stops_claims_after_a_minute() -> None:
    """Only while no process of ours uses a GPU: what a warm host holds is its model."""
    held = smi(gpu(used="9000", util="0"))
    held.unattributed_mib = {"GPU-0": 9000.0}
    pod = Pod()
    assert pod.asks(held, held, held).codes == set()
    pod.task, pod.gpu_users = None, 0
    assert pod.asks(held).codes == set()
    assert pod.asks(held).found["GPU_MEMORY_HELD"].severity == "H"
    held.unattributed_mib = None
    assert pod.asks(held).codes == set()


def test_too_little_memory_after_an_oom_stops_claims() -> None:
    """The tasks had 70000 MiB in use. Without an OOM, or while our own hosts live, nobody knows what is missing."""
    pod = Pod().asks(smi(gpu(used="70000", free="11000")))
    low = smi(gpu(used="30000", free="51000", util="0"))
    pod.task, pod.gpu_users = None, 0
    assert pod.asks(low, low).codes == set()
    pod.window.vram_oom_s = pod.now_s
    pod.gpu_users = 1
    assert pod.asks(low, low).codes == set()
    pod.gpu_users = 0
    assert pod.asks(low, low).found["VRAM_LOW"].severity == "H"
    assert pod.asks(smi(gpu(used="4", free="81000", util="0"))).codes == set()


def test_two_gpus_with_the_same_fault_are_one_finding() -> None:
    hot = smi(gpu(temperature="88", sm="1200"), gpu(temperature="90", sm="1100", **SECOND))
    assert Pod().asks(*[hot] * 4).found["GPU_HOT"].evidence == (
        "GPU 0: 88 °C, 1200 of 1980 MHz; GPU 1: 90 °C, 1100 of 1980 MHz"
    )


def test_gpus_of_which_nothing_is_known_have_no_findings() -> None:
    """Each field of nvidia-smi's answer is unknown."""
    blank = dict.fromkeys(H100, "[Unknown Error]") | {"index": "0", "uuid": "GPU-0"}
    assert Pod().asks(*[smi(gpu(**blank))] * 20).codes == set()
    assert all(code in CODES for code in Pod().asks(smi()).codes)
