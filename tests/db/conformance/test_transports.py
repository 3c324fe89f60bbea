"""Two transports, one truth: the same values, errors and events, whatever happens on the way."""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import DictRow

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.supabase import SupabaseDb
from orchestrator.ports import BadArgument, DatabaseAuth, Db, LostRace, NotLeader, SchemaMismatch, Unavailable
from orchestrator.web.errors import from_port_error
from testbed.services.postgrest import EmbeddedPostgrest
from testbed.tcp_proxy import Break, TcpProxy
from tests.db.conformance.builders import FLEET, SOON_S, Ear, Fleet

SCHEMA_CACHE = {
    "code": "PGRST002",
    "details": None,
    "hint": None,
    "message": "Could not query the database for the schema cache. Retrying.",
}


def answer(status: str, body: str, kind: str = "application/json") -> bytes:
    """A whole HTTP response that ends its connection."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body.encode())}\r\nConnection: close\r\n"
    return f"{head}\r\n{body}".encode()


BURST = answer("503 Service Unavailable", json.dumps(SCHEMA_CACHE))
HTML = answer("502 Bad Gateway", "<html><h1>502 Bad Gateway</h1></html>", "text/html")


@pytest.mark.parametrize("value", [0, -1, 2**62, 1.5, math.pi, True, "7", None])
async def test_numbers_of_any_python_type_fit_the_signature(fleet: Fleet, value: float | str | bool | None) -> None:
    """Or are refused as a bad argument; never as a function that does not exist."""
    try:
        await fleet.call("fleet_lead", p_fleet="default", p_holder="us", p_ttl_s=value)
    except BadArgument:
        assert value in {0, -1, 2**62, True, None}


@pytest.mark.parametrize("name", ["x; drop table tasks", 'x"', "", "X", "fn()", "a.b", "../rpc/x", "x?limit=1"])
async def test_an_invalid_name_never_reaches_the_server(db: Db, name: str) -> None:
    """Neither as a function nor as an argument."""
    with pytest.raises(ValueError, match="not the name"):
        await db.call(name)
    with pytest.raises(ValueError, match="not the name"):
        await db.call("fleet_describe", **{name: 1})


async def test_an_unknown_function_or_argument_is_a_mismatch_of_schemas(db: Db) -> None:
    """After a while in which a schema cache could have caught up."""
    both = (db.call("fleet_levitate", p_fleet="default"), db.call("fleet_decisions", p_fleet="default", p_colour="red"))
    errors = await asyncio.gather(*both, return_exceptions=True)
    assert [type(error) for error in errors] == [SchemaMismatch, SchemaMismatch]


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"n": None},
        2**53 + 1,
        2**70,
        -(2**63),
        0.1,
        1e15,
        "ü \u2028 \U0001f600 \\ ' \" % ? $1",
        [],
        {},
        [[[{"a": [None, True, "null"]}]]],
        {"": 1, "Ä": 2},
    ],
)
async def test_a_value_is_read_as_it_was_written(fleet: Fleet, value: Any) -> None:
    """Big integers to the last digit, and NULLs inside."""
    (task_id,) = await fleet.submit({"params": {"value": value}})
    assert (await fleet.task(task_id))["params"] == {"value": value}


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 11, 21, 12, 0, 0, 123456, UTC),
        datetime(2026, 11, 21, 23, 59, 59, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(8999, 12, 31, 23, 59, 59, 999999, UTC),
    ],
)
async def test_a_time_is_read_as_the_same_moment(fleet: Fleet, moment: datetime) -> None:
    """To the microsecond, whatever zone it was said in."""
    (task_id,) = await fleet.submit({"run_after": moment})
    assert datetime.fromisoformat((await fleet.task(task_id))["run_after"]) == moment


async def test_a_big_number_fits_a_bigint(fleet: Fleet) -> None:
    """As an argument, and in what comes back."""
    agent = await fleet.agent()
    args = {"p_worker_id": agent.id, "p_boot_id": "b", "p_stream": "agent", "p_first": 0, "p_last": 2**62 + 1}
    await fleet.fleet("log_begin", **args, p_seq=0, p_sha256="0" * 64, p_key="k")
    answer = await fleet.call("fleet_log_pieces", p_fleet=FLEET, p_worker_id=agent.id)
    assert answer["pieces"][0]["last"] == 2**62 + 1


@pytest.mark.parametrize("value", [math.nan, math.inf, "\ud800", "a\0b"])
async def test_a_value_that_jsonb_cannot_hold_is_a_bad_argument(fleet: Fleet, value: Any) -> None:
    """And nothing of it is stored."""
    with pytest.raises(BadArgument):
        await fleet.submit({"params": {"value": value}})


async def test_no_row_is_cut_off(fleet: Fleet) -> None:
    """PostgREST's cap of a thousand rows counts rows, and a function of ours answers with one."""
    await fleet.submit(count=1001)
    answer = await fleet.call("task_list", p_status=None, p_task_type=None, p_limit=5000)
    assert len(answer["tasks"]) == 1001


