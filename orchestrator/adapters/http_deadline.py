"""HTTP requests with a limit on the time of the whole reply.

`requests` limits each read. A peer that sends a byte now and then, in the headers or in the TLS handshake too, could
hold its caller for hours. Here, the connection is shut down when the time is over.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import requests
import urllib3
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection

from orchestrator.adapters.http_client import ca_file, proxy


@contextlib.contextmanager
def response(method: str, url: str, limit_s: float, **options: Any) -> Iterator[requests.Response]:
    """Make a request with the options of `requests.request`; the body is to be read inside the block.

    Raises the errors of `requests`, among them ReadTimeout if the block has not ended after `limit_s`; SettingsError if
    a variable of the environment about proxies or certificates cannot be used.
    """
    deadline = _TimeLimit(limit_s)
    try:
        with deadline, session_for(url) as session:
            for scheme in ("http://", "https://"):
                session.mount(scheme, _Adapter())
            with _sent(session, method, url, **options) as reply:
                yield reply
    except requests.RequestException as error:
        if deadline.is_over:
            raise _late(limit_s) from error
        raise
    if deadline.is_over:  # an end in the middle of the headers looks like their end
        raise _late(limit_s)


def session_for(url: str) -> requests.Session:
    """Return a session for this URL's host, which reads nothing of the environment by itself. Raises SettingsError."""
    session = requests.Session()
    session.trust_env = False  # a .netrc would replace the API key
    if (through := proxy(url)) is not None:
        session.proxies = dict.fromkeys(("http", "https"), through)
    session.verify = ca_file()
    return session


def _sent(session: requests.Session, method: str, url: str, **options: Any) -> requests.Response:
    try:
        return session.request(method, url, stream=True, **options)
    except requests.RequestException:
        raise
    except ValueError as error:  # requests reads the address of a redirect that it does not follow
        raise requests.exceptions.InvalidURL("the API redirects to no valid URL") from error


def _late(limit_s: float) -> requests.exceptions.ReadTimeout:
    return requests.exceptions.ReadTimeout(f"not complete within {limit_s:g} s")


class _TimeLimit:
    """Shuts down the connections that this thread makes inside the block, when the time is over."""

    def __init__(self, limit_s: float) -> None:
        self.is_over = False
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._timer = threading.Timer(limit_s, self._end)
        self._timer.daemon = True

    def watch(self, connection: socket.socket) -> None:
        """Shut this connection down too. It is known by a copy, because TLS takes the original."""
        with self._lock:
            self._connections.append(connection.dup())
        if self.is_over:
            self._end()

    def _end(self) -> None:
        self.is_over = True
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        _call.deadline = self
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _call.deadline = None
        self._timer.cancel()
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()


class _RunningCall(threading.local):
    deadline: _TimeLimit | None = None


_call = _RunningCall()


class _Watched(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        connection = super()._new_conn()
        if _call.deadline is not None:
            _call.deadline.watch(connection)
        return connection


class _WatchedTls(_Watched, HTTPSConnection):
    """The same under TLS."""


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Watched


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _WatchedTls


class _Adapter(HTTPAdapter):
    """Makes watched connections, through proxies too."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

    def proxy_manager_for(self, proxy: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **options)
        manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
        return manager
