"""What the dashboard's first line says during a fault: the true cause. `--pictures` keeps a picture of it.

The page is asked for like a browser asks, once a second; it is on the orchestrator's own server.
"""

import asyncio
import re
import secrets
from collections.abc import Callable
from html import unescape
from pathlib import Path

import httpx
from playwright.async_api import async_playwright

from testbed.stack import Stack
from tests.proofs.fault_matrix.health import EXPECTED

ASK_EVERY_S = 1.0
CHROMIUM = "/usr/bin/chromium"
PHONE = (390, 844)
INCIDENTS = frozenset({
    "dry_market", "broke", "quota", "sick_gpu", "store_away", "setup_command", "bad_request", "create_unauthorized",
    "empty_list_for_long", "release_bad", "provider_away", "unauthorized",
})  # fmt: skip
TITLE = re.compile(r"<h1[^>]*>(.*?)</h1>", re.DOTALL)


class PageWatch:
    """Asks until the first line names the cause."""

    def __init__(self, stack: Stack, url: str, name: str, pictures: Path | None) -> None:
        self._url, self._name, self._pictures = url, name, pictures
        self._cause = re.compile(EXPECTED[name].cause)
        self._token = stack.environment["ADMIN_TOKEN"] = secrets.token_hex(32)
        self.lines: list[str] = []  # that were seen, each once

    async def watch(self, has_begun: Callable[[], bool]) -> None:
        """Look until the cause is named, or until cancelled."""
        async with httpx.AsyncClient(base_url=self._url, trust_env=False) as client:
            while not self.named:
                await asyncio.sleep(ASK_EVERY_S)
                if has_begun():
                    await self._look(client)
        if self._pictures is not None:
            await self._picture(self._pictures / f"{self._name}.png")

    @property
    def named(self) -> bool:
        """Whether the last first line says the cause."""
        return bool(self.lines) and bool(self._cause.search(self.lines[-1]))

    def missed(self) -> list[str]:
        """What the page never said."""
        if self.named:
            return []
        return [f"the page never said {self._cause.pattern!r}: {'; '.join(self.lines[-3:]) or 'nothing'}"]

    async def _look(self, client: httpx.AsyncClient) -> None:
        try:
            if not client.cookies:
                await client.post("/login", data={"token": self._token})
            title = TITLE.search((await client.get("/")).text)
        except httpx.HTTPError:  # the case has stopped the orchestrator for a moment
            return
        line = unescape(title[1]).strip() if title else ""
        if line not in self.lines[-1:]:
            self.lines.append(line)

    async def _picture(self, file: Path) -> None:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            width, height = PHONE
            page = await browser.new_page(viewport={"width": width, "height": height})
            await page.goto(f"{self._url}/login?next=/")
            await page.fill("#token", self._token)
            await page.click("button[type=submit]")
            await page.wait_for_selector("#headline")
            await page.screenshot(path=file)
            await browser.close()
