"""The stack behind TCP proxies, its two orchestrators, and what the faults need to know of them."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg

from orchestrator.ports import LEASE_TTL_S
from testbed.runpod.watchdog import MARK
from testbed.services.processes import Child
from testbed.stack import Stack
from testbed.tcp_proxy import TcpProxy
from tests.proofs.fault_matrix.environment import Environment
from tests.proofs.fault_matrix.runner import cancelled

ORCHESTRATORS = 2
NEXT_LEADER_S = 4 * LEASE_TTL_S  # the longest wait for a leader: more is a violation in any case
ANSWER_S = 30.0  # of a database that is being restarted
ASK_AGAIN_S = 0.2
BUDGET_USD = 25.0
UNANSWERED = "the database does not answer"
SAYS_NOTHING = "$^"  # the observer looks for waits without an end, and for no sentence about a certain fault
# Short timeouts, and work for two cores. A task has many attempts because it may lose its worker many times.
OPERATOR = {
    "MAX_ACTIVE_GPUS": "8",
    "TASKS_PER_GPU_THRESHOLD": "3",
    "GPU_IDLE_TIMEOUT_SEC": "4",
    "GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC": "4",
    "SPAWNING_GRACE_PERIOD_SEC": "2",
    "SCALE_DOWN_GRACE_PERIOD_SEC": "2",
    "GRACEFUL_SHUTDOWN_TIMEOUT_SEC": "10",
    "ORCHESTRATOR_POLL_SEC": "1",
    "HEARTBEAT_TIMEOUT_SEC": "20",
    "SPAWNING_TIMEOUT_SEC": "60",
    "DEADMAN_TIMEOUT_SEC": "90",
    "DAILY_BUDGET_USD": f"{BUDGET_USD:g}",
    "WORKER_HANDLERS": "toil=toil:toil",
    "WORKER_TASKS_PER_CLAIM": "4",
    "WORKER_CODE_DIR": str(Path(__file__).parent / "handlers"),
}
BEHIND = {"s3": "S3_ENDPOINT_URL", "provider": "RUNPOD_API_BASE_URL", "pods": "WORKER_API_URL"}  # proxy -> variable
LEADER = "select holder, term from fleet_lease where expires_at > now()"
NEXT_LEADER = "select holder, term from fleet_lease where expires_at > now() and term > %s and holder <> %s"
BUSY = """
    select w.id as worker, w.pod_id as pod, w.nonce, t.id::text as task, t.attempts as attempt
      from tasks t join workers w on w.id = t.worker_id
     where t.status = 'In Progress' and w.status = 'active' and w.pod_id is not null order by w.id
