"""Users' own triggers: what they write within a claim, a completion or a cascade counts like any other write."""

from collections.abc import AsyncIterator, Sequence

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from tests.db.conformance.builders import Agent, Fleet, result
from tests.db.conformance.consistency import broken

DEEPEST = 4  # a user's trigger that fires itself stops there
# What users' triggers do to other tasks, and to the one that has just changed.
WRITES = {
    "requeue": "update public.tasks set status = 'Queued', worker_id = null where status = 'Complete' and attempts = 1",
    "cancel": "update public.tasks set status = 'Cancelled' where status = 'Queued' and task_type = 'victim'",
    "complete": "update public.tasks set status = 'Complete' where status = 'Queued' and task_type = 'victim'",
    "insert": """insert into public.tasks (task_type, depends_on)
                 select 'child', array[t.id] from public.tasks t where t.task_type <> 'child' and t.status <> 'Queued'
                    and (select count(*) from public.tasks c where c.task_type = 'child') < 20 limit 1""",
    "delete": "delete from public.tasks where status = 'Queued' and task_type = 'victim'",
    "delay": """update public.tasks set run_after = now() - interval '1 hour'
                 where status = 'Queued' and run_after is null and task_type = 'victim'""",
    "raise": """update public.tasks set priority = priority + 1
                 where status = 'Queued' and priority < 2 and task_type = 'victim'""",
}
MOMENTS = ("after update on tasks for each row", "after update on tasks for each statement",
           "after insert on tasks for each row")  # fmt: skip
OWN_ROW = {
    "takes a completion back": "if new.status = 'Complete' and new.attempts = 1 then new.status := 'Queued'; end if;",
    "refuses a claim": "if new.status = 'In Progress' and new.attempts = 1 then new.status := 'Cancelled'; end if;",
    "moves what comes back": "if new.status = 'Queued' then new.pool := 'elsewhere'; end if;",
    "cancels what a cascade fails": "if new.failure_code = 'DEPENDENCY_FAILED' then new.status := 'Cancelled'; end if;",
    "retries what a cascade fails": """if new.failure_code = 'DEPENDENCY_FAILED' then
                                           new.status := 'Queued'; new.depends_on := '{}'; end if;""",
}


@pytest.fixture
async def fleet(direct: PostgresDb) -> Fleet:
    """A fleet that we lead; over one transport, since this is about what the database does."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    return fleet


@pytest.fixture
async def owner(hand: AsyncConnection[DictRow]) -> AsyncIterator[AsyncConnection[DictRow]]:
    """A user who may make triggers, which go with the test."""
    yield hand
    await hand.execute("drop function if exists users_own() cascade")


async def installed(owner: AsyncConnection[DictRow], body: str, moment: str, security: str = "invoker") -> None:
    """Make the user's trigger."""
    await owner.execute(
        f"create or replace function users_own() returns trigger language plpgsql security {security} as $$ "
        f"begin {body} end $$".encode()
    )
    await owner.execute(f"create trigger a_users {moment} execute function users_own()".encode())
    if "before" not in moment:  # before ours and after ours
        await owner.execute(f"create trigger z_users {moment} execute function users_own()".encode())


async def lived(fleet: Fleet, agent: Agent) -> None:
    """Everything that changes tasks, with dependants of what completes, fails and is cancelled, and of the victims."""
    victims = ({"task_type": "victim", "priority": -5}, {"task_type": "victim", "depends_on": ["#0"], "priority": -5})
    for _ in range(2):
        first, second, *_ = await fleet.submit(
            {}, {}, {"depends_on": ["#0"]}, {"depends_on": ["#1", "#2"]}, {"depends_on": ["#3"]}
        )
        await fleet.submit(*victims, {"task_type": "far", "depends_on": ["#1"]}, count=0)
        for one in await agent.claim():
            await agent.complete(one)
        await fleet.call("task_cancel", p_id=second)
        await fleet.submit(*victims, *({} for _ in range(3)))
        tasks: Sequence[dict[str, object]] = [dict(task) for task in await agent.claim(batch=3)]
        if tasks:
            await agent.beat(*({"id": task["id"], "attempt": task["attempt"]} for task in tasks))
            await agent.complete_many(*(result(task) for task in tasks[:1]))
        for task in tasks[1:2]:
            await agent.fail(task, code="OOM", retryable=False)
        await agent.claim(batch=2)
        fleet.wait(100)
        await fleet.fleet("rescue", p_worker_id=None)
        await fleet.call("task_retry", p_id=first)
    await fleet.fleet("retention")
    await agent.claim(batch=9)
    await fleet.settle()


