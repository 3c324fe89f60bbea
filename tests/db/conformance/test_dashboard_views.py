"""The views for dashboards, and the two read-only reports, on a fleet with a past."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.core.failures import FailureCode
from orchestrator.core.states import Stage, State
from orchestrator.migrate import migrate
from testbed.services.postgres import EmbeddedPostgres
from tests.db.conformance.builders import FLEET, Agent, Fleet

VIEWS = (
    "orchestrator_status",
    "active_workers_health",
    "recent_task_activity",
    "worker_performance",
    "task_queue_analysis",
    "recent_errors",
)


@pytest.fixture
async def past(fleet: Fleet, hand: AsyncConnection[DictRow]) -> Agent:
    """An active worker at 3.60 $/h that has completed one task in a minute, failed one, and runs a third."""
    row = await (await hand.execute("select now() - interval '30 minutes' as at")).fetchone()
    assert row is not None
    fleet.now = row["at"]
    fleet.term = (await fleet.lead())["term"]  # the views go by the real clock: the lease must not be over by it
    broken = await fleet.spawn()
    attempt = await fleet.fleet("attempt_open", p_worker_id=broken, p_stage=Stage.SSH_AUTH)
    evidence = {"error": "Permission denied", "cause": "pair_mismatch"}
    await fleet.fleet("attempt_close", p_id=attempt["id"], p_outcome="failed", p_failure_code=FailureCode.AUTH_FAILED,
                      p_exception_type="AuthFailed", p_evidence=evidence)  # fmt: skip
    fields: dict[str, Any] = {"exit_cause": "spawn_failed", "failure_code": FailureCode.AUTH_FAILED}
    await fleet.move(broken, State.SPAWNING, State.TERMINATING, **fields)
    await fleet.move(broken, State.TERMINATING, State.TERMINATED)
    agent = await fleet.agent()
    await fleet.submit(count=3, task_type="travel_segment")
    first = (await agent.claim())[0]
    fleet.wait(60)
    assert await agent.complete(first, p_output_location="s3://b/1.mp4") == "ok"
    second = (await agent.claim())[0]
    await agent.fail(second, code="HANDLER", message="No valid segment videos found", retryable=False)
    await agent.claim()
    await fleet.submit(task_type="travel_stitch", depends_on=[second["id"]])
    await fleet.submit(count=2, task_type="other")
    fleet.wait(600)
    await fleet.maintain()
    return agent


async def test_each_view_shows_its_rows(past: Agent, hand: AsyncConnection[DictRow]) -> None:
    """Under the columns that a dashboard asks for."""

    async def rows(view: str, **where: str) -> list[DictRow]:
        found = await (await hand.execute(f"table {view}".encode())).fetchall()
        return [row for row in found if where.items() <= row.items()]

    [status] = await rows("orchestrator_status")
    assert (status["queued_tasks"], status["claimable_tasks"], status["in_progress_tasks"]) == (2, 2, 1)
    assert (status["completed_tasks"], status["failed_tasks"], status["total_workers"]) == (1, 2, 1)
    assert (status["active_workers"], float(status["usd_per_hour"]), status["leader"]) == (1, 3.6, f"{FLEET}: us")
    [health] = await rows("active_workers_health")
    assert (health["id"], health["current_task_type"]) == (past.id, "travel_segment")
    assert health["health_status"] == "NO_HEARTBEAT"
    assert health["heartbeat_age_seconds"] > 600
    assert len(await rows("recent_task_activity")) == 6
    [done] = await rows("recent_task_activity", status="Complete")
    assert float(done["processing_seconds"]) == pytest.approx(60)
    [worked] = await rows("worker_performance", id=past.id)
    assert (worked["tasks_done"], worked["tasks_failed"], float(worked["success_percent"])) == (1, 1, 50)
    [queue] = await rows("task_queue_analysis", task_type="other")
    assert (queue["status"], queue["tasks"], queue["blocked_by_dependencies"]) == ("Queued", 2, 0)
    errors = {(row["source"], row["code"]) for row in await rows("recent_errors")}
    assert {("bring-up", "AUTH_FAILED"), ("worker", "AUTH_FAILED"), ("task", "HANDLER")} <= errors


async def test_the_status_counts_workers_whose_price_is_not_known(
    past: Agent, fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """Their pods cost money, and the sum lacks it. A worker without a pod costs nothing yet."""
    await fleet.spawn()
    await fleet.move(await fleet.spawn(), State.SPAWNING, pod_id="p2")
    status = await (await hand.execute("table orchestrator_status")).fetchone()
    assert status is not None
    assert status["total_workers"] == 3
    assert (float(status["usd_per_hour"]), status["unpriced_workers"]) == (3.6, 1)


async def test_the_report_reads_and_changes_nothing(past: Agent, fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Every row is as it was, down to its version."""
    tables = (
        "select xmin::text, * from tasks",
        "select xmin::text, * from workers",
        "select xmin::text, * from fleet_lease",
    )
    before = [await (await hand.execute(table)).fetchall() for table in tables]
    report = await fleet.call("fleet_report", p_fleet=FLEET)
    assert [await (await hand.execute(table)).fetchall() for table in tables] == before
    assert report["workers_by_status"] == {"active": 1, "terminated": 1}
    assert report["task_counts"] == {"Queued": 2, "In Progress": 1, "Complete": 1, "Failed": 2}
    [queue] = report["queue"]
    assert (queue["claimable"], queue["running"], queue["completed_1h"], queue["mean_task_s"]) == (2, 1, 1, 60)
    assert queue["next_due_at"] is None
    [bring_up] = report["failed_bringups"]
    assert (bring_up["code"], bring_up["cause"], bring_up["stage"]) == ("AUTH_FAILED", "PAIR_MISMATCH", "ssh_auth")
    assert report["error_patterns"]["auth_failures"] == 1
    assert sum(row["no_segments"] for row in report["failed_tasks"]) == 1
    assert report["spent"]["last_day_usd"] > 0
    assert report["leader"]["holder"] == "us"


