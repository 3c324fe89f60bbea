"""Who may see the dashboard, and how sessions begin and end."""

import re
import secrets
import time
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.core.api_tokens import hash_of
from orchestrator.web import connections
from orchestrator.web.dashboard.pages import PAGES
from orchestrator.web.token_buckets import Buckets, Rate
from orchestrator.worker_tokens import mint
from tests.process.web.api_rig import ADMIN, VIEWER
from tests.process.web.builders import SECRET
from tests.process.web.dashboard_rig import COOKIE, DashboardRig, csrf_of, dashboard_rig, is_signed_in

PLAIN = [page for page in PAGES if "{" not in page.path]


async def test_without_any_token_the_dashboard_is_off_and_says_how_to_switch_it_on(
    api_db: PostgresDb, blobs: S3Blobs
) -> None:
    """Name and state are shown. No form takes a token."""
    async with dashboard_rig(api_db, blobs, admin=None, viewer=None) as board:
        front = await board.client.get("/")
        assert front.status_code == 200
        assert all(text in front.text for text in ("GPU orchestrator", "State: <strong>", "orchestrator tokens create"))
        assert "<form" not in front.text
        for page in PLAIN[1:]:
            answer = await board.client.get(page.path)
            assert (answer.status_code, "<form" in answer.text) == (401, False)
        assert (await board.client.post("/login", data={"token": ADMIN})).status_code == 401


@pytest.mark.parametrize("kind", ["admin", "viewer", "row"])
async def test_each_kind_of_token_opens_a_session(board: DashboardRig, kind: str) -> None:
    """And shows its name."""
    token = {"admin": ADMIN, "viewer": VIEWER}.get(kind) or await board.token("read", name="laptop")
    front = await (await board.visitor(token)).get("/")
    assert is_signed_in(front)
    assert {"admin": "env:admin", "viewer": "env:viewer", "row": "laptop"}[kind] in front.text


async def test_a_wrong_token_opens_nothing(board: DashboardRig) -> None:
    """Also that of a pod, the metrics' token, and one that is too long."""
    pod = mint(SECRET, "gpu-1", "j", time.time(), 60)
    for token in ("", ADMIN[:-1], f"{ADMIN}x", "gpo_" + "a" * 43, "x" * 5_000, SECRET, pod, "\udcff"):
        answer = await board.client.post("/login", data={"token": token.encode(errors="surrogateescape")})
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
        assert 'role="alert"' in answer.text
        value = f"{COOKIE}={token[:99]}".encode(errors="surrogateescape")
        assert not is_signed_in(await board.client.get("/", headers={b"Cookie": value}))
    assert not is_signed_in(await board.client.get("/", headers={"Authorization": f"Bearer {ADMIN}"}))


