"""A control loop over a real database, without pods."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from orchestrator.adapters.store import SqlStore
from orchestrator.core.actions import Plan
from orchestrator.core.model import Snapshot
from orchestrator.core.plan import plan
from orchestrator.core.policy import Policy
from orchestrator.loop.daemon import Daemon
from orchestrator.loop.execute import Executor, PodOperations
from orchestrator.loop.observe import Observer
from orchestrator.loop.runtime import Runtime
from orchestrator.observability.health import Health
from orchestrator.observability.metrics import Metrics
from orchestrator.pods.create import PodCreator
from orchestrator.pods.latest import Latest
from orchestrator.pods.provider_cache import Catalog
from orchestrator.pods.teardown import Teardown
from orchestrator.ports import Cloud, Db
from orchestrator.worker_logs.shipper import Shipper
from tests.db.conformance.builders import FLEET

LIST_S = 60.0  # for a list of pods, which a busy machine may not have within the product's own patience


async def _never(*_: object) -> Any:
    """What an executor without pods never calls."""
    raise AssertionError("this executor has no pods")


def daemon_over(
    store: SqlStore, db: Db, cloud: Cloud | None, rules: Policy, *, poll_s: float = 1, health: Health | None = None,
    metrics: Metrics | None = None, planner: Callable[[Snapshot, Policy], Plan] = plan,
) -> Daemon:  # fmt: skip
    """A whole loop over this database that brings no pod up."""
    catalog = Catalog(cloud, rules)
    runtime = Runtime(store, db, rules, health or Health(started_at_s=0), metrics or Metrics(), Latest(), "us", poll_s)
    return Daemon(
        runtime, Observer(store, cloud, FLEET, catalog, patience_s=LIST_S), executor_over(store, cloud, rules, nothing),
        catalog=catalog, shipper=cast("Shipper", None), planner=planner,
    )  # fmt: skip


async def nothing(*_: object) -> Any:
    """A bring-up, a final snapshot or an end that does nothing."""


def executor_over(
    store: SqlStore, cloud: Cloud | None, rules: Policy, act: Callable[..., Awaitable[Any]] = _never
) -> Executor:
    """An executor that calls `act` for everything that needs a pod."""
    provider, catalog = cast("Cloud", cloud), Catalog(cloud, rules)
    teardown = Teardown(store, provider, take_snapshot=act, finish_logs=act, policy=rules)
    operations = PodOperations(PodCreator(store, provider, rules, catalog, str), act, act, teardown, act)
    return Executor(store, provider, operations, rules)
