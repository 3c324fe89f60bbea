"""Who holds a connection: a stranger until one of its requests carries a worker's valid token.

A worker's new connection is a stranger's too until its first head has arrived. So a full house turns nobody away: it
closes the connection of the stranger that has been idle longest. Known workers are counted by their token, never by
their address. Behind a proxy the peer's address is the proxy's, and strangers are counted together.
"""

from collections.abc import Mapping
from typing import Protocol

from starlette.requests import HTTPConnection
from starlette.responses import Response

from orchestrator.web.errors import TOO_FAST, Refusal
from orchestrator.web.token_buckets import PROBE_REQUESTS, STRANGER_REQUESTS, Buckets

MAX_STRANGERS = 1_024  # connections of callers without a token; the probes of a platform are among them
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

    def know(self) -> None:
        """It belongs to a worker: it may stay open for longer."""
        ...

    def hang_up(self) -> None:
        """Close it."""
        ...


class Connections:
    """The connections of one server; every method belongs to its event loop."""

    def __init__(self, proxy_hops: int = 0) -> None:
        """`proxy_hops`: how many proxies of ours each request passes; each appends to X-Forwarded-For."""
        self._proxy_hops = proxy_hops
        self._requests, self._probes = Buckets(STRANGER_REQUESTS), Buckets(PROBE_REQUESTS)
        self._strangers: dict[Peer, Connection] = {}  # oldest first
        self._by_address: dict[str, dict[Peer, Connection]] = {}
        self._by_token: dict[str, dict[Peer, Connection]] = {}
        self._tokens: dict[Peer, str] = {}

    def opened(self, connection: Connection) -> None:
        """Somebody has connected."""
        host = connection.peer[0]
        self._strangers[connection.peer] = connection
        self._by_address.setdefault(host, {})[connection.peer] = connection
        if not self._proxy_hops and len(self._by_address[host]) > MAX_PER_ADDRESS:
            _end_oldest(self._by_address[host])
        if len(self._strangers) > MAX_STRANGERS:
            _end_oldest(self._strangers)

    def closed(self, connection: Connection) -> None:
        """It has gone."""
        self._leave_strangers(connection.peer)
        token = self._tokens.pop(connection.peer, None)
        if token is not None:
            self._by_token[token].pop(connection.peer, None)
            if not self._by_token[token]:
                del self._by_token[token]

    def known(self, peer: Peer | None, token: str) -> None:
        """A request on this connection carried a valid token."""
        connection = self._strangers.get(peer) if peer else None
        if connection is None:
            return
        self._leave_strangers(connection.peer)
        self._tokens[connection.peer] = token
        ours = self._by_token.setdefault(token, {})
        ours[connection.peer] = connection
        connection.know()
        if len(ours) > MAX_PER_TOKEN:
            _end_oldest(ours)

    def allows(self, request: HTTPConnection, now_s: float) -> bool:
        """Whether a stranger's address may make another request that is refused anyway."""
        return self._requests.take(self.address(request), 1, now_s)

    def refuse(self, request: HTTPConnection, refusal: Refusal, now_s: float) -> Response:
        """The answer to a stranger; to an address that has had too many of these, 429 on a connection that closes."""
        if self.allows(request, now_s):
            return refusal.response()
        return Refusal(429, TOO_FAST, "Too many requests without a valid token").response(closes=True)

    def keeps_probe(self, request: HTTPConnection, now_s: float) -> bool:
        """Whether a probe's connection stays open. Every probe is answered, also at an attacker's address."""
        return self._probes.take(self.address(request), 1, now_s)

    def address(self, request: HTTPConnection) -> str:
        """Where a request comes from: what our outermost proxy saw. What the caller wrote in front is not believed."""
        said = ",".join(request.headers.getlist("x-forwarded-for")).split(",") if self._proxy_hops else []
        if said and len(said) >= self._proxy_hops and said[-self._proxy_hops].strip():
            return said[-self._proxy_hops].strip()[:64]
        return request.client.host if request.client else ""

    def _leave_strangers(self, peer: Peer) -> None:
        if self._strangers.pop(peer, None) is not None:
            same = self._by_address[peer[0]]
            same.pop(peer, None)
            if not same:
                del self._by_address[peer[0]]


def _end_oldest(connections: Mapping[Peer, Connection]) -> None:
    for connection in connections.values():
        if not connection.busy:
            connection.hang_up()
            return
