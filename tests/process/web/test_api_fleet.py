"""The fleet over the API: workers, decisions, pools, pauses, costs."""

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.process.web.api_rig import VIEWER, ApiRig
from tests.process.web.test_api_access import refusal
from tests.unit.diagnostics.reviews import REVIEW


async def decide(rig: ApiRig, pool: str) -> None:
    """A decision of the leader."""
    term = (await rig.store.lead("tests", 3_600)).term
    await rig.store.record_decision(term, {"pool": pool, "rule": "min(2, 4) = 2", "target": 2, "inputs": {"queued": 2}})


async def test_workers_are_listed_read_and_ended(rig: ApiRig) -> None:
    """Without what is a part of their credentials. The end is a request, and is in the audit log once."""
    worker = await rig.worker()
    (row,) = (await rig.call("GET", "/workers", VIEWER)).json()["workers"]
    assert (row["id"], row["status"], row["pool"]) == (worker.id, "active", rig.pool)
    read = await rig.call("GET", f"/workers/{worker.id}", VIEWER)
    assert read.json()["gpu_type"] == "NVIDIA GeForce RTX 4090"
    assert not any(secret in read.text for secret in (worker.jti, worker.nonce))
    path = f"/workers/{worker.id}/terminate"
    assert refusal(await rig.call("POST", path, VIEWER)) == (403, "E072")
    outcomes = [(await rig.call("POST", path, json={"at_once": True})).json()["outcome"] for _ in range(2)]
    assert outcomes == ["requested", "already"]
    (entry,) = (await rig.call("GET", "/audit")).json()["entries"]
    assert (entry["action"], entry["subject"], entry["detail"]["at_once"]) == ("worker.terminate", worker.id, True)
    for name in ("gpu-nobody", "%00", "a" * 200, "..%2f"):
        assert refusal(await rig.call("GET", f"/workers/{name}"))[0] == 404


async def test_a_token_of_a_pool_sees_and_changes_its_pool_alone(rig: ApiRig) -> None:
    """Workers, decisions, pools and pauses; no costs, which are those of all."""
    other = await rig.worker()
    mine = await rig.token("operate", pools=["mine"])
    for pool in (rig.pool, "mine"):
        await decide(rig, pool)
    assert (await rig.call("GET", "/workers", mine)).json()["workers"] == []
    assert refusal(await rig.call("POST", f"/workers/{other.id}/terminate", mine)) == (404, "E040")
    assert [one["pool"] for one in (await rig.call("GET", "/decisions", mine)).json()["decisions"]] == ["mine"]
    assert [one["pool"] for one in (await rig.call("GET", "/pools", mine)).json()["pools"]] == ["mine"]
    for body in ({}, {"pool": rig.pool}):
        assert refusal(await rig.call("POST", "/pauses", mine, json=body)) == (403, "E072")
    assert refusal(await rig.call("DELETE", "/pauses", mine)) == (403, "E072")
    await rig.call("POST", "/pauses", json={"pool": rig.pool})
    paused = await rig.call("POST", "/pauses", mine, json={"pool": "mine", "reason": "a test", "for_s": 60})
    assert list(paused.json()["pauses"]) == ["mine"]
    assert refusal(await rig.call("GET", "/costs", mine)) == (403, "E072")


async def test_a_pause_begins_and_ends(rig: ApiRig) -> None:
    """With its reason and its end; both are in the audit log."""
    await decide(rig, rig.pool)
    body = {"reason": "too expensive", "for_s": 3_600}
    assert (await rig.call("POST", "/pauses", json=body)).json()["pauses"]["*"]["reason"] == "too expensive"
    (pool,) = (await rig.call("GET", "/pools", VIEWER)).json()["pools"]
    assert (pool["paused"]["reason"], pool["decision"]["rule"]) == ("too expensive", "min(2, 4) = 2")
    assert (await rig.call("GET", "/pauses", VIEWER)).json()["pauses"]["*"]["until"] is not None
    assert (await rig.call("DELETE", "/pauses")).json() == {"pauses": {}}
    actions = [one["action"] for one in (await rig.call("GET", "/audit")).json()["entries"]]
    assert actions == ["pool.resume", "pool.pause"]


