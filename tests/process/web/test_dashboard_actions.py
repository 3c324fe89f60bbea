"""What people do on the pages: stop everything, limit workers for a time, and send messages again."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx
import psycopg
import pytest

from orchestrator.core.states import State
from orchestrator.ports import Unavailable
from orchestrator.web.dashboard.pages import PAGES
from tests.process.web.api_rig import ADMIN, VIEWER
from tests.process.web.dashboard_rig import DashboardRig, csrf_of
from tests.unit.core.build import policy


async def act(browser: httpx.AsyncClient, path: str, fields: Mapping[str, str]) -> httpx.Response:
    """Agree to an action as its page asks."""
    asked = await browser.get(path)
    assert asked.status_code == 200, asked.text
    csrf = asked.text.partition('name="csrf" value="')[2].partition('"')[0]
    query = dict(httpx.URL(path).params)
    return await browser.post(httpx.URL(path).path, data={"csrf": csrf, **query, **fields})


async def test_everything_is_stopped(board: DashboardRig) -> None:
    """Every pool is paused, and each worker is asked to end at once, in the name of who did it. Twice does no harm."""
    await board.furnish()
    browser = await board.visitor(ADMIN)
    page = (await browser.get("/do/stop")).text
    assert "4 workers for at least $" in page
    for _ in range(2):
        done = await act(browser, "/do/stop", {"reason": "a fire"})
        assert (done.status_code, done.headers["location"]) == (303, "/")
    assert (await board.rows.pauses())["*"]["reason"] == "a fire"
    assert "Everything stops: every pool is paused" in (await browser.get("/")).text
    for one in PAGES:
        if "{" not in one.path:
            assert (await browser.get(one.path)).status_code == 200, one.path
    live = (await board.rows.observe())["workers"]
    assert len(live) == 4
    assert all(one["stop_requested_at"] for one in live), live
    mine = await board.visitor(await board.token("operate", "read", pools=[board.pool]))
    assert (await mine.get("/do/stop")).status_code == 403
    assert "/do/stop" not in (await mine.get("/")).text
    assert "/do/stop" not in (await (await board.visitor(VIEWER)).get("/")).text


async def test_stopping_everything_does_not_wait_for_workers_that_drain(board: DashboardRig) -> None:
    """They would go on with their tasks for GRACEFUL_SHUTDOWN_TIMEOUT_SEC, and cost money."""
    drains = await board.worker()
    await board.rows.terminate("test", drains.id, "somebody drains it", at_once=False)
    await board.gateway.move(drains, (State.ACTIVE,), State.TERMINATING, exit_cause="manual")
    browser = await board.visitor(ADMIN)
    assert "1 worker for " in (await browser.get("/do/stop")).text
    await act(browser, "/do/stop", {})
    (row,) = (await board.rows.observe())["workers"]
    assert row["stop_requested_at"]
    assert "0 workers for " in (await browser.get("/do/stop")).text


async def test_a_worker_that_cannot_be_asked_to_end_does_not_keep_the_others(
    board: DashboardRig, hand: psycopg.AsyncConnection[Any]
) -> None:
    """A user's trigger refuses it: the next page says which one is left, and that everything else stops."""
    workers = [await board.worker() for _ in range(12)]
    refused = workers[0].id
    body = (
        f"if new.id = '{refused}' and new.stop_requested_at is not null then raise 'not this one'; end if; return new;"
    )
    create = f"create function users_own() returns trigger language plpgsql as $$ begin {body} end $$"
    await hand.execute(create.encode())
    try:
        await hand.execute(
            "create trigger users_own before update on workers for each row execute function users_own()"
        )
        browser = await board.visitor(ADMIN)
        done = await act(browser, "/do/stop", {})
        assert (done.status_code, done.headers["location"]) == (303, "/")
        page = (await browser.get("/")).text
        for text in (
            "the end of 11 workers is asked for",
            f"1 worker could not be asked, so stop everything again: {refused}",
        ):
            assert text in page
    finally:
        await hand.execute("drop function users_own() cascade")
    assert (await act(browser, "/do/stop", {})).status_code == 303
    assert all(one["stop_requested_at"] for one in (await board.rows.observe())["workers"])


async def test_a_limit_says_what_is_there_and_what_it_does(board: DashboardRig) -> None:
    """Before the button: the workers, their cost, and that busy ones finish."""
    for state in (State.ACTIVE, State.SPAWNING):
        await board.worker(state=state)
    page = (await (await board.visitor(ADMIN)).get("/do/limit", params={"pool": board.pool})).text
    assert f"{board.pool} has 2 workers now, 0 of them busy: at least $" in page
    for text in ("still starting end at once", "Busy workers finish their tasks", "It ends by itself", "required"):
        assert text in page
    assert f"orchestrator scale limit --pool {board.pool} --max N --for 2h" in page
    assert (await (await board.visitor(VIEWER)).get("/do/limit")).status_code == 403


