"""The stages in which the provider is waited for: the pod runs, and shows where SSH is."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from orchestrator.core.failures import FailureCode
from orchestrator.core.images import is_pulling
from orchestrator.core.model import SSH_USER, Pod, PodStatus, Worker
from orchestrator.pods.agent_control import StageFailed
from orchestrator.pods.bringup_context import BringupContext, Evidence
from orchestrator.pods.latest import PodView
from orchestrator.ports import PortError

LOG_LOOK_S = 20.0  # before a pod that does not run is given up, its own log is asked
EARLY_S = 2.5  # a boot that takes no longer is worth no remark
LOOK_AFTER_S = 5.0  # … and one that takes so long has the pod's own log read: is it the image?
LOOK_AGAIN_S = 30.0  # … and once more while it goes on
LOOK_TIMEOUT_S = 10.0
LOOK_GAP_S = 5.0  # between two such looks, of all pods together: a look is one of the account's 60 calls a minute, …
LOOKS_AT_ONCE = 5  # … but for the first few; the lists take 30 of them, and the looks 17
LOG_LINES = 30  # of it are kept
PULLS = ": its image is being pulled"
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
        self._looked_until_s = 0.0  # monotonic: so far the looks are spread out

    async def pod_running(self, context: BringupContext) -> Evidence:
        """The provider says RUNNING, and a runtime is present."""
        look_s = min(LOG_LOOK_S, context.limit_s / 4)  # before the deadline, the pod's own log is asked why
        try:
            pod = await self._until_it_runs(context, context.limit_s - look_s)
        except TimeoutError:
            said = await self._look(context, look_s / 2) if self._may_look() else {}  # then an earlier look counts
            evidence = context.evidence | said
            await context.suspects(FailureCode.IMAGE_PULL_SLOW if _pulls(evidence) else None, evidence)
            pod = await self._pod(context, _runs, context.limit_s)
        return {"pod_id": pod.id, "machine_id": pod.machine_id}

    async def _until_it_runs(self, context: BringupContext, timeout_s: float) -> Pod:
        """The running pod; what is shown instead is written down, when it changes, and what its log says of its image.

        The log is read beside the wait: a pod that runs meanwhile is not kept waiting for it.
        """
        seen: Pod | None = None
        said, look = Evidence(), None
        due_s = time.monotonic() + LOOK_AFTER_S

        def told(pod: Pod) -> bool:
            nonlocal seen
            seen = pod
            return _runs(pod)

        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._pod(context, told, EARLY_S)
                    except TimeoutError:
                        if look is not None and look.done():
                            said, look = said | look.result(), None
                        if look is None and time.monotonic() >= due_s and self._may_look():
                            look = asyncio.create_task(self._look(context, LOOK_TIMEOUT_S))
                            due_s = time.monotonic() + LOOK_AGAIN_S
                        await context.suspects(None, said | {"shown": _shown(seen) + PULLS * _pulls(said)})
        finally:
            if look is not None:
                look.cancel()

    def _may_look(self) -> bool:
        """Whether the account's calls allow one more look now; then it is counted."""
        now_s = time.monotonic()
        if self._looked_until_s - now_s > LOOK_GAP_S * (LOOKS_AT_ONCE - 1):
            return False
        self._looked_until_s = max(self._looked_until_s, now_s) + LOOK_GAP_S
        return True

    async def _look(self, context: BringupContext, timeout_s: float) -> Evidence:
        """The last lines of the pod's own log, or why there are none."""
        try:
            async with asyncio.timeout(timeout_s):
                said = await self._pod_log(context.worker.pod_id or "")
        except (PortError, TimeoutError) as error:
            return {"pod_log_error": f"{type(error).__name__}: {error}"[:300]}
        return {"pod_log": said.splitlines()[-LOG_LINES:], "pod_log_error": None}

    async def ssh_details(self, context: BringupContext) -> Evidence:
        """A public address for port 22."""
        pod = await self._pod(context, lambda p: bool(p.ssh_host and p.ssh_port), context.limit_s)
        context.facts |= {"ssh_host": pod.ssh_host, "ssh_port": pod.ssh_port}
        if pod.ssh_user not in (None, "root"):
            context.facts["metadata"] = {SSH_USER: pod.ssh_user}
        return {"address": f"{pod.ssh_host}:{pod.ssh_port}"}

    def address(self, worker: Worker) -> tuple[str | None, int | None]:
        """Where the newest list shows SSH, which a restart moves to another port; the row's where it shows nothing."""
        pod = self._pods.now(worker.pod_id or "")
        return (pod.ssh_host, pod.ssh_port) if pod and pod.ssh_host else (worker.ssh_host, worker.ssh_port)

    async def _pod(self, context: BringupContext, ready: Callable[[Pod], bool], timeout_s: float) -> Pod:
        pod_id = context.worker.pod_id
        if pod_id is None:
            raise StageFailed(FailureCode.POD_MISSING, "the row names no pod")

        def told(pod: Pod) -> bool:
            """Keep what the list shows even of a pod that never gets further: it names the machine."""
            found = {name: getattr(pod, name) for name in POD_FACTS}
            context.facts |= {name: value for name, value in found.items() if value is not None}
            if pod.status is PodStatus.PROVISIONING and pod.data_center is None:
                context.unassigned_at_s = time.monotonic()
            return pod.status in GONE or ready(pod)

        pod = await self._pods.until(pod_id, told, timeout_s)
        if pod.status in GONE:
            raise StageFailed(GONE[pod.status], f"the provider says {pod.status}")
        return pod


def _pulls(evidence: Evidence) -> bool:
    """Whether the pod's own log, when it was last read, said that its image was still coming."""
    return is_pulling("\n".join(evidence.get("pod_log", ())))


def _shown(pod: Pod | None) -> str:
    if pod is None:
        return "no list of RunPod has shown it yet"
    without = " without a runtime" if pod.status is PodStatus.RUNNING and not pod.has_runtime else ""
    return f"RunPod shows it as {pod.status}{without}"


def _runs(pod: Pod) -> bool:
    return pod.status is PodStatus.RUNNING and pod.has_runtime
