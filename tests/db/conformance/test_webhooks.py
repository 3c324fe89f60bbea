"""Webhook messages: written by whatever ends a task, due until they were sent or given up."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.webhook_store import WebhookStore
from orchestrator.leader_jobs.outbox import AT_ONCE, ROUND, Outbox
from orchestrator.ports import BadArgument, NotLeader
from tests.db.conformance.builders import FLEET, Fleet, rows_read
from tests.db.conformance.test_schedules import Clocked

URL = "https://hooks.example.com/a-secret-path?key=1"
DAY_S = 86_400
Hand = AsyncConnection[DictRow]


@pytest.fixture
def store(fleet: Fleet) -> WebhookStore:
    """The rows, at the fleet's time."""
    return WebhookStore(Clocked(fleet), FLEET)  # type: ignore[arg-type]


async def take(fleet: Fleet, store: WebhookStore, *, limit: int = 100, **busy: int) -> list[dict[str, Any]]:
    """What is due."""
    messages, _ = await store.take(fleet.term, busy, {}, per_host=4, per_owner=64, limit=limit, lease_s=60, after=None)
    return [dict(one) for one in messages]


async def written(hand: Hand) -> list[tuple[str, str | None]]:
    """The events with the webhook that asked for them."""
    rows = await (await hand.execute("select event, webhook from webhook_messages order by created_at")).fetchall()
    return [(row["event"], row["webhook"]) for row in rows]


async def test_a_completion_writes_its_message_in_the_same_transaction(
    fleet: Fleet, store: WebhookStore, hand: Hand
) -> None:
    """A completion that is rolled back leaves no message; one that holds leaves one, with what the task became."""
    await fleet.submit(webhook_url=URL, tenant="acme", labels={"a": "b"})
    agent = await fleet.agent()
    (claimed,) = await agent.claim()
    async with hand.transaction(force_rollback=True):
        await hand.execute("update tasks set status = 'Complete'")
        assert await written(hand) == [("task.completed", None)]
    assert await written(hand) == []
    assert await agent.complete(claimed, p_result_data={"n": 1}) == "ok"
    (message,) = await take(fleet, store)
    told = message["body"]["data"]
    assert (message["url"], message["host"], message["event"]) == (URL, "hooks.example.com", "task.completed")
    assert (told["id"], told["status"], told["result_data"], told["tenant"], told["labels"], told["attempts"]) == (
        claimed["id"], "Complete", {"n": 1}, "acme", {"a": "b"}, 1,
    )  # fmt: skip
    assert await agent.complete(claimed, p_result_data={"n": 1}) == "already"
    assert len(await written(hand)) == 1


@pytest.mark.parametrize(
    ("statement", "event"),
    [
        ("update tasks set status = 'Complete'", "task.completed"),
        ("update tasks set status = 'Failed', error_message = 'by hand'", "task.failed"),
        ("update tasks set status = 'Cancelled'", "task.cancelled"),
    ],
)
async def test_a_statement_of_a_user_sends_too(fleet: Fleet, hand: Hand, statement: str, event: str) -> None:
    """To the task's address, and to those of its type and of every type. Each end sends once; a retry ends again."""
    for name, task_type in (("mine", "t"), ("every", None), ("other", "u")):
        await WebhookStore(fleet.db, FLEET).put("cli:me", {"name": name, "task_type": task_type, "url": URL})
    await fleet.submit(webhook_url=URL)
    await hand.execute(statement)
    await hand.execute("update tasks set priority = 7")
    assert sorted(map(str, await written(hand))) == sorted(map(str, [(event, None), (event, "mine"), (event, "every")]))
    await hand.execute("update tasks set status = 'Queued'")
    await hand.execute(statement)
    assert len(await written(hand)) == 6


async def test_tasks_that_fail_with_their_dependency_are_reported(fleet: Fleet, hand: Hand) -> None:
    """Their end is written by the statement that settles them."""
    await fleet.submit({}, {"depends_on": ["#0"], "webhook_url": URL}, {"depends_on": ["#1"], "webhook_url": URL})
    await hand.execute("update tasks set status = 'Failed' where depends_on = '{}'")
    assert await written(hand) == [("task.failed", None)] * 2


