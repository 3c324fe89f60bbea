"""Limits while users' triggers refuse or delay what a limit does: each refused task harms only itself."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.ports import Unavailable
from tests.db.conformance.builders import SOON_S, Agent, Ear, Fleet, limit
from tests.db.conformance.consistency import consistent

Hand = AsyncConnection[DictRow]
Trigger = Callable[[str], Awaitable[None]]
LEASE_S = 60
MANY = 25  # more than the rounds of one claim
LET_IN = "new.params ? 'frozen' and new.queue_gate = 3 and old.queue_gate < 3"
WAITS_ON = "old.status = 'Queued' and new.status = 'Queued' and old.params ? 'frozen'"


@pytest.fixture
async def trigger(hand: Hand) -> AsyncIterator[Trigger]:
    """Give `tasks` a BEFORE UPDATE trigger with these statements. The next one replaces it; the test's end drops it."""

    async def create(statements: str) -> None:
        body = f"""
            create or replace function users_own() returns trigger language plpgsql as $$
            begin {statements} return new; end $$;
            create or replace trigger zz_users_own before update on tasks for each row execute function users_own()"""
        await hand.execute(body.encode())

    yield create
    await hand.execute("drop trigger if exists zz_users_own on tasks")
    await hand.execute("drop table if exists accounts")


async def ids(agent: Agent, batch: int = 1) -> list[str]:
    """What a claim brings."""
    return [task["id"] for task in await agent.claim(batch=batch)]


async def refusals(hand: Hand) -> int:
    """Of tasks that are not let in."""
    rows = await (await hand.execute("select from task_refusals where what = 'let_in'")).fetchall()
    return len(rows)


@pytest.mark.parametrize(
    "refusal",
    [
        "perform 1 from public.accounts where id = 2 for update nowait;",
        "perform 1 from public.accounts where id = 2 for update;",
        "raise exception 'conflict' using errcode = '40001';",
        "raise exception 'conflict' using errcode = '40002';",
        "raise exception 'in use' using errcode = '55006';",
    ],
    ids=["lock not available", "waits for a lock", "serialization failure", "integrity", "in use"],
)
@pytest.mark.parametrize("what", ["next of its key", "due", "of a type that gets a limit", "untenanted"])
async def test_a_trigger_that_waits_for_another_transaction_stops_no_call(
    fleet: Fleet, database: str, hand: Hand, trigger: Trigger, what: str, refusal: str
) -> None:
    """The snapshot, the completion and the claim go on without its task, and take it when it can be changed."""
    agent = await fleet.agent()
    await hand.execute("create table accounts (id int primary key); insert into accounts values (2)")
    key: dict[str, Any] = {} if what in {"of a type that gets a limit", "untenanted"} else {"concurrency_key": "k"}
    held: list[Any] = []
    if what == "next of its key":
        await fleet.submit(**key)
        held = list(await agent.claim())
        fleet.wait(1)
    await fleet.submit(params={"frozen": True}, **key)
    if what == "due":
        await hand.execute("update tasks set run_after = %s", (fleet.now,))
    fleet.wait(1)
    (good,) = await fleet.submit(key | ({"tenant": "a"} if what == "untenanted" else {}))
    await trigger(f"if {WAITS_ON} then {refusal} end if;")
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("select from accounts for update")
        if what == "of a type that gets a limit":
            await limit(fleet, "t", 1, "type")
        for task in held:
            await agent.complete(task)
        await fleet.snapshot()
        assert await ids(agent) == [good]
    await trigger("")
    await consistent(hand)


@pytest.mark.parametrize("refusal", ["return null;", "return old;", "raise exception 'frozen';"])
async def test_tasks_that_a_trigger_keeps_from_waiting_stop_no_other_task(
    fleet: Fleet, hand: Hand, trigger: Trigger, refusal: str
) -> None:
    """They were queued before the limit of their type, and are not claimed beyond it."""
    frozen = await fleet.submit(count=MANY, task_type="frozen", params={"frozen": True})
    fleet.wait(1)
    (good,) = await fleet.submit(task_type="good")
    await trigger(f"if {WAITS_ON} then {refusal} end if;")
    await limit(fleet, "frozen", 1, "type")
    agent = await fleet.agent()
    found = [one for _ in range(3) for one in await ids(agent)]
    assert found == [good]
    assert await refusals(hand) == MANY
    (row,) = (await fleet.snapshot())["demand"]
    assert row["claimable"] == 0, "no GPU is started for them"
    await trigger("")
    fleet.wait(120)
    await fleet.snapshot()
    (one,) = await ids(agent, MANY)
    assert one in frozen
    await consistent(hand)


