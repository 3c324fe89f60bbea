"""Five questions of an operator, each answered after three clicks at most: by mouse only, and by keyboard only."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from orchestrator.core.host_strikes import Strike
from orchestrator.core.states import State
from tests.process.web.api_rig import ADMIN
from tests.process.web.builders import DEADLINE_S
from tests.process.web.dashboard_rig import DashboardRig
from tests.process.web.test_dashboard_actions import act
from tests.process.web.test_dashboard_browser import browser, visit

__all__ = ["browser"]
WAIT_MS = DEADLINE_S * 1_000
MOST_CLICKS, MOST_TABS = 3, 120
pytestmark = [pytest.mark.full, pytest.mark.needs_program("chromium", "chromium")]
Click = Callable[[Locator], Awaitable[None]]


async def by_mouse(link: Locator) -> None:
    """One click."""
    await link.click()


async def by_keyboard(link: Locator) -> None:
    """Tab until it has the focus, then Enter."""
    for _ in range(MOST_TABS):
        if await link.evaluate("e => e === document.activeElement"):
            break
        await link.page.keyboard.press("Tab")
    else:
        raise AssertionError(f"{link} cannot be reached")
    await link.page.keyboard.press("Enter")


@dataclass(frozen=True, slots=True)
class Question:
    """What an operator asks, the links and buttons on the way, and what the answer says."""

    asked: str
    way: Sequence[tuple[str, str]]  # role and name
    answer: str


async def _questions(board: DashboardRig) -> Sequence[Question]:
    """Make a fleet that has something to say."""
    worker = await board.worker()
    first, cancelled = await board.gateway.submit(board.pool, count=2, task_type="clip")
    (waits,) = await board.gateway.submit(board.pool, task_type="film", depends_on=[first])
    await worker.claim()
    await act(await board.visitor(ADMIN), f"/do/cancel?task={cancelled}", {})
    bad = Strike("machine:m-1", avoid_s=3_600, after=1, memory_s=60)
    await board.store.strike(board.term, bad, code="ECC_ERRORS", evidence={"worker_id": worker.id, "error": "ECC"})
    await board.worker(state=State.SPAWNING)
    nav = "link"
    return (
        Question("why is my task waiting", [(nav, "Tasks"), (nav, waits)], "1 of 1 dependencies: clip"),
        Question("what did last night cost, and why", [(nav, "Cost")], "times the price per hour of each"),
        Question("which machines were bad", [(nav, "Pools")], "machine:m-1"),
        Question("who cancelled this", [(nav, "Tasks"), (nav, cancelled)], "env:admin task.cancel"),
        Question("stop everything now", [(nav, "Stop everything…"), ("button", "Stop everything")], "Everything stops"),
    )


@pytest.mark.parametrize("click", [by_mouse, by_keyboard])
async def test_an_operators_question_is_answered_after_three_clicks(
    board: DashboardRig, browser: Browser, click: Click
) -> None:
    """From the first page on."""
    for question in await _questions(board):
        async with visit(board, browser) as visited:
            page: Page = visited.page
            assert len(question.way) <= MOST_CLICKS
            for role, name in question.way:
                where = page.get_by_role(role, name=name).first  # type: ignore[arg-type]
                await expect(where).to_be_visible(timeout=WAIT_MS)
                await click(where)
            await expect(page.locator("body")).to_contain_text(question.answer, timeout=WAIT_MS)
            assert visited.errors == [], question.asked
