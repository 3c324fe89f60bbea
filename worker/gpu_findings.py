"""Rules about GPUs, from the answers of nvidia-smi and the kernel log."""

from __future__ import annotations

from .findings import Found, lasts, trailing
from .xids import XID_SEVERITIES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .nvidia_smi import GpuState
    from .window import ReadingWindow, SmiSample

NO_PROGRAM = "No such file"  # nvidia-smi is not installed: bring-up has decided about that
CONFIRMED = 2  # answers in a row: single failures of nvidia-smi are normal
UNANSWERED = 5  # questions in a row without an answer, after which no task begins before a check
EVENT_SHOWN_S = 600.0  # seconds for which an Xid of severity M or I is shown
HOT_C, HOT_CLOCK, HOT_UTIL = 83.0, 0.75, 25.0
HOT_SAMPLES, HOT_OF = 3, 5
OVERHEATED_S, OVERHEATED_SHARE = 600.0, 0.6
UNDERFED_UTIL, UNDERFED_CLOCK, UNDERFED_POWER, UNDERFED_S = 90.0, 0.5, 0.4, 60.0
STARVED_UTIL, STARVED_S, STARVED_RATE = (10.0, 70.0), 300.0, 0.7  # share of the task's best rate
HELD_MIB, HELD_S = 1024.0, 60.0
CONTAINED = 94  # the Xid of a memory error that affects one program


def of_gpus(window: ReadingWindow) -> list[Found]:
    """Return all findings about GPUs."""
    found = [*_xids(window), *_lost(window), *_unanswered(window), *_per_gpu(window)]
    by_code: dict[str, Found] = {}
    for one in found:  # two GPUs with the same fault are one finding
        known = by_code.setdefault(one.code, one)
        if known is not one:
            known.since_s = min(known.since_s, one.since_s)
            known.evidence = f"{known.evidence}; {one.evidence}"
    return list(by_code.values())


def is_suspicious(window: ReadingWindow) -> bool:
    """Return whether the newest answer shows a fault that another answer must confirm soon."""
    known = [one for one in window.smi if one.is_known][-1:]
    return bool(known) and (
        bool(known[0].lost)
        or len(known[0].gpus or ()) < window.gpu_count
        or any(_wants_recovery(gpu) or _has_ecc(window, gpu) for gpu in known[0].gpus or ())
    )


def _xids(window: ReadingWindow) -> list[Found]:
    now_s = window.readings[-1].at_s if window.readings else 0.0
    found = []
    for number, xid in window.xids.ours.items():
        code = "XID_74_REPEATED" if number == 74 and xid.events > 1 else f"XID_{number}"  # noqa: PLR2004 its number
        lasting = XID_SEVERITIES[number] == "C" or code == "XID_74_REPEATED"
        if lasting or now_s - xid.last_s < EVENT_SHOWN_S:
            found.append(Found(code, xid.since_s, xid.text))
    others = window.xids.others.items()
    found += [Found(code, xid.since_s, xid.text) for code, xid in others if now_s - xid.last_s < EVENT_SHOWN_S]
    return found


def _lost(window: ReadingWindow) -> list[Found]:
    """U22: the driver cannot reach a GPU, or shows fewer GPUs than before."""
    known = [one for one in window.smi if one.is_known]
    lost = trailing(known, lambda one: bool(one.lost))
    if len(lost) >= CONFIRMED:
        return [Found("GPU_LOST", lost[0].at_s, lost[-1].lost)]
    fewer = trailing(known, lambda one: one.gpus is not None and len(one.gpus) < window.gpu_count)
    if len(fewer) >= CONFIRMED:
        present = {gpu.uuid for gpu in fewer[-1].gpus or ()}
        gone = ", ".join(name for uuid, name in window.names.items() if uuid not in present)
        evidence = f"nvidia-smi shows {len(present)} GPUs, it showed {window.gpu_count}; missing: {gone or 'unknown'}"
        return [Found("GPU_COUNT_DROPPED", fewer[0].at_s, evidence)]
    return []


