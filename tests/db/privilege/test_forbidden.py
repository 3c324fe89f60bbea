"""Forbidden acts, each tried at both endpoints: refused in the words that the table says, and nothing has changed."""

import json
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tests.db.privilege.rig import ENDPOINTS, Actors, Endpoints
from worker import protocol

RPC = "/rest/v1/rpc/"
TABLES = "/rest/v1/"
ME = {"p_worker_id": "{me}", "p_nonce": "{nonce}"}
VICTIM = {"p_worker_id": "{victim}", "p_nonce": "{victims_nonce}"}
CLAIM = {"p_claim_no": 99, "p_batch": 1, "p_wait_s": 0}
BEAT: dict[str, Any] = {"p_tasks": [], "p_health": None, "p_logs": None}
DONE = {"p_output_location": None, "p_result_data": None}


@dataclass(frozen=True, slots=True)
class Act:
    """Who tries what, and what the gateway and PostgREST say: a status and a code, or 200 and the answer's part."""

    who: str
    what: str
    path: str
    body: Any = None
    gateway: str | dict[str, Any] = ""
    postgrest: str | dict[str, Any] = ""
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None


def rpc(
    who: str,
    what: str,
    function: str,
    body: Any,
    gateway: str | dict[str, Any],
    postgrest: str | dict[str, Any] | None = None,
    **more: Any,
) -> Act:
    """A call of a function; without `postgrest` both endpoints say the same."""
    return Act(who, what, RPC + function, body, gateway, gateway if postgrest is None else postgrest, **more)


def grant(what: str, method: str, key: str) -> Act:
    """A URL that the worker must not get."""
    items = {"p_items": [{"method": method, "key": key}]}
    return rpc("worker", what, protocol.GRANTS, ME | items, {"outcome": "ok", "items": [], "refused": [key]})


