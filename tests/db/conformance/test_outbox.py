"""Alerts in the outbox: a message is written once, with its alert, and is due until it was sent or given up."""

from collections.abc import Mapping
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.posting import ReceiverFailed, WebhookRefused
from orchestrator.adapters.webhook_store import WebhookStore
from orchestrator.leader_jobs.outbox import Outbox
from orchestrator.ports import NotLeader
from tests.db.conformance.builders import FLEET, Fleet
from tests.db.conformance.test_schedules import Clocked
from tests.db.conformance.test_webhooks import URL, ended
from tests.db.conformance.test_webhooks import take as take_of_tasks

URL_NAME = "ALERT_WEBHOOK_URL"
DAY_S = 86_400
OF_EARLIER = """
insert into outbox (fleet, kind, dedup_key, url_name, body, created_at, attempts, next_at, sent_at, failure)
select 'default', 'alert', text, 'ALERT_WEBHOOK_URL', jsonb_build_object('text', text), '2026-11-21 11:00Z', attempts,
       case when waits then '2026-11-21 12:00Z'::timestamptz end, case when text = 'sent' then now() end, failure
  from (values ('untried', 0, true, null), ('tried', 7, true, 'it answered 500'), ('sent', 1, false, null),
               ('lost', 1, false, 'it answered 404')) o (text, attempts, waits, failure);
insert into webhook_messages (event, task_id, url, host, body, created_at, give_up_at, next_at)
select 'task.failed', gen_random_uuid(), 'https://h/x', 'h', '{}', at, at + interval '1 day', at
  from (values ('2026-11-21 12:00Z'::timestamptz)) t (at)
"""
STATE = {"severity": "HIGH", "text": "a text"}


def alert(kind: str = "halted", subject: str = "default") -> dict[str, Any]:
    """A row of `alerts`."""
    return {"kind": kind, "subject": subject, **STATE}


def message(key: str) -> dict[str, Any]:
    """A message that is to be sent."""
    return {"dedup_key": key, "url_name": URL_NAME, "body": {"event": "opened", "text": key}}


async def note(fleet: Fleet, alerts: list[dict[str, Any]], *keys: str) -> int:
    """Write both; how many messages are new."""
    answer = await fleet.fleet("note_alerts", p_alerts=alerts, p_messages=[message(key) for key in keys])
    return int(answer["written"])


async def take(fleet: Fleet, limit: int = 10) -> list[dict[str, Any]]:
    """The messages that are due."""
    answer = await fleet.fleet(
        "messages_take", p_of_fleet=True, p_busy={}, p_per_host=10, p_limit=limit, p_lease_s=60, p_after=None
    )
    return list(answer["messages"])


async def close(fleet: Fleet, one: dict[str, Any], failure: str | None, retry_s: float | None) -> bool:
    """Write down the end of an attempt."""
    answer = await fleet.fleet("message_close", p_id=one["id"], p_error=failure, p_retry_s=retry_s)
    return bool(answer["closed"])


async def known(fleet: Fleet) -> dict[str, Any]:
    """What the leader reads."""
    return dict(await fleet.call("fleet_alerts", p_fleet=FLEET))


class Other(Fleet):
    """Another fleet of the same database."""

    async def fleet(self, function: str, /, **args: Any) -> Any:
        return await super().fleet(function, **args, p_fleet="other")


async def test_a_message_is_written_once_for_its_key(fleet: Fleet) -> None:
    """The alerts are those of the last call."""
    assert await note(fleet, [alert(), alert(subject="other")], "a", "b") == 2
    assert await note(fleet, [alert()], "a", "c") == 1
    told = await known(fleet)
    assert [(one["kind"], one["subject"], one["text"]) for one in told["alerts"]] == [("halted", "default", "a text")]
    assert (told["sent_1h"], told["unsent"]) == (3, 3)
    fleet.wait(3_601)
    assert (await known(fleet))["sent_1h"] == 0


async def test_a_message_is_due_again_if_its_leader_died(fleet: Fleet) -> None:
    """With the same id. Once it was sent, it is not due any more."""
    await note(fleet, [], "a")
    (first,) = await take(fleet)
    assert await take(fleet) == []
    fleet.wait(61)
    fleet.term = (await fleet.lead())["term"]
    (again,) = await take(fleet)
    assert (again["id"], again["attempts"], again["body"]) == (first["id"], 2, first["body"])
    assert (again["host"], again["url"]) == (URL_NAME, None)
    assert await close(fleet, again, None, None)
    assert not await close(fleet, again, "late news", 5)
    fleet.wait(600)
    assert await take(fleet) == []


async def test_a_failure_is_kept_and_repeated_or_given_up(fleet: Fleet) -> None:
    """The reason is shown either way."""
    await note(fleet, [], "a", "b")
    one, two = await take(fleet)
    await close(fleet, one, "it answered 500", 10)
    await close(fleet, two, "it answered 404" + "x" * 1_000, None)
    told = await known(fleet)
    assert (told["unsent"], told["last_failure"]["failure"][:12]) == (1, "it answered ")
    fleet.wait(11)
    assert [again["id"] for again in await take(fleet)] == [one["id"]]