async def test_a_lost_race_and_a_stale_term_are_different_errors(fleet: Fleet) -> None:
    """Own SQLSTATEs, with what and why."""
    worker_id = await fleet.spawn()
    from_active = {"p_worker_id": worker_id, "p_from": ["active"], "p_to": None, "p_stage": None, "p_reason": "r"}
    with pytest.raises(LostRace, match="spawning"):
        await fleet.fleet("move", **from_active, p_fields={})
    with pytest.raises(NotLeader):
        await fleet.fleet("move", **from_active, p_fields={}, p_term=fleet.term - 1)


async def test_many_calls_at_once_are_all_answered(fleet: Fleet) -> None:
    """More than there are connections; each task once."""
    ids = await asyncio.gather(*(fleet.submit({"params": {"n": n}}) for n in range(60)))
    assert len({task_id for (task_id,) in ids}) == 60


@pytest.fixture(params=["direct", "supabase"])
async def through(request: pytest.FixtureRequest, database: str, postgrest: EmbeddedPostgrest) -> AsyncIterator[Any]:
    """A relay to the server, and a transport that goes through it."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[TcpProxy, Db]]:
        db: Db
        if request.param == "direct":
            async with TcpProxy(int(conninfo_to_dict(database)["port"] or 0)) as relay:
                db = await PostgresDb.open(make_conninfo(database, port=relay.port), pool_size=1, call_timeout_s=5)
                yield relay, db
                await db.close()
        else:
            async with TcpProxy(urlsplit(postgrest.url).port or 0) as relay:
                url = f"http://127.0.0.1:{relay.port}"
                db = await SupabaseDb.open(url, postgrest.secret_key, pool_size=1, call_timeout_s=5)
                yield relay, db
                await db.close()

    async with opened() as pair:
        yield pair


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_cut_connection_is_unavailable_and_the_repeat_finds_out(
    through: tuple[TcpProxy, Db], cut: Literal["before", "after"], hand: AsyncConnection[DictRow]
) -> None:
    """It may have been done, or not; the caller asks again by the same name, and it is there once."""
    relay, db = through
    fleet = Fleet(db)
    fleet.term = (await fleet.lead())["term"]
    relay.breaks = Break(b"", cut == "after")
    with pytest.raises(Unavailable):
        await fleet.spawn("gpu-1")
    found = await (await hand.execute("select count(*) as n from workers")).fetchone()
    assert found == {"n": 0 if cut == "before" else 1}
    again = await until_answered(fleet, "spawn", p_worker={"id": "gpu-1", "gpu_type": "GPU"})
    assert again == {"created": cut == "before"}
    assert await (await hand.execute("select count(*) as n from workers")).fetchone() == {"n": 1}


async def until_answered(fleet: Fleet, function: str, **args: Any) -> Any:
    """The answer, once there is one: a pool may have more connections that were cut."""
    async with asyncio.timeout(SOON_S):
        while True:
            with suppress(Unavailable):
                return await fleet.fleet(function, **args)


@pytest.fixture
async def moody(postgrest: EmbeddedPostgrest, database: str) -> AsyncIterator[tuple[TcpProxy, SupabaseDb]]:
    """PostgREST behind a relay that can answer in its place."""
    async with TcpProxy(urlsplit(postgrest.url).port or 0) as relay:
        url = f"http://127.0.0.1:{relay.port}"
        db = await SupabaseDb.open(url, postgrest.service_role_key, call_timeout_s=5, poll_s=0.05)
        yield relay, db
        await db.close()


async def test_a_call_waits_until_a_burst_of_503_is_over(moody: tuple[TcpProxy, SupabaseDb]) -> None:
    """PGRST002 says that nothing was done: the call is made again, and counts once."""
    relay, db = moody
    relay.canned = [BURST] * 3
    assert (await db.call("fleet_lead", p_fleet=FLEET, p_holder="us", p_ttl_s=60))["leader"]
    assert relay.canned == []


async def test_503_for_ever_is_unavailable_in_time(moody: tuple[TcpProxy, SupabaseDb]) -> None:
    """With PostgREST's own words."""
    relay, db = moody
    relay.canned = [BURST] * 100
    with pytest.raises(Unavailable, match="PGRST002"):
        await db.call("fleet_describe")
    assert 3 <= 100 - len(relay.canned) < 10  # of them were heard in that time


