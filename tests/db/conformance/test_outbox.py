"""The outbox: a message is written once, with the state of its alert, and is due until it was sent or given up."""

from typing import Any

import pytest

from orchestrator.ports import NotLeader
from tests.db.conformance.builders import FLEET, Fleet

URL_NAME = "ALERT_WEBHOOK_URL"
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
    answer = await fleet.fleet("outbox_take", p_url_name=URL_NAME, p_limit=limit, p_lease_s=60)
    return list(answer["messages"])


async def close(fleet: Fleet, one: dict[str, Any], failure: str | None, retry_s: float | None) -> bool:
    """Write down the end of an attempt."""
    answer = await fleet.fleet("outbox_close", p_id=one["id"], p_error=failure, p_retry_s=retry_s)
    return bool(answer["closed"])


async def known(fleet: Fleet) -> dict[str, Any]:
    """What the leader reads."""
    return dict(await fleet.call("fleet_alerts", p_fleet=FLEET))


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


async def test_other_addresses_and_limits_are_kept_apart(fleet: Fleet) -> None:
    """Messages of other kinds share the table."""
    await note(fleet, [], "a", "b", "c")
    nobody = await fleet.fleet("outbox_take", p_url_name="ANOTHER", p_limit=10, p_lease_s=60)
    assert nobody["messages"] == []
    assert len(await take(fleet, limit=2)) == 2
    assert len(await take(fleet, limit=2)) == 1


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
