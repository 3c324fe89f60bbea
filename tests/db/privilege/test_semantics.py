"""The same request at both endpoints gets the same answer. A table has each difference with its reason.

An agent must not be able to tell our gateway from PostgREST by anything it relies on: status, code, form of a refusal.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.db.privilege.rig import Actors, Endpoints
from worker import protocol

ME = {"p_worker_id": "{me}", "p_nonce": "{nonce}"}
BEAT: dict[str, Any] = {**ME, "p_tasks": [], "p_health": None, "p_logs": None}
CLAIM = {**ME, "p_claim_no": 1, "p_batch": 1, "p_wait_s": 0}
FAIL = {**ME, "p_task_id": "{queued}", "p_attempt": 1, "p_failure": {}}
REFUSAL = {"code", "message", "details", "hint"}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    body: Any = field(default_factory=lambda: BEAT)  # bytes as they are, anything else as JSON
    path: str = protocol.HEARTBEAT
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def raw(change: str) -> bytes:
    """A heartbeat's text with something in the place of its tasks."""
    return (
        b'{"p_worker_id":"{me}","p_nonce":"{nonce}","p_health":null,"p_logs":null,"p_tasks":' + change.encode() + b"}"
    )


ASKS = {
    "a heartbeat": Ask(),
    "a registration": Ask({**ME, "p_agent": {"python": "3.9"}}, protocol.REGISTER),
    "a claim that was answered": Ask(CLAIM, protocol.CLAIM),
    "grants of nothing": Ask({**ME, "p_items": []}, protocol.GRANTS),
    "a renewal of another launch": Ask({**ME, "p_nonce": "another"}, protocol.RENEW),
    "many results, none its own": Ask(
        {**ME, "p_results": [{"task_id": "{queued}", "attempt": 1}]}, protocol.COMPLETE_MANY
    ),
    "a result, none its own, and a claim that was answered": Ask(
        {**ME, "p_results": [{"task_id": "{queued}", "attempt": 1}], "p_claim_no": 1, "p_batch": 1},
        protocol.COMPLETE_AND_CLAIM,
    ),
    "no results": Ask({**ME, "p_results": []}, protocol.COMPLETE_MANY),
    "an object as results": Ask({**ME, "p_results": {}}, protocol.COMPLETE_MANY),
    "numbers as text": Ask({**CLAIM, "p_batch": "1", "p_claim_no": "1"}, protocol.CLAIM),
    "a fraction that is whole": Ask({**CLAIM, "p_batch": 1.0}, protocol.CLAIM),
    "a fraction": Ask({**CLAIM, "p_batch": 1.5}, protocol.CLAIM),
    "a truth as a number": Ask({**CLAIM, "p_batch": True}, protocol.CLAIM),
    "an object as a number": Ask({**CLAIM, "p_batch": {}}, protocol.CLAIM),
    "too large a number": Ask({**CLAIM, "p_batch": 10**30}, protocol.CLAIM),
    "a number out of its bounds": Ask({**CLAIM, "p_batch": 0}, protocol.CLAIM),
    "no number": Ask({**CLAIM, "p_batch": None}, protocol.CLAIM),
    "nonsense as a number": Ask({**CLAIM, "p_claim_no": "x"}, protocol.CLAIM),
    "nonsense as a wait": Ask({**CLAIM, "p_wait_s": "x"}, protocol.CLAIM),
    "NaN as a wait": Ask({**CLAIM, "p_wait_s": "NaN"}, protocol.CLAIM),
    "nonsense as a task": Ask({**FAIL, "p_task_id": "x"}, protocol.FAIL),
    "a list as a task": Ask({**FAIL, "p_task_id": ["a"]}, protocol.FAIL),
    "a list as a failure": Ask({**FAIL, "p_failure": [1]}, protocol.FAIL),
    "an unknown key in a failure": Ask({**FAIL, "p_failure": {"x": 1}}, protocol.FAIL),
    "somebody else's task": Ask(FAIL, protocol.FAIL),
    "tasks that are no list": Ask({**BEAT, "p_tasks": {}}),
    "tasks that are text": Ask({**BEAT, "p_tasks": "[]"}),
    "a task without its attempt": Ask({**BEAT, "p_tasks": [{"id": "{mine}"}]}),
    "logs that are no sizes": Ask({**BEAT, "p_logs": {"agent": "x"}}),
    "health that is too large": Ask({**BEAT, "p_health": {"x": "y" * 70_000}}),
    "an id of another type": Ask({**BEAT, "p_worker_id": 1}),
    "an id of the wrong worker": Ask({**BEAT, "p_worker_id": "{victim}"}),
    "one argument missing": Ask({key: value for key, value in BEAT.items() if key != "p_logs"}),
    "one argument too many": Ask({**BEAT, "p_x": 1}),
    "the optional clock": Ask({**BEAT, "p_now": None}),
    "no argument": Ask({}),
    "an argument in capitals": Ask({**BEAT, "P_LOGS": None}),
    "an argument twice": Ask(raw('{},"p_tasks":[]')),
    "an empty body": Ask(b""),
    "half a body": Ask(b"{"),
    "two bodies": Ask(raw("[]") + b"{}"),
    "white space around": Ask(b" \n" + raw("[]") + b"\n"),
    "a byte order mark": Ask(b"\xef\xbb\xbf" + raw("[]")),
    "bytes that are no UTF-8": Ask(raw('["\xff"]').replace("\xff".encode(), b"\xff")),
    "a list": Ask(b"[]"),
    "a list of one": Ask([BEAT]),
    "null": Ask(b"null"),
    "a text": Ask(b'"x"'),
    "a number": Ask(b"1"),
    "NaN": Ask(raw("NaN")),
    "an endless number": Ask(raw("1e999")),
    "a NUL": Ask(raw('["\\u0000"]')),
    "a lone surrogate": Ask(raw('["\\ud800"]')),
    "nesting": Ask(raw("[" * 60 + "]" * 60)),
    "deep nesting": Ask(raw("[" * 500 + "]" * 500)),
    "a function that is not there": Ask(path="worker_dance"),
    "a function in capitals": Ask(path="WORKER_HEARTBEAT"),
    "a function of the fleet": Ask({"p_fleet": "default", "p_limit": 1}, "fleet_decisions"),
    "a slash behind": Ask(path=f"{protocol.HEARTBEAT}/"),
    "a slash before": Ask(path=f"/{protocol.HEARTBEAT}"),
    "a filter": Ask(path=f"{protocol.HEARTBEAT}?x=eq.1"),
    "a selection": Ask(path=f"{protocol.HEARTBEAT}?select=outcome"),
    "a limit": Ask(path=f"{protocol.HEARTBEAT}?limit=1"),
    "GET": Ask(b"", method="GET"),
    "HEAD": Ask(b"", method="HEAD"),
    "PUT": Ask(method="PUT"),
    "PATCH": Ask(method="PATCH"),
    "DELETE": Ask(b"", method="DELETE"),
    "OPTIONS": Ask(b"", method="OPTIONS"),
    "JSON with a charset": Ask(headers={"Content-Type": "application/json; charset=utf-8"}),
    "no content type": Ask(headers={"Content-Type": ""}),
    "plain text": Ask(headers={"Content-Type": "text/plain"}),
    "CSV": Ask(headers={"Content-Type": "text/csv"}),
    "a form": Ask(b"p_worker_id=x", headers={"Content-Type": "application/x-www-form-urlencoded"}),
    "anything accepted": Ask(headers={"Accept": "*/*"}),
    "one object accepted": Ask(headers={"Accept": "application/vnd.pgrst.object+json"}),
    "CSV accepted": Ask(headers={"Accept": "text/csv"}),
    "XML accepted": Ask(headers={"Accept": "application/xml"}),
    "a rollback preferred": Ask(headers={"Prefer": "tx=rollback"}),
    "a count preferred": Ask(headers={"Prefer": "count=exact"}),
    "nothing returned": Ask(headers={"Prefer": "return=minimal"}),
    "a strict preference": Ask(headers={"Prefer": "handling=strict, x=y"}),
    "the schema by its name": Ask(headers={"Content-Profile": "public"}),
    "another schema": Ask(headers={"Content-Profile": "auth"}),
    "a range": Ask(headers={"Range": "0-0"}),
}
BEATEN = "200 cancel fenced heartbeat_s lease_s led outcome stuck wanted"
BAD_BODY, UNKNOWN = "400 PGRST102", "404 PGRST202"
ONE_BODY = "the gateway takes one object of named arguments and nothing else"
ONE_ANSWER = "the gateway has one form of answer, and does not look at what a caller prefers"
# What the gateway says, what PostgREST 12 says, and why that is so. PostgREST 14 differs from 12 in an expired token
# (PGRST303 for PGRST301) and an Accept that it cannot serve (406 for 415); an agent reads neither.
DIFFERENT: dict[str, tuple[str, str, str]] = {
    "CSV accepted": (BEATEN, "200 text/csv; charset=utf-8", ONE_ANSWER),
    "XML accepted": (BEATEN, "415 PGRST107", ONE_ANSWER),
    "a strict preference": (BEATEN, "400 PGRST122", ONE_ANSWER),
    "another schema": (BEATEN, "406 PGRST106", "the gateway has no schemas to choose from"),
    "a filter": (BEATEN, "400 42703", "the gateway answers whole: there is nothing to filter"),
    "a selection": (BEATEN, "400 42703", "the gateway answers whole: there is nothing to select"),
    "CSV": (BEATEN, BAD_BODY, "the gateway reads every body as JSON"),
    "plain text": (BEATEN, UNKNOWN, "the gateway reads every body as JSON"),
    "a form": (BAD_BODY, UNKNOWN, "the gateway reads every body as JSON"),
    "an empty body": (BAD_BODY, UNKNOWN, ONE_BODY),
    "a list": (BAD_BODY, UNKNOWN, ONE_BODY),
    "a list of one": (BAD_BODY, BEATEN, ONE_BODY),
    "null": (BAD_BODY, UNKNOWN, ONE_BODY),
    "a text": (BAD_BODY, UNKNOWN, ONE_BODY),
    "a number": (BAD_BODY, UNKNOWN, ONE_BODY),
    "a lone surrogate": ("400 22P05", BAD_BODY, "the gateway says what jsonb would"),
    "an endless number": (BAD_BODY, "400 OR007", "Python reads it as infinity, which no jsonb can hold"),
    "deep nesting": (BAD_BODY, BEATEN, "the gateway has a bound of its own, for its parser's sake"),
    "the optional clock": (UNKNOWN, BEATEN, "the gateway opens no argument that is not an agent's"),
    "a function of the fleet": (UNKNOWN, "403 42501", "the gateway says nothing about functions that it does not open"),
    "a slash behind": ("404 PGRST125", "404 ", "PostgREST 12 says nothing more, 14 does"),
    "a slash before": ("404 PGRST125", "404 ", "PostgREST 12 says nothing more, 14 does"),
    "GET": ("405 PGRST101", UNKNOWN, "PostgREST would read with GET"),
    "HEAD": ("405", "404", "PostgREST would read with HEAD"),
    "OPTIONS": ("405 PGRST101", UNKNOWN, "PostgREST would tell a browser what it may do"),
}


