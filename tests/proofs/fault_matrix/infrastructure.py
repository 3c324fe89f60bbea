"""Trials of what is taken away: pods, agents, orchestrators, Postgres, S3, the provider, money."""

import asyncio
import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, Literal

import httpx

from orchestrator.core.failures import FailureCode
from orchestrator.errors import NO_DATABASE
from orchestrator.ports import LEASE_TTL_S
from tests.proofs.fault_matrix.environment import Environment, NotWithin, Row
from tests.proofs.fault_matrix.invariants import NAMED_S
from tests.proofs.fault_matrix.runner import TASKS, Act, Case

OUTAGE_S = 8.0
STORE_AWAY_S = 30.0  # for thirty minutes, scaled like every other time here; uploads used to give up after 17 s
CLAIMS = "select count(*) as n from task_attempts"
LIE_S = 25.0
BACKED_OFF_S = 120.0  # the pause after a second loss, and the way of a pod that was gone meanwhile
FAIL_OVER_S = 20.0  # the bar for a leader that is gone without a release of its lease
HAND_OVER_S = 2.0  # … and for one that says goodbye
LEADER = "select holder, term from fleet_lease"
RESCUED = "its task queued again, another pod takes it"
UNSHOWN = "missing from RunPod's lists since"
SILENT = "NO_HEARTBEAT/UNREACHED|nothing more was heard of it|heartbeat: silent for"
LATE_LOGS = "logs are late|logs, which are late"
LEADERLESS = "is silent for|leader: none"
FOLLOWED = r"\(term 2\)"
ASKING = (FailureCode.CREATE_UNKNOWN,)  # of an orchestrator that ends between "it is asked for" and the create call
OUTLIVED = "agents wait, nothing is lost or done twice"


def killed(how: str) -> Act:
    """A pod in the middle of a task."""

    async def act(env: Environment) -> None:
        await env.kill_pod((await env.busy())["pod"], how)
        await env.named()

    return act


def ssh(mode: str) -> Act:
    """A busy pod's sshd changes its ways for OUTAGE_S; standing connections are cut."""

    async def act(env: Environment) -> None:
        pod = (await env.busy())["pod"]
        env.mark_fault()
        await env.stack.control("POST", f"pods/{pod}/ssh", {"mode": mode, "cut": True, "seconds": 0.2})
        await asyncio.sleep(OUTAGE_S)
        with contextlib.suppress(httpx.HTTPStatusError):  # it may have been deleted meanwhile
            await env.stack.control("POST", f"pods/{pod}/ssh", {"mode": "normal"})

    return act


async def moved(env: Environment) -> None:
    """A busy pod's SSH moves to another port, as after a restart; its worker must be told of there."""
    busy = await env.busy()
    env.mark_fault()
    port = (await env.stack.control("POST", f"pods/{busy['pod']}/ports", {}))["port"]
    followed = "select 1 from workers where id = %s and ssh_port = %s"
    began = time.monotonic()
    await env.until(followed, busy["worker"], port)
    env.figure("followed", time.monotonic() - began, NAMED_S)
    await env.named()


def agent(number: signal.Signals) -> Act:
    """A signal to the agent of a busy pod, and to nobody else there."""

    async def act(env: Environment) -> None:
        await signal_agent(env, number)

    return act


async def signal_agent(env: Environment, number: signal.Signals) -> str:
    """Signal the agent of a busy pod; return its worker's id."""
    busy = await env.busy()
    [pod] = [p for p in (await env.stack.control("GET", "ledger"))["pods"] if p["id"] == busy["pod"]]
    [recorded] = Path(pod["home"]).glob(".orchestrator/run/*/agent.pid")
    env.mark_fault()
    os.kill(int(recorded.read_text().split()[0].strip('{",')), number)
    await env.named()
    return str(busy["worker"])


async def calm(env: Environment) -> None:
    """Nothing happens."""
    env.mark_fault()


async def for_long(env: Environment) -> None:
    """Lists that are well-formed, empty and false, for longer than an absence needs."""
    await env.under_way()
    await env.fault("empty_list")
    await asyncio.sleep(LIE_S)


async def poisoned(env: Environment) -> None:
    """Whichever pod takes the task dies of it, as long as the task is tried."""
    for _ in range(3):
        [row] = await env.until(
            """select t.attempts, w.pod_id as pod from tasks t join workers w on w.id = t.worker_id
                where t.task_type = 'hang' and t.status = 'In Progress' and w.status = 'active'"""
        )
        await env.kill_pod(row["pod"], "exit")
        await env.until(
            "select 1 from tasks where task_type = 'hang' and (status = 'Failed' or attempts > %s)",
            row["attempts"],
            timeout_s=BACKED_OFF_S,
        )
    await env.named()


