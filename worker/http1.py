"""One kept-alive HTTP/1.1 connection: POST and the answer, with a deadline.

http.client is not used, because its import (with email and ssl) takes longer than the rest of the agent's start.
"""

from __future__ import annotations

import select
import socket
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .agent_state import AgentState

MAX_HEAD_BYTES = 64 << 10
MAX_BODY_BYTES = 64 << 20
CONNECT_TIMEOUT_S = 10.0
NO_CONTENT, NOT_MODIFIED = 204, 304


class Unreachable(Exception):
    """There was no clear answer: the call may have had its effect or not."""


class Interrupted(Exception):
    """The agent stopped waiting for the answer. The call may have had its effect or not."""


class InterruptibleWait:
    """Waits for an answer while `over` returns False. It calls `over` at every wake-up."""

    def __init__(self, state: AgentState, over: Callable[[], bool]) -> None:
        self._state, self._over = state, over

    def wait_readable(self, source: socket.socket, deadline: float) -> None:
        """Wait for the first byte. Raises Interrupted, TimeoutError."""
        while not self._over():
            ready = select.select([source.fileno(), self._state.wake_fd], [], [], _left(deadline))[0]
            if source.fileno() in ready:
                return
            if not ready:
                raise TimeoutError("no answer in time")
            self._state.drain_wake()
        raise Interrupted


class HttpConnection:
    """A connection to one server, opened when needed and reopened after a failure. Used by one thread."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        authority, slash, path = rest.partition("/")
        self.prefix = f"{slash}{path}".rstrip("/")
        self._authority = authority.rpartition("@")[2]
        host, colon, port = self._authority.rpartition(":")
        if not colon or port.endswith("]"):  # no port, or the end of an IPv6 address
            host, port = self._authority, "443" if scheme == "https" else "80"
        self._tls = scheme == "https"
        self._host, self._port = host.strip("[]"), int(port)
        self._socket: socket.socket | None = None
        self._used = False
        self._lookup: _Lookup | None = None  # which an earlier call did not wait for

    def post(
        self, path: str, headers: str, body: bytes, deadline: float, patience: InterruptibleWait | None = None
    ) -> tuple[int, bytes]:
        """Return the answer's status and body. Raises Unreachable, or Interrupted when `patience` ends."""
        head = f"POST {self.prefix}{path} HTTP/1.1\r\nHost: {self._authority}\r\n{headers}"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        while True:
            reused = self._socket is not None
            try:
                return self._exchange(head.encode("latin-1") + body, deadline, patience)
            except (OSError, ValueError) as error:
                untouched = self._socket is not None and not self._used
                self.close()
                # A server may close an idle connection at the moment of the write; this is no failure.
                if not (reused and untouched):
                    raise Unreachable(f"{type(error).__name__}: {error}") from None
            except Interrupted:
                self.close()
                raise

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, request: bytes, deadline: float, patience: InterruptibleWait | None) -> tuple[int, bytes]:
        self._used = False
        if self._socket is None:
            self._socket = self._connect(deadline)
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(request)
        if patience is not None:
            patience.wait_readable(self._socket, deadline)
        answer = _Answer(self._socket, deadline)
        try:
            status, body, keep = answer.read()
        finally:
            self._used = answer.began
        if not keep:
            self.close()
        return status, body

    def _connect(self, deadline: float) -> socket.socket:
        made = self._reach(deadline)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls:
                import ssl  # noqa: PLC0415 10 ms that plain HTTP does not need

                made.settimeout(_left(deadline))
                made = ssl.create_default_context().wrap_socket(made, server_hostname=self._host)
        except BaseException:
            made.close()
            raise
        return made

    def _reach(self, deadline: float) -> socket.socket:
        """Connect to the first address that answers. Each address gets its share of the time until the deadline."""
        failure: Exception = OSError(f"{self._host} has no address")
        addresses = self._resolve(deadline)
        for tried, (family, kind, protocol, _, address) in enumerate(addresses):
            try:
                made = socket.socket(family, kind, protocol)
            except OSError as error:  # the pod has no IPv6
                failure = error
                continue
            try:
                made.settimeout(min(CONNECT_TIMEOUT_S, _left(deadline) / (len(addresses) - tried)))
                made.connect(address)
            except OSError as error:
                made.close()
                failure = error
            else:
                return made
        raise failure

    def _resolve(self, deadline: float) -> list[Any]:
        """Return the server's addresses. If the resolver takes longer than this call, the next one uses its answer."""
        try:
            lookup = self._lookup or _Lookup(self._host, self._port)
        except RuntimeError as error:  # the pod has no room for another thread
            raise OSError(str(error)) from error
        self._lookup = lookup
        lookup.join(min(CONNECT_TIMEOUT_S, _left(deadline)))
        if lookup.is_alive():
            raise TimeoutError(f"the resolver does not answer for {self._host}")
        self._lookup = None
        if lookup.failure is not None:
            raise lookup.failure
        return lookup.addresses


