"""Actions on all tasks that fit a filter: each task is changed once, by any leader, whatever users' own code does."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.task_change_store import TaskChangeStore
from orchestrator.core.api_tokens import TokenHolder, TokenScope
from orchestrator.leader_jobs.bulk_changes import BulkChanges
from orchestrator.ports import BadArgument, NotLeader
from tests.db.conformance.builders import FLEET, START, Agent, Fleet
from tests.db.conformance.consistency import broken

Row = Mapping[str, Any]
OPERATE = frozenset({TokenScope.OPERATE})
ANNA, BEN = TokenHolder("anna", OPERATE), TokenHolder("ben", OPERATE)
BIG = TokenHolder("big", OPERATE, pools=frozenset({"big"}))
ACME = TokenHolder("acme", OPERATE, tenant="acme")
PATIENCE_S = 31.0


class Clocked:
    """A database whose calls carry the fleet's time."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def call(self, function: str, /, **args: Any) -> Any:
        self._fleet.now += timedelta(milliseconds=10)  # tasks of one submission are some microseconds apart
        return await self._fleet.call(function, **args)


@pytest.fixture
def store(fleet: Fleet) -> TaskChangeStore:
    """The rows, at the fleet's time."""
    return TaskChangeStore(Clocked(fleet), FLEET)


@pytest.fixture
async def owner(hand: AsyncConnection[DictRow]) -> AsyncIterator[AsyncConnection[DictRow]]:
    """A user who may make triggers, which go with the test."""
    yield hand
    await hand.execute("drop function if exists users_own() cascade")


async def trigger(owner: AsyncConnection[DictRow], body: str, moment: str = "before update on tasks") -> None:
    """A user's trigger for each row."""
    await owner.execute(
        f"create function users_own() returns trigger language plpgsql as $$ begin {body} return new; end $$".encode()
    )
    kind = "constraint trigger" if "deferr" in moment else "trigger"
    await owner.execute(f"create {kind} users_own {moment} for each row execute function users_own()".encode())


async def failed(fleet: Fleet, hand: AsyncConnection[DictRow], count: int, **every: Any) -> list[str]:
    """Tasks that have failed."""
    ids = await fleet.submit(count=count, **every)
    await hand.execute("update tasks set status = 'Failed', error_message = 'no' where id = any (%s::uuid[])", (ids,))
    return ids


async def started(store: TaskChangeStore, action: str, holder: TokenHolder = ANNA, **wanted: Any) -> int:
    """A new change; its id."""
    answer = await store.start(holder, action, wanted, key=None)
    assert answer["outcome"] == "started"
    return int(answer["id"])


async def shown(store: TaskChangeStore, change: int) -> Row:
    """A change as everybody's admin sees it."""
    row = await store.one(ANNA, change)
    assert row is not None
    return row


async def statuses(hand: AsyncConnection[DictRow]) -> dict[str, int]:
    """The number of tasks by status."""
    rows = await (await hand.execute("select status, count(*) as n from tasks group by 1")).fetchall()
    return {row["status"]: row["n"] for row in rows}


async def test_a_change_of_thousands_is_done_in_parts_and_each_task_is_audited_once(
    direct: PostgresDb, hand: AsyncConnection[DictRow]
) -> None:
    """Newest first. Tasks that are submitted after its start are left alone; so is what the filter does not name."""
    fleet = Fleet(direct)
    fleet.term = (await fleet.lead())["term"]
    store = TaskChangeStore(Clocked(fleet), FLEET)
    for _ in range(3):
        await fleet.submit(count=1_000, task_type="many")
        fleet.wait(1)
    await fleet.submit(count=7, task_type="other")
    change = await started(store, "cancel", task_type="many")
    fleet.wait(1)
    await fleet.submit(count=5, task_type="many")
    first = await store.step(fleet.term)
    assert (0 < first["changed"] <= 200, first["more"], first["outcome"]) == (True, True, None)
    oldest = "select from tasks where status = 'Cancelled' and created_at < %s"
    assert await (await hand.execute(oldest, (START + timedelta(seconds=2),))).fetchall() == []
    await BulkChanges(store).step(fleet.term)
    row = await shown(store, change)
    assert (row["outcome"], row["looked"] >= 3_000, row["changed"], row["refused"]) == ("done", True, 3_000, 0)
    assert await statuses(hand) == {"Cancelled": 3_000, "Queued": 12}
    query = """select action, actor, count(distinct subject) as subjects, count(*) as n from audit_log
                where action <> 'task.submit' group by 1, 2 order by 1"""
    rows = await (await hand.execute(query)).fetchall()
    assert [(row["action"], row["actor"], row["subjects"], row["n"]) for row in rows] == [
        ("task.cancel", "anna", 3_000, 3_000), ("tasks.cancel", "anna", 1, 1), ("tasks.done", "anna", 1, 1)
    ]  # fmt: skip
    assert (await store.step(fleet.term))["id"] is None