async def test_a_limit_is_set_shown_and_ended(board: DashboardRig) -> None:
    """With its reason and its end, on the page of the pools and in the audit log."""
    await board.furnish()
    browser = await board.visitor(ADMIN)
    limit = f"/do/limit?pool={board.pool}"
    done = await act(browser, limit, {"max": "1", "minutes": "90", "reason": "<b>a demo</b>"})
    assert (done.status_code, done.headers["location"]) == (303, "/pools")
    page = (await browser.get("/pools")).text
    assert f"{board.pool} may have 1 worker at most for 1h30m." in page
    assert "At most 1 worker in this pool until" in page
    assert "&lt;b&gt;a demo&lt;/b&gt;" in page
    assert "in the whole fleet until" not in page
    await act(browser, "/do/limit", {"max": "8", "minutes": "5"})
    assert "At most 8 workers in the whole fleet until" in (await browser.get("/pools")).text
    await act(browser, f"/do/unlimit?pool={board.pool}", {})
    assert set(await board.rows.scale_limits()) == {"*"}
    await act(browser, "/do/unlimit", {})
    assert await board.rows.scale_limits() == {}
    actions = [one["action"] for one in await board.rows.audit() if one["action"].startswith("pool.")]
    assert actions == ["pool.unlimit", "pool.unlimit", "pool.limit", "pool.limit"]


async def test_a_limit_without_a_number_or_an_end_is_refused(board: DashboardRig) -> None:
    """So it cannot stay for ever, and is no pause."""
    browser = await board.visitor(ADMIN)
    for wrong in ({"max": "8"}, {"minutes": "5"}, {"max": "0", "minutes": "5"}, {"max": "-1", "minutes": "5"},
                  {"max": "8", "minutes": "525601"}, {"max": "a lot", "minutes": "5"}):  # fmt: skip
        assert (await act(browser, "/do/limit", wrong)).status_code == 422
    assert await board.rows.scale_limits() == {}


async def test_a_token_of_a_pool_limits_that_pool_alone(board: DashboardRig) -> None:
    """Not the whole fleet, and no other pool."""
    browser = await board.visitor(await board.token("operate", "read", pools=[board.pool]))
    for path in ("/do/limit", "/do/limit?pool=other", "/do/unlimit"):
        assert (await browser.get(path)).status_code == 403
    given = {"csrf": csrf_of(await browser.get("/pools")), "pool": "other", "max": "8", "minutes": "5"}
    assert (await browser.post("/do/limit", data=given)).status_code == 403
    await act(browser, f"/do/limit?pool={board.pool}", {"max": "2", "minutes": "5"})
    assert set(await board.rows.scale_limits()) == {board.pool}


async def test_messages_that_were_given_up_are_sent_again(
    board: DashboardRig, hand: psycopg.AsyncConnection[Any]
) -> None:
    """One, or all; the page names the hosts first. Nobody who may look only does it."""
    ids = []
    for _ in range(2):
        made = await hand.execute(
            "insert into webhook_messages (event, task_id, webhook, url, host, body, created_at, give_up_at, failure) "
            "values ('task.failed', gen_random_uuid(), %s, 'https://h.example.com/x', 'h.example.com', '{}', now(), "
            "now(), 'it answered 500') returning id::text",
            (board.pool,),
        )
        ids += [row[0] for row in await made.fetchall()]
    browser = await board.visitor(ADMIN)
    try:
        page = (await browser.get("/webhooks")).text
        assert f'href="/do/resend?message={ids[0]}"' in page
        assert 'href="/do/resend"' in page
        assert "/do/resend" not in (await (await board.visitor(VIEWER)).get("/webhooks")).text
        asked = (await browser.get(f"/do/resend?message={ids[0]}")).text
        assert "This message to h.example.com is due now." in asked
        assert f"orchestrator webhooks retry {ids[0]}" in asked
        done = await act(browser, f"/do/resend?message={ids[0]}", {})
        assert (done.status_code, done.headers["location"]) == (303, "/webhooks")
        assert "1 message is due now." in (await browser.get("/webhooks")).text
        assert "h.example.com" in (await browser.get("/do/resend")).text
        await act(browser, "/do/resend", {})
        left = await hand.execute(
            "select count(*) from webhook_messages where id = any (%s) and next_at is null", (ids,)
        )
        assert await left.fetchone() == (0,)
        assert (await act(browser, f"/do/resend?message={uuid.uuid4()}", {})).status_code == 404
        assert (await browser.get("/do/resend?message=x")).status_code == 404
        mine = await board.visitor(await board.token("operate", "read", pools=[board.pool]))
        assert (await mine.get("/do/resend")).status_code == 403
        api = {"Authorization": f"Bearer {ADMIN}"}
        again = await board.client.post("/api/v1/webhooks/resend", json={"message_id": ids[0]}, headers=api)
        assert again.json() == {"due": 1}
        assert (await board.client.post("/api/v1/webhooks/resend", headers=api)).status_code == 200
        unknown = {"message_id": str(uuid.uuid4())}
        assert (await board.client.post("/api/v1/webhooks/resend", json=unknown, headers=api)).status_code == 404
    finally:
        await hand.execute("delete from webhook_messages where webhook = %s", (board.pool,))