class _Lookup(threading.Thread):
    """One question to the resolver. The resolver has no timeout of ours, so it is asked in a thread."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(name="resolver", daemon=True)
        self._host, self._port = host, port
        self.addresses: list[Any] = []
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.addresses = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:  # ValueError: the name cannot be encoded
            self.failure = error


class _Answer:
    """Reads one response from a socket."""

    def __init__(self, source: socket.socket, deadline: float) -> None:
        self._source, self._deadline = source, deadline
        self._buffer = b""
        self.began = False  # whether a byte has arrived

    def read(self) -> tuple[int, bytes, bool]:
        """Return (status, body, whether the connection can be reused). Raises OSError, ValueError."""
        status = 100
        while 100 <= status < 200:  # noqa: PLR2004 interim answers
            lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
            version, _, rest = lines[0].partition(" ")
            if not version.startswith("HTTP/1."):
                raise ValueError("the answer is not HTTP/1")
            status = int(rest[:3])
        pairs = (line.partition(":") for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        keep = version != "HTTP/1.0" and headers.get("connection", "").lower() != "close"
        if status in {NO_CONTENT, NOT_MODIFIED}:
            return status, b"", keep
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return status, self._chunks(), keep
        if "content-length" in headers:
            return status, self._exactly(int(headers["content-length"])), keep
        return status, self._rest(), False

    def _chunks(self) -> bytes:
        parts, total = [], 0
        while size := int(self._until(b"\r\n").split(b";")[0], 16):
            total += size
            if total > MAX_BODY_BYTES:
                raise ValueError(f"an answer of more than {MAX_BODY_BYTES} bytes")
            parts.append(self._exactly(size))
            self._until(b"\r\n")
        while self._until(b"\r\n"):
            pass  # trailers
        return b"".join(parts)

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise ValueError(f"a header longer than {MAX_HEAD_BYTES} bytes")
            self._more()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _exactly(self, size: int) -> bytes:
        if not 0 <= size <= MAX_BODY_BYTES:
            raise ValueError(f"an answer of {size} bytes")
        parts, have = [self._buffer], len(self._buffer)
        while have < size:
            self._buffer = b""
            self._more()
            parts.append(self._buffer)
            have += len(self._buffer)
        whole = b"".join(parts)
        self._buffer = whole[size:]
        return whole[:size]

    def _rest(self) -> bytes:
        parts, have = [self._buffer], len(self._buffer)
        while have <= MAX_BODY_BYTES:
            self._source.settimeout(_left(self._deadline))
            more = self._source.recv(64 << 10)
            if not more:
                return b"".join(parts)
            parts.append(more)
            have += len(more)
        raise ValueError("an endless answer")

    def _more(self) -> None:
        self._source.settimeout(_left(self._deadline))
        more = self._source.recv(64 << 10)
        if not more:
            raise ConnectionResetError("the server closed the connection")
        self.began = True
        self._buffer += more


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left
