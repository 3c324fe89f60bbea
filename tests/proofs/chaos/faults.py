"""The deck of harms: each does something, mends what is not to stay broken, and says what it did."""

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
DOWN_S = (0.0, 0.0, 0.5, 2.0, 6.0)  # between two lives of a server
BUSY_WITHIN_S, LOOK_EVERY_S = 10.0, 0.25  # for a worker that has a task in its hands
GOODBYE, NOBODY = "SIGTERM", "SIGKILL of both"  # what a leader is missed for, besides what a standby has to notice
BREAK_WITHIN_S = 10.0  # a pattern that has not come by then is not waited for
PATTERNS = {
    "pods": (b"rpc/worker_complete", b"rpc/worker_claim", b"rpc/worker_heartbeat", b"rpc/worker_grants"),
    "provider": (b"POST /v2/pods", b"DELETE /v2/pods", b"GET /v2/pods"),
    "s3": (b"PUT /", b"HEAD /"),
    "postgres 0": (b"worker_complete", b"worker_claim", b"worker_heartbeat", b"fleet_", b""),
    "postgres 1": (b"worker_complete", b"worker_claim", b"worker_heartbeat", b"fleet_", b""),
}
Harmful = Callable[[ChaosEnvironment, random.Random], Awaitable[str]]


class NobodyThere(Exception):
    """There is nothing to harm at the moment."""


@dataclass(frozen=True, slots=True)
class Harm:
    """One card: its name, what it does, what no other card may touch meanwhile, how many of it are in the deck."""

    name: str
    act: Harmful
    subjects: tuple[str, ...]
    cards: int


