"""An hour of normal noise yields no finding. Seeded, so that it is the same hour each time."""

import random

import pytest

from tests.unit.worker.build import READ_S, SMI_S, Pod, gpu, smi
from worker.nvidia_smi import SmiReading

HOUR_S = 3600.0
EPOCH_S = 420.0  # of training, then an evaluation without the GPU
SPOT_FAILURES = (
    SmiReading(None, why="no answer within 4 s"),
    SmiReading(None, why="Failed to initialize NVML: Unknown Error"),
    SmiReading(None, lost="Unable to determine the device handle for GPU0000:41:00.0: Unknown Error"),
    SmiReading([]),
)
NEIGHBOURS = ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06", "Memory cgroup out of memory: Killed 4711")


def answer(chance: random.Random, at_s: float) -> SmiReading:
    """Training with a sawtooth: warm and fast, then a pause in which clocks and power fall."""
    works = at_s % EPOCH_S < EPOCH_S * 0.8
    util = chance.uniform(75, 100) if works else chance.uniform(0, 30)
    return smi(gpu(
        util=f"{util:.0f}", temperature=f"{chance.uniform(74, 81):.0f}",
        power=f"{chance.uniform(450, 690) if works else 120:.2f}", sm=f"{1900 if works else 345}",
        used=f"{chance.uniform(60_000, 75_000):.0f}", free="6000",
        reasons="0x0000000000000004" if works else "0x0000000000000001",
    ))  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_an_hour_of_normal_noise_yields_nothing(seed: int) -> None:
    """Sawtooth utilisation, 80 °C, a power cap, host load 490, rare reports, spot failures of nvidia-smi.

    Corrected memory errors are not even asked for.
    """
    chance, pod = random.Random(seed), Pod()
    failed_s = 0.0
    for _ in range(int(HOUR_S / READ_S)):
        pod.reports = chance.random() < 0.3
        pod.cores = chance.uniform(0.5, 11.5)
        pod.throttled_share = chance.choice((0.0, 0.0, 0.5))
        pod.passes(
            READ_S, load=chance.uniform(300, 490), pressure=chance.uniform(0, 9),
            memory_share=chance.uniform(0.3, 0.84),
            log_bytes=pod.fields["log_bytes"] + chance.choice((0, 0, 100)),
        )  # fmt: skip
        if pod.now_s % SMI_S < READ_S:
            fails = pod.now_s - failed_s > 300 and chance.random() < 0.2  # a spot failure, never two in a row
            failed_s = pod.now_s if fails else failed_s
            pod.asks(chance.choice(SPOT_FAILURES) if fails else answer(chance, pod.now_s))
        if chance.random() < 0.1:
            pod.logs(chance.choice(NEIGHBOURS))
        assert pod.codes == set(), f"after {pod.now_s - 10_000:.0f} s"


def test_an_idle_hour_yields_nothing() -> None:
    """A worker that waits for work: no task, no load, and warm hosts that hold their models."""
    pod = Pod()
    pod.task, pod.cores = None, 0.0
    assert pod.passes(HOUR_S, smi(gpu(util="0", sm="210", power="70", used="40000", temperature="40"))).codes == set()


def test_what_a_neighbour_does_is_a_note_at_most() -> None:
    """An Xid of its GPU, and a load that our threads feel."""
    pod = Pod().asks(smi()).logs("NVRM: Xid (PCI:0000:9a:00): 79, pid=1, GPU has fallen off the bus.")
    pod.passes(420, smi(), load=490.0, pressure=40.0)
    assert {code: one.severity for code, one in pod.found.items()} == {"XID_FOREIGN": "I", "NOISY_NEIGHBOUR": "I"}
