"""What /metrics says, and to whom."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.routing import Route

from orchestrator.adapters.metered import MeteredDb
from orchestrator.core.findings import findings_of
from orchestrator.core.model import Demand, Spent
from orchestrator.core.plan import plan
from orchestrator.core.states import Stage
from orchestrator.observability.metrics import Metrics, code_of
from orchestrator.ports import LostRace, Unavailable
from orchestrator.web.connections import Connections
from orchestrator.web.metrics import exposition
from tests.unit.core.build import ago, busy, idle, policy, snapshot, spawning

TOKEN = "a token for tests"


class ScriptedDb:
    """Answers a call with what it is given: a value, or an error."""

    def __init__(self) -> None:
        self.answer: Any = {}

    async def call(self, function: str, /, **args: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def notifications(self) -> AsyncIterator[tuple[str, str]]:
        yield ("connected", "")

    async def close(self) -> None: ...


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"orchestrator_{name}", labels)


async def asked(metrics: Metrics, token: str | None, **headers: str) -> httpx.Response:
    app = Starlette(routes=[Route("/metrics", exposition(metrics, token))])
    app.state.connections = Connections()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.get("/metrics", headers=headers)


async def test_without_a_token_the_metrics_are_closed() -> None:
    """Nobody gets them by forgetting to set one, whatever he sends."""
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer None"}):
        assert (await asked(Metrics(), None, **headers)).status_code == 403
        assert (await asked(Metrics(), "", **headers)).status_code == 403


async def test_who_has_a_token_reads_them() -> None:
    """As a bearer; everything else is refused without a word of what it is."""
    metrics = Metrics()
    reply = await asked(metrics, TOKEN, Authorization=f"Bearer {TOKEN}")
    assert (reply.status_code, reply.headers["cache-control"]) == (200, "no-store")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    assert {family.name for family in text_string_to_metric_families(reply.text)} >= {"orchestrator_tick_seconds"}
    for wrong in (TOKEN[:-1], TOKEN + "x", ""):
        reply = await asked(metrics, TOKEN, Authorization=f"Bearer {wrong}")
        assert reply.status_code == 401
        assert TOKEN not in reply.text
    assert (await asked(metrics, TOKEN, Authorization=f"Basic {TOKEN}")).status_code == 401


def test_a_tick_shows_the_queue_the_fleet_and_its_cost() -> None:
    """By pool; what lies in a pool that nobody configured is `other`."""
    metrics, rules = Metrics(), policy(hourly_budget_usd=5)
    demand = (Demand("default", 7, 2, {"dependencies": 3}, ago(90)), Demand("some-odd-name", 4, 0, {}, None))
    seen = snapshot(busy("gpu-1"), idle("gpu-2", 5), spawning("gpu-3"), demand=demand, spent=Spent(1.5, 0, 0.8))
    metrics.set_role("leader")
    metrics.note_tick(seen, plan(seen, rules), rules, 0.02)
    assert value(metrics, "queue_tasks", pool="default", cause="claimable") == 7
    assert value(metrics, "queue_tasks", pool="default", cause="dependencies") == 3
    assert value(metrics, "queue_tasks", pool="other", cause="claimable") == 4
    assert value(metrics, "queue_oldest_seconds", pool="default") == 90
    assert [value(metrics, "workers", pool="default", state=s) for s in ("active", "idle", "spawning")] == [1, 1, 1]
    assert (value(metrics, "dollars_per_hour"), value(metrics, "dollars_spent_today")) == (0.8, 1.5)
    assert value(metrics, "dollars_budget", per="hour") == 5
    assert value(metrics, "breaker", pool="default", state="closed") == 1
    assert value(metrics, "tick_seconds_count") == 1


def test_a_standby_shows_nothing_of_the_fleet() -> None:
    """A sum over replicas counts each worker once."""
    metrics, rules = Metrics(), policy()
    seen = snapshot(busy("gpu-1"))
    metrics.set_role("leader")
    metrics.note_tick(seen, plan(seen, rules), rules, 0.02)
    metrics.set_role("standby")
    assert value(metrics, "workers", pool="default", state="active") is None
    assert (value(metrics, "role", role="leader"), value(metrics, "role", role="standby")) == (0, 1)


def test_a_tick_shows_the_findings_of_ready_workers() -> None:
    """Unknown codes share one label, whatever pods send."""
    record = {"code": "XID_13", "severity": "M", "since": 1, "evidence": "x"}
    found = findings_of({"findings": [record, {"code": "MADE_UP"}]})
    seen = snapshot(busy("gpu-1", findings=found), idle("gpu-2", 5, findings=found))
    rules, metrics = policy(), Metrics()
    metrics.note_tick(seen, plan(seen, rules), rules, 0.02)
    assert value(metrics, "findings", code="XID_13", severity="M") == 2
    assert value(metrics, "findings", code="other", severity="?") == 2
    metrics.note_tick(snapshot(), plan(snapshot(), rules), rules, 0.02)
    assert value(metrics, "findings", code="XID_13", severity="M") is None


async def test_calls_to_the_database_are_timed_and_what_they_write_is_counted() -> None:
    """A stage's duration is from its row's opening to its closing; shipped bytes are those with proof."""
    metrics, db = Metrics(), ScriptedDb()
    metered = MeteredDb(db, metrics)
    db.answer = {"id": 5}
    await metered.call("fleet_attempt_open", p_stage=Stage.TCP, p_worker_id="gpu-1")
    db.answer = {}
    await metered.call("fleet_attempt_close", p_id=5, p_outcome="failed", p_failure_code="TCP_REFUSED")
    await metered.call("fleet_log_shipped", p_first=100, p_last=350)
    assert value(metrics, "stage_seconds_count", stage="tcp", outcome="failed") == 1
    assert value(metrics, "stage_failures_total", stage="tcp", code="TCP_REFUSED") == 1
    assert value(metrics, "log_bytes_shipped_total") == 250
    assert value(metrics, "database_call_seconds_count", function="fleet_log_shipped") == 1


@pytest.mark.parametrize(("error", "there"), [(LostRace("no"), "up"), (Unavailable("no"), "down")])
async def test_a_refusal_is_an_answer(error: Exception, there: str) -> None:
    """Only who gives no clear answer is away."""
    metrics, db = Metrics(), ScriptedDb()
    metered = MeteredDb(db, metrics)
    assert metrics.dependencies() == dict.fromkeys(("database", "provider", "s3"), "not asked yet")
    await metered.call("fleet_observe")
    db.answer = error
    with pytest.raises(type(error)):
        await metered.call("fleet_move")
    assert metrics.dependencies()["database"] == there
    assert value(metrics, "database_errors_total", function="fleet_move", error=type(error).__name__) == 1


def test_what_tasks_went_through_is_counted_on() -> None:
    """From the database's own account, so that agents which never call this process count as well."""
    metrics = Metrics()
    ended = [
        {"outcome": "complete", "code": None, "n": 4},
        {"outcome": "failed", "code": "HANDLER_ERROR", "n": 2},
        {"outcome": "failed", "code": "my very own code 17", "n": 1},
        {"outcome": "released", "code": None, "n": 1},
    ]
    unpublished = {"n": 2, "oldest_s": 30.5}
    row: Mapping[str, Any] = {"claimed": 9, "ended": ended, "log_bytes_pending": 1_000, "unpublished": unpublished}
    metrics.counted(row)
    metrics.counted(row)
    assert (value(metrics, "task_claims_total"), value(metrics, "task_completions_total")) == (18, 8)
    assert value(metrics, "task_failures_total", code="HANDLER_ERROR") == 4
    assert value(metrics, "task_failures_total", code="other") == 2
    assert value(metrics, "log_bytes_pending") == 1_000
    assert (value(metrics, "unpublished_tasks"), value(metrics, "unpublished_oldest_seconds")) == (2, 30.5)


def test_codes_are_few() -> None:
    """A handler may fail with any text as its code; no label contains it."""
    assert [code_of(code) for code in (None, "XID_79", "TCP_REFUSED", "gpu-20261121_1", "")] == [
        "none", "XID", "TCP_REFUSED", "other", "other",
    ]  # fmt: skip


def test_the_provider_is_down_when_it_refuses_us() -> None:
    """A pod that is not there (404) is an answer; a key that is refused is none that helps."""
    metrics = Metrics()
    for status, there in (("200", "up"), ("404", "up"), ("401", "down"), ("503", "down"), ("timeout", "down")):
        metrics.called("list", status)
        assert metrics.dependencies()["provider"] == there, status
    assert value(metrics, "provider_calls_total", operation="list", status="404") == 1
