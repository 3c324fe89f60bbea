"""Schedules of a running service: leaders are killed, and each due time still has exactly one outcome."""

from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row

from testbed.stack import Stack
from tests.process.service.test_alert_messages import until

ADD = """insert into schedules (name, every_s, overlap, catch_up, task)
         values ('sweep', 10, 'queue', 'once', '{"task_type": "t"}')"""
RUNS = "select r.due_at, r.outcome, t.id from schedule_runs r left join tasks t on t.id = r.task_id order by r.due_at"
SERVED = "select 1 from schedule_runs having count(*) >= {}"


@pytest.mark.full
async def test_leaders_that_are_killed_serve_each_due_time_once(tmp_path: Path) -> None:
    """Two leaders die at any moment; the third one goes on where they were."""
    async with Stack(tmp_path / "stack", light=True) as stack:
        await stack.migrate()
        async with await psycopg.AsyncConnection.connect(
            stack.environment["DATABASE_URL"], autocommit=True, row_factory=dict_row
        ) as hand:
            await hand.execute(ADD)
            for served in (1, 2, 4):
                leader = await stack.start_orchestrator({"MAX_ACTIVE_GPUS": "0", "ORCHESTRATOR_POLL_SEC": "2"})
                await until(stack, SERVED.format(served))
                leader.process.kill()
                await leader.process.wait()
            rows = await (await hand.execute(RUNS)).fetchall()
            (tasks,) = await (await hand.execute("select count(*) as n from tasks")).fetchall()
    gaps = {later["due_at"] - sooner["due_at"] for sooner, later in pairwise(rows)}
    assert gaps == {timedelta(seconds=10)}, "no due time without a row"
    fired = [row["id"] for row in rows if row["outcome"] == "fired"]
    assert None not in fired
    assert len(set(fired)) == len(fired) == tasks["n"]
