"""How the server closes: pending answers are sent, and one that takes too long does not become an error of ours."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from orchestrator.web.server import GatewayServer
from orchestrator.web.wakeups import WakeupHub
from testbed.services.free_port import free_port

DEADLINE_S = 20.0
IDLE, SLOW = "/idle", "/slow"


class _House:
    """A server with an endpoint whose answers wait until the test releases them."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.asked, self.let_go = threading.Event(), threading.Event()
        self.gateway = GatewayServer(host, self.port, self._application)

    @asynccontextmanager
    async def _application(self, _: WakeupHub) -> AsyncIterator[Starlette]:
        async def idle(_: Request) -> Response:
            return PlainTextResponse("here")

        async def slow(_: Request) -> Response:
            self.asked.set()
            while not self.let_go.is_set():
                await asyncio.sleep(0.005)
            return PlainTextResponse("done")

        yield Starlette(routes=[Route(IDLE, idle), Route(SLOW, slow)])

    async def until_open(self, client: httpx.AsyncClient) -> httpx.Response:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                with contextlib.suppress(httpx.TransportError):
                    return await client.get(IDLE)
                await asyncio.sleep(0.01)


async def test_a_closing_server_completes_a_running_answer() -> None:
    house = _House()
    house.gateway.open()
    async with httpx.AsyncClient(base_url=house.url, timeout=DEADLINE_S) as client:
        await house.until_open(client)  # this connection stays open, and idle
        answer = asyncio.create_task(client.get(SLOW))
        assert await asyncio.to_thread(house.asked.wait, DEADLINE_S)
        closing = asyncio.create_task(house.gateway.close(DEADLINE_S))
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    async with httpx.AsyncClient(base_url=house.url) as newcomer:
                        await newcomer.get(IDLE)
                except httpx.TransportError:
                    break  # it takes no calls any more
        await asyncio.wait([answer], timeout=0.3)  # longer than a server that does not wait lives on
        house.let_go.set()
        assert (await answer).text == "done"
        await closing
    assert house.gateway.closed.is_set()


async def test_every_address_means_those_of_both_versions() -> None:
    """Railway's documentation asks for `::`, and its health checks come by IPv4."""
    house = _House("::")
    house.gateway.open()
    async with httpx.AsyncClient(base_url=house.url, timeout=DEADLINE_S) as client:
        assert (await house.until_open(client)).text == "here"
    async with httpx.AsyncClient(base_url=f"http://[::1]:{house.port}", timeout=DEADLINE_S) as client:
        assert (await client.get(IDLE)).text == "here"
    second = GatewayServer("::", house.port, house._application)
    second.open()
    async with asyncio.timeout(DEADLINE_S):
        await second.closed.wait()  # the port is in use
    await house.gateway.close(DEADLINE_S)
    assert house.gateway.closed.is_set()


async def test_an_answer_that_takes_too_long_is_cut_off_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    house = _House()
    house.gateway.open()
    try:
        async with httpx.AsyncClient(base_url=house.url, timeout=DEADLINE_S) as client:
            await house.until_open(client)
            answer = asyncio.create_task(client.get(SLOW))
            assert await asyncio.to_thread(house.asked.wait, DEADLINE_S)
            with caplog.at_level(logging.WARNING):
                await house.gateway.close(0.4)
            assert not house.gateway.closed.is_set()
            assert not answer.done()
            assert caplog.records == []
            answer.cancel()
    finally:
        house.let_go.set()
    async with asyncio.timeout(DEADLINE_S):
        await house.gateway.closed.wait()
