"""The SSH server of one pod, inside the emulator's process: keys, exec, shell and SFTP, with the ways it can misbehave.

Algorithms are pinned to the cheapest pair that every client has: fifty pods take their handshakes at one moment.
"""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import signal as signals
import socket
import struct
import termios
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

import asyncssh
from asyncssh.channel import SSHChannel
from asyncssh.misc import MaybeAwait

from testbed.runpod.fake_tools import write_host_keys

HOST = "127.0.0.1"
LOGIN_TIMEOUT_S = 30
BACKLOG = 128
SHELL = "/bin/sh"
INTERPRETER = re.compile(r"(?<![\w./-])/[\w./-]{1,200}/python[0-9.]*(?![\w./-])")  # of this machine, by its path
SFTP_VERSION = 3
CHUNK_BYTES = 65_536
NO_LOGIN = b"This account is currently not available.\n"  # as nologin(8) says it


class Mode(StrEnum):
    """How the server behaves."""

    NORMAL = "normal"
    REFUSED = "refused"  # nothing listens
    SILENT = "silent"  # accepts and says nothing
    NOT_SSH = "not_ssh"  # something else answers
    AUTH_REFUSED = "auth_refused"
    WRONG_KEY = "wrong_key"  # another host key at each connection; cut as DROPPED is
    DROPPED = "dropped"  # the connection is cut some seconds after each command starts
    NO_SHELL = "no_shell"  # the account may log in, and run nothing
    RELAYED = "relayed"  # another machine answers with its own host key, and passes everything on to the pod
    CORRUPT = "corrupt"  # what is written over SFTP is not what was sent


class _Silent(asyncio.Protocol):
    """Accept a connection and send nothing."""

    def __init__(self, open_ones: set[asyncio.BaseTransport]) -> None:
        self._open_ones = open_ones

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._open_ones.add(transport)


class _NotSsh(asyncio.Protocol):
    """Answer like a web server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            transport.close()


class _Session(asyncssh.SSHServerProcess[bytes]):
    """One exec or SFTP channel; a signal goes to the command's whole session, as sshd sends it."""

    early_signal: str | None = None  # came before the command was started

    def signal_received(self, signal: str) -> None:
        number = getattr(signals, f"SIG{signal}", None)
        if not self.redirect_pid:
            self.early_signal = signal
        elif number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.redirect_pid, number)

    def set_redirect_pid(self, pid: int | None) -> None:
        super().set_redirect_pid(pid)
        if self.early_signal:
            self.signal_received(self.early_signal)


class _Files(asyncssh.SFTPServer):
    """Files below the pod's HOME; relative paths start there."""

    def __init__(self, channel: SSHChannel[bytes], sshd: "PodSshd") -> None:
        super().__init__(channel)  # type: ignore[arg-type]  # the factory's type is the wider one
        self._home, self._sshd = os.fsencode(sshd.home), sshd

    def write(self, file_obj: object, offset: int, data: bytes) -> MaybeAwait[int]:
        if self._sshd.mode is Mode.CORRUPT and offset == 0:
            data = bytes([data[0] ^ 1]) + data[1:]
        return super().write(file_obj, offset, data)

    def map_path(self, path: bytes) -> bytes:
        mapped = os.path.normpath(path if path.startswith(b"/") else self._home + b"/" + path)
        if mapped != self._home and not mapped.startswith(self._home + b"/"):
            message = "outside of the pod's home"
            raise asyncssh.SFTPPermissionDenied(message)
        return mapped


class _Login(asyncssh.SSHServer):
    """Accept root with a key from the pod's authorized_keys, which is read at each login."""

    def __init__(self, sshd: "PodSshd") -> None:
        self._sshd = sshd
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._sshd.connections.add(conn)
        if self._sshd.mode is Mode.WRONG_KEY:
            self._sshd.change_key()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._connection is not None:
            self._sshd.connections.discard(self._connection)

    def session_requested(self) -> _Session:
        sshd = self._sshd
        return _Session(sshd.execute, lambda channel: _Files(channel, sshd), SFTP_VERSION, allow_scp=False)

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == "root" and self._sshd.mode is not Mode.AUTH_REFUSED and self._sshd.authorizes(key)


