"""How calls to the provider get out: in lanes by priority, within what its headers allow."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator import ports
from orchestrator.adapters import runpod_logs
from orchestrator.adapters.runpod import RunPodCloud
from testbed.tasks import ended
from tests.db.conformance.test_cloud import spec
from tests.process.emulator.build import Api, emulated
from tests.unit.core.build import NOW

SLOW_S = 15.0  # more than a busy machine needs for the other calls; nobody waits for it


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """An account of its own: its limits are changed."""
    async with emulated(tmp_path) as made:
        yield made


async def test_slow_creates_delay_neither_a_list_nor_a_delete(api: Api) -> None:
    """Far more creates than go out at once: the list and the delete end before the first of them."""
    cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url, call_timeout_s=20)
    pod = await cloud.create_pod(spec("gpu-0"))
    api.emulator.core.create_s = SLOW_S
    answered: list[str] = []

    async def noted(name: str, call: "asyncio.Future[Any]") -> None:
        await call
        answered.append(name)

    creates = [asyncio.ensure_future(cloud.create_pod(spec(f"gpu-{number}"))) for number in range(1, 20)]
    creating = [asyncio.create_task(noted("create", one)) for one in creates]
    await asyncio.sleep(0)  # they are under way
    others = {"list": cloud.list_pods(), "delete": cloud.delete_pod(pod.id)}
    await asyncio.gather(*(noted(name, asyncio.ensure_future(call)) for name, call in others.items()))
    assert set(answered) == {"list", "delete"}
    await ended(*creating, *creates)


async def test_a_create_without_a_free_call_is_known_not_to_be_sent(api: Api) -> None:
    """The list still goes out: what is left of the window is for it."""
    await api.emulator.control("POST", "/settings", {"per_minute": 20})
    cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url, call_timeout_s=2)
    for _ in range(18):
        await cloud.list_pods()
    with pytest.raises(ports.NotSent) as held:
        await cloud.create_pod(spec())
    assert held.value.retry_after_s > 0
    assert api.emulator.core.calls["POST /v2/pods"] == 0
    assert await cloud.list_pods() == ()
    assert cloud.list_pause_s() > 2


@pytest.mark.parametrize(
    "ask",
    [
        lambda cloud: cloud.volume_id("models"),
        lambda cloud: cloud.prices(),
        lambda cloud: cloud.billing(NOW, NOW),
        lambda cloud: cloud.pod_log("pod"),
    ],
    ids=["volume", "prices", "bill", "log"],
)
async def test_calls_that_can_wait_leave_calls_for_pods(api: Api, ask: Callable[[RunPodCloud], Awaitable[Any]]) -> None:
    """With a third of the window left it waits, and lists and creates go out."""
    await api.emulator.control("POST", "/settings", {"per_minute": 30})
    cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url, call_timeout_s=2)
    for _ in range(20):
        await cloud.list_pods()
    with pytest.raises(ports.NotSent):
        await ask(cloud)
    assert api.emulator.core.calls.total() == 20
    await cloud.create_pod(spec())
    assert len(await cloud.list_pods()) == 1


async def test_a_create_that_finds_no_connection_is_certainly_not_made() -> None:
    """Nobody listens there: it is no create whose outcome is unknown."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        cloud = RunPodCloud("key", base_url=f"http://127.0.0.1:{reserved.getsockname()[1]}", call_timeout_s=5)
        with pytest.raises(ports.NotSent):
            await cloud.create_pod(spec())


async def test_no_call_is_sent_before_retry_after_is_over(api: Api) -> None:
    """Whatever it is for: another call would only be refused too."""
    fault = {"kind": "rate_limited", "operation": "list", "times": 1, "retry_after_s": 60}
    await api.emulator.control("POST", "/faults", fault)
    cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url, call_timeout_s=20)
    with pytest.raises(ports.RateLimited) as refused:
        await cloud.list_pods()
    assert refused.value.retry_after_s > 50
    with pytest.raises(ports.NotSent):
        await cloud.delete_pod("pod")
    assert sum(api.emulator.core.calls.values()) == 1


@pytest.mark.parametrize("piece", [b": still here\n\n", b"x"], ids=["comments", "one_line"])
async def test_a_log_that_never_pauses_is_read_for_a_limited_time(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came until then is the log. Otherwise a few such logs would hold every place for prices and volumes."""
    monkeypatch.setattr(runpod_logs, "MAX_READ_S", 0.3)
    has_gone = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\n\r\ndata: {"message": "pulling image"}\n\n')
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        has_gone.set()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        cloud = RunPodCloud("key", base_url=f"http://127.0.0.1:{port}", call_timeout_s=10)
        assert await cloud.pod_log("pod") == "pulling image"
        async with asyncio.timeout(10):
            await has_gone.wait()