@pytest.mark.parametrize("refusal", ["return null;", "return old;", "raise exception 'frozen';"])
async def test_many_refused_tasks_do_not_keep_the_one_behind_them(
    fleet: Fleet, hand: Hand, trigger: Trigger, refusal: str
) -> None:
    """Each takes no more than its own try."""
    await limit(fleet, "k", 0)
    await fleet.submit(count=MANY, concurrency_key="k", params={"frozen": True})
    fleet.wait(1)
    (good,) = await fleet.submit(concurrency_key="k")
    await trigger(f"if {LET_IN} then {refusal} end if;")
    await limit(fleet, "k", 1)
    await fleet.snapshots()
    assert await ids(await fleet.agent()) == [good]
    await consistent(hand)


async def test_a_task_whose_type_does_not_let_it_in_gives_its_place_in_the_key_back(
    fleet: Fleet, hand: Hand, trigger: Trigger
) -> None:
    """The next task of the key gets it."""
    await limit(fleet, "t", 5, "type")
    await trigger(f"if {LET_IN} then return null; end if;")
    await fleet.submit(concurrency_key="k", params={"frozen": True})
    fleet.wait(1)
    (good,) = await fleet.submit(concurrency_key="k")
    await fleet.snapshot()
    assert await ids(await fleet.agent()) == [good]
    await trigger("")
    await consistent(hand)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("new.concurrency_key := 'b';", "k"),
        ("new.concurrency_key := null;", "k"),
        ("new.status := 'Cancelled';", "k"),
        ("new.task_type := 'other';", None),
        ("new.status := 'Cancelled';", None),
    ],
)
async def test_a_task_that_leaves_its_limit_while_it_is_let_in_gives_the_place_to_the_next_one(
    fleet: Fleet, hand: Hand, trigger: Trigger, change: str, key: str | None
) -> None:
    """A trigger changed it at that moment."""
    if key is None:
        await limit(fleet, "t", 1, "type")
    agent = await fleet.agent()
    await fleet.submit(concurrency_key=key)
    (first,) = await agent.claim()
    fleet.wait(1)
    await fleet.submit(concurrency_key=key, params={"frozen": True})
    fleet.wait(1)
    (good,) = await fleet.submit(concurrency_key=key)
    gate = "old.status = 'Queued' and new.queue_gate is distinct from old.queue_gate and old.params ? 'frozen'"
    await trigger(f"if {gate} then {change} end if;")
    await agent.complete(first)
    await fleet.snapshot()
    assert good in await ids(agent, 10)
    await trigger("")
    await consistent(hand)


async def test_a_task_that_gets_another_type_while_it_is_let_in_is_counted_there(
    fleet: Fleet, hand: Hand, trigger: Trigger
) -> None:
    """The other type has no room."""
    for name in ("t", "u"):
        await limit(fleet, name, 1, "type")
    agent = await fleet.agent()
    await fleet.submit({}, {"task_type": "u"})
    held = await agent.claim(batch=2)
    await fleet.submit(params={"frozen": True})
    await trigger("if old.params ? 'frozen' and old.queue_gate = 2 then new.task_type := 'u'; end if;")
    await agent.complete(next(task for task in held if task["task_type"] == "t"))
    assert await ids(agent, 10) == []
    await trigger("")
    await consistent(hand)


