"""The pods: real processes behind SSH, and nothing of them left when they end."""

import asyncio
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import httpx
import psutil
import pytest

from testbed.runpod import pods
from tests.process.emulator.build import (
    KEY,
    PATIENCE_S,
    PUBLIC_KEY,
    Api,
    alive,
    emulated,
    ended,
    request,
    ssh,
    until,
)

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """A fresh account."""
    async with emulated(tmp_path) as made:
        yield made


@pytest.fixture
def marker() -> str:
    """A `sleep` argument that no other process has, long enough to outlive every test."""
    return f"1{secrets.randbelow(10**9):09d}"


async def test_a_command_gets_its_input_and_its_exit_status_comes_back(api: Api) -> None:
    """Both output streams, whole, and the status or the signal it died of."""
    _, port = await api.reachable()
    async with ssh(port) as connection:
        echoed = await connection.run("cat; echo wrong >&2; exit 3", input="hello")
        assert (echoed.stdout, echoed.stderr, echoed.exit_status) == ("hello", "wrong\n", 3)
        large = await connection.run("head -c 5000000 /dev/zero", encoding=None)
        assert len(large.stdout) == 5_000_000
        killed = await connection.run("kill -KILL $$")
        assert killed.exit_signal[0] == "KILL"


async def test_a_signal_reaches_the_whole_command(api: Api, marker: str) -> None:
    """Children of the shell too, as sshd does it."""
    _, port = await api.reachable()
    async with ssh(port) as connection:
        process = await connection.create_process(f"sleep {marker}; true")

        async def started() -> list[int]:
            return alive(f"sleep {marker}")

        await until(started, "the command runs")
        process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE_S)
        await ended(f"sleep {marker}")


async def test_the_environment_is_the_pods_and_nothing_of_ours(api: Api) -> None:
    """The request's env, RunPod's variables, HOME; no key of the emulator's own environment."""
    pod, port = await api.reachable(env={"PUBLIC_KEY": PUBLIC_KEY, "ORCHESTRATOR_FLEET_ID": "demo"})
    os.environ["EMULATOR_TEST_SECRET"] = "visible"
    try:
        async with ssh(port) as connection:
            shown = dict(line.split("=", 1) for line in (await connection.run("env")).stdout.splitlines())
            where = await connection.run("pwd")
    finally:
        del os.environ["EMULATOR_TEST_SECRET"]
    home = api.emulator.state_dir / "pods" / pod["id"] / "home"
    assert (shown["RUNPOD_POD_ID"], shown["ORCHESTRATOR_FLEET_ID"], shown["HOME"]) == (pod["id"], "demo", str(home))
    assert where.stdout.strip() == str(home)
    assert "EMULATOR_TEST_SECRET" not in shown
    assert "TERM" not in shown