async def stuck(env: Environment) -> None:
    """A task has begun, and will never show a sign of life."""
    await env.until("select 1 from tasks where task_type = 'hang' and status = 'In Progress'")
    env.mark_fault()
    await env.named()


async def broke(env: Environment) -> None:
    """At $0 the provider deletes every pod, and refuses the next ones; there is money again after a while."""
    await env.under_way()
    env.mark_fault()
    await env.stack.control("POST", "settings", {"balance_usd": 0})
    await env.named()
    await env.until("select 1 from workers where failure_code = 'BALANCE'")
    await asyncio.sleep(OUTAGE_S)
    await env.stack.control("POST", "settings", {"balance_usd": 1000})


async def restarted(env: Environment) -> None:
    """SIGKILL at three moments chosen by the case's seed, and a new process each time."""
    dice = random.Random(env.stack.seed)
    env.mark_fault()
    for _ in range(3):
        await asyncio.sleep(dice.uniform(0.3, 4))
        await env.orchestrators[0].kill()
        began = time.monotonic()
        await env.start_orchestrator()
        env.figure("ready again", time.monotonic() - began, 15)


async def redeployed(env: Environment) -> None:
    """SIGTERM in the middle, and a new process."""
    await env.under_way()
    env.mark_fault()
    began = time.monotonic()
    await env.orchestrators[0].stop()
    env.figure("SIGTERM to exit", time.monotonic() - began, 5)
    await env.start_orchestrator()


def _leads(env: Environment, row: Row) -> int:
    """Which of the orchestrators holds the lease."""
    return next(n for n, child in enumerate(env.orchestrators) if f":{child.pid}:" in row["holder"])


async def _next_leader(env: Environment, before: Row) -> float:
    """Wait for another term by another holder; how long that took, in seconds."""
    began = time.monotonic()
    other = "select 1 from fleet_lease where holder <> %s and term > %s"
    await env.until(other, before["holder"], before["term"], timeout_s=LEASE_TTL_S * 3)
    return time.monotonic() - began


async def deposed(env: Environment) -> None:
    """SIGKILL of the leader while a standby runs; the platform starts it again."""
    await env.under_way()
    [before] = await env.rows(LEADER)
    number = _leads(env, before)
    env.mark_fault()
    await env.orchestrators[number].kill()
    env.figure("fail-over", await _next_leader(env, before), FAIL_OVER_S)
    await env.start_orchestrator(number)


async def handed_over(env: Environment) -> None:
    """SIGTERM to the leader while a standby runs."""
    await env.under_way()
    [before] = await env.rows(LEADER)
    number = _leads(env, before)
    env.mark_fault()
    stopping = asyncio.create_task(env.orchestrators[number].stop())
    env.figure("hand-over", await _next_leader(env, before), HAND_OVER_S)
    await stopping
    await env.start_orchestrator(number)


async def frozen(env: Environment) -> None:
    """SIGSTOP of the leader for longer than its lease; it comes back with a term that is over."""
    await env.under_way()
    [before] = await env.rows(LEADER)
    child = env.orchestrators[_leads(env, before)]
    env.mark_fault()
    os.kill(child.pid, signal.SIGSTOP)
    try:
        env.figure("fail-over", await _next_leader(env, before), FAIL_OVER_S)
        await asyncio.sleep(2)
    finally:
        os.kill(child.pid, signal.SIGCONT)
    await asyncio.sleep(OUTAGE_S)  # long enough for whatever it had in mind
    [after] = await env.rows(LEADER)
    if _leads(env, after) == _leads(env, {"holder": f":{child.pid}:"}):
        raise NotWithin("the leader that had been frozen leads again")


async def dazed(env: Environment) -> None:
    """SIGSTOP of the only orchestrator for longer than its lease and than a worker may be silent."""
    await env.under_way()
    env.mark_fault()
    os.kill(env.orchestrators[0].pid, signal.SIGSTOP)
    await asyncio.sleep(LEASE_TTL_S + 3)
    os.kill(env.orchestrators[0].pid, signal.SIGCONT)


def postgres(mode: Literal["fast", "immediate"]) -> Act:
    """Postgres ends, and comes back after OUTAGE_S."""

    async def act(env: Environment) -> None:
        await env.under_way()
        env.mark_fault()
        await env.stack.postgres.stop(mode)
        try:
            await asyncio.sleep(OUTAGE_S)
            await env.named()
        finally:
            await env.stack.postgres.start()

    return act