"""


@dataclass(frozen=True, slots=True)
class LostWorker:
    """A worker that was killed or stopped while it ran a task."""

    task: str
    attempt: int
    at: float  # epoch seconds
    how: str


class ChaosEnvironment:
    """The processes and proxies that the faults affect."""

    def __init__(
        self, env: Environment, proxies: Mapping[str, TcpProxy], urls: Sequence[str], ports: Sequence[int]
    ) -> None:
        self.env, self.stack, self.proxies = env, env.stack, proxies
        self._urls, self._ports = urls, ports
        self.orchestrators: list[Child] = []
        self.killed: Counter[str] = Counter()  # SIGKILLs and restarts, by their target
        self.fail_overs: list[tuple[float, float, str]] = []  # from, to (seconds of the run), after what
        self.lost_workers: list[LostWorker] = []
        self.wrong: list[str] = []
        self._logged: dict[int, int] = {}  # by process: how long their common log was when it began
        self._ended_by_us: set[int] = set()  # ids of processes that the test ended
        self.began_at = time.time()
        self._began_s = time.monotonic()

    def seconds(self) -> float:
        """Since the beginning of the run."""
        return time.monotonic() - self._began_s

    async def begin(self, number: int) -> Child:
        """Start the orchestrator with this number, or start it again, without a wait until it is ready."""
        wants = {"PORT": str(self._ports[number]), "DATABASE_URL": self._urls[number]}
        log = self.stack.directory / "orchestrator.log"
        logged = log.stat().st_size if log.exists() else 0
        child = await self.stack.begin_orchestrator(wants)
        self._logged[child.pid] = logged
        self.orchestrators[number : number + 1] = [child]
        return child

    async def until_ready(self) -> None:
        """Wait for both."""
        for child, port in zip(self.orchestrators, self._ports, strict=True):
            await self.stack.until_ready(child, f"http://127.0.0.1:{port}")

    async def kill(self, number: int) -> None:
        """SIGKILL an orchestrator."""
        self._ended_by_us.add(self.orchestrators[number].pid)
        self.killed["orchestrators"] += 1
        await self.orchestrators[number].kill()

    async def end(self, number: int) -> int:
        """SIGTERM an orchestrator. Return its exit status."""
        self._ended_by_us.add(self.orchestrators[number].pid)
        return await self.orchestrators[number].stop()

    async def leader(self) -> tuple[int, Mapping[str, Any]] | None:
        """Return which orchestrator leads, and its lease. None without a leader."""
        for row in await self._ask(LEADER):
            for number, child in enumerate(self.orchestrators):
                if f":{child.pid}:" in row["holder"]:
                    return number, row
        return None

    async def next_leader(self, before: Mapping[str, Any], after: str) -> float:
        """Wait until another process has a later term. Return the seconds that it took. Raises NotWithin."""
        began = self.seconds()
        await self.env.until(NEXT_LEADER, before["term"], before["holder"], timeout_s=NEXT_LEADER_S)
        self.fail_overs.append((began, self.seconds(), after))
        return self.seconds() - began

    async def busy(self, dice: random.Random) -> Mapping[str, Any] | None:
        """Return a worker with a running task, or None."""
        rows = await self._ask(BUSY)
        return dice.choice(rows) if rows else None

    async def _ask(self, query: str) -> Sequence[Mapping[str, Any]]:
        """Query the database. During its restart, wait until it is available again."""
        async with asyncio.timeout(ANSWER_S):
            while True:
                try:
                    return await self.env.rows(query)
                except psycopg.OperationalError:
                    await asyncio.sleep(ASK_AGAIN_S)

    def signal_agent(self, busy: Mapping[str, Any], number: signal.Signals) -> bool:
        """Signal the agent of a worker. The mark of its pod shows that it is the agent and no other process."""
        pod = self.stack.directory / "runpod" / "pods" / str(busy["pod"])
        with suppress(psutil.Error, OSError, ValueError):
            process = psutil.Process(int((pod / f"home/.orchestrator/run/{busy['nonce']}/agent.pid").read_text()))
            if Path(process.environ().get(MARK, "")).resolve() == pod.resolve():
                process.send_signal(number)
                return True
        return False

    def note_lost(self, busy: Mapping[str, Any], how: str) -> None:
        """Note a worker that was lost with its task."""
        self.lost_workers.append(LostWorker(busy["task"], busy["attempt"], time.time(), how))

    async def look_for_crashes(self) -> None:
        """Start orchestrators again that ended by themselves: only an unanswered database at the start is a reason."""
        for number, child in enumerate(self.orchestrators):
            if not child.alive and child.pid not in self._ended_by_us:
                self._ended_by_us.add(child.pid)
                if UNANSWERED.encode() not in child.log.read_bytes()[self._logged[child.pid] :]:
                    self.wrong.append(f"an orchestrator ended with {child.process.returncode}{child.output_tail()}")
                await self.begin(number)

    async def calm(self) -> None:
        """Stop all faults: open the proxies, start the servers, and continue or start both orchestrators."""
        for proxy in self.proxies.values():
            proxy.open()
        await self.stack.postgres.start()
        await self.stack.s3.start()
        await self.stack.control("DELETE", "faults")
        # Until now, a party may have been late because there was no leader, or no answer.
        self.env.observer.waits = {wait for wait in self.env.observer.waits if wait.endswith("for nobody")}
        for number, child in enumerate(self.orchestrators):
            if child.alive:
                os.kill(child.pid, signal.SIGCONT)
            else:
                await self.begin(number)
        await self.until_ready()


@asynccontextmanager
async def prepared(directory: Path, seed: int) -> AsyncIterator[ChaosEnvironment]:
    """The stack with a proxy before each server, and two orchestrators that are ready."""
    async with AsyncExitStack() as exits:
        stack = await exits.enter_async_context(Stack(directory, seed=seed, boot_s=(0.8, 1.5)))
        await stack.migrate()
        stack.environment |= OPERATOR
        env = Environment(stack, SAYS_NOTHING)
        exits.push_async_callback(env.close)
        balancer = await env.start(ORCHESTRATORS)
        assert balancer is not None
        await exits.enter_async_context(balancer)
        proxies: dict[str, TcpProxy] = {}

        async def behind_proxy(name: str, url: str) -> str:
            port = urlsplit(url).port or 0
            proxies[name] = await exits.enter_async_context(TcpProxy(port, name=name))
            return url.replace(f":{port}", f":{proxies[name].port}")

        for name, variable in BEHIND.items():
            stack.environment[variable] = await behind_proxy(name, stack.environment[variable])
        urls = [await behind_proxy(f"postgres {number}", stack.database_url) for number in range(ORCHESTRATORS)]
        chaos = ChaosEnvironment(env, proxies, urls, env.ports)
        exits.push_async_callback(cancelled, asyncio.create_task(env.observer.watch(lambda: False)))
        for number in range(ORCHESTRATORS):
            await chaos.begin(number)
        await chaos.until_ready()
        yield chaos
