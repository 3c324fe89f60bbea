"""What a claim carries is bounded in bytes and in JSON values, and no task in front of a queue stops it."""

import json
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg.types.json import Jsonb

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.diagnostics.tasks import explained
from orchestrator.ports import BadArgument
from tests.db.conformance.builders import FLEET, Agent, Fleet

VALUES = 500_000
PATIENCE_S = 4.0  # of a caller: twice what the snapshot takes on a busy machine
SLOW = """
create function public.slow() returns trigger language plpgsql as $$
begin
    if new.task_type = 'slow' and new.status = 'In Progress' and old.status = 'Queued' then
        perform pg_sleep(600);
    end if;
    return new;
end $$;
create trigger slow before update on public.tasks for each row execute function public.slow();
"""


async def raw(hand: AsyncConnection[DictRow], ids: list[str]) -> list[str]:
    """The statuses that the table itself shows."""
    rows = await hand.execute("select status::text from tasks where id = any (%s::uuid[])", (ids,))
    return [row["status"] for row in await rows.fetchall()]


async def done(fleet: Fleet, hand: AsyncConnection[DictRow], count: int, result: Any) -> list[str]:
    """So many tasks that are Complete with this result."""
    ids = list(await fleet.submit(count=count))
    await hand.execute(
        "update tasks set status = 'Complete', result_data = %s where id = any (%s::uuid[])", (Jsonb(result), ids)
    )
    return ids


