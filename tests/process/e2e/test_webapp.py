"""`./run demo --app` as a visitor sees it: pictures become a video in a browser."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest
from playwright.async_api import Page, async_playwright, expect

from demo.sample_images import paint
from testbed.services import debian

pytestmark = [pytest.mark.full, pytest.mark.needs_program("chromium", "chromium")]

START_TIMEOUT_S, STOP_TIMEOUT_S = 120, 60
VIDEO_TIMEOUT_MS = 120_000
REMEMBER = """() => {
  const parts = document.querySelector("#parts");
  window.shown = [parts.textContent];
  new MutationObserver(() => shown.push(parts.textContent)).observe(parts, {childList: true, subtree: true});
}"""  # every text that the list of parts has had
PHONE, WIDE = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
INTERRUPTED = 130


async def started(directory: Path) -> tuple[asyncio.subprocess.Process, str]:
    """The demo, and the address that it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "demo", "--app", "--directory", str(directory)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # what runs in the background ignores it
    )
    assert process.stdout is not None
    async with asyncio.timeout(START_TIMEOUT_S):
        line = (await process.stdout.readline()).decode()
    found = re.search(r"http://\S+", line)
    assert found, line
    return process, found[0]


async def make_a_video(page: Page, url: str, pictures: list[Path]) -> None:
    """From the choice of the pictures to the video that plays; also after the page is loaded again."""
    await page.goto(url)
    await expect(page.locator("#make")).to_be_disabled()
    await page.locator("#files").set_input_files(pictures)
    await page.get_by_role("button", name="Remove picture 1").click()
    await page.get_by_role("button", name="Make the video").click()
    await expect(page.locator("#parts li")).to_have_count(len(pictures) - 1)  # parts, and the one that joins them
    await page.evaluate(REMEMBER)  # a look now and then misses the progress of a fast machine
    for reloaded in (False, True):
        await expect(page.get_by_role("heading", level=2)).to_have_text("Your video is ready", timeout=VIDEO_TIMEOUT_MS)
        video = page.locator("#video")
        await expect(video).to_be_visible()
        await video.evaluate("video => { video.muted = true; return video.play(); }")
        assert await video.evaluate("video => [video.videoWidth, video.videoHeight]") == [960, 640]
        if not reloaded:
            assert re.search(r"\d+ %", "\n".join(await page.evaluate("shown")))
        await page.reload()


async def test_pictures_become_a_video_in_a_browser(tmp_path: Path) -> None:
    """On a phone and on a wide screen, with live progress. Ctrl-C then ends the demo and all its processes."""
    browser_program = debian.find("chromium", "chromium")
    assert browser_program is not None
    pictures = paint(tmp_path / "pictures", 4, 1)
    process, url = await started(tmp_path / "demo")
    family = psutil.Process(process.pid).children(recursive=True)
    problems: list[str] = []
    try:
        async with async_playwright() as playwright:
            environment: dict[str, str | float | bool] = {**os.environ, **browser_program.environment}
            browser = await playwright.chromium.launch(executable_path=str(browser_program.path), env=environment)
            for viewport in (PHONE, WIDE):
                page = await browser.new_page(viewport=viewport)  # type: ignore[arg-type]  # a dict is what it takes
                page.on("pageerror", lambda error: problems.append(str(error)))
                page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
                await make_a_video(page, url, pictures)
                assert await page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
                await page.close()
            await browser.close()
    finally:
        process.send_signal(signal.SIGINT)
    async with asyncio.timeout(STOP_TIMEOUT_S):
        assert await process.wait() == INTERRUPTED
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, STOP_TIMEOUT_S)
    assert (alive, problems) == ([], [])
