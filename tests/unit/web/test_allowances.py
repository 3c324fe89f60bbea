"""What one worker's token may use of the gateway at once and per second."""

import asyncio

import pytest

from orchestrator.web import allowances
from orchestrator.web.allowances import CALLS, Allowances
from orchestrator.web.errors import Refusal
from orchestrator.web.token_buckets import Rate


async def test_calls_of_one_token_wait_for_each_other_and_those_of_others_do_not() -> None:
    """So many run, the next one starts when one of them ends, and another token's starts at once."""
    allowed, ends, running = Allowances(), [asyncio.Event() for _ in range(CALLS + 2)], set[int]()

    async def call(caller: str, n: int) -> None:
        async with allowed.turn(caller):
            running.add(n)
            await ends[n].wait()
            running.remove(n)

    tasks = [asyncio.create_task(call("one" if n <= CALLS else "two", n)) for n in range(CALLS + 2)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert running == {*range(CALLS), CALLS + 1}
    ends[0].set()
    await tasks[0]
    for _ in range(10):
        await asyncio.sleep(0)
    assert running == {*range(1, CALLS + 2)}
    for end in ends:
        end.set()
    await asyncio.gather(*tasks)
    assert not allowed._gates, "nobody is remembered without a call"


async def test_a_call_that_gets_no_turn_is_to_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """429, and a caller that went away while it waited takes no turn."""
    monkeypatch.setattr(allowances, "TURN_S", 0.01)
    allowed, end = Allowances(), asyncio.Event()

    async def call() -> None:
        async with allowed.turn("one"):
            await end.wait()

    running = [asyncio.create_task(call()) for _ in range(CALLS)]
    await asyncio.sleep(0)
    with pytest.raises(Refusal) as refused:
        await call()
    assert refused.value.status == allowances.TOO_MANY
    gone = asyncio.create_task(call())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait({gone})
    end.set()
    await asyncio.gather(*running)
    async with allowed.turn("one"):
        pass


async def test_keys_count_as_requests() -> None:
    """A few calls of a thousand keys, then none until the allowance has grown again; a call without keys costs none."""
    allowed, keys = Allowances(), [{"method": "GET", "key": "x"}] * 1_000
    for _ in range(8):
        allowed.admit_keys("one", keys)
    with pytest.raises(Refusal, match="Too many keys"):
        allowed.admit_keys("one", keys)
    allowed.admit_keys("one", None)
    allowed.admit_keys("one", [])
    allowed.admit_keys("two", keys)


async def test_calls_that_bring_tasks_do_not_use_up_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent with short tasks makes many of them; without tasks, the same number is too fast."""
    monkeypatch.setattr(allowances, "WORKER_REQUESTS", Rate(3, 0))
    allowed = Allowances()
    for _ in range(10):
        allowed.admit("one", 100)
        allowed.give_back("one")
    for _ in range(3):
        allowed.admit("one", 100)
    with pytest.raises(Refusal):
        allowed.admit("one", 100)