BAD, GONE, ARGUMENT = "400 OR006", "400 OR005", "400 OR007"
FENCED = {"outcome": "fenced"}
THEIRS = {"p_task_id": "{theirs}", "p_attempt": 1}
MANY = {"p_results": [{"task_id": "{theirs}", "attempt": 1}]}
NEXT = {"p_claim_no": 1, "p_batch": 1}  # a number that was answered: nothing changes hands
MINE = {"p_task_id": "{mine}", "p_attempt": 1}
TOKENS = {  # who -> what the gateway and PostgREST say to a heartbeat
    "nobody": ("401 PGRST302", "401 42501"),
    "anon": ("401 PGRST301", "401 42501"),
    "authenticated": ("401 PGRST301", "403 42501"),
    "authenticated as me": ("401 PGRST301", "403 42501"),
    "revoked": (BAD, BAD),
    "no jti": ("401 PGRST301", BAD),
    "empty jti": ("401 PGRST301", BAD),
    "a number as jti": ("401 PGRST301", "401 PGRST301"),
    "no sub": ("401 PGRST301", BAD),
    "no role": ("401 PGRST301", "401 42501"),
    "no such role": ("401 PGRST301", "400 22023"),
    "role postgres": ("401 PGRST301", "403 42501"),
    "the victim's sub": (BAD, BAD),
    "the terminated": (BAD, BAD),
    "expired": ("401 PGRST301", "401 PGRST301"),
    "not yet": ("401 PGRST301", "401 PGRST301"),
    "unsigned": ("401 PGRST301", "401 PGRST301"),
    "no signature": ("401 PGRST301", "401 PGRST301"),
    "two parts": ("401 PGRST301", "401 PGRST301"),
    "wrong secret": ("401 PGRST301", "401 PGRST301"),
    "service_role, wrong secret": ("401 PGRST301", "401 PGRST301"),
    "service_role, unsigned": ("401 PGRST301", "401 PGRST301"),
    "an outsider's ES256 key": ("401 PGRST301", "401 PGRST301"),
    "HS256 by the public key": ("401 PGRST301", "401 PGRST301"),
    "tampered sub": ("401 PGRST301", "401 PGRST301"),
    "tampered role": ("401 PGRST301", "401 PGRST301"),
    "tampered exp": ("401 PGRST301", "401 PGRST301"),
    "tampered alg": ("401 PGRST301", "401 PGRST301"),
    "a key of its own in the header": ("401 PGRST301", "401 PGRST301"),
    "nonsense": ("401 PGRST301", "401 PGRST301"),
    "a long one": ("401 PGRST301", "401 PGRST301"),
}
ACTS = [
    *(rpc(who, "a heartbeat as me", protocol.HEARTBEAT, ME | BEAT, *said) for who, said in TOKENS.items()),
    # As somebody else, with a token of one's own.
    rpc("worker", "registers as the victim", protocol.REGISTER, VICTIM | {"p_agent": {}}, BAD),
    rpc("worker", "claims as the victim", protocol.CLAIM, VICTIM | CLAIM, BAD),
    rpc("worker", "beats as the victim", protocol.HEARTBEAT, VICTIM | BEAT, BAD),
    rpc("worker", "completes as the victim", protocol.COMPLETE, VICTIM | THEIRS | DONE, BAD),
    rpc("worker", "completes many as the victim", protocol.COMPLETE_MANY, VICTIM | MANY, BAD),
    rpc("worker", "completes and claims as the victim", protocol.COMPLETE_AND_CLAIM, VICTIM | MANY | NEXT, BAD),
    rpc("worker", "fails as the victim", protocol.FAIL, VICTIM | THEIRS | {"p_failure": {}}, BAD),
    rpc("worker", "releases as the victim", protocol.RELEASE, VICTIM | THEIRS | {"p_reason": "x"}, BAD),
    rpc("worker", "asks grants as the victim", protocol.GRANTS, VICTIM | {"p_items": []}, BAD),
    rpc("worker", "renews the victim's token", protocol.RENEW, VICTIM, BAD),
    rpc("worker", "beats as nobody", protocol.HEARTBEAT, {**ME, "p_worker_id": None} | BEAT, BAD),
    rpc("worker", "beats as me, spelt otherwise", protocol.HEARTBEAT, {**ME, "p_worker_id": "{me} "} | BEAT, BAD),
    rpc("worker", "beats as the terminated", protocol.HEARTBEAT, {**ME, "p_worker_id": "{gone}"} | BEAT, BAD),
    # With another's task, another attempt, another launch.
    rpc("worker", "keeps the victim's task alive", protocol.HEARTBEAT,
        ME | BEAT | {"p_tasks": [{"id": "{theirs}", "attempt": 1}]}, {"fenced": ["{theirs}"], "cancel": []}),
    rpc("worker", "completes the victim's task", protocol.COMPLETE, ME | THEIRS | DONE, FENCED),
    rpc("worker", "completes the victim's task among many", protocol.COMPLETE_MANY, ME | MANY,
        {"outcome": "ok", "outcomes": ["fenced"]}),
    rpc("worker", "completes the victim's task to claim another", protocol.COMPLETE_AND_CLAIM, ME | MANY | NEXT,
        {"outcome": "ok", "outcomes": ["fenced"]}),
    rpc("worker", "completes an output among many", protocol.COMPLETE_MANY,
        ME | {"p_results": [{"task_id": "{mine}", "attempt": 1, "output_location": "s3://b/o"}]}, ARGUMENT),
    rpc("worker", "fails the victim's task", protocol.FAIL, ME | THEIRS | {"p_failure": {"code": "X"}}, FENCED),
    rpc("worker", "releases the victim's task", protocol.RELEASE, ME | THEIRS | {"p_reason": "x"}, FENCED),
    rpc("worker", "completes a queued task", protocol.COMPLETE,
        ME | {**THEIRS, "p_task_id": "{queued}"} | DONE, FENCED),
    rpc("worker", "completes a later attempt", protocol.COMPLETE, ME | {**MINE, "p_attempt": 2} | DONE, FENCED),
    rpc("worker", "completes an earlier attempt", protocol.COMPLETE, ME | {**MINE, "p_attempt": 0} | DONE, FENCED),
    rpc("worker", "completes by an older launch", protocol.COMPLETE, {**ME, "p_nonce": "old"} | MINE | DONE, FENCED),
    rpc("worker", "claims by an older launch", protocol.CLAIM, {**ME, "p_nonce": "old"} | CLAIM,
        {"outcome": "fenced", "wanted": "stop", "tasks": []}),
    rpc("worker", "claims by the victim's launch", protocol.CLAIM, {**ME, "p_nonce": "{victims_nonce}"} | CLAIM,
        {"outcome": "fenced", "wanted": "stop", "tasks": []}),
    rpc("worker", "replays the claim of a task that was completed", protocol.CLAIM, ME | CLAIM | {"p_claim_no": 1},
        {"outcome": "ok", "tasks": []}),
    # Keys beyond its prefix.
    grant("writes outside its prefix", "PUT", "outputs/{theirs}/1/x"),
    grant("writes for another attempt", "PUT", "outputs/{mine}/2/x"),
    grant("writes for attempt 10 by the prefix of 1", "PUT", "outputs/{mine}/10/x"),
    grant("leaves its prefix", "PUT", "outputs/{mine}/1/../../{theirs}/1/x"),
    grant("leaves it, encoded", "PUT", "outputs/{mine}/1%2f..%2f..%2fx"),
    grant("leaves it at the end", "PUT", "outputs/{mine}/1/.."),
    grant("hides an empty segment", "PUT", "outputs/{mine}/1//x"),
    grant("hides a control character", "PUT", "outputs/{mine}/1/a\nb"),
    grant("names its prefix alone", "PUT", "outputs/{mine}/1/"),
    grant("begins with a slash", "PUT", "/outputs/{mine}/1/x"),
    grant("writes a log", "PUT", "logs/{victim}/boot/agent/00000000-0-9.log.gz"),
    grant("reads a log", "GET", "logs/{victim}/boot/agent/00000000-0-9.log.gz"),
    grant("reads the output of a task it does not depend on", "GET", "outputs/{outsider}/1/x.txt"),
    grant("reads what another attempt of its dependency left", "GET", "outputs/{dep}/2/y.txt"),
    grant("reads what ends like its dependency's output", "GET", "outputs/x/1/outputs/{dep}/1/x.txt"),
    grant("writes over its dependency's output", "PUT", "outputs/{dep}/1/x.txt"),
    grant("reads back its own", "GET", "outputs/{mine}/1/x"),
    grant("deletes", "DELETE", "outputs/{mine}/1/x"),
    grant("writes in lower case", "put", "outputs/{mine}/1/x"),
    grant("names a key longer than a store takes", "PUT", "outputs/{mine}/1/" + "x" * 900),
    # Claims, clock and roles as additional arguments.
    rpc("worker", "brings its own clock", protocol.HEARTBEAT, ME | BEAT | {"p_now": "2020-01-01T00:00:00Z"},
        "404 PGRST202", {"outcome": "ok"}),  # PostgREST lets it through, the database does not look at a pod's
    rpc("worker", "brings claims in the body", protocol.HEARTBEAT,
        ME | BEAT | {"request.jwt.claims": {"sub": "{victim}"}}, "404 PGRST202"),
    rpc("worker", "brings a role in the body", protocol.HEARTBEAT,
        ME | BEAT | {"role": "service_role"}, "404 PGRST202"),
    rpc("worker", "brings SQL as an argument's name", protocol.HEARTBEAT,
        ME | BEAT | {"p_x) from pg_sleep(9)--": 1}, "404 PGRST202"),
    rpc("worker", "brings SQL as its id", protocol.HEARTBEAT, {**ME, "p_worker_id": "{me}' or 1=1--"} | BEAT, BAD),
    rpc("worker", "calls with an array", protocol.HEARTBEAT, [VICTIM | BEAT, ME | BEAT], "400 PGRST102", BAD),
    rpc("worker", "hands everything over as one object", protocol.HEARTBEAT, VICTIM | BEAT, BAD, "404 PGRST202",
        headers={"Prefer": "params=single-object"}),
    rpc("worker", "asks for a rollback", protocol.HEARTBEAT, VICTIM | BEAT, BAD, headers={"Prefer": "tx=rollback"}),
    rpc("worker", "names a role in a header", protocol.HEARTBEAT, VICTIM | BEAT, BAD,
        headers={"Role": "service_role", "X-Role": "service_role"}),
    rpc("worker", "names another schema", protocol.HEARTBEAT, ME | BEAT, {"outcome": "ok"}, "406 PGRST106",
        headers={"Content-Profile": "pg_catalog"}),
    # Other ways in.
    rpc("worker", "claims by GET", protocol.CLAIM + "?p_worker_id={me}", None, "405 PGRST101", "404 PGRST202",
        method="GET"),
    rpc("worker", "deletes a function", protocol.CLAIM, None, "405 PGRST101", "405 PGRST101", method="DELETE"),
    rpc("worker", "patches a function", protocol.CLAIM, {}, "405 PGRST101", "405 PGRST101", method="PATCH"),
    rpc("worker", "calls set_config", "set_config",
        {"setting_name": "role", "new_value": "service_role", "is_local": False}, "404 PGRST202"),
    rpc("worker", "sleeps", "pg_sleep", {"seconds": 9}, "404 PGRST202"),
    rpc("worker", "reads a file", "pg_read_file", {"filename": "/etc/passwd"}, "404 PGRST202"),
    rpc("worker", "calls by another schema's name", "pg_catalog.set_config", {}, "404 PGRST202"),
    rpc("worker", "leaves the functions for a table", "../tasks", None, "404 PGRST125", "403 42501", method="GET"),
    rpc("worker", "ends the name otherwise", protocol.CLAIM + "%20", ME | CLAIM, "404 PGRST202", "404 PGRST202"),
    Act("worker", "inserts many tasks", TABLES + "tasks", [{"task_type": "x"}] * 2, "404 PGRST125", "403 42501",
        headers={"Prefer": "return=representation"}),
    Act("worker", "merges over a worker", TABLES + "workers", {"id": "{victim}", "status": "active"}, "404 PGRST125",
        "403 42501", headers={"Prefer": "resolution=merge-duplicates"}),
    Act("worker", "counts tasks", TABLES + "tasks?select=count", None, "404 PGRST125", "403 42501", method="HEAD"),
    Act("worker", "embeds attempts in tasks", TABLES + "tasks?select=*,task_attempts(*)", None, "404 PGRST125",
        "400 PGRST200", method="GET"),
    Act("worker", "raises its own budget", TABLES + "workers?id=eq.{me}", {"reserved_usd": 0}, "404 PGRST125",
        "403 42501", method="PATCH"),
    Act("worker", "renews its own token", TABLES + "workers?id=eq.{me}", {"token_jti": "x"}, "404 PGRST125",
        "403 42501", method="PATCH"),
    Act("worker", "reads the roles", TABLES + "pg_authid", None, "404 PGRST125", "404 42P01", method="GET"),
    Act("worker", "reads the schema's history", TABLES + "schema_migrations", None, "404 PGRST125", "403 42501",
        method="GET"),
    Act("worker", "asks for a plan", TABLES + "tasks", None, "404 PGRST125", "415 PGRST107", method="GET",
        headers={"Accept": "application/vnd.pgrst.plan+json"}),
]  # fmt: skip