def _unanswered(window: ReadingWindow) -> list[Found]:
    """U22: the driver gives no answer. The running task goes on; the next one waits.

    An agent that starts again on such a pod never had an answer: the device file shows that there is a driver.
    """
    run = trailing(window.smi, lambda one: not one.is_known)
    has_driver = window.gpu_count or (window.has_device and run and NO_PROGRAM not in run[-1].why)
    if not has_driver or len(run) < UNANSWERED:
        return []
    checks = [one for one in run if one.is_check]
    code = "GPU_HUNG" if len(checks) >= CONFIRMED else "GPU_UNCHECKED"
    return [Found(code, run[0].at_s, f"nvidia-smi: {run[-1].why or 'no answer'}")]


def _per_gpu(window: ReadingWindow) -> list[Found]:
    found: list[Found | None] = []
    newest = window.smi[-1] if window.smi else None
    for gpu in (newest.gpus or ()) if newest else ():
        samples = [(one, now) for one in window.smi for now in one.gpus or () if now.uuid == gpu.uuid]
        history = _History(window, samples)
        found += [
            _recovery(history), _ecc(history), _hot(history), _underfed(history), _starved(history), _held(history),
            _vram_low(history),
        ]  # fmt: skip
    return [one for one in found if one]


class _History:
    """The answers about one GPU, oldest first, without unknown ones."""

    def __init__(self, window: ReadingWindow, samples: list[tuple[SmiSample, GpuState]]) -> None:
        self.window, self.samples, self.gpu = window, samples, samples[-1][1]
        self.newest = samples[-1][0]

    def run(self, holds: Callable[[GpuState, SmiSample], bool]) -> list[SmiSample]:
        """Return the newest answers for which the condition is true."""
        gpus = {id(sample): gpu for sample, gpu in self.samples}
        return trailing([sample for sample, _ in self.samples], lambda one: holds(gpus[id(one)], one))


def _wants_recovery(gpu: GpuState) -> bool:
    return gpu.recovery not in {None, "None"}


def _has_ecc(window: ReadingWindow, gpu: GpuState) -> bool:
    return gpu.ecc is not None and gpu.ecc > window.first_ecc.get(gpu.uuid, gpu.ecc)


def _recovery(history: _History) -> Found | None:
    """U22: the recovery action that the driver requests (from branch 565 on)."""
    run = history.run(lambda gpu, _: _wants_recovery(gpu))
    if len(run) < CONFIRMED:
        return None
    return Found("GPU_RECOVERY", run[0].at_s, f"GPU {history.gpu.index}: the driver wants {history.gpu.recovery}")


def _ecc(history: _History) -> Found | None:
    """U22: new uncorrected memory errors. Corrected ones are normal. A contained one (Xid 94) affects one program."""
    window, gpu = history.window, history.gpu
    run = history.run(lambda gpu, _: _has_ecc(window, gpu))
    if len(run) < CONFIRMED:
        return None
    more = (gpu.ecc or 0.0) - window.first_ecc.get(gpu.uuid, 0.0)
    code = "ECC_CONTAINED" if CONTAINED in window.xids.ours else "ECC_UNCORRECTED"
    return Found(code, run[0].at_s, f"GPU {gpu.index}: {more:.0f} more uncorrected ECC errors")


def _is_hot(gpu: GpuState, _: SmiSample) -> bool:
    """Return whether the GPU is slow while it should work, and heat is the reason. A power cap alone is normal."""
    if not gpu.sm_mhz or not gpu.sm_max_mhz or gpu.sm_mhz >= HOT_CLOCK * gpu.sm_max_mhz:
        return False
    is_busy = gpu.util is not None and gpu.util >= HOT_UTIL  # an idle GPU is slow as well
    return is_busy and (bool(gpu.thermal) or (gpu.temperature is not None and gpu.temperature >= HOT_C))


def _hot(history: _History) -> Found | None:
    """U23: hot in three of five answers; if it lasts ten minutes, the severity rises."""
    hot = [one for one, gpu in history.samples if _is_hot(gpu, one)]
    recent = [one for one, _ in history.samples[-HOT_OF:]]
    recent_hot = [one for one in recent if one in hot]
    if len(recent_hot) < HOT_SAMPLES:
        return None
    gpu, now_s = history.gpu, history.newest.at_s
    evidence = f"GPU {gpu.index}: {gpu.temperature or 0:.0f} °C, {gpu.sm_mhz or 0:.0f} of {gpu.sm_max_mhz or 0:.0f} MHz"
    began = [one for one in hot if now_s - one.at_s >= OVERHEATED_S]
    if began:
        since = [one for one, _ in history.samples if one.at_s >= began[-1].at_s]
        if len([one for one in since if one in hot]) >= OVERHEATED_SHARE * len(since):
            return Found("GPU_OVERHEATED", began[-1].at_s, evidence)
    return Found("GPU_HOT", recent_hot[0].at_s, evidence)