async def cut_off(env: Environment) -> None:
    """No agent reaches a gateway, for longer than a worker may be silent; the database answers, and so does SSH."""
    await env.busy()
    assert env.balancer is not None
    env.mark_fault()
    env.balancer.cut()
    await env.named()
    await asyncio.sleep(OUTAGE_S)
    env.balancer.mend()
    [counted] = await env.rows("select count(*) as n from task_attempts where outcome not in ('complete', 'released')")
    if counted["n"]:
        raise NotWithin(f"{counted['n']} attempt(s) were lost to the outage")


async def cut_off_for_long(env: Environment) -> None:
    """No agent reaches a gateway until the workers end. Tasks with one attempt must get another one."""
    await env.busy()
    assert env.balancer is not None
    env.mark_fault()
    env.balancer.cut()
    await env.until("select 1 from workers where failure_code = 'GATEWAY_UNREACHED'")
    env.balancer.mend()
    [counted] = await env.rows("select count(*) as n from task_attempts where outcome not in ('complete', 'released')")
    if counted["n"]:
        raise NotWithin(f"{counted['n']} attempt(s) were lost to the outage")


async def without_s3(env: Environment) -> None:
    """S3 ends, and comes back after OUTAGE_S."""
    await env.under_way()
    env.mark_fault()
    await env.stack.s3.stop()
    await asyncio.sleep(OUTAGE_S)
    await env.stack.s3.start()


async def store_outage(env: Environment) -> None:
    """S3 ends while outputs are on their way, for longer than agents may be out of reach; nobody claims meanwhile."""
    await env.under_way()
    env.mark_fault()
    await env.stack.s3.stop()
    try:
        await env.named()
        [before] = await env.rows(CLAIMS)
        await asyncio.sleep(STORE_AWAY_S)
        [after] = await env.rows(CLAIMS)
    finally:  # the judgement after the case reads the store
        await env.stack.s3.start()
    if after["n"] != before["n"]:
        raise NotWithin(f"{after['n'] - before['n']} task(s) were claimed while the store was away")
    [counted] = await env.rows("select count(*) as n from task_attempts where outcome not in ('complete', 'released')")
    if counted["n"]:
        raise NotWithin(f"{counted['n']} attempt(s) were lost to the outage")


async def provider_away(env: Environment) -> None:
    """Every call to RunPod is cut while a pod's agent dies: its task must be rescued all the same."""
    await env.busy()
    await env.fault("cut_before_commit", operation="any")
    await env.named()
    killed = await signal_agent(env, signal.SIGKILL)
    lost = "select 1 from task_attempts where outcome = 'lost'"
    began = time.monotonic()
    await env.until(lost, timeout_s=60)
    env.figure("rescued", time.monotonic() - began, 30)
    ended = await env.rows("select * from workers where status in ('terminating', 'terminated')")
    others = [f"{row['exit_cause']} {row['failure_code'] or ''}" for row in ended if row["id"] != killed]
    if others:
        raise NotWithin(f"with a living agent, ended while nothing was known of pods: {', '.join(others)}")


STORING = {
    "WORKER_HANDLERS": "work=cmd:sh -c 'sleep 0.4; echo kept > output/result',hang=cmd:sleep 600",
    "DEADMAN_TIMEOUT_SEC": "20",
}


def _pod(name: str, description: str, says: str, act: Act, **more: Any) -> Case:
    more = {"keeps_logs": False, "ends_as": (FailureCode.NO_HEARTBEAT,), **more}
    return Case(name, description, RESCUED, says, act, **more)


def _ssh(
    mode: str, description: str, outcome: str = "the work goes on, the log comes later", says: str = LATE_LOGS
) -> Case:
    return Case(f"ssh_{mode}_later", description, outcome, says, ssh(mode), keeps_logs=False, tasks=TASKS * 2)


def _unled(name: str, description: str, outcome: str, says: str, act: Act, *, count: int = 1, **more: Any) -> Case:
    return Case(name, description, outcome, says, act, orchestrators=count, may_end_as=ASKING, **more)