@pytest.mark.parametrize("what", ["next of their key", "of a type that gets a limit"])
async def test_many_tasks_whose_trigger_waits_for_a_lock_delay_the_one_behind_them_little(
    fleet: Fleet, database: str, hand: Hand, trigger: Trigger, what: str
) -> None:
    """A transaction waits a few times, and then no more."""
    key = "k" if what == "next of their key" else None
    agent = await fleet.agent()
    await hand.execute("create table accounts (id int primary key); insert into accounts values (2)")
    held: list[Any] = []
    if key:
        await fleet.submit(concurrency_key=key)
        held = list(await agent.claim())
    fleet.wait(1)
    await fleet.submit(count=100 if key else 900, concurrency_key=key, params={"frozen": True})
    fleet.wait(1)
    (good,) = await fleet.submit(concurrency_key=key, task_type="t" if key else "other")
    await trigger(f"if {WAITS_ON} then perform 1 from public.accounts where id = 2 for update; end if;")
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("select from accounts for update")
        if not key:
            await limit(fleet, "t", 1, "type")
        for task in held:
            await agent.complete(task)
        await fleet.snapshots()
        assert good in [one for _ in range(10) for one in await ids(agent)]
    await trigger("")
    await consistent(hand)


async def test_due_tasks_whose_trigger_keeps_their_time_hide_no_later_ones(
    fleet: Fleet, hand: Hand, trigger: Trigger
) -> None:
    """The change succeeds, and changes nothing."""
    insert = """
        insert into tasks (task_type, params, concurrency_key, run_after)
        select 't', %s, n, %s - n * interval '1 s' from generate_series(1, %s) n"""
    await hand.execute(insert, ("{}", fleet.now, 1))
    await hand.execute(insert.replace(" n, %s", " 'f' || n, %s"), ('{"frozen": true}', fleet.now, 1001))
    await trigger(f"if {WAITS_ON} then new.run_after := old.run_after; end if;")
    fleet.wait(1)
    agent = await fleet.agent()
    async with asyncio.timeout(SOON_S):
        while not (tasks := await agent.claim(batch=10)):
            await fleet.snapshot()  # it tries for a second
    assert [task["params"] for task in tasks] == [{}]
    await trigger("")
    await consistent(hand)


@pytest.mark.parametrize("refusal", ["return null;", "return old;", "raise exception 'frozen';"])
async def test_tasks_that_get_no_turn_starve_no_other_task_without_a_tenant(
    fleet: Fleet, hand: Hand, trigger: Trigger, refusal: str
) -> None:
    """More of them than get a turn at once, beside the tasks of a tenant that never end."""
    await fleet.submit(count=60, params={"frozen": True})
    fleet.wait(1)
    (good,) = await fleet.submit()
    await trigger(f"if {WAITS_ON} and new.queue_turn is distinct from old.queue_turn then {refusal} end if;")
    agent = await fleet.agent()
    found: list[str] = []
    for _ in range(20):
        await fleet.submit(count=2, tenant="a")
        found += await ids(agent, 2)
    assert good in found
    await trigger("")
    await consistent(hand)


async def test_tasks_whose_claim_waits_starve_no_task_that_may_be_let_in(
    fleet: Fleet, database: str, hand: Hand, trigger: Trigger
) -> None:
    """A snapshot tries a claim for a tenth of a second, and two of them."""
    agent = await fleet.agent()
    await hand.execute("create table accounts (id int primary key); insert into accounts values (2)")
    await fleet.submit(count=5, params={"stuck": True})
    waits = (
        "if old.params ? 'stuck' and new.status = 'In Progress' then"
        " perform 1 from public.accounts where id = 2 for update; end if;"
    )
    await trigger(f"{waits} if {LET_IN} then return null; end if;")
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("select from accounts for update")
        for _ in range(2):
            assert await ids(agent, 5) == []
        (frozen,) = await fleet.submit(concurrency_key="k", params={"frozen": True})
        fleet.wait(700)
        await trigger(waits)
        await fleet.snapshot()
        assert not (await fleet.task(frozen))["blocked"]
    await trigger("")


async def test_notes_of_limits_with_refused_tasks_do_not_pile_up(fleet: Fleet, hand: Hand, trigger: Trigger) -> None:
    """More limits than a snapshot looks at, whose tasks are refused again and again."""
    await trigger(f"if {LET_IN} then return null; end if;")
    insert = """
        insert into tasks (task_type, params, concurrency_key)
        select 't', '{"frozen": true}', n from generate_series(1, 1200) n"""
    await hand.execute(insert)
    counts = []
    for _ in range(12):
        fleet.wait(700)
        await fleet.snapshot()
        counts.append(len(await (await hand.execute("select from concurrency_notes")).fetchall()))
    assert min(counts[3:]) == 0, counts
    assert max(counts) <= 1200, "one of each limit, while there is no time for it"
    await trigger("")
    await consistent(hand)