async def test_a_page_of_html_is_unavailable_and_not_tried_again(moody: tuple[TcpProxy, SupabaseDb]) -> None:
    """A proxy's 502 says nothing about what was done; with a status of 200 it is no answer either."""
    relay, db = moody
    for page in (HTML, answer("200 OK", "<html>", "text/html"), answer("504 Gateway Timeout", "")):
        relay.canned = [page] * 2
        with pytest.raises(Unavailable):
            await db.call("fleet_describe")
        assert len(relay.canned) == 1


async def test_a_stale_schema_cache_catches_up(
    db: Db, postgrest: EmbeddedPostgrest, hand: AsyncConnection[DictRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that a migration has just made is called until PostgREST knows of it."""
    monkeypatch.setattr("orchestrator.adapters.supabase.AGAIN_AFTER_S", (0.1,) + (1.0,) * 10)
    monkeypatch.setattr("orchestrator.adapters.supabase.RELOADS", 10)
    await hand.execute(
        "create function fleet_newborn() returns jsonb language sql as 'select jsonb_build_object(1, 1)'"
    )
    try:
        call = asyncio.create_task(db.call("fleet_newborn"))
        await asyncio.wait({call}, timeout=0.2)
        await hand.execute("notify pgrst, 'reload schema'")
        assert await call == {"1": 1}
    finally:
        await hand.execute("drop function fleet_newborn()")
        await hand.execute("notify pgrst, 'reload schema'")


async def test_a_statement_that_takes_too_long_is_given_up(
    database: str, postgrest: EmbeddedPostgrest, hand: AsyncConnection[DictRow]
) -> None:
    """By the role's own limit, which undoes it: Unavailable, and the next call is served."""
    db = await SupabaseDb.open(postgrest.project_url, postgrest.secret_key)
    try:
        await hand.execute("alter role service_role set statement_timeout = '200ms'")
        await hand.execute("notify pgrst, 'reload config'")
        async with await AsyncConnection.connect(database) as blocker:
            await blocker.execute("lock table fleet_lease")
            async with asyncio.timeout(SOON_S):
                with pytest.raises(Unavailable, match="57014"):
                    await db.call("fleet_lead", p_fleet=FLEET, p_holder="us", p_ttl_s=15)
            await blocker.rollback()
        async with asyncio.timeout(SOON_S):
            while True:
                with suppress(Unavailable):  # as long as the limit is this short, a busy machine may pass it
                    assert (await db.call("fleet_lead", p_fleet=FLEET, p_holder="us", p_ttl_s=15))["leader"]
                    break
    finally:
        await hand.execute("alter role service_role reset statement_timeout")
        await hand.execute("notify pgrst, 'reload config'")
        await db.close()


async def test_a_connection_outlives_the_idle_session_timeout_of_its_role(
    database: str, hand: AsyncConnection[DictRow]
) -> None:
    """Otherwise the first call after each pause would fail, and the lease with it."""
    db = await PostgresDb.open(make_conninfo(database, options="-c idle_session_timeout=20ms"), pool_size=1)
    try:
        await db.call("fleet_describe")
        await hand.execute("select pg_sleep(0.3)")
        await db.call("fleet_describe")
    finally:
        await db.close()


async def test_a_call_has_a_deadline(database: str, postgrest: EmbeddedPostgrest) -> None:
    """Whatever the server does."""
    db = await SupabaseDb.open(postgrest.project_url, postgrest.secret_key, call_timeout_s=0.3)
    async with await AsyncConnection.connect(database) as blocker:
        await blocker.execute("lock table fleet_lease")
        with pytest.raises(Unavailable, match="no answer within"):
            await db.call("fleet_lead", p_fleet=FLEET, p_holder="us", p_ttl_s=15)
        await blocker.rollback()
    await db.close()


KEYS: dict[str, Callable[[EmbeddedPostgrest], str]] = {
    "JWT expired": lambda postgrest: postgrest.issue("service_role", ttl_s=-3600),
    "Invalid API key": lambda _: "sb_secret_of_another_project",
    "permission denied": lambda postgrest: postgrest.publishable_key,
    "permission denied for": lambda postgrest: postgrest.anon_key,
}
LOGINS = {  # what of a connection string is wrong
    'role "nobody" does not exist': {"user": "nobody"},
    'database "none" does not exist': {"dbname": "none"},
}


@pytest.mark.parametrize(("transport", "why"), [*(("supabase", why) for why in KEYS), *(("direct", x) for x in LOGINS)])
async def test_a_key_that_does_not_open_is_said_to_be_the_key(
    postgrest: EmbeddedPostgrest, database: str, transport: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expired, unknown, or the public one: named in time, with the fix, without the key; agents try again."""
    monkeypatch.setattr("orchestrator.adapters.postgres.POOL_SHARE", 0.1)  # the rest is for the look at the cause
    db: PostgresDb | SupabaseDb
    if transport == "direct":
        key, name = "hunter2hunter2", "DATABASE_URL"
        url = make_conninfo(database, password=key, **LOGINS[why])
        db = await PostgresDb.open(url, pool_size=1, call_timeout_s=5)
    else:
        key, name = KEYS[why](postgrest), "SUPABASE_SERVICE_ROLE_KEY"
        db = await SupabaseDb.open(postgrest.project_url, key)
    async with asyncio.timeout(SOON_S):
        both = await asyncio.gather(*(db.call("fleet_describe") for _ in range(2)), return_exceptions=True)
    await db.close()
    for error in both:
        assert isinstance(error, DatabaseAuth)
        assert re.search(f"fleet_describe: .*{why}.*; fix: set {name}", str(error))
        assert key not in str(error)
        assert transport == "supabase" or from_port_error(error, "worker_claim").status == 503


async def test_both_kinds_of_key_open(postgrest: EmbeddedPostgrest, database: str) -> None:
    """The new secret key and the legacy JWT."""
    for key in (postgrest.secret_key, postgrest.service_role_key):
        db = await SupabaseDb.open(postgrest.project_url, key)
        assert (await db.call("fleet_describe"))["functions"]
        await db.close()


async def test_a_project_that_never_was_is_unavailable() -> None:
    """Opening does not wait; calling says so in time."""
    db = await SupabaseDb.open("http://127.0.0.1:1", "sb_secret_x", call_timeout_s=3)  # during a wait
    with pytest.raises(Unavailable, match="fleet_describe: no connection"):
        await db.call("fleet_describe")
    await db.close()


async def test_polling_reports_changes_too(db: Db, fleet: Fleet) -> None:
    """A spawn, an agent's first sign of life, a promotion, a request to end, tasks, a lease given back."""
    fleet.now = datetime.now(UTC)  # whether a lease is over, the poll tells by the database's clock
    fleet.term = (await fleet.lead())["term"]
    ear = Ear(db)
    await ear.until(("connected", ""))
    agent = await fleet.agent()
    await ear.until(("orchestrator_fleet", agent.id))
    await fleet.submit({"pool": "here"})
    await ear.until(("orchestrator_tasks", "here"))
    args = {"p_fleet": "default", "p_worker_id": agent.id, "p_reason": "r", "p_now_not_drain": False}
    await fleet.call("fleet_request_termination", **args)
    await ear.until(("orchestrator_fleet", agent.id))
    await fleet.call("fleet_resign", p_fleet="default", p_holder="us", p_term=fleet.term)
    await ear.until(("orchestrator_fleet", ""))
    await ear.close()


async def test_a_listener_is_notified_after_a_gap(moody: tuple[TcpProxy, SupabaseDb]) -> None:
    """It may have missed something while there was no answer."""
    relay, db = moody
    ear = Ear(db)
    await ear.until(("connected", ""))
    relay.canned = [HTML]
    await ear.until(("connected", ""))
    await ear.close()


# Of PostgREST 12, which the suite runs, and of 14, which Supabase hosts.
SAID = {
    "an expired key": (DatabaseAuth, [(401, "PGRST301"), (401, "PGRST303")]),
    "a table that is not there": (SchemaMismatch, [(404, "42P01"), (404, "PGRST205")]),
    "a limit of the server's configuration": (Unavailable, [(503, "53400"), (500, "53400")]),
    "a limit of the program": (Unavailable, [(413, "54000"), (500, "54000")]),
    "a form of answer that it has not": (Unavailable, [(415, "PGRST107"), (406, "PGRST107")]),
    "a statement that was given up": (Unavailable, [(500, "57014"), (504, "57014")]),
}


@pytest.mark.parametrize("what", SAID)
async def test_the_hosted_version_is_understood_as_the_embedded_one(
    moody: tuple[TcpProxy, SupabaseDb], what: str
) -> None:
    """Codes and statuses differ between them; what the caller hears does not."""
    relay, db = moody
    kind, both = SAID[what]
    for status, code in both:
        body = json.dumps({"code": code, "message": f"the words of {code}", "details": None, "hint": None})
        relay.canned = [answer(f"{status} Said", body)] * 10
        with pytest.raises(kind, match=f"the words of {code}"):
            await db.call("fleet_describe")
    relay.canned = []
    assert await db.call("fleet_describe")


async def test_a_connection_that_allows_no_writes_is_replaced(database: str, hand: AsyncConnection[DictRow]) -> None:
    """Supabase sets this while a disk is full. A session keeps the setting of its start, and a pool keeps sessions."""
    name = database.rpartition("/")[2]
    await hand.execute(f'alter database "{name}" set default_transaction_read_only = on')
    db = await PostgresDb.open(database, pool_size=1, call_timeout_s=5)
    try:
        with pytest.raises(Unavailable, match="25006"):
            await db.call("fleet_lead", p_fleet="f", p_holder="h", p_ttl_s=30)
    finally:
        await hand.execute(f'alter database "{name}" reset default_transaction_read_only')
    with suppress(Unavailable):  # its connection was made before the reset
        await db.call("fleet_lead", p_fleet="f", p_holder="h", p_ttl_s=30)
    await db.call("fleet_lead", p_fleet="f", p_holder="h", p_ttl_s=30)
    await db.close()
