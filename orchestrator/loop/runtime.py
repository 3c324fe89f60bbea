"""Objects that all parts of one orchestrator process share."""

from dataclasses import dataclass

from orchestrator.core.policy import Policy
from orchestrator.observability.health import Health
from orchestrator.observability.metrics import Metrics
from orchestrator.pods.latest import Latest
from orchestrator.ports import Db, Store


@dataclass(frozen=True, slots=True)
class Runtime:
    """The store, the policy, the metrics and the health record of one process."""

    store: Store
    db: Db
    policy: Policy
    health: Health
    metrics: Metrics
    latest: Latest
    holder: str  # the name of this process in the lease
    poll_s: float  # ORCHESTRATOR_POLL_SEC
