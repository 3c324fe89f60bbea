"""The SSH adapter and a whole bring-up against OpenSSH, which is what real pods run."""

import asyncio
import getpass
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from orchestrator.adapters.ssh import AsyncSshShell
from orchestrator.adapters.ssh_session import AsyncSshSession
from orchestrator.pods import agent_commands
from orchestrator.ports import AuthFailed, HostKeyChanged, PortError, Unavailable
from testbed.services import debian
from testbed.services.free_port import free_port
from testbed.tasks import exited
from tests.process.bringup.sshd import pem_of

pytestmark = pytest.mark.needs_program("sshd", "openssh-server")

SOON_S = 30.0  # for what should take a moment
KINDS = {"ed25519": "ssh-ed25519", "ecdsa": "ecdsa-sha2-nistp256", "rsa": "ssh-rsa"}


class OpenSsh:
    """One sshd on loopback that lets this user in with one key."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port = directory, port
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.host_keys = {name: asyncssh.generate_private_key(kind) for name, kind in KINDS.items()}

    async def start(self) -> asyncio.subprocess.Process:
        """Write what sshd wants and start it; it ends when the other end of the shell's stdin does."""
        lines = [f"Port {self.port}", "ListenAddress 127.0.0.1", "PidFile none", "UsePAM no", "StrictModes no"]
        lines += [f"AuthorizedKeysFile {self.directory}/authorized_keys", "Subsystem sftp internal-sftp"]
        lines += ["PasswordAuthentication no", "PermitRootLogin prohibit-password", "MaxStartups 100"]
        for name, key in self.host_keys.items():
            path = self.directory / f"host_{name}"
            path.write_bytes(key.export_private_key())
            path.chmod(0o600)
            lines.append(f"HostKey {path}")
        (self.directory / "authorized_keys").write_bytes(self.key.export_public_key())
        (self.directory / "sshd_config").write_text("\n".join(lines) + "\n")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where its unprivileged part lives; systemd would make it
        program = debian.find("sshd", "openssh-server")
        assert program is not None
        command = ("/bin/sh", "-c", '"$@" & cat; kill $!; wait', "sh", str(program.path), "-D", "-e", "-f")
        with (self.directory / "log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *(*command, str(self.directory / "sshd_config")),
                stdin=asyncio.subprocess.PIPE,
                stderr=log,
                env=os.environ | program.environment,
            )

    def shell(self, key: asyncssh.SSHKey | None = None) -> AsyncSshShell:
        """An orchestrator's shell."""
        return AsyncSshShell(pem_of(key or self.key), username=getpass.getuser())

    async def connect(self, pinned: str | None = None) -> AsyncSshSession:
        """A session."""
        return await self.shell().connect("127.0.0.1", self.port, pinned=pinned, timeout_s=SOON_S)


@pytest.fixture
async def openssh(tmp_path: Path) -> AsyncIterator[OpenSsh]:
    """A server that answers."""
    server = OpenSsh(tmp_path, free_port())
    process = await server.start()
    try:
        async with asyncio.timeout(SOON_S):
            while True:
                try:
                    await server.shell().banner("127.0.0.1", server.port, timeout_s=1)
                    break
                except PortError:
                    await asyncio.sleep(0.05)
        yield server
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await exited(process)