async def test_pip_installs_into_the_pod_alone(api: Api) -> None:
    """`pip install` works on every machine, and changes neither its Python nor another pod's."""
    pod, port = await api.reachable()
    _, other = await api.reachable("gpu-2")
    wheel = api.emulator.state_dir / "pods" / pod["id"] / "home" / "emulated_only-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "emulated_only-1.0.dist-info"
        archive.writestr("emulated_only.py", "here = True\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: emulated-only\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    async with ssh(port) as connection:
        installed = await connection.run(f"pip install --no-index {wheel.name}")
        assert installed.exit_status == 0, installed.stderr
        used = await connection.run("python3 -c 'import emulated_only; print(emulated_only.__file__)'")
        assert str(wheel.parents[1]) in str(used.stdout)
    async with ssh(other) as connection:
        assert (await connection.run("python3 -c 'import emulated_only'")).exit_status == 1
    assert importlib.util.find_spec("emulated_only") is None


async def test_files_over_sftp_lie_below_home(api: Api) -> None:
    """Relative paths start at HOME, absolute ones below it are taken, others are refused."""
    pod, port = await api.reachable()
    home = api.emulator.state_dir / "pods" / pod["id"] / "home"
    async with ssh(port) as connection, connection.start_sftp_client() as files:
        assert await files.realpath(".") == str(home)
        await files.makedirs(".orchestrator/code")
        async with files.open(".orchestrator/code/part", "wb") as file:
            await file.write(b"code")
        await files.posix_rename(".orchestrator/code/part", f"{home}/.orchestrator/code/whole")
        assert (home / ".orchestrator/code/whole").read_bytes() == b"code"
        with pytest.raises(asyncssh.SFTPPermissionDenied):
            await files.stat("/etc/passwd")
        with pytest.raises(asyncssh.SFTPPermissionDenied):
            await files.stat("../../lock")


async def test_only_the_key_in_public_key_may_log_in(api: Api) -> None:
    """Another key, another user and a pod without a key are refused."""
    _, port = await api.reachable()
    _, keyless = await api.reachable("gpu-2", env={})
    outsider = asyncssh.generate_private_key("ssh-ed25519")
    for where, user, key in ((port, "root", outsider), (port, "ubuntu", KEY), (keyless, "root", KEY)):
        with pytest.raises(asyncssh.PermissionDenied):
            await asyncssh.connect("127.0.0.1", where, username=user, client_keys=[key], known_hosts=None, config=None)


async def test_the_port_refuses_until_sshd_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mapping is shown before anything listens behind it."""
    for name, share in (("ASSIGNED_AT", 0.02), ("RUNNING_AT", 0.04), ("DETAILS_AT", 0.06)):
        monkeypatch.setattr(pods, name, share)  # sshd takes the rest: a busy machine must not miss the moment
    async with emulated(tmp_path, boot_s=(10.0, 10.0)) as api:
        pod = await api.create()
        port = await api.ssh_port(pod["id"])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_nvidia_smi_answers_as_the_card_would(api: Api) -> None:
    """The usual query, with and without header and units, an unknown field, and a pod whose GPUs are not attached."""
    await api.emulator.control("POST", "/faults", {"kind": "zero_gpus", "name": "^bare$"})
    _, port = await api.reachable(gpu={"id": "NVIDIA L40S", "count": 2})
    pod, bare = await api.reachable("bare")
    query = "nvidia-smi --query-gpu=index,name,memory.total --format=csv"
    async with ssh(port) as connection:
        plain = await connection.run(f"{query},noheader,nounits")
        assert plain.stdout == "0, NVIDIA L40S, 46068\n1, NVIDIA L40S, 46068\n"
        headed = await connection.run(query)
        assert headed.stdout.splitlines()[:2] == ["index, name, memory.total [MiB]", "0, NVIDIA L40S, 46068 MiB"]
        unknown = await connection.run("nvidia-smi --query-gpu=mood --format=csv")
        assert (unknown.exit_status, "not a valid field" in unknown.stdout) == (2, True)
        assert (await connection.run("nvidia-smi -L")).stdout.count("GPU ") == 2
    async with ssh(bare) as connection:
        none = await connection.run(query)
        assert (none.exit_status, none.stdout) == (6, "No devices were found\n")
    assert (await api.pod(pod["id"]))["runtime"]["gpus"] == []


async def detach(connection: asyncssh.SSHClientConnection, marker: str, how: str = "") -> None:
    """Start a process that outlives the connection, and wait until it has come so far as to be told by its name."""
    await connection.run(f"setsid {how} sleep {marker} </dev/null >/dev/null 2>&1 &")

    async def started() -> list[int]:
        return await asyncio.to_thread(alive, f"sleep {marker}")

    await until(started, "the detached process runs")


@pytest.mark.parametrize("how", ["", "env -i"])
async def test_a_delete_kills_detached_processes_and_keeps_the_home(api: Api, marker: str, how: str) -> None:
    """Those too that cleared their environment."""
    pod, port = await api.reachable()
    async with ssh(port) as connection:
        await connection.run("echo kept > agent.log")
        await detach(connection, marker, how)
        await api.call("DELETE", f"/v2/pods/{pod['id']}", status=204)
        await asyncio.wait_for(connection.wait_closed(), PATIENCE_S)
    await ended(f"sleep {marker}")
    entry = (await api.emulator.control("GET", "/ledger"))["pods"][0]
    assert (Path(entry["home"]) / "agent.log").read_text() == "kept\n"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_deleting_one_pod_leaves_the_others_alone(api: Api, marker: str) -> None:
    """Processes are told apart by their pod."""
    doomed, _ = await api.reachable("doomed")
    _, port = await api.reachable("spared")
    async with ssh(port) as connection:
        await detach(connection, marker)
        await api.call("DELETE", f"/v2/pods/{doomed['id']}", status=204)
        await asyncio.gather(*api.emulator.core.endings)
        assert len(alive(f"sleep {marker}")) == 1
        assert (await connection.run("echo here")).stdout == "here\n"


async def test_a_pod_that_vanishes_is_off_the_list_and_off_the_bill(api: Api, marker: str) -> None:
    """Its host is lost: connections are cut, processes dead."""
    pod, port = await api.reachable()
    async with ssh(port) as connection:
        await detach(connection, marker)
        await api.emulator.control("POST", f"/pods/{pod['id']}/kill", {"how": "vanish"})
        await asyncio.wait_for(connection.wait_closed(), PATIENCE_S)
    assert alive(f"sleep {marker}") == []
    assert await api.names() == []
    assert (await api.emulator.control("GET", "/ledger"))["alive"] == 0


async def test_a_pod_that_exits_is_still_listed_and_billed(api: Api, marker: str) -> None:
    """EXITED, with the ports it had, until it is deleted."""
    pod, port = await api.reachable()
    async with ssh(port) as connection:
        await detach(connection, marker)
        await api.emulator.control("POST", f"/pods/{pod['id']}/kill", {"how": "exit"})
    assert alive(f"sleep {marker}") == []
    seen = await api.pod(pod["id"])
    assert (seen["status"], seen["runtime"], seen["ssh"]["direct"]["port"]) == ("EXITED", None, port)
    assert (await api.emulator.control("GET", "/ledger"))["alive"] == 1


async def test_a_frozen_pod_is_listed_as_running_and_does_nothing(api: Api) -> None:
    """Its processes stand still, SSH takes connections and says nothing; it can be deleted all the same."""
    pod, port = await api.reachable()
    connection = await ssh(port)
    counting = "while :; do echo x >> ticks; sleep 0.01; done"
    await connection.run(f"setsid sh -c '{counting}' </dev/null >/dev/null 2>&1 &")
    ticks = api.emulator.state_dir / "pods" / pod["id"] / "home" / "ticks"

    async def ticking() -> bool:
        return bool(ticks.exists() and ticks.stat().st_size)

    await until(ticking, "the process ticks")
    await api.emulator.control("POST", f"/pods/{pod['id']}/kill", {"how": "freeze"})

    async def stopped() -> bool:  # a signal reaches a process when that next has the processor
        return all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in alive(counting))

    await until(stopped, "the process stands still")
    size = ticks.stat().st_size
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connection.run("echo hello"), 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.3)
    assert ticks.stat().st_size == size
    assert (await api.pod(pod["id"]))["status"] == "RUNNING"
    await api.call("DELETE", f"/v2/pods/{pod['id']}", status=204)
    await ended(counting)
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()


async def test_a_restarted_pod_keeps_its_files_and_changes_its_port(api: Api) -> None:
    """What ran on it is gone."""
    pod, port = await api.reachable()
    async with ssh(port) as connection:
        await connection.run("echo kept > file")
    await api.call("POST", f"/v2/pods/{pod['id']}/action", {"action": "restart"})

    async def moved() -> int:
        direct = (await api.pod(pod["id"]))["ssh"]["direct"]
        return direct["port"] if direct and direct["port"] != port else 0

    new_port = await until(moved, "another port")

    async def up() -> Any:
        try:
            return await ssh(new_port)
        except OSError:
            return None

    async with await until(up, "sshd is up again") as connection:
        assert (await connection.run("cat file")).stdout == "kept\n"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str], Path]]:
    """The emulator as a program of its own."""
    command = [sys.executable, "-m", "testbed.runpod", "--state-dir", str(tmp_path), "--boot-s", "0.1", "0.1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY)
    assert process.stdout is not None
    yield process, json.loads(process.stdout.readline()), tmp_path
    process.kill()
    process.wait()
    process.stdout.close()


async def _detach(url: str, api_key: str, state_dir: Path, marker: str) -> None:
    """Start a detached process on a new pod of an emulator that runs as a program."""
    headers = {"Authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_S) as client:
        pod = (await client.post("/v2/pods", json=request())).json()

        async def connected() -> Any:
            direct = (await client.get(f"/v2/pods/{pod['id']}")).json()["ssh"]["direct"]
            try:
                return await ssh(direct["port"]) if direct else None
            except OSError:
                return None

        async with await until(connected, "the pod is reachable") as connection:
            await detach(connection, marker)
    assert alive(str(state_dir / "pods")), "the watchdog runs"


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
async def test_nothing_remains_when_the_emulator_ends(
    program: tuple[subprocess.Popen[bytes], dict[str, str], Path], marker: str, number: signal.Signals
) -> None:
    """Killed or asked to end: neither a pod's process nor the watchdog outlives it."""
    process, ready, state_dir = program
    await _detach(ready["url"], ready["api_key"], state_dir, marker)
    process.send_signal(number)
    await asyncio.to_thread(process.wait, PATIENCE_S)
    await ended(f"sleep {marker}")
    await ended(str(state_dir))


async def test_nothing_remains_when_the_emulators_parent_is_killed(tmp_path: Path, marker: str) -> None:
    """The emulator ends with its parent."""
    start = (
        "import subprocess, sys, time;"
        "subprocess.Popen([sys.executable, '-m', 'testbed.runpod', '--state-dir', sys.argv[1],"
        " '--boot-s', '0.1', '0.1']); time.sleep(600)"
    )
    parent = subprocess.Popen(  # noqa: ASYNC220 - quick, and it must be killed hard
        [sys.executable, "-c", start, str(tmp_path)], stdout=subprocess.PIPE, cwd=REPOSITORY
    )
    try:
        assert parent.stdout is not None
        ready = json.loads(await asyncio.to_thread(parent.stdout.readline))
        await _detach(ready["url"], ready["api_key"], tmp_path, marker)
    finally:
        parent.kill()
        parent.wait()
    await ended(f"sleep {marker}")
    await ended(str(tmp_path))
    parent.stdout.close()


async def test_the_next_emulator_kills_what_the_last_one_left(
    program: tuple[subprocess.Popen[bytes], dict[str, str], Path], marker: str
) -> None:
    """Even the watchdog was killed before it could act."""
    process, ready, state_dir = program
    await _detach(ready["url"], ready["api_key"], state_dir, marker)
    for pid in alive(str(state_dir / "pods")):
        if "watchdog" in " ".join(psutil.Process(pid).cmdline()):
            os.kill(process.pid, signal.SIGSTOP)  # so that it does not start another
            os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    assert alive(f"sleep {marker}")
    async with emulated(state_dir):
        assert alive(f"sleep {marker}") == []


async def test_the_watchdog_is_replaced_when_it_dies(api: Api) -> None:
    """There is always one."""
    directory = str(api.emulator.state_dir / "pods")

    async def watching() -> list[int]:
        return alive(directory)

    first = await until(watching, "a watchdog")
    os.kill(first[0], signal.SIGKILL)

    async def another() -> bool:
        return bool(set(alive(directory)) - set(first))

    await until(another, "another watchdog")
