"""What every answer of the dashboard carries, and what none shows."""

import re

import psycopg
import pytest

from orchestrator.core.api_tokens import hash_of
from orchestrator.diagnostics.condition_kinds import LOW, MEDIUM
from orchestrator.ports import Unavailable
from orchestrator.web.dashboard import render
from orchestrator.web.dashboard.pages import PAGES
from orchestrator.web.dashboard.views import Page
from tests.process.web.api_rig import ADMIN, VIEWER
from tests.process.web.builders import SECRET
from tests.process.web.dashboard_rig import COOKIE, DashboardRig

PLAIN = [page for page in PAGES if "{" not in page.path]
STATIC = (
    *("/static/../routes.py", "/static/%2e%2e/routes.py", "/static/x/..%2froutes.py", "/static/x/%2e%2e%2fapp.py"),
    *("/static/{digest}/../../routes.py", "/static/{digest}/nothing", "/static/x/style.css", "/static/{digest}/"),
)


async def test_every_answer_has_the_headers_of_a_page(board: DashboardRig) -> None:
    """No inline script or style, no frame, no guess of a type, no copy; also errors, redirects and files."""
    visitor = await board.visitor(ADMIN)
    answers = [
        await visitor.request(method, path)
        for method in ("GET", "HEAD")
        for path in ("/", "/login", f"/login/{'a' * 43}", "/login/x", "/static/x/y.css", render.static_url("style.css"))
    ]
    answers += [await board.client.get(page.path) for page in PLAIN]
    answers += [await board.client.post(path) for path in ("/login", "/logout", f"/login/{'a' * 43}")]
    answers += [await board.client.post("/login", data={"token": token}) for token in ("x", ADMIN)]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        kept = "immutable" in answer.headers["cache-control"]
        assert kept is ("/static/" in str(answer.url) and answer.status_code == 200)
        assert not re.search(r"<script>|<style|\sstyle=|\son[a-z]+=|javascript:", answer.text)


@pytest.mark.parametrize("path", STATIC)
async def test_no_other_file_is_served(board: DashboardRig, path: str) -> None:
    """By any name; a file of another version neither."""
    digest = render.static_url("style.css").split("/")[2]
    answer = await board.client.get(path.format(digest=digest))
    assert answer.status_code == 404
    assert "import" not in answer.text


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.path)
async def test_a_page_has_no_secrets(board: DashboardRig, page: Page, hand: psycopg.AsyncConnection) -> None:
    """Neither tokens, their hashes, and cookies, nor keys of pods, nor where the database is."""
    await board.furnish()
    row = await board.token("read")
    visitor = await board.visitor(ADMIN)
    text = (await visitor.get(page.path)).text
    secret = [ADMIN, VIEWER, row, SECRET, visitor.cookies[COOKIE]]
    secret += [hash_of(one) for one in secret]
    secret += [one for worker in board.workers for one in (worker.jti, worker.nonce)]
    secret += ["postgres://", "postgresql://", f":{hand.info.port}", "PRIVATE KEY", "ssh-ed25519", "ssh-rsa"]
    assert [one for one in secret if one in text] == []


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.path)
async def test_a_token_that_is_restricted_sees_its_own(board: DashboardRig, page: Page) -> None:
    """Its pools on every page, or the page not at all. One of a tenant, or to submit, sees no page."""
    await board.furnish()
    path = page.path
    whole, mine = await board.visitor(ADMIN), await board.visitor(await board.token("read", pools=[board.pool]))
    elsewhere = await board.visitor(await board.token("read", pools=["nowhere"]))
    others = [worker.id for worker in board.workers if worker.pool == "other"]
    seen = await mine.get(path)
    assert seen.status_code == (403 if page.is_fleets else 200)
    assert "2 workers of a pool" not in (await elsewhere.get(path)).text
    assert 'aria-label="1 problem"' in seen.text or page.is_fleets
    assert '<i id="badge" class="count" hidden>' in (await elsewhere.get(path)).text or page.is_fleets
    assert not any(one in seen.text for one in (*others, ">other<", "pool=other"))
    assert (await whole.get(path)).status_code == 200
    for restricted in (await board.token("admin", tenant="acme"), await board.token("submit")):
        refused = await (await board.earlier(restricted)).get(path)
        assert (refused.status_code, "Not for this token" in refused.text, board.pool in refused.text) == (
            403,
            True,
            False,
        )
        assert 'href="/login"' in refused.text


