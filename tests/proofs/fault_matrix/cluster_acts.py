"""What is done in the trials of a cluster: it runs a job, something breaks, it is whole again, and it is deleted."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from orchestrator.core.failures import FailureCode
from tests.process.clusters.operator import STATE, Cluster, reserved_id
from tests.proofs.fault_matrix.environment import POLL_S, Environment, NotWithin, Row
from tests.proofs.fault_matrix.runner import Act

NODES = 2
# Longer than a fault takes to be named and repaired.
JOB = "#!/bin/sh\nsrun sh -c 'echo $SLURMD_NODENAME; sleep 30'\n"
BEGUN_S = 180.0  # until a cluster runs, also after kills of the orchestrator
HEALED_S = 240.0  # … and until it runs again
TASK_S = 300.0  # until a task has ended, by a second attempt perhaps
AGAIN_S = 180.0  # the bar for a cluster that lost a node
KNOWN_CHARS = 1_500
GPUS, PLENTY = 2, 100  # in stock: of one node, and for everybody
RUNS = "select 1 from tasks where id = %s and status = 'In Progress' and progress::text like '%%RUNNING%%'"
ENDED = "select status::text, attempts, error_message from tasks where id = %s and status in ('Complete', 'Failed')"
WHOLE = """
    select 1 from cluster_apps c where id = %s and status = 'running' and nodes =
        (select count(*) from cluster_members m
          where m.cluster = c.id and m.status = 'ready' and m.worker_id <> all(%s))