async def test_a_filter_means_the_same_to_a_list_a_preview_and_a_change(
    fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow]
) -> None:
    """By status, type, tenant, pool, labels and age; of several labels, all."""
    await fleet.submit(count=2, pool="old")
    fleet.wait(100)
    since = fleet.now.isoformat()
    await fleet.submit(
        {"task_type": "u"},
        {"tenant": "acme"},
        {"pool": "big"},
        {"labels": {"a": "1", "b": "2"}},
        {"labels": {"a": "1"}},
    )
    for wanted, count in (
        ({"status": "Queued"}, 7), ({"task_type": "u"}, 1), ({"tenant": "acme"}, 1), ({"pool": "big"}, 1),
        ({"labels": [{"a": "1"}]}, 2), ({"labels": [{"a": "1"}, {"b": "2"}]}, 1), ({"since": since}, 5),
        ({"task_type": "u", "pool": "big"}, 0), ({"status": ["In Progress"]}, 0),
    ):  # fmt: skip
        page = await fleet.call("task_page", p_scope={}, p_filter=wanted, p_cursor=None, p_limit=100)
        preview = await store.preview(ANNA, "cancel", wanted)
        assert (len(page["tasks"]), preview["tasks"], preview["is_all"]) == (count, count, True), wanted
    change = await started(store, "cancel", labels=[{"a": "1"}], pool=None)
    await BulkChanges(store).step(fleet.term)
    assert (await shown(store, change))["changed"] == 2
    assert await statuses(hand) == {"Cancelled": 2, "Queued": 5}


@pytest.mark.parametrize(
    ("action", "wanted", "why"),
    [
        ("cancel", {}, "needs a filter"),
        ("cancel", {"labels": []}, "needs a filter"),
        ("cancel", {"status": "Failed"}, "does not apply"),
        ("retry", {"status": ["Queued", "Failed"]}, "does not apply"),
        ("delete", {"status": "Failed"}, "no action"),
        ("cancel", {"state": "Queued"}, "unknown key"),
        ("cancel", {"labels": {"a": "1"}}, "labels"),
        ("cancel", {"labels": ["a=1"]}, "labels"),
        ("cancel", {"since": "yesteryear"}, "yesteryear"),
        ("cancel", {"task_type": "x" * 9_000}, "too large"),
    ],
)
async def test_a_filter_that_is_none_starts_nothing(
    fleet: Fleet, store: TaskChangeStore, action: str, wanted: Row, why: str
) -> None:
    """Neither does it get a preview."""
    with pytest.raises(BadArgument, match=why):
        await store.start(ANNA, action, wanted, key=None)
    with pytest.raises(BadArgument, match=why):
        await store.preview(ANNA, action, wanted)
    assert (await store.all(ANNA, 10))["changes"] == []


async def test_a_key_starts_one_change(fleet: Fleet, store: TaskChangeStore) -> None:
    """However often and at once somebody sends it. The key of another person is another one."""
    wanted = {"task_type": "t"}
    done = await asyncio.gather(*(store.start(ANNA, "cancel", wanted, key="k") for _ in range(4)))
    assert sorted(one["outcome"] for one in done) == ["repeated", "repeated", "repeated", "started"]
    assert len({one["id"] for one in done}) == 1
    assert (await store.start(ANNA, "retry", wanted, key="k"))["outcome"] == "key_reused"
    assert (await store.start(BEN, "cancel", wanted, key="k"))["outcome"] == "started"
    assert len((await store.all(ANNA, 10))["changes"]) == 2


