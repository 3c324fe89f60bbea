"""A cluster whose plan fails is tried more and more rarely, and the others as ever."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

from structlog.testing import capture_logs

from orchestrator.clusters import configuration
from orchestrator.clusters.execute import ClusterExecutor
from orchestrator.clusters.probing import Prober, ProbeSettings
from orchestrator.core.cluster_states import ClusterStatus
from orchestrator.core.clusters.plan import MAX_BACKOFF_S
from orchestrator.core.clusters.rows import ClusterReport
from orchestrator.core.clusters.view import ClusterPolicy
from orchestrator.leader_jobs.clusters import Clusters
from tests.unit.core.clusters.rows import NOW, cluster

BAD = cluster(id="bad", nodes=cast("int", "two"), status=ClusterStatus.ALLOCATING)
POLICY = ClusterPolicy(configuration.conf_sha)
GOOD = cluster(id="good", status=ClusterStatus.REQUESTED, nodes=0)


class Rows:
    """What the database says: a row that a user changed, and another one."""

    def __init__(self) -> None:
        self.report_: ClusterReport = ClusterReport(NOW, (BAD, GOOD))

    async def report(self) -> ClusterReport:
        return self.report_

    async def sweep(self, _term: int) -> None: ...


async def test_each_failure_of_a_plan_doubles_its_pause_until_it_succeeds() -> None:
    """The second failure is not the first one again; after a success the next failure is."""
    rows = Rows()
    prober = Prober(cast("Any", None), ProbeSettings(lambda _: b"", None, "python3"))
    clusters = Clusters(cast("Any", rows), prober, cast("ClusterExecutor", None), {"train": POLICY})
    now, pauses = NOW, list[float]()
    for _ in range(7):
        rows.report_ = replace(rows.report_, now=now)
        with capture_logs() as logs:
            clusters._next_s = 0.0
            await clusters.step(1)
            clusters._next_s = 0.0
            await clusters.step(1)
        (failed,) = [one for one in logs if one["event"] == "cluster_plan_failed"]
        assert failed["cluster"] == "bad"
        pauses.append(failed["retry_s"])
        now += timedelta(seconds=failed["retry_s"] + 1)
    assert pauses == [5, 10, 20, 40, 80, MAX_BACKOFF_S, MAX_BACKOFF_S]