async def test_a_large_result_is_left_out(fleet: Fleet, hand: Hand) -> None:
    """The completion is accepted; the message says that the result is to be read from the API."""
    await fleet.submit(webhook_url=URL)
    await hand.execute(
        "update tasks set status = 'Complete', result_data = jsonb_build_object('x', repeat('y', 1000000)),"
        " error_message = repeat('z', 1000000)"
    )
    (message,) = await (await hand.execute("select body->'data' as told from webhook_messages")).fetchall()
    assert (message["told"]["result_data"], message["told"]["result_left_out"]) == (None, True)
    assert len(message["told"]["error_message"]) == 2000


@pytest.mark.parametrize(
    "url",
    ["ftp://example.com/", "https:///x", "https://user:pass@example.com/", "https://example.com/\u00e9", "javascript:1",
     "https://example.com/#here", "https://example.com\\@evil/", "https://exa mple.com/", "https://e/" + "x" * 2000],
)  # fmt: skip
async def test_an_address_that_cannot_be_one_is_refused(
    fleet: Fleet, store: WebhookStore, hand: Hand, url: str
) -> None:
    """At submission, in a write by hand, and in the table. No refusal quotes it."""
    attempts = (
        fleet.submit(webhook_url=url),
        store.put("cli:me", {"name": "mine", "task_type": "t", "url": url}),
    )
    for attempt in attempts:
        with pytest.raises(BadArgument) as refused:
            await attempt
        assert url not in str(refused.value)
    with pytest.raises(Exception, match="webhook_url is not valid"):
        await hand.execute("insert into tasks (task_type, webhook_url) values ('t', %s)", (url,))


async def test_a_message_is_due_until_it_was_sent(fleet: Fleet, store: WebhookStore, hand: Hand) -> None:
    """A leader that dies leaves it to the next one, with the same id. A leader of an earlier term takes nothing."""
    await ended(fleet, hand, URL)
    (first,) = await take(fleet, store)
    assert await take(fleet, store) == []
    fleet.wait(61)
    fleet.term = (await fleet.lead())["term"]
    (again,) = await take(fleet, store)
    assert (again["id"], again["attempts"], again["body"]) == (first["id"], 2, first["body"])
    await store.close(fleet.term, again["id"], "it answered 500", 10)
    fleet.wait(11)
    (third,) = await take(fleet, store)
    await store.close(fleet.term, third["id"], None, None)
    fleet.wait(61)
    assert await take(fleet, store) == []
    (shown,) = (await store.all(task_id=third["body"]["data"]["id"]))["messages"]
    assert (shown["state"], shown["attempts"], "url" in shown) == ("sent", 3, False)
    fleet.term -= 1
    with pytest.raises(NotLeader):
        await take(fleet, store)


async def test_after_a_day_it_is_undeliverable_and_can_be_retried(
    fleet: Fleet, store: WebhookStore, hand: Hand
) -> None:
    """Health hears of it for a day."""
    await ended(fleet, hand, URL)
    (message,) = await take(fleet, store)
    await store.close(fleet.term, message["id"], "it answered 500", 3600)
    fleet.wait(DAY_S + 1)
    fleet.term = (await fleet.lead())["term"]
    assert await take(fleet, store) == []
    troubles = (await fleet.call("fleet_task_troubles", p_fleet=FLEET, p_handled=[]))["webhooks"]
    assert troubles == {
        "undeliverable": 1, "late": 0, "host": "hooks.example.com", "failure": "it answered 500",
    }  # fmt: skip
    (shown,) = (await store.all(state="undeliverable"))["messages"]
    assert (shown["id"], shown["failure"]) == (message["id"], "it answered 500")
    assert await store.retry("cli:me", None) == 1
    assert [one["id"] for one in await take(fleet, store)] == [message["id"]]
    await store.close(fleet.term, message["id"], "it answered 404", None)
    assert await store.retry("cli:me", message["id"]) == 1
    actions = (await fleet.call("fleet_audit", p_fleet=FLEET, p_before=None, p_limit=10))["entries"]
    assert [one["action"] for one in actions] == ["webhook.retry", "webhook.retry"]


