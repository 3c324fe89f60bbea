"""SSH to pods, and its errors."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from orchestrator.core.model import Worker
from orchestrator.ports.errors import PortError, Unavailable


class ConnectionRefused(PortError):
    """TCP connection refused."""


class NoBanner(Unavailable):
    """The TCP connection was accepted, and no banner came."""


class NotSsh(PortError):
    """Something answers, but not with an SSH banner."""


class HostKeyChanged(PortError):
    """The key differs from the pinned one: never the same machine again."""


class AuthFailed(PortError):
    """The server refused our key, or our key cannot be used; `cause` is the sub-cause."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished remote command; `exit_status` None means unknown: the connection went first, or a signal."""

    exit_status: int | None
    stdout: bytes
    stderr: bytes


class Session(Protocol):
    """One SSH connection to one pod; every method raises Unavailable when the connection is gone or time is up."""

    @property
    def host_key(self) -> str:
        """The host key presented, in OpenSSH's one-line form without a comment."""
        ...

    @property
    def evidence(self) -> Mapping[str, str]:
        """Both socket ends and the fingerprint of the key used."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the connection is known to be gone."""
        ...

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float) -> Completed: ...
    async def put(self, path: str, content: bytes, *, timeout_s: float) -> None:
        """Write a file whole (0600, temporary name, then renamed) over SFTP; parents are made."""
        ...

    async def read(self, path: str, offset: int, limit: int, *, timeout_s: float) -> bytes | None:
        """Up to `limit` bytes from `offset`; b"" at the end of the file, None if there is no such file."""
        ...

    async def list(self, path: str, *, timeout_s: float) -> Mapping[str, int] | None:
        """Name -> size in bytes of a directory's entries; None if there is no such directory."""
        ...

    async def close(self) -> None: ...


class Shell(Protocol):
    """SSH to pods."""

    async def banner(self, host: str, port: int, *, timeout_s: float) -> str:
        """The server's identification line; ConnectionRefused, NoBanner, Unavailable or NotSsh."""
        ...

    async def connect(
        self, host: str, port: int, *, pinned: str | None, timeout_s: float, user: str | None = None
    ) -> Session:
        """Authenticate as `user` (None: root). HostKeyChanged before anything is sent if the key is not `pinned`."""
        ...


class SessionPool(Protocol):
    """The SSH sessions of bring-up and shipping: one shared connection per worker, reopened after a failure."""

    def session(self, worker: Worker, *, timeout_s: float) -> AbstractAsyncContextManager[Session]: ...
