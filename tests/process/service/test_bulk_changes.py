"""Actions on a filter in a running service: leaders are killed, and each task is still changed exactly once."""

from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row

from testbed.stack import Stack
from tests.process.service.test_alert_messages import until

TASKS = 900
START = """select task_changes_start(%s, 'anna', '{"pools": null, "tenant": null}', 'k', 'cancel',
                                     '{"task_type": "t"}')"""
CHANGED = "select 1 from orchestrator.bulk_changes where changed >= {}"
ENDED = "select 1 from orchestrator.bulk_changes where outcome = 'done'"


@pytest.mark.full
async def test_leaders_that_are_killed_change_each_task_once(tmp_path: Path) -> None:
    """Two leaders die in the midst of a change; the third one goes on where they were."""
    async with Stack(tmp_path / "stack", light=True) as stack:
        await stack.migrate()
        async with await psycopg.AsyncConnection.connect(
            stack.environment["DATABASE_URL"], autocommit=True, row_factory=dict_row
        ) as hand:
            await hand.execute("insert into tasks (task_type) select 't' from generate_series(1, %s)", (TASKS,))
            await hand.execute(START, (stack.environment.get("FLEET_ID", "default"),))
            for query in (CHANGED.format(1), CHANGED.format(TASKS // 3), ENDED):
                leader = await stack.start_orchestrator({"MAX_ACTIVE_GPUS": "0", "ORCHESTRATOR_POLL_SEC": "2"})
                await until(stack, query)
                leader.process.kill()
                await leader.process.wait()
            (change,) = await (await hand.execute("select * from orchestrator.bulk_changes")).fetchall()
            query = "select count(*) as n, count(distinct subject) as tasks from audit_log where action = 'task.cancel'"
            (audited,) = await (await hand.execute(query)).fetchall()
            query = "select count(*) as n from tasks where status <> 'Cancelled'"
            (left,) = await (await hand.execute(query)).fetchall()
    assert (change["changed"], change["refused"], change["outcome"]) == (TASKS, 0, "done")
    assert (audited["n"], audited["tasks"], left["n"]) == (TASKS, TASKS, 0)