async def test_a_host_with_much_to_get_leaves_room_for_the_others(
    fleet: Fleet, store: WebhookStore, hand: Hand
) -> None:
    """Four at once for each host, less those that are being sent; a call goes on where the last one stopped."""
    for host in ("a.example", "b.example", "c.example"):
        await ended(fleet, hand, f"https://{host}/", count=10)

    async def hosts(limit: int, after: str | None, **busy: int) -> tuple[list[str], str | None]:
        found, following = await store.take(
            fleet.term, busy, {}, per_host=4, per_owner=64, limit=limit, lease_s=60, after=after
        )
        return sorted(one["host"] for one in found), following

    first, after = await hosts(6, None, **{"a.example": 3})
    assert first == ["a.example"] + ["b.example"] * 4 + ["c.example"]
    assert await hosts(100, after) == ([], None)
    first, after = await hosts(2, None)
    assert first == ["a.example"] * 2
    assert await hosts(100, after) == (["b.example"] * 4 + ["c.example"] * 4, None)


async def test_an_owner_with_many_slow_hosts_delays_no_other(fleet: Fleet, hand: Hand) -> None:
    """Other tenants, tasks without a tenant and the addresses of `webhooks` have their messages sent meanwhile."""
    store = WebhookStore(Clocked(fleet), FLEET)  # type: ignore[arg-type]
    await store.put("cli:me", {"name": "every", "task_type": "t", "url": "https://zz-every.example/"})
    for tenant in ("a-slow", "m-slow"):
        urls = [f"https://{tenant}-{number:03}.example/" for number in range(AT_ONCE + ROUND)]
        for task_id in await fleet.submit(*({"webhook_url": url, "tenant": tenant} for url in urls)):
            await fleet.call("task_cancel", p_id=task_id)
    await ended(fleet, hand, "https://zz-other.example/", tenant="other")
    await ended(fleet, hand, "https://zz-none.example/")
    others = {"zz-every.example", "zz-other.example", "zz-none.example"}
    all_sent = asyncio.Event()

    async def send(message: Mapping[str, Any]) -> None:
        others.discard(message["host"])
        if not others:
            all_sent.set()
        if "slow" in message["host"]:
            await all_sent.wait()

    outbox = Outbox(store, send, fleet.now.timestamp)
    async with asyncio.timeout(60):
        await outbox.step(fleet.term)


async def test_owners_of_messages_to_one_host_take_turns(fleet: Fleet, hand: Hand) -> None:
    """The one that has little for it does not wait for the one that has much."""
    store, order = WebhookStore(Clocked(fleet), FLEET), list[str]()  # type: ignore[arg-type]
    await ended(fleet, hand, URL, count=40, tenant="much")
    for tenant in ("a", "z"):
        await ended(fleet, hand, URL, tenant=tenant)

    async def send(message: Mapping[str, Any]) -> None:
        order.append(message["body"]["data"]["tenant"])

    await Outbox(store, send, fleet.now.timestamp).step(fleet.term)
    assert len(order) == 42
    assert {"a", "z"} <= set(order[:20]), order


async def test_a_removed_address_gets_nothing_and_a_changed_one_gets_all(
    fleet: Fleet, store: WebhookStore, hand: Hand
) -> None:
    """What waits goes to the address of today."""
    for name in ("one", "two"):
        await store.put("cli:me", {"name": name, "task_type": "t", "url": URL})
    await ended(fleet, hand, None)
    assert await store.remove("cli:me", "one")
    assert not await store.remove("cli:me", "one")
    assert not await store.put("cli:me", {"name": "two", "task_type": "t", "url": "https://new.example/"})
    assert [one["url"] for one in await take(fleet, store)] == ["https://new.example/"]
    with pytest.raises(BadArgument):
        await store.put("cli:me", {"name": "Not a name", "task_type": None, "url": URL})


