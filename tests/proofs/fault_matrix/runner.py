"""What a case is, and how one is run."""

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
from testbed.services import debian
from testbed.services.processes import ChildFailed
from testbed.shared_services import SharedServices
from testbed.stack import Stack, Transport
from testbed.tasks import ended
from tests.process.cli import forked
from tests.proofs.fault_matrix.environment import Environment, NotWithin
from tests.proofs.fault_matrix.health import HealthWatch, expected_of
from tests.proofs.fault_matrix.invariants import NAMED_S, check
from tests.proofs.fault_matrix.page_watch import INCIDENTS, PageWatch
from tests.proofs.fault_matrix.secret_scan import give_password

POLL_S = 0.2
TASKS = 24
BOOT_S = (0.8, 1.5)
# A fleet that is quick to notice, for cases that wait for it to notice.
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


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that goes wrong, and what must come of it."""

    name: str
    description: str  # what is done
    outcome: str  # what must come of it
    says: str  # a regular expression that a sentence must match, within `named_within_s` of the fault
    act: Act
    faults: tuple[Fault, ...] = ()  # injected before there is any work
    settings: Mapping[str, str] = field(default_factory=dict)
    orchestrators: int = 1
    own_servers: bool = False  # Postgres or S3 will be stopped
    tasks: int = TASKS
    others: tuple[Mapping[str, Any], ...] = ()  # tasks besides, submitted first
    fails: int = 0  # tasks that must end as Failed
    ends_as: tuple[FailureCode | ExitCause, ...] = ()  # what failed workers must end as: each of it
    may_end_as: tuple[FailureCode, ...] = ()  # … and may, if the fault meets them at that moment; as nothing else
    meets: tuple[FailureCode, ...] = ()  # what an attempt must meet, though its worker goes on
    keeps_logs: bool = True  # no log byte may be declared lost
    pods: int = 6  # the most that may ever be rented: more is a respawn storm
    after_s: float = 0  # from the fault until anything can be seen
    named_within_s: float = NAMED_S
    limit_s: float = 120
    quick: bool = False  # part of ./run test
    transport: Transport = "direct"
    needs: tuple[tuple[str, str, str], ...] = ()  # (program, Debian package, how to get it) that a machine may lack

    @property
    def lacks(self) -> str | None:
        """What this machine lacks for it, and how to get it."""
        return next(filter(None, (debian.lacking(*need) for need in self.needs)), None)


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table."""

    name: str
    description: str
    outcome: str
    ok: bool
    wrong: tuple[str, ...]
    late: tuple[str, ...]  # what a busy machine may miss: `./run faults` judges it, the test run does not
    recovered_s: float | None  # from the fault to the last task's end
    named_s: float | None  # from what could first be seen of the fault to the first row that names the cause
    sentence: str
    health: str  # what `health` said of the cause, and its exit code
    figures: Mapping[str, float]
    pods: int
    log_bytes_declared_lost: int
    unowned_pod_s: float
    seconds: float


async def run(
    case: Case, shared: SharedServices, directory: Path, around: Around | None = None, pictures: Path | None = None
) -> Result:
    """Set up, inject faults under load, wait for the end, judge. What goes wrong on the way is part of the result.

    `around` is entered before the first orchestrator starts, and left while all of them still run. `pictures`: where
    one of the dashboard is kept, if it is an incident that the dashboard's first line must name.
    """
    began = time.monotonic()
    async with AsyncExitStack() as exits:
        own = await exits.enter_async_context(SharedServices(directory / "ground")) if case.own_servers else shared
        servers = await own.servers(case.name)
        stack = Stack(directory, boot_s=BOOT_S, servers=servers, transport=case.transport, start=forked.start)
        await exits.enter_async_context(stack)
        stack.environment |= SETTINGS | dict(case.settings)
        give_password(stack)
        env = Environment(stack, case.says)
        exits.push_async_callback(env.close)
        if around is not None:
            await exits.enter_async_context(around(env))
        balancer = await env.start(case.orchestrators)
        if balancer is not None:
            await exits.enter_async_context(balancer)
        health = HealthWatch(lambda: stack.environment, expected_of(case.name, case.ends_as))
        page = PageWatch(stack, stack.url, case.name, pictures) if case.name in INCIDENTS else None
        for watcher in (env.observer, health, *([page] if page else ())):
            watching = asyncio.create_task(watcher.watch(lambda: env.fault_at > 0))
            exits.push_async_callback(cancelled, watching)
        wrong = await _run_case(case, env)
        wrong += health.wrong()
        judged = await check(
            env,
            await stack.control("GET", "ledger"),
            stack.blobs(),
            ends_as=case.ends_as,
            may_end_as=case.may_end_as,
            meets=case.meets,
            keeps_logs=case.keeps_logs,
        )
    seen_at = (env.seen_at or env.fault_at) + case.after_s
    named_s = round(env.observer.named_at - seen_at, 1) if env.observer.named.is_set() else None
    wrong += judged.wrong
    if judged.failed != case.fails:
        wrong.append(f"{judged.failed} task(s) failed instead of {case.fails}")
    if judged.pods > case.pods:
        wrong.append(f"{judged.pods} pods rented, more than {case.pods}")
    if named_s is None:
        wrong.append("no row named the cause")
    late = health.missed() + (page.missed() if page else [])
    late += [f"{name} took {took_s:g} s, not {most_s:g} s" for name, took_s, most_s in env.figures if took_s > most_s]
    if named_s is not None and named_s > case.named_within_s:
        late.append(f"the cause was named after {named_s} s")
    return Result(
        name=case.name,
        description=case.description,
        outcome=case.outcome,
        ok=not wrong and not late,
        wrong=tuple(wrong),
        late=tuple(late),
        recovered_s=round(max(0.0, judged.last_task_at - env.fault_at), 1) if env.fault_at else None,
        named_s=named_s if named_s is None else max(0.0, named_s),
        sentence=env.observer.sentence,
        health=health.sentence,
        figures={name: seconds for name, seconds, _ in env.figures},
        pods=judged.pods,
        log_bytes_declared_lost=judged.declared_lost,
        unowned_pod_s=round(judged.unowned_s, 1),
        seconds=round(time.monotonic() - began, 1),
    )


async def _run_case(case: Case, env: Environment) -> list[str]:
    """The case itself; what was wrong on the way."""
    wrong: list[str] = []
    try:
        for number in range(case.orchestrators):
            await env.start_orchestrator(number)
        for fault in case.faults:
            await env.stack.control("POST", "faults", fault)
        work: Sequence[dict[str, Any]] = [{"task_type": "work", "params": {}} for _ in range(case.tasks)]
        if tasks := [*map(dict, case.others), *work]:
            await submit(env.stack, tasks)
        if case.faults:
            env.mark_fault()
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
    await ended(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