async def test_a_problem_that_holds_no_pool_up_is_for_those_who_see_the_whole_fleet(board: DashboardRig) -> None:
    """RunPod does not answer, and no pool wants a pod now: the first line says so all the same."""
    await board.condition("RunPod does not answer", [])
    whole, mine = await board.visitor(ADMIN), await board.visitor(await board.token("read", pools=[board.pool]))
    assert "1 thing needs you: RunPod does not answer</h1>" in (await whole.get("/")).text
    assert "RunPod" not in (await mine.get("/")).text


async def test_a_remark_needs_nobody(board: DashboardRig) -> None:
    """It is listed, and neither the first line nor the number in the navigation counts it; they agree on the others."""
    visitor = await board.visitor(ADMIN)
    await board.condition("a retry waits for its time", [board.pool], priority=LOW)
    page = (await visitor.get("/")).text
    assert ("All right" in page, "a retry waits for its time" in page, "needs you" in page) == (True, True, False)
    assert re.search(r'id="badge"[^>]* hidden>0<', page)
    await board.condition("the balance is low", [board.pool], priority=MEDIUM)
    board.dashboard.shared.forget_all()
    page = (await visitor.get("/")).text
    assert "1 thing needs you: the balance is low</h1>" in page
    assert re.search(r'id="badge"[^>]*>1<', page)


async def test_many_problems_of_one_kind_fill_no_page(board: DashboardRig) -> None:
    """Three are shown as a whole; the others are one line that opens, and all of them count."""
    visitor = await board.visitor(ADMIN)
    await board.condition("no handler for type", [board.pool], count=200)
    page = (await visitor.get("/")).text
    assert "200 things need you: no handler for type 0</h1>" in page
    assert page.count("<dt>Must act</dt>") == 3
    assert "<summary>197 more of this kind</summary>" in page
    assert ("<p>no handler for type 102</p>" in page, "<p>and 97 more</p>" in page) == (True, True)


async def test_what_belongs_to_another_pool_is_missing_like_what_never_was(board: DashboardRig) -> None:
    """Its page, its stream and its log. Neither says which of the two it is; names that cannot be are missing too."""
    await board.furnish()
    tasks = [str(one) for one in await board.gateway.submit("other")]
    others = [f"/workers/{worker.id}" for worker in board.workers if worker.pool == "other"]
    others += [f"/tasks/{task}" for task in tasks]
    nobody = ["/workers/gpu-nobody", f"/tasks/{'0' * 8}-0000-0000-0000-{'0' * 12}"]
    wrong = [
        f"/{kind}/{name}" for kind in ("workers", "tasks") for name in ("%00", "x" * 300, "..%2f..", "%F0%9F", "-1")
    ]
    mine, whole = await board.visitor(await board.token("read", pools=[board.pool])), await board.visitor(ADMIN)
    assert {(await whole.get(path)).status_code for path in others} == {200}
    for path in (*others, *nobody, *wrong):
        answer = await mine.get(path)
        assert (path, answer.status_code) == (path, 404)
        assert answer.headers["content-type"].startswith("text/html") or path in wrong
        name = path.rpartition("/")[2]
        assert answer.text.replace(name, "").count("other") == 0
    for path in others:
        answer = await mine.get(f"/live{path}")  # a browser does not open it again
        assert (answer.status_code, "event:" in answer.text) == (404, False)


