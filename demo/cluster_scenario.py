"""The steps of `./run demo --cluster`: a cluster of three nodes, two jobs, a lost node, and nothing left at the end."""

import asyncio
import contextlib
import json
import sys
import time
import uuid
from pathlib import Path
from types import MappingProxyType
from typing import Any

from psycopg import AsyncConnection

from demo.narrator import Narrator
from demo.scenario import SCHEMA_VERSION, Options, explain, submit
from demo.summary import show
from testbed.audit import count, faults
from testbed.services import debian
from testbed.services.processes import Child, ChildFailed
from testbed.stack import Stack

LIMIT_S = 420.0  # for the whole of it
NODES, PAIR_NODES = 3, 2  # of the cluster, and of the first job
POLL_S = 0.25
SHARE_KILLED_AT = 0.5  # of the long job's time
STEPS, STEP_S = 30, 1.0  # of the long job
IDLE_S = 40  # until the cluster gives its nodes back: longer than a failed task waits for its next attempt
TOLD = MappingProxyType({  # of the states of a member: the others take a moment only
    "ready": "is a node of the cluster",
    "failed": "is lost as a node",
    "removed": "has left the cluster",
})  # fmt: skip
POOLS = f"""
[pools.train]
kind = "cluster"
task_types = ["train"]
worker_handlers = ["train"]
gpu_types = ["NVIDIA A40"]
gpu_count = 2
data_centers = ["US-KS-2"]
cloud = "SECURE"
max_active_gpus = {NODES}
"""
PAIR = """#!/bin/sh
srun sh -c 'echo "node $SLURM_PROCID of $SLURM_NTASKS is $SLURMD_NODENAME"' >nodes.txt
"""
LONG = f"""#!/bin/sh
step=0
while [ $step -lt {STEPS} ]; do
  step=$((step + 1))
  srun sh -c 'sleep {STEP_S}'
done
srun sh -c 'echo $SLURMD_NODENAME' >nodes.txt
"""
EVENTS = """
    select id, worker_id, subject, to_state, reason from cluster_events
     where cluster = %s and id > %s and subject in ('cluster', 'member') and from_state is distinct from to_state
     order by id
"""
RUNNING_SINCE = """
    select extract(epoch from now() - generation_started_at)::float as seconds from tasks
     where id = %s and status = 'In Progress'
"""
A_NODE = """
    select m.worker_id, m.node_name, w.pod_id from cluster_members m join workers w on w.id = m.worker_id
     where m.cluster = %s and m.role = 'worker' and m.status = 'ready' and w.pod_id is not null
     order by m.index_no desc limit 1
"""
OUTCOME = """
    select t.status::text as status, count(a.*) filter (where a.outcome is distinct from 'complete') as earlier
      from tasks t left join task_attempts a on a.task_id = t.id where t.id = %s group by t.status
"""
REST = """
    select not exists (select 1 from tasks where status in ('Queued', 'In Progress'))
       and not exists (select 1 from workers where status <> 'terminated') as rest
"""
Sql = AsyncConnection[dict[str, Any]]


class _ClusterDemo:
    """One run: the stack, the database, and the events printed so far."""

    def __init__(self, stack: Stack, sql: Sql, narrator: Narrator, orchestrator: Child) -> None:
        self._stack, self._sql, self._narrator, self._orchestrator = stack, sql, narrator, orchestrator
        self._deadline = time.monotonic() + LIMIT_S
        self._last_event = 0
        self.id = f"demo-{uuid.uuid4().hex[:6]}"  # its ports follow from it

    async def create(self) -> None:
        """Ask for the cluster as an operator does; it takes its nodes when tasks wait, and gives them back."""
        asked = ("--pool", "train", "--nodes", str(NODES), "--min-nodes", "0", "--max-nodes", str(NODES))
        await self._run("cluster", "create", self.id, *asked)

    async def delete(self) -> None:
        """Delete it."""
        await self._run("cluster", "delete", self.id, "--force")
        await self._until("select 1 as n from cluster_apps where id = %s and status = 'deleted'", self.id)

    async def kill_a_node(self, task: str) -> str | None:
        """Delete a node's pod when half of the long job is done. Return its worker, None if the job ended before."""
        half_s = STEPS * STEP_S * SHARE_KILLED_AT
        while await self._step():
            row = await self._one(RUNNING_SINCE, task)
            if row is not None and row["seconds"] >= half_s:
                break
            ended = await self._one("select 1 from tasks where id = %s and status in ('Complete', 'Failed')", task)
            if ended is not None:
                return None
        victim = await self._one(A_NODE, self.id)
        if victim is None:
            return None
        await self._stack.control("POST", f"pods/{victim['pod_id']}/kill", {"how": "vanish"})
        self._narrator.tell(
            "kill", f"the demo deletes the pod of {self._narrator.worker(victim['worker_id'])} during the job"
        )
        return str(victim["worker_id"])

    async def rest(self) -> bool:
        """Wait until all tasks have ended and the cluster has no node; whether that came in time."""
        while await self._step():
            row = await self._one(REST)
            if row is not None and row["rest"] and (await self._stack.control("GET", "ledger"))["alive"] == 0:
                return True
        return False

    async def fetch(self, task: str, into: Path) -> Path | None:
        """Download the output of a task; None if it has none."""
        status, _, _ = await self._stack.run("tasks", "output", task, "-o", str(into))
        file = into / "nodes.txt"
        return file if status == 0 and file.is_file() else None

    async def redone(self, task: str) -> bool:
        """Whether the task was completed after an attempt that was not."""
        row = await self._one(OUTCOME, task)
        return row is not None and row["status"] == "Complete" and row["earlier"] > 0

    async def _until(self, query: str, *values: object) -> None:
        while await self._step():
            row = await self._one(query, *values)
            if row is not None:
                return

    async def _step(self) -> bool:
        """Print what is new and pause. Return False when the time is over."""
        await self._narrator.look()
        events = await (await self._sql.execute(EVENTS, (self.id, self._last_event))).fetchall()
        for event in events:
            self._last_event = event["id"]
            if event["subject"] == "cluster":
                self._narrator.tell("scale", f"the cluster is {event['to_state']}: {_brief(event['reason'] or '')}")
            elif event["to_state"] in TOLD:
                worker = self._narrator.worker(event["worker_id"])
                self._narrator.tell("scale", f"{worker} {TOLD[event['to_state']]}: {_brief(event['reason'] or '')}")
        if not self._orchestrator.alive:
            raise ChildFailed(f"the orchestrator ended{self._orchestrator.output_tail()}")
        await asyncio.sleep(POLL_S)
        return time.monotonic() < self._deadline

    async def _one(self, query: str, *values: object) -> dict[str, Any] | None:
        return await (await self._sql.execute(query, values)).fetchone()

    async def _run(self, *arguments: str) -> Any:
        status, out, err = await self._stack.run(*arguments, "--json")
        if status != 0:
            raise ChildFailed(f"orchestrator {' '.join(arguments)} ended with {status}: {err or out}")
        return json.loads(out)


