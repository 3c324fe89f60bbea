"""Creates a worker's pod. The row is written before the call, and each kind of answer has its own next step.

After a clear refusal, the row is an intent again. Without a clear answer, it stays at `pod_created`, and the planner
first looks for the pod by its name. A create call without an answer is never repeated.
"""

import time
from collections.abc import Callable
from typing import Any

import structlog

from orchestrator.core import budget
from orchestrator.core.failures import FailureCode
from orchestrator.core.images import cuda_of
from orchestrator.core.policy import Policy, Pool, PoolKind
from orchestrator.core.provider import Offer, Pod, PodSpec, place_of
from orchestrator.core.stages import STAGE_SPECS
from orchestrator.core.states import Stage, State, WaitingOn
from orchestrator.core.worker_metadata import metadata
from orchestrator.observability import log_phrases
from orchestrator.pods import host_identity
from orchestrator.pods.provider_cache import Catalog
from orchestrator.ports import (
    ApiAuth,
    BadSpec,
    Cloud,
    NoBalance,
    NoCapacity,
    NotSent,
    PortError,
    QuotaExceeded,
    RateLimited,
    StageAttempt,
    Store,
    Unavailable,
)

HOPELESS: dict[type[PortError], FailureCode] = {
    QuotaExceeded: FailureCode.QUOTA,
    NoBalance: FailureCode.BALANCE,
    ApiAuth: FailureCode.API_AUTH,
    BadSpec: FailureCode.BAD_SPEC,
}  # the provider refuses until a person corrects the cause
RATE_LIMIT_S = 15.0  # the least pause before the next call; the adapter has waited too
RATE_LIMIT_MAX_S = 300.0
UNASKED = (RateLimited.__name__, NotSent.__name__)
log = structlog.get_logger()