async def test_what_is_wrong_is_said_on_a_page_of_its_own(board: DashboardRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forbidden, missing, refused, a bug, and a database that is away: the last with since when and why."""
    visitor, submit = await board.visitor(ADMIN), await board.earlier(await board.token("submit"))
    told = {"forbidden": await submit.get("/"), "refused": await visitor.get(f"/?a={'b' * 3_000}")}
    told["nul"] = await visitor.get("/workers?pool=a%00b")

    async def away() -> None:
        raise Unavailable("connection to 10.1.2.3 port 5432 failed")

    monkeypatch.setattr(board.rows, "observe", away)
    told["down"] = await visitor.get("/")
    board.dashboard.shared._answers.clear()
    again = await visitor.get("/")

    async def broken() -> dict[str, object]:
        return {"a secret of the bug": 1}

    monkeypatch.setattr(board.rows, "observe", broken)
    board.dashboard.shared._answers.clear()
    told["broken"] = await visitor.get("/")
    headings = {name: re.findall(r"<h1[^>]*>([^<]*)", answer.text) for name, answer in told.items()}
    assert headings == {
        "forbidden": ["Not for this token"],
        "refused": ["This cannot be done"],
        "nul": ["This cannot be done"],
        "down": ["No figures now"],
        "broken": ["An error of the orchestrator"],
    }
    assert [answer.status_code for answer in told.values()] == [403, 400, 400, 503, 500]
    assert "10.1.2.3" not in told["down"].text
    assert "gave no clear answer" in told["down"].text
    since = [re.findall(r"<time datetime=\"([^\"]+)", answer.text) for answer in (told["down"], again)]
    assert since[0] == since[1] != []
    assert not any(text in told["broken"].text for text in ("secret of the bug", "KeyError", "Traceback", ".py"))


async def test_the_figures_are_new_once_the_database_answers(
    board: DashboardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the next failure begins at its own time."""
    visitor, observe = await board.visitor(ADMIN), board.rows.observe

    async def away() -> None:
        raise Unavailable("no")

    monkeypatch.setattr(board.rows, "observe", away)
    assert (await visitor.get("/")).status_code == 503
    assert board.dashboard.down_since is not None
    monkeypatch.setattr(board.rows, "observe", observe)
    board.dashboard.shared._answers.clear()
    assert (await visitor.get("/")).status_code == 200
    assert board.dashboard.down_since is None


async def test_a_bug_around_a_page_is_a_page_too(board: DashboardRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a connection that breaks, and not JSON."""
    visitor = await board.visitor(ADMIN)
    monkeypatch.setattr("orchestrator.web.dashboard.render.page", lambda *_, **__: 1 / 0)
    answer = await visitor.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "ZeroDivisionError" not in answer.text


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [(b"", None, 415), (b"{}", "application/json", 415), (b"a=b", "multipart/form-data", 415), (b"\xff=\xfe", "", 400),
     (b"nothing", "", 400), (b"&".join([b"a=b"] * 60), "", 400), (b"a=" + b"b" * 9_000, "", 413)],
)  # fmt: skip
async def test_what_is_no_form_is_refused(board: DashboardRig, content: bytes, kind: str | None, status: int) -> None:
    """With a page that says so."""
    headers = {} if kind is None else {"Content-Type": kind or "application/x-www-form-urlencoded"}
    answer = await board.client.post("/login", content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert "This cannot be done" in answer.text


async def test_a_head_request_is_answered_like_a_get_and_holds_no_stream(board: DashboardRig) -> None:
    """Monitors send it."""
    visitor = await board.visitor(ADMIN)
    for path in ("/", "/workers", "/login"):
        answer = await visitor.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
    answer = await visitor.head("/live")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


async def test_pages_and_files_are_compressed(board: DashboardRig) -> None:
    """For those who say that they read that."""
    await board.furnish()
    visitor = await board.visitor(ADMIN)
    for path in ("/", render.static_url("style.css"), render.static_url("live.js")):
        answer = await visitor.get(path)
        assert (answer.headers["content-encoding"], answer.headers["vary"]) == ("gzip", "Accept-Encoding")
        assert "content-encoding" not in (await visitor.get(path, headers={"Accept-Encoding": "identity"})).headers


async def test_a_browser_gets_a_page_for_an_address_that_is_none(board: DashboardRig) -> None:
    """A program gets JSON, as from the gateway."""
    accept = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/nothing", "/workers/", "/rest/v1"):
        page = await board.client.get(path, headers=accept)
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "there is nothing at this address" in page.text
        assert "default-src 'self'" in page.headers["content-security-policy"]
        program = await board.client.get(path)
        assert (program.status_code, program.json()["code"]) == (404, "PGRST125")
    assert (await board.client.get("/api/v1/nothing", headers=accept)).json()["id"] == "E078"