async def test_the_report_says_when_a_failed_stage_has_worked_since(fleet: Fleet) -> None:
    """In the same pool: what another pool's pods accept says nothing of this one's."""
    for pool, outcome, code in (("a", "failed", "AUTH_FAILED"), ("b", "failed", "AUTH_FAILED"), ("b", "ok", None)):
        worker = await fleet.spawn(pool=pool)
        attempt = await fleet.fleet("attempt_open", p_worker_id=worker, p_stage=Stage.SSH_AUTH)
        fleet.wait(10)
        ended: dict[str, Any] = {"p_exception_type": None, "p_evidence": {}}
        await fleet.fleet("attempt_close", p_id=attempt["id"], p_outcome=outcome, p_failure_code=code, **ended)
    bringups = {
        bring_up["pool"]: bring_up for bring_up in (await fleet.call("fleet_report", p_fleet=FLEET))["failed_bringups"]
    }
    assert bringups["a"]["ok_at"] is None
    assert bringups["b"]["ok_at"] > bringups["b"]["last_at"]


async def test_efficiency_is_throughput_use_depth_and_price(past: Agent, fleet: Fleet) -> None:
    """Of one window; a window that is none is refused."""
    since = fleet.now - timedelta(hours=1)
    told = await fleet.call("fleet_efficiency", p_fleet=FLEET, p_since=since, p_until=None)
    assert told["tasks_per_hour"] == 1
    assert (told["completed"], told["failed"], told["queue_now"]) == (1, 2, 2)  # one by its dependency
    assert told["failed_attempts"] == 1
    assert told["run_p50_s"] == 60
    assert told["usd_per_task"] == told["usd"]
    assert told["usd"] == pytest.approx(3.6 * 660 / 3600, rel=0.01)
    assert told["utilisation"] == 1
    assert told["queue_mean"] > 0


async def test_views_are_for_service_role_alone(tmp_path: Path) -> None:
    """Even where the project gives anon everything that is new; a project's own view of the name gives way."""
    async with (
        EmbeddedPostgres(tmp_path / "data", durable=False, keep=False) as server,
        await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection,
    ):
        for role in ("anon", "authenticated", "service_role bypassrls"):
            await connection.execute(f"create role {role}".encode())
        await connection.execute("alter default privileges grant all on tables to anon, authenticated, service_role")
        await connection.execute("create view orchestrator_status as select 1 as of_the_project")
        await connection.execute("create view recent_errors as select 2 as of_the_project")
        await connection.execute("create view theirs as select * from recent_errors")
        report = await migrate(server.url)
        assert any("recent_errors_before" in note for note in report.notes)
        assert await (await connection.execute("select * from theirs")).fetchone() == (2,)
        await connection.execute("set role service_role")
        for view in VIEWS:
            await connection.execute(f"table {view}".encode())
        await connection.execute("reset role")
        for role in ("anon", "authenticated"):
            await connection.execute(f"set role {role}".encode())
            for view in VIEWS:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await connection.execute(f"table {view}".encode())
            await connection.execute("reset role")
