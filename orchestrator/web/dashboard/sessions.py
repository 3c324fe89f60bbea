"""Who looks at the pages: a cookie with a random number of 256 bits, whose SHA-256 is a row.

The session ends with the token with which somebody signed in, on signing out, and after SESSION_S. A one-time link is a
row too: its first use makes a session that may read. A request that changes something carries `csrf`, which is made
from the cookie: another site can send the cookie, and cannot read it.
"""

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.requests import HTTPConnection
from starlette.responses import Response

from orchestrator.core.api_tokens import TokenHolder, TokenScope, hash_of
from orchestrator.web.api.authentication import CACHE_S, Authentication
from orchestrator.web.api.operations import ApiTasks
from orchestrator.web.api.problems import too_fast
from orchestrator.web.dashboard.shared import Shared
from orchestrator.web.token_buckets import ANONYMOUS_REQUESTS, Buckets

COOKIE = "gpo_session"
SESSION_S = 12 * 3_600.0
ID_BYTES = 32
ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{43}")
MAX_REMEMBERED = 2_000  # sessions
LINK_HOLDER = TokenHolder("link", frozenset({TokenScope.READ}))  # who came by a one-time link


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Somebody who is signed in."""

    holder: TokenHolder
    csrf: str
    expires_at: datetime


class Sessions:
    """The sessions of one process. All methods run on one event loop, and raise Problem or PortError."""

    def __init__(self, rows: ApiTasks, authentication: Authentication) -> None:
        self._rows, self._authentication = rows, authentication
        self._seen = Shared(CACHE_S, MAX_REMEMBERED)  # rows by hash
        self._known: dict[str, None] = {}  # hashes that were valid the last time, the oldest look-up first
        self._unknown = Buckets(ANONYMOUS_REQUESTS)  # questions for cookies and links that may be none, by address

    async def of(self, connection: HTTPConnection) -> SignedIn | None:
        """The session of a request; None if it has none that is valid."""
        cookie = connection.cookies.get(COOKIE, "")
        if not ID_PATTERN.fullmatch(cookie):
            return None
        address = connection.app.state.connections.address(connection)
        row = await self._row(hash_of(cookie), address)
        if row is None or (ends := datetime.fromisoformat(row["expires_at"])) <= datetime.now(UTC):
            return None
        holder: TokenHolder | None = LINK_HOLDER
        if row["token_hash"] is not None:
            holder = await self._authentication.of_hash(row["token_hash"], address)
        return None if holder is None else SignedIn(holder, _csrf(cookie), ends)

    async def sign_in(self, token: str, address: str) -> str | None:
        """The cookie of a new session for this token; None if the token is not valid."""
        holder = await self._authentication.of_token(token, address)
        if holder is None:
            return None
        cookie = secrets.token_urlsafe(ID_BYTES)
        row = {"hash": hash_of(cookie), "token_hash": hash_of(token), "is_link": False, "expires_at": _end()}
        await self._rows.open_session(row, holder.name)
        return cookie

    async def follow(self, link: str, address: str) -> str | None:
        """The cookie of a new session that a one-time link opens; None if the link is not valid."""
        if not ID_PATTERN.fullmatch(link):
            return None
        self._count(address)
        cookie = secrets.token_urlsafe(ID_BYTES)
        return cookie if await self._rows.follow_link(hash_of(link), hash_of(cookie), _end()) else None

    async def end(self, connection: HTTPConnection) -> None:
        """Sign out."""
        cookie = connection.cookies.get(COOKIE, "")
        if ID_PATTERN.fullmatch(cookie):
            await self._rows.end_session(hash_of(cookie))
            self._seen.forget(hash_of(cookie))
            self._known.pop(hash_of(cookie), None)

    async def _row(self, session_hash: str, address: str) -> Any:
        async def ask() -> Any:
            if session_hash not in self._known:
                self._count(address)
            row = await self._rows.session(session_hash)
            self._known.pop(session_hash, None)
            if row is not None:
                self._known[session_hash] = None
                if len(self._known) > MAX_REMEMBERED:
                    del self._known[next(iter(self._known))]
            return row

        return await self._seen.get(session_hash, ask)

    def _count(self, address: str) -> None:
        """Raise Problem if the address tries too many cookies or links: each of them is a query."""
        if not self._unknown.take(address, 1, time.monotonic()):
            raise too_fast("too many unknown sessions from this address")


def with_cookie(response: Response, cookie: str, *, is_secure: bool) -> Response:
    """The response that stores a session's cookie."""
    response.set_cookie(
        COOKIE, cookie, max_age=int(SESSION_S), path="/", secure=is_secure, httponly=True, samesite="strict"
    )
    return response


def _end() -> str:
    return (datetime.now(UTC) + timedelta(seconds=SESSION_S)).isoformat()


def _csrf(cookie: str) -> str:
    return hmac.new(cookie.encode(), b"csrf", hashlib.sha256).hexdigest()