async def test_a_lower_limit_takes_back_older_tasks_if_the_newer_ones_cannot_be_changed(
    fleet: Fleet, hand: Hand, trigger: Trigger
) -> None:
    """However many newer ones there are."""
    await limit(fleet, "k", 40)
    await fleet.submit(count=10, concurrency_key="k")
    fleet.wait(1)
    await fleet.submit(count=MANY, concurrency_key="k", params={"frozen": True})
    await trigger("if old.params ? 'frozen' and new.status = 'Queued' then raise exception 'frozen'; end if;")
    await limit(fleet, "k", 34)
    await fleet.snapshots()
    assert len(await ids(await fleet.agent(), 50)) == 34
    await trigger("")
    await consistent(hand)


@pytest.mark.parametrize("scope", ["key", "type"])
async def test_a_lower_limit_takes_places_back_that_were_locked_when_it_was_set(
    fleet: Fleet, database: str, hand: Hand, scope: str
) -> None:
    """The next snapshot does it."""
    name, key = ("k", "k") if scope == "key" else ("t", None)
    await limit(fleet, name, 2, scope)
    await fleet.submit(count=2, concurrency_key=key)
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("select from tasks for update")
        await limit(fleet, name, 1, scope)
    await fleet.snapshot()
    assert len(await ids(await fleet.agent(), 10)) == 1
    await consistent(hand)


async def test_a_place_is_taken_back_from_a_task_that_can_be_changed(
    fleet: Fleet, hand: Hand, trigger: Trigger
) -> None:
    """The last ready task would be the first one to wait, but a trigger keeps it."""
    await limit(fleet, "k", 2)
    free, kept = await fleet.submit({}, {"params": {"frozen": True}}, concurrency_key="k")
    await trigger(f"if {WAITS_ON} then return null; end if;")
    await limit(fleet, "k", 1)
    await fleet.snapshots()
    assert await ids(await fleet.agent(), 10) == [kept], free
    await consistent(hand)