async def test_progress_is_throttled_and_dropped_at_the_end(fleet: Fleet, store: WebhookStore, hand: Hand) -> None:
    """One message in ten seconds at most, only if it changed; none for a task that did not ask."""
    await fleet.submit({"webhook_url": URL, "webhook_progress": True}, {"webhook_url": URL})
    agent = await fleet.agent()
    tasks = await agent.claim(batch=2)

    async def told(percent: int) -> int:
        await agent.beat(*({"id": one["id"], "attempt": one["attempt"], "progress": percent} for one in tasks))
        return await store.write_progress(fleet.term, 10)

    assert await told(10) == 1
    assert await told(20) == 0  # the first one waits
    (message,) = await take(fleet, store)
    assert (message["event"], message["body"]["data"]["progress"]) == ("task.progress", 10)
    await store.close(fleet.term, message["id"], None, None)
    assert await told(30) == 0
    fleet.wait(10)
    assert await told(30) == 1
    for one in tasks:
        await agent.complete(one)
    await store.write_progress(fleet.term, 10)
    assert [one["event"] for one in await take(fleet, store)] == ["task.completed"] * 2


async def test_old_messages_are_deleted(fleet: Fleet, store: WebhookStore, hand: Hand) -> None:
    """A day after they were sent; undeliverable ones after a month."""
    await ended(fleet, hand, URL, count=2)
    sent, lost = await take(fleet, store)
    await store.close(fleet.term, sent["id"], None, None)
    await store.close(fleet.term, lost["id"], "gone", None)
    for days, left in ((0, 2), (2, 1), (30, 0)):
        fleet.wait(days * DAY_S)
        fleet.term = (await fleet.lead())["term"]
        await fleet.fleet("retention")
        assert len(await written(hand)) == left


async def test_the_cost_of_a_call_does_not_grow_with_the_messages(fleet: Fleet, hand: Hand) -> None:
    """A connection plans each call once, and the tables may have been empty then."""
    await hand.execute("insert into webhooks values ('every', null, %s, false, now())", (URL,))

    async def calls() -> dict[str, int]:
        """How many rows each call reads."""
        read = {}
        task_id = (await fleet.submit(webhook_url=URL))[0]
        arguments = f"p_fleet => '{FLEET}', p_term => {fleet.term}, "
        limits = "p_busy => '{}', p_per_host => 4, p_limit => 64, p_lease_s => 60, p_after => null"
        for call in (
            f"fleet_messages_take({arguments} p_of_fleet => false, {limits})",
            f"fleet_messages_take({arguments} p_of_fleet => true, {limits})",
            f"fleet_alerts('{FLEET}')",
            f"fleet_message_close({arguments} p_id => gen_random_uuid(), p_error => null, p_retry_s => null)",
            f"fleet_webhooks_progress({arguments} p_every_s => 10)",
            f"task_cancel('{task_id}')",
            "internal_webhook_troubles(now() - interval '1 year')",
        ):
            async with hand.transaction():
                before = [await rows_read(hand, name) for name in ("webhook_messages", "tasks")]
                await hand.execute(f"select {call}")
                after = [await rows_read(hand, name) for name in ("webhook_messages", "tasks")]
                read[call] = max(late - early for early, late in zip(before, after, strict=True))
        return read

    for _ in range(8):
        await calls()
        await hand.execute("analyze webhook_messages, tasks")  # as autovacuum may at any time
    await hand.execute(
        "insert into webhook_messages (event, task_id, url, host, body, created_at, give_up_at, next_at, sent_at)"
        " select 'task.failed', gen_random_uuid(), %s, 'h' || n %% 3, '{}', now(), now() + interval '1 day',"
        " case when n %% 2 = 0 then now() end, case when n %% 2 = 1 then now() end from generate_series(1, 60000) n",
        (URL,),
    )
    await hand.execute(
        "insert into webhook_messages (fleet, event, dedup_key, host, body, created_at, give_up_at, next_at)"
        " select 'fleet ' || n % 3, 'alert', n, 'U', '{}', now(), now(), now() from generate_series(1, 20000) n"
    )
    await hand.execute("insert into tasks (task_type, pool) select 't', 'elsewhere' from generate_series(1, 20000)")
    read = await calls()
    assert max(read.values()) < 300, read


async def ended(fleet: Fleet, hand: Hand, url: str | None, count: int = 1, **fields: str) -> None:
    """Tasks that have just ended, with the fleet's time in their messages."""
    for task_id in await fleet.submit(count=count, **fields, **({"webhook_url": url} if url else {})):
        await fleet.call("task_cancel", p_id=task_id)