async def test_openssh_runs_commands_and_keeps_files(openssh: OpenSsh, tmp_path: Path) -> None:
    """Status, signals, stdin, files of some MiB, ranges, lists and absence, as with any other server."""
    session = await openssh.connect()
    done = await session.run("cat; echo oops >&2; exit 3", stdin=b"\x00 secret", timeout_s=SOON_S)
    assert (done.exit_status, done.stdout, done.stderr) == (3, b"\x00 secret", b"oops\n")
    assert (await session.run("kill -9 $$", timeout_s=SOON_S)).exit_status is None
    content = os.urandom(5_000_000)
    path = f"{tmp_path}/deep/er/file"
    for _ in range(2):
        await session.put(path, content, timeout_s=SOON_S)
    assert await session.read(path, 0, 6_000_000, timeout_s=SOON_S) == content
    assert await session.read(path, 4_999_990, 100, timeout_s=SOON_S) == content[-10:]
    assert await session.read(path, 5_000_000, 100, timeout_s=SOON_S) == b""
    assert await session.list(f"{tmp_path}/deep/er", timeout_s=SOON_S) == {"file": len(content)}
    assert await session.read(f"{path}x", 0, 1, timeout_s=SOON_S) is None
    assert await session.list(f"{path}x", timeout_s=SOON_S) is None
    assert (tmp_path / "deep/er/file").stat().st_mode & 0o777 == 0o600
    with pytest.raises(Unavailable):
        await session.put("/proc/nowhere/file", b"", timeout_s=SOON_S)
    await session.close()


@pytest.mark.parametrize("kind", list(KINDS))
async def test_openssh_shows_the_pinned_key_of_several_and_is_refused_with_another(openssh: OpenSsh, kind: str) -> None:
    """Each kind of host key can be pinned; another key of the same kind is refused."""
    ours = openssh.host_keys[kind].export_public_key().decode()
    session = await openssh.connect(ours)
    assert session.host_key == " ".join(ours.split()[:2])
    await session.close()
    with pytest.raises(HostKeyChanged):
        await openssh.connect(asyncssh.generate_private_key(KINDS[kind]).export_public_key().decode())


@pytest.mark.parametrize("kind", ["ssh-ed25519", "ssh-rsa"])
async def test_openssh_takes_our_key_or_says_no(openssh: OpenSsh, kind: str) -> None:
    """RSA and Ed25519 keys log in; a key that is not authorized is refused, by name of the cause."""
    key = asyncssh.generate_private_key(kind)
    with pytest.raises(AuthFailed) as caught:
        await openssh.shell(key).connect("127.0.0.1", openssh.port, pinned=None, timeout_s=SOON_S)
    assert caught.value.cause == "refused"
    openssh.key = key
    (openssh.directory / "authorized_keys").write_bytes(key.export_public_key())
    await (await openssh.connect()).close()


async def test_our_commands_mean_the_same_to_its_shell(openssh: OpenSsh, tmp_path: Path) -> None:
    """The nonce comes back, digests and processes are found; sessions run side by side on one connection."""
    session = await openssh.connect()
    done = await session.run(agent_commands.echo_command("left", "right"), timeout_s=SOON_S)
    assert done.stdout.startswith(b"leftright ")
    (tmp_path / "a b").write_bytes(b"")
    found = agent_commands.digests(
        (await session.run(agent_commands.digest_command([f"{tmp_path}/a b"]), timeout_s=SOON_S)).stdout
    )
    assert found[f"{tmp_path}/a b"].startswith("e3b0c442")
    started = await session.run(
        f"sh -c 'sleep 30; : {agent_commands.run_dir('n')}' >/dev/null 2>&1 & echo $!", timeout_s=SOON_S
    )
    pid = int(started.stdout)
    stat = Path(f"/proc/{pid}/stat").read_text()
    agent = agent_commands.LaunchedAgent(pid, stat.rpartition(")")[2].split()[agent_commands.START_TIME], "sha")
    shown = (await session.run(agent_commands.alive_command(pid), timeout_s=SOON_S)).stdout
    assert agent_commands.is_alive(shown, agent, "n")
    assert not agent_commands.is_alive(shown, agent, "m")
    assert not agent_commands.is_alive(shown, replace(agent, start_time="1"), "n")
    await session.run(f"kill {pid}", timeout_s=SOON_S)
    answers = await asyncio.gather(*(session.run(f"echo {n}", timeout_s=SOON_S) for n in range(8)))
    assert [a.stdout for a in answers] == [b"%d\n" % n for n in range(8)]
    await session.close()