async def test_an_action_names_its_fleet_and_the_cost_of_its_own_pools(
    board: DashboardRig, hand: psycopg.AsyncConnection[Any]
) -> None:
    """Somebody has pages of several fleets open; a token of a pool does not learn what the others cost."""
    for pool, usd in ((board.pool, 0.5), ("secret", 7)):
        worker = await board.worker(pool)
        await hand.execute("update workers set price_usd_per_hour = %s where id = %s", (usd, worker.id))
    restricted = await board.visitor(await board.token("operate", pools=[board.pool]))
    page = (await restricted.get(f"/do/pause?pool={board.pool}")).text
    assert f"{board.pool} costs $0.50/h now" in page
    assert page.count(board.dashboard.fleet) == 2
    assert "The fleet costs $7.50/h now" in (await (await board.visitor(ADMIN)).get("/do/pause")).text


async def test_a_pool_that_does_not_exist_is_neither_paused_nor_limited(
    board: DashboardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typing error would look like a pause. What is in force for a pool that was removed can be ended."""
    known = policy()
    pools = tuple(replace(known.pools[0], name=name) for name in ("default", "big"))
    monkeypatch.setattr(board.api, "policy", replace(known, pools=pools))
    browser, headers = await board.visitor(ADMIN), {"Authorization": f"Bearer {ADMIN}"}
    for action in ("pause", "limit", "spawn"):
        answer = await browser.get(f"/do/{action}?pool=typo")
        assert answer.status_code == 404, action
        assert "there is no pool" in answer.text, action
    for action in ("resume", "unlimit"):
        assert (await browser.get(f"/do/{action}?pool=typo")).status_code == 200, action
    for path, body in (("pauses", {}), ("scale-limits", {"most": 1, "for_s": 60})):
        refused = await board.client.post(f"/api/v1/{path}", json={"pool": "typo", **body}, headers=headers)
        assert (refused.status_code, refused.json()["id"]) == (404, "E052"), path
        assert refused.json()["detail"] == "there is no pool 'typo'"
        assert refused.json()["fix"] == "name one of the pools: default, big"
        made = await board.client.post(f"/api/v1/{path}", json={"pool": "big", **body}, headers=headers)
        assert made.status_code == 200, made.text
        await board.client.delete(f"/api/v1/{path}", headers=headers)


async def test_a_form_that_starts_a_worker_starts_one_however_often_it_is_sent(
    board: DashboardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another form starts another one."""
    monkeypatch.setattr(board.api, "policy", policy())
    browser = await board.visitor(ADMIN)
    for forms in (1, 2):
        page = (await browser.get("/do/spawn?pool=default")).text
        form = dict(re.findall(r'name="(csrf|key|pool)" value="([^"]*)"', page))
        for _ in range(3):
            assert (await browser.post("/do/spawn", data=form)).status_code == 303
        assert len((await board.rows.observe())["workers"]) == forms
    assert "was asked for before" in (await browser.get("/")).text


async def test_an_action_that_the_database_does_not_answer_says_that_its_end_is_not_known(
    board: DashboardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leads back to the page that asks; a form that is known by its key is sent again as it was."""
    visitor = await board.visitor(ADMIN)

    async def unanswered(*_: object, **__: object) -> None:
        raise Unavailable("the database does not answer")

    page = await visitor.get("/do/pause?pool=big")
    with monkeypatch.context() as patch:
        patch.setattr(board.rows, "pause", unanswered)
        answer = await visitor.post("/do/pause", data={"pool": "big", "csrf": csrf_of(page)})
    assert answer.status_code == 503
    assert "It is not known whether the action was done" in answer.text
    assert '<a href="/do/pause?pool=big">Try again</a>' in answer.text
    assert 'href="/pools"' in answer.text
    assert "as a whole or not at all" in answer.text
    with monkeypatch.context() as patch:
        patch.setattr(board.rows, "pause", unanswered)
        answer = await visitor.post("/do/stop", data={"csrf": csrf_of(page)})
    assert "Some of it may be done" in answer.text

    await board.gateway.submit(board.pool)
    page = await visitor.get(f"/do/cancel-tasks?pool={board.pool}")
    form = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', page.text))
    with monkeypatch.context() as patch:
        patch.setattr(type(board.rows.task_changes), "start", unanswered)
        answer = await visitor.post("/do/cancel-tasks", data=form)
    assert answer.status_code == 503
    again = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', answer.text))
    assert again["key"] == form["key"]
    assert (await visitor.post("/do/cancel-tasks", data=again)).status_code == 303
