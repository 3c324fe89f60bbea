"""A pod may send any health that the database accepts. It can affect only its own worker."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.store import SqlStore
from orchestrator.cli import explain_view
from orchestrator.cli.worker_rows import flags, note
from orchestrator.core.actions import Action, Terminate
from orchestrator.core.findings import MAX_FINDINGS
from orchestrator.core.plan import plan
from orchestrator.core.states import State
from orchestrator.diagnostics import workers
from orchestrator.diagnostics.alerts import AlertPolicy, checked
from orchestrator.diagnostics.fact_sources import of_tick
from orchestrator.diagnostics.rules import conditions
from orchestrator.loop.observe import Observer
from orchestrator.observability.metrics import Metrics
from orchestrator.pods.provider_cache import Catalog
from tests.db.conformance.builders import FLEET, Agent, Fleet
from tests.db.diagnostics.build import policy

FAR, LONG = 253_402_300_799, 10**308


def finding(**changes: Any) -> dict[str, Any]:
    """A finding of severity H, changed."""
    record = {"u": 6, "code": "DISK_FULL", "severity": "H", "since": datetime.now(UTC).timestamp(), "evidence": "x"}
    return {"findings": [record | changes]}


HEALTHS: dict[str, Any] = {
    "a list": [1, 2],
    "a text": "findings",
    "a number": 5,
    "findings that are none": {"findings": {"code": "XID_79"}},
    "records of other types": {"findings": [None, 1, "XID_79", [], {}, {"code": None}, {"code": ["XID_79"]}]},
    "a code with marks": finding(code="[red]\u202e\x1b[31m\n" + "y" * 500),
    "evidence that is an object": finding(evidence={"a": [1] * 50}),
    "long evidence with marks": finding(evidence="[bold]\x07\u2028{worker} %s {0} " + "z" * 20_000),
    "another severity": finding(severity="C"),
    "a severity that is a list": finding(severity=["C"]),
    "no time": finding(since=None),
    "a time that is a text": finding(since="yesterday"),
    "a time that is true": finding(since=True),
    "the last second there is": finding(since=FAR),
    "a time beyond it": finding(since=FAR + 1),
    "the first year": finding(since=-62_135_596_800),
    "a very long time": finding(since=LONG),
    "a time of many digits": finding(since=10**400),
    "the same finding a thousand times": {"findings": finding()["findings"] * 500},
    "thousands of unknown codes": {"findings": [{"code": f"X{n}", "severity": "C"} for n in range(1_000)]},
    "a disk since the last second": {"disk": {"since": FAR, "free": "x"}},
    "a disk of another type": {"disk": [1]},
    "a store since nobody knows": {"store": {"since": {"a": 1}, "why": [1]}},
    "a store in the last year": {"store": {"since": "9999-12-31T23:59:59+00:00"}},
    "nested": json.loads('{"a":' * 90 + "1" + "}" * 90),
}


async def judged(fleet: Fleet) -> tuple[Any, list[Action], list[Any]]:
    """A tick, with everything that is made of it for people."""
    store = SqlStore(fleet.db, FLEET)
    seen = await Observer(store, None, FLEET, Catalog(None, policy())).observe(frozenset(), frozenset())
    made = plan(seen, policy())
    Metrics().note_tick(seen, made, policy(), 0.1)
    found = conditions(of_tick(seen, made))
    rows = [one.as_row() for one in checked(found, (), AlertPolicy(FLEET, 10), seen.now, sent_1h=0).alerts]
    await store.note_alerts(fleet.term, rows, [])
    return seen, list(made.actions), found


@pytest.mark.parametrize("name", HEALTHS)
async def test_an_odd_health_affects_no_other_worker(fleet: Fleet, name: str) -> None:
    """No tick, report or table breaks; only that worker may end, and only by what the catalogue has."""
    fleet.now = datetime.now(UTC)
    hostile, good = await fleet.agent(), await fleet.agent()
    for agent in (hostile, good):
        await said(agent, None)
    await said(hostile, HEALTHS[name])
    seen, actions, found = await judged(fleet)
    by_id = {worker.id: worker for worker in seen.workers}
    assert by_id[good.id].findings == ()
    assert len(by_id[hostile.id].findings) <= MAX_FINDINGS
    assert {action.worker_id for action in actions if isinstance(action, Terminate)} <= {hostile.id}
    assert not [one for one in found if one.subject.startswith(good.id)]
    for agent in (hostile, good):
        told = await fleet.call("fleet_explain", p_fleet=FLEET, p_worker_id=agent.id)
        explained = workers.explained(told, policy())
        row = told["worker"]
        shown = [line.plain for line in explain_view.worker(explained, seen.now)]
        shown += [note(row, seen.now), *flags(row, seen.now)]
        shown += [text for one in found for text in (one.text, one.evidence, one.fix)]
        assert not [text for text in shown if "\x1b" in text or "\u202e" in text]


@pytest.mark.parametrize(
    "text", ['{"a":' * 5_000 + "1" + "}" * 5_000, '{"findings": [{"code": "X", "since": 1e50000}]}']
)
async def test_an_undecodable_value_hides_no_worker(fleet: Fleet, hand: AsyncConnection[DictRow], text: str) -> None:
    """A pod that calls PostgREST sends its JSON to the database itself."""
    fleet.now = datetime.now(UTC)
    hostile, good = await fleet.agent(), await fleet.agent()
    await said(good, None)
    await hand.execute("select worker_heartbeat(%s, %s, '[]', %s::jsonb, '{}')", (hostile.id, hostile.nonce, text))
    seen, actions, _ = await judged(fleet)
    assert {worker.id for worker in seen.workers} >= {hostile.id, good.id}
    assert [action for action in actions if isinstance(action, Terminate)] == []


async def said(agent: Agent, health: Any) -> None:
    """A heartbeat with this health."""
    answer = await agent.call("heartbeat", p_tasks=[], p_health=health, p_logs={})
    assert answer["outcome"] == "ok"
    assert await agent.fleet.status(agent.id) == State.ACTIVE
