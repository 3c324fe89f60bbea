"""What people do to pools on the pages: limits of workers for a time."""

from collections.abc import Mapping

import httpx

from orchestrator.core.states import State
from tests.process.web.api_rig import ADMIN, VIEWER
from tests.process.web.dashboard_rig import DashboardRig, csrf_of


async def act(browser: httpx.AsyncClient, path: str, fields: Mapping[str, str]) -> httpx.Response:
    """Agree to an action as its page asks."""
    asked = await browser.get(path)
    assert asked.status_code == 200, asked.text
    csrf = asked.text.partition('name="csrf" value="')[2].partition('"')[0]
    query = dict(httpx.URL(path).params)
    return await browser.post(httpx.URL(path).path, data={"csrf": csrf, **query, **fields})


async def test_a_limit_says_what_is_there_and_what_it_does(board: DashboardRig) -> None:
    """Before the button: the workers, their cost, and that busy ones finish."""
    for state in (State.ACTIVE, State.SPAWNING):
        await board.worker(state=state)
    page = (await (await board.visitor(ADMIN)).get("/do/limit", params={"pool": board.pool})).text
    assert f"{board.pool} has 2 workers now, 0 of them busy: $" in page
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
