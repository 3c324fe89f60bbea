"""A test that hangs fails, and the next one has a bound too."""

import asyncio
import signal
import threading

import pytest

from tests.bounds import BOUND_S, alarm, bound_s, bounded


async def test_an_asynchronous_test_that_hangs_fails_where_it_waits() -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    for _ in range(2):
        with pytest.raises(TimeoutError):
            await bounded(hangs, 0.01)()


def test_a_test_that_hangs_in_a_thread_or_a_process_fails() -> None:
    for _ in range(2):
        with pytest.raises(TimeoutError, match="no end within"), alarm(0.01):
            threading.Event().wait()


def test_an_outer_alarm_rings_after_an_inner_one() -> None:
    def waits() -> None:
        with alarm(60):
            pass
        threading.Event().wait()

    with pytest.raises(TimeoutError, match="no end within"), alarm(0.1):
        waits()


def test_this_test_has_a_bound() -> None:
    """As each of its tier; the proofs have bounds of their own, by seed."""
    assert bound_s("db/conformance/test_x.py") == BOUND_S["db"]
    assert bound_s("proofs/simulator/test_sim.py") is None
    left_s, _ = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < left_s <= BOUND_S["unit"]
