"""The dashboard in Debian's Chromium: each page at both widths and in both colours, and what an open page does."""

import asyncio
import gzip
import os
import re
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import psycopg
import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.core.api_tokens import ENV_ADMIN
from orchestrator.core.states import State
from orchestrator.web.dashboard import stream
from orchestrator.web.dashboard.pages import PAGES
from testbed.services import debian
from tests.process.web.api_rig import ADMIN
from tests.process.web.builders import DEADLINE_S
from tests.process.web.dashboard_rig import BILL, COOKIE, HOSTILE, DashboardRig, dashboard_rig, until

AXE = Path(__file__).parent / "axe" / "node_modules" / "axe-core" / "axe.min.js"  # .ci/typescript installs it
MAX_LINKS, MAX_ALIKE = 300, 3
ID = re.compile(r"(?<=/)[^/]*[0-9][^/]*(?=/|$)")  # of a worker or a task, in an address
WAIT_MS = DEADLINE_S * 1_000
LINK = re.compile(r'<a\s[^>]*?href="([^"#]+)')
HOSTILE_PARTS = "[onerror], main script, main img"
BUDGET_BYTES, MAX_PAGE_BYTES = 60 << 10, 300_000

pytestmark = [pytest.mark.full, pytest.mark.needs_program("chromium", "chromium")]


async def walked(visitor: httpx.AsyncClient) -> dict[str, httpx.Response]:
    """The addresses that links lead to, from `/` on; of those that differ in values only, a few."""
    seen: dict[str, httpx.Response] = {}
    alike: Counter[tuple[str, tuple[str, ...]]] = Counter()
    left = deque(["/"])
    while left:
        path = left.popleft()
        address = urlsplit(path)
        kind = ID.sub("*", address.path), tuple(sorted(parse_qs(address.query)))
        if path in seen or alike[kind] >= MAX_ALIKE:
            continue
        alike[kind] += 1
        seen[path] = await visitor.get(path)
        found = [urljoin(path, one.replace("&amp;", "&")) for one in LINK.findall(seen[path].text)]
        left.extend(one for one in found if one.startswith("/"))
        assert len(seen) < MAX_LINKS
    return seen


def one_of_each_page(paths: list[str]) -> list[str]:
    """The first address of each page of the table."""
    kinds = {page.path: re.compile(re.sub(r"\{[^}]+\}", "[^/?]+", page.path)) for page in PAGES}
    found: dict[str, str | None] = dict.fromkeys(kinds)
    for one in reversed(paths):  # the first page of the table that has such an address answers
        if served := next((name for name, kind in kinds.items() if kind.fullmatch(urlsplit(one).path)), None):
            found[served] = one
    assert all(found.values()), found
    return [one for one in found.values() if one]


