"""What people set up, over the API: schedules, webhooks, limits, tenants, tokens, avoided hosts; what was blocked."""

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from orchestrator.core.blocked import Blocked, BlockedReason
from orchestrator.core.host_strikes import Strike
from tests.process.web.api_rig import ADMIN, VIEWER, ApiRig
from tests.process.web.test_api_access import refusal

FULL = Blocked(BlockedReason.MAX_ACTIVE, 3, detail={"limit": 2}).as_json()
LISTS = ("/schedules", "/webhooks", "/limits", "/tenants", "/hosts")


async def decide(rig: ApiRig, pool: str, target: int, **more: Any) -> None:
    """A decision of the leader."""
    term = (await rig.store.lead("tests", 3_600)).term
    row = {"pool": pool, "rule": f"min({target}, 4) = {target}", "target": target, "inputs": {}}
    await rig.store.record_decision(term, row | more)


async def test_a_token_of_a_pool_sees_no_list_of_the_fleet_and_a_reader_no_tokens(rig: ApiRig) -> None:
    """The lists are about all pools; tokens are for an admin."""
    mine = await rig.token("read", pools=[rig.pool])
    for path in LISTS:
        assert refusal(await rig.call("GET", path, mine)) == (403, "E072")
        assert (await rig.call("GET", path, VIEWER)).status_code == 200
    assert refusal(await rig.call("GET", "/tokens", VIEWER)) == (403, "E072")
    assert refusal(await rig.call("GET", "/tokens", await rig.token("admin", pools=[rig.pool]))) == (403, "E072")


async def test_tokens_are_listed_without_their_hashes(rig: ApiRig) -> None:
    """With what each may do."""
    token = await rig.token("read", name="laptop", tenant="acme")
    answer = await rig.call("GET", "/tokens", ADMIN)
    (row,) = answer.json()["tokens"]
    assert (row["name"], row["scopes"], row["tenant"], row["pools"]) == ("laptop", ["read"], "acme", None)
    assert token not in answer.text
    assert "hash" not in answer.text


async def test_a_schedule_is_listed_with_what_came_of_its_due_times(
    rig: ApiRig, hand: psycopg.AsyncConnection[Any]
) -> None:
    """The last run, and how many of the last ones were missed."""
    name, now = rig.pool, datetime.now(UTC)
    task = '{"task_type": "report"}'
    await hand.execute("insert into schedules (name, every_s, task) values (%s, 600, %s)", (name, task))
    for minutes, outcome in ((30, "fired"), (20, "missed"), (10, "missed")):
        at = now - timedelta(minutes=minutes)
        await hand.execute("insert into schedule_runs values (%s, %s, %s, null, 'a test', %s)", (name, at, outcome, at))
    (row,) = [one for one in (await rig.call("GET", "/schedules")).json()["schedules"] if one["name"] == name]
    assert (row["task_type"], row["every_s"], row["recent"]) == ("report", 600, {"fired": 1, "missed": 2})
    assert (row["last_run"]["outcome"], row["last_run"]["reason"]) == ("missed", "a test")
    await hand.execute("delete from schedules where name = %s", (name,))


async def test_webhooks_are_listed_without_the_secret_part_of_their_address(
    rig: ApiRig, hand: psycopg.AsyncConnection[Any]
) -> None:
    """With the newest messages and what the receiver answered."""
    name = rig.pool
    url = f"https://user:word@hooks.example.com/{name}/secret"
    await hand.execute("insert into webhooks (name, url, created_at) values (%s, %s, now())", (name, url))
    await hand.execute(
        "insert into webhook_messages (event, task_id, webhook, url, host, body, created_at, give_up_at, attempts, "
        "failure) values ('task.failed', gen_random_uuid(), %s, %s, 'hooks.example.com', '{}', now(), now(), 9, "
        "'HTTP 503')",
        (name, url),
    )
    answer = await rig.call("GET", "/webhooks", params={"state": "undeliverable"})
    found = answer.json()
    assert [one["origin"] for one in found["webhooks"] if one["name"] == name] == ["https://hooks.example.com"]
    (message,) = [one for one in found["messages"] if one["webhook"] == name]
    assert (message["state"], message["attempts"], message["failure"]) == ("undeliverable", 9, "HTTP 503")
    assert "secret" not in answer.text
    assert "word@" not in answer.text
    await hand.execute("delete from webhook_messages where webhook = %s", (name,))
    await hand.execute("delete from webhooks where name = %s", (name,))