async def test_wrong_tokens_cookies_and_links_are_slowed_down_by_address(
    api_db: PostgresDb, blobs: S3Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a page, not JSON. A session that is known goes on."""
    monkeypatch.setattr(connections, "ANONYMOUS_REQUESTS", Rate(3, 0))
    async with dashboard_rig(api_db, blobs) as board:
        visitor = await board.visitor(ADMIN)
        assert is_signed_in(await visitor.get("/"))
        answers = [await board.client.post("/login", data={"token": f"wrong {n}"}) for n in range(5)]
        assert [answer.status_code for answer in answers] == [401] * 3 + [429] * 2
        assert answers[-1].headers["connection"] == "close"
        assert "This cannot be done" in answers[-1].text
        board.dashboard.sessions._unknown = Buckets(Rate(3, 0))
        tried = [{"Cookie": f"{COOKIE}={secrets.token_urlsafe(32)}"} for _ in range(3)]
        assert [(await board.client.get("/workers", headers=one)).status_code for one in tried] == [401] * 3
        for one in tried:
            one["Cookie"] = f"{COOKIE}={secrets.token_urlsafe(32)}"
        assert [(await board.client.get("/workers", headers=one)).status_code for one in tried] == [429] * 3
        link = await board.link()
        assert (await board.client.post(f"/login/{link}", data={"a": "b"})).status_code == 429
        assert is_signed_in(await visitor.get("/"))


@pytest.mark.parametrize(
    ("hops", "proto", "secure"),
    [(0, None, False), (0, "https", False), (1, None, False), (1, "https", True), (1, "http", False),
     (2, "https,http", True)],
)  # fmt: skip
async def test_the_cookie_is_for_this_site_alone(
    api_db: PostgresDb, blobs: S3Blobs, hops: int, proto: str | None, secure: bool
) -> None:
    """Not for scripts, and with TLS not for plain HTTP. A header that a caller writes changes nothing."""
    async with dashboard_rig(api_db, blobs, proxy_hops=hops) as board:
        headers = {"X-Forwarded-Proto": proto} if proto else {}
        answer = await board.client.post("/login", data={"token": ADMIN}, headers=headers)
        flags = answer.headers["set-cookie"].lower().split("; ")
        assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= set(flags)
        assert ("secure" in flags) is secure


async def test_signing_out_ends_the_session(board: DashboardRig) -> None:
    """For everybody who has the cookie. The form must be of this session."""
    visitor, other = await board.visitor(ADMIN), await board.visitor(ADMIN)
    stolen = {"Cookie": f"{COOKIE}={visitor.cookies[COOKIE]}"}
    for csrf in ("", "x", csrf_of(await other.get("/")), "é"):
        assert (await visitor.post("/logout", data={"csrf": csrf})).status_code == 403
    answer = await visitor.post("/logout", data={"csrf": csrf_of(await visitor.get("/"))})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert COOKIE not in visitor.cookies
    assert not is_signed_in(await board.client.get("/", headers=stolen))
    assert is_signed_in(await other.get("/"))


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_form_of_another_site_is_refused(board: DashboardRig, site: str) -> None:
    """Nobody signs a visitor in or out from elsewhere."""
    visitor = await board.visitor(ADMIN)
    csrf = csrf_of(await visitor.get("/"))
    for path, form in (("/login", {"token": ADMIN}), ("/logout", {"csrf": csrf}), (f"/login/{'a' * 43}", {"a": "b"})):
        assert (await visitor.post(path, data=form, headers={"Sec-Fetch-Site": site})).status_code == 403


@pytest.mark.parametrize("origin", ["https://evil.com", "null", "http://[", "http://127.0.0.1:1"])
async def test_a_form_of_a_foreign_origin_is_refused(board: DashboardRig, origin: str) -> None:
    """Also from a browser that does not send Sec-Fetch-Site. The dashboard's own origin is as good as none."""
    answer = await board.client.post("/login", data={"token": ADMIN}, headers={"Origin": origin})
    assert answer.status_code == 403
    assert "the form is from another site" in answer.text
    assert "use a token with" not in answer.text
    own = await board.client.post("/login", data={"token": ADMIN}, headers={"Origin": board.url})
    assert own.status_code == 303


async def test_a_token_that_opens_no_page_cannot_sign_in(board: DashboardRig) -> None:
    """The page says why."""
    for token, why in (
        (await board.token("read", tenant="acme"), "is restricted to a tenant"),
        (await board.token("submit"), "has no scope read"),
    ):
        answer = await board.client.post("/login", data={"token": token})
        assert answer.status_code == 403
        assert f"This token {why}" in answer.text
        assert COOKIE not in answer.cookies


async def test_revoking_the_token_ends_its_sessions(board: DashboardRig) -> None:
    """Within the five seconds for which an answer of the database counts."""
    visitor = await board.visitor(await board.token("read", name="laptop"))
    assert is_signed_in(await visitor.get("/"))
    await board.rows.revoke_token("laptop", "test")
    board.api.authentication._seen.clear()
    assert not is_signed_in(await visitor.get("/"))
    assert (await visitor.get("/workers")).status_code == 401


async def test_another_admin_token_ends_the_sessions_of_the_old_one(api_db: PostgresDb, blobs: S3Blobs) -> None:
    """Those of other tokens survive a restart."""
    async with dashboard_rig(api_db, blobs) as board:
        cookies = [(await board.visitor(token)).cookies[COOKIE] for token in (ADMIN, VIEWER)]
    async with dashboard_rig(api_db, blobs, admin="another-" + "0" * 48, fleet=board.dashboard.fleet) as board:
        seen = [await board.client.get("/", headers={"Cookie": f"{COOKIE}={cookie}"}) for cookie in cookies]
        assert [is_signed_in(answer) for answer in seen] == [False, True]


async def test_a_session_ends_after_twelve_hours(board: DashboardRig, hand: psycopg.AsyncConnection) -> None:
    """Also one whose row is remembered."""
    visitor = await board.visitor(ADMIN)
    row = await board.rows.session(hash_of(visitor.cookies[COOKIE]))
    assert row is not None
    left = datetime.fromisoformat(row["expires_at"]) - datetime.now(UTC)
    assert timedelta(hours=11, minutes=59) < left <= timedelta(hours=12)
    assert is_signed_in(await visitor.get("/"))
    await hand.execute(
        "update orchestrator.sessions set expires_at = now() - interval '1 second' where fleet = %s",
        (board.dashboard.fleet,),
    )
    board.dashboard.sessions._seen.forget(hash_of(visitor.cookies[COOKIE]))
    assert not is_signed_in(await visitor.get("/"))


async def test_a_link_works_once_and_a_preview_does_not_use_it_up(board: DashboardRig) -> None:
    """Programs look at links that people send each other, with GET and HEAD. It opens a session that may read."""
    link, visitor = await board.link(), await board.visitor()
    for method in ("GET", "HEAD", "GET"):
        answer = await board.client.request(method, f"/login/{link}")
        assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
    opened = await visitor.post(f"/login/{link}", data={"": ""})
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    assert is_signed_in(await visitor.get("/"))
    assert (await board.client.post(f"/login/{link}", data={"": ""})).status_code == 401
    as_cookie = {"Cookie": f"{COOKIE}={await board.link()}"}
    assert not is_signed_in(await board.client.get("/", headers=as_cookie))


async def test_a_link_ends_after_its_time(board: DashboardRig) -> None:
    """And one that never was opens nothing."""
    for link in (await board.link(lives_s=-1), "a" * 43):
        assert (await board.client.post(f"/login/{link}", data={"": ""})).status_code == 401
    assert (await board.client.get("/login/short")).status_code == 404


@pytest.mark.parametrize(
    "to", ["//evil.example", "/\\evil.example", "https://evil.example", "https:evil", "javascript:alert(1)", "/\t/evil",
           "evil", "/a\r\nX: y", "///evil", "/%0d%0aX:y" + "a" * 2_000]
)  # fmt: skip
async def test_signing_in_leads_to_no_other_site(board: DashboardRig, to: str) -> None:
    """Whatever the form says."""
    answer = await board.client.post("/login", data={"token": ADMIN, "next": to})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


async def test_signing_in_leads_back_to_the_page_that_was_asked_for(board: DashboardRig) -> None:
    """With its filters."""
    asked = await board.client.get("/workers?state=active&pool=a%26b")
    found = re.search(r'name="next" value="([^"]+)"', asked.text)
    assert found
    to = found[1].replace("&amp;", "&")
    answer = await board.client.post("/login", data={"token": ADMIN, "next": to})
    assert answer.headers["location"] == "/workers?state=active&pool=a%26b"


async def test_the_cookie_opens_neither_the_api_nor_the_calls_of_workers(board: DashboardRig) -> None:
    """A page of another site could send it."""
    visitor = await board.visitor(ADMIN)
    assert (await visitor.get("/api/v1/tasks")).status_code == 401
    assert (await visitor.post("/rest/v1/rpc/worker_claim", json={})).status_code == 401
    assert (await visitor.get("/metrics")).status_code == 401