"""
PHASES = (  # in which the orchestrator is killed while a cluster begins
    "select 1 from cluster_apps where id = %s and status in ('requested', 'allocating')",
    "select 1 from cluster_apps where id = %s and status in ('allocating', 'deploying')",
    "select 1 from cluster_members where cluster = %s and status in ('reconciling', 'ready')",
    "select 1 from cluster_members where cluster = %s and status = 'ready'",  # at about the smoke job
)
GONE = "select 1 where not exists (select 1 from workers where status <> 'terminated')"


@dataclass(frozen=True, slots=True)
class Working:
    """A cluster whose two nodes run a job."""

    env: Environment
    cluster: Cluster
    controller: Row  # its worker and its pod
    member: Row  # … and those of the other node
    task: str

    async def control(self, who: Row, what: str, body: dict[str, Any]) -> None:
        """Do something to one of the pods."""
        await self.env.stack.control("POST", f"pods/{who['pod']}/{what}", body)


Harm = Callable[[Working], Awaitable[None]]


async def nothing(work: Working) -> None:
    """The orchestrator alone repairs what is broken."""


def during_job(harm: Harm, says: str, *, mend: Harm = nothing, once: bool = False) -> Act:
    """Something breaks while a job runs, and is repaired once it is named; `once`: the job runs on.

    In the end both nodes are the same ones, and nothing is said to be wrong.
    """

    async def act(work: Working) -> None:
        before = {work.controller["worker"], work.member["worker"]}
        await harm(work)
        await work.env.named()
        await mend(work)
        await _whole(work)
        await _unsaid(work, says)
        after = [*await work.cluster.ready("controller"), *await work.cluster.ready("worker")]
        if {row["worker"] for row in after} != before:
            raise NotWithin(f"the nodes are {after}, not {before}")
        await _complete(work.env, work.task, once=once)

    return _with_job(act)


def lost(role: str, how: str, *, killed: bool = False) -> Act:
    """The pod of the controller or of the other node is lost; `killed`: and the orchestrator, while it is replaced."""

    async def act(work: Working) -> None:
        gone = work.controller if role == "controller" else work.member
        await work.env.stack.control("POST", f"pods/{gone['pod']}/kill", {"how": how})
        await work.env.named()
        if killed:
            await work.cluster.reaches("degraded", timeout_s=HEALED_S)
            await _killed(work.env)
        began = time.monotonic()
        await _whole(work, gone["worker"])
        work.env.figure("whole again", time.monotonic() - began, AGAIN_S)
        await _complete(work.env, work.task)

    return _with_job(act)


async def unled(env: Environment) -> None:
    """The orchestrator is killed in each phase of a cluster, and another one is started each time."""
    async with _cluster(env) as cluster:
        await cluster.create(NODES)
        for phase in PHASES:
            await env.until(phase, cluster.id, timeout_s=BEGUN_S)
            await _killed(env)
        await cluster.reaches("running", timeout_s=BEGUN_S)
        task = await cluster.submit(JOB, NODES)
        await env.until(RUNS, task, timeout_s=TASK_S)
        await _killed(env)
        await _complete(env, task, once=True)
        await cluster.delete()
        await _killed(env)
    await env.named()


async def half_sold_out(env: Environment) -> None:
    """One of two nodes can be rented until the deadline; the task waits for the next cluster of the pool."""
    await _stock(env, GPUS)
    async with _cluster(env) as cluster:
        env.mark_fault()
        await cluster.create(NODES)
        task = await cluster.submit(JOB, NODES)
        await env.named()
        await cluster.reaches("failed", timeout_s=BEGUN_S)
        [row] = await env.rows("select failure_code from cluster_apps where id = %s", cluster.id)
        if row["failure_code"] != FailureCode.ALLOCATION_TIMEOUT:
            raise NotWithin(f"the cluster failed with {row['failure_code']}")
        await env.until(GONE)
    if alive := (await env.stack.control("GET", "ledger"))["alive"]:
        raise NotWithin(f"{alive} pod(s) of a cluster that failed are left")
    await _stock(env, PLENTY)
    async with _cluster(env) as cluster:
        await cluster.create(NODES)
        await _complete(env, task)


@asynccontextmanager
async def _cluster(env: Environment) -> AsyncIterator[Cluster]:
    """A cluster that is not created yet. It is deleted in the end; what does not come in time comes with its rows."""
    with reserved_id() as name:
        cluster = Cluster(env.stack, env.until, name)
        try:
            yield cluster
        except NotWithin as error:
            known = str(list(map(dict, await env.rows(STATE))))
            raise NotWithin(f"{error}; {known[:KNOWN_CHARS]}") from error
        finally:
            if await env.rows("select 1 from cluster_apps where id = %s", name):
                await cluster.delete()
                await cluster.reaches("deleted", "failed", timeout_s=HEALED_S)


def _with_job(act: Callable[[Working], Awaitable[None]]) -> Act:
    """Create a cluster, wait until it runs a job on both nodes, break something, and delete it."""

    async def whole(env: Environment) -> None:
        await env.stack.control("POST", "settings", {"fake_clocks": True})
        async with _cluster(env) as cluster:
            await cluster.create(NODES)
            await cluster.reaches("running", timeout_s=BEGUN_S)
            [controller], [member] = await cluster.ready("controller"), await cluster.ready("worker")
            task = await cluster.submit(JOB, NODES)
            await env.until(RUNS, task)
            env.mark_fault()
            await act(Working(env, cluster, controller, member, task))

    return whole


async def _whole(work: Working, *lost: str) -> None:
    """Wait until the cluster runs with all its nodes, none of which is `lost`."""
    await work.env.until(WHOLE, work.cluster.id, list(lost), timeout_s=HEALED_S)


async def _unsaid(work: Working, says: str) -> None:
    """Wait until `cluster explain` does not name the cause any more."""
    cause, deadline = re.compile(says), time.monotonic() + HEALED_S
    while said := [line for line in (await work.env.explain_clusters())[work.cluster.id] if cause.search(line)]:
        if time.monotonic() > deadline:
            raise NotWithin(f"explained still: {said}")
        await asyncio.sleep(POLL_S)


async def _complete(env: Environment, task: str, *, once: bool = False) -> None:
    """Wait for the end of a task; `once`: of its first attempt."""
    [row] = await env.until(ENDED, task, timeout_s=TASK_S)
    if row["status"] != "Complete" or (once and row["attempts"] != 1):
        raise NotWithin(f"the task is {row['status']} after {row['attempts']} attempt(s): {row['error_message']}")


async def _killed(env: Environment) -> None:
    """Kill the orchestrator as a machine's end would, and start another one."""
    env.mark_fault()
    await env.orchestrators[0].kill()
    await env.start_orchestrator()


async def _stock(env: Environment, gpus: int) -> None:
    """Let so many GPUs be for rent."""
    await env.stack.control("POST", "settings", {"offers": [{"stock": gpus}]})
