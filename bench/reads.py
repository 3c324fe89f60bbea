"""What operators and clients read, with 10 million ended and 1 million queued tasks, against ten thousand of each.

The large database is what months of 100,000 tasks a day leave; see reads.sql. Both are analyzed once. The times are of
calls over a local connection, nearly all of which the server takes. Ten thousand is as many as a read counts.
"""

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, LiteralString

from psycopg.rows import tuple_row

from bench.figures import quantile
from bench.queues import WORKER, Connection, Ours, database
from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.core.states import Stage, State
from testbed.services.postgres import EmbeddedPostgres

TRIES = 20  # calls of each
TIMEOUT_S = 3_600.0  # most of it makes the rows
ENDED = int(os.environ.get("BENCH_READS_ENDED", "10000000"))
QUEUED = ENDED // 10
FEW = 10_000
LONGEST_S = 10.0  # for all calls of one read: of a slow one there are fewer
CLAIM, BATCH = "claim_10_and_complete", 10
LIVE = 25
PAST = Path(__file__).with_suffix(".sql").read_text()
# By name. now: when the newest task ended; queued and waiting: tasks in the middle of the queue, the second one waits
# for another; ended: one with two attempts.
READS: dict[str, LiteralString] = {
    "fleet_observe": "fleet_observe('default', %(now)s)",
    "task_page": "task_page('{}', '{}', null, 100, %(now)s)",
    "task_page_status": """task_page('{}', '{"status": "Failed"}', null, 100, %(now)s)""",
    "task_page_tenant": """task_page('{}', '{"tenant": "tenant-8"}', null, 100, %(now)s)""",
    "task_page_label": """task_page('{}', '{"labels": [{"show": "show-3"}]}', null, 100, %(now)s)""",
    "task_page_later": "task_page('{}', '{}', jsonb_build_array(%(middle)s::text, %(queued)s::text), 100, %(now)s)",
    "task_list": "task_list(null, null, 100, %(now)s)",
    "task_list_status": "task_list('Failed', null, 100, %(now)s)",
    "task_find": "task_find('{}', 100, false, %(now)s)",
    "task_get": "task_get(%(ended)s, %(now)s)",
    "task_get_for": "task_get_for('{}', %(ended)s, %(now)s)",
    "task_match": "task_match(left(%(ended)s::text, 8), 10, %(now)s)",
    "explain_a_queued_task": "fleet_task_explain('default', %(queued)s, %(now)s)",
    "explain_a_waiting_task": "fleet_task_explain('default', %(waiting)s, %(now)s)",
    "explain_an_ended_task": "fleet_task_explain('default', %(ended)s, %(now)s)",
    "explain_a_worker": "fleet_explain('default', 'w-0', %(now)s)",
    "explain_scaling": "fleet_scaling_explain('default', %(now)s)",
    "fleet_worker": "fleet_worker('default', 'w-0', %(now)s)",
    "fleet_workers_page": "fleet_workers_page('default', null, true, null, 100, %(now)s)",
    "fleet_workers": "fleet_workers('default', true, 100, %(now)s)",
    "fleet_find_workers": """fleet_find_workers('default', '{"ended": true}', 100, %(now)s)""",
    "fleet_match_workers": "fleet_match_workers('default', 'w-1', 10, %(now)s)",
    "fleet_decisions_page": "fleet_decisions_page('default', null, null, 100, %(now)s)",
    "fleet_events": "fleet_events('default', null, null, 100, %(now)s)",
    "fleet_audit": "fleet_audit('default', null, 100, null, %(now)s)",
    "fleet_failures": "fleet_failures('default', null, 5, %(now)s)",
    "fleet_webhooks": "fleet_webhooks('default', null, null, 100, %(now)s)",
    "fleet_names": "fleet_names('default', %(now)s)",
    "fleet_metrics": "fleet_metrics('default', %(now)s - interval '1 minute', %(now)s)",
    "fleet_task_troubles": """fleet_task_troubles('default', '["t0", "t1"]', %(now)s)""",
    "fleet_report": "fleet_report('default', %(now)s)",
    "fleet_efficiency_day": "fleet_efficiency('default', %(now)s - interval '1 day', null, %(now)s)",
    "fleet_cost_day": "fleet_cost('default', %(now)s - interval '1 day', null, %(now)s)",
    "fleet_cost_month": "fleet_cost('default', %(now)s - interval '30 days', null, %(now)s)",
    "fleet_cost_year": "fleet_cost('default', %(now)s - interval '365 days', null, %(now)s)",
    "fleet_history_week": "fleet_history('default', %(now)s - interval '7 days', null, null, %(now)s)",
    "fleet_worker_history": "fleet_worker_history('default', 'w-0', %(now)s)",
    "fleet_usage_days": "fleet_usage('default', 'type', 'day', %(now)s - interval '90 days', null, %(now)s)",
    "fleet_cost_by_label_month": """fleet_cost_by(
        'default', %(now)s - interval '30 days', null, 'label:user', 100, %(now)s)""",
    "fleet_cost_by_tenant_day": "fleet_cost_by('default', %(now)s - interval '1 day', null, 'tenant', 100, %(now)s)",
}
IDS = "select md5('queued ' || %s)::uuid, md5('queued ' || %s)::uuid, md5('task 104')::uuid"
BOUNDED = ("fleet_observe", "task_page", "explain")  # these may not take longer than in a fresh database
GOALS = {
    f"{CLAIM}_ratio": ("<=", 2.0),
    **{f"{name}_ms": ("<=", 100.0) for name in READS},
    **{f"{name}_ratio": ("<=", 2.0) for name in READS if name.startswith(BOUNDED)},
}
TOLD = ("retention_ms", "fill_s_a_million")
Call = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Past:
    """One of the two databases."""

    queue: Ours
    sql: Connection
    values: dict[str, Any]
    fill_s: float

    def calls(self) -> dict[str, Call]:
        """What is timed, by name."""

        async def claim() -> None:
            await self.queue.work(1, BATCH, BATCH)

        return {CLAIM: claim} | {name: self.call(read) for name, read in READS.items()}

    def call(self, read: LiteralString) -> Call:
        """One call of a function."""

        async def call() -> None:
            await (await self.sql.execute("select " + read, self.values)).fetchall()

        return call


