"""Rules about the host and the running task: volumes, memory, processors, and GPU use."""

from __future__ import annotations

from .findings import Found, lasts, trailing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .readings import MachineReading
    from .window import ReadingWindow, SmiSample

MEMORY_SHARE, MEMORY_S = 0.85, 60.0
OOM_SHOWN_S = 60.0  # seconds; afterwards the memory is free again, and the ended handler host is gone
THROTTLED_SHARE, THROTTLED_UTIL, THROTTLED_S = 0.25, 20.0, 300.0
MIN_PERIODS = 100  # periods of the scheduler: ten seconds of work
NOISY_LOAD, NOISY_S = 2.0, 300.0  # times the host's processors
ROOM_SHARE = 0.8  # share of the slice's processors: below it, the slice itself has room
PRESSURE_PERCENT = 10.0  # percent of the time; less than that is not worth a note
IDLE_UTIL = 5.0
STALLED_S, STALLED_CORES = 600.0, 0.02
BOUND_S, BOUND_CORES = 300.0, 0.5
SMI_SLACK_S = 75.0  # seconds: nvidia-smi is asked every 60 s, so its newest answers cover a little less than the window


def of_host(window: ReadingWindow) -> list[Found]:
    """Return the findings about volumes, memory, processors and the running task."""
    readings = list(window.readings)
    if not readings:
        return []
    found: list[Found | None] = [
        volume_full(readings[-1]),
        memory_tight(readings),
        oom_killed(readings),
        cpu_throttled(readings, list(window.smi)),
        noisy_neighbour(readings),
        cpu_bound(readings, list(window.smi)),
        task_stalled(readings, list(window.smi)),
    ]
    return [one for one in found if one]


def volume_full(reading: MachineReading) -> Found | None:
    """U6 and U7: another full volume is only a warning. It may hold data that no task writes to."""
    full = [volume for volume in reading.volumes if volume.is_full or volume.inodes_are_full]
    evidence = "; ".join(f"{one.path}: {one.space if one.is_full else one.files}" for one in full)
    return Found("VOLUME_FULL", reading.at_s, evidence) if full else None


def memory_tight(readings: Sequence[MachineReading]) -> Found | None:
    """U9: more than 85 % of the cgroup's limit is in use, without page cache. Often each loader process has a copy."""
    run = trailing(readings, lambda one: one.memory_share is not None and one.memory_share > MEMORY_SHARE)
    if not lasts(run, MEMORY_S):
        return None
    evidence = f"{run[-1].memory_share or 0:.0%} of the memory limit are in use"
    if run[-1].processes:
        count, largest = run[-1].processes
        evidence += f": {count} processes, the largest has {largest >> 20} MiB"
    return Found("MEMORY_TIGHT", run[0].at_s, evidence)


def oom_killed(readings: Sequence[MachineReading]) -> Found | None:
    """U9: the kernel has ended a process of this pod because of the memory limit."""
    known = [one for one in readings if one.oom_kills is not None]
    for before, after in zip(known[-2::-1], known[:0:-1]):
        kills = (after.oom_kills or 0) - (before.oom_kills or 0)
        if known[-1].at_s - after.at_s > OOM_SHOWN_S:
            return None
        if kills > 0:
            return Found("OOM_KILLED", after.at_s, f"the OOM killer ended {kills} process(es) of this pod")
    return None