async def test_a_limit_of_workers_begins_and_ends(rig: ApiRig) -> None:
    """With its reason and its end; both are in the audit log. Without an end, or above what can be, it is refused."""
    body = {"most": 8, "reason": "a demo elsewhere", "for_s": 3_600}
    made = (await rig.call("POST", "/scale-limits", json=body)).json()["limits"]["*"]
    assert (made["most"], made["reason"]) == (8, "a demo elsewhere")
    assert made["until"] is not None
    assert (await rig.call("GET", "/scale-limits", VIEWER)).json()["limits"]["*"] == made
    for wrong in ({"most": 8}, {"for_s": 60}, body | {"most": 0}, body | {"for_s": 0}, body | {"most": 100_001}):
        assert refusal(await rig.call("POST", "/scale-limits", json=wrong))[0] == 422
    assert refusal(await rig.call("POST", "/scale-limits", VIEWER, json=body)) == (403, "E072")
    assert (await rig.call("DELETE", "/scale-limits")).json() == {"limits": {}}
    actions = [one["action"] for one in (await rig.call("GET", "/audit")).json()["entries"]]
    assert actions == ["pool.unlimit", "pool.limit"]


async def test_a_token_of_a_pool_limits_its_pool_alone(rig: ApiRig) -> None:
    """It sees the limit of the whole fleet too, which concerns it."""
    mine, body = await rig.token("operate", pools=["mine"]), {"most": 3, "for_s": 60}
    for pool in (None, rig.pool):
        assert refusal(await rig.call("POST", "/scale-limits", mine, json=body | {"pool": pool})) == (403, "E072")
    assert refusal(await rig.call("DELETE", "/scale-limits", mine)) == (403, "E072")
    for pool in (None, rig.pool):
        await rig.call("POST", "/scale-limits", json=body | {"pool": pool})
    limited = await rig.call("POST", "/scale-limits", mine, json=body | {"pool": "mine"})
    assert set(limited.json()["limits"]) == {"mine", "*"}


