"""The stack behind lines that can be harmed, its two orchestrators, and what a harm must know of them."""

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
NEXT_LEADER_S = 4 * LEASE_TTL_S  # longest wait: more is a violation whatever else goes on
ANSWER_S = 30.0  # of a database that is being restarted
ASK_AGAIN_S = 0.2
BUDGET_USD = 25.0
UNANSWERED = "the database does not answer"
SAYS_NOTHING = "$^"  # the witness looks for waits without an end; no harm here has a sentence of its own
# Quick to notice, and with work for two cores; attempts are many because a task may lose its worker many times.
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
BEHIND = {"s3": "S3_ENDPOINT_URL", "provider": "RUNPOD_API_BASE_URL", "pods": "WORKER_API_URL"}  # line -> variable
LEADER = "select holder, term from fleet_lease where expires_at > now()"
NEXT_LEADER = "select holder, term from fleet_lease where expires_at > now() and term > %s and holder <> %s"
BUSY = """
    select w.id as worker, w.pod_id as pod, w.nonce, t.id::text as task, t.attempts as attempt
      from tasks t join workers w on w.id = t.worker_id
     where t.status = 'In Progress' and w.status = 'active' and w.pod_id is not null order by w.id
"""


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that was killed or stopped with a task in its hands."""

    task: str
    attempt: int
    at: float  # epoch seconds
    how: str


class ChaosEnvironment:
    """What harms are done to."""

    def __init__(
        self, env: Environment, lines: Mapping[str, TcpProxy], urls: Sequence[str], ports: Sequence[int]
    ) -> None:
        self.env, self.stack, self.lines = env, env.stack, lines
        self._urls, self._ports = urls, ports
        self.orchestrators: list[Child] = []
        self.killed: Counter[str] = Counter()  # SIGKILLs and restarts, by whom they struck
        self.fail_overs: list[tuple[float, float, str]] = []  # from, to (seconds of the run), after what
        self.deaths: list[Death] = []
        self.wrong: list[str] = []
        self._sent_away: set[int] = set()  # process ids that ended because we wanted it
        self.began_at = time.time()
        self._began_s = time.monotonic()

    def seconds(self) -> float:
        """Since the beginning of the run."""
        return time.monotonic() - self._began_s

    async def begin(self, number: int) -> Child:
        """Start the orchestrator of that number, or start it again; it is not waited for."""
        wants = {"PORT": str(self._ports[number]), "DATABASE_URL": self._urls[number]}
        child = await self.stack.begin_orchestrator(wants)
        self.orchestrators[number : number + 1] = [child]
        return child

    async def until_ready(self) -> None:
        """Wait for both."""
        for child, port in zip(self.orchestrators, self._ports, strict=True):
            await self.stack.until_ready(child, f"http://127.0.0.1:{port}")

    async def kill(self, number: int) -> None:
        """SIGKILL an orchestrator."""
        self._sent_away.add(self.orchestrators[number].pid)
        self.killed["orchestrators"] += 1
        await self.orchestrators[number].kill()

    async def end(self, number: int) -> int:
        """SIGTERM an orchestrator; its exit status."""
        self._sent_away.add(self.orchestrators[number].pid)
        return await self.orchestrators[number].stop()

    async def leader(self) -> tuple[int, Mapping[str, Any]] | None:
        """Which orchestrator leads, and its lease; None while nobody does."""
        for row in await self._ask(LEADER):
            for number, child in enumerate(self.orchestrators):
                if f":{child.pid}:" in row["holder"]:
                    return number, row
        return None

    async def next_leader(self, before: Mapping[str, Any], after: str) -> float:
        """Wait until another process has a later term; how long that took, in seconds. Raises NotWithin."""
        began = self.seconds()
        await self.env.until(NEXT_LEADER, before["term"], before["holder"], timeout_s=NEXT_LEADER_S)
        self.fail_overs.append((began, self.seconds(), after))
        return self.seconds() - began

    async def busy(self, dice: random.Random) -> Mapping[str, Any] | None:
        """Some worker with a task in its hands."""
        rows = await self._ask(BUSY)
        return dice.choice(rows) if rows else None

    async def _ask(self, query: str) -> Sequence[Mapping[str, Any]]:
        """Ask the database; where it is being restarted, once it is back."""
        async with asyncio.timeout(ANSWER_S):
            while True:
                try:
                    return await self.env.rows(query)
                except psycopg.OperationalError:
                    await asyncio.sleep(ASK_AGAIN_S)

    def signal_agent(self, busy: Mapping[str, Any], number: signal.Signals) -> bool:
        """Signal the agent of a worker, and nobody else: the process must bear its pod's mark."""
        pod = self.stack.directory / "runpod" / "pods" / str(busy["pod"])
        with suppress(psutil.Error, OSError, ValueError):
            process = psutil.Process(int((pod / f"home/.orchestrator/run/{busy['nonce']}/agent.pid").read_text()))
            if Path(process.environ().get(MARK, "")).resolve() == pod.resolve():
                process.send_signal(number)
                return True
        return False

    def died(self, busy: Mapping[str, Any], how: str) -> None:
        """Note a worker that is gone with its task."""
        self.deaths.append(Death(busy["task"], busy["attempt"], time.time(), how))

    async def look_for_crashes(self) -> None:
        """An orchestrator that ended by itself is started again; only at its start may it say that nobody answers."""
        for number, child in enumerate(self.orchestrators):
            if not child.alive and child.pid not in self._sent_away:
                self._sent_away.add(child.pid)
                if UNANSWERED not in child.output_tail():
                    self.wrong.append(f"an orchestrator ended with {child.process.returncode}{child.output_tail()}")
                await self.begin(number)

    async def calm(self) -> None:
        """No more harm: every line as it should be, no fault left, both orchestrators awake and there."""
        for line in self.lines.values():
            line.open()
        await self.stack.postgres.start()
        await self.stack.s3.start()
        await self.stack.control("DELETE", "faults")
        # Until here somebody may have been late because nobody led, or nobody answered.
        self.env.observer.waits = {wait for wait in self.env.observer.waits if wait.endswith("for nobody")}
        for number, child in enumerate(self.orchestrators):
            if child.alive:
                os.kill(child.pid, signal.SIGCONT)
            else:
                await self.begin(number)
        await self.until_ready()