def test_there_are_at_least_sixty() -> None:
    """Each by its own name."""
    names = [(act.who, act.what) for act in ACTS]
    assert len(names) == len(set(names)) >= 60


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("act", ACTS, ids=[f"{act.who}: {act.what}" for act in ACTS])
async def test_a_forbidden_act_is_refused(
    endpoints: Endpoints, actors: Actors, owner: psycopg.AsyncConnection[Any], act: Act, endpoint: str
) -> None:
    """At this endpoint, with this text; nobody's rows have changed and nothing of the victim's is told."""
    before = await _rows(owner, actors)
    body = act.content if act.body is None else json.dumps(actors.fill(act.body)).encode()
    reply = await endpoints.clients[endpoint].request(
        act.method,
        actors.fill(act.path),
        content=body,
        headers={"Content-Type": "application/json", **actors.credentials(act.who), **act.headers},
    )
    expected = act.gateway if endpoint == "gateway" else act.postgrest
    if isinstance(expected, str):
        code = reply.json()["code"] if reply.content else expected.partition(" ")[2]  # HEAD has no body
        assert f"{reply.status_code} {code}" == expected, reply.text
    else:
        assert reply.status_code == 200, reply.text
        assert reply.json().items() >= actors.fill(expected).items()
    assert actors.secret not in reply.text
    assert await _rows(owner, actors) == before


async def _rows(owner: psycopg.AsyncConnection[Any], actors: Actors) -> Any:
    """All that an act could have changed, except that I have just been heard."""
    query = """
        select (select array_agg(t order by t.id) from tasks t where t.worker_id is distinct from %(me)s),
               (select array_agg(array[t.status, t.attempts::text, t.output_location] order by t.id) from tasks t),
               (select array_agg(w order by w.id) from workers w where w.id <> %(me)s),
               (select array[w.status, w.token_jti, w.nonce, w.reserved_usd::text] from workers w where w.id = %(me)s),
               (select count(*) from worker_asks), (select count(*) from fleet_settings)
    """
    return await (await owner.execute(query, {"me": actors.me.id})).fetchone()
