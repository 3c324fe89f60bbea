"""The streams of open pages: what they say, when they end, and what they cost."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import httpx
import pytest

from orchestrator.core.states import State
from orchestrator.ports import Unavailable
from orchestrator.web.dashboard import stream
from orchestrator.web.dashboard.pages.cost import PAGE as COST
from tests.process.web.api_rig import ADMIN
from tests.process.web.builders import DEADLINE_S
from tests.process.web.dashboard_rig import COOKIE, DashboardRig, until

Event = tuple[str, str, Any]  # name, id, content
PAGES_OPEN = 50


async def events(visitor: httpx.AsyncClient, path: str, **headers: str) -> AsyncGenerator[Event]:
    """The events of a stream."""
    async with visitor.stream("GET", path, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.status_code
        name = event_id = ""
        async for line in answer.aiter_lines():
            key, _, value = line.partition(": ")
            if key == "event":
                name, event_id = value, ""
            elif key == "id":
                event_id = value
            elif key == "data":
                yield name, event_id, value if name == "same" else json.loads(value)


async def next_of(stream: AsyncGenerator[Event], *names: str) -> Event:
    """The next event of one of these names."""
    async with asyncio.timeout(DEADLINE_S):
        async for event in stream:
            if event[0] in names:
                return event
    raise AssertionError(names)


async def test_a_change_is_sent_as_the_part_that_differs(board: DashboardRig) -> None:
    """A row of a table, and nothing else of the page."""
    await board.furnish()
    worker, visitor = board.workers[0], await board.visitor(ADMIN)
    async with aclosing(events(visitor, "/live/workers")) as stream:
        _, first, whole = await next_of(stream, "main")
        assert (worker.id in whole["html"], whole["title"]) == (True, "Workers: 4")
        await worker.claim()
        _, second, told = await next_of(stream, "parts", "main")
        assert f"w-{worker.id}" in told["parts"], told
        assert not any(other.id in str(told) for other in board.workers[1:])
        assert first != second != ""


async def test_another_frame_is_sent_whole(board: DashboardRig) -> None:
    """A row that is new has no place among the parts."""
    await board.furnish()
    visitor = await board.visitor(ADMIN)
    async with aclosing(events(visitor, "/live/workers")) as stream:
        await next_of(stream, "main")
        worker = await board.worker()
        _, _, told = await next_of(stream, "main")
        assert worker.id in told["html"]
        assert told["title"] == "Workers: 5"


@pytest.mark.parametrize("way", ["header", "address"])
async def test_a_stream_that_is_opened_again_repeats_nothing(board: DashboardRig, way: str) -> None:
    """It begins with what was missed, or with the word that all is as it was."""
    await board.furnish()
    visitor = await board.visitor(ADMIN)

    def again(known: str) -> AsyncGenerator[Event]:
        if way == "header":
            return events(visitor, "/live/workers?digest=old", **{"Last-Event-ID": known})
        return events(visitor, f"/live/workers?digest={known}")

    async with aclosing(events(visitor, "/live/workers")) as stream:
        _, known, _ = await next_of(stream, "main", "parts")
    async with aclosing(again(known)) as stream:
        assert (await next_of(stream, "same", "main", "parts"))[0] == "same"
    worker = await board.worker()
    board.dashboard.shared._answers.clear()
    async with aclosing(again(known)) as stream:
        name, _, told = await next_of(stream, "same", "main", "parts")
        assert (name, worker.id in told["html"]) == ("main", True)


async def test_a_page_and_its_stream_agree(board: DashboardRig) -> None:
    """A page that was loaded a moment ago is not sent again."""
    await board.furnish()
    visitor = await board.visitor(ADMIN)
    page = (await visitor.get("/workers?state=active")).text
    address = page.partition('data-events="')[2].partition('"')[0].replace("&amp;", "&")
    digest = page.partition('data-digest="')[2].partition('"')[0]
    assert address == "/live/workers?state=active"
    async with aclosing(events(visitor, f"{address}&digest={digest}")) as stream:
        assert (await next_of(stream, "same", "main", "parts"))[0] == "same"


async def test_an_open_page_hears_within_seconds_that_all_is_as_it_was(board: DashboardRig) -> None:
    """Each time with the moment of the figures: a page that hears nothing shows that it is old."""
    visitor = await board.visitor(ADMIN)
    async with aclosing(events(visitor, "/live/workers")) as stream:
        assert len({(await next_of(stream, "same"))[2] for _ in range(3)}) == 3


async def test_a_page_that_is_looked_at_seldom_hears_in_between_that_it_is_followed(board: DashboardRig) -> None:
    """The page of the cost looks each ten seconds: it would call itself old for half of the time."""
    visitor, now = await board.visitor(ADMIN), asyncio.get_running_loop().time
    async with aclosing(events(visitor, "/live/cost")) as stream:
        await next_of(stream, "main")
        began = now()
        assert [(await next_of(stream, "same"))[2] for _ in range(2)] == ["still", "still"]
        assert now() - began < COST.look_s


@pytest.mark.parametrize("end", ["revoked", "signed out"])
async def test_the_end_of_a_session_ends_its_streams(
    board: DashboardRig, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """With an event that makes the page load again. A stream without a session says the same."""
    visitor = await board.visitor(await board.token("read", name="laptop"))
    async with aclosing(events(visitor, "/live")) as stream:
        await next_of(stream, "main")
        if end == "revoked":
            await board.rows.revoke_token("laptop", "test")
        else:
            page = (await visitor.get("/")).text
            csrf = page.partition('name="csrf" value="')[2].partition('"')[0]
            headers = {"Cookie": f"{COOKIE}={visitor.cookies[COOKIE]}"}
            assert (await board.client.post("/logout", data={"csrf": csrf}, headers=headers)).status_code == 303
        assert (await next_of(stream, "signed_out"))[0] == "signed_out"
        assert [event async for event in stream] == []
    async with aclosing(events(board.client, "/live")) as stream:
        assert (await next_of(stream, "signed_out"))[0] == "signed_out"


async def test_a_database_that_is_away_is_said_and_the_stream_goes_on(
    board: DashboardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without addresses of machines. A bug in a page is said in the same way, without details."""
    visitor, observe = await board.visitor(ADMIN), board.rows.observe

    async def away() -> None:
        raise Unavailable("connection to 10.1.2.3 failed")

    async def broken() -> dict[str, int]:
        return {"a secret": 1}

    async with aclosing(events(visitor, "/live/workers")) as stream:
        await next_of(stream, "main")
        monkeypatch.setattr(board.rows, "observe", away)
        assert (await next_of(stream, "trouble"))[2]["why"] == "the database or the bucket gave no clear answer"
        monkeypatch.setattr(board.rows, "observe", broken)
        await until_told(stream, "this page cannot be made: the log of the orchestrator says why")
        monkeypatch.setattr(board.rows, "observe", observe)
        await next_of(stream, "same")
        worker = await board.worker()
        assert worker.id in (await next_of(stream, "main"))[2]["html"]


