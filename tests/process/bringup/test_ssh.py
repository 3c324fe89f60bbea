"""The SSH adapter, against a real server and against things that are none."""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from orchestrator.adapters.ssh import AsyncSshShell
from orchestrator.adapters.ssh_pool import SshPool
from orchestrator.adapters.ssh_session import AsyncSshSession
from orchestrator.core.model import Worker
from orchestrator.ports import AuthFailed, ConnectionRefused, HostKeyChanged, NoBanner, NotSsh, Unavailable
from tests.process.bringup.builders import a_worker
from tests.process.bringup.sshd import Sshd, pem_of, serving

KEY = asyncssh.generate_private_key("ssh-ed25519")
SOON_S = 30.0  # for what should take a moment


@pytest.fixture
async def sshd(tmp_path: Path) -> AsyncIterator[Sshd]:
    async with serving(tmp_path / "home", KEY) as server:
        yield server


@pytest.fixture
async def session(sshd: Sshd) -> AsyncIterator[AsyncSshSession]:
    session = await AsyncSshShell(pem_of(KEY)).connect("127.0.0.1", sshd.port, pinned=None, timeout_s=SOON_S)
    yield session
    await session.close()


async def listening(answer: Callable[[asyncio.StreamWriter], None]) -> asyncio.Server:
    async def meet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer(writer)

    return await asyncio.start_server(meet, "127.0.0.1", 0)


def port_of(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


async def test_a_banner_is_the_identification_line(sshd: Sshd) -> None:
    """What answers is known to be SSH before a key is tried."""
    assert (await AsyncSshShell("").banner("127.0.0.1", sshd.port, timeout_s=SOON_S)).startswith("SSH-2.0-")


@pytest.mark.parametrize("host", [f"{'a' * 64}.example", "a..b", "\ud800.example", "a\x00b"])
async def test_a_host_that_can_be_no_address_is_unavailable(host: str) -> None:
    """Whatever the encoding of names says of it."""
    with pytest.raises(Unavailable):
        await AsyncSshShell("").banner(host, 22, timeout_s=SOON_S)
    with pytest.raises(Unavailable):
        await AsyncSshShell(pem_of(KEY)).connect(host, 22, pinned=None, timeout_s=SOON_S)


async def test_a_port_without_a_listener_is_refused(closed_port: int) -> None:
    """A mapped port before sshd is up says so."""
    with pytest.raises(ConnectionRefused):
        await AsyncSshShell("").banner("127.0.0.1", closed_port, timeout_s=SOON_S)
    with pytest.raises(ConnectionRefused):
        await AsyncSshShell(pem_of(KEY)).connect("127.0.0.1", closed_port, pinned=None, timeout_s=SOON_S)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 9000, b"no\n" * 2000])
async def test_another_protocol_is_not_ssh(said: bytes) -> None:
    """A web server, or a babbler, is told from an SSH server without reading for ever."""

    def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    server = await listening(answer)
    async with server:
        with pytest.raises(NotSsh):
            await AsyncSshShell("").banner("127.0.0.1", port_of(server), timeout_s=SOON_S)


async def test_a_forwarded_port_without_a_server_leaves_the_result_unknown() -> None:
    """Closing at once without a word is what a mapping does before sshd: unknown, not "something else"."""
    server = await listening(lambda writer: writer.close())
    async with server:
        with pytest.raises(Unavailable):
            await AsyncSshShell("").banner("127.0.0.1", port_of(server), timeout_s=SOON_S)


async def test_silence_ends_at_the_deadline() -> None:
    """A server that sends nothing costs the deadline and no more."""
    server = await listening(lambda _: None)
    async with server:
        shell = AsyncSshShell(pem_of(KEY))
        async with asyncio.timeout(SOON_S):
            with pytest.raises(NoBanner):
                await shell.banner("127.0.0.1", port_of(server), timeout_s=0.2)
            with pytest.raises(Unavailable):
                await shell.connect("127.0.0.1", port_of(server), pinned=None, timeout_s=0.2)


async def test_a_session_shows_both_addresses_and_both_keys(sshd: Sshd, session: AsyncSshSession) -> None:
    """The evidence of an attempt names sockets and fingerprints."""
    assert session.host_key == sshd.host_key
    evidence = session.evidence
    assert evidence["remote"] == f"127.0.0.1:{sshd.port}"
    assert evidence["local"].startswith("127.0.0.1:")
    assert evidence["key"] == KEY.get_fingerprint()
    assert evidence["host_key"] == sshd.host_keys[0].get_fingerprint()


async def test_a_changed_host_key_is_refused_before_anything_is_sent(sshd: Sshd) -> None:
    """A outsider on a reused address sees neither a user name nor a key of ours."""
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    with pytest.raises(HostKeyChanged):
        await AsyncSshShell(pem_of(KEY)).connect("127.0.0.1", sshd.port, pinned=other, timeout_s=SOON_S)
    assert sshd.handshakes == 1
    assert sshd.logins == []