async def test_limits_and_tenants_have_their_running_and_waiting_tasks(rig: ApiRig) -> None:
    """A key without a limit lets one task run at a time."""
    key, tenant = f"k-{rig.pool}", f"t-{rig.pool}"
    for _ in range(3):
        await rig.submit(concurrency_key=key, tenant=tenant)
    (limit,) = [one for one in (await rig.call("GET", "/limits")).json()["limits"] if one["name"] == key]
    assert limit == {"scope": "key", "name": key, "most": 1, "is_set": False, "running": 0, "ready": 1, "waiting": 2}
    (row,) = [one for one in (await rig.call("GET", "/tenants")).json()["tenants"] if one["tenant"] == tenant]
    assert (row["weight"], row["ready"], row["waiting"], row["running"]) == (1, 1, 2, 0)


async def test_avoided_hosts_have_their_evidence(rig: ApiRig) -> None:
    """And until when they are avoided."""
    term = (await rig.store.lead("tests", 3_600)).term
    strike = Strike("machine:m-1", avoid_s=3_600, after=1, memory_s=60)
    await rig.store.strike(term, strike, code="ECC_ERRORS", evidence={"worker_id": "gpu-1"})
    (row,) = (await rig.call("GET", "/hosts", VIEWER)).json()["hosts"]
    assert (row["key"], row["strikes"], row["evidence"][0]["code"]) == ("machine:m-1", 1, "ECC_ERRORS")
    assert row["avoid_until"] is not None


async def test_the_decisions_of_one_pool_are_listed_alone(rig: ApiRig) -> None:
    """And none of a pool that the token does not see."""
    for pool in (rig.pool, "another"):
        await decide(rig, pool, 2)
    answer = await rig.call("GET", "/decisions", params={"pool": rig.pool})
    assert [one["pool"] for one in answer.json()["decisions"]] == [rig.pool]
    mine = await rig.token("read", pools=[rig.pool])
    assert (await rig.call("GET", "/decisions", mine, params={"pool": "another"})).json()["decisions"] == []


async def test_what_was_blocked_in_a_time_is_told_with_its_reason(rig: ApiRig) -> None:
    """Also by a decision from before the time; for the pools that the token sees."""
    await decide(rig, rig.pool, 2, blocked=[FULL])
    since = (await rig.rows.standing())["now"]
    await decide(rig, rig.pool, 2, blocked=[FULL | {"count": 5}], actions=["spawn gpu-1"])
    await decide(rig, rig.pool, 3)
    time = {"since": since, "until": "2100-01-01T00:00:00Z"}
    found = (await rig.call("GET", "/scaling/blocked", VIEWER, params=time)).json()
    (pool,) = found["pools"]
    assert (pool["decisions"], pool["idle"], pool["target"], pool["actions"]) == (2, 1, 3, ["spawn gpu-1"])
    (blocked,) = pool["blocked"]
    assert (blocked["decisions"], blocked["reason"]["who"], blocked["reason"]["kind"]) == (2, "operator", "max_active")
    assert blocked["reason"]["text"].startswith("5 spawns blocked")
    moments = [datetime.fromisoformat(one) for one in (since, blocked["since"], blocked["until"], found["until"])]
    assert moments[0] == moments[1] < moments[2] < moments[3] < datetime.now(UTC) + timedelta(minutes=1)
    mine = await rig.token("read", pools=["another"])
    assert (await rig.call("GET", "/scaling/blocked", mine, params=time)).json()["pools"] == []
    wrong = {"since": time["until"], "until": time["since"]}
    assert refusal(await rig.call("GET", "/scaling/blocked", params=wrong))[0] == 422
