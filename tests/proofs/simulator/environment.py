"""The simulated world of one seed: its clock, its random numbers, the network between its parts, and its action log."""

import asyncio
import hashlib
import logging
import random
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import requests
import structlog

from orchestrator.adapters import http_deadline
from orchestrator.core.economics.policies import ScalingPolicy
from orchestrator.core.policy import Policy, Pool
from orchestrator.core.provider import Offer
from orchestrator.pods.bundle import Bundle
from orchestrator.ports import PortError, Unavailable
from tests.proofs.simulator.clock import Kernel, Killed, SimLoop, virtual
from tests.proofs.simulator.faults import Faults
from tests.proofs.simulator.laws import Laws
from tests.proofs.simulator.provider import FLEET, Provider, SimPod
from tests.proofs.simulator.replica import Replica
from tests.proofs.simulator.sql.records import Records

if TYPE_CHECKING:
    from tests.proofs.simulator.agents import Agent, Held

# Seconds there and back.
LATENCY_S = {"db": (0.002, 0.02), "cloud": (0.1, 0.6), "ssh": (0.02, 0.12), "s3": (0.03, 0.2), "rpc": (0.01, 0.06)}
LATE_S = 12.0  # after the caller has given up, at most
STRAIGHT = 0.3  # of the seeds
POOLS = 0.4  # of the seeds
LEARNED = 0.4  # of the seeds: in these, the pools follow the learned rule
NOTICED_S = 10.0  # a shorter outage may fall between two calls
HUNG_S = 30.0  # at most, however long the caller would wait
QUIET = (
    "fleet_lead",
    "fleet_maintain",
    "fleet_observe",
    "fleet_scaling_facts",
    "fleet_learn",
    "worker_heartbeat",
    "fleet_worker",
    "fleet_log_ends",
    "fleet_record_decision",
)
A40, L4 = "NVIDIA A40", "NVIDIA L4"
AGENT = b"the agent's program"


@dataclass
class Outcome:
    """The result of one seed."""

    seed: int
    violation: str | None
    virtual_s: float
    steps: int
    faults: Mapping[str, int]
    digest: str  # of the action log
    log: list[str] = field(default_factory=list)