INFRASTRUCTURE: tuple[Case, ...] = (
    Case("nothing", "no fault, for comparison", "all is done", "verified", calm, quick=True),
    _pod("pod_vanishes", "a busy pod's machine is gone", f"POD_MISSING|{UNSHOWN}", killed("vanish"), quick=True,
         ends_as=(FailureCode.POD_MISSING,), settings={"HEARTBEAT_TIMEOUT_SEC": "18"}),
    _pod("pod_exits", "a busy pod's container ends", "POD_EXITED", killed("exit"),
         ends_as=(FailureCode.POD_EXITED,)),
    _pod("pod_freezes", "a busy pod stands still", SILENT, killed("freeze")),
    _pod("agent_killed", "SIGKILL to the agent of a busy pod", "NO_HEARTBEAT/KILLED: Its agent was killed",
         agent(signal.SIGKILL), keeps_logs=True, quick=True),
    _pod("agent_stopped", "SIGSTOP to the agent of a busy pod", "NO_HEARTBEAT/RUNNING: Its agent's process runs",
         agent(signal.SIGSTOP), keeps_logs=True),
    _ssh("refused", "a busy pod's sshd is away for 8 s"),
    _ssh("silent", "a busy pod's sshd says nothing for 8 s"),
    _ssh("dropped", "a busy pod's commands are cut after 0.2 s, for 8 s", "none is run there: its logs come by SFTP",
         "verified"),
    Case("ports_change", "a busy pod's SSH moves to another port", "followed there: the work and its log go on",
          "SSH moved from", moved, tasks=TASKS * 2),
    Case("poison", "a task whose pod dies of it, each time", "Failed after 3 attempts; the others are done",
          "WORKER_LOST|LEASE_EXPIRED", poisoned, others=({"task_type": "hang", "params": {}, "priority": 9},), fails=1,
          ends_as=(FailureCode.POD_EXITED,), keeps_logs=False, pods=8, quick=True, limit_s=180),
    Case("stuck", "a task without a sign of life", "ended after its limit; its worker goes on, the others are done",
          "TASK_STUCK", stuck, settings={"TASK_STUCK_TIMEOUT_SEC": "5"},
          others=({"task_type": "hang", "params": {}, "priority": 9, "max_attempts": 1},), fails=1),
    Case("broke", "$0: every pod is deleted at once", "tasks queued again; no storm of creates; on with new money",
          f"BALANCE|{UNSHOWN}", broke, ends_as=(FailureCode.POD_MISSING, FailureCode.BALANCE), keeps_logs=False, pods=8,
          limit_s=180),
    Case("empty_list_for_long", "25 s of lists that are empty, and false", "a worker that sends heartbeats is kept",
          UNSHOWN, for_long, tasks=TASKS * 3, pods=4),
    _unled("killed", "SIGKILL to the orchestrator, three times", "a new process goes on", LEADERLESS, restarted,
           quick=True),
    _unled("redeployed", "SIGTERM to the orchestrator", "a new process goes on", FOLLOWED, redeployed),
    _unled("leader_killed", "SIGKILL to the leader of two", "the standby leads within 20 s", LEADERLESS, deposed,
           count=2),
    _unled("leader_ends", "SIGTERM to the leader of two", "the standby leads at once", FOLLOWED, handed_over, count=2,
           quick=True),
    _unled("leader_frozen", "SIGSTOP of the leader beyond its lease", "its term is over; its writes are refused",
           LEADERLESS, frozen, count=2),
    _unled("orchestrator_frozen", "SIGSTOP of the only orchestrator for 18 s", "no worker is ended for this silence",
           LEADERLESS, dazed, tasks=TASKS * 2),
    Case("gateway_cut", "no agent reaches a gateway for 8 s longer than a worker may be silent",
          "no worker ends, no attempt is lost", "its agent runs, and its calls get no answer", cut_off, orchestrators=2,
          tasks=TASKS * 2, quick=True),
    Case("gateway_away", "no agent reaches a gateway for as long as an agent waits",
          "workers end, no attempt is used up", "its agent runs, and its calls get no answer", cut_off_for_long,
          orchestrators=2, tasks=TASKS * 2, ends_as=(FailureCode.GATEWAY_UNREACHED,),
          may_end_as=(FailureCode.POD_EXITED,), keeps_logs=False, settings={"DEADMAN_TIMEOUT_SEC": "20"}),
    Case("postgres_crashes", "Postgres: immediate stop, 8 s", OUTLIVED, NO_DATABASE.what, postgres("immediate"),
          own_servers=True, tasks=TASKS * 2),
    Case("postgres_restarts", "Postgres: fast stop, 8 s", OUTLIVED, NO_DATABASE.what, postgres("fast"),
          own_servers=True, tasks=TASKS * 2, quick=True),
    Case("s3_restarts", "S3 is away for 8 s", "the log comes later", LATE_LOGS, without_s3, own_servers=True),
    Case("store_away", "S3 is away for 30 s while outputs are on their way",
          "results wait, nobody claims, no attempt is used up", "The object store does not answer since",
          store_outage, own_servers=True, tasks=TASKS * 2, settings=STORING, limit_s=180),
    Case("provider_away", "RunPod cut off while an agent dies", "the task is rescued; no living worker ends",
          "no list of pods.*no connection, or it was cut", provider_away, ends_as=(FailureCode.NO_HEARTBEAT,),
          tasks=TASKS * 2),
)  # fmt: skip