@dataclass(slots=True)
class Visit:
    """A page in the browser, and what went wrong on it."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Listen."""
        self.page.on("pageerror", lambda error: self.errors.append(f"{self.page.url}: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on(
            "console",
            lambda said: (
                self.errors.append(f"{self.page.url}: {said.text}") if said.type in {"error", "warning"} else None
            ),
        )


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One for all tests."""
    program = debian.find("chromium", "chromium")
    assert program is not None
    async with async_playwright() as playwright:
        environment: dict[str, str | float | bool] = {**os.environ, **program.environment}
        browser = await playwright.chromium.launch(executable_path=str(program.path), env=environment)
        yield browser
        await browser.close()


@asynccontextmanager
async def visit(board: DashboardRig, browser: Browser, path: str = "/", **options: Any) -> AsyncIterator[Visit]:
    """A page of somebody who is signed in."""
    cookie = (await board.visitor(ADMIN)).cookies[COOKIE]
    context = await browser.new_context(**options)
    await context.add_cookies([{"name": COOKIE, "value": cookie, "url": board.url, "sameSite": "Strict"}])
    visited = Visit(await context.new_page())
    await visited.page.goto(board.url + path)
    try:
        yield visited
    finally:
        await context.close()


async def test_every_link_on_every_page_answers(board: DashboardRig) -> None:
    """From the first page on."""
    await board.furnish()
    found = await walked(await board.visitor(ADMIN))
    assert {path: answer.status_code for path, answer in found.items() if answer.status_code != 200} == {}
    one_of_each_page(list(found))


@pytest.mark.parametrize("width", [320, 360, 1440, 3840])
async def test_each_page_fits_and_has_no_errors(board: DashboardRig, browser: Browser, width: int) -> None:
    """No scrolling to the side, nothing on the console, no request to another origin."""
    await board.furnish()
    paths = one_of_each_page(list(await walked(await board.visitor(ADMIN))))
    async with visit(board, browser, viewport={"width": width, "height": 800}) as visited:
        for path in paths:
            await visited.page.goto(board.url + path)
            await expect(visited.page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
            wide = await visited.page.evaluate(
                "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
                ".map(e => e.outerHTML.slice(0, 120)).slice(0, 5)"
            )
            assert (path, wide) == (path, [])
            assert await visited.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert visited.errors == []
        assert [url for url in visited.requests if not url.startswith(board.url)] == []


@pytest.mark.parametrize("width", [320, 850, 1440])
async def test_long_names_fit(board: DashboardRig, browser: Browser, width: int) -> None:
    """No scrolling to the side on a phone, a tablet and a screen; a state is not broken within a word."""
    name = "p" * 63
    await board.worker(name)
    await board.decide(name)
    await board.gateway.submit(name, task_type="t" * 200)
    bill = BILL | {"unbooked_usd": 9, "unbooked_pods": 1, "unbooked": [{"pod_id": "p" * 200, "usd": 9}]}
    await board.store.note_bill(board.term, bill)
    await board.store.note_bill(board.term, {"error": "e" * 300})
    async with visit(board, browser, viewport={"width": width, "height": 800}) as visited:
        for path in ("/", "/workers", "/tasks", "/decisions", "/decisions/blocked", "/pools", "/cost"):
            await visited.page.goto(board.url + path)
            assert await visited.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        await visited.page.goto(f"{board.url}/workers")
        state = visited.page.locator("[data-l=state] .s")
        assert await state.evaluate("e => e.getClientRects().length") == 1


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (.ci/typescript)")
@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing(
    board: DashboardRig, browser: Browser, width: int, scheme: Literal["light", "dark"]
) -> None:
    """On each page, and on the page of sign-in."""
    await board.furnish()
    paths = one_of_each_page(list(await walked(await board.visitor(ADMIN))))
    rules, found = AXE.read_text(), []
    async with visit(board, browser, viewport={"width": width, "height": 800}, color_scheme=scheme) as visited:
        for path in [*paths, "/login", f"/login/{'a' * 43}", "/workers?cursor=x"]:
            await visited.page.goto(board.url + path)
            await visited.page.evaluate(rules)
            answer = await visited.page.evaluate("axe.run()")
            found += [
                (path, one["id"], node["html"][:150], node["failureSummary"][:300])
                for one in answer["violations"]
                for node in one["nodes"][:3]
            ]
    assert found == []


async def test_a_page_is_read_without_javascript(board: DashboardRig, browser: Browser) -> None:
    """And followed by its links; the form of sign-in works too."""
    await board.furnish()
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(f"{board.url}/workers?state=active")
    await page.get_by_label("Token").fill(ADMIN)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Workers: 4")
    assert page.url.endswith("/workers?state=active")
    await expect(page.locator("main")).to_contain_text(board.workers[0].id)
    await page.get_by_role("link", name="Overview").click()
    await expect(page.locator("main")).to_contain_text("2 workers of a pool are stuck")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("Token")).to_be_visible()
    await context.close()


async def test_a_one_time_link_opens_itself(board: DashboardRig, browser: Browser) -> None:
    """Without a click."""
    page = await browser.new_page()
    await page.goto(f"{board.url}/login/{await board.link()}")
    await expect(page.locator("footer")).to_contain_text("link, until", timeout=WAIT_MS)
    await page.context.close()


async def test_a_link_from_another_site_finds_the_session(board: DashboardRig, browser: Browser) -> None:
    """The cookie does not come with the first request, and does with the second; each time."""
    async with visit(board, browser) as visited:
        other = board.url.replace("127.0.0.1", "localhost")
        for _ in range(2):
            await visited.page.goto(f"{other}/login")
            await visited.page.evaluate(f"location.href = '{board.url}/workers'")
            await expect(visited.page.get_by_role("heading", level=1)).to_have_text("Workers: 0", timeout=WAIT_MS)


async def test_a_worker_changes_on_an_open_page(board: DashboardRig, browser: Browser) -> None:
    """Without loading it again. Focus, selection, opened details and what somebody types survive."""
    await board.furnish()
    worker = board.workers[1]
    async with visit(board, browser, "/workers") as visited:
        page, row = visited.page, visited.page.locator(f"#w-{worker.id}")
        await expect(row).to_contain_text("spawning")
        await page.evaluate("window.here = true")
        await row.get_by_role("link", name=worker.id).focus()
        await page.keyboard.press("k")
        await page.keyboard.press("j")
        chosen = page.locator("tr[aria-selected]")
        before = await chosen.get_attribute("id")
        await page.get_by_label("Pool").fill("half a na")
        await board.gateway.move(worker, (State.SPAWNING,), State.ACTIVE)
        await board.worker()
        await expect(row).to_contain_text("active", timeout=WAIT_MS)
        await expect(page.get_by_role("heading", level=1)).to_have_text("Workers: 5", timeout=WAIT_MS)
        await expect(page).to_have_title(re.compile("Workers: 5"))
        assert await page.evaluate("window.here && document.activeElement.name") == "pool"
        assert await page.get_by_label("Pool").input_value() == "half a na"
        assert await chosen.get_attribute("id") == before


async def test_what_somebody_types_into_the_filters_of_tasks_survives(board: DashboardRig, browser: Browser) -> None:
    """While tasks arrive. The form has a field named id, as its own property `id` is called."""
    async with visit(board, browser, "/tasks") as visited:
        page = visited.page
        await expect(page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
        await page.get_by_label("Type").fill("half a na")
        for _ in range(2):
            (task,) = await board.gateway.submit(board.pool)
            await expect(page.locator(f"a[href='/tasks/{task}']").first).to_be_visible(timeout=WAIT_MS)
        assert await page.get_by_label("Type").input_value() == "half a na"
        assert await page.evaluate("document.activeElement.name") == "task_type"


async def test_opened_details_and_a_selection_survive(board: DashboardRig, browser: Browser) -> None:
    """While the figures around them change."""
    await board.furnish()
    async with visit(board, browser) as visited:
        page = visited.page
        await expect(page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
        await page.locator("#queue summary").click()
        await page.locator("#queue summary").focus()
        await page.evaluate("getSelection().selectAllChildren(document.querySelector('#queue details p'))")
        selected = await page.evaluate("getSelection().toString()")
        await board.gateway.submit(board.pool, 2)
        await expect(page.locator(f"#pool-{board.pool} [data-l=ready]")).to_have_text("5", timeout=WAIT_MS)
        assert await page.locator("#queue details").evaluate("e => e.open && e.contains(document.activeElement)")
        assert await page.evaluate("getSelection().toString()") == selected != ""


async def test_a_page_that_is_paused_asks_for_nothing(board: DashboardRig, browser: Browser) -> None:
    """It says so, and goes on from where it was."""
    await board.furnish()
    async with visit(board, browser, "/workers") as visited:
        page = visited.page
        await expect(page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
        await page.keyboard.press("p")
        await expect(page.locator("#live")).to_have_text("paused")

        async def is_over() -> bool:
            return not board.api.watch._by_token

        async with asyncio.timeout(DEADLINE_S):
            while not await is_over():
                await asyncio.sleep(0.02)
        visited.requests.clear()
        await board.worker()
        looks = await page.evaluate(
            "new Promise(done => setTimeout(() => done(document.querySelector('h1').textContent), 3000))"
        )
        assert (looks, visited.requests) == ("Workers: 4", [])
        await page.get_by_role("button", name="Go on").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Workers: 5", timeout=WAIT_MS)
        assert len(visited.requests) == 1


async def test_a_lost_connection_is_shown_and_restored(api_db: PostgresDb, blobs: S3Blobs, browser: Browser) -> None:
    """Also if a proxy answers in between. The page says how old it is, and the next figures come by themselves."""
    async with dashboard_rig(api_db, blobs) as board:
        await board.furnish()
        port, fleet = httpx.URL(board.url).port or 0, board.dashboard.fleet
        cookie = (await board.visitor(ADMIN)).cookies[COOKIE]
        context = await browser.new_context()
        await context.add_cookies([{"name": COOKIE, "value": cookie, "url": board.url, "sameSite": "Strict"}])
        page = await context.new_page()
        await page.goto(f"{board.url}/workers")
        await expect(page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
        pool = board.pool
    await expect(page.locator("#live")).to_contain_text(re.compile(r"\d+s old"), timeout=WAIT_MS)
    await page.route("**/live/**", lambda route: route.fulfill(status=502, body="Bad gateway"))
    async with page.expect_response(lambda answer: answer.status == 502, timeout=WAIT_MS):
        pass
    await page.unroute("**/live/**")
    async with dashboard_rig(api_db, blobs, fleet=fleet, port=port) as board:
        await board.worker(pool)
        await expect(page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
        await expect(page.get_by_role("heading", level=1)).to_have_text("Workers: 5", timeout=WAIT_MS)
        await context.close()


async def test_a_page_that_nobody_sees_lets_its_connection_go(board: DashboardRig, browser: Browser) -> None:
    """A browser has six for all pages of a site: a seventh page would not load. Seen again, it is as it should be."""
    await board.furnish()
    async with visit(board, browser, "/workers") as visited:
        page = visited.page
        await expect(page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
        see = "document.dispatchEvent(new Event('visibilitychange'))"
        await page.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true})")
        await page.evaluate(f"window.away = true; {see}")

        async def is_let_go() -> bool:
            return not board.api.watch._by_token

        await until(is_let_go)
        await board.worker()
        visited.requests.clear()
        await page.wait_for_timeout(2_500)
        assert (visited.requests, await page.locator("h1").text_content()) == ([], "Workers: 4")
        await page.evaluate(f"window.away = false; {see}")
        await expect(page.get_by_role("heading", level=1)).to_have_text("Workers: 5", timeout=WAIT_MS)
        await expect(page.locator("#live")).to_have_text("live", timeout=WAIT_MS)


async def test_a_connection_through_which_nothing_comes_is_made_anew(
    board: DashboardRig, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A phone that slept may have an open one that leads nowhere: the browser alone would wait for ever."""
    monkeypatch.setattr(stream, "KEEP_ALIVE_S", DEADLINE_S * 10)
    async with visit(board, browser, "/workers") as visited:
        await expect(visited.page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
        begun = [url for url in visited.requests if "/live/" in url]
        async with visited.page.expect_request(lambda one: "/live/" in one.url, timeout=WAIT_MS):
            pass
        assert len(begun) == 1


async def test_the_foot_of_a_page_has_the_moment_of_its_figures(board: DashboardRig, browser: Browser) -> None:
    """Also on a page that has been open for a while."""
    await board.furnish()
    async with visit(board, browser, "/workers") as visited:
        foot = visited.page.locator("#figures")
        await expect(visited.page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
        before = await foot.inner_text()
        await expect(foot).not_to_have_text(before, timeout=WAIT_MS)
        await expect(foot).to_have_text(re.compile(r"^Figures of \d\d:\d\d:\d\d UTC$"))


async def test_a_stale_page_says_so_wherever_a_phone_has_scrolled(board: DashboardRig, browser: Browser) -> None:
    """The bar above has left the screen."""
    await board.furnish()
    async with visit(board, browser, viewport={"width": 360, "height": 640}) as visited:
        page, live = visited.page, visited.page.locator("#live")
        await expect(live).to_have_text("live", timeout=WAIT_MS)
        await page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        await page.route("**/live**", lambda route: route.fulfill(status=502, body="Bad gateway"))
        await page.keyboard.press("p")
        await page.keyboard.press("p")
        await expect(live).to_contain_text("old: connecting again", timeout=WAIT_MS)
        await expect(live).to_be_in_viewport()


async def test_a_page_that_gets_old_says_so_once(board: DashboardRig, browser: Browser) -> None:
    """The age counts on for those who see it; a reader of the screen hears the change alone."""
    async with visit(board, browser, "/workers") as visited:
        page = visited.page
        await expect(page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
        await page.evaluate(
            "window.said = []; const one = document.getElementById('said');"
            "new MutationObserver(() => said.push(one.textContent)).observe(one, {childList: true, subtree: true})"
        )
        await page.route("**/live/**", lambda route: route.fulfill(status=502, body="Bad gateway"))
        await page.keyboard.press("p")
        await page.keyboard.press("p")
        await expect(page.locator("#live")).to_contain_text(re.compile(r"[89]s old"), timeout=WAIT_MS)
        assert await page.evaluate("window.said") == ["paused", "live", "old: connecting again"]


async def test_a_pause_makes_no_old_page_live(board: DashboardRig, browser: Browser) -> None:
    """After "Go on", the page stays old until the service has said something."""
    async with visit(board, browser, "/workers") as visited:
        page, said = visited.page, visited.page.locator("#said")
        await expect(page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
        await page.route("**/live/**", lambda route: route.fulfill(status=502, body="Bad gateway"))
        await page.keyboard.press("p")
        await expect(said).to_have_text("paused", timeout=WAIT_MS)
        await asyncio.sleep(6)  # a page is old after five seconds
        await page.keyboard.press("p")
        assert await said.inner_text() == "old: connecting again"
        await page.unroute("**/live/**")
        await expect(said).to_have_text("live", timeout=WAIT_MS)


async def test_a_command_is_copied_by_the_keyboard(board: DashboardRig, browser: Browser) -> None:
    """As by a click."""
    async with visit(board, browser, "/workers") as visited:
        command = visited.page.locator(".cmd").first
        await command.focus()
        await visited.page.keyboard.press("Enter")
        await expect(visited.page.locator(".copied")).to_have_text("copied", timeout=WAIT_MS)
        assert visited.errors == []


async def test_a_page_whose_subject_is_gone_stops_asking(
    board: DashboardRig, browser: Browser, hand: psycopg.AsyncConnection[Any]
) -> None:
    """It stays as it was, and says why it does not change."""
    worker = await board.worker()
    async with visit(board, browser, f"/workers/{worker.id}") as visited:
        await expect(visited.page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
        await hand.execute("update workers set fleet = 'elsewhere' where id = %s", (worker.id,))
        await expect(visited.page.locator("#live")).to_contain_text("this is gone", timeout=WAIT_MS)
        asked = len(visited.requests)
        await expect(visited.page.locator("#live")).to_contain_text(re.compile(r"1[0-9]s old"), timeout=WAIT_MS)
        assert len(visited.requests) == asked
        await expect(visited.page.get_by_role("heading", level=1)).to_have_text(worker.id)


async def test_a_session_that_ends_leads_to_sign_in(board: DashboardRig, browser: Browser) -> None:
    """The open page does not stay as if it were live."""
    await board.furnish()
    async with visit(board, browser, "/workers") as visited:
        await board.rows.end_session(*[key for key in board.dashboard.sessions._known])  # noqa: C416
        await expect(visited.page.get_by_label("Token")).to_be_visible(timeout=WAIT_MS)


async def test_the_keyboard_reaches_everything(board: DashboardRig, browser: Browser) -> None:
    """Rows, search, help, and the pages of the navigation."""
    await board.furnish()
    async with visit(board, browser, "/workers") as visited:
        page = visited.page
        for key, index in (("j", 0), ("j", 1), ("k", 0)):
            await page.keyboard.press(key)
            row = page.locator("main tbody tr").nth(index)
            await expect(row).to_have_attribute("aria-selected", "true")
            assert await row.evaluate("e => e.contains(document.activeElement)")
        await page.keyboard.press("/")
        assert await page.evaluate("document.activeElement.name") == "pool"
        await page.keyboard.type("j?p")
        assert await page.get_by_label("Pool").input_value() == "j?p"
        await page.get_by_role("heading", level=1).click()
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("?")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_be_hidden()
        await page.keyboard.press("j")
        link = await page.evaluate("document.activeElement.getAttribute('href')")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"**{link}")
        await page.goto(f"{board.url}/workers")
        await page.keyboard.press("g")
        await page.keyboard.press("1")
        await page.wait_for_url(f"{board.url}/")
        assert visited.errors == []


async def test_hostile_texts_are_shown_as_text(board: DashboardRig, browser: Browser) -> None:
    """In a pool, a type, what a worker waits for, a condition, and in the address; before and after a repaint."""
    pool = board.pool
    await board.condition(HOSTILE, [pool], detail=HOSTILE + "x" * 1_000_000)
    worker = await board.worker(pool)
    await board.gateway.submit(pool, 2, task_type=HOSTILE[:100])
    await board.decide(pool)
    hostile = {"task_type": HOSTILE, "labels": [{HOSTILE: "x"}]}
    await board.rows.task_changes.start(ENV_ADMIN, "cancel", hostile, key=None)
    fields: dict[str, Any] = {"waiting_on": "provider", "waiting_for": HOSTILE + "y" * 100_000}
    await board.gateway.move(worker, (State.ACTIVE,), State.ACTIVE, **fields)
    visitor = await board.visitor(ADMIN)
    paths = [path for path, answer in (await walked(visitor)).items() if answer.status_code == 200]
    async with visit(board, browser) as visited:
        page = visited.page
        for path in [*one_of_each_page(paths), "/workers?pool=%3Cscript%3E%22%27%3E"]:
            await page.goto(board.url + path)
            await expect(page.locator("#live")).to_have_text("live", timeout=WAIT_MS)
            assert await page.title() != "taken", path
            assert await page.locator(HOSTILE_PARTS).count() == 0, path
            text = await page.locator("main").inner_text()
            assert not set(text) & {"\x1b", "\u202e"}, path
            assert len(await page.content()) < MAX_PAGE_BYTES, path
        await page.goto(f"{board.url}/workers")
        fields["waiting_for"] = f"{HOSTILE} again"
        await board.gateway.move(worker, (State.ACTIVE,), State.ACTIVE, **fields)
        await expect(page.locator("main")).to_contain_text("again", timeout=WAIT_MS)
        assert (await page.title() != "taken", await page.locator(HOSTILE_PARTS).count()) == (True, 0)
        assert visited.errors == []


async def test_pages_keep_to_their_budget(board: DashboardRig) -> None:
    """An ordinary page with its style and script, compressed, as they are sent."""
    await board.furnish()
    visitor = await board.visitor(ADMIN)
    for path in one_of_each_page(list(await walked(visitor))):
        page = await visitor.get(path)
        files = [await visitor.get(one) for one in set(re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text))]
        sent = {str(one.url): int(one.headers["content-length"]) for one in (page, *files)}
        assert sum(sent.values()) <= BUDGET_BYTES, sent
        assert len(gzip.compress(page.content)) < BUDGET_BYTES / 2


async def test_a_page_with_a_thousand_workers_is_bounded(board: DashboardRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 kB at most, whatever the page is about."""
    await board.furnish()
    observe = board.rows.observe

    async def many() -> Any:
        seen = dict(await observe())
        first = seen["workers"][0]
        seen["workers"] = [{**first, "id": f"gpu-{n:012x}"} for n in range(1_000)]
        return seen

    monkeypatch.setattr(board.rows, "observe", many)
    visitor = await board.visitor(ADMIN)
    found = {path: answer for path, answer in (await walked(visitor)).items() if answer.status_code == 200}
    sizes = {path: len(answer.content) for path, answer in found.items()}
    assert max(sizes.values()) <= MAX_PAGE_BYTES, sizes
    listed: list[str] = []
    path: str | None = "/workers"
    while path:
        text = (await visitor.get(path)).text
        listed += re.findall(r'id="w-(gpu-0{9}[0-9a-f]{3})"', text)
        link = re.search(r'<a href="([^"]+)">Those after<', text)
        path = link and link[1].replace("&amp;", "&")
    assert len(listed) == len(set(listed)) == 1_000