class PodCreator:
    """Creates the pods of one orchestrator."""

    def __init__(
        self, store: Store, cloud: Cloud, policy: Policy, catalog: Catalog, nonce_for: Callable[[str], str]
    ) -> None:
        """`nonce_for`: worker id -> the nonce for its pod, see host_identity.py."""
        self._nonce_for = nonce_for
        self._store, self._cloud, self._policy, self._catalog = store, cloud, policy, catalog
        self.database_id: str | None = None  # the database of the last snapshot; every pod carries its id

    async def create(self, term: int, worker_id: str, pool: Pool, offer: Offer, usd_per_hour: float | None) -> None:
        """Make one create call for a recorded intent.

        Raises LostRace if it is obsolete, OverBudget if it does not fit.
        """
        left_s = await self._asking(term, worker_id, pool, offer, usd_per_hour)
        began_s = time.monotonic()
        attempt = await self._store.open_attempt(term, worker_id, Stage.POD_CREATED)
        result, pause_s = StageAttempt("cancelled"), 0.0
        try:
            pod = await self._cloud.create_pod(await self._spec(worker_id, pool, offer))
            result = StageAttempt("ok", evidence={"pod_id": pod.id, "offer": offer.key})
        except PortError as error:
            outcome = "lost" if isinstance(error, Unavailable) and not isinstance(error, NotSent) else "failed"
            pause_s = getattr(error, "retry_after_s", 0.0)
            result = StageAttempt(
                outcome, _code(error), type(error).__name__, {"error": str(error)[:300], "offer": offer.key}
            )
        finally:
            await self._store.close_attempt(term, attempt, result)
        if result.outcome == "ok":
            await self._created(term, worker_id, offer, pod)
        elif result.outcome == "failed":
            left_s = max(0.0, left_s - (time.monotonic() - began_s))
            await self._refused(term, worker_id, offer, result, left_s, pause_s)

    async def _asking(self, term: int, worker_id: str, pool: Pool, offer: Offer, usd_per_hour: float | None) -> float:
        """Record the request. Return the seconds that remain for the whole bring-up."""
        stage_spec = STAGE_SPECS[Stage.POD_CREATED]
        fields: dict[str, Any] = {
            "waiting_on": stage_spec.waiting_on,
            "waiting_for": f"a pod: {place_of(offer.key)}",
            "deadline_s": stage_spec.deadline_s,
            "next_attempt_s": 0,
            "gpu_type": offer.gpu_type,
            "data_center": offer.data_center,
            "release": self._policy.release(pool),
            "metadata": metadata(
                offer=offer.key,
                database_id=self.database_id,
                max_failures=self._policy.max_failures,
                bootstrap=True,
            ),
        } | budget.reservation(usd_per_hour, self._policy)
        asking = await self._store.move(
            term,
            worker_id,
            from_states=[State.SPAWNING],
            stage=Stage.POD_CREATED,
            reason=f"asking for {place_of(offer.key)}",
            fields=fields,
        )
        return self._policy.spawning_timeout_s - (asking.stage_since - asking.created_at).total_seconds()

    async def _created(self, term: int, worker_id: str, offer: Offer, pod: Pod) -> None:
        stage_spec = STAGE_SPECS[Stage.POD_RUNNING]
        fields: dict[str, Any] = {
            "pod_id": pod.id,
            "machine_id": pod.machine_id,
            "data_center": pod.data_center or offer.data_center,
            "waiting_on": stage_spec.waiting_on,
            "waiting_for": "the pod to run",
            "deadline_s": stage_spec.deadline_s,
            "next_attempt_s": 0,
        } | budget.reservation_of_pod(pod.price_usd_per_hour, self._policy)
        await self._store.move(
            term,
            worker_id,
            from_states=[State.SPAWNING],
            stage=Stage.POD_RUNNING,
            reason=f"pod {pod.id} created",
            fields=fields,
        )
        await self._store.note_offer(term, offer.key, refused=False, code=None)
        if pod.price_usd_per_hour is not None and pod.gpu_count:
            self._catalog.compare(offer, pod.price_usd_per_hour / pod.gpu_count)
        log.info("pod_created", worker=worker_id, pod=pod.id, offer=offer.key, usd_per_hour=pod.price_usd_per_hour)

    async def _refused(
        self, term: int, worker_id: str, offer: Offer, result: StageAttempt, left_s: float, pause_s: float
    ) -> None:
        """Return the row to the intent. The planner then chooses the next offer, waits, or ends the worker.

        `left_s`: seconds that remain for the whole bring-up. `pause_s`: seconds for which the provider accepts no call.
        """
        why = str((result.evidence or {}).get("error"))
        code = result.failure_code
        fields: dict[str, Any] = {"waiting_for": why, "deadline_s": left_s}
        if result.exception_type in UNASKED:  # the refusal does not depend on the offer
            until_s = min(max(RATE_LIMIT_S, pause_s), RATE_LIMIT_MAX_S)
            fields |= {"waiting_on": WaitingOn.PROVIDER, "next_attempt_s": until_s}
        else:
            await self._store.note_offer(term, offer.key, refused=True, code=code)
            fields |= {"waiting_on": WaitingOn.ORCHESTRATOR, "next_attempt_s": 0}
        if code in HOPELESS.values():
            fields |= {"waiting_on": WaitingOn.OPERATOR, "failure_code": code}
        words = log_phrases.AUTHENTICATION if code is FailureCode.API_AUTH else f"{place_of(offer.key)} was refused"
        log.warning("offer_refused", message=f"{words}: {why}", worker=worker_id, offer=offer.key, code=code)
        await self._store.move(
            term, worker_id, from_states=[State.SPAWNING], stage=Stage.INTENT, reason=why, fields=fields
        )

    async def _spec(self, worker_id: str, pool: Pool, offer: Offer) -> PodSpec:
        volume_id, data_center = None, offer.data_center
        if pool.volume_name:
            volume_id, data_center = await self._catalog.volume(pool.volume_name)
        registry_id = await self._catalog.registry(pool.registry_auth) if pool.registry_auth else None
        return PodSpec(
            name=worker_id,
            fleet_id=self._policy.fleet_id,
            image=pool.image,
            gpu_type=offer.gpu_type,
            gpu_count=pool.gpu_count,
            cloud=offer.cloud,
            data_center=data_center,
            disk_gb=pool.disk_gb,
            min_memory_gb=pool.min_memory_gb,
            min_vcpu=pool.min_vcpu,
            ports=("22/tcp",),
            public_key=self._policy.public_key,
            env={host_identity.VARIABLE: self._nonce_for(worker_id)},
            volume_id=volume_id,
            volume_mount_path=pool.volume_mount_path,
            database_id=self.database_id,
            registry_id=registry_id,
            min_cuda=pool.min_cuda or _cuda(pool.image),
            global_networking=pool.kind is PoolKind.CLUSTER,
        )


def _cuda(image: str) -> str | None:
    """Return the CUDA version in the image's name, which the machine's driver must support."""
    found = cuda_of(image)
    return f"{found[0]}.{found[1]}" if found else None


def _code(error: PortError) -> FailureCode | None:
    if isinstance(error, NotSent):
        return None
    if isinstance(error, NoCapacity | RateLimited):
        return FailureCode.NO_CAPACITY
    return HOPELESS.get(type(error), FailureCode.CREATE_UNKNOWN)