@pytest.mark.parametrize("table", ["workers", "tasks"])
async def test_a_heartbeat_that_waited_renews_no_lease_beyond_the_limit(
    direct: PostgresDb, database: str, hand: Hand, table: str
) -> None:
    """Its lease ended while it waited for the row of its worker or its task, and another task got the place."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    late = await fleet.agent()
    await fleet.submit(concurrency_key="k")
    (task,) = await late.claim()
    tasks = "jsonb_build_array(jsonb_build_object('id', %s::text, 'attempt', 1))"
    heartbeat = f"select worker_heartbeat(%s, %s, {tasks}, null, null)".encode()
    async with (
        await psycopg.AsyncConnection.connect(database) as user,
        await psycopg.AsyncConnection.connect(database, autocommit=True, row_factory=dict_row) as beating,
    ):
        pid = beating.info.backend_pid
        cursor = beating.cursor()
        await hand.execute("update tasks set lease_expires_at = clock_timestamp() + interval '0.2 s'")
        wait = "alter function internal_lock_briefly(uuid[], boolean) set lock_timeout = "
        await hand.execute(f"{wait} '30 s'".encode())
        try:
            await user.execute(f"select from {table} for update".encode())
            beat = asyncio.create_task(cursor.execute(heartbeat, (late.id, late.nonce, task["id"])))
            blocked = "select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
            while not beat.done() and not await (await hand.execute(blocked, (pid,))).fetchall():
                await asyncio.sleep(0)
            expired = "select from tasks where lease_expires_at < clock_timestamp()"
            while not await (await hand.execute(expired)).fetchall():
                await asyncio.sleep(0)
            await hand.execute("insert into tasks (task_type, concurrency_key) values ('t', 'k')")
            await user.rollback()
            await beat
        finally:
            await hand.execute(f"{wait} '100 ms'".encode())
    query = """
        select status::text from tasks
         where queue_gate = 3 and (status = 'Queued' or lease_expires_at > clock_timestamp())"""
    assert [row["status"] for row in await (await hand.execute(query)).fetchall()] == ["Queued"]


async def test_a_lease_that_ends_soon_is_renewed_only_while_nobody_counts_its_limit(
    fleet: Fleet, database: str
) -> None:
    """Another transaction may count it as expired before the heartbeat commits."""
    await fleet.submit(concurrency_key="k")
    agent = await fleet.agent()
    (task,) = await agent.claim()
    before = (await fleet.task(task["id"]))["lease_expires_at"]
    fleet.wait(LEASE_S - 2)
    async with await psycopg.AsyncConnection.connect(database) as counting:
        await counting.execute("select internal_lock_limits('key', array['k'], false)")
        await agent.beat(task)
        assert (await fleet.task(task["id"]))["lease_expires_at"] == before
        fleet.wait(5)
        await fleet.fleet("rescue_overdue", p_over_s=0)
        assert (await fleet.task(task["id"]))["status"] == "In Progress", "its worker has it still"
    await agent.beat(task)
    assert (await fleet.task(task["id"]))["lease_expires_at"] > before


async def test_a_trigger_that_changes_the_key_of_a_task_breaks_no_limit(
    fleet: Fleet, hand: Hand, trigger: Trigger
) -> None:
    """It writes keys in lower case, also while a task is let in."""
    await trigger("new.concurrency_key := lower(new.concurrency_key);")
    await fleet.submit(*({"concurrency_key": key} for key in ("ACME", "Acme", "acme")))
    agent = await fleet.agent()
    for _ in range(3):
        (task,) = await agent.claim(batch=10)
        await agent.complete(task)
        await fleet.snapshot()
    await trigger("")
    await consistent(hand)


@pytest.mark.parametrize("refusal", ["return null;", "return old;", "raise exception 'frozen';"])
async def test_due_tasks_that_a_trigger_keeps_hide_no_later_ones(
    fleet: Fleet, hand: Hand, trigger: Trigger, refusal: str
) -> None:
    """However many there are; and they are recorded."""
    insert = """
        insert into tasks (task_type, params, concurrency_key, run_after)
        select 't', %s, %s, %s - n * interval '1 s' from generate_series(1, %s) n"""
    await hand.execute(insert, ('{"frozen": true}', "k", fleet.now, 1001))
    await hand.execute(insert, ("{}", "other", fleet.now, 1))
    await trigger(f"if {WAITS_ON} then {refusal} end if;")
    fleet.wait(1)
    agent = await fleet.agent()
    async with asyncio.timeout(SOON_S):
        while not (tasks := await agent.claim(batch=10)):
            await fleet.snapshot()  # it tries for a second
    assert [task["params"] for task in tasks] == [{}]
    assert await refusals(hand) > 0
    await trigger("")
    await consistent(hand)


async def test_refusals_of_one_kind_do_not_delay_the_tries_of_another(fleet: Fleet, hand: Hand) -> None:
    """More tasks of full limits than a snapshot tries."""
    fill = "insert into tasks (task_type, concurrency_key) select 't', n / 2 from generate_series(2, 1103) n"
    refuse = """
        insert into task_refusals (task_id, what, reason, refused_at, retry_at)
        select id, 'let_in', 'it was refused', %s, %s from tasks where queue_gate = 1"""
    await hand.execute(fill)
    await hand.execute(refuse, (fleet.now, fleet.now))
    await fleet.submit(pool="claimable")
    claim = "insert into task_refusals select id, 'claim', 'it was refused', %s, %s from tasks where pool = 'claimable'"
    columns = claim.replace("task_refusals", "task_refusals (task_id, what, reason, refused_at, retry_at)", 1)
    fleet.wait(1)
    await hand.execute(columns, (fleet.now, fleet.now))
    fleet.wait(1)
    await fleet.snapshot()
    assert len(await ids(await fleet.agent(pool="claimable"))) == 1


@pytest.mark.parametrize("how", ["refused", "locked"])
async def test_a_limit_of_a_type_can_be_set_although_a_running_task_cannot_be_changed(
    fleet: Fleet, database: str, hand: Hand, trigger: Trigger, how: str
) -> None:
    """The limit counts it later, at a snapshot."""
    await fleet.submit(count=2)
    agent = await fleet.agent()
    (task,) = await agent.claim()
    async with await psycopg.AsyncConnection.connect(database) as user:
        if how == "refused":
            await trigger("if new.status = 'In Progress' then raise exception 'frozen'; end if;")
        else:
            await user.execute("select from tasks where status = 'In Progress' for update")
        await limit(fleet, "t", 1, "type")
    await trigger("")
    await fleet.snapshot()
    assert await ids(agent) == []
    await agent.complete(task)
    assert len(await ids(agent)) == 1
    await consistent(hand)


async def test_a_truncated_queue_is_told_to_the_workers_that_ran_its_tasks(direct: PostgresDb, hand: Hand) -> None:
    """As each deleted task is."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    agent = await fleet.agent()
    await fleet.submit()
    await agent.claim()
    ear = Ear(direct)
    try:
        await ear.until(("connected", ""))
        await ear.forget(hand)
        await hand.execute("truncate tasks")
        await ear.until(("orchestrator_fleet", agent.id))
    finally:
        await ear.close()


