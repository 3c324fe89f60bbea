"""The open connections. A connection is anonymous until one of its requests carries a worker's valid token.

A worker's new connection is anonymous too until its first request head. So a full server refuses no connection: it
closes the anonymous connection that has been idle longest. Known workers are counted by their token, never by their
address. Behind a proxy, the peer's address is the proxy's, and anonymous callers are counted together.
"""

from collections.abc import Mapping
from typing import Protocol

from starlette.requests import HTTPConnection
from starlette.responses import Response

from orchestrator.web.errors import TOO_FAST, Refusal
from orchestrator.web.token_buckets import ANONYMOUS_REQUESTS, PROBE_REQUESTS, Buckets

MAX_ANONYMOUS = 1_024  # connections without a token, with those of a platform's probes
MAX_PER_ADDRESS = 64  # of these, from one address that is not a proxy's
MAX_PER_TOKEN = 16  # an agent holds three
Peer = tuple[str, int]


class Connection(Protocol):
    """One connection."""

    peer: Peer

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        ...

    def mark_known(self) -> None:
        """Mark it as a worker's connection, which may stay open for longer."""
        ...

    def close_now(self) -> None:
        """Close it."""
        ...


class Connections:
    """The connections of one server. All methods run on its event loop."""

    def __init__(self, proxy_hops: int = 0) -> None:
        """`proxy_hops`: the number of our proxies that a request passes. Each appends to X-Forwarded-For."""
        self._proxy_hops = proxy_hops
        self._requests, self._probes = Buckets(ANONYMOUS_REQUESTS), Buckets(PROBE_REQUESTS)
        self._anonymous: dict[Peer, Connection] = {}  # oldest first
        self._by_address: dict[str, dict[Peer, Connection]] = {}
        self._by_token: dict[str, dict[Peer, Connection]] = {}
        self._tokens: dict[Peer, str] = {}

    def opened(self, connection: Connection) -> None:
        """Add a new connection."""
        host = connection.peer[0]
        self._anonymous[connection.peer] = connection
        self._by_address.setdefault(host, {})[connection.peer] = connection
        if not self._proxy_hops and len(self._by_address[host]) > MAX_PER_ADDRESS:
            _end_oldest(self._by_address[host])
        if len(self._anonymous) > MAX_ANONYMOUS:
            _end_oldest(self._anonymous)

    def closed(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._forget_anonymous(connection.peer)
        token = self._tokens.pop(connection.peer, None)
        if token is not None:
            self._by_token[token].pop(connection.peer, None)
            if not self._by_token[token]:
                del self._by_token[token]

    def known(self, peer: Peer | None, token: str) -> None:
        """Mark the connection as a worker's, after a request with a valid token."""
        connection = self._anonymous.get(peer) if peer else None
        if connection is None:
            return
        self._forget_anonymous(connection.peer)
        self._tokens[connection.peer] = token
        ours = self._by_token.setdefault(token, {})
        ours[connection.peer] = connection
        connection.mark_known()
        if len(ours) > MAX_PER_TOKEN:
            _end_oldest(ours)

    def allows(self, request: HTTPConnection, now_s: float) -> bool:
        """Whether an anonymous address may make another refused request."""
        return self._requests.take(self.address(request), 1, now_s)

    def refuse(self, request: HTTPConnection, refusal: Refusal, now_s: float) -> Response:
        """Return the refusal for an anonymous caller.

        An address with too many of them gets 429, and the connection closes.
        """
        if self.allows(request, now_s):
            return refusal.response()
        return Refusal(429, TOO_FAST, "Too many requests without a valid token").response(closes=True)

    def keeps_probe(self, request: HTTPConnection, now_s: float) -> bool:
        """Whether a probe's connection stays open. Every probe is answered, also from an attacker's address."""
        return self._probes.take(self.address(request), 1, now_s)

    def address(self, request: HTTPConnection) -> str:
        """Return the caller's address as our outermost proxy saw it. Entries that the caller wrote are ignored."""
        hops = ",".join(request.headers.getlist("x-forwarded-for")).split(",") if self._proxy_hops else []
        if hops and len(hops) >= self._proxy_hops and hops[-self._proxy_hops].strip():
            return hops[-self._proxy_hops].strip()[:64]
        return request.client.host if request.client else ""

    def _forget_anonymous(self, peer: Peer) -> None:
        if self._anonymous.pop(peer, None) is not None:
            same = self._by_address[peer[0]]
            same.pop(peer, None)
            if not same:
                del self._by_address[peer[0]]


def _end_oldest(connections: Mapping[Peer, Connection]) -> None:
    for connection in connections.values():
        if not connection.busy:
            connection.close_now()
            return