async def leader_killed(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGKILL of the leader; the standby leads within the bar, and the platform starts the killed one again."""
    number, before = await _leader(chaos)
    await chaos.kill(number)
    return await _followed(chaos, before, number, dice.choice(ABSENT_S), "SIGKILL")


async def standby_killed(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGKILL of who does not lead."""
    number = (await _leader(chaos))[0]
    other = (number + 1) % ORCHESTRATORS
    await chaos.kill(other)
    await asyncio.sleep(dice.choice(ABSENT_S))
    await chaos.begin(other)
    return f"orchestrator {other}"


async def both_killed(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGKILL of both: nobody is there for a while."""
    _, before = await _leader(chaos)
    for number in range(ORCHESTRATORS):
        await chaos.kill(number)
    away_s = dice.choice(ABSENT_S)
    await asyncio.sleep(away_s)
    for number in range(ORCHESTRATORS):
        await chaos.begin(number)
    took_s = await chaos.next_leader(before, NOBODY)
    return f"away for {away_s:g} s; one led again {took_s:.1f} s later"


async def leader_ended(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGTERM to the leader, as at a deploy."""
    number, before = await _leader(chaos)
    ending = asyncio.create_task(chaos.end(number))
    took_s = await chaos.next_leader(before, GOODBYE)
    status = await ending
    if status != 0:
        chaos.wrong.append(f"SIGTERM ended an orchestrator with {status}")
    await asyncio.sleep(dice.choice(ABSENT_S))
    await chaos.begin(number)
    return f"the next one led after {took_s:.1f} s"


async def leader_frozen(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGSTOP of the leader, shorter or longer than its lease; it comes back and believes that it leads."""
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
    """What the leader says to Postgres is swallowed until another one leads; then it all arrives."""
    del dice
    number, before = await _leader(chaos)
    line = chaos.lines[f"postgres {number}"]
    line.swallow()
    try:
        took_s = await chaos.next_leader(before, "cut off")
    finally:
        line.open()
    return f"the next one led after {took_s:.1f} s"


async def agent_killed(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGKILL of the agent of a busy worker."""
    busy = await _busy(chaos, dice)
    if not chaos.signal_agent(busy, signal.SIGKILL):
        raise NobodyThere
    chaos.killed["agents"] += 1
    chaos.died(busy, "agent killed")
    return str(busy["worker"])


async def agent_frozen(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """SIGSTOP of a busy agent: for a moment, until its leases are over, or for good."""
    busy, frozen_s = await _busy(chaos, dice), dice.choice((3.0, 40.0, None))
    if not chaos.signal_agent(busy, signal.SIGSTOP):
        raise NobodyThere
    if frozen_s is None:
        chaos.died(busy, "agent frozen")
        return f"{busy['worker']} for good"
    await asyncio.sleep(frozen_s)
    chaos.signal_agent(busy, signal.SIGCONT)  # unless it is gone by now
    return f"{busy['worker']} for {frozen_s:g} s"


async def pod_lost(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """A busy pod vanishes, ends, or stands still."""
    busy, how = await _busy(chaos, dice), dice.choice(("vanish", "exit", "freeze"))
    await chaos.stack.control("POST", f"pods/{busy['pod']}/kill", {"how": how})
    chaos.died(busy, f"pod: {how}")
    return f"{busy['worker']}: {how}"


def postgres(mode: Literal["fast", "immediate"]) -> Harmful:
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


def line(how: Literal["slow", "swallows", "refuses"]) -> Harmful:
    """One of the lines misbehaves for some seconds."""

    async def act(chaos: ChaosEnvironment, dice: random.Random) -> str:
        harmed = chaos.lines[dice.choice(sorted(chaos.lines))]
        for_s = dice.uniform(3, 12)
        if how == "slow":
            harmed.delay_s = dice.uniform(0.05, 0.5)
        elif how == "swallows":
            harmed.swallow()
        else:
            harmed.refuse()
        try:
            await asyncio.sleep(for_s)
        finally:
            harmed.open()
        return f"{harmed.name} for {for_s:.1f} s"

    return act


async def line_broken(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """A line breaks at a message of a certain kind: before it arrives, or after, with its answer lost."""
    harmed = chaos.lines[dice.choice(sorted(chaos.lines))]
    pattern, after = dice.choice(PATTERNS[harmed.name]), dice.random() < 0.6
    breaks = harmed.breaks = Break(pattern, after)
    what = f"{harmed.name} {'after' if after else 'before'} {pattern.decode() or 'any message'}"
    try:
        async with asyncio.timeout(BREAK_WITHIN_S):
            await breaks.happened.wait()
    except TimeoutError:
        return f"{what}: it did not come"
    finally:
        harmed.breaks = None
    return what


async def provider_fault(chaos: ChaosEnvironment, dice: random.Random) -> str:
    """Any fault that the emulator knows, once or twice."""
    kind, times = dice.choice(sorted(KINDS)), dice.choice((1, 1, 2))
    await chaos.stack.control("POST", "faults", {"kind": kind, "times": times, "seconds": round(dice.uniform(1, 8), 1)})
    return f"{kind} x {times}"


# How long it takes to lead is only told from how long the database was away where that was there all the time.
CALM_FOR_A_LEASE = ("orchestrators", "postgres", "lines")
DECK: tuple[Harm, ...] = (
    Harm("leader_killed", leader_killed, ("orchestrators",), 2),
    Harm("leader_killed", leader_killed, CALM_FOR_A_LEASE, 2),
    Harm("standby_killed", standby_killed, ("orchestrators",), 6),
    Harm("both_killed", both_killed, ("orchestrators",), 1),
    Harm("leader_ended", leader_ended, ("orchestrators",), 1),
    Harm("leader_frozen", leader_frozen, ("orchestrators",), 1),
    Harm("leader_frozen", leader_frozen, CALM_FOR_A_LEASE, 1),
    Harm("leader_cut_off", leader_cut_off, CALM_FOR_A_LEASE, 1),
    Harm("agent_killed", agent_killed, ("agents",), 8),
    Harm("agent_frozen", agent_frozen, ("frozen agents",), 2),
    Harm("pod_lost", pod_lost, ("agents",), 2),
    Harm("postgres_restarted", postgres("fast"), ("postgres",), 6),
    Harm("postgres_crashed", postgres("immediate"), ("postgres",), 6),
    Harm("s3_restarted", s3_restarted, ("s3",), 1),
    Harm("line_slow", line("slow"), ("lines",), 2),
    Harm("line_swallows", line("swallows"), ("lines",), 2),
    Harm("line_refuses", line("refuses"), ("lines",), 1),
    Harm("line_broken", line_broken, ("lines",), 6),
    Harm("provider_fault", provider_fault, ("provider",), 3),
)


async def _leader(chaos: ChaosEnvironment) -> tuple[int, Row]:
    found = await chaos.leader()
    if found is None or not all(child.alive for child in chaos.orchestrators):
        raise NobodyThere
    return found


async def _busy(chaos: ChaosEnvironment, dice: random.Random) -> Row:
    until_s = chaos.seconds() + BUSY_WITHIN_S
    while (busy := await chaos.busy(dice)) is None:
        if chaos.seconds() > until_s:
            raise NobodyThere
        await asyncio.sleep(LOOK_EVERY_S)
    return busy


async def _followed(chaos: ChaosEnvironment, before: Row, number: int, away_s: float, after: str) -> str:
    """Somebody else leads; meanwhile the killed one starts again."""

    async def back() -> None:
        await asyncio.sleep(away_s)
        await chaos.begin(number)

    coming = asyncio.create_task(back())
    try:
        took_s = await chaos.next_leader(before, after)
    finally:
        await coming
    return f"the next one led after {took_s:.1f} s; it was away for {away_s:g} s"