async def measure(directory: Path, tries: int) -> dict[str, Any]:
    """Medians in ms of both databases, with their ratios."""
    figures: dict[str, Any] = {"ended": ENDED, "queued": QUEUED}
    async with AsyncExitStack() as stack:
        postgres = await stack.enter_async_context(EmbeddedPostgres(directory / "postgres", durable=False, keep=False))
        fresh = await _past(stack, postgres, "fresh", FEW, FEW)
        for call in fresh.calls().values():
            await call()  # a read that has changed fails here, and not after an hour
        large = await _past(stack, postgres, "large", ENDED, QUEUED)
        figures["fill_s_a_million"] = round(large.fill_s * 1e6 / (ENDED + QUEUED), 1)
        others = large.calls()
        for name, call in fresh.calls().items():
            figures |= _compared(name, *await _medians_ms(call, others[name], tries))
        retention: LiteralString = "fleet_retention('default', %(term)s, null, %(now)s)"
        figures |= _compared("retention", *[await _ms(past.call(retention)) for past in (fresh, large)])
    return figures


async def _past(stack: AsyncExitStack, postgres: EmbeddedPostgres, name: str, ended: int, queued: int) -> Past:
    """A database with so many tasks."""
    queue = Ours(await database(postgres, name))
    await queue.open(stack, 1)
    (sql,) = queue.connections
    term = await _live_workers(queue.url)
    until, middle = datetime.now(UTC), queued // 40 * 20
    began_s = time.monotonic()
    for setting, value in (("ended", ended), ("queued", queued), ("until", until)):
        await sql.execute("select set_config('past.' || %s, %s, false)", (setting, str(value)))
    await sql.execute(PAST.encode())
    await sql.execute("vacuum analyze")
    await recorded(sql, term, until)
    await sql.execute("vacuum analyze orchestrator.usage")
    fill_s = time.monotonic() - began_s
    row = await (await sql.execute(IDS, (str(middle), str(middle - 7)))).fetchone() or ()
    values = dict(zip(("queued", "waiting", "ended"), row, strict=True))
    values |= {"now": until, "term": term, "middle": (until - timedelta(seconds=0.8 * middle)).isoformat()}
    return Past(queue, sql, values, fill_s)


async def recorded(sql: Connection, term: int, until: datetime) -> None:
    """Store the roll-ups, a second with each call, as the leader has done meanwhile."""
    is_due = True
    while is_due:
        query = "select fleet_record('default', %s, %s)->'more'"
        answer = await sql.cursor(row_factory=tuple_row).execute(query, (term, until))
        ((is_due,),) = await answer.fetchall()


async def _live_workers(url: str) -> int:
    """The workers that ran the newest tasks; the leader's term."""
    db = await PostgresDb.open(url, pool_size=1)
    store = SqlStore(db, "default")
    term = (await store.lead("bench", 3_600)).term
    here = (State.SPAWNING,)
    for number in range(LIVE):
        name = f"w-{number}"
        await store.spawn(term, {"id": name, **WORKER, "pool": "a" if number % 5 == 4 else "default"})
        fields = {"nonce": f"launch-{number}", "token_jti": name, "pod_id": f"pod-{name}"}
        await store.move(term, name, from_states=here, reason="bench", fields=fields)
        await store.move(term, name, from_states=here, to_state=State.ACTIVE, stage=Stage.PROMOTED, reason="bench")
    await db.close()
    return term


def _compared(name: str, fresh_ms: float, large_ms: float) -> dict[str, float]:
    return {
        f"{name}_ms_fresh": round(fresh_ms, 2),
        f"{name}_ms": round(large_ms, 2),
        f"{name}_ratio": round(large_ms / fresh_ms, 2),
    }


async def _medians_ms(one: Call, other: Call, tries: int) -> tuple[float, float]:
    """By turns: what else the machine does, it does to both."""
    await one()  # which plans it
    await other()
    took_ms: list[tuple[float, float]] = []
    while len(took_ms) < tries and sum(map(sum, took_ms)) < LONGEST_S * 1e3:
        took_ms.append((await _ms(one), await _ms(other)))
    return quantile([first for first, _ in took_ms], 0.5), quantile([second for _, second in took_ms], 0.5)


async def _ms(call: Call) -> float:
    began_s = time.perf_counter()
    await call()
    return (time.perf_counter() - began_s) * 1e3