def _brief(reason: str) -> str:
    """Return the first clause of a reason."""
    return reason.partition(": ")[0].partition("; ")[0]


async def run_cluster_scenario(options: Options) -> dict[str, Any]:
    """Run the demo. Return its summary: the keys of the other demo's, and `output`, the fetched file."""
    if debian.find("slurmctld", debian.SLURM) is None:
        raise ValueError("Slurm is not installed on this machine; fix: .ci/debian slurm-wlm (Debian or Ubuntu)")
    narrator = Narrator(verbose=options.verbose)
    status = asyncio.create_task(narrator.accompany())
    try:
        return await _run(options, narrator, status)
    finally:
        status.cancel()


async def _run(options: Options, narrator: Narrator, status: "asyncio.Task[None]") -> dict[str, Any]:
    began_s = time.monotonic()
    narrator.expect("PostgreSQL, S3 and the RunPod emulator start")
    async with Stack(options.directory, seed=options.seed, transport=options.transport) as stack:
        pools = options.directory / "pools.toml"
        pools.write_text(POOLS)
        settings = {"POOLS_FILE": str(pools), "WORKER_HANDLERS": "train=slurm", "GPU_IDLE_TIMEOUT_SEC": str(IDLE_S)}
        stack.environment |= settings
        await stack.migrate()
        async with await stack.connect() as sql:
            narrator.begin(sql, 2)
            orchestrator = await stack.start_orchestrator()
            narrator.tell("event", f"the orchestrator runs as process {orchestrator.pid}")
            demo = _ClusterDemo(stack, sql, narrator, orchestrator)
            await demo.create()
            pair, long = await submit(stack, [_job(PAIR, PAIR_NODES), _job(LONG, NODES)])
            narrator.tell(
                "event", f"submitted a job for {PAIR_NODES} nodes and one for {NODES}: the cluster takes {NODES} nodes"
            )
            killed = await demo.kill_a_node(long)
            await demo.rest()
            output = await demo.fetch(pair, options.directory / "output")
            if not options.keep:
                await demo.delete()
            narrator.expect("counting tasks, pods, dollars and log bytes")
            summary = await count(sql, await stack.control("GET", "ledger"), stack.blobs(), 2)
            summary |= {"pods_killed": int(killed is not None), "killed_task_done_elsewhere": await demo.redone(long)}
            summary = _result(summary | _output(output), options.seed, time.monotonic() - began_s)
            if options.keep:
                status.cancel()
                show(summary, sys.stderr, keeps=True)
                explain(stack, orchestrator, f"  ./run cluster status {demo.id}   ./run tasks submit --type train")
                with contextlib.suppress(asyncio.CancelledError):
                    await narrator.follow()
            return summary


def _job(script: str, nodes: int) -> dict[str, Any]:
    return {"task_type": "train", "params": {"script": script, "nodes": nodes, "outputs": ["nodes.txt"]}}


def _output(file: Path | None) -> dict[str, Any]:
    """The fetched file, if both nodes answered in it; there is no video."""
    lines = file.read_text().splitlines() if file else []
    answered = len({line.split()[-1] for line in lines if line})
    nothing = {"video": None, "video_seconds": None, "video_expected_seconds": None}
    return {**nothing, "output": str(file) if answered == PAIR_NODES else None, "output_nodes": answered}


def _result(summary: dict[str, Any], seed: int, seconds: float) -> dict[str, Any]:
    wrong = faults(summary) + [name for name in ("output", "killed_task_done_elsewhere") if not summary[name]]
    whole = {"schema_version": SCHEMA_VERSION, "ok": not wrong, "wrong": wrong, "seed": seed}
    return {**whole, "seconds": round(seconds, 1), **summary}