@pytest.mark.parametrize("pinned", [0, 1, 2])
async def test_a_server_with_several_keys_shows_the_pinned_one(tmp_path: Path, pinned: int) -> None:
    """Which of a server's keys was seen first does not matter later."""
    kinds = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ssh-rsa")
    async with serving(tmp_path / "home", KEY, *kinds) as sshd:
        key = sshd.host_keys[pinned].export_public_key().decode()
        session = await AsyncSshShell(pem_of(KEY)).connect("127.0.0.1", sshd.port, pinned=key, timeout_s=SOON_S)
        assert session.host_key == " ".join(key.split()[:2])
        await session.close()


async def test_a_key_of_another_type_than_the_pinned_one_is_a_changed_key(sshd: Sshd) -> None:
    """A new key type is not a negotiation failure but a changed host."""
    other = asyncssh.generate_private_key("ecdsa-sha2-nistp256").export_public_key().decode()
    with pytest.raises(HostKeyChanged):
        await AsyncSshShell(pem_of(KEY)).connect("127.0.0.1", sshd.port, pinned=other, timeout_s=SOON_S)


@pytest.mark.parametrize(
    ("pem", "cause"),
    [
        ("", "no_private_key"),
        ("  \n", "no_private_key"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nnot base64\n-----END OPENSSH PRIVATE KEY-----\n", "bad_private_key"),
        (KEY.export_private_key(passphrase="secret", rounds=8).decode(), "bad_private_key"),
        (pem_of(asyncssh.generate_private_key("ssh-ed25519")), "refused"),
    ],
)
async def test_a_failed_login_names_its_sub_cause(sshd: Sshd, pem: str, cause: str) -> None:
    """No key, a key that cannot be used and a refused key are three causes with different fixes."""
    with pytest.raises(AuthFailed) as caught:
        await AsyncSshShell(pem).connect("127.0.0.1", sshd.port, pinned=None, timeout_s=SOON_S)
    assert caught.value.cause == cause


@pytest.mark.parametrize(
    "mangle",
    [
        lambda pem: pem.replace("\n", "\\n"),
        lambda pem: pem.replace("\n", "\r\n"),
        lambda pem: pem.replace("\n", "\\r\\n"),
        lambda pem: pem.rstrip("\n"),
        lambda pem: f"\n  {pem}\n\n",
    ],
)
async def test_a_key_that_an_environment_variable_changed_still_logs_in(
    sshd: Sshd, mangle: Callable[[str], str]
) -> None:
    """Escaped newlines, CR LF and a missing last newline lose nothing."""
    session = await AsyncSshShell(mangle(pem_of(KEY))).connect("127.0.0.1", sshd.port, pinned=None, timeout_s=SOON_S)
    await session.close()


async def test_a_command_gets_its_stdin_and_gives_back_status_and_both_streams(session: AsyncSshSession) -> None:
    """Bytes in, bytes out, and the exit status as it was."""
    done = await session.run("cat; echo oops >&2; exit 3", stdin=b"\x00\xff secret", timeout_s=SOON_S)
    assert (done.exit_status, done.stdout, done.stderr) == (3, b"\x00\xff secret", b"oops\n")


async def test_a_command_that_ends_before_its_stdin_is_written_has_its_status(
    session: AsyncSshSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod may be quicker than we are; what it did not read does not matter."""
    create = session._connection.create_process

    async def after_its_end(*args: Any, **given: Any) -> Any:
        process = await create(*args, **given)
        await process.wait_closed()
        return process

    monkeypatch.setattr(session._connection, "create_process", after_its_end)
    done = await session.run("echo quick; exit 4", stdin=b"x" * 100, timeout_s=SOON_S)
    assert (done.exit_status, done.stdout) == (4, b"quick\n")


async def test_a_command_killed_by_a_signal_has_no_status(session: AsyncSshSession) -> None:
    """A signal is not an exit status; unknown stays unknown."""
    assert (await session.run("kill -9 $$", timeout_s=SOON_S)).exit_status is None


async def test_a_connection_lost_in_the_middle_leaves_the_outcome_unknown(sshd: Sshd, session: AsyncSshSession) -> None:
    """Either no status or no answer, never a zero."""
    sshd.cut_after = "sleep"
    with contextlib.suppress(Unavailable):
        assert (await session.run("sleep 30", timeout_s=SOON_S)).exit_status is None
    assert session.closed
    with pytest.raises(Unavailable):
        await session.run("true", timeout_s=SOON_S)


async def test_a_command_ends_at_its_deadline(session: AsyncSshSession) -> None:
    """A command that hangs does not take the connection with it."""
    with pytest.raises(Unavailable):
        await session.run("sleep 30", timeout_s=0.2)
    assert (await session.run("echo on", timeout_s=SOON_S)).stdout == b"on\n"


async def test_endless_output_is_cut_off(session: AsyncSshSession) -> None:
    """A pod cannot fill our memory."""
    with pytest.raises(Unavailable, match="more than"):
        await session.run("head -c 20000000 /dev/zero", timeout_s=SOON_S)


async def test_a_file_is_put_whole_and_private(sshd: Sshd, session: AsyncSshSession) -> None:
    """0600, parents made 0700, nothing temporary left, an older file replaced."""
    content = os.urandom(300_000)
    await session.put(".orchestrator/code/agent.pyz", b"old", timeout_s=SOON_S)
    await session.put(".orchestrator/code/agent.pyz", content, timeout_s=SOON_S)
    file = sshd.home / ".orchestrator/code/agent.pyz"
    assert file.read_bytes() == content
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in file.parent.iterdir()] == ["agent.pyz"]


async def test_a_file_is_read_from_any_offset(sshd: Sshd, session: AsyncSshSession) -> None:
    """The end is b"", a missing file is None, and nothing else is."""
    content = os.urandom(1_000_000)
    (sshd.home / "log").write_bytes(content)
    assert await session.read("log", 0, 2_000_000, timeout_s=SOON_S) == content
    assert await session.read("log", 999_990, 100, timeout_s=SOON_S) == content[-10:]
    assert await session.read("log", 5, 7, timeout_s=SOON_S) == content[5:12]
    assert await session.read("log", 1_000_000, 10, timeout_s=SOON_S) == b""
    assert await session.read("log", 2_000_000, 10, timeout_s=SOON_S) == b""
    assert await session.read("nothing", 0, 10, timeout_s=SOON_S) is None


async def test_a_directory_is_listed_with_sizes(sshd: Sshd, session: AsyncSshSession) -> None:
    """Names and sizes; a missing directory is None, an empty one is empty."""
    (sshd.home / "logs").mkdir()
    assert await session.list("logs", timeout_s=SOON_S) == {}
    (sshd.home / "logs/agent.log").write_bytes(b"12345")
    assert await session.list("logs", timeout_s=SOON_S) == {"agent.log": 5}
    assert await session.list("nothing", timeout_s=SOON_S) is None


async def test_one_connection_serves_all_callers_until_it_breaks(sshd: Sshd) -> None:
    """A connection is shared while it is open, made again after a loss, and closed when the worker ends."""
    ssh_pool = SshPool(AsyncSshShell(pem_of(KEY)))
    worker = a_worker(ssh_host="127.0.0.1", ssh_port=sshd.port)

    async def ask() -> bytes:
        async with ssh_pool.session(worker, timeout_s=SOON_S) as session:
            return (await session.run("echo hi", timeout_s=SOON_S)).stdout

    assert await asyncio.gather(*(ask() for _ in range(5))) == [b"hi\n"] * 5
    assert sshd.handshakes == 1
    sshd.cut()
    for _ in range(3):
        try:
            assert await ask() == b"hi\n"
            break
        except Unavailable:
            continue
    assert sshd.handshakes == 2
    await ssh_pool.drop(worker.id)
    await ssh_pool.close()


async def test_a_process_that_does_not_lead_holds_no_connection(sshd: Sshd) -> None:
    """A process that no longer leads closes all connections, and makes none until it leads again."""
    ssh_pool = SshPool(AsyncSshShell(pem_of(KEY)))
    workers = [a_worker(f"gpu-{n}", ssh_host="127.0.0.1", ssh_port=sshd.port) for n in range(3)]
    held = []
    for worker in workers[:2]:
        async with ssh_pool.session(worker, timeout_s=SOON_S) as session:
            held.append(session)

    async def connect(worker: Worker) -> None:
        async with ssh_pool.session(worker, timeout_s=SOON_S):
            pass

    connecting = asyncio.create_task(connect(workers[2]))
    await asyncio.sleep(0)  # it has begun
    await ssh_pool.close()
    assert all(session.closed for session in held)
    with pytest.raises(Unavailable, match="does not lead"):
        await connecting
    with pytest.raises(Unavailable, match="does not lead"):
        await connect(workers[0])
    ssh_pool.open()
    await connect(workers[0])
    await ssh_pool.close()


async def test_the_first_key_seen_holds_for_rows_that_do_not_know_it_yet(sshd: Sshd) -> None:
    """A row older than the pin does not let a foreign server in again."""
    ssh_pool = SshPool(AsyncSshShell(pem_of(KEY)))
    worker = a_worker(ssh_host="127.0.0.1", ssh_port=sshd.port, host_key=None)
    async with ssh_pool.session(worker, timeout_s=SOON_S) as session:
        assert session.host_key == sshd.host_key
    await sshd.stop()
    sshd.host_keys = [asyncssh.generate_private_key("ssh-ed25519")]
    await sshd.start()
    async with asyncio.timeout(SOON_S):
        while not session.closed:
            await asyncio.sleep(0.01)
    with pytest.raises(HostKeyChanged):
        async with ssh_pool.session(worker, timeout_s=SOON_S):
            pass
    await ssh_pool.close()


async def test_a_worker_without_an_address_has_no_line_yet() -> None:
    """Nothing is guessed for a pod whose port is not mapped."""
    with pytest.raises(Unavailable):
        async with SshPool(AsyncSshShell(pem_of(KEY))).session(a_worker(), timeout_s=SOON_S):
            pass