@pytest.mark.parametrize("scope", ["key", "type"])
async def test_a_trigger_that_keeps_the_gate_alone_keeps_no_place_for_ever(
    fleet: Fleet, hand: Hand, trigger: Trigger, scope: str
) -> None:
    """While the place is taken back: the task would be blocked, and count as let in."""
    name, key = ("k", "k") if scope == "key" else ("t", None)
    await limit(fleet, name, 2, scope)
    await fleet.submit(concurrency_key=key)
    fleet.wait(1)
    await fleet.submit({"params": {"frozen": True}}, concurrency_key=key)
    await trigger(f"if {WAITS_ON} then new.queue_gate := old.queue_gate; end if;")
    await limit(fleet, name, 1, scope)
    await fleet.snapshots()
    await trigger("")
    agent, done = await fleet.agent(), 0
    for _ in range(4):
        fleet.wait(700)
        await fleet.snapshot()
        for task in await agent.claim(batch=5):
            await agent.complete(task)
            done += 1
    assert done == 2
    await consistent(hand)


async def test_a_lower_limit_of_a_type_holds_beside_refused_tasks(fleet: Fleet, hand: Hand, trigger: Trigger) -> None:
    """Those that a trigger keeps stay ready; others wait in their place, and nothing more is noted."""
    await limit(fleet, "t", 3000, "type")
    await fleet.submit(count=2000)
    await fleet.submit(count=20, params={"frozen": True})
    await trigger(f"if {WAITS_ON} then raise exception 'frozen'; end if;")
    await limit(fleet, "t", 500, "type")
    assert (await fleet.snapshot())["demand"][0]["claimable"] == 500
    assert len(await (await hand.execute("select from concurrency_notes")).fetchall()) <= 1
    await trigger("")
    await consistent(hand)


async def test_a_heartbeat_waits_for_few_of_its_tasks_triggers(
    fleet: Fleet, database: str, hand: Hand, trigger: Trigger
) -> None:
    """However many tasks the worker holds: it must not seem silent."""
    await fleet.submit(count=40)
    agent = await fleet.agent()
    held = await agent.claim(batch=40)
    await hand.execute("create table accounts (id int primary key); insert into accounts values (2)")
    await trigger(
        "if old.status = new.status and old.status = 'In Progress' then"
        " perform 1 from public.accounts where id = 2 for update; end if;"
    )
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("select from accounts for update")
        await agent.beat(*held)
        waits = await (await hand.execute("select from task_refusals where what = 'rescue'")).fetchall()
        assert len(waits) == 40
    await trigger("")