@asynccontextmanager
async def prepared(directory: Path, seed: int) -> AsyncIterator[ChaosEnvironment]:
    """The stack with a line before everything that is reached over a network, and two orchestrators that are ready."""
    async with AsyncExitStack() as exits:
        stack = await exits.enter_async_context(Stack(directory, seed=seed, boot_s=(0.8, 1.5)))
        await stack.migrate()
        stack.environment |= OPERATOR
        env = Environment(stack, SAYS_NOTHING)
        exits.push_async_callback(env.close)
        balancer = await env.start(ORCHESTRATORS)
        assert balancer is not None
        await exits.enter_async_context(balancer)
        lines: dict[str, TcpProxy] = {}

        async def line(name: str, url: str) -> str:
            port = urlsplit(url).port or 0
            lines[name] = await exits.enter_async_context(TcpProxy(port, name=name))
            return url.replace(f":{port}", f":{lines[name].port}")

        for name, variable in BEHIND.items():
            stack.environment[variable] = await line(name, stack.environment[variable])
        urls = [await line(f"postgres {number}", stack.database_url) for number in range(ORCHESTRATORS)]
        chaos = ChaosEnvironment(env, lines, urls, env.ports)
        exits.push_async_callback(cancelled, asyncio.create_task(env.observer.watch(lambda: False)))
        for number in range(ORCHESTRATORS):
            await chaos.begin(number)
        await chaos.until_ready()
        yield chaos