async def test_the_leader_sends_repeats_and_gives_up(fleet: Fleet) -> None:
    """A refusal ends the attempts. After a failure the next one comes 5 s later, then 10 s, and so on."""
    answers = {"fine": None, "refused": WebhookRefused("it answered 404"), "busy": ReceiverFailed("it answered 503")}
    sent: list[str] = []

    async def send(one: Mapping[str, Any]) -> None:
        sent.append(one["body"]["text"])
        if error := answers[one["body"]["text"]]:
            raise error

    def clock() -> float:
        return fleet.now.timestamp()

    store = WebhookStore(Clocked(fleet), FLEET)  # type: ignore[arg-type]
    outbox = Outbox(store, send, clock, of_fleet=True)
    await note(fleet, [], *answers)
    for waited_s, count in ((0, 3), (4, 3), (1, 4), (9, 4), (1, 5), (19, 5), (1, 6)):
        fleet.wait(waited_s)
        await outbox.step(fleet.term)
        assert len(sent) == count, sent
    assert (sorted(sent[:3]), sent[3:]) == (sorted(answers), ["busy"] * 3)
    told = await known(fleet)
    assert (told["unsent"], told["last_failure"]["failure"][:12]) == (1, "it answered ")


async def test_a_call_takes_no_more_than_its_limit(fleet: Fleet) -> None:
    """The next one takes the others."""
    await note(fleet, [], "a", "b", "c")
    assert len(await take(fleet, limit=2)) == 2
    assert len(await take(fleet, limit=2)) == 1


async def test_a_fleet_does_not_send_the_messages_of_another(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """Alerts belong to the leader of their fleet, and are none of the messages that `webhooks` lists and repeats."""
    store = WebhookStore(Clocked(fleet), FLEET)  # type: ignore[arg-type]
    await note(fleet, [], "a", "b")
    await ended(fleet, hand, URL)
    (of_task,) = await take_of_tasks(fleet, store)
    one, two = await take(fleet)
    assert (of_task["event"], one["event"], two["event"]) == ("task.cancelled", "alert", "alert")
    await close(fleet, one, "it answered 404", None)
    fleet.wait(61)
    fleet.term = (await fleet.lead())["term"]
    other = Other(fleet.db, now=fleet.now)
    other.term = (await other.call("fleet_lead", p_fleet="other", p_holder="us", p_ttl_s=3600))["term"]
    assert await take(other) == []
    assert not await close(other, two, None, None)
    shown = await store.all()
    assert [message["id"] for message in shown["messages"]] == [of_task["id"]]
    assert shown["troubles"]["undeliverable"] == 0
    assert (await store.retry("cli:me", None), await store.retry("cli:me", one["id"])) == (0, 0)
    assert [again["id"] for again in await take(fleet)] == [two["id"]]


async def test_an_alert_that_could_not_be_sent_for_days_is_tried_for_a_day(fleet: Fleet) -> None:
    """No orchestrator ran, for example. A message about a task is given up then."""
    await note(fleet, [], "a")
    fleet.wait(3 * DAY_S)
    fleet.term = (await fleet.lead())["term"]
    (message,) = await take(fleet)
    await close(fleet, message, "it answered 500", 900)
    fleet.wait(900)
    (message,) = await take(fleet)
    await close(fleet, message, "it answered 500", DAY_S)
    assert (await known(fleet))["unsent"] == 0


async def test_no_row_about_an_alert_has_a_url(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """ALERT_WEBHOOK_URL is a secret; the table refuses it."""
    await note(fleet, [], "a")
    with pytest.raises(psycopg.errors.CheckViolation):
        await hand.execute("update webhook_messages set url = 'https://hooks.example.com/secret'")


async def test_an_earlier_leader_neither_writes_nor_sends(fleet: Fleet) -> None:
    """Its term has ended."""
    fleet.term -= 1
    with pytest.raises(NotLeader):
        await note(fleet, [alert()], "a")
    with pytest.raises(NotLeader):
        await take(fleet)


async def test_old_messages_are_deleted(fleet: Fleet) -> None:
    """A week after the end; one that nobody can send any more, after a month."""
    await note(fleet, [], "sent", "stuck")
    sent, _ = await take(fleet)
    await close(fleet, sent, None, None)

    async def again() -> int:
        await fleet.fleet("retention")
        return await note(fleet, [], "sent", "stuck")  # a key is free once its row is gone

    assert await again() == 0
    for days, gone in ((8, 1), (24, 1)):  # first the sent one, then the other
        fleet.wait(days * 86_400)
        fleet.term = (await fleet.lead())["term"]
        assert await again() == gone
