"""The pages of decisions, cost, pools, and what people set up: for whom they are, and what they say."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from orchestrator.core.blocked import Blocked, BlockedReason
from orchestrator.core.host_strikes import Strike
from orchestrator.core.states import State
from orchestrator.diagnostics import amounts
from orchestrator.web.api.cursors import cursor_of
from orchestrator.web.dashboard.pages import PAGES, workers
from orchestrator.web.dashboard.render import environment
from tests.process.web.api_rig import ADMIN, VIEWER
from tests.process.web.dashboard_rig import BILL, HOSTILE, DashboardRig
from tests.unit.diagnostics.reviews import REVIEW

FLEETS = ("/cost", "/schedules", "/webhooks", "/limits", "/audit", "/tokens")
FULL = Blocked(BlockedReason.MAX_ACTIVE, 3, detail={"limit": 2}).as_json()


async def test_every_page_of_this_list_answers_in_a_new_fleet_and_in_a_furnished_one(board: DashboardRig) -> None:
    """With its command, and nothing inline."""
    browser = await board.visitor(ADMIN)
    for _ in range(2):
        for page in (one for one in PAGES if "{" not in one.path):
            answer = await browser.get(page.path)
            assert answer.status_code == 200, (page.path, answer.text[:500])
            assert 'class="cmd"' in answer.text
            assert "style=" not in answer.text
        await board.furnish()


@pytest.mark.parametrize("path", FLEETS)
async def test_what_is_about_the_whole_fleet_is_not_for_a_token_of_a_pool(board: DashboardRig, path: str) -> None:
    """It has no link to it either."""
    browser = await board.visitor(await board.token("admin", pools=[board.pool]))
    assert (await browser.get(path)).status_code == 403
    assert f'href="{path}"' not in (await browser.get("/pools")).text


async def test_tokens_and_the_audit_log_are_for_an_admin(board: DashboardRig) -> None:
    """A reader sees no link to them."""
    reader = await board.visitor(VIEWER)
    for path in ("/tokens", "/audit"):
        assert (await reader.get(path)).status_code == 403
        assert f'href="{path}"' not in (await reader.get("/pools")).text
    token = await board.token("submit", tenant="acme")
    page = (await (await board.visitor(ADMIN)).get("/tokens")).text
    assert "submit" in page
    assert "acme" in page
    assert token not in page


async def test_a_time_says_what_was_blocked_and_how_to_fix_it(board: DashboardRig) -> None:
    """A token of another pool sees nothing of it. A time that is none is refused with a page."""
    row = {"pool": board.pool, "rule": "min(5, 2) = 2", "target": 2, "inputs": {}, "blocked": [FULL]}
    await board.store.record_decision(board.term, row)
    after = datetime.now(UTC) + timedelta(minutes=2)
    browser = await board.visitor(VIEWER)
    time = {"from": (after - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")}
    pages = [(await browser.get("/decisions/blocked", params=one)).text for one in (time, {**time, "pool": board.pool})]
    earlier = {"from": "2020-01-01T00:00", "to": "2020-01-02T00:00"}
    assert "No pool had a decision" in (await browser.get("/decisions/blocked", params=earlier)).text
    assert all("No pool had a decision" in page or "raise MAX_ACTIVE_GPUS" in page for page in pages)
    for wrong in ({"from": "yesterday"}, {"from": "2100-01-01T00:00"}, {"from": "0001-01-01T00:00+23:00"},
                  {"to": "2020-01-01", "from": "2020-01-01"}, {"to": "0001-01-01", "from": "2020-01-01"},
                  {"pool": "<b>"}):  # fmt: skip
        assert (await browser.get("/decisions/blocked", params=wrong)).status_code == 400
    other = await board.visitor(await board.token("read", pools=["other"]))
    assert board.pool not in (await other.get("/decisions/blocked")).text


async def test_decisions_that_say_the_same_are_one_line(board: DashboardRig) -> None:
    """With their number."""
    for n in range(3):
        row = {"pool": board.pool, "rule": f"rule {n}", "target": 2, "inputs": {}, "blocked": [FULL | {"count": n + 1}]}
        await board.store.record_decision(board.term, row)
    page = (await (await board.visitor(VIEWER)).get("/decisions", params={"pool": board.pool})).text
    assert "3 times from" in page
    assert "rule 2" in page
    assert "rule 1" not in page


async def test_pools_show_what_is_avoided_with_its_evidence(board: DashboardRig) -> None:
    """To those who see every pool. What a pod said is harmless."""
    await board.furnish()
    strike = Strike("machine:m-1", avoid_s=3_600, after=1, memory_s=60)
    evidence = {"worker_id": board.workers[0].id, "error": HOSTILE}
    await board.store.strike(board.term, strike, code="ECC_ERRORS", evidence=evidence)
    page = (await (await board.visitor(VIEWER)).get("/pools")).text
    assert all(text in page for text in ("machine:m-1", "ECC_ERRORS", board.workers[0].id, "&lt;script&gt;"))
    assert "<script>document" not in page
    mine = await board.visitor(await board.token("read", pools=[board.pool]))
    assert "machine:m-1" not in (await mine.get("/pools")).text


async def test_lists_show_hostile_names_as_text(board: DashboardRig, hand: psycopg.AsyncConnection[Any]) -> None:
    """Of limits, tenants, schedules and answers of receivers. The secret part of an address is not shown."""
    name = board.pool
    script = "<script>document.title='taken'</script>"
    await board.gateway.submit(name, 2, concurrency_key=script, tenant=script)
    task = '{"task_type": "<script>x</script>"}'
    await hand.execute("insert into schedules (name, every_s, task, problem) values (%s, 60, %s, %s)",
                       (name, task, HOSTILE))  # fmt: skip
    await hand.execute("insert into webhooks (name, url, created_at) values (%s, %s, now())",
                       (name, "https://hooks.example.com/T0/hush"))  # fmt: skip
    await hand.execute(
        "insert into webhook_messages (event, task_id, webhook, url, host, body, created_at, give_up_at, failure) "
        "values ('task.failed', gen_random_uuid(), %s, 'https://h.example.com/hush', %s, '{}', now(), now(), %s)",
        (name, HOSTILE, HOSTILE),
    )
    browser = await board.visitor(ADMIN)
    try:
        for path in ("/limits", "/schedules", "/webhooks", "/webhooks?state=undeliverable"):
            page = (await browser.get(path)).text
            assert "&lt;script&gt;" in page
            assert "<script>document" not in page
            assert "\x1b" not in page
            assert "hush" not in page
        assert (await browser.get("/webhooks?state=lost")).status_code == 400
    finally:
        for statement in ("delete from webhook_messages where webhook = %s", "delete from webhooks where name = %s",
                          "delete from schedules where name = %s"):  # fmt: skip
            await hand.execute(statement, (name,))


async def test_the_cost_of_a_day_ends_with_its_forecast(board: DashboardRig) -> None:
    """Each range has its command; another one is refused."""
    await board.furnish()
    browser = await board.visitor(VIEWER)
    today = (await browser.get("/cost?since=today")).text
    assert f"orchestrator cost --since {datetime.now(UTC):%Y-%m-%d}T00:00Z" in today
    assert "the day ends at" in today
    assert "orchestrator cost --since 7d --by gpu" in (await browser.get("/cost?since=7d")).text
    assert (await browser.get("/cost?since=9d")).status_code == 400


async def test_the_cost_of_each_day_has_its_arithmetic(board: DashboardRig, hand: psycopg.AsyncConnection[Any]) -> None:
    """By what the workers did; today as far as it is rolled up."""
    browser, fleet = await board.visitor(VIEWER), board.rows.fleet
    assert "Nothing is summed up of any of these days yet" in (await browser.get("/cost")).text
    for span, days, kind, usd in (("day", 2, "busy", 3), ("day", 2, "idle", 1), ("part", 0, "booting", 0.5)):
        await hand.execute(
            "insert into orchestrator.usage (fleet, dimension, span, at, name, usd, seconds) "
            "values (%s, 'kind', %s, date_trunc('day', now(), 'UTC') - %s * interval '1 day', %s, %s, 3600)",
            (fleet, span, days, kind, usd),
        )
    board.dashboard.shared.forget_all()
    page = (await browser.get("/cost")).text
    assert "Each day: $4.50 in 30 days" in page
    for text in ("busy 1h00m × $3.00/h on average = $3.00", "idle 1h00m × $1.00/h on average = $1.00", "$0.50 so far",
                 "at most $4.00; $0.50 today so far"):  # fmt: skip
        assert text in page, text
    assert "style=" not in page


async def bill_on_the_page(board: DashboardRig, browser: httpx.AsyncClient, bill: Any = None) -> str:
    """The section of the bill, after a comparison is recorded."""
    if bill:
        await board.store.note_bill(board.term, bill)
    board.dashboard.shared.forget_all()
    return (await browser.get("/cost")).text.partition('id="bill"')[2].partition("</section>")[0]


async def test_the_cost_stands_next_to_runpods_bill(board: DashboardRig) -> None:
    """With the difference, and the command for the same hours."""
    browser = await board.visitor(VIEWER)
    assert "The leader has not read a bill yet" in await bill_on_the_page(board, browser)
    for ours, words in ((41.05, "$0.15 less"), (41.2, "the same"), (41.3, "$0.10 more")):
        page = await bill_on_the_page(board, browser, BILL | {"ours_usd": ours})
        assert f"our records say {amounts.usd(ours)}, {words}." in page
        assert "also charged" not in page
        assert "orchestrator cost --since 2026-11-29T15:00Z" in page
    page = await bill_on_the_page(board, browser, BILL | {"our_pods": 4})
    assert "for 3 pods of this fleet; our records say $41.20 for 4 pods, the same." in page


async def test_each_pod_that_runpod_charged_beyond_our_records_is_named(
    board: DashboardRig, hand: psycopg.AsyncConnection[Any]
) -> None:
    """With its worker: one that ended before is a leak. The API has the same."""
    leaked, theirs = await board.worker(), await board.worker()
    await hand.execute("update workers set terminated_at = '2026-11-28T03:00Z' where id = %s", (leaked.id,))
    await hand.execute("update workers set fleet = 'elsewhere' where id = %s", (theirs.id,))
    cursor = await hand.execute("select id, pod_id from workers where id in (%s, %s)", (leaked.id, theirs.id))
    pods = dict(await cursor.fetchall())
    named = [{"pod_id": pods[leaked.id], "usd": 1.5}, {"pod_id": pods[theirs.id], "usd": 0.25},
             {"pod_id": HOSTILE, "usd": 0.2}]  # fmt: skip
    bill = BILL | {"unbooked_usd": 2.0, "unbooked_pods": 5, "unbooked": named}
    browser = await board.visitor(VIEWER)
    page = await bill_on_the_page(board, browser, bill)
    assert "RunPod also charged $2.00 for 5 pods without a cost in our records of these hours:" in page
    leak, other, outsider, rest = (" ".join(re.sub("<[^>]*>", "", one).split()) for one in page.split("<li>")[1:5])
    assert leak.startswith(f"{pods[leaked.id]} $1.50: worker {leaked.id}, which ended ")
    assert "ago: it is still charged. Look in RunPod" in leak
    assert "s-bad" in page
    assert other == f"{pods[theirs.id]} $0.25: worker {theirs.id} of fleet elsewhere."
    assert "$0.20: no worker in the database; perhaps another program" in outsider
    assert "<script>document" not in page
    assert rest.startswith("2 more pods for $0.05.")
    answer = await board.client.get("/api/v1/costs", headers={"Authorization": f"Bearer {VIEWER}"})
    shown = answer.json()["bill"]
    assert [one["worker_id"] for one in shown["unbooked"]] == [leaked.id, theirs.id, None]
    assert (shown["theirs_usd"], shown["unbooked_pods"], shown["error"]) == (41.2, 5, None)


async def test_a_bill_that_was_not_read_or_is_empty_says_so(board: DashboardRig) -> None:
    """Since when and why, beside the last comparison. A bill without entries is no difference."""
    browser = await board.visitor(VIEWER)
    page = await bill_on_the_page(board, browser, {"error": f"Unavailable: {HOSTILE}"})
    assert "RunPod&#39;s bill could not be read since" in page or "RunPod's bill could not be read since" in page
    assert "Unavailable: &lt;script&gt;" in page
    assert "has not read a bill yet" not in page
    empty = BILL | {"theirs_usd": 0, "pods": 0}
    page = await bill_on_the_page(board, browser, empty)
    assert "has no entry yet for the 24 hours until" in page
    assert "Our records say $41.20 for 3 pods. Compared" in page
    assert all(text not in page for text in ("more.", "less.", "could not be read"))
    page = await bill_on_the_page(board, browser, {"error": "Unavailable: HTTP 502"})
    assert all(text in page for text in ("could not be read since", "HTTP 502", "Our records say $41.20", "Compared"))


async def test_the_page_of_costs_says_what_another_rule_of_scaling_would_have_cost(
    board: DashboardRig, hand: psycopg.AsyncConnection[Any]
) -> None:
    """In one sentence, with what it is based on; before the first review, nothing."""
    browser = await board.visitor(VIEWER)
    assert "rule of scaling" not in (await browser.get("/cost")).text
    await hand.execute(
        "insert into orchestrator.scaling_reviews (fleet, pool, at, review) values (%s, 'p', now(), %s)",
        (board.rows.fleet, Jsonb(REVIEW)),
    )
    board.dashboard.shared.forget_all()
    page = (await browser.get("/cost")).text
    assert "In the last week, learned would have cost $41.00 instead of $63.00, p95 wait 38s instead of 1m11s;" in page
    assert "the replay of your settings differs from the records by 4 %." in page
    assert "learned was the cheapest of fixed, learned, cold start" in page


async def test_those_that_ended_are_found_behind_any_number_that_live(
    board: DashboardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By pool, with how long they lived; the link to earlier ones keeps the filter."""
    ended = [await board.worker("old") for _ in range(2)]
    for worker in ended:
        await board.gateway.move(worker, (State.ACTIVE,), State.TERMINATING, exit_cause="manual")
        await board.gateway.move(worker, (State.TERMINATING,), State.TERMINATED)
    for _ in range(3):
        await board.worker("old")
    visitor = await board.visitor(ADMIN)
    monkeypatch.setattr(workers, "ENDED", 1)
    first = (await visitor.get("/workers?pool=old")).text.partition('id="ended"')[2]
    assert (ended[1].id in first, ended[0].id in first) == (True, False)
    assert re.search(r'data-l="lived">[0-9]+s<', first), first
    earlier = first.partition('<a href="/workers?pool=old&amp;cursor=')[2].partition('"')[0]
    second = (await visitor.get(f"/workers?pool=old&cursor={earlier.removesuffix('#ended')}")).text
    assert ended[0].id in second.partition('id="ended"')[2]
    assert "No worker of this pool has ended." in (await visitor.get("/workers?pool=new")).text


