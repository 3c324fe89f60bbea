"""The stages that wait for the provider: the pod runs, and has an SSH address."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from orchestrator.core.failures import FailureCode
from orchestrator.core.images import digest_of, is_pulling
from orchestrator.core.model import Worker
from orchestrator.core.provider import Pod, PodStatus
from orchestrator.core.worker_metadata import metadata
from orchestrator.pods.agent_control import StageFailed
from orchestrator.pods.bringup_context import BringupContext, Evidence
from orchestrator.pods.latest import PodView
from orchestrator.ports import PortError

LOG_READ_BEFORE_END_S = 20.0  # before the deadline of a pod that does not run, its own log is read
EARLY_S = 2.5  # seconds; a shorter boot needs no remark
LOG_READ_AFTER_S = 5.0  # seconds after which the pod's log is read, to see whether the image is being pulled
LOG_READ_AGAIN_S = 30.0  # seconds until it is read again
LOG_READ_TIMEOUT_S = 10.0
LOG_READ_GAP_S = 5.0  # seconds between two reads of all pods: each is one of the account's 60 calls a minute
LOG_READS_AT_ONCE = 5  # the first reads need no gap; lists use 30 calls a minute, log reads 17
LOG_LINES = 30  # of the log are kept
PULLS = ": its image is being pulled"
POD_FACTS = ("machine_id", "data_center", "gpu_type", "price_usd_per_hour")  # columns of the same names
GONE = {
    PodStatus.EXITED: FailureCode.POD_EXITED,
    PodStatus.TERMINATED: FailureCode.POD_EXITED,
    PodStatus.ERROR: FailureCode.POD_ERROR,
}


class BootStages:
    """The stages that read the provider's lists. `pod_log` returns a pod's own log."""

    def __init__(self, pods: PodView, pod_log: Callable[[str], Awaitable[str]]) -> None:
        self._pods, self._pod_log = pods, pod_log
        self._log_reads_until_s = 0.0  # monotonic: log reads are scheduled up to this time

    async def pod_running(self, context: BringupContext) -> Evidence:
        """Check that the list shows the pod as RUNNING, with a runtime."""
        read_s = min(LOG_READ_BEFORE_END_S, context.limit_s / 4)  # the pod's log may show the cause
        try:
            pod = await self._until_it_runs(context, context.limit_s - read_s)
        except TimeoutError:
            # if the limits allow no read, an earlier one counts
            log_facts = await self._read_log(context, read_s / 2) if self._may_read_log() else {}
            evidence = context.evidence | log_facts
            await context.suspects(FailureCode.IMAGE_PULL_SLOW if _is_pulling(evidence) else None, evidence)
            pod = await self._pod(context, _runs, context.limit_s)
        pulled = {name: context.evidence[name] for name in ("image_digest",) if name in context.evidence}
        return {"pod_id": pod.id, "machine_id": pod.machine_id, **pulled}

    async def _until_it_runs(self, context: BringupContext, timeout_s: float) -> Pod:
        """Wait for the running pod. Record what the list shows instead, and what the pod's log says about its image.

        The log is read concurrently, so it does not delay a pod that begins to run.
        """
        seen: Pod | None = None
        log_facts, read = Evidence(), None
        due_s = time.monotonic() + LOG_READ_AFTER_S

        def runs(pod: Pod) -> bool:
            nonlocal seen
            seen = pod
            return _runs(pod)

        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._pod(context, runs, EARLY_S)
                    except TimeoutError:
                        if read is not None and read.done():
                            log_facts, read = log_facts | read.result(), None
                        if read is None and time.monotonic() >= due_s and self._may_read_log():
                            read = asyncio.create_task(self._read_log(context, LOG_READ_TIMEOUT_S))
                            due_s = time.monotonic() + LOG_READ_AGAIN_S
                        shown = _shown(seen) + PULLS * _is_pulling(log_facts)
                        await context.suspects(None, log_facts | {"shown": shown})
        finally:
            if read is not None:
                read.cancel()

    def _may_read_log(self) -> bool:
        """Whether the account's limits allow one more read now. If so, count it."""
        now_s = time.monotonic()
        if self._log_reads_until_s - now_s > LOG_READ_GAP_S * (LOG_READS_AT_ONCE - 1):
            return False
        self._log_reads_until_s = max(self._log_reads_until_s, now_s) + LOG_READ_GAP_S
        return True

    async def _read_log(self, context: BringupContext, timeout_s: float) -> Evidence:
        """Return the last lines of the pod's own log, or why there are none."""
        try:
            async with asyncio.timeout(timeout_s):
                text = await self._pod_log(context.worker.pod_id or "")
        except (PortError, TimeoutError) as error:
            return {"pod_log_error": f"{type(error).__name__}: {error}"[:300]}
        digest = digest_of(text)
        pulled = {"image_digest": digest} if digest else {}
        return {"pod_log": text.splitlines()[-LOG_LINES:], "pod_log_error": None, **pulled}

    async def ssh_details(self, context: BringupContext) -> Evidence:
        """Check that the pod has a public address for port 22."""
        pod = await self._pod(context, lambda p: bool(p.ssh_host and p.ssh_port), context.limit_s)
        context.facts |= {"ssh_host": pod.ssh_host, "ssh_port": pod.ssh_port}
        if pod.ssh_user not in (None, "root"):
            context.facts["metadata"] = metadata(ssh_user=pod.ssh_user)
        return {"address": f"{pod.ssh_host}:{pod.ssh_port}"}

    def address(self, worker: Worker) -> tuple[str | None, int | None]:
        """Return the SSH address of the newest list, or of the row. A restart of the pod changes the port."""
        pod = self._pods.now(worker.pod_id or "")
        return (pod.ssh_host, pod.ssh_port) if pod and pod.ssh_host else (worker.ssh_host, worker.ssh_port)

    async def _pod(self, context: BringupContext, ready: Callable[[Pod], bool], timeout_s: float) -> Pod:
        pod_id = context.worker.pod_id
        if pod_id is None:
            raise StageFailed(FailureCode.POD_MISSING, "the row names no pod")

        def is_settled(pod: Pod) -> bool:
            """Keep the list's facts, which name the machine, also of a pod that never starts."""
            found = {name: getattr(pod, name) for name in POD_FACTS}
            context.facts |= {name: value for name, value in found.items() if value is not None}
            if pod.status is PodStatus.PROVISIONING and pod.data_center is None:
                context.unassigned_at_s = time.monotonic()
            return pod.status in GONE or ready(pod)

        pod = await self._pods.until(pod_id, is_settled, timeout_s)
        if pod.status in GONE:
            raise StageFailed(GONE[pod.status], f"the provider says {pod.status}")
        return pod


def _is_pulling(evidence: Evidence) -> bool:
    """Whether the pod's log, when it was last read, showed an image pull in progress."""
    return is_pulling("\n".join(evidence.get("pod_log", ())))


def _shown(pod: Pod | None) -> str:
    if pod is None:
        return "no list of RunPod has shown it yet"
    without = " without a runtime" if pod.status is PodStatus.RUNNING and not pod.has_runtime else ""
    return f"RunPod shows it as {pod.status}{without}"


def _runs(pod: Pod) -> bool:
    return pod.status is PodStatus.RUNNING and pod.has_runtime