class PodSshd:
    """One pod's server and its reserved port; the port refuses connections until `open`."""

    def __init__(self, home: Path, environment: Callable[[], Mapping[str, str]]) -> None:
        self.home = home
        self.mode = Mode.NORMAL
        self.drop_after_s = 0.0
        self.drops_left: int | None = None  # commands that are still cut; None: all
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self._silent: set[asyncio.BaseTransport] = set()
        self._environment = environment
        self._host_key = asyncssh.generate_private_key("ssh-ed25519")
        self._write_host_keys(self._host_key)
        self._listener: asyncssh.SSHAcceptor | asyncio.Server | None = None
        self._closed = False
        self._reserved: socket.socket | None = _bound(0)
        self.port: int = self._reserved.getsockname()[1]

    def authorizes(self, key: asyncssh.SSHKey) -> bool:
        """Tell whether authorized_keys names this key; lines that cannot be read are passed over, as sshd does."""
        try:
            text = (self.home / ".ssh" / "authorized_keys").read_text()
        except OSError:
            return False
        for line in text.splitlines():
            with contextlib.suppress(asyncssh.KeyImportError, ValueError):
                if asyncssh.import_public_key(line).public_data == key.public_data:
                    return True
        return False

    async def open(self, mode: Mode = Mode.NORMAL) -> None:
        """Start serving in the given mode, or change to it; connections that stand are kept."""
        self._stop_listening()
        self.mode = mode
        if self._closed or mode is Mode.REFUSED:
            return
        listening, self._reserved = self._reserved or _bound(self.port), None
        loop = asyncio.get_running_loop()
        if mode is Mode.SILENT:
            self._listener = await loop.create_server(lambda: _Silent(self._silent), sock=listening, backlog=BACKLOG)
        elif mode is Mode.NOT_SSH:
            self._listener = await loop.create_server(_NotSsh, sock=listening, backlog=BACKLOG)
        else:
            if mode is Mode.WRONG_KEY:
                self.change_key()
            elif mode is Mode.RELAYED:
                self._host_key = asyncssh.generate_private_key("ssh-ed25519")  # the pod's own key stays what it was
            self._listener = await self._listen(listening)

    @property
    def host_key(self) -> str:
        """The host key in OpenSSH's form without a comment."""
        return " ".join(self._host_key.export_public_key().decode().split()[:2])

    def change_key(self) -> None:
        """Show another host key from the next connection on."""
        before, self._host_key = self._host_key, asyncssh.generate_private_key("ssh-ed25519")
        self._write_host_keys(before, self._host_key)  # the connection that stands was made with the one before
        if isinstance(self._listener, asyncssh.SSHAcceptor):
            self._listener.update(server_host_keys=[self._host_key])

    def _write_host_keys(self, *keys: asyncssh.SSHKey) -> None:
        write_host_keys(self.home.parent, *(key.export_public_key().decode().strip() for key in keys))

    async def _listen(self, listening: socket.socket) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            sock=listening,
            backlog=BACKLOG,
            server_factory=lambda: _Login(self),
            server_host_keys=[self._host_key],
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            gss_host=None,
            kex_algs=["curve25519-sha256"],
            encryption_algs=["aes128-gcm@openssh.com"],
            compression_algs=["none"],
            login_timeout=LOGIN_TIMEOUT_S,
            server_version="OpenSSH_9.6p1",
        )

    async def move(self) -> None:
        """Leave the port for another one, as a pod that is restarted does: the old one refuses, connections are cut."""
        self._stop_listening()
        if self._reserved is not None:
            self._reserved.close()
        self._reserved = _bound(0)
        self.port = self._reserved.getsockname()[1]
        self.cut()
        await self.open(self.mode)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._reserved is None and not self._closed:
            self._reserved = _bound(self.port)

    def freeze(self) -> None:
        """Answer nothing more, also on open connections, like a stopped machine: the kernel still accepts data."""
        for connection in self.connections:
            transport = connection._transport  # noqa: SLF001 - asyncssh offers no way to stop reading
            if transport is not None:
                transport.pause_reading()

    def cut(self) -> None:
        """Cut every open connection."""
        for connection in list(self.connections):
            connection.abort()
        for transport in self._silent:
            transport.close()
        self.connections.clear()
        self._silent.clear()

    def close(self) -> None:
        """Stop for good: the port refuses, standing connections are cut."""
        self._closed = True
        self._stop_listening()
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        self.cut()

    async def execute(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """Serve one exec request."""
        if self._closed:
            process.exit(255)
            return
        if self.mode is Mode.NO_SHELL:
            process.stdout.write(NO_LOGIN)
            process.exit(1)
            return
        if self.mode in (Mode.DROPPED, Mode.WRONG_KEY) and self.drops_left != 0:
            if self.drops_left is not None:
                self.drops_left -= 1
            connection = process.channel.get_connection()
            asyncio.get_running_loop().call_later(self.drop_after_s, connection.abort)
        await self.run(process)

    async def run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """Run the request as a real process and report how it ended."""
        command, python = _with_own_python(process.command, self._environment())
        arguments = [SHELL, "-c", command] if command is not None else [SHELL]
        if process.term_type is not None:
            await self._run_on_terminal(process, arguments)
            return
        child = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.home,
            env={**self._environment(), **python},
            start_new_session=True,
        )
        process.set_redirect_pid(child.pid)
        feeding = asyncio.create_task(_feed(process.stdin, child.stdin))
        try:
            await asyncio.gather(_copy(child.stdout, process.stdout), _copy(child.stderr, process.stderr))
            status = await child.wait()
        finally:
            feeding.cancel()
        _report(process, status)

    async def _run_on_terminal(self, process: asyncssh.SSHServerProcess[bytes], arguments: list[str]) -> None:
        """Run the request on a terminal of its own, as sshd does for a person's shell."""
        ours, theirs = pty.openpty()
        _resize(ours, process.term_size)
        child = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=self.home,
            env={**self._environment(), "TERM": process.term_type or "dumb"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C reaches the command
        )
        os.close(theirs)
        process.set_redirect_pid(child.pid)
        source, pipe = asyncio.StreamReader(), os.fdopen(ours, "rb", 0)
        loop = asyncio.get_running_loop()
        reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(source), pipe)
        typing = asyncio.create_task(_type(process, ours))
        try:
            with contextlib.suppress(OSError):  # Linux: EIO once the command has closed the terminal
                await _copy(source, process.stdout)
            status = await child.wait()
        finally:
            typing.cancel()
            reading.close()
        _report(process, status)