@pytest.mark.parametrize(
    ("write", "moment", "security"),
    [
        pytest.param(write, moment, security, marks=() if (row + column) % 2 == turn else pytest.mark.full)
        for row, write in enumerate(WRITES)
        for column, moment in enumerate(MOMENTS)
        for turn, security in enumerate(("invoker", "definer"))
    ],
)
async def test_rows_written_by_a_users_trigger_are_queued_marked_and_settled(
    fleet: Fleet, owner: AsyncConnection[DictRow], write: str, moment: str, security: str
) -> None:
    """It may write anything, run at any time, and run as any role."""
    agent = await fleet.agent()
    body = f"if pg_trigger_depth() <= {DEEPEST} then {WRITES[write]}; end if; return null;"
    await installed(owner, body, moment, security)
    await lived(fleet, agent)
    assert await broken(owner) == {}


@pytest.mark.parametrize("change", OWN_ROW)
async def test_a_row_counts_as_a_users_trigger_changed_it(
    fleet: Fleet, owner: AsyncConnection[DictRow], change: str
) -> None:
    """Also where a completion, a claim or a cascade meant something else."""
    agent = await fleet.agent()
    await installed(owner, f"{OWN_ROW[change]} return new;", "before update on tasks for each row")
    await lived(fleet, agent)
    assert await broken(owner) == {}


async def test_a_task_that_a_users_trigger_queues_again_is_queued_alone(
    fleet: Fleet, owner: AsyncConnection[DictRow]
) -> None:
    """In the midst of a chain that fails: those behind it have failed with it by then."""
    keep = """if new.failure_code = 'DEPENDENCY_FAILED' and new.task_type = 'kept' then
                  new.status := 'Queued'; new.depends_on := '{}'; new.failure_code := null; end if; return new;"""
    await installed(owner, keep, "before update on tasks for each row")
    chain = ({"depends_on": [f"#{n}"], "task_type": "kept" if n == 4 else "t"} for n in range(9))
    ids = await fleet.submit({}, *chain)
    await fleet.call("task_cancel", p_id=ids[0])
    await fleet.settle()
    rows = [await fleet.task(task_id) for task_id in ids]
    assert [row["status"] for row in rows] == ["Cancelled"] + ["Failed"] * 4 + ["Queued"] + ["Failed"] * 4
    assert rows[5]["state"] == "ready"
    assert await broken(owner) == {}


async def test_a_cascade_goes_on_behind_a_task_that_a_users_trigger_does_not_let_change(
    fleet: Fleet, owner: AsyncConnection[DictRow]
) -> None:
    """That task has failed too: its row shows it once the trigger lets it."""
    keep = "if new.task_type = 'kept' then return null; end if; return new;"
    ids = await fleet.submit({}, *({"depends_on": [f"#{n}"], "task_type": "kept" if n == 3 else "t"} for n in range(6)))
    await installed(owner, keep, "before update on tasks for each row")
    await fleet.call("task_cancel", p_id=ids[0])
    await fleet.maintain()
    shown = "select array_agg(status::text order by created_at) as statuses from tasks"
    (row,) = await (await owner.execute(shown.encode())).fetchall()
    assert row["statuses"] == ["Cancelled"] + ["Failed"] * 3 + ["Queued"] + ["Failed"] * 2
    assert [(await fleet.task(task_id))["status"] for task_id in ids] == ["Cancelled"] + ["Failed"] * 6
    await owner.execute("drop function users_own() cascade")
    await fleet.settle()
    assert await broken(owner) == {}


async def test_a_call_leaves_no_clock_behind_for_the_users_next_statement(
    fleet: Fleet, hand: AsyncConnection[DictRow]
) -> None:
    """In one transaction: a program of the user's has the task since the user wrote, not since the call before."""
    first, second = await fleet.submit(count=2)
    async with hand.transaction():
        await hand.execute("select task_cancel(%s, %s)", (first, fleet.now))
        await hand.execute("update tasks set status = 'In Progress' where id = %s", (second,))
    query = (
        "select abs(extract(epoch from claimed_at - now())) < 60 as is_recent from orchestrator.live where task_id = %s"
    )
    (row,) = await (await hand.execute(query, (second,))).fetchall()
    assert row["is_recent"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_trigger_that_writes_other_tasks_at_a_claim_ends_none_of_them(
    fleet: Fleet, hand: AsyncConnection[DictRow], when: str
) -> None:
    """Such as their places in a queue: they are other rows then, and one of the batch cannot be shown."""
    good = await fleet.submit(count=4)
    (bad,) = await fleet.submit(task_type="bad")
    body = """if new.status = 'In Progress' and old.status = 'Queued' then
                  if new.task_type = 'bad' then raise exception 'no'; end if;
                  update public.tasks set labels = '{"moved": "1"}' where status = 'Queued' and id <> new.id;
              end if; return new;"""
    await hand.execute(
        f"create function users_own() returns trigger language plpgsql as $$ begin {body} end $$".encode()
    )
    await hand.execute(
        f"create trigger a_users {when} update on tasks for each row execute function users_own()".encode()
    )
    agent = await fleet.agent()
    claimed = [task["id"] for _ in range(3) for task in await agent.claim(batch=5)]
    await hand.execute("drop function users_own() cascade")
    assert sorted(claimed) == sorted([*good, bad])
