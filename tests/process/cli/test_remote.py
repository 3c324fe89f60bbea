"""`ssh`, `exec` and `gpus`: the pod's real SSH server, and the provider's catalogue."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from orchestrator.core.states import Stage, State
from testbed.runpod.server import Emulator
from testbed.runpod.sshd import Mode, PodSshd
from tests.process.cli.builders import INHERITED, PROGRAM, TIMEOUT_S, Cli, Fleet, ended, start

KEY = asyncssh.generate_private_key("ssh-ed25519")
PUBLIC = KEY.export_public_key().decode().strip()
KEYS = {"RUNPOD_SSH_PRIVATE_KEY": KEY.export_private_key().decode(), "RUNPOD_SSH_PUBLIC_KEY": PUBLIC}


@pytest.fixture
async def sshd(tmp_path: Path) -> AsyncIterator[PodSshd]:
    """The SSH server of a pod."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "authorized_keys").write_text(f"{PUBLIC}\n")
    server = PodSshd(tmp_path, lambda: {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    await server.open(Mode.NORMAL)
    yield server
    server.close()


async def worker(fleet: Fleet, sshd: PodSshd, host_key: str | None) -> str:
    """A worker whose pod has this server."""
    name = await fleet.worker(upto=State.ACTIVE)
    address: dict[str, Any] = {"ssh_host": "127.0.0.1", "ssh_port": sshd.port, "host_key": host_key}
    await fleet.move(name, State.ACTIVE, stage=Stage.PROMOTED, **address)
    return name


async def test_a_command_runs_as_it_was_written(cli: Cli, fleet: Fleet, sshd: PodSshd) -> None:
    """No shell interprets its words; output, errors and the exit code are its own, and as large as they are."""
    name = await worker(fleet, sshd, sshd.host_key)
    ran = await cli("exec", name[-8:], "--", "printf", "%s|", "a b", "$HOME", "*", "x'y", **KEYS)
    assert (ran.code, ran.out, ran.err) == (0, "a b|$HOME|*|x'y|", "")
    ran = await cli("exec", name, "--", "sh", "-c", "echo out; echo err >&2; exit 7", **KEYS)
    assert (ran.code, ran.out, ran.err) == (7, "out\n", "err\n")
    ran = await cli("exec", name, "--json", "--", "sh", "-c", "printf 'x\\033[31m'; exit 3", **KEYS)
    assert (ran.code, ran.json()["exit_status"], ran.json()["stdout"]) == (3, 3, "x\x1b[31m")
    assert "\x1b" not in ran.out
    many = ["--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"]
    assert len((await cli("exec", name, *many, **KEYS)).out) == 3_000_000
    cut = (await cli("exec", name, "--json", *many, **KEYS)).json()
    assert (len(cut["stdout"]), cut["truncated"]) == (1 << 20, ["stdout"])
    late = await cli("exec", name, "--timeout-s", "0.5", "--", "sleep", "60", **KEYS)
    assert late.code == 1
    assert "no answer within 0.5 s" in late.err


async def test_a_command_without_dashes_before_it_is_shown_with_them(cli: Cli) -> None:
    """Its options would be taken for options of `exec`. What `exec` itself does not know stays an error of its own."""
    ran = await cli("exec", "w1", "ls", "-la", "/a b")
    assert (ran.code, ran.out) == (2, "")
    assert "-l belongs to the command on the pod, which begins after --" in ran.err
    assert ran.err.endswith("\nfix: python -m orchestrator exec w1 -- ls -la '/a b'\n")
    assert "fix: python -m orchestrator exec --help" in (await cli("exec", "--tmeout", "1", "w1", "--", "ls")).err


async def test_a_commands_output_need_not_be_read_to_its_end(cli: Cli, fleet: Fleet, sshd: PodSshd) -> None:
    """A closed pipe, as of `head`, ends the command without an error."""
    name = await worker(fleet, sshd, sshd.host_key)
    process = await start(*PROGRAM, "exec", name, "--", "yes", environment={**cli.environment, **KEYS})
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        assert await process.stdout.readline() == b"y\n"
    process.stdout._transport.close()  # type: ignore[attr-defined]  # asyncio has no other way to close a pipe
    ran = await ended(process)
    assert (ran.code, ran.err) == (1, "")


async def test_ctrl_c_ends_a_shell_that_does_not_connect(cli: Cli, fleet: Fleet, sshd: PodSshd) -> None:
    """OpenSSH's client gets the signal, as before its start nobody else can."""
    name = await worker(fleet, sshd, sshd.host_key)
    connected = asyncio.Event()
    async with await asyncio.start_server(lambda *_: connected.set(), "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        await fleet.move(name, State.ACTIVE, stage=Stage.PROMOTED, ssh_port=port)
        command = [*PROGRAM, "ssh", name]
        env = {name: os.environ[name] for name in INHERITED if name in os.environ} | KEYS
        env |= {name: value for name, value in cli.environment.items() if value is not None}
        process = await asyncio.create_subprocess_exec(*command, env=env, start_new_session=True)
        await asyncio.wait_for(connected.wait(), TIMEOUT_S)
        os.killpg(process.pid, signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), TIMEOUT_S) in {130, 255}


async def test_a_shell_opens_with_the_fleets_key(cli: Cli, fleet: Fleet, sshd: PodSshd) -> None:
    """And leaves no key behind; its exit code is the shell's."""
    name = await worker(fleet, sshd, sshd.host_key)
    ran = await cli("ssh", name, stdin="echo here; exit 5\n", TMPDIR=str(sshd.home), **KEYS)
    assert (ran.code, ran.out) == (5, "here\n"), ran.err
    assert f"root@127.0.0.1:{sshd.port}" in ran.err
    assert not list(sshd.home.glob("orchestrator-ssh-*"))


async def test_a_persons_shell_has_a_terminal(sshd: PodSshd) -> None:
    """With a prompt, the window's size, and Ctrl-C for the command in the foreground."""
    login = {"username": "root", "client_keys": [KEY], "known_hosts": None}
    async with asyncssh.connect("127.0.0.1", sshd.port, **login) as connection:
        process = await connection.create_process(term_type="xterm", term_size=(100, 30))
        async with asyncio.timeout(TIMEOUT_S):
            assert await process.stdout.readuntil(re.compile("[#$] "))
            # Said by the command itself: between its fork and its exec, bash loses a SIGINT.
            process.stdin.write("tty; stty size; sh -c 'echo sleeps; exec sleep 600'\n")
            shown = await process.stdout.readuntil("\nsleeps")
            process.stdin.write("\x03")
            assert await process.stdout.readuntil(re.compile("[#$] "))
            process.stdin.write("exit 7\n")
            await process.wait()
    assert re.search(r"/dev/pts/\d+\r?\n30 100", shown), shown
    assert process.exit_status == 7


@pytest.mark.parametrize("pinned", [None, "another"])
async def test_a_pod_that_did_not_prove_its_key_gets_nothing(
    cli: Cli, fleet: Fleet, sshd: PodSshd, pinned: str | None
) -> None:
    """Without a pinned host key nothing connects; with another one nothing is sent."""
    other = " ".join(asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().split()[:2])
    name = await worker(fleet, sshd, other if pinned else None)
    touch = ["touch", str(sshd.home / "ran")]
    shell = cli("ssh", name, stdin=f"{' '.join(touch)}\n", **KEYS)
    for ran in await asyncio.gather(cli("exec", name, "--", *touch, **KEYS), shell):
        assert (ran.code, ran.out) == (1 if "error[E034]" in ran.err else 255, "")
        assert re.search("no host key is pinned" if pinned is None else "(?i)host ?key", ran.err), ran.err
    assert not (sshd.home / "ran").exists()


async def test_a_worker_without_a_pod_is_refused(cli: Cli, fleet: Fleet) -> None:
    """Ended, or without an address."""
    ended = await fleet.worker(upto=State.TERMINATED)
    for words in (["exec", ended, "--", "true"], ["ssh", ended]):
        ran = await cli(*words, **KEYS)
        assert (ran.code, ran.out) == (1, "")
        assert f"worker {ended} has ended" in ran.err


async def test_gpus_show_what_the_pools_would_take(cli: Cli, tmp_path: Path) -> None:
    """In the pool's order, with price, stock and places; what is out of stock is passed over."""
    async with Emulator(tmp_path, boot_s=(0.1, 0.2)) as emulator:
        nothing = {"gpu_type": "NVIDIA GeForce RTX 4090", "stock": 0}
        await emulator.control("POST", "/settings", {"offers": [nothing]})
        environment = {
            "RUNPOD_API_BASE_URL": emulator.url,
            "RUNPOD_API_KEY": emulator.api_key,
            "RUNPOD_GPU_TYPE": "NVIDIA GeForce RTX 4090,NVIDIA L40S",
        }
        ran = await cli("gpus", **environment)
        found = (await cli("gpus", "--all", "--gpu", "4090", "--json", **environment)).json()["gpus"]
        refused = await cli("gpus", **{**environment, "RUNPOD_API_KEY": "wrong"})
    assert ran.code == 0, ran.err
    first, second = ran.out.splitlines()[1:3]
    assert first.split()[:2] == ["RTX", "4090"]
    assert "NONE" in first
    assert "default #1 " in first
    assert second.startswith("L40S")
    assert "default #2 (next)" in second
    assert "HIGH" in second
    assert {one["cloud"] for one in found} == {"SECURE", "COMMUNITY"}
    assert all(one["usd_per_hour"] > 0 and one["stock"] == "NONE" and one["data_centers"] == {} for one in found)
    assert refused.code == 4