async def test_another_leader_goes_on_and_an_old_one_is_refused(
    fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow]
) -> None:
    """Also two that believe to lead at once: no task is changed twice."""
    await fleet.submit(count=450)
    change = await started(store, "cancel", status="Queued")
    await store.step(fleet.term)
    old = fleet.term
    fleet.wait(4_000)
    fleet.term = (await fleet.lead("another"))["term"]
    with pytest.raises(NotLeader):
        await store.step(old)
    await asyncio.gather(*(store.step(fleet.term) for _ in range(4)))
    await BulkChanges(store).step(fleet.term)
    row = await shown(store, change)
    assert (row["changed"], row["refused"], row["outcome"]) == (450, 0, "done")
    rows = await (await hand.execute("select from audit_log where action = 'task.cancel'")).fetchall()
    assert len(rows) == 450


async def test_a_step_that_is_interrupted_has_done_nothing(
    fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow]
) -> None:
    """Its connection is lost before it commits: the tasks and the place are as they were."""
    await fleet.submit(count=10)
    change = await started(store, "cancel", status="Queued")
    async with hand.transaction(force_rollback=True):
        answer = await hand.execute("select fleet_change_tasks(%s, %s, %s) as a", (FLEET, fleet.term, fleet.now))
        assert (await answer.fetchone() or {})["a"]["changed"] == 10
    assert ((await shown(store, change))["looked"], await statuses(hand)) == (0, {"Queued": 10})
    await BulkChanges(store).step(fleet.term)
    assert (await shown(store, change))["changed"] == 10


async def test_a_change_can_be_stopped(fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow]) -> None:
    """At once: no step follows. What is changed stays changed; the next change is not held up."""
    await fleet.submit(count=300)
    change, following = await started(store, "cancel", status="Queued"), await started(store, "cancel", task_type="u")
    await store.step(fleet.term)
    assert (await store.stop(BEN, change))["outcome"] == "stopped"
    assert (await store.stop(BEN, change))["outcome"] == "already"
    assert (await store.stop(BEN, 10**12))["outcome"] == "not_found"
    await BulkChanges(store).step(fleet.term)
    row = await shown(store, change)
    assert (row["outcome"], row["stopped_by"], 0 < row["changed"] <= 200) == ("stopped", "ben", True)
    assert (await statuses(hand))["Queued"] >= 100
    assert (await shown(store, following))["outcome"] == "done"
    rows = await (await hand.execute("select actor from audit_log where action = 'tasks.stop'")).fetchall()
    assert [one["actor"] for one in rows] == ["ben"]


async def test_a_revoked_token_changes_nothing_more(
    fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow]
) -> None:
    """What it has started is stopped, by the person who revokes it; what others have started goes on."""
    token = {"name": "ben", "hash": "0" * 64, "scopes": ["operate"], "pools": None, "tenant": None, "expires_at": None}
    await fleet.call("fleet_token_create", p_fleet=FLEET, p_token=token, p_actor="cli:me")
    await fleet.submit(count=300)
    change, other = await started(store, "cancel", BEN, task_type="t"), await started(store, "cancel", task_type="u")
    await store.step(fleet.term)
    await fleet.call("fleet_token_revoke", p_fleet=FLEET, p_name="ben", p_actor="cli:me")
    await BulkChanges(store).step(fleet.term)
    row = await shown(store, change)
    assert (row["outcome"], row["stopped_by"], row["changed"] <= 200) == ("stopped", "cli:me", True)
    assert (await statuses(hand))["Queued"] >= 100
    assert (await shown(store, other))["outcome"] == "done"


async def test_a_retry_queues_failed_tasks_again(
    fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow]
) -> None:
    """Without a status the failed ones. One whose dedupe key is taken is refused, with the reason."""
    await failed(fleet, hand, 3)
    (old,) = await failed(fleet, hand, 1, dedupe_key="k")
    await fleet.submit(dedupe_key="k")
    (cancelled,) = await fleet.submit()
    await fleet.call("task_cancel", p_id=cancelled)
    change = await started(store, "retry", task_type="t")
    await BulkChanges(store).step(fleet.term)
    row = await shown(store, change)
    assert (row["changed"], row["refused"], row["outcome"]) == (3, 1, "done")
    assert row["refusal"].startswith(f"task {old}: a task with the same dedupe_key is already queued or running")
    assert await statuses(hand) == {"Queued": 4, "Failed": 1, "Cancelled": 1}
    change = await started(store, "retry", status=["Failed", "Cancelled"])
    await BulkChanges(store).step(fleet.term)
    assert (await shown(store, change))["changed"] == 1