@pytest.mark.parametrize("name", ASKS)
async def test_gateway_and_postgrest_give_the_same_answer(endpoints: Endpoints, actors: Actors, name: str) -> None:
    """Status, code, the form of a refusal, the keys of an answer; or exactly the difference that is written down."""
    gateway, postgrest = [
        await _ask(endpoints.clients[endpoint], actors, ASKS[name]) for endpoint in ("gateway", "postgrest")
    ]
    said = _gist(gateway), _gist(postgrest)
    assert said == DIFFERENT.get(name, (said[0], said[0]))[:2], (gateway.text, postgrest.text)


def test_every_difference_is_one() -> None:
    """What has become equal goes from the table."""
    assert set(DIFFERENT) <= set(ASKS)
    assert all(ours != theirs and why for ours, theirs, why in DIFFERENT.values())


async def test_a_claim_over_postgrest_waits_for_nothing_and_is_spent(endpoints: Endpoints) -> None:
    """Nobody asks again under its number. A copy that comes late would take a task of which the agent never hears."""
    worker = endpoints.through("postgrest", await endpoints.gateway.worker())
    assert (await worker.claim(1, wait_s=20))["tasks"] == []
    await endpoints.gateway.submit(worker.pool)
    late = await worker.claim(1, wait_s=20)
    assert (late["tasks"], late["spent"]) == ([], True)
    assert len((await worker.claim(2, wait_s=20))["tasks"]) == 1


async def _ask(client: httpx.AsyncClient, actors: Actors, ask: Ask) -> httpx.Response:
    if isinstance(ask.body, bytes):
        content = ask.body.replace(b"{me}", actors.me.id.encode()).replace(b"{nonce}", actors.me.nonce.encode())
    else:
        content = json.dumps(actors.fill(ask.body)).encode()
    headers = {"Content-Type": "application/json", **actors.credentials("worker"), **ask.headers}
    path = f"/rest/v1/rpc/{ask.path}"
    return await client.request(ask.method, path, content=content, headers={k: v for k, v in headers.items() if v})


def _gist(reply: httpx.Response) -> str:
    """What an agent could rely on: `200 cancel fenced …`, or `400 OR007` of a refusal in the right form."""
    if not reply.content:
        return f"{reply.status_code}"
    if "json" not in reply.headers.get("content-type", ""):
        return f"{reply.status_code} {reply.headers.get('content-type')}"
    body = reply.json()
    if reply.status_code >= 400 and body != {}:
        assert set(body) == REFUSAL
        return f"{reply.status_code} {body['code']}"
    return f"{reply.status_code} {' '.join(sorted(body)) if isinstance(body, dict) else body}"