def _report(process: asyncssh.SSHServerProcess[bytes], status: int) -> None:
    if status >= 0:
        process.exit(status)
    else:
        process.exit_with_signal(signals.Signals(-status).name.removeprefix("SIG"))


def _resize(terminal: int, size: tuple[int, int, int, int]) -> None:
    columns, rows, width, height = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, width, height))


async def _type(process: asyncssh.SSHServerProcess[bytes], terminal: int) -> None:
    """Pass on what the client types, and the new size of its window. What the command does not read is dropped."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while True:
            try:
                chunk = await process.stdin.read(CHUNK_BYTES)
            except asyncssh.TerminalSizeChanged as change:
                _resize(terminal, change.term_size)
                continue
            if not chunk:
                return
            with contextlib.suppress(BlockingIOError):
                os.write(terminal, chunk)


def _with_own_python(command: str | None, environment: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    """Replace an interpreter's path by the pod's python3, if the pod has faults: they act where an agent starts.

    The pod's python3 runs the interpreter of the path, which the second value names.
    """
    found = INTERPRETER.search(command) if command and environment.get("EMULATED_FAULTS") else None
    if command is None or found is None or not os.access(found[0], os.X_OK):
        return command, {}
    return command.replace(found[0], "python3"), {"EMULATED_PYTHON": found[0]}


async def _feed(source: asyncssh.SSHReader[bytes], sink: asyncio.StreamWriter | None) -> None:
    """Copy the client's input to the command until either ends."""
    if sink is None:
        return
    with contextlib.suppress(OSError, asyncssh.Error):
        while chunk := await source.read(CHUNK_BYTES):
            sink.write(chunk)
            await sink.drain()
    sink.close()


async def _copy(source: asyncio.StreamReader | None, sink: asyncssh.SSHWriter[bytes]) -> None:
    """Copy the command's output to the client. After the client has gone, drop it: the command continues."""
    if source is None:
        return
    connected = True
    while chunk := await source.read(CHUNK_BYTES):
        try:
            if connected:
                sink.write(chunk)
                await sink.drain()
        except (OSError, asyncssh.Error):
            connected = False


def _bound(port: int) -> socket.socket:
    """Bind a port without listening: connections to it are refused, and no other process gets it."""
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, port))
    reserved.setblocking(False)
    return reserved