def cpu_throttled(readings: Sequence[MachineReading], smi: Sequence[SmiSample]) -> Found | None:
    """U40: the slice's quota stops the threads of a task whose GPU waits."""
    run = trailing(readings, lambda one: one.task is not None and one.periods is not None and one.throttled is not None)
    if not lasts(run, THROTTLED_S) or not gpus_stay_below(smi, THROTTLED_UTIL, THROTTLED_S):
        return None
    first = next(one for one in reversed(run) if run[-1].at_s - one.at_s >= THROTTLED_S)
    periods = (run[-1].periods or 0) - (first.periods or 0)
    throttled = (run[-1].throttled or 0) - (first.throttled or 0)
    if periods < MIN_PERIODS or throttled <= periods * THROTTLED_SHARE:
        return None
    cpus = f" of {run[-1].cpus:g} CPUs" if run[-1].cpus else ""
    evidence = (
        f"throttled in {throttled / periods:.0%} of the periods by its quota{cpus}, GPU below {THROTTLED_UTIL:g} %"
    )
    return Found("CPU_THROTTLED", first.at_s, evidence)


def noisy_neighbour(readings: Sequence[MachineReading]) -> Found | None:
    """U41: the host's load is high and the pod's slice has room, but its threads wait for a processor."""

    def is_noisy(one: MachineReading) -> bool:
        if one.load is None or one.host_cpus is None or one.pressure is None:
            return False
        return one.load > NOISY_LOAD * one.host_cpus and one.pressure >= PRESSURE_PERCENT

    run = trailing(readings, is_noisy)
    if not lasts(run, NOISY_S):
        return None
    first, last = run[0], run[-1]
    if last.cpu_s is None or first.cpu_s is None or not last.cpus:
        return None
    if last.cpu_s - first.cpu_s > ROOM_SHARE * last.cpus * (last.at_s - first.at_s):
        return None
    evidence = f"host load {last.load:.0f} on {last.host_cpus} CPUs; our threads wait {last.pressure:.0f} % of the time"
    return Found("NOISY_NEIGHBOUR", first.at_s, evidence)


def cpu_bound(readings: Sequence[MachineReading], smi: Sequence[SmiSample]) -> Found | None:
    """U38: the GPU idles while the task progresses on the processors."""
    run = _same_task(readings)
    if not lasts(run, BOUND_S) or not gpus_stay_below(smi, IDLE_UTIL, BOUND_S):
        return None
    first, last = run[0], run[-1]
    progresses = any(one.progress is not last.progress or one.log_bytes != last.log_bytes for one in run)
    cores = _cores(first, last)
    if not progresses or cores is None or cores < BOUND_CORES:
        return None
    evidence = f"GPU at most {IDLE_UTIL:g} % busy, {cores:.1f} CPUs in use, and the task progresses"
    return Found("CPU_BOUND", first.at_s, evidence)


def task_stalled(readings: Sequence[MachineReading], smi: Sequence[SmiSample]) -> Found | None:
    """U38: no report, output, processor time or GPU time for ten minutes. Only the stuck rule ends a task."""
    run = _same_task(readings)
    run = trailing(run, lambda one: one.progress is run[-1].progress and one.log_bytes == run[-1].log_bytes)
    if not lasts(run, STALLED_S) or not gpus_stay_below(smi, IDLE_UTIL, STALLED_S):
        return None
    cores = _cores(run[0], run[-1])
    if cores is None or cores > STALLED_CORES:
        return None
    return Found("TASK_STALLED", run[0].at_s, "no progress report, no output, and neither CPU nor GPU in use")


def gpus_stay_below(smi: Sequence[SmiSample], util: float, seconds: float) -> bool:
    """Return whether every GPU was known to be at most so busy for so long."""

    def is_below(one: SmiSample) -> bool:
        gpus = one.gpus
        return bool(gpus) and all(gpu.util is not None and gpu.util <= util for gpu in gpus or ())

    return lasts(trailing(smi, is_below), seconds - SMI_SLACK_S)


def _same_task(readings: Sequence[MachineReading]) -> list[MachineReading]:
    task = readings[-1].task
    return trailing(readings, lambda one: one.task == task and task is not None and one.log_bytes is not None)


def _cores(first: MachineReading, last: MachineReading) -> float | None:
    """Return the processors that the pod used on average."""
    if first.cpu_s is None or last.cpu_s is None or last.at_s <= first.at_s:
        return None
    return (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s)
