"""The stages in which the provider is waited for: the pod runs, and shows where SSH is."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from orchestrator.ascent import Ascent, Evidence
from orchestrator.core.images import is_pulling
from orchestrator.core.model import Pod, PodStatus
from orchestrator.core.states import FailureCode
from orchestrator.ports import PortError
from orchestrator.remote import Unproven
from orchestrator.views import PodView

LOG_LOOK_S = 20.0  # before a pod that does not run is given up, its own log is asked
EARLY_S = 3.0  # a boot that takes no longer is worth no remark
LOG_LINES = 30  # of it are kept
POD_FACTS = ("machine_id", "data_center", "gpu_type", "price_usd_per_hour")  # columns of the same names
GONE = {
    PodStatus.EXITED: FailureCode.POD_EXITED,
    PodStatus.TERMINATED: FailureCode.POD_EXITED,
    PodStatus.ERROR: FailureCode.POD_ERROR,
}


class Boot:
    """What the provider's lists show of a pod; `pod_log` gives its own log."""

    def __init__(self, pods: PodView, pod_log: Callable[[str], Awaitable[str]]) -> None:
        self._pods, self._pod_log = pods, pod_log

    async def pod_running(self, ascent: Ascent) -> Evidence:
        """The provider says RUNNING, and a runtime is present."""
        look_s = min(LOG_LOOK_S, ascent.limit_s / 4)  # before the deadline, the pod's own log is asked why
        try:
            pod = await self._until_it_runs(ascent, ascent.limit_s - look_s)
        except TimeoutError:
            await self._ask_the_log(ascent, look_s / 2)
            pod = await self._pod(ascent, _runs, ascent.limit_s)
        return {"pod_id": pod.id, "machine_id": pod.machine_id}

    async def _until_it_runs(self, ascent: Ascent, timeout_s: float) -> Pod:
        """The running pod; what is shown instead is written down, when it changes, from EARLY_S on."""
        seen: Pod | None = None

        def told(pod: Pod) -> bool:
            nonlocal seen
            seen = pod
            return _runs(pod)

        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await self._pod(ascent, told, EARLY_S)
                except TimeoutError:
                    await ascent.suspects(None, {"shown": _shown(seen)})

    async def _ask_the_log(self, ascent: Ascent, timeout_s: float) -> None:
        """Tell a slow pull from a pod that will never run; no answer changes nothing."""
        try:
            async with asyncio.timeout(timeout_s):
                said = await self._pod_log(ascent.worker.pod_id or "")
        except (PortError, TimeoutError) as error:
            ascent.evidence |= {"pod_log_error": f"{type(error).__name__}: {error}"[:300]}
            return
        evidence = ascent.evidence | {"pod_log": said.splitlines()[-LOG_LINES:]}
        await ascent.suspects(FailureCode.IMAGE_PULL_SLOW if is_pulling(said) else ascent.suspect, evidence)

    async def ssh_details(self, ascent: Ascent) -> Evidence:
        """A public address for port 22."""
        pod = await self._pod(ascent, lambda p: bool(p.ssh_host and p.ssh_port), ascent.limit_s)
        ascent.facts |= {"ssh_host": pod.ssh_host, "ssh_port": pod.ssh_port}
        return {"address": f"{pod.ssh_host}:{pod.ssh_port}"}

    async def _pod(self, ascent: Ascent, ready: Callable[[Pod], bool], timeout_s: float) -> Pod:
        pod_id = ascent.worker.pod_id
        if pod_id is None:
            raise Unproven(FailureCode.POD_MISSING, "the row names no pod")

        def told(pod: Pod) -> bool:
            """Keep what the list shows even of a pod that never gets further: it names the machine."""
            found = {name: getattr(pod, name) for name in POD_FACTS}
            ascent.facts |= {name: value for name, value in found.items() if value is not None}
            if pod.status is PodStatus.PROVISIONING and pod.data_center is None:
                ascent.unassigned_at_s = time.monotonic()
            return pod.status in GONE or ready(pod)

        pod = await self._pods.until(pod_id, told, timeout_s)
        if pod.status in GONE:
            raise Unproven(GONE[pod.status], f"the provider says {pod.status}")
        return pod


def _shown(pod: Pod | None) -> str:
    if pod is None:
        return "no list of RunPod has shown it yet"
    without = " without a runtime" if pod.status is PodStatus.RUNNING and not pod.has_runtime else ""
    return f"RunPod shows it as {pod.status}{without}"


def _runs(pod: Pod) -> bool:
    return pod.status is PodStatus.RUNNING and pod.has_runtime