async def until_told(stream: AsyncGenerator[Event], why: str) -> None:
    """Read troubles until it is this one."""
    while (await next_of(stream, "trouble"))[2]["why"] != why:
        pass


async def test_fifty_open_pages_cost_no_more_queries_than_one(
    board: DashboardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one token, and of another one that sees the same. Queries are counted over several looks."""
    await board.furnish()
    asked: Counter[str] = Counter()
    names = ("observe", "standing", "scaling", "decisions")
    for name in (*names, "session"):
        monkeypatch.setattr(board.rows, name, counted(getattr(board.rows, name), name, asked))
    visitors = [await board.visitor(ADMIN), await board.visitor(await board.token("admin"))]
    now = asyncio.get_running_loop().time
    async with AsyncExitStack() as open_pages:
        streams = [
            await open_pages.enter_async_context(aclosing(events(visitors[n % 2], "/live"))) for n in range(PAGES_OPEN)
        ]
        await asyncio.gather(*[next_of(one, "main") for one in streams])
        asked.clear()
        began = now()
        while not all(asked[name] > 1 for name in names):
            await asyncio.gather(*[next_of(one, "same", "main", "parts") for one in streams])
        seconds = now() - began
    assert all(asked[name] <= seconds + 2 for name in names), asked
    assert asked["session"] <= 2 * (seconds / 5 + 2), asked


def counted(method: Any, name: str, asked: Counter[str]) -> Any:
    """The method, which counts its calls."""

    async def call(*args: Any, **named: Any) -> Any:
        asked[name] += 1
        return await method(*args, **named)

    return call


async def test_a_burst_of_changes_costs_one_event_a_second(board: DashboardRig) -> None:
    """Whatever happens in between."""
    await board.furnish()
    visitor = await board.visitor(ADMIN)
    now = asyncio.get_running_loop().time
    async with aclosing(events(visitor, "/live/workers")) as stream:
        await next_of(stream, "main")
        began, stop = now(), asyncio.Event()

        async def change() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                fields: dict[str, Any] = {"waiting_on": "provider", "waiting_for": f"pod {number}"}
                await board.gateway.move(board.workers[1], (State.SPAWNING,), State.SPAWNING, **fields)

        changing = asyncio.create_task(change())
        told = [await next_of(stream, "parts", "main") for _ in range(4)]
        took_s = now() - began
        stop.set()
        await changing
    assert all(name == "parts" and len(content["parts"]) == 1 for name, _, content in told)
    assert took_s > 2.0  # four events have three pauses between them; a look takes its own time out of each


async def test_a_reader_that_does_not_read_holds_nobody(board: DashboardRig) -> None:
    """Its connection is full; the others hear of each change."""
    await board.furnish()
    visitor, slow = await board.visitor(ADMIN), []
    url = httpx.URL(board.url)
    for _ in range(5):
        _, writer = await asyncio.open_connection(url.host, url.port, limit=1)
        head = f"GET /live/workers HTTP/1.1\r\nHost: x\r\nCookie: {COOKIE}={visitor.cookies[COOKIE]}\r\n\r\n"
        writer.write(head.encode())
        slow.append(writer)
    async with aclosing(events(visitor, "/live/workers")) as stream:
        await next_of(stream, "main")
        for _ in range(2):
            worker = await board.worker()
            while worker.id not in (await next_of(stream, "main"))[2]["html"]:
                pass
    for writer in slow:
        writer.transport.abort()


async def test_a_closed_page_leaves_nothing_behind(board: DashboardRig) -> None:
    """Its place is free, and answers are kept no longer than they are shared."""
    visitor = await board.visitor(ADMIN)
    async with aclosing(events(visitor, "/live")) as stream:
        await next_of(stream, "main")
        assert board.api.watch._by_token == {"page:env:admin": 1}

    async def is_empty() -> bool:
        return not board.api.watch._by_token and not board.dashboard.shared._answers

    await until(is_empty)


async def test_a_stream_has_no_place_for_more_pages_of_a_token_than_a_person_opens(
    board: DashboardRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is told to wait."""
    monkeypatch.setattr("orchestrator.web.api.waiting.MAX_WAITS_PER_TOKEN", 1)
    visitor = await board.visitor(ADMIN)
    async with aclosing(events(visitor, "/live")) as stream:
        await next_of(stream, "main")
        refused = await visitor.get("/live")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")


async def test_a_server_that_stops_ends_its_streams(board: DashboardRig) -> None:
    """Within a second or two; the browser connects again."""
    visitor = await board.visitor(ADMIN)
    async with aclosing(events(visitor, "/live")) as open_page:
        await next_of(open_page, "main")
        board.api.wakeups.close()
        async with asyncio.timeout(DEADLINE_S):
            assert [event for event in [one async for one in open_page] if event[0] != "same"] == []
    assert stream.RETRY_MS <= 5_000