async def test_a_task_that_cannot_fail_holds_up_no_claim(
    fleet: Fleet, database: str, hand: Hand, trigger: Trigger
) -> None:
    """A trigger refuses its claim, and waits for a lock when it is to become Failed for that."""
    await fleet.submit(params={"frozen": True})
    fleet.wait(1)
    (good,) = await fleet.submit()
    await hand.execute("create table accounts (id int primary key); insert into accounts values (2)")
    await trigger(
        "if old.params ? 'frozen' and new.status = 'In Progress' then raise exception 'frozen'; end if;"
        " if old.params ? 'frozen' and new.status = 'Failed' then"
        " perform 1 from public.accounts where id = 2 for update; end if;"
    )
    agent = await fleet.agent()
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("select from accounts for update")
        assert good in [one for _ in range(10) for one in await ids(agent)]
    await trigger("")


async def test_a_claim_waits_a_few_times_for_tasks_that_cannot_fail(
    fleet: Fleet, database: str, hand: Hand, trigger: Trigger
) -> None:
    """Not half a second for each of its hundred tasks: then it would be cancelled for the time that it takes."""
    await fleet.submit(count=100, params={"frozen": True})
    await hand.execute("create table accounts (id int primary key); insert into accounts values (2)")
    await trigger(
        "if new.status = 'In Progress' then raise exception 'frozen'; end if; if new.status = 'Failed' then"
        " perform 1 from public.accounts where id = 2 for update; end if;"
    )
    agent = await fleet.agent()
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("select from accounts for update")
        assert await ids(agent, 100) == []
    await trigger("")


async def test_a_claim_finds_tasks_behind_many_whose_triggers_wait(
    fleet: Fleet, database: str, hand: Hand, trigger: Trigger
) -> None:
    """Behind sixty of them, in batches of ten; some share a batch with them."""
    await fleet.submit(count=65, params={"frozen": True})
    fleet.wait(1)
    good = await fleet.submit(count=3)
    await hand.execute("create table accounts (id int primary key); insert into accounts values (2)")
    await trigger(
        "if old.params ? 'frozen' and new.status = 'In Progress' then"
        " perform 1 from public.accounts where id = 2 for update; end if;"
    )
    agent = await fleet.agent()
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("select from accounts for update")
        found = [one for _ in range(3) for one in await ids(agent, 10)]
    assert sorted(found) == sorted(good)
    await trigger("")


async def test_a_lock_of_a_moment_leaves_no_place_unused_for_half_a_minute(
    fleet: Fleet, database: str, hand: Hand, trigger: Trigger
) -> None:
    """The next tasks of a key, or a claim, meet a row that a user's transaction holds when the place is free."""
    agent = await fleet.agent()
    await fleet.submit(count=3, concurrency_key="k")
    await fleet.submit(count=3, task_type="other", priority=-1)
    (first,) = await agent.claim()
    await hand.execute("create table accounts (id int primary key); insert into accounts values (2)")
    await trigger("perform 1 from public.accounts where id = 2 for update;")
    await hand.execute("create or replace trigger zz_users_own before update on tasks for each row"
                       " when (new.status in ('Queued', 'In Progress')) execute function users_own()")  # fmt: skip
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("select from accounts for update")
        assert await agent.complete(first) == "ok"
        assert await ids(agent, 3) == []
    fleet.wait(3)
    await fleet.snapshots()
    fleet.wait(3)
    await fleet.snapshots()
    assert len(await ids(agent, 10)) == 4


@pytest.mark.parametrize("how", ["complete", "complete_many", "complete_and_claim", "fail"])
async def test_a_dependant_whose_trigger_waits_holds_up_no_end_of_what_it_needs(
    fleet: Fleet, database: str, hand: Hand, trigger: Trigger, how: str
) -> None:
    """It is settled when the lock is gone."""
    agent = await fleet.agent()
    first, other = await fleet.submit(count=2)
    (second,) = await fleet.submit({"depends_on": [first], "params": {"frozen": True}})
    tasks = await agent.claim(batch=2)
    needed = next(task for task in tasks if task["id"] == first)
    await hand.execute("create table accounts (id int primary key); insert into accounts values (2)")
    await trigger("if old.params ? 'frozen' then perform 1 from public.accounts where id = 2 for update; end if;")
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("select from accounts for update")
        if how == "complete":
            assert await agent.complete(needed) == "ok"
        elif how == "fail":
            assert await agent.fail(needed, retryable=False) == "failed"
        else:
            await getattr(agent, how)(*({"task_id": one["id"], "attempt": 1} for one in tasks))
            assert (await fleet.task(other))["status"] == "Complete"
        assert (await fleet.task(second))["status"] == "Queued"
    fleet.wait(3)
    await fleet.snapshots()
    row = await fleet.task(second)
    assert (row["status"], row["blocked"]) == (("Failed", False) if how == "fail" else ("Queued", False))