@pytest.mark.parametrize("holder", [BIG, ACME], ids=["pools", "tenant"])
async def test_a_restricted_token_changes_only_what_it_sees(
    fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow], holder: TokenHolder
) -> None:
    """Its restriction is kept with the change. It sees no change of somebody who sees more."""
    await fleet.submit(count=2, pool="big", tenant="acme")
    await fleet.submit(count=3, pool="small", tenant="other")
    assert (await store.preview(holder, "cancel", {"status": "Queued"}))["tasks"] == 2
    whole = await started(store, "cancel", task_type="u")
    mine = await started(store, "cancel", holder, status="Queued")
    assert [one["id"] for one in (await store.all(holder, 10))["changes"]] == [mine]
    assert (await store.one(holder, whole), (await store.stop(holder, whole))["outcome"]) == (None, "not_found")
    await BulkChanges(store).step(fleet.term)
    assert ((await shown(store, mine))["changed"], await statuses(hand)) == (2, {"Cancelled": 2, "Queued": 3})


async def test_a_token_of_a_part_keeps_nobody_else_waiting(fleet: Fleet, store: TaskChangeStore) -> None:
    """However many changes it starts: those who see everything start theirs, and are served first."""
    mine = [await started(store, "retry", ACME, task_type="u") for _ in range(100)]
    for holder in (ACME, TokenHolder("acme-too", OPERATE, tenant="acme")):
        with pytest.raises(BadArgument, match="too many changes wait"):
            await store.start(holder, "retry", {"task_type": "u"}, key=None)
    assert await started(store, "cancel", BIG, task_type="u")
    whole = await started(store, "cancel", task_type="u")
    step = await store.step(fleet.term)
    assert (step["id"], step["outcome"]) == (whole, "done")
    assert (await store.step(fleet.term))["id"] == mine[0]


async def test_a_token_of_a_tenant_sees_no_costs(fleet: Fleet, store: TaskChangeStore) -> None:
    """Neither of what runs, nor of what attempts have cost."""
    await fleet.submit(tenant="acme")
    preview = await store.preview(ACME, "cancel", {"task_type": "t"})
    assert (preview["tasks"], preview["usd"], [one["usd"] for one in preview["by"]]) == (1, None, [None])
    assert (await store.preview(ANNA, "cancel", {"task_type": "t"}))["usd"] == 0


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("if new.priority = 1 then raise 'not this one'; end if;", "not this one"),
        ("if new.priority = 1 then assert false, 'never'; end if;", "never"),
        ("if new.priority = 1 then return null; end if;", "suppressed"),
        ("if new.priority = 1 then raise sqlstate '53200'; end if;", "53200"),
    ],
)
async def test_a_users_trigger_that_refuses_some_harms_only_those(
    fleet: Fleet, store: TaskChangeStore, owner: AsyncConnection[DictRow], body: str, why: str
) -> None:
    """The others are changed, and the change ends."""
    await fleet.submit(*({"priority": n % 2} for n in range(20)))
    await trigger(owner, body)
    change = await started(store, "cancel", task_type="t")
    await BulkChanges(store).step(fleet.term)
    row = await shown(store, change)
    assert (row["changed"], row["refused"], row["outcome"]) == (10, 10, "done")
    assert why in row["refusal"]
    assert await statuses(owner) == {"Cancelled": 10, "Queued": 10}
    rows = await (await owner.execute("select from audit_log where action = 'task.cancel'")).fetchall()
    assert len(rows) == 10


async def test_a_deferred_check_refuses_its_own_task_only(
    fleet: Fleet, store: TaskChangeStore, owner: AsyncConnection[DictRow]
) -> None:
    """At the commit it would undo the step, again and again."""
    await fleet.submit(*({"priority": n % 2} for n in range(4)))
    moment = "after update on tasks deferrable initially deferred"
    await trigger(owner, "if new.priority = 1 then raise 'too late'; end if;", moment)
    change = await started(store, "cancel", task_type="t")
    await BulkChanges(store).step(fleet.term)
    row = await shown(store, change)
    assert (row["changed"], row["refused"], row["outcome"], "too late" in row["refusal"]) == (2, 2, "done", True)


