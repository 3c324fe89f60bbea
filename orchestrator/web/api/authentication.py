"""The authentication of callers: a Bearer token, from the environment or from a row.

A token from the environment is compared by its SHA-256, in constant time. A row is found by the SHA-256 of the token:
how long that takes shows nothing about other tokens, because no caller can choose the beginning of a hash. The answer
of the database counts for CACHE_S, so a revoked token is refused after that time at the latest.
"""

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from starlette.requests import Request

from orchestrator.core.api_tokens import ENV_ADMIN, ENV_VIEWER, TOKEN_PATTERN, TokenHolder, hash_of
from orchestrator.errors import API_OFF, NOT_SIGNED_IN
from orchestrator.web.api.problems import Problem, too_fast
from orchestrator.web.token_buckets import ANONYMOUS_REQUESTS, Buckets

CACHE_S = 5.0
MAX_TOKEN_CHARS = 512
MAX_REMEMBERED = 2_000  # hashes
KNOWN_S = 3_600.0  # a token that was valid within this time is looked up, also from an address that sends unknown ones
NOBODY_HASH = "0" * 64  # of no token: the question is whether there are any


class TokenRows(Protocol):
    """The tokens in the database."""

    async def use_token(self, token_hash: str) -> Mapping[str, Any]: ...


class Authentication:
    """The tokens of one process. All methods run on one event loop."""

    def __init__(self, rows: TokenRows, *, admin_token: str | None, viewer_token: str | None) -> None:
        given = ((ENV_ADMIN, admin_token), (ENV_VIEWER, viewer_token))
        self._fixed = [(hash_of(token), holder) for holder, token in given if token]
        self._rows = rows
        self._seen: OrderedDict[str, tuple[float, TokenHolder | None]] = OrderedDict()  # hash -> when, who
        self._valid_at: OrderedDict[str, float] = OrderedDict()  # hash -> when it was valid last
        self._asking: dict[str, asyncio.Task[TokenHolder | None]] = {}
        self._any: tuple[float, bool] = (-CACHE_S, False)
        self._unknown = Buckets(ANONYMOUS_REQUESTS)  # look-ups of unknown tokens, by address

    async def require_on(self) -> None:
        """Raise Problem if there is no token at all."""
        if self._fixed:
            return
        now_s = time.monotonic()
        if now_s - self._any[0] >= CACHE_S:
            self._any = (now_s, bool((await self._rows.use_token(NOBODY_HASH))["any"]))
        if not self._any[1]:
            raise Problem(404, API_OFF, "no token exists, so the API is off")

    async def holder(self, request: Request) -> TokenHolder:
        """The holder of the request's token. Raises Problem or PortError."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            await self.require_on()
            raise Problem(401, NOT_SIGNED_IN, "the request has no token")
        found = await self.of_token(token, request.app.state.connections.address(request))
        if found is not None:
            return found
        await self.require_on()
        raise Problem(401, NOT_SIGNED_IN, "the token is not known, has expired, or was revoked")

    async def of_token(self, token: str, address: str) -> TokenHolder | None:
        """The holder of a token that came from this address. Raises Problem or PortError."""
        if len(token) > MAX_TOKEN_CHARS:
            return None
        return await self.of_hash(hash_of(token), address, may_be_a_row=bool(TOKEN_PATTERN.fullmatch(token)))

    async def of_hash(self, token_hash: str, address: str, *, may_be_a_row: bool = True) -> TokenHolder | None:
        """The holder of the token with this SHA-256; None if there is none. Raises Problem or PortError."""
        found = None
        for known, holder in self._fixed:
            if hmac.compare_digest(token_hash, known):
                found = holder
        return await self._of_row(token_hash, address) if found is None and may_be_a_row else found

    async def _of_row(self, token_hash: str, address: str) -> TokenHolder | None:
        now_s = time.monotonic()
        at_s, holder = self._seen.get(token_hash, (-CACHE_S, None))
        if now_s - at_s >= CACHE_S:
            asking = self._asking.get(token_hash)
            if asking is None:
                is_known = now_s - self._valid_at.get(token_hash, -KNOWN_S) < KNOWN_S
                if not is_known and not self._unknown.take(address, 1, now_s):
                    raise too_fast("too many unknown tokens from this address")
                asking = self._asking[token_hash] = asyncio.create_task(self._ask(token_hash), name="api_token")
            holder = await asyncio.shield(asking)  # one caller that goes does not end the look-up of the others
        if holder is not None and holder.expires_at is not None and holder.expires_at <= datetime.now(UTC):
            return None
        return holder

    async def _ask(self, token_hash: str) -> TokenHolder | None:
        """Look a token up, once for all calls that wait for the answer."""
        try:
            row = (await self._rows.use_token(token_hash))["token"]
        finally:
            del self._asking[token_hash]
        now_s, holder = time.monotonic(), None if row is None else TokenHolder.of(row)
        _remember(self._seen, token_hash, (now_s, holder))
        if holder is not None:
            _remember(self._valid_at, token_hash, now_s)
        return holder


def _remember(memory: "OrderedDict[str, Any]", key: str, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > MAX_REMEMBERED:
        memory.popitem(last=False)
