"""What the pages of one process share, and the content of a page at one moment."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import structlog
from starlette.requests import HTTPConnection

from orchestrator.diagnostics import first_cause
from orchestrator.errors import INTERNAL, NO_DATABASE
from orchestrator.ports import PortError
from orchestrator.web.api.operations import Api
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard import render
from orchestrator.web.dashboard.pages import PAGES
from orchestrator.web.dashboard.sessions import Sessions
from orchestrator.web.dashboard.shared import Shared
from orchestrator.web.dashboard.views import Page, Reads, View

MAX_NOTICES = 1_000
PAGE_S = 5.0  # for the facts of a page

log = structlog.get_logger()


class Notices:
    """What was done, by session: its next page says it once."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, str] = OrderedDict()

    def add(self, csrf: str, said: str) -> None:
        """Remember it for the session with this `csrf`."""
        self._said[csrf] = said
        if len(self._said) > MAX_NOTICES:
            self._said.popitem(last=False)

    def pop(self, csrf: str) -> str | None:
        """What was done since the last page."""
        return self._said.pop(csrf, None)


class Dashboard:
    """What the pages of one process share."""

    def __init__(self, api: Api, fleet: str, *, bucket_origin: str | None = None, has_proxy: bool = False) -> None:
        """`bucket_origin`: from where browsers load outputs. `has_proxy`: one of ours passes each request on."""
        self.api, self.fleet, self.shared = api, fleet, Shared()
        self.sessions = Sessions(api.rows, api.authentication)
        self.down_since: datetime | None = None  # the first failure after the last success
        self.notices = Notices()
        self._has_proxy = has_proxy
        self.headers = _headers(bucket_origin)

    def is_secure(self, request: HTTPConnection) -> bool:
        """Whether the browser's connection has TLS. Without a proxy of ours, the header is whatever a caller wrote."""
        said = request.headers.get("x-forwarded-proto", "").split(",")[0].strip() if self._has_proxy else ""
        return (said or request.url.scheme) == "https"

    async def content(self, page: Page, view: View) -> render.Rendered:
        """The content of a page now. Raises Problem or PortError."""
        allowed = (view.holder.pools, view.holder.tenant, view.holder.scopes)
        key = (page.path, tuple(view.path.items()), tuple(sorted(view.query.items())), allowed)
        return await self.shared.get(key, lambda: self._content(page, view))

    async def _content(self, page: Page, view: View) -> render.Rendered:
        reads = Reads(self.api, self.shared, view)
        try:
            async with asyncio.timeout(PAGE_S):
                facts, nav = await page.facts(reads, view), await _nav(self.fleet, page, reads, view)
            shown = {**facts, "command": page.command(view), "view": view}
            content = render.rendered(page.template, shown, nav, datetime.now(UTC))
        except TimeoutError:
            raise Problem(503, NO_DATABASE, f"the database did not answer within {PAGE_S:g} s") from None
        except (Problem, PortError):
            raise
        except Exception as error:
            log.exception("page_broken", page=page.path)
            raise Problem(500, INTERNAL, "this page cannot be made: the log of the orchestrator says why") from error
        self.down_since = None
        return content


async def _nav(fleet: str, page: Page, reads: Reads, view: View) -> Mapping[str, Any]:
    """What stands around every page: the pages that this holder may see, who leads, and how many things are wrong."""
    standing = await reads.get("standing")
    found = [one for one in first_cause.known(standing) if view.holder.concerned(one["pools"])]
    shown = [
        one for one in PAGES
        if one.title and view.holder.may(one.scopes) and not (one.is_fleets and view.holder.pools is not None)
    ]  # fmt: skip
    return {
        "fleet": fleet,
        "pages": [{"path": one.path, "title": one.title} for one in shown],
        "current": page.parent or page.path,
        "problems": len(first_cause.pressing(found, standing["now"])),
        "leader": standing["leader"],
        "at": standing["now"],
    }


def _headers(bucket_origin: str | None) -> dict[str, str]:
    media = f"'self' {bucket_origin}" if bucket_origin else "'self'"
    policy = (
        f"default-src 'self'; img-src {media} data:; media-src {media}; base-uri 'none'; object-src 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    )
    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
    }
