"""Tokens of the API: known by their hash, ended by time or by hand, and noted in the audit log."""

from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.store import SqlStore
from orchestrator.core.api_tokens import TokenHolder, TokenScope, hash_of
from orchestrator.ports import BadArgument
from tests.db.conformance.builders import FLEET, Fleet

TOKEN = "gpo_" + "a" * 43


def row(name: str = "webapp", **changed: Any) -> dict[str, Any]:
    """A token, as the command line stores it."""
    plain = {"name": name, "hash": hash_of(TOKEN), "scopes": ["submit"], "pools": None, "tenant": None}
    return {**plain, "expires_at": None, **changed}


async def create(fleet: Fleet, **changed: Any) -> None:
    """Store one."""
    await fleet.call("fleet_token_create", p_fleet=FLEET, p_token=row(**changed), p_actor="cli:me")


async def use(fleet: Fleet, token: str = TOKEN, fleet_id: str = FLEET) -> dict[str, Any]:
    """A call with it."""
    return dict(await fleet.call("fleet_token_use", p_fleet=fleet_id, p_hash=hash_of(token)))


async def test_a_token_is_found_by_its_hash_with_its_restrictions(fleet: Fleet) -> None:
    """By nobody in another fleet. Without a token, the fleet has no API."""
    assert (await use(fleet))["any"] is False
    await create(fleet, scopes=["submit", "read"], pools=["big", "a"], tenant="acme")
    holder = TokenHolder.of((await use(fleet))["token"])
    assert holder == TokenHolder(
        "webapp", frozenset({TokenScope.SUBMIT, TokenScope.READ}), frozenset({"big", "a"}), "acme"
    )
    assert (await use(fleet, fleet_id="another"))["any"] is False
    wrong = await use(fleet, token="gpo_" + "b" * 43)
    assert (wrong["any"], wrong["token"]) == (True, None)


async def test_the_last_use_is_noted_by_the_minute(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """A row that is written by each call would be a bottleneck."""
    await create(fleet)

    async def version() -> Any:
        found = await (await hand.execute("select xmin::text as x, last_used_at from api_tokens")).fetchone()
        assert found is not None
        return found["x"], found["last_used_at"]

    await use(fleet)
    first = await version()
    assert first[1] == fleet.now.replace(second=0)
    fleet.wait(59)
    await use(fleet)
    assert await version() == first
    fleet.wait(1)
    await use(fleet)
    assert (await version())[1] == fleet.now


@pytest.mark.parametrize("how", ["expired", "revoked"])
async def test_a_token_ends(fleet: Fleet, how: str) -> None:
    """At its time, or at once by hand; its name stays used for 90 days."""
    await create(fleet, expires_at=fleet.now.replace(hour=23).isoformat() if how == "expired" else None)
    assert (await use(fleet))["token"] is not None
    if how == "expired":
        fleet.wait(11 * 3_600)
    else:
        revoke = {"p_fleet": FLEET, "p_name": "webapp", "p_actor": "cli:me"}
        outcomes = [(await fleet.call("fleet_token_revoke", **revoke))["outcome"] for _ in range(2)]
        assert outcomes == ["revoked", "already"]
    answer = await use(fleet)
    assert (answer["token"], answer["any"]) == (None, False)
    with pytest.raises(BadArgument, match="a name is used once"):
        await create(fleet, hash=hash_of("another"))
    fleet.wait(91 * 86_400)
    fleet.term = (await fleet.lead())["term"]
    await fleet.fleet("retention")
    await create(fleet)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "env:admin"},
        {"name": ""},
        {"scopes": []},
        {"scopes": ["root"]},
        {"pools": []},
        {"hash": TOKEN},
        {"tenant": ""},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"expires_at": "soon"},
        {"other": 1},
    ],
    ids=str,
)
async def test_a_token_that_cannot_be_one_is_refused(fleet: Fleet, wrong: dict[str, Any]) -> None:
    """The names of the tokens from the environment have a colon, which no row's has."""
    with pytest.raises(BadArgument):
        await create(fleet, **wrong)
    assert (await use(fleet))["any"] is False


async def test_the_audit_log_is_read_in_pages_and_bounded(fleet: Fleet) -> None:
    """90 days, and at most 100,000 entries."""
    store = SqlStore(fleet.db, FLEET)
    for number in range(5):
        await create(fleet, name=f"t{number}", hash=hash_of(str(number)), tenant="acme")
    first = await store.api.audit(limit=2)
    rest = await store.api.audit(before=first[-1]["id"])
    assert [entry["subject"] for entry in (*first, *rest)] == ["t4", "t3", "t2", "t1", "t0"]
    assert (first[0]["actor"], first[0]["action"]) == ("cli:me", "token.create")
    assert first[0]["detail"] == {"scopes": ["submit"], "tenant": "acme"}
    fleet.wait(91 * 86_400)
    fleet.term = (await fleet.lead())["term"]
    await fleet.fleet("retention")
    assert await store.api.audit() == []


async def test_an_audit_log_that_floods_keeps_its_newest_entries(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """A program in a loop must not fill the disk, and it removes nothing that another one or an operator did."""
    flood = """
        insert into audit_log (fleet, at, actor, action, subject)
        select 'default', %s, 'webapp', 'task.' || (array['submit', 'cancel', 'retry'])[1 + n %% 3], n::text
          from generate_series(1, 100010) n
    """
    note = "insert into audit_log (fleet, at, actor, action, subject) values ('default', %s, %s, %s, 'kept')"
    others = [
        ("ops", "token.create"),
        ("ops", "token.revoke"),
        ("ops", "pool.pause"),
        ("webapp", "worker.terminate"),
        ("webapp", "webhook.put"),
        ("other", "task.submit"),
        ("other", "task.cancel"),
    ]
    for actor, action in others:
        await hand.execute(note, (fleet.now, actor, action))
    await hand.execute(flood, (fleet.now,))
    await fleet.fleet("retention")
    count = "select count(*) as n, min(subject::int) as first from audit_log where subject <> 'kept'"
    kept = await (await hand.execute(count)).fetchone()
    assert kept == {"n": 100_000, "first": 11}
    rows = await (
        await hand.execute("select actor, action from audit_log where subject = 'kept' order by id")
    ).fetchall()
    assert [(row["actor"], row["action"]) for row in rows] == others
