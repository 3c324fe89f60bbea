"""The faults that are drawn at random. Each breaks something, repairs what must not stay broken, and returns a text."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from orchestrator.ports import LEASE_TTL_S
from testbed.runpod.faults import KINDS
from testbed.tcp_proxy import Break
from tests.proofs.chaos.environment import ORCHESTRATORS, ChaosEnvironment
from tests.proofs.fault_matrix.environment import Row

ABSENT_S = (0.0, 0.0, 2.0, 8.0)  # until a platform starts a killed orchestrator again
DOWN_S = (0.0, 0.0, 0.5, 2.0, 6.0)  # between the stop and the start of a server
BUSY_WITHIN_S, LOOK_EVERY_S = 10.0, 0.25  # the wait for a worker with a running task
GRACEFUL, BOTH_KILLED = "SIGTERM", "SIGKILL of both"  # ends of a leader that no standby must detect
BREAK_WITHIN_S = 10.0  # the wait for a message with the pattern
PATTERNS = {
    "pods": (b"rpc/worker_complete", b"rpc/worker_claim", b"rpc/worker_heartbeat", b"rpc/worker_grants"),
    "provider": (b"POST /v2/pods", b"DELETE /v2/pods", b"GET /v2/pods"),
    "s3": (b"PUT /", b"HEAD /"),
    "postgres 0": (b"worker_complete", b"worker_claim", b"worker_heartbeat", b"fleet_", b""),
    "postgres 1": (b"worker_complete", b"worker_claim", b"worker_heartbeat", b"fleet_", b""),
}
Effect = Callable[[ChaosEnvironment, random.Random], Awaitable[str]]


class NoTarget(Exception):
    """There is no target for the fault at the moment."""


@dataclass(frozen=True, slots=True)
class RandomFault:
    """A kind of fault: its name, its effect, and the parts that no other fault may affect meanwhile."""

    name: str
    act: Effect
    subjects: tuple[str, ...]
    weight: int  # how often it is drawn in one round


async def leader_killed(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGKILL of the leader. The standby leads within the limit, and the platform starts the killed process again."""
    number, before = await _leader(chaos)
    await chaos.kill(number)
    return await _followed(chaos, before, number, dice.choice(ABSENT_S), "SIGKILL")


