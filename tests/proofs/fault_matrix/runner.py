"""What a trial is, and how one is run."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg

from demo.scenario import submit
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from testbed.services.processes import ChildFailed
from testbed.stack import Stack, Transport
from tests.proofs.fault_matrix.environment import Environment, NotWithin
from tests.proofs.fault_matrix.invariants import NAMED_S, check
from tests.proofs.fault_matrix.secret_scan import give_password
from tests.proofs.fault_matrix.shared_services import SharedServices

POLL_S = 0.2
TASKS = 24
BOOT_S = (0.8, 1.5)
# A fleet that is quick to notice, for trials that wait for it to notice.
SETTINGS = {
    "MAX_ACTIVE_GPUS": "2",
    "TASKS_PER_GPU_THRESHOLD": "2",
    "GPU_IDLE_TIMEOUT_SEC": "1",
    "GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC": "1",
    "SPAWNING_GRACE_PERIOD_SEC": "1",
    "SCALE_DOWN_GRACE_PERIOD_SEC": "1",
    "GRACEFUL_SHUTDOWN_TIMEOUT_SEC": "10",
    "ORCHESTRATOR_POLL_SEC": "1",
    "HEARTBEAT_TIMEOUT_SEC": "6",  # a heartbeat every 2 s
    "SPAWNING_TIMEOUT_SEC": "60",
    "MAX_HOURLY_COST_USD": "2.80",  # four workers: two that work, and two that end or come meanwhile
    "DAILY_BUDGET_USD": "0.40",  # what those four reserve, and as much again
    "DEADMAN_TIMEOUT_SEC": "60",
    "WORKER_HANDLERS": "work=cmd:sh -c 'for i in 1 2 3 4; do echo line $i; sleep 0.2; done',hang=cmd:sleep 600",
    "WORKER_CODE_DIR": "",
}
REST = """
    select 1 where not exists (select 1 from tasks where status in ('Queued', 'In Progress'))
               and not exists (select 1 from workers where status <> 'terminated')