async def test_a_trigger_that_sleeps_beyond_the_timeout_refuses_its_task(
    fleet: Fleet, store: TaskChangeStore, owner: AsyncConnection[DictRow]
) -> None:
    """The step that was cancelled keeps what it has done, and the next one goes on behind this task."""
    await fleet.submit(*({"priority": n} for n in (0, 1, 0)))
    await trigger(owner, "if new.priority = 1 then perform pg_sleep(60); end if;")
    change = await started(store, "cancel", task_type="t")
    step = f"select fleet_change_tasks('{FLEET}', {fleet.term}, '{fleet.now.isoformat()}')".encode()
    await owner.execute("set statement_timeout = '2s'")
    for _ in range(4):
        await owner.execute(step)
    row = await shown(store, change)
    assert (row["changed"], row["refused"], row["outcome"]) == (2, 1, "done")
    assert "took too long" in row["refusal"]


async def test_a_step_that_is_cancelled_because_its_leader_ends_refuses_nothing(
    fleet: Fleet, store: TaskChangeStore, owner: AsyncConnection[DictRow], database: str
) -> None:
    """The task that was being changed then is changed by the next leader."""
    await fleet.submit(count=5)
    await trigger(owner, "perform pg_sleep(0.5);")
    change = await started(store, "cancel", task_type="t")
    step = f"select fleet_change_tasks('{FLEET}', {fleet.term}, '{fleet.now.isoformat()}')".encode()
    running = asyncio.create_task(owner.execute(step))
    cancel = "select pg_cancel_backend(pid) from pg_stat_activity where pid = %s and wait_event = 'PgSleep'"
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as somebody:
        while not await (await somebody.execute(cancel, (owner.info.backend_pid,))).fetchall():
            await asyncio.sleep(0.02)
        await running
        await owner.execute("drop function users_own() cascade")
    for _ in range(2):
        await BulkChanges(store).step(fleet.term)
    row = await shown(store, change)
    assert (row["changed"], row["refused"], row["outcome"]) == (5, 0, "done")


async def test_a_task_that_somebody_has_locked_is_tried_again_and_then_refused(
    fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow], database: str
) -> None:
    """Nobody waits for the lock: the others are changed. A lock that ends in time refuses nothing."""
    ids = await fleet.submit(count=5)
    change = await started(store, "cancel", status="Queued")
    async with await psycopg.AsyncConnection.connect(database) as somebody:
        await somebody.execute("select from tasks where id = any (%s::uuid[]) for update", (ids[:2],))
        await BulkChanges(store).step(fleet.term)
        row = await shown(store, change)
        assert (row["changed"], row["locked"], row["outcome"]) == (3, 2, None)
        await somebody.rollback()
        await somebody.execute("select from tasks where id = %s for update", (ids[0],))
        await BulkChanges(store).step(fleet.term)
        assert ((await shown(store, change))["changed"], (await shown(store, change))["locked"]) == (4, 1)
        fleet.wait(PATIENCE_S)
        await BulkChanges(store).step(fleet.term)
    row = await shown(store, change)
    assert (row["changed"], row["refused"], row["outcome"]) == (4, 1, "done")
    assert row["refusal"] == f"task {ids[0]}: another transaction has locked it"
    assert (await statuses(hand))["Queued"] == 1


async def test_workers_go_on_while_a_change_runs(
    fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow]
) -> None:
    """They claim and complete tasks at the same time: each task ends once, and the queue is consistent."""
    await fleet.submit(count=300)
    agents = [await fleet.agent() for _ in range(3)]
    change = await started(store, "cancel", status="Queued")

    async def runs(agent: Agent) -> None:
        for _ in range(8):
            for task in await agent.claim(batch=4):
                while (outcome := await agent.complete(task)) == "pending":  # the change has its row
                    pass
                assert outcome in {"ok", "cancelled"}

    await asyncio.gather(BulkChanges(store).step(fleet.term), *map(runs, agents))
    fleet.wait(PATIENCE_S)
    await BulkChanges(store).step(fleet.term)
    await fleet.settle()
    row, ends = await shown(store, change), await statuses(hand)
    assert (row["outcome"], row["refused"]) == ("done", 0)
    assert ends.keys() <= {"Cancelled", "Complete"}
    assert (sum(ends.values()), ends["Cancelled"]) == (300, row["changed"])
    assert await broken(hand) == {}


