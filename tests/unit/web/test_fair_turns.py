"""What few calls may use at once is shared by those who ask, and not by how much each of them asks."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest

from orchestrator.ports import Unavailable
from orchestrator.web import role_routing
from orchestrator.web.fair_turns import CALLER, FairTurns, NoTurn
from orchestrator.web.role_routing import API_CALLS, RoleRoutedCalls


def of(caller: str, work: Callable[[], Any]) -> asyncio.Task[Any]:
    """Start this in the name of a caller."""
    context = Context()
    context.run(CALLER.set, caller)
    return asyncio.create_task(work(), context=context)


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Desk:
    """Calls that hold their turn until they are let go."""

    def __init__(self, turns: FairTurns) -> None:
        self.turns, self.served, self.ends = turns, list[str](), list[asyncio.Event]()

    async def call(self) -> None:
        """Take a turn, and hold it."""
        async with self.turns.turn():
            self.served.append(CALLER.get())
            self.ends.append(end := asyncio.Event())
            await end.wait()

    async def let_go(self, number: int) -> None:
        """End the call that was served as this one."""
        self.ends[number].set()
        await settle()


async def test_who_asks_once_does_not_wait_for_all_calls_of_those_who_ask_often() -> None:
    """Twenty calls of one token and ten of another stand before it: one call of each comes first."""
    desk = Desk(FairTurns(2))
    calls = [of("one", desk.call) for _ in range(20)] + [of("two", desk.call) for _ in range(10)]
    await settle()
    calls.append(of("three", desk.call))
    await settle()
    for number in range(6):
        await desk.let_go(number)
    assert desk.served[:2] == ["one", "one"]
    assert sorted(desk.served[2:5]) == ["one", "three", "two"]
    assert sorted(desk.served[5:8]) in (["one", "one", "two"], ["one", "two", "two"])
    for number in range(6, len(calls)):
        await desk.let_go(number)
    await asyncio.gather(*calls)
    assert (*desk.turns._waiting, *desk.turns._has) == (), "nobody is remembered without a call"


async def test_a_caller_has_so_many_turns_at_most() -> None:
    """However long it holds them, others get the rest; its next call is served when one of its own ends."""
    desk = Desk(FairTurns(4, 2))
    calls = [of(name, desk.call) for name in ("one", "one", "one", "two")]
    await settle()
    assert desk.served == ["one", "one", "two"]
    await desk.let_go(2)
    assert desk.served == ["one", "one", "two"]
    await desk.let_go(0)
    assert desk.served == ["one", "one", "two", "one"]
    await desk.let_go(1)
    await desk.let_go(3)
    await asyncio.gather(*calls)


async def test_who_gives_up_takes_no_turn() -> None:
    """A caller that went away while it waited, one that went in the moment of its turn, and one whose time was up."""
    desk = Desk(FairTurns(1))
    first, gone, lucky = (of(name, desk.call) for name in ("one", "two", "three"))
    await settle()
    gone.cancel()
    await settle()
    desk.ends[0].set()
    while not desk.turns._has.get("three"):
        await asyncio.sleep(0)
    lucky.cancel()
    await asyncio.wait({first, gone, lucky})
    held = of("four", desk.call)
    await settle()
    assert desk.served == ["one", "four"]

    async def hurried() -> None:
        async with desk.turns.turn(0.01):
            pytest.fail("there was no turn")

    with pytest.raises(NoTurn):
        await of("five", hurried)
    await desk.let_go(1)
    await held
    assert (*desk.turns._waiting, *desk.turns._has) == ()


class Slow:
    """A database whose calls end when they are told to."""

    def __init__(self) -> None:
        self.asked, self.end = list[str](), asyncio.Event()

    async def call(self, function: str, /, **_: Any) -> str:
        """Wait."""
        self.asked.append(CALLER.get())
        await self.end.wait()
        return function


async def test_a_token_with_many_calls_leaves_the_database_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of the API have few connections: of those that wait, each token's first comes before any second."""
    db, here = Slow(), asyncio.get_running_loop()
    calls = RoleRoutedCalls(db, db, here, lambda: True)
    greedy = [of("greedy", lambda: calls.call("task_page")) for _ in range(50)]
    await settle()
    other = of("other", lambda: calls.call("task_get_for"))
    await settle()
    assert db.asked == ["greedy"] * API_CALLS
    db.end.set()
    assert await other == "task_get_for"
    assert db.asked.index("other") == API_CALLS
    await asyncio.gather(*greedy)
    db.end.clear()
    monkeypatch.setattr(role_routing, "TURN_S", 0.01)
    held = [of("greedy", lambda: calls.call("task_page")) for _ in range(API_CALLS)]
    await settle()
    with pytest.raises(Unavailable, match="no turn within"):
        await of("other", lambda: calls.call("task_get_for"))
    db.end.set()
    await asyncio.gather(*held)