"""
Act = Callable[[Environment], Awaitable[None]]
Fault = Mapping[str, Any]
Around = Callable[[Environment], AbstractAsyncContextManager[object]]

LATE = "the cause was named after"  # a figure of this machine: `./run faults` minds it, the test run does not


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that goes wrong, and what must come of it."""

    name: str
    description: str  # what is done
    outcome: str  # what must come of it
    says: str  # a regular expression that a sentence must match, within NAMED_S of the harm
    act: Act
    faults: tuple[Fault, ...] = ()  # injected before there is any work
    settings: Mapping[str, str] = field(default_factory=dict)
    orchestrators: int = 1
    own_servers: bool = False  # Postgres or S3 will be stopped
    tasks: int = TASKS
    others: tuple[Mapping[str, Any], ...] = ()  # tasks besides, submitted first
    fails: int = 0  # tasks that must end as Failed
    ends_as: tuple[FailureCode | ExitCause, ...] = ()  # what failed workers must end as: each of it
    may_end_as: tuple[FailureCode, ...] = ()  # … and may, if the harm meets them at that moment; as nothing else
    meets: tuple[FailureCode, ...] = ()  # what an attempt must meet, though its worker goes on
    keeps_logs: bool = True  # no log byte may be declared lost
    pods: int = 6  # the most that may ever be rented: more is a respawn storm
    after_s: float = 0  # from the strike until there is anything to see
    limit_s: float = 120
    quick: bool = False  # part of ./run test
    transport: Transport = "direct"


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table."""

    name: str
    description: str
    outcome: str
    ok: bool
    wrong: tuple[str, ...]
    recovered_s: float | None  # from the harm to the last task's end
    named_s: float | None  # from what could first be seen of the harm to the first row that names the cause
    sentence: str
    figures: Mapping[str, float]
    pods: int
    log_bytes_declared_lost: int
    unowned_pod_s: float
    seconds: float


async def run(case: Case, shared: SharedServices, directory: Path, around: Around | None = None) -> Result:
    """Set up, do harm under load, wait for the end, judge. What goes wrong on the way is part of the result.

    `around` is entered before the first orchestrator starts, and left while all of them still run.
    """
    began = time.monotonic()
    async with AsyncExitStack() as exits:
        own = await exits.enter_async_context(SharedServices(directory / "ground")) if case.own_servers else shared
        stack = Stack(directory, boot_s=BOOT_S, servers=await own.servers(case.name), transport=case.transport)
        await exits.enter_async_context(stack)
        stack.environment |= SETTINGS | dict(case.settings)
        give_password(stack)
        env = Environment(stack, case.says)
        exits.push_async_callback(env.close)
        if around is not None:
            await exits.enter_async_context(around(env))
        door = await env.start(case.orchestrators)
        if door is not None:
            await exits.enter_async_context(door)
        watching = asyncio.create_task(env.observer.watch(lambda: env.struck_at > 0))
        exits.push_async_callback(cancelled, watching)
        wrong = await _run_case(case, env)
        judged = await check(
            env,
            await stack.control("GET", "ledger"),
            stack.blobs(),
            ends_as=case.ends_as,
            may_end_as=case.may_end_as,
            meets=case.meets,
            keeps_logs=case.keeps_logs,
        )
    seen_at = (env.seen_at or env.struck_at) + case.after_s
    named_s = round(env.observer.named_at - seen_at, 1) if env.observer.named.is_set() else None
    wrong += judged.wrong
    if judged.failed != case.fails:
        wrong.append(f"{judged.failed} task(s) failed instead of {case.fails}")
    if judged.pods > case.pods:
        wrong.append(f"{judged.pods} pods rented, more than {case.pods}")
    if named_s is None:
        wrong.append("no row named the cause")
    elif named_s > NAMED_S:
        wrong.append(f"{LATE} {named_s} s")
    return Result(
        name=case.name,
        description=case.description,
        outcome=case.outcome,
        ok=not wrong,
        wrong=tuple(wrong),
        recovered_s=round(max(0.0, judged.last_task_at - env.struck_at), 1) if env.struck_at else None,
        named_s=named_s if named_s is None else max(0.0, named_s),
        sentence=env.observer.sentence,
        figures={name: seconds for name, seconds, _ in env.figures},
        pods=judged.pods,
        log_bytes_declared_lost=judged.declared_lost,
        unowned_pod_s=round(judged.unowned_s, 1),
        seconds=round(time.monotonic() - began, 1),
    )


async def _run_case(case: Case, env: Environment) -> list[str]:
    """The trial itself; what was wrong on the way."""
    wrong: list[str] = []
    try:
        for number in range(case.orchestrators):
            await env.start_orchestrator(number)
        for fault in case.faults:
            await env.stack.control("POST", "faults", fault)
        work: Sequence[dict[str, Any]] = [{"task_type": "work", "params": {}} for _ in range(case.tasks)]
        await submit(env.stack, [*map(dict, case.others), *work])
        if case.faults:
            env.strike()
        try:
            await case.act(env)
        except NotWithin as error:
            wrong.append(str(error))
        await env.clear()
        await until_rest(env, case.limit_s)
        await env.observer.look()
    except (NotWithin, ChildFailed, httpx.HTTPError, psycopg.Error) as error:
        wrong.append(f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")
    wrong += [f"the orchestrator {child.pid} crashed" for child in env.orchestrators if not child.alive]
    return wrong


async def until_rest(env: Environment, limit_s: float) -> None:
    """Wait until every task has ended, every row is closed and every pod is gone."""
    deadline = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(psycopg.OperationalError):
            if await env.rows(REST) and (await env.stack.control("GET", "ledger"))["alive"] == 0:
                return
        if time.monotonic() > deadline:
            rows = await env.rows("select id, status, stage, waiting_for from workers where status <> 'terminated'")
            tasks = await env.rows("select status, count(*) as n from tasks group by status")
            raise NotWithin(f"not at rest after {limit_s:.0f} s: {list(map(dict, rows))}, {list(map(dict, tasks))}")
        await asyncio.sleep(POLL_S)


async def cancelled(task: "asyncio.Task[None]") -> None:
    """End a task that runs beside; what it failed with is raised."""
    task.cancel()
    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
    if isinstance(outcome, Exception):
        raise outcome