async def test_a_dependency_that_is_named_again_counts_once(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """In a submission; the order of first places stays, and the claim carries each once."""
    first, second = await done(fleet, hand, 2, {"x": 1})
    (submitted,) = await fleet.submit(depends_on=[second, first, second, first, first])
    assert (await fleet.task(submitted))["depends_on"] == [second, first]
    (task,) = await (await fleet.agent()).claim()
    assert [one["id"] for one in task["dependencies"]] == [second, first]
    with pytest.raises(BadArgument, match="depends_on is not valid"):
        await fleet.submit(depends_on=[first] * 10_001)


async def test_a_row_that_names_one_dependency_many_times_is_answered_with_it_once(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """A row of an earlier version: in the claim, in its repetition, and in the explanation."""
    (first,) = await done(fleet, hand, 1, {"x": "y" * 10_000})
    (task_id,) = await fleet.submit(depends_on=[first])
    async with hand.transaction():
        await hand.execute("set local session_replication_role = replica")
        repeat = "update tasks set depends_on = array_fill(%s::uuid, array[10000]) where id = %s"
        await hand.execute(repeat, (first, task_id))
    agent = await fleet.agent()
    for _ in range(2):
        (task,) = await agent.claim(number=1)
        assert (task["id"], [one["id"] for one in task["dependencies"]]) == (task_id, [first])
    said = await fleet.call("fleet_task_explain", p_fleet=FLEET, p_task_id=task_id)
    assert [one["id"] for one in said["dependencies"]] == [first]


@pytest.mark.parametrize(
    "result",
    [list(range(60_000)), [{}] * 30_000, {f"a,{n}": n for n in range(30_000)}],
    ids=["numbers", "objects", "keys"],
)
async def test_inputs_of_too_many_json_values_fail_and_delay_no_other(
    fleet: Fleet, hand: AsyncConnection[DictRow], result: Any
) -> None:
    """Few bytes may be a gigabyte of memory for the server, the gateway and the agent."""
    results = await done(fleet, hand, 10, result)
    bad, good = await fleet.submit({"depends_on": results}, {"depends_on": results[:2]})
    (task,) = await (await fleet.agent()).claim()
    assert (task["id"], [one["result_data"] for one in task["dependencies"]]) == (good, [result] * 2)
    await fleet.maintain(1)
    failed = await fleet.task(bad)
    assert (failed["status"], failed["failure_code"]) == ("Failed", "INPUTS_TOO_LARGE")
    assert f"the 10 tasks that it depends on are more than {VALUES} JSON values" in failed["error_message"]


async def test_marks_within_texts_are_no_values(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Prose, CSV and JSON within a text count as one value each."""
    text = 'a "quoted" [x], {y: "z\\"}, ' * 4_000
    results = await done(fleet, hand, 30, {"text": text})
    (task_id,) = await fleet.submit(depends_on=results)
    (task,) = await (await fleet.agent()).claim()
    assert (task["id"], {one["result_data"]["text"] for one in task["dependencies"]}) == (task_id, {text})


async def test_a_claim_of_many_carries_as_many_values_as_an_agent_reads(fleet: Fleet) -> None:
    """The others are there for the next one."""
    await fleet.submit(count=4, params={"x": [1] * 150_000})
    agent = await fleet.agent()
    assert [len(await agent.claim(batch=100)) for _ in range(3)] == [3, 1, 0]


async def test_params_of_too_many_values_are_refused_where_they_enter(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """No claim could carry them."""
    many: Any = {"x": [[] for _ in range(VALUES // 2)]}
    with pytest.raises(BadArgument, match="params is not valid"):
        await fleet.submit(params=many)
    with pytest.raises(Exception, match="params has too many values"):
        await hand.execute("insert into tasks (task_type, params) values ('t', %s)", (Jsonb(many),))
    assert await fleet.submit(params={"x": json.dumps(many)[:700_000]})


@pytest.mark.parametrize("batch", [1, 10])
async def test_tasks_whose_claims_are_cancelled_stop_no_pool(
    database: str, direct: PostgresDb, hand: AsyncConnection[DictRow], batch: int
) -> None:
    """They are handed out as they are. Maintenance tries to show one at a time, and is cancelled for it, too."""
    await hand.execute(SLOW)
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    one = await fleet.agent()
    slow = await fleet.submit({"task_type": "slow"}, {"task_type": "slow"})
    bounded = await PostgresDb.open(database, call_timeout_s=PATIENCE_S)
    hasty = Fleet(bounded, fleet.term, fleet.now)
    agent = Agent(hasty, one.id, one.nonce)
    try:
        taken = [*await agent.claim(batch=batch), *await agent.claim(batch=batch)]
        assert [task["id"] for task in taken] == slow
        good = await fleet.submit(count=2)
        taken += [*await agent.claim(batch=batch), *await agent.claim(batch=batch)]
        assert [task["id"] for task in taken[2:]] == good
        for _ in slow:
            await hasty.maintain()
        assert await raw(hand, slow) == ["Queued"] * 2
        assert [(await fleet.task(one))["status"] for one in slow] == ["In Progress"] * 2
        assert [await agent.complete(task) for task in taken] == ["ok"] * 4
        assert await raw(hand, slow) == ["Complete"] * 2
    finally:
        await bounded.close()
        await hand.execute("drop trigger slow on public.tasks; drop function public.slow()")


async def test_an_explanation_is_bounded(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """It lists the first tasks that are not done, with a part of each error, and counts all."""
    needed = await fleet.submit(count=300)
    (task_id,) = await fleet.submit(depends_on=needed)
    await hand.execute("update tasks set error_message = repeat('e', 100000) where id <> %s", (task_id,))
    await hand.execute("update tasks set status = 'Complete' where id = any (%s::uuid[])", (needed[:50],))
    await hand.execute("update tasks set result_data = %s where id = %s", (Jsonb({"x": "y" * 500_000}), task_id))
    found = await fleet.call("fleet_task_explain", p_fleet=FLEET, p_task_id=task_id)
    assert [one["id"] for one in found["dependencies"]] == needed[50:150]
    assert found["dependency_counts"] == {"all": 300, "complete": 50}
    assert len(json.dumps(found)) < 100_000
    said = explained(found)
    assert said.what.startswith("250 of 300 dependencies: ")
    assert said.what.endswith("; and 247 more")