async def standby_killed(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGKILL of the standby."""
    number = (await _leader(chaos))[0]
    other = (number + 1) % ORCHESTRATORS
    await chaos.kill(other)
    await asyncio.sleep(dice.choice(ABSENT_S))
    await chaos.begin(other)
    return f"orchestrator {other}"


async def both_killed(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGKILL of both: for a while, no orchestrator runs."""
    _, before = await _leader(chaos)
    for number in range(ORCHESTRATORS):
        await chaos.kill(number)
    away_s = dice.choice(ABSENT_S)
    await asyncio.sleep(away_s)
    for number in range(ORCHESTRATORS):
        await chaos.begin(number)
    took_s = await chaos.next_leader(before, BOTH_KILLED)
    return f"away for {away_s:g} s; one led again {took_s:.1f} s later"


async def leader_ended(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGTERM to the leader, as at a deploy."""
    number, before = await _leader(chaos)
    ending = asyncio.create_task(chaos.end(number))
    took_s = await chaos.next_leader(before, GRACEFUL)
    status = await ending
    if status != 0:
        chaos.wrong.append(f"SIGTERM ended an orchestrator with {status}")
    await asyncio.sleep(dice.choice(ABSENT_S))
    await chaos.begin(number)
    return f"the next one led after {took_s:.1f} s"


async def leader_frozen(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGSTOP of the leader, shorter or longer than its lease. It continues and assumes that it still leads."""
    number, before = await _leader(chaos)
    pid, frozen_s = chaos.orchestrators[number].pid, dice.choice((4.0, LEASE_TTL_S - 1, LEASE_TTL_S + 6))
    os.kill(pid, signal.SIGSTOP)
    try:
        if frozen_s > LEASE_TTL_S:
            await chaos.next_leader(before, "SIGSTOP")
        else:
            await asyncio.sleep(frozen_s)
    finally:
        os.kill(pid, signal.SIGCONT)
    return f"for {frozen_s:g} s"


async def leader_cut_off(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """The connection of the leader to Postgres stalls until another one leads. Then all its data arrives."""
    del dice
    number, before = await _leader(chaos)
    proxy = chaos.proxies[f"postgres {number}"]
    proxy.stall()
    try:
        took_s = await chaos.next_leader(before, "cut off")
    finally:
        proxy.open()
    return f"the next one led after {took_s:.1f} s"


async def agent_killed(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGKILL of the agent of a busy worker."""
    busy = await _busy(chaos, dice)
    if not chaos.signal_agent(busy, signal.SIGKILL):
        raise NoTarget
    chaos.killed["agents"] += 1
    chaos.note_lost(busy, "agent killed")
    return str(busy["worker"])


async def agent_frozen(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGSTOP of a busy agent: for a moment, until its leases have expired, or for ever."""
    busy, frozen_s = await _busy(chaos, dice), dice.choice((3.0, 40.0, None))
    if not chaos.signal_agent(busy, signal.SIGSTOP):
        raise NoTarget
    if frozen_s is None:
        chaos.note_lost(busy, "agent frozen")
        return f"{busy['worker']} for ever"
    await asyncio.sleep(frozen_s)
    chaos.signal_agent(busy, signal.SIGCONT)  # it may have been ended meanwhile
    return f"{busy['worker']} for {frozen_s:g} s"


async def pod_lost(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """A busy pod disappears, exits, or freezes."""
    busy, how = await _busy(chaos, dice), dice.choice(("vanish", "exit", "freeze"))
    await chaos.stack.control("POST", f"pods/{busy['pod']}/kill", {"how": how})
    chaos.note_lost(busy, f"pod: {how}")
    return f"{busy['worker']}: {how}"


def postgres(mode: Literal["fast", "immediate"]) -> Effect:
    """Postgres ends and starts again."""

    async def act(chaos: ChaosEnvironment, dice: random.Random) -> str:
        down_s = dice.choice(DOWN_S)
        await chaos.stack.postgres.stop(mode)
        try:
            await asyncio.sleep(down_s)
        finally:
            await chaos.stack.postgres.start()
        chaos.killed["postgres"] += 1
        return f"down for {down_s:g} s"

    return act


async def s3_restarted(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """S3 ends and starts again."""
    await chaos.stack.s3.stop()
    try:
        await asyncio.sleep(dice.choice(DOWN_S))
    finally:
        await chaos.stack.s3.start()
    return ""


def proxy_fault(how: Literal["slow", "stalls", "refuses"]) -> Effect:
    """One of the proxies is slow, stalls or refuses for some seconds."""

    async def act(chaos: ChaosEnvironment, dice: random.Random) -> str:
        proxy = chaos.proxies[dice.choice(sorted(chaos.proxies))]
        for_s = dice.uniform(3, 12)
        if how == "slow":
            proxy.delay_s = dice.uniform(0.05, 0.5)
        elif how == "stalls":
            proxy.stall()
        else:
            proxy.refuse()
        try:
            await asyncio.sleep(for_s)
        finally:
            proxy.open()
        return f"{proxy.name} for {for_s:.1f} s"

    return act


async def proxy_breaks(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """A connection breaks at a message of a certain kind: before the message arrives, or before its answer does."""
    proxy = chaos.proxies[dice.choice(sorted(chaos.proxies))]
    pattern, after = dice.choice(PATTERNS[proxy.name]), dice.random() < 0.6
    breaks = proxy.breaks = Break(pattern, after)
    what = f"{proxy.name} {'after' if after else 'before'} {pattern.decode() or 'any message'}"
    try:
        async with asyncio.timeout(BREAK_WITHIN_S):
            await breaks.happened.wait()
    except TimeoutError:
        return f"{what}: there was no such message"
    finally:
        proxy.breaks = None
    return what


async def provider_fault(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """Any fault that the emulator knows, once or twice."""
    kind, times = dice.choice(sorted(KINDS)), dice.choice((1, 1, 2))
    await chaos.stack.control("POST", "faults", {"kind": kind, "times": times, "seconds": round(dice.uniform(1, 8), 1)})
    return f"{kind} x {times}"


# A fail-over is measured only while the database is available all the time.
CALM_FOR_A_LEASE = ("orchestrators", "postgres", "proxies")
RANDOM_FAULTS: tuple[RandomFault, ...] = (
    RandomFault("leader_killed", leader_killed, ("orchestrators",), 2),
    RandomFault("leader_killed", leader_killed, CALM_FOR_A_LEASE, 2),
    RandomFault("standby_killed", standby_killed, ("orchestrators",), 6),
    RandomFault("both_killed", both_killed, ("orchestrators",), 1),
    RandomFault("leader_ended", leader_ended, ("orchestrators",), 1),
    RandomFault("leader_frozen", leader_frozen, ("orchestrators",), 1),
    RandomFault("leader_frozen", leader_frozen, CALM_FOR_A_LEASE, 1),
    RandomFault("leader_cut_off", leader_cut_off, CALM_FOR_A_LEASE, 1),
    RandomFault("agent_killed", agent_killed, ("agents",), 8),
    RandomFault("agent_frozen", agent_frozen, ("frozen agents",), 2),
    RandomFault("pod_lost", pod_lost, ("agents",), 2),
    RandomFault("postgres_restarted", postgres("fast"), ("postgres",), 6),
    RandomFault("postgres_crashed", postgres("immediate"), ("postgres",), 6),
    RandomFault("s3_restarted", s3_restarted, ("s3",), 1),
    RandomFault("proxy_slow", proxy_fault("slow"), ("proxies",), 2),
    RandomFault("proxy_stalls", proxy_fault("stalls"), ("proxies",), 2),
    RandomFault("proxy_refuses", proxy_fault("refuses"), ("proxies",), 1),
    RandomFault("proxy_breaks", proxy_breaks, ("proxies",), 6),
    RandomFault("provider_fault", provider_fault, ("provider",), 3),
)


async def _leader(chaos: ChaosEnvironment) -> tuple[int, Row]:
    found = await chaos.leader()
    if found is None or not all(child.alive for child in chaos.orchestrators):
        raise NoTarget
    return found


async def _busy(chaos: ChaosEnvironment, dice: random.Random) -> Row:
    until_s = chaos.seconds() + BUSY_WITHIN_S
    while (busy := await chaos.busy(dice)) is None:
        if chaos.seconds() > until_s:
            raise NoTarget
        await asyncio.sleep(LOOK_EVERY_S)
    return busy


async def _followed(chaos: ChaosEnvironment, before: Row, number: int, away_s: float, after: str) -> str:
    """Wait until another process leads. Meanwhile, the killed one starts again."""

    async def back() -> None:
        await asyncio.sleep(away_s)
        await chaos.begin(number)

    coming = asyncio.create_task(back())
    try:
        took_s = await chaos.next_leader(before, after)
    finally:
        await coming
    return f"the next one led after {took_s:.1f} s; it was away for {away_s:g} s"