async def test_costs_are_those_of_the_command_line(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """By kind, type and worker. A time that ends before it begins is refused. A long list is cut, and says so."""
    worker = await rig.worker()
    found = (await rig.call("GET", "/costs", VIEWER)).json()
    assert found["usd"] >= 0
    assert set(found) == {"since", "until", "usd", "kinds", "types", "workers", "workers_left_out", "bill"}
    assert {one["id"] for one in found["workers"]} <= {worker.id}
    assert found["bill"] is None
    monkeypatch.setattr("orchestrator.web.api.fleet.MAX_LINES", 0)
    cut = (await rig.call("GET", "/costs", VIEWER)).json()
    assert (cut["workers"], cut["workers_left_out"]) == ([], 1)
    wrong = {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}
    assert refusal(await rig.call("GET", "/costs", VIEWER, params=wrong))[0] == 422
    for parameters in ({"since": "yesterday"}, {"since": "2026-01-02T00:00:00"}, {"other": "1"}, [("limit", "1")] * 2):
        assert refusal(await rig.call("GET", "/costs", VIEWER, params=parameters))[0] == 400


async def test_usage_is_read_by_day_or_hour(rig: ApiRig, hand: psycopg.AsyncConnection[Any]) -> None:
    """From the roll-ups of the whole fleet, which a token of some pools does not see."""
    await hand.execute(
        "insert into orchestrator.usage (fleet, dimension, span, at, name, usd, seconds) "
        "values (%s, 'kind', 'day', date_trunc('day', now(), 'UTC') - interval '2 days', 'busy', 3, 3600)",
        (rig.rows.fleet,),
    )
    found = (await rig.call("GET", "/usage", VIEWER)).json()
    assert [(one["name"], one["usd"], one["seconds"]) for one in found["points"]] == [("busy", 3, 3_600)]
    assert (await rig.call("GET", "/usage", VIEWER, params={"by": "label:show", "span": "hour"})).json()["points"] == []
    for wrong in ({"by": "password"}, {"by": "label:"}, {"span": "year"}, {"since": "yesterday"}):
        assert refusal(await rig.call("GET", "/usage", VIEWER, params=wrong))[0] == 400
    ends = {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}
    assert refusal(await rig.call("GET", "/usage", VIEWER, params=ends))[0] == 422
    mine = await rig.token("read", pools=[rig.pool])
    assert refusal(await rig.call("GET", "/usage", mine)) == (403, "E072")


async def test_what_other_rules_of_scaling_would_have_cost_is_read(
    rig: ApiRig, hand: psycopg.AsyncConnection[Any]
) -> None:
    """A token of a pool sees the review of its pool alone."""
    for pool in (rig.pool, "other"):
        await hand.execute(
            "insert into orchestrator.scaling_reviews (fleet, pool, at, review) values (%s, %s, now(), %s)",
            (rig.rows.fleet, pool, Jsonb(REVIEW)),
        )
    found = (await rig.call("GET", "/scaling/reviews", VIEWER)).json()
    assert sorted(one["pool"] for one in found["reviews"]) == sorted((rig.pool, "other"))
    mine = await rig.token("read", pools=[rig.pool])
    (one,) = (await rig.call("GET", "/scaling/reviews", mine)).json()["reviews"]
    assert one["pool"] == rig.pool
    assert one["review"]["candidates"]["learned"]["usd"] == 41
    assert one["review"]["tomorrow"] == "learned"


@pytest.mark.parametrize("bad", [{}, None, "x", {**REVIEW, "tomorrow": "teapot"}, {**REVIEW, "tasks": None}])
async def test_a_review_that_cannot_be_read_hides_no_other_one(
    rig: ApiRig, hand: psycopg.AsyncConnection[Any], bad: object
) -> None:
    """Another version may have written it."""
    for pool, review in ((rig.pool, REVIEW), ("other", bad)):
        await hand.execute(
            "insert into orchestrator.scaling_reviews (fleet, pool, at, review) values (%s, %s, now(), %s)",
            (rig.rows.fleet, pool, Jsonb(review)),
        )
    found = {one["pool"]: one for one in (await rig.call("GET", "/scaling/reviews", VIEWER)).json()["reviews"]}
    assert found[rig.pool]["review"]["tomorrow"] == "learned"
    assert found["other"]["review"] is None


async def test_the_minutes_of_pools_and_workers_are_read(rig: ApiRig, hand: psycopg.AsyncConnection[Any]) -> None:
    """A token of a pool sees those of its pool alone."""
    worker = await rig.worker()
    for pool in (rig.pool, "other"):
        await hand.execute(
            "insert into orchestrator.pool_minutes values (%s, %s, date_trunc('minute', now()), "
            "3, 0, 1, 0, 1, 0, 0, 0.4, 5, 1)",
            (rig.rows.fleet, pool),
        )
    await hand.execute(
        "insert into orchestrator.worker_minutes values (%s, date_trunc('minute', now()), 'active', 1, 87.5, 9, null)",
        (worker.id,),
    )
    pools = (await rig.call("GET", "/history", VIEWER)).json()["pools"]
    assert set(pools) == {rig.pool, "other"}
    assert (pools[rig.pool][0]["ready"], pools[rig.pool][0]["completed"]) == (3, 5)
    mine, other = await rig.token("read", pools=[rig.pool]), await rig.token("read", pools=["other"])
    assert set((await rig.call("GET", "/history", mine)).json()["pools"]) == {rig.pool}
    assert (await rig.call("GET", "/history", mine, params={"pool": "other"})).json()["pools"] == {}
    assert refusal(await rig.call("GET", "/history", VIEWER, params={"step_s": 1}))[0] == 400
    (point,) = (await rig.call("GET", f"/workers/{worker.id}/history", mine)).json()["points"]
    assert (point["gpu_percent"], point["gpu_used_mb"], point["gpu_total_mb"]) == (87.5, 9, None)
    assert refusal(await rig.call("GET", f"/workers/{worker.id}/history", other)) == (404, "E040")


async def test_a_token_of_pools_reads_their_minutes_however_many_others_there_are(
    rig: ApiRig, hand: psycopg.AsyncConnection[Any]
) -> None:
    """And pays for its own alone: the minutes of the others are not read."""
    pools = [f"a{n}" for n in range(60)] + [rig.pool, f"{rig.pool}-z"]
    await hand.execute(
        "insert into orchestrator.pool_minutes "
        "select %s, p, date_trunc('minute', now()), 3, 0, 1, 0, 1, 0, 0, 0.4, 5, 1 from unnest(%s::text[]) p",
        (rig.rows.fleet, pools),
    )
    mine = await rig.token("read", pools=pools[-2:])
    assert set((await rig.call("GET", "/history", mine)).json()["pools"]) == set(pools[-2:])
    assert set((await rig.call("GET", "/history", mine, params={"pool": rig.pool})).json()["pools"]) == {rig.pool}
    assert len((await rig.call("GET", "/history", VIEWER)).json()["pools"]) == 50


async def test_the_audit_log_is_read_page_by_page(rig: ApiRig) -> None:
    """By an admin."""
    for n in range(5):
        await rig.rows.pause("someone", "a test", pool=str(n))
    first = (await rig.call("GET", "/audit", params={"limit": 3})).json()
    rest = (await rig.call("GET", "/audit", params={"limit": 3, "before": first["next"]})).json()
    assert [one["subject"] for one in (*first["entries"], *rest["entries"])] == ["4", "3", "2", "1", "0"]
    assert rest["next"] is None
    (one,) = (await rig.call("GET", "/audit", params={"subject": "3"})).json()["entries"]
    assert one["action"] == "pool.pause"


async def test_workers_and_decisions_are_read_page_by_page(rig: ApiRig) -> None:
    """Each once, and those of the token's pools alone."""
    workers = [(await rig.worker()).id for _ in range(3)]
    term = (await rig.store.lead("tests", 3_600)).term
    for n in range(3):
        for pool in (rig.pool, "another"):
            decision = {"pool": pool, "rule": "r", "target": n, "inputs": {}, "actions": [], "blocked": []}
            await rig.store.record_decision(term, decision)
    token = await rig.token("read", pools=[rig.pool])
    seen, cursor = [], None
    while True:
        page = (
            await rig.call("GET", "/workers", token, params={"limit": 2} | ({"cursor": cursor} if cursor else {}))
        ).json()
        seen += [one["id"] for one in page["workers"]]
        if (cursor := page["next"]) is None:
            break
    assert sorted(seen) == sorted(workers)
    first = (await rig.call("GET", "/decisions", token, params={"limit": 2})).json()
    rest = (await rig.call("GET", "/decisions", token, params={"limit": 2, "before": first["next"]})).json()
    assert [one["target"] for one in (*first["decisions"], *rest["decisions"])] == [2, 1, 0]
    assert {one["pool"] for one in first["decisions"]} == {rig.pool}
    assert rest["next"] is None
    for wrong in ("x", "W10", "bm90IGEgY3Vyc29y", "WyIyMDI2LTAxLTAxVDAwOjAwOjAwKzAwOjAwIiwgIm5vIGlkIl0"):
        assert refusal(await rig.call("GET", "/workers", params={"cursor": wrong}))[0] == 400
