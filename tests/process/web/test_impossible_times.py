"""Rows with times that PostgreSQL has and a calendar has not: they spoil no page, no list and no answer."""

import psycopg
import pytest

from tests.process.web.api_rig import ADMIN
from tests.process.web.dashboard_rig import DashboardRig

ASKS = {"Authorization": f"Bearer {ADMIN}"}
TIMES = ("infinity", "-infinity", "99999-01-01", "0044-03-15 BC")
OF_TASKS = ("generation_started_at", "generation_processed_at", "cancel_requested_at", "updated_at", "created_at")
OF_WORKERS = ("created_at", "terminated_at", "promoted_at", "state_since", "stage_since", "last_heartbeat",
              "billing_since")  # fmt: skip


async def statuses(board: DashboardRig, *paths: str) -> dict[str, int]:
    """What a signed-in visitor gets."""
    visitor = await board.visitor(ADMIN)
    board.dashboard.shared.forget_all()
    return {path: (await visitor.get(path)).status_code for path in paths}


@pytest.mark.parametrize("column", OF_TASKS)
async def test_a_task_of_an_impossible_time_is_shown(
    board: DashboardRig, hand: psycopg.AsyncConnection, column: str
) -> None:
    """Its page, its explanation, and the lists that it is in."""
    (task,) = await board.gateway.submit(board.pool)
    paths = ("/", "/tasks", f"/tasks/{task}")
    for at in TIMES:
        await hand.execute(f"update tasks set {column} = %s::timestamptz where id = %s", (at, task))  # noqa: S608
        assert set((await statuses(board, *paths)).values()) == {200}, at
        for path in ("/tasks", f"/tasks/{task}", f"/tasks/{task}/explanation"):
            answer = await board.client.get(f"/api/v1{path}", headers=ASKS)
            assert answer.status_code == 200, (at, path, answer.text)


@pytest.mark.parametrize("column", OF_WORKERS)
async def test_a_worker_of_an_impossible_time_is_shown(
    board: DashboardRig, hand: psycopg.AsyncConnection, column: str
) -> None:
    """Its page, and the list of all workers."""
    await board.furnish()
    worker = board.workers[-1]
    paths = ("/", "/workers", f"/workers/{worker.id}", "/pools", "/cost")
    for at in TIMES:
        await hand.execute(f"update workers set {column} = %s::timestamptz where id = %s", (at, worker.id))  # noqa: S608
        assert set((found := await statuses(board, *paths)).values()) == {200}, (at, found)
        for path in ("/workers", f"/workers/{worker.id}", f"/workers/{worker.id}/explanation"):
            answer = await board.client.get(f"/api/v1{path}", headers=ASKS)
            assert answer.status_code == 200, (at, path, answer.text)
    await hand.execute("delete from workers where id = %s", (worker.id,))
