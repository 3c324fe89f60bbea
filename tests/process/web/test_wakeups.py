"""Wake-ups of long polls: enough are woken, and none is lost."""

import asyncio
from collections.abc import Callable

from orchestrator.web.wakeups import FANOUT, WakeupHub

LONG_S = 30.0  # never waited out
SOON_S = 5.0  # a wake-up that takes longer has been lost


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0)


async def _asleep(signal: WakeupHub, count: int) -> None:
    await _until(lambda: signal.waiting == count)


async def test_a_wake_up_reaches_one_waiter() -> None:
    """And only in its own pool."""
    signal = WakeupHub()
    mine = asyncio.create_task(signal.wait("a", LONG_S))
    other = asyncio.create_task(signal.wait("b", 0.05))
    await _asleep(signal, 2)
    signal.notify("a")
    async with asyncio.timeout(SOON_S):
        assert await mine is True
        assert await other is False
    assert signal.waiting == 0


async def test_a_wake_up_between_looking_and_waiting_is_not_lost() -> None:
    """The mark taken before the look makes the wait return at once."""
    signal = WakeupHub()
    mark = signal.mark()
    signal.notify("a")
    async with asyncio.timeout(SOON_S):
        assert await signal.wait("a", LONG_S, mark=mark) is True
    assert await signal.wait("a", 0.01, mark=signal.mark()) is False
    assert await signal.wait("b", 0.01, mark=mark) is False


async def test_a_wake_up_does_not_wake_everybody() -> None:
    """A hundred idle workers do not all ask the database because of one task."""
    signal = WakeupHub()
    waits = [asyncio.create_task(signal.wait("a", LONG_S)) for _ in range(100)]
    await _asleep(signal, 100)
    signal.notify("a")
    await _asleep(signal, 99)
    signal.close()
    answers = await asyncio.gather(*waits)
    assert sum(answers) == 1


async def test_the_last_to_become_idle_is_woken_first() -> None:
    """So the others stay idle until their window is over. The order of the waits does not matter."""
    signal, woken = WakeupHub(), list[float]()

    async def worker(idle_since_s: float) -> None:
        if await signal.wait("a", LONG_S, idle_since_s=idle_since_s):
            woken.append(idle_since_s)

    async with asyncio.TaskGroup() as group:
        for since_s in (2.0, 5.0, 1.0, 4.0, 3.0):
            group.create_task(worker(since_s))
        await _asleep(signal, 5)
        for left in (4, 3, 2):
            signal.notify("a")
            await _asleep(signal, left)
        signal.hand_on("a")
    assert woken[:3] == [5.0, 4.0, 3.0]
    assert sorted(woken[3:]) == [1.0, 2.0]


async def test_handing_on_reaches_as_many_as_there_are_tasks() -> None:
    """Each who got a task wakes more, so that 30 tasks in one insert are met by at least 30 waiters."""
    signal, tasks, claims = WakeupHub(), 30, 0

    async def worker() -> None:
        nonlocal tasks, claims
        while await signal.wait("a", LONG_S):
            claims += 1
            if tasks:
                tasks -= 1
                signal.hand_on("a")
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(100):
            group.create_task(worker())
        await _asleep(signal, 100)
        signal.notify("a")
        await _until(lambda: not tasks)
        signal.close()
    assert claims <= 1 + FANOUT * 30


async def test_a_waiter_that_was_woken_and_left_passes_the_wake_up_on() -> None:
    """A client that disconnects in the moment of its wake-up does not take it along."""
    signal = WakeupHub()
    waits = [asyncio.create_task(signal.wait("a", LONG_S)) for _ in range(FANOUT + 1)]
    await _asleep(signal, FANOUT + 1)
    signal.notify("a")
    waits[0].cancel()
    async with asyncio.timeout(SOON_S):
        assert await asyncio.gather(*waits[1:]) == [True] * FANOUT


async def test_a_worker_is_woken_by_its_own_name() -> None:
    """Promotion, drain and stop reach a waiting claim at once, and leave the pool's other waiters asleep."""
    signal = WakeupHub()
    mine = asyncio.create_task(signal.wait(None, LONG_S, worker_id="w-1"))
    other = asyncio.create_task(signal.wait("a", LONG_S, worker_id="w-2"))
    await _asleep(signal, 2)
    signal.on_notification("orchestrator_fleet", "w-1")
    async with asyncio.timeout(SOON_S):
        assert await mine is True
    assert signal.waiting == 1
    signal.on_notification("orchestrator_tasks", "a")
    assert await other is True


async def test_after_a_gap_in_listening_every_waiter_queries_again() -> None:
    """What was notified while nobody listened is unknown."""
    signal = WakeupHub()
    mark = signal.mark()
    waits = [asyncio.create_task(signal.wait(name, LONG_S)) for name in ("a", "a", "a", "b")]
    await _asleep(signal, 4)
    signal.on_notification("connected", "")
    async with asyncio.timeout(SOON_S):
        assert await asyncio.gather(*waits) == [True] * 4
    assert await signal.wait("never heard of", LONG_S, mark=mark) is True


async def test_closing_wakes_all_waiters() -> None:
    """A stopping server does not hold its callers."""
    signal = WakeupHub()
    waits = [asyncio.create_task(signal.wait("a", LONG_S)) for _ in range(3)]
    await _asleep(signal, 3)
    signal.close()
    async with asyncio.timeout(SOON_S):
        assert await asyncio.gather(*waits) == [False] * 3
        assert await signal.wait("a", LONG_S) is False
