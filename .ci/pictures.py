"""Makes the pictures of the docs: a demo's fleet at work, in Debian's Chromium: `.venv/bin/python .ci/pictures.py`.

It writes docs/pictures/*.png, of the overview in light, dark and on a phone, and of a worker. It needs `chromium`.
"""

import asyncio
import re
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.async_api import Browser, Page, async_playwright, expect

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from demo.sample_images import paint  # noqa: E402
from demo.scenario import submit  # noqa: E402
from demo.workload import plan_job, upload  # noqa: E402
from testbed.stack import Stack  # noqa: E402

ColorScheme = Literal["light", "dark"]
PICTURES = ROOT / "docs" / "pictures"
CHROMIUM = "/usr/bin/chromium"
TASKS, IMAGES = 400, 6
TIMEOUT_MS = 240_000
WIDE, PHONE = (1280, 800), (360, 780)
VIEWS: tuple[tuple[str, tuple[int, int], ColorScheme], ...] = (
    ("overview", WIDE, "light"),
    ("overview-dark", WIDE, "dark"),
    ("overview-phone", PHONE, "light"),
)


async def main() -> None:
    """Start a fleet, sign in, and look."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        async with Stack(Path(directory), boot_s=(4, 8)) as stack, async_playwright() as playwright:
            token = stack.environment["ADMIN_TOKEN"] = secrets.token_hex(32)
            await stack.migrate()
            images = paint(stack.directory / "images", IMAGES, 1)
            job = plan_job(await upload(stack.blobs(), images), TASKS)
            await stack.start_orchestrator()
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            await submit(stack, job.tasks)
            for name, size, scheme in VIEWS:
                await _picture(browser, stack.url, token, name, size, scheme)
            await browser.close()


async def _picture(
    browser: Browser, url: str, token: str, name: str, size: tuple[int, int], scheme: ColorScheme
) -> None:
    width, height = size
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = await context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    await page.goto(f"{url}/login?next=/")
    await page.fill("#token", token)
    await page.click("button[type=submit]")
    await _working(page)
    await page.screenshot(path=PICTURES / f"{name}.png")
    if name == "overview":
        await page.goto(f"{url}/workers")
        await page.click("tbody a.id")
        await page.wait_for_selector("#live.s-active")
        await page.screenshot(path=PICTURES / "worker.png")
    await context.close()


async def _working(page: Page) -> None:
    """Wait until a worker is at work, the charts have a line, and the page is live."""
    await expect(page.locator("#fleet > p").first).to_contain_text(re.compile("[1-9][0-9]* active"), timeout=TIMEOUT_MS)
    await page.wait_for_selector("#fleet svg polyline", state="attached")
    await page.wait_for_selector("#live.s-active")


if __name__ == "__main__":
    asyncio.run(main())