async def test_a_running_task_is_told_to_stop_and_its_cost_so_far_is_the_loss(
    fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow]
) -> None:
    """A waiting one costs nothing."""
    agent = await fleet.agent()
    await hand.execute("update workers set billing_since = %s", (fleet.now,))
    await fleet.submit(count=2)
    (task,) = await agent.claim()
    fleet.wait(100)
    preview = await store.preview(ANNA, "cancel", {"task_type": "t"})
    assert {(one["status"], one["tasks"], round(one["usd"], 3)) for one in preview["by"]} == {
        ("In Progress", 1, 0.1), ("Queued", 1, 0.0)
    }  # fmt: skip
    assert round(preview["usd"], 3) == 0.1
    change = await started(store, "cancel", status="In Progress")
    await BulkChanges(store).step(fleet.term)
    assert (await shown(store, change))["changed"] == 1
    assert (await fleet.task(task["id"]))["cancel_requested_at"] is not None


async def test_a_retry_costs_what_attempts_of_the_type_cost_on_average(
    fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow]
) -> None:
    """Within seven days. Without a figure it is unknown, and so is the sum."""
    await failed(fleet, hand, 3)
    for days, attempts, usd in ((1, 4, 2), (2, 4, 4), (9, 100, 1_000)):
        await hand.execute(
            "insert into orchestrator.usage (fleet, dimension, span, at, name, attempts, usd) "
            "values (%s, 'type', 'day', date_trunc('day', %s::timestamptz), 't', %s, %s)",
            (FLEET, fleet.now - timedelta(days=days), attempts, usd),
        )
    preview = await store.preview(ANNA, "retry", {"status": "Failed"})
    assert ([one["usd"] for one in preview["by"]], preview["usd"]) == ([2.25], 2.25)
    await failed(fleet, hand, 1, task_type="u")
    preview = await store.preview(ANNA, "retry", {"status": "Failed"})
    assert ([one["usd"] for one in preview["by"]], preview["usd"]) == ([2.25, None], None)


async def test_a_preview_and_a_step_are_bounded(
    fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow]
) -> None:
    """A preview says that there are more. Open tasks behind thousands that have ended are found in the first step."""
    (open_,) = await fleet.submit()
    await hand.execute(
        "insert into tasks (id, task_type, status, created_at) select gen_random_uuid(), 't', 'Failed', "
        "%s::timestamptz + n * interval '1 ms' from generate_series(1, 5100) n",
        (fleet.now,),
    )
    fleet.wait(60)
    preview = await store.preview(ANNA, "retry", {"status": "Failed"})
    assert (preview["tasks"], preview["looked"], preview["is_all"]) == (5_000, 5_000, False)
    preview = await store.preview(ANNA, "cancel", {"task_type": "t"})
    assert (preview["tasks"], preview["looked"], preview["is_all"]) == (1, 1, True)
    await started(store, "cancel", status="Queued")
    step = await store.step(fleet.term)
    assert (step["changed"], step["looked"], step["outcome"]) == (1, 1, "done")
    assert (await fleet.task(open_))["status"] == "Cancelled"
    await started(store, "retry", task_type="u")
    step = await store.step(fleet.term)
    assert (step["looked"], step["more"]) == (2_000, True)


async def test_ended_changes_go_with_the_audit_log(
    fleet: Fleet, store: TaskChangeStore, hand: AsyncConnection[DictRow]
) -> None:
    """An open one stays."""
    ended, open_ = await started(store, "cancel", task_type="t"), await started(store, "cancel", task_type="t")
    await store.step(fleet.term)
    assert (await shown(store, ended))["outcome"] == "done"
    fleet.wait(91 * 86_400)
    fleet.term = (await fleet.lead())["term"]
    await fleet.fleet("retention", p_days=None)
    assert [one["id"] for one in (await store.all(ANNA, 10))["changes"]] == [open_]
