"""One cluster of a fleet as its operator has it: over the command line."""

import json
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.clusters.configuration import controller_port, slurm_port
from testbed.services.processes import ChildFailed
from testbed.stack import ROOT, Stack
from tests.process.cli.forked import command

HOST = "127.0.0.1"
POOLS = ROOT / "tests" / "proofs" / "fault_matrix" / "cluster.toml"
SETTINGS = {
    "POOLS_FILE": str(POOLS),
    "WORKER_HANDLERS": "train=slurm",
    "HEARTBEAT_TIMEOUT_SEC": "15",
}
STATE = """
    select c.id, c.status, c.nodes, c.reason, c.failure_code, c.waiting_for,
           (select json_agg(json_build_object('worker', m.worker_id, 'role', m.role, 'status', m.status,
                                              'reason', m.reason, 'detail', m.adapter_detail))
              from cluster_members m where m.cluster = c.id) as members
      from cluster_apps c
"""
READY = """
    select m.worker_id as worker, w.pod_id as pod from cluster_members m join workers w on w.id = m.worker_id
     where m.cluster = %s and m.role = %s and m.status = 'ready' order by m.index_no
"""
START_S = 120.0  # for a state that a cluster reaches by itself
Until = Callable[..., Awaitable[Sequence[Mapping[str, Any]]]]  # (query, *values, timeout_s=…) -> its rows, at least one


@contextmanager
def reserved_id() -> Iterator[str]:
    """The id of a cluster whose ports nobody on this machine uses, and no other caller gets meanwhile."""
    while True:
        cluster = f"c-{secrets.token_hex(4)}"
        with socket.socket(type=socket.SOCK_DGRAM) as held:  # the daemons' ports are TCP's
            try:
                held.bind((HOST, controller_port(cluster)))
                for port in (controller_port(cluster), slurm_port(cluster, 0)):
                    with socket.socket() as tried:
                        tried.bind((HOST, port))
            except OSError:
                continue
            yield cluster
        return


class Cluster:
    """A cluster that may not be created yet. `until` fails in its own way when no row comes in time."""

    def __init__(self, stack: Stack, until: Until, name: str) -> None:
        self.stack, self.until, self.id = stack, until, name

    async def cli(self, *arguments: str) -> Any:
        """`orchestrator cluster …` with --json; the document. ChildFailed: what the command said."""
        status, out, err = await command(self.stack, "cluster", *arguments, "--json")
        if status != 0:
            raise ChildFailed(f"orchestrator cluster {' '.join(arguments)} ended with {status}: {err or out}")
        return json.loads(out)

    async def create(self, nodes: int, *options: str) -> None:
        """Ask for it."""
        await self.cli("create", self.id, "--pool", "train", "--nodes", str(nodes), *options)

    async def submit(self, script: str, nodes: int) -> str:
        """Submit a batch script as a task; its id."""
        file = Path(self.stack.directory) / f"{self.id}.sh"
        file.write_text(script)
        made = await self.cli("submit", self.id, "--script", str(file), "--nodes", str(nodes))
        return str(made["tasks"][0]["id"])

    async def delete(self) -> None:
        """Ask for its end."""
        await self.cli("delete", self.id, "--force")

    async def reaches(self, *states: str, timeout_s: float = START_S) -> None:
        """Wait for one of these states."""
        await self.until(
            "select 1 from cluster_apps where id = %s and status = any(%s)", self.id, list(states), timeout_s=timeout_s
        )

    async def ready(self, role: str) -> Sequence[Mapping[str, Any]]:
        """Wait for ready members of this role; the worker and the pod of each."""
        return await self.until(READY, self.id, role)
