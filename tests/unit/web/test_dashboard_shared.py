"""Answers that pages share: one question at a time, and nothing kept for longer than it is shared."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.web.dashboard.shared import Shared


class Questions:
    """Questions that are answered when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()

    async def ask(self) -> int:
        """The number of the question."""
        self.asked += 1
        number = self.asked
        await self.may_answer.wait()
        return number


async def is_empty(shared: Shared) -> None:
    """Wait until nothing is kept."""
    async with asyncio.timeout(30):
        while shared._answers:
            await asyncio.sleep(0.005)


async def test_many_ask_once() -> None:
    """Also those that come while the question is open. Each key has its own."""
    shared, one, two = Shared(60), Questions(), Questions()
    asking = [asyncio.create_task(shared.get("one", one.ask)) for _ in range(20)]
    asking += [asyncio.create_task(shared.get("two", two.ask)) for _ in range(20)]
    one.may_answer.set()
    two.may_answer.set()
    assert set(await asyncio.gather(*asking)) == {1}
    assert await shared.get("one", one.ask) == 1
    assert (one.asked, two.asked) == (1, 1)


async def test_an_answer_is_asked_for_again_when_it_is_old_or_forgotten() -> None:
    """An old one is not kept."""
    shared, questions = Shared(0.01), Questions()
    questions.may_answer.set()
    assert await shared.get("k", questions.ask) == 1
    await is_empty(shared)
    assert await shared.get("k", questions.ask) == 2
    shared = Shared(60)
    assert await shared.get("k", questions.ask) == 3
    shared.forget("k")
    assert await shared.get("k", questions.ask) == 4


@pytest.mark.parametrize(("took_s", "kept_s"), [(0.01, 1.0), (0.1, 2.0), (3.0, 5.0)])
async def test_an_answer_that_took_long_is_kept_for_longer(
    monkeypatch: pytest.MonkeyPatch, took_s: float, kept_s: float
) -> None:
    """Twenty times as long as it took, but no longer than five seconds."""
    moments, ends = iter([0.0, took_s]), []
    monkeypatch.setattr("orchestrator.web.dashboard.shared.time", SimpleNamespace(monotonic=lambda: next(moments)))
    later = asyncio.get_running_loop().call_later
    shared, questions = Shared(), Questions()
    questions.may_answer.set()

    def noted(delay_s: float, callback: Any, *args: Any) -> Any:
        if callback == shared._end:
            ends.append(delay_s)
        return later(0 if callback == shared._end else delay_s, callback, *args)

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", noted)
    assert await shared.get("k", questions.ask) == 1
    await is_empty(shared)
    assert ends == [pytest.approx(kept_s - took_s)]


async def test_a_page_that_is_closed_does_not_end_the_question_of_the_others() -> None:
    """Not even the one that asked first."""
    shared, questions = Shared(60), Questions()
    first, second = (asyncio.create_task(shared.get("k", questions.ask)) for _ in range(2))
    while not questions.asked:
        await asyncio.sleep(0)
    first.cancel()
    questions.may_answer.set()
    assert await second == 1
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_an_exception_is_shared_for_a_moment_and_reported_to_nobody_else() -> None:
    """All that wait get it. Nothing is logged if nobody waits any more. It is not kept for as long as answers are."""
    loop, reported, gate = asyncio.get_running_loop(), list[Any](), asyncio.Event()
    shared = Shared(3_600)

    async def fail() -> None:
        await gate.wait()
        raise ValueError("no")

    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    try:
        alone = asyncio.create_task(shared.get("alone", fail))
        waiting = [asyncio.create_task(shared.get("k", fail)) for _ in range(3)]
        await asyncio.sleep(0)
        alone.cancel()
        gate.set()
        assert all(isinstance(one, ValueError) for one in await asyncio.gather(*waiting, return_exceptions=True))
        await is_empty(shared)
    finally:
        loop.set_exception_handler(before)
    assert reported == []


async def test_the_number_of_answers_is_bounded() -> None:
    """The oldest goes; whoever waits for it still gets it."""
    shared, questions = Shared(60, most=3), Questions()
    asking = [asyncio.create_task(shared.get(n, questions.ask)) for n in range(10)]
    while questions.asked < 10:
        await asyncio.sleep(0)
    assert list(shared._answers) == [7, 8, 9]
    questions.may_answer.set()
    assert await asyncio.gather(*asking) == list(range(1, 11))