def _underfed(history: _History) -> Found | None:
    """U21: few tiny kernels show as full utilisation."""

    def is_underfed(gpu: GpuState, _: SmiSample) -> bool:
        slow = bool(gpu.sm_mhz and gpu.sm_max_mhz) and (gpu.sm_mhz or 0) < UNDERFED_CLOCK * (gpu.sm_max_mhz or 0)
        cool = bool(gpu.power_w and gpu.power_limit_w) and (gpu.power_w or 0) < UNDERFED_POWER * (
            gpu.power_limit_w or 0
        )
        return gpu.util is not None and gpu.util >= UNDERFED_UTIL and (slow or cool)

    run = history.run(is_underfed)
    if not lasts(run, UNDERFED_S):
        return None
    gpu = history.gpu
    evidence = f"GPU {gpu.index}: {gpu.util:.0f} % busy at {gpu.sm_mhz or 0:.0f} MHz and {gpu.power_w or 0:.0f} W"
    return Found("GPU_UNDERFED", run[0].at_s, evidence)


def _starved(history: _History) -> Found | None:
    """U24: the GPU waits for input, and the task is slower than before."""
    low, high = STARVED_UTIL
    run = history.run(lambda gpu, _: gpu.util is not None and low <= gpu.util <= high)
    rate, best = history.window.rate, history.window.best_rate
    if not lasts(run, STARVED_S) or rate is None or rate >= STARVED_RATE * best:
        return None
    evidence = (
        f"GPU {history.gpu.index} {history.gpu.util:.0f} % busy; the task runs at {rate / best:.0%} of its best rate"
    )
    return Found("GPU_STARVED", run[0].at_s, evidence)


def _held(history: _History) -> Found | None:
    """U11: between tasks, GPU memory is in use that no live process of the worker explains.

    A process that uses the GPU may explain all of it, unless nvidia-smi lists programs with their memory: in a
    container it often lists none.
    """

    def is_held(gpu: GpuState, one: SmiSample) -> bool:
        is_told = _is_free_of_us(one) or (one.task is None and one.lists_programs)
        return is_told and (one.unattributed_mib or {}).get(gpu.uuid, 0.0) > HELD_MIB

    run = history.run(is_held)
    if not lasts(run, HELD_S):
        return None
    used = (history.newest.unattributed_mib or {}).get(history.gpu.uuid, 0.0)
    evidence = f"GPU {history.gpu.index}: {used:.0f} MiB are in use by no program of this pod"
    return Found("GPU_MEMORY_HELD", run[0].at_s, evidence)


def _vram_low(history: _History) -> Found | None:
    """U10.

    After "CUDA out of memory", while no live process of handlers uses a GPU, less memory is free than tasks had in use.
    """
    window = history.window
    if window.vram_oom_s is None:
        return None

    def is_low(gpu: GpuState, one: SmiSample) -> bool:
        need = window.peak_mib.get(gpu.uuid)
        is_after = one.at_s > (window.vram_oom_s or 0.0)
        return is_after and _is_free_of_us(one) and None not in {need, gpu.free_mib} and (
            (gpu.free_mib or 0.0) + HELD_MIB < (need or 0.0)
        )  # fmt: skip

    run = history.run(is_low)
    if not lasts(run, HELD_S):
        return None
    need = window.peak_mib[history.gpu.uuid]
    evidence = f"GPU {history.gpu.index}: {history.gpu.free_mib or 0:.0f} MiB are free, tasks had {need:.0f} MiB in use"
    return Found("VRAM_LOW", run[0].at_s, evidence)


def _is_free_of_us(one: SmiSample) -> bool:
    return one.task is None and one.gpu_users == 0