async def test_dependants_that_refuse_slowly_take_a_moment_of_the_end_of_what_they_need(
    fleet: Fleet, hand: Hand, trigger: Trigger
) -> None:
    """The others are left to the snapshots."""
    agent = await fleet.agent()
    (first,) = await fleet.submit()
    await fleet.submit(*[{"depends_on": [first], "params": {"frozen": True}}] * 100)
    (task,) = await agent.claim()
    await trigger(f"if {WAITS_ON} then perform pg_sleep(0.02); raise exception 'frozen'; end if;")
    assert await agent.complete(task) == "ok"
    tried = await (await hand.execute("select from task_refusals where what = 'settle'")).fetchall()
    assert len(tried) < 50
    await trigger("")
    for _ in range(20):
        fleet.wait(700)
        await fleet.snapshots()
    assert len(await ids(agent, 100)) == 100


@pytest.mark.parametrize("call", ["fail", "complete_many", "complete_and_claim"])
async def test_a_heartbeat_waits_for_no_result_that_waits_for_a_locked_task(
    fleet: Fleet, database: str, hand: Hand, call: str
) -> None:
    """As long as somebody's transaction has it: the worker keeps its task, and says its result again."""
    await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()

    async def tell() -> Any:
        if call == "fail":
            return await agent.fail(task)
        return await getattr(agent, call)({"task_id": task["id"], "attempt": 1, "result_data": None})

    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("select from tasks for update")
        with pytest.raises(Unavailable):
            await tell()
        telling = asyncio.create_task(tell())
        waits = "select from pg_stat_activity where wait_event_type = 'Lock' and query like %s"
        while not telling.done() and not await (await hand.execute(waits, (f"%worker_{call}%",))).fetchall():
            await asyncio.sleep(0.01)
        await agent.beat(task)
        await user.rollback()
        await asyncio.gather(telling, return_exceptions=True)
    await tell()
    assert (await fleet.task(task["id"]))["status"] == ("Queued" if call == "fail" else "Complete")


async def test_a_refusal_that_a_users_transaction_records_stops_no_snapshot(
    fleet: Fleet, hand: Hand, trigger: Trigger, database: str
) -> None:
    """The user's open transaction has changed a dependency of a refused task, and has recorded its refusal again."""
    needed = await fleet.submit(count=2)
    await fleet.submit({"depends_on": needed, "params": {"frozen": True}})
    await trigger("if old.params ? 'frozen' then raise exception 'frozen'; end if;")
    await hand.execute("update tasks set status = 'Cancelled' where id = %s", (needed[0],))
    await hand.execute("update task_refusals set retry_at = '2000-01-01'")
    async with await psycopg.AsyncConnection.connect(database) as user:
        await user.execute("update tasks set status = 'Cancelled' where id = %s", (needed[1],))
        await fleet.snapshot()
        await user.rollback()


@pytest.mark.full
async def test_a_limit_takes_effect_while_a_trigger_is_slow_and_suppresses_some_changes(
    fleet: Fleet, hand: Hand, trigger: Trigger
) -> None:
    """Each snapshot has time for a part of the tasks; what it has done is not done again."""
    await limit(fleet, "y", 0, "type")
    tasks = [{"params": {"frozen": True} if n % 250 == 7 else {}} for n in range(500)]
    await fleet.submit(*tasks, task_type="y")
    await trigger("perform pg_sleep(0.004); if old.params ? 'frozen' then return null; end if;")
    await limit(fleet, "y", 10_000, "type")
    ready = "select count(*) as n from tasks where queue_gate = 3"
    for _ in range(20):
        await fleet.snapshot()
        [row] = await (await hand.execute(ready)).fetchall()
        if row["n"] == 498:
            break
    assert row["n"] == 498
