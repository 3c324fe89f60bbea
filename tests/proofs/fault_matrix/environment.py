"""A case under way: the stack, its orchestrators, what is known of them, and ways to inject faults."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import psycopg

from orchestrator.adapters.cluster_rows import report_of
from orchestrator.cli import cluster_view
from orchestrator.cli import explain_view as show
from orchestrator.cli.output import Output
from orchestrator.config.settings import Settings
from orchestrator.core.policy import Policy
from orchestrator.diagnostics import clusters, workers
from orchestrator.diagnostics.timeline import entries
from testbed.services.free_port import free_port
from testbed.services.processes import Child
from testbed.stack import FLEET, Stack
from tests.process.cli.forked import command
from tests.proofs.fault_matrix.load_balancer import LoadBalancer
from tests.proofs.fault_matrix.observer import Observer

POLL_S = 0.1
UNTIL_S = 60.0
NAME_S = 120.0  # longest wait for a sentence; the bar is judged elsewhere
Row = Mapping[str, Any]

BUSY = """
    select w.id as worker, w.pod_id as pod, t.id::text as task from tasks t join workers w on w.id = t.worker_id
     where t.status = 'In Progress' and w.status = 'active' and w.pod_id is not null
       and t.generation_started_at > now() - interval '0.5 s'
     order by t.generation_started_at desc limit 1
"""
EXPLAINED = """
    select id, fleet_explain(%s, id) as found, fleet_worker(%s, id) as history from workers
     where status <> 'terminated' or terminated_at > now() - %s * interval '1 s' order by id