async def test_a_live_worker_is_on_a_page_also_if_others_end(
    board: DashboardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next page begins after the last worker of this one, whatever has ended since."""
    made = [await board.worker("many") for _ in range(7)]
    visitor = await board.visitor(ADMIN)
    monkeypatch.setattr(workers, "LIVE", 3)

    def part_of(page: str) -> str:
        return page.partition("<h2>There</h2>")[2].partition('id="ended"')[0]

    async def listed(path: str) -> tuple[list[int], str | None, str | None]:
        board.dashboard.shared.forget_all()
        page = part_of((await visitor.get(path)).text)
        names = [number for number, worker in enumerate(made) if f'id="w-{worker.id}"' in page]
        links = [re.search(rf'<a href="([^"]+)">Those {way}</a>', page) for way in ("before", "after")]
        before, after = (found and found[1].replace("&amp;", "&") for found in links)
        return names, before, after

    first, before, after = await listed("/workers?pool=many")
    assert (first, before) == ([0, 1, 2], None)
    assert after is not None
    for worker in made[:2]:
        await board.gateway.move(worker, (State.ACTIVE,), State.TERMINATING, exit_cause="manual")
        await board.gateway.move(worker, (State.TERMINATING,), State.TERMINATED)
    second, before, last = await listed(after)
    assert (second, before) == ([3, 4, 5], "/workers?pool=many")
    assert last is not None
    third, before, beyond = await listed(last)
    assert (third, beyond) == ([6], None)
    assert before is not None
    assert (await listed(before))[0] == [3, 4, 5]
    await board.gateway.move(made[6], (State.ACTIVE,), State.TERMINATING, exit_cause="manual")
    await board.gateway.move(made[6], (State.TERMINATING,), State.TERMINATED)
    board.dashboard.shared.forget_all()
    assert "No worker comes after those." in part_of((await visitor.get(last)).text)
    for wrong in ("x", cursor_of(["2026-11-30T00:00:00+00:00", "gone gpu-1"]), cursor_of(["now", "idle gpu-1"])):
        assert (await visitor.get("/workers", params={"after": str(wrong)})).status_code == 400


async def test_a_sum_that_lacks_a_price_says_so(board: DashboardRig, hand: psycopg.AsyncConnection[Any]) -> None:
    """A pod without a known price is not one that costs nothing."""
    for usd in (0.5, None):
        worker = await board.worker()
        await hand.execute("update workers set price_usd_per_hour = %s where id = %s", (usd, worker.id))
    visitor = await board.visitor(ADMIN)
    home, pools = [(await visitor.get(path)).text for path in ("/", "/pools")]
    assert "<small>at least </small>$0.50" in home
    assert "the price of 1 worker is not known" in home
    assert "at least $0.50/h" in pools
    assert "2 workers for at least $0.50/h" in (await visitor.get("/do/stop")).text


async def test_the_first_page_and_the_api_have_the_last_failures_of_tasks(
    board: DashboardRig, hand: psycopg.AsyncConnection[Any]
) -> None:
    """Each task once, the newest first, as text, and only those of the pools that the token sees."""
    visitor, here = await board.visitor(ADMIN), await board.worker("failing")
    foreign = await board.token("read", pools=["healthy"])
    other = await board.visitor(foreign)
    assert "No attempt has failed in the last day." in (await visitor.get("/")).text
    tasks = []
    for number, message in ((1, "first"), (2, HOSTILE)):
        tasks += await board.gateway.submit("failing", max_attempts=1, task_type="t" * 200)
        (task,) = (await here.claim(number))["tasks"]
        failure = {"message": message, "code": "HANDLER_ERROR"}
        reply = await here.call("worker_fail", p_task_id=task["id"], p_attempt=1, p_failure=failure)
        assert reply.json()["outcome"] == "failed"
    for name in ("healthy", "failing"):  # a task of another pool that ran on a worker of this one
        (moved,) = await board.gateway.submit("failing", max_attempts=1)
        (task,) = (await here.claim(3 if name == "healthy" else 4))["tasks"]
        await here.call("worker_fail", p_task_id=task["id"], p_attempt=1, p_failure=failure)
        await hand.execute("update tasks set pool = %s where id = %s", (name, moved))
        tasks.append(moved)
    board.dashboard.shared.forget_all()
    shown = (await visitor.get("/")).text.partition('id="failures"')[2].partition("</table>")[0]
    assert 0 < shown.index(f'href="/tasks/{tasks[1]}"') < shown.index(f'href="/tasks/{tasks[0]}"')
    assert f'href="/tasks/{tasks[2]}"' in shown
    assert f'href="/workers/{here.id}"' in shown
    assert "<script>" not in shown
    assert "t" * 81 not in shown
    elsewhere = (await other.get("/")).text
    assert not any(task in elsewhere for task in tasks)

    async def api(token: str, limit: int = 50) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token}"}
        read = (await visitor.get("/api/v1/failures", params={"limit": limit}, headers=headers)).json()
        assert isinstance(read, dict)
        return read

    found = await api(ADMIN)
    assert [one["task_id"] for one in found["failures"]][-3:] == [tasks[2], tasks[1], tasks[0]]
    newest = found["failures"][-2]
    assert (newest["code"], newest["message"], newest["worker_id"]) == ("HANDLER_ERROR", HOSTILE[:200], here.id)
    assert (newest["status"], found["is_all"]) == ("Failed", True)
    assert len((await api(ADMIN, limit=1))["failures"]) == 1
    assert (await api(foreign))["failures"] == []


async def test_a_live_worker_says_what_it_has_cost(board: DashboardRig, hand: psycopg.AsyncConnection[Any]) -> None:
    """As the API has it: until its pod has gone, in cents or finer; a pod without a price has none."""
    known, unknown, gone, young = [await board.worker("paid") for _ in range(4)]
    for worker, usd, begin, end in (
        (known, 0.5, "3 hours", None), (unknown, None, "3 hours", None), (gone, 0.5, "3 hours", "2 hours"),
        (young, 0.5, "20 seconds", None),
    ):  # fmt: skip
        await hand.execute(
            "update workers set price_usd_per_hour = %s, billing_since = now() - %s::interval,"
            " state_since = now() - %s::interval, billing_until = now() - %s::interval where id = %s",
            (usd, begin, begin, end, worker.id),
        )
    page = (await (await board.visitor(ADMIN)).get("/workers?pool=paid")).text
    for worker, spent in ((known, r"\$1\.50"), (unknown, "–"), (gone, r"\$0\.50"), (young, r"\$0\.00[2-9]\d")):
        found = re.search(rf'id="w-{worker.id}".*?data-l="spent">([^<]*)<', page, re.DOTALL)
        assert found
        assert re.fullmatch(spent, found[1]), (spent, found[1])
    assert len(re.findall(r'data-l="pod"><span class="id">pod-[0-9a-f]+<', page)) == 4


async def test_a_page_leads_to_what_it_names(board: DashboardRig) -> None:
    """From a problem to its worker and its pool, from a worker, a task, a cost and a decision to the pool."""
    worker, (task,) = await board.worker(), await board.gateway.submit(board.pool, task_type="clip")
    await worker.claim()
    await board.decide(board.pool)
    await board.condition("a worker is lost", [board.pool], subject=worker.id)
    visitor, pool = await board.visitor(ADMIN), f'href="/pools#pool-{board.pool}"'
    home = (await visitor.get("/")).text
    for way in (pool, f'href="/workers/{worker.id}"', f'href="/decisions?pool={board.pool}"'):
        assert way in home, way
    for path in ("/workers", f"/workers/{worker.id}", "/tasks", f"/tasks/{task}", "/decisions", "/cost"):
        assert pool in (await visitor.get(path)).text, path
    cost = (await visitor.get("/cost")).text
    for way in (f'href="/workers?pool={board.pool}"', 'href="/tasks?task_type=clip"'):
        assert way in cost, way


def test_a_moment_of_another_day_has_its_day() -> None:
    """A time alone would be of today."""
    now = datetime(2026, 11, 30, 0, 5, tzinfo=UTC)
    shown = environment().from_string("{{ at|at }}")
    assert ">00:01:00<" in shown.render(at=now - timedelta(minutes=4), now=now)
    assert ">29 Nov 23:59:00<" in shown.render(at=now - timedelta(minutes=6), now=now)


async def test_a_decision_leads_to_the_workers_that_it_started(board: DashboardRig) -> None:
    """Hostile text around an id stays text."""
    name = "gpu-20261130_133310-32be3b49"
    row = {"pool": board.pool, "rule": "1", "target": 1, "inputs": {}, "actions": [f"spawn {name}: <b>1</b> below"]}
    await board.store.record_decision(board.term, row)
    page = (await (await board.visitor(ADMIN)).get("/decisions")).text
    assert f'spawn <a class="id" href="/workers/{name}">{name}</a>: &lt;b&gt;1&lt;/b&gt; below' in page


async def test_what_is_urgent_looks_urgent(board: DashboardRig) -> None:
    """By its shape and its tint, on the first page."""
    await board.condition("nothing starts", [board.pool])
    page = (await (await board.visitor(ADMIN)).get("/")).text
    assert '<li class="high">' in page
    assert '<h2 class="s s-bad">nothing starts</h2>' in page


async def test_many_pools_begin_with_those_that_are_held_back(board: DashboardRig) -> None:
    """Above the sections of all, a list of links; above the decisions, a few pools and the number of the others."""
    names = [f"{board.pool}-{n:02}" for n in range(20)]
    for name in names:
        await board.decide(name)
    await board.rows.pause("test", "a reason", pool=names[-1])
    visitor = await board.visitor(ADMIN)
    jumps = (await visitor.get("/pools")).text.partition('id="jump"')[2].partition("</nav>")[0]
    found = [name for name in re.findall(r'href="#pool-([^"]+)"', jumps) if name in names]  # tasks are of all fleets
    assert found == [names[-1], *names[:-1]]
    assert "12 more pools" in (await visitor.get("/decisions")).text
    rows = (await visitor.get("/")).text.partition('<section>\n<div class="head"><h2>Pools')[2]
    assert rows.index(names[-1]) < rows.index(names[0])


async def test_a_time_or_a_filter_that_cannot_be_read_is_named_with_its_form(board: DashboardRig) -> None:
    """By the names of the API too, and without the patterns of the program."""
    visitor = await board.visitor(ADMIN)
    for path, words in (
        ("/decisions/blocked?since=abc", "is no time"),
        ("/decisions/blocked?since=2026-01-02T00:00&until=2026-01-01T00:00", "begins after its end"),
        ("/tasks?status=weird", "a status is one of Queued"),
        ("/tasks?label=x", "a label is key=value"),
    ):
        answer = await visitor.get(path)
        assert answer.status_code == 400, path
        assert words in answer.text, path
        assert "pattern" not in answer.text, path


async def test_small_amounts_of_a_bill_have_the_same_digits(board: DashboardRig) -> None:
    """Half of an amount is not the same amount."""
    visitor = await board.visitor(ADMIN)
    for theirs, ours, said in (
        (0.0101, 0.0044, "$0.0101</b> for 3 pods of this fleet; our records say $0.0044, $0.0057 less."),
        (41.2, 41.2, "$41.20</b> for 3 pods of this fleet; our records say $41.20, the same."),
    ):
        bill = {**BILL, "theirs_usd": theirs, "ours_usd": ours}
        assert said in await bill_on_the_page(board, visitor, bill)


async def test_counts_of_tasks_that_stop_at_a_bound_say_at_least(
    board: DashboardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of them too."""
    await board.gateway.submit("full")
    call = board.rows._db.call

    async def bounded(function: str, /, **args: Any) -> Any:
        answer = await call(function, **args)
        if function == "fleet_observe":
            blocked = {"dependencies": 10_000}
            demand = [one | {"claimable": 10_000, "blocked": blocked} for one in answer["demand"][:1]]
            return answer | {"demand": demand}  # other tests of this fleet have left tasks in other pools
        return answer

    monkeypatch.setattr(board.rows._db, "call", bounded)
    board.dashboard.shared.forget_all()
    visitor = await board.visitor(ADMIN)
    for path, text in (
        ("/", "at least 10,000 tasks ready"), ("/tasks", "at least 10,000 ready to run"),
        ("/tasks", "at least 20,000"), ("/pools", "at least 10,000 <small>ready"),
        ("/do/pause", "at least 10,000 ready tasks wait"),
    ):  # fmt: skip
        assert text in (await visitor.get(path)).text, path