class World:
    """The simulated world of one seed."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed, self._trace = seed, trace
        self.kernel, self.faults = Kernel(seed), Faults(seed)
        self.faults.clock = lambda: self.kernel.now
        self.dice = self.faults.dice
        self.log: list[str] = []
        self._digest = hashlib.sha256()
        self.violations: list[str] = []
        self.bundle = Bundle(AGENT, hashlib.sha256(AGENT).hexdigest(), None, None)
        self._scaling = random.Random(f"scaling of {seed}")
        self.policy = self._policy()
        self.straight = random.Random(f"door of {seed}").random() < STRAIGHT  # agents speak to the database's own API
        self.poll_s = self.dice.choice((10.0, 30.0))
        self.db = Records()
        self.laws = Laws(self)
        self.db.watch = self.laws.changed
        self.provider = Provider(self)
        self.bucket: dict[str, bytes] = {}
        self.replicas: list[Replica] = []
        self.db_down = self.s3_down = False
        self.bad_release_s: float | None = None  # since when every task fails on every pod
        self.was_bad_release = False
        self.path_cut = (0.0, 0.0)  # from when until when no agent reaches a gateway
        self.offline_until_s = 0.0  # until when the orchestrators reach neither pods nor the provider
        self.alarm: Any = None  # a finding that every agent reports, on any machine
        self.belated = False  # whether the sender of the present call gave it up long ago
        self.outages: list[tuple[float, float]] = []  # of the database
        self.started = 0

    def _policy(self) -> Policy:
        dice = self.dice
        offers = [Offer(A40, None, "SECURE"), Offer(L4, "EU-1", "SECURE"), Offer(A40, "US-1", "COMMUNITY")]
        pool = Pool(
            name="default",
            offers=tuple(offers[: dice.randint(1, 3)]),
            image="image:cu124",
            gpu_count=1,
            disk_gb=50,
            min_memory_gb=8,
            min_vcpu=2,
            volume_name=None,
            volume_mount_path="/workspace",
            min_active=0,
            max_active=dice.randint(1, 5),
            tasks_per_gpu=dice.randint(1, 3),
            keep_idle=0,
            idle_timeout_s=dice.choice((20.0, 60.0)),
            overcapacity_idle_timeout_s=10,
        )
        rich = dice.random() < 0.5
        if self._scaling.random() < LEARNED:
            pool = replace(
                pool,
                scaling_policy=ScalingPolicy.LEARNED,
                wait_price=self._scaling.choice((0.1, 1.0, 10.0)),
                max_wait_s=self._scaling.choice((None, 30.0)),
            )
        return Policy(
            FLEET,
            self._pools(pool),
            spawning_timeout_s=dice.choice((200.0, 300.0)),
            spawning_grace_s=60,
            scale_down_grace_s=20,
            drain_grace_s=60,
            flush_deadline_s=40,
            heartbeat_timeout_s=dice.choice((30.0, 60.0)),
            task_stuck_s=90,
            public_key="ssh-ed25519 ours",
            code_sha="c0de",
            handled=("t",),
            failure_min_bringups=2 if self.faults.frail else 5,  # so few come that far before the next fault
            hourly_budget_usd=None if rich else dice.choice((0.5, 1.0, 1.4)),
            daily_budget_usd=None if rich else dice.choice((1.0, 5.0)),
        )

    def _pools(self, pool: Pool) -> tuple[Pool, ...]:
        """Return the pools: in some seeds also a second one, whose pods differ in every property."""
        dice = random.Random(f"pools of {self.seed}")
        if dice.random() >= POOLS:
            return (pool,)
        other = replace(
            pool,
            name="other",
            offers=(Offer(L4, "US-1", "SECURE"), Offer(L4, "EU-2", "COMMUNITY")),
            image="other:cu128",
            disk_gb=80,
            min_memory_gb=16,
            min_vcpu=4,
            max_active=dice.randint(1, 3),
            batch=2,
        )
        return (pool, other)

    def pool(self, name: str) -> Pool | None:
        """Return a pool of the policy."""
        return next((pool for pool in self.policy.pools if pool.name == name), None)

    def listened_s(self, since_s: float) -> float:
        """Return for how long the database has been available since then. Short outages do not count."""
        away = (min(to, self.kernel.now) - max(since, since_s) for since, to in self.outages if to - since > NOTICED_S)
        return self.kernel.now - since_s - sum(max(0.0, each) for each in away)

    # --- what is kept

    def say(self, line: str) -> None:
        """Write a line to the action log."""
        text = f"{self.kernel.now:10.3f} {line}"
        self._digest.update(text.encode())
        if self._trace:
            self.log.append(text)

    @property
    def digest(self) -> str:
        """Return the digest of the action log so far."""
        return self._digest.hexdigest()

    # --- the network

    async def carry(self, loop: SimLoop, link: str, act: Callable[[], Any], *, timeout_s: float) -> Any:
        """Make one call over a link that may fail or lose its answer. `act` runs at the other end."""
        if loop.dead:
            raise Killed
        answer: asyncio.Future[Any] = loop.create_future()
        fate, limit_s = self.faults.fate(link), min(timeout_s, HUNG_S)
        there_s, back_s = (self.faults.between(*LATENCY_S[link]) for _ in range(2))
        if fate in ("hung_before", "hung_after", "late"):
            back_s = limit_s

        def deliver(value: Any, error: Exception | None) -> None:
            if loop.dead or answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)

        def arrive() -> None:
            answered: tuple[Any, Exception | None]
            try:
                answered = self._attempt(link, fate, act), None
            except Exception as broken:  # noqa: BLE001 - carried back to the caller
                answered = None, broken
            if fate == "late":
                self.kernel.after(limit_s + self.faults.between(0, LATE_S), late)
            self.kernel.after(back_s, lambda: deliver(*answered))

        def late() -> None:
            self.belated = True
            try:
                self._reach(link)
                act()
            except Exception as refused:  # noqa: BLE001 - nobody waits for it any more
                self.say(f"late: {type(refused).__name__}")
            finally:
                self.belated = False

        self.kernel.after(there_s, arrive)
        return await answer

    def _attempt(self, link: str, fate: str, act: Callable[[], Any]) -> Any:
        """Run the call at the other end, if it arrives. Return its answer, if the answer arrives."""
        if fate in ("refused", "lost_before", "hung_before", "late"):
            self._cut(link)
        self._reach(link)
        value = act()
        if fate in ("lost_after", "hung_after"):
            self._cut(link)
        return value

    def _cut(self, link: str) -> None:
        if link == "cloud":
            raise requests.ConnectionError("cut")
        raise Unavailable(f"{link} was cut")

    def _reach(self, link: str) -> None:
        if (link == "db" and self.db_down) or (link == "s3" and self.s3_down):
            raise Unavailable(f"{link} is down")
        if link in ("ssh", "cloud") and self.kernel.now < self.offline_until_s:
            self._cut(link)

    def commit(
        self, function: str, args: Mapping[str, Any], *, by: str, claims: Mapping[str, Any] | None = None
    ) -> Any:
        """One transaction."""
        try:
            answer = self.db.call(function, self.kernel.moment(), args, claims)
        except PortError as refused:
            self.say(f"{by}: {function} refused: {type(refused).__name__}")
            raise
        for channel, payload in self.db.notified:
            for replica in self.replicas:
                self.kernel.after(0.005, lambda r=replica, c=channel, p=payload: r.hears(c, p))  # type: ignore[misc]
        if function not in QUIET:
            self.say(f"{by}: {function} {_gist(args)}")
        self.laws.committed(function, args, answer)
        return answer

    async def call_as_agent(
        self, agent: "Agent", function: str, said: Mapping[str, Any], claims: Mapping[str, Any], timeout_s: float
    ) -> Any:
        """Make a call of a worker through a replica's gateway, or to PostgREST, which reports no unanswered calls."""
        up = [replica for replica in self.replicas if replica.up] or self.replicas
        replica = self.faults.one_of(up)

        def at_the_gateway() -> Any:
            if not replica.up and not self.straight:
                raise Unavailable("nobody is there")
            if self.db_down:
                if not self.straight:
                    replica.note_unanswered(agent.worker_id)
                raise Unavailable("no database")
            return self.commit(function, said, by=f"agent {agent.worker_id}", claims=claims)

        return await self.carry(agent.loop, "rpc", at_the_gateway, timeout_s=timeout_s)

    def listening(self, host: str, port: int) -> SimPod | None:
        """Return the pod that answers at an address: the newest, if the address was used before."""
        now = self.kernel.now
        here = [p for p in self.provider.pods.values() if p.address == (host, port) and p.runs(now) and p.sshd_s <= now]
        return here[-1] if here else None

    def claimed(self, agent: "Agent", held: "Held") -> None:
        """Note that an agent got a task."""
        self.laws.claims[held.id, held.attempt] = (agent, self.kernel.now)

    def start_replica(self, slot: int) -> None:
        """Start a new process in the place of an old one."""
        self.started += 1
        replica = Replica(self, f"orchestrator-{self.started}", self.policy)
        if slot < len(self.replicas):
            self.replicas[slot] = replica
        else:
            self.replicas.append(replica)
        self.say(f"{replica.name} starts")

    # --- one seed

    def run(self, scenario: Callable[["World"], None]) -> Outcome:
        """Run the scenario."""
        before = http_deadline.response
        structlog.configure(processors=[self._heard], cache_logger_on_first_use=False)
        jobs = logging.getLogger("apscheduler")
        jobs.propagate, jobs.handlers = False, [_Crashes(self)]
        try:
            with virtual(self.kernel):
                http_deadline.response = self.provider.request  # type: ignore[assignment]
                scenario(self)
        finally:
            http_deadline.response = before
            jobs.handlers = [logging.NullHandler()]  # what is collected later still speaks
            self.kernel.clear()
            structlog.reset_defaults()
        violation = self.violations[0] if self.violations else None
        return Outcome(
            self.seed, violation, self.kernel.now, self.kernel.steps, dict(self.faults.count), self.digest, self.log
        )

    def _heard(self, _: Any, method: str, event: Any) -> Any:
        if event["event"] == "action_crashed":
            self.laws.broken("crash", f"an action raised what no port raises: {_why(event)}")
        if self._trace and method != "debug":
            facts = {name: value for name, value in event.items() if name not in ("event", "exc_info", "status")}
            self.log.append(f"{self.kernel.now:10.3f}   log {event['event']} {facts}")
        raise structlog.DropEvent


class _Crashes(logging.Handler):
    """The exceptions of timers' jobs."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        # A shutdown gives up the tick at hand; what was killed is closed by the collector.
        if not isinstance(error, asyncio.CancelledError | GeneratorExit | Killed):
            self._world.laws.broken("crash", f"{record.getMessage()}: {type(error).__name__}: {error}")


def _gist(args: Mapping[str, Any]) -> str:
    left_out = ("p_fleet", "p_evidence", "p_fields", "p_agent", "p_sha256", "p_key")
    return " ".join(str(value)[:80] for name, value in args.items() if name not in left_out and value is not None)


def _why(event: Mapping[str, Any]) -> str:
    return f"{event.get('action')}: {''.join(traceback.format_exception(*sys.exc_info()))[-1500:]}"
