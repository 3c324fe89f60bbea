"""A call ends at its deadline, also if the pod's resolver or one of several addresses takes longer."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from worker.http1 import HttpConnection, Unreachable

ADDRESS = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
DEADLINE_S = 0.1


class Resolver:
    """Answers once it is released, with a server's address or an error; counts the questions."""

    def __init__(self, port: int) -> None:
        self.answers = threading.Event()
        self.asked = 0
        self.error: OSError | None = None
        self.ports = [port]  # of its addresses

    def resolve(self, host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        assert (host, port) == ("gateway.example", 80)
        self.asked += 1
        self.answers.wait(10)
        if self.error is not None:
            raise self.error
        return [(*ADDRESS, ("127.0.0.1", one)) for one in self.ports]


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """It answers each connection's first request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    made, _ = listening.accept()
                except OSError:
                    return
                with made:
                    made.recv(65_536)
                    made.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        threading.Thread(target=serve, daemon=True).start()
        yield listening
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def resolver(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    slow = Resolver(server.getsockname()[1])
    monkeypatch.setattr(socket, "getaddrinfo", slow.resolve)
    yield slow
    slow.answers.set()


def post(connection: HttpConnection, deadline_s: float = DEADLINE_S) -> tuple[int, bytes]:
    return connection.post("/rpc", "", b"{}", time.monotonic() + deadline_s)


def test_a_call_does_not_wait_for_the_resolver_beyond_its_deadline(resolver: Resolver) -> None:
    began = time.monotonic()
    with pytest.raises(Unreachable, match="the resolver does not answer"):
        post(HttpConnection("http://gateway.example"))
    assert time.monotonic() - began < 5


def test_the_next_call_uses_the_late_answer(resolver: Resolver) -> None:
    """Otherwise an agent whose resolver is slower than a call would never reach the gateway."""
    connection = HttpConnection("http://gateway.example")
    for _ in range(2):
        with pytest.raises(Unreachable):
            post(connection)
    resolver.answers.set()
    assert post(connection, 5) == (200, b"{}")
    assert resolver.asked == 1


def test_each_connection_asks_the_resolver_again(resolver: Resolver) -> None:
    """The gateway may have moved."""
    resolver.answers.set()
    resolver.error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    connection = HttpConnection("http://gateway.example")
    with pytest.raises(Unreachable, match="Temporary failure"):
        post(connection, 5)
    resolver.error = None
    assert post(connection, 5) == (200, b"{}")
    assert resolver.asked == 2


def test_an_address_that_does_not_answer_leaves_time_for_the_next_one(resolver: Resolver) -> None:
    """As IPv6 on a pod that has no way out for it. Each call is as long as one connection may take."""
    resolver.answers.set()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as mute:
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:  # nobody accepts them: there is no room for another one
            one.setblocking(False)
            one.connect_ex(mute.getsockname())
        resolver.ports.insert(0, mute.getsockname()[1])
        assert post(HttpConnection("http://gateway.example"), 6) == (200, b"{}")
        for one in waiting:
            one.close()


def test_a_name_without_an_address_that_answers_is_unreachable(resolver: Resolver) -> None:
    resolver.answers.set()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        resolver.ports = [closed.getsockname()[1]] * 2
    with pytest.raises(Unreachable, match="ConnectionRefusedError"):
        post(HttpConnection("http://gateway.example"), 5)


def test_on_a_pod_without_room_for_a_thread_a_call_fails_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent would end otherwise."""

    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(Unreachable, match="can't start new thread"):
        post(HttpConnection("http://gateway.example"))