"""
CLUSTERS = "select fleet_cluster_report(%s, id) as found from cluster_apps where status <> 'deleted' order by id"
COLUMNS = 500  # a cause and its fix are one line each
LATELY_S, EVER_S = 5, 86_400  # since a worker's end
UNDER_WAY = "select 1 from tasks where status = 'Complete' offset 2"


class NotWithin(Exception):
    """A condition did not come in time."""


class Environment:
    """What a case's act works with."""

    def __init__(self, stack: Stack, says: str) -> None:
        self.stack = stack
        self.orchestrators: list[Child] = []
        self.observer = Observer(self.rows, self.explain, self.explain_each, says)
        self.fault_at = 0.0  # epoch seconds
        self.seen_at = 0.0  # when the first fault was first applied, where the emulator knows: sooner nobody could tell
        self.figures: list[tuple[str, float, float]] = []  # name, seconds, the most it may be
        self._policy: Policy | None = None
        self._sql: psycopg.AsyncConnection[dict[str, Any]] | None = None
        self._asking = asyncio.Lock()
        self.ports: list[int] = []
        self.balancer: LoadBalancer | None = None

    async def start(self, orchestrators: int) -> LoadBalancer | None:
        """Start the orchestrators; several share a load balancer, which the caller opens before them."""
        if orchestrators == 1:
            self.ports = [int(self.stack.environment["PORT"])]
            return None
        self.ports = [free_port() for _ in range(orchestrators)]
        self.balancer = LoadBalancer(free_port(), self.ports)
        self.stack.environment["WORKER_API_URL"] = self.balancer.url
        return self.balancer

    async def start_orchestrator(self, number: int = 0) -> Child:
        """Start the orchestrator of that number, or start it again."""
        child = await self.stack.start_orchestrator({"PORT": str(self.ports[number])})
        self.orchestrators[number : number + 1] = [child]
        return child

    async def close(self) -> None:
        """Hang up."""
        if self._sql is not None:
            await self._sql.close()

    def mark_fault(self) -> None:
        """The harm is done now; recovery counts from the first."""
        self.fault_at = self.fault_at or time.time()

    def figure(self, name: str, seconds: float, most_s: float) -> None:
        """Note a measured time and its limit. It is a figure of the machine too, so the test run does not judge it."""
        self.figures.append((name, round(seconds, 2), most_s))

    async def rows(self, query: str, *values: object) -> Sequence[Row]:
        """Ask the database on a connection of our own, made anew when it has gone."""
        async with self._asking:
            if self._sql is None or self._sql.closed:
                self._sql = await self.stack.connect()
            try:
                return await (await self._sql.execute(query, values)).fetchall()
            except psycopg.OperationalError:
                await self._sql.close()
                raise

    async def explain(self, subject: str) -> str:
        """What an operator is told by `explain`, its complaint included where there is no database to ask."""
        _, out, err = await command(
            self.stack, "explain", subject, overrides={"COLUMNS": f"{COLUMNS}", "NO_COLOR": "1"}
        )
        return f"{out}\n{err}"

    async def explain_each(self) -> Mapping[str, Sequence[str]]:
        """The lines about each worker and each cluster."""
        return {**await self.explain_clusters(), **await self.explain_workers()}

    async def explain_clusters(self) -> Mapping[str, Sequence[str]]:
        """The lines of `cluster explain` for each cluster that is not deleted; a cause and its fix are one line."""
        told: dict[str, Sequence[str]] = {}
        for report in [report_of(row["found"]) for row in await self.rows(CLUSTERS, FLEET)]:
            [one] = report.clusters
            parts = [cluster_view.diagnoses(one, [cause], COLUMNS) for cause in clusters.problems(one, report.now)]
            causes = [" ".join(map(str, part)) for part in parts]
            told[one.id] = [*map(str, cluster_view.summary(one, Output(), report.now)), *causes]
        return told

    async def explain_workers(self, ended_s: int = LATELY_S) -> Mapping[str, Sequence[str]]:
        """The lines of `explain` and `timeline` for each worker that lives or ended lately, by the same functions."""
        if self._policy is None:
            environment: dict[str, Any] = {name.lower(): value for name, value in self.stack.environment.items()}
            self._policy = Settings(**environment).policy()
        told: dict[str, Sequence[str]] = {}
        for row in await self.rows(EXPLAINED, FLEET, FLEET, ended_s):
            found, now = row["found"], datetime.fromisoformat(row["found"]["now"])
            shown = show.worker(workers.explained(found, self._policy), now)
            lines = [line for text in shown for line in text.plain.splitlines()]
            told[row["id"]] = [*lines, *(f"{e.at:%H:%M:%S} {e.what} {e.note}" for e in entries(row["history"]))]
        return told

    async def until(self, query: str, *values: object, timeout_s: float = UNTIL_S) -> Sequence[Row]:
        """Wait until a query returns a row; its rows. NotWithin when none came."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if rows := await self.rows(query, *values):
                    return rows
            except psycopg.OperationalError:
                pass  # away for the moment
            await asyncio.sleep(POLL_S)
        raise NotWithin(f"not within {timeout_s:.0f} s: {' '.join(query.split())}")

    async def under_way(self) -> None:
        """Wait until some tasks are done."""
        await self.until(UNDER_WAY)

    async def busy(self) -> Row:
        """A worker that has just begun a task, with its pod."""
        await self.under_way()
        return (await self.until(BUSY))[0]

    async def fault(self, kind: str, **fields: Any) -> None:
        """Inject a fault; from here on recovery counts."""
        await self.stack.control("POST", "faults", {"kind": kind, **fields})
        self.mark_fault()

    async def faults_applied(self, timeout_s: float = UNTIL_S) -> None:
        """Wait until every injected fault has been applied."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            faults = (await self.stack.control("GET", "faults"))["faults"]
            if faults and all(fault["applied"] for fault in faults):
                return
            await asyncio.sleep(POLL_S)
        raise NotWithin(f"a fault was not applied within {timeout_s:.0f} s")

    async def clear(self) -> None:
        """Take every fault away; what a pod was born with stays."""
        times = [f["applied_at"] for f in (await self.stack.control("GET", "faults"))["faults"] if f["applied_at"]]
        self.seen_at = min(times, default=self.fault_at)
        await self.stack.control("DELETE", "faults")

    async def kill_pod(self, pod: str, how: str) -> None:
        """Lose a pod: "vanish", "exit" or "freeze"."""
        self.mark_fault()
        await self.stack.control("POST", f"pods/{pod}/kill", {"how": how})

    async def named(self, timeout_s: float = NAME_S) -> None:
        """Wait until some row names the cause."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.observer.named.wait()
        except TimeoutError:
            raise NotWithin(f"no row named the cause within {timeout_s:.0f} s") from None
