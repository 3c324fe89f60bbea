"""Records strikes against the machine and the place of a failed worker."""

from collections.abc import Mapping
from typing import Any

import structlog

from orchestrator.core.failures import FailureCode
from orchestrator.core.host_strikes import strikes
from orchestrator.core.model import Worker
from orchestrator.ports import Store

log = structlog.get_logger()


async def remember(
    store: Store, term: int, worker: Worker, code: FailureCode | None, evidence: Mapping[str, Any]
) -> None:
    """Record a strike if the code blames the machine or the place. Raises the store's errors."""
    for strike in strikes(worker, code):
        seen = {"worker": worker.id, "pod": worker.pod_id, "machine": worker.machine_id, **evidence}
        struck = await store.strike(term, strike, code=str(code), evidence=seen)
        log.warning("host_struck", host=strike.key, code=code, worker=worker.id, **struck)
