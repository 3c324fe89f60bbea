"""The faults that pods are born with, and how calls are matched."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncssh
import psutil
import pytest

from testbed.runpod.control import ControlRefused
from testbed.runpod.faults import KINDS, Call, FaultTable, Moment
from tests.process.emulator.build import PATIENCE_S, Api, emulated, request, ssh, until


@pytest.fixture(scope="module")
async def account(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """One emulator for all of these tests."""
    async with emulated(tmp_path_factory.mktemp("account")) as made:
        yield made


@pytest.fixture
async def api(account: Api) -> AsyncIterator[Api]:
    """The account without faults, and without pods once the test is over."""
    yield account
    await account.emulator.control("DELETE", "/faults")
    for pod in account.emulator.core.world.live():
        account.emulator.core.end_pod(pod)


async def inject(api: Api, kind: str, **fields: Any) -> None:
    """Make something go wrong."""
    await api.emulator.control("POST", "/faults", {"kind": kind, **fields})


async def first_words(port: int, within_s: float = PATIENCE_S) -> bytes:
    """What a server says first; nothing if it says nothing for so long."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await asyncio.wait_for(reader.read(8), within_s)
    except TimeoutError:
        return b""
    finally:
        writer.close()


async def booted(api: Api) -> int:
    """Create a pod and wait until it would be reachable; its port."""
    pod = await api.create()
    port = await api.ssh_port(pod["id"])

    async def opened() -> bool:
        return any("sshd listens" in line for _, line in api.emulator.core.world.pods[pod["id"]].system_log)

    await until(opened, "sshd was opened")
    return port


async def test_ssh_can_be_silent_something_else_or_refused(api: Api) -> None:
    """What a client finds at the port."""
    for kind, said in {"ssh_silent": b"", "ssh_not_ssh": b"HTTP/1.1"}.items():
        await inject(api, kind, times=1)
        assert await first_words(await booted(api), PATIENCE_S if said else 0.3) == said
    await inject(api, "ssh_refused", times=1)
    with pytest.raises(ConnectionRefusedError):
        await first_words(await booted(api))
    assert await first_words(await booted(api)) == b"SSH-2.0-"


async def test_ssh_can_refuse_the_right_key(api: Api) -> None:
    """Sshd runs, and lets nobody in."""
    await inject(api, "ssh_auth_refused")
    port = await booted(api)
    with pytest.raises(asyncssh.PermissionDenied):
        await ssh(port)


async def test_ssh_can_change_its_host_key(api: Api) -> None:
    """As when another machine got the address."""
    port = await booted(api)
    keys = []
    for mode in ("wrong_key", "wrong_key"):
        async with ssh(port) as connection:
            keys.append(connection.get_server_host_key().public_data)
        pod_id = next(iter(api.emulator.core.world.live())).id
        await api.emulator.control("POST", f"/pods/{pod_id}/ssh", {"mode": mode})
    assert keys[0] != keys[1]


async def test_ssh_can_move_to_another_port(api: Api) -> None:
    """As after a restart: the API shows the new one, the old one refuses, the machine and its key are the same."""
    before = await booted(api)
    pod = next(iter(api.emulator.core.world.live()))
    async with ssh(before) as connection:
        key = connection.get_server_host_key().public_data
        after = (await api.emulator.control("POST", f"/pods/{pod.id}/ports"))["port"]
        await connection.wait_closed()
    assert after != before
    assert (await api.pod(pod.id))["ssh"]["direct"]["port"] == after
    with pytest.raises(ConnectionRefusedError):
        await ssh(before)
    async with ssh(after) as connection:
        assert connection.get_server_host_key().public_data == key


async def test_ssh_can_show_another_host_key_each_time(api: Api) -> None:
    """From birth, as where several machines take turns behind one address."""
    await inject(api, "ssh_wrong_key", seconds=9)
    port, keys = await booted(api), set()
    for _ in range(3):
        async with ssh(port) as connection:
            keys.add(connection.get_server_host_key().public_data)
    assert len(keys) == 3


async def test_ssh_can_log_in_and_run_nothing(api: Api) -> None:
    """As an account whose shell is nologin."""
    await inject(api, "ssh_no_shell")
    async with ssh(await booted(api)) as connection:
        result = await connection.run("echo here")
    assert (result.exit_status, result.stdout) == (1, "This account is currently not available.\n")


async def test_uploads_can_be_corrupted(api: Api) -> None:
    """As many bytes lie there as were sent, and not the same ones."""
    await inject(api, "corrupt_uploads")
    async with ssh(await booted(api)) as connection:
        async with connection.start_sftp_client() as sftp, sftp.open("file", "wb") as file:
            await file.write(b"words")
        assert (await connection.run("cat file")).stdout == "vords"


async def test_a_pod_can_call_itself_another(api: Api) -> None:
    """What answers at its address says that it is not the pod that was rented."""
    await inject(api, "wrong_pod_id")
    pod, port = await api.reachable("other")
    async with ssh(port) as connection:
        said = (await connection.run("printf %s $RUNPOD_POD_ID")).stdout
    assert said == pod["id"][::-1]


async def test_the_same_machine_can_be_rented_again(api: Api) -> None:
    """The API names it: two pods on the same one."""
    await inject(api, "same_machine", detail="m-17", times=2)
    pods = [await api.create(name) for name in ("first", "second", "third")]
    assert [pod.get("machineId") for pod in pods] == ["m-17", "m-17", None]


async def test_a_create_call_alone_can_be_refused(api: Api) -> None:
    """For its body, or for its key, while lists are answered."""
    await inject(api, "bad_request", times=1)
    await api.call("POST", "/v2/pods", request(), status=422)
    await inject(api, "forbidden", operation="create")
    await api.call("POST", "/v2/pods", request(), status=403)
    assert await api.names() == []


async def test_ssh_can_drop_in_the_middle_of_a_command(api: Api) -> None:
    """The command goes on without its client."""
    await inject(api, "ssh_dropped", seconds=0.1)
    port = await booted(api)
    async with ssh(port) as connection:
        result = await connection.run("while [ ! -e go ]; do sleep 0.05; done; echo done > finished")
    assert result.exit_status is None
    home = next(iter(api.emulator.core.world.live())).home
    (home / "go").touch()

    async def finished() -> bool:
        return (home / "finished").exists()

    await until(finished, "the command finished")


@pytest.mark.parametrize(
    ("kind", "status"),
    [("stuck_provisioning", "PROVISIONING"), ("stuck_starting", "STARTING"), ("boot_error", "ERROR")],
)
async def test_a_boot_can_get_stuck(api: Api, kind: str, status: str) -> None:
    """The pod stays where it is, while another one boots through."""
    await inject(api, kind, name="^stuck$")
    stuck, fine = await api.create("stuck"), await api.create("fine")
    await api.ssh_port(fine["id"])
    await api.status(stuck["id"], status)


async def test_a_pod_can_run_without_runtime_or_ssh_details(api: Api) -> None:
    """RUNNING alone proves nothing."""
    await inject(api, "no_runtime", name="^bare$")
    await inject(api, "no_ssh_details", name="^hidden$")
    bare, hidden, fine = [await api.create(name) for name in ("bare", "hidden", "fine")]
    await api.ssh_port(fine["id"])
    assert (await api.status(bare["id"], "RUNNING"))["runtime"] is None
    assert (await api.status(hidden["id"], "RUNNING"))["ssh"]["direct"] is None


async def test_a_pod_can_exit_vanish_or_flicker_by_itself(api: Api) -> None:
    """Some seconds after RUNNING."""
    await inject(api, "exits", name="^exits$", seconds=0.05)
    await inject(api, "vanishes", name="^vanishes$", seconds=0.05)
    await inject(api, "flickers", name="^flickers$", seconds=6)
    exits, _, flickers = [await api.create(name) for name in ("exits", "vanishes", "flickers")]
    assert (await api.status(flickers["id"], "RUNNING"))["runtime"] is None
    await api.status(exits["id"], "EXITED")

    async def gone_and_back() -> bool:
        return (await api.pod(flickers["id"]))["runtime"] is not None and "vanishes" not in await api.names()

    await until(gone_and_back, "one has vanished, one has its runtime back")


async def test_a_clock_can_be_off_and_a_driver_old(api: Api) -> None:
    """Seen by `date` and nvidia-smi."""
    await inject(api, "clock_skew", seconds=3600)
    await inject(api, "old_driver")
    async with ssh(await booted(api)) as connection:
        before, skewed, after = [
            int(str((await connection.run(f"{date} +%s")).stdout)) for date in ("/bin/date", "date", "/bin/date")
        ]
        driver = (await connection.run("nvidia-smi --query-gpu=driver_version --format=csv,noheader")).stdout
    assert before + 3600 <= skewed <= after + 3600
    assert driver.startswith("470.")


START = "{} - start --run-dir d <<'E'\nimport json, sys\n{}\nE"


@pytest.mark.parametrize("python", ["python3", sys.executable])
async def test_an_agent_can_end_at_its_start_or_be_cut_off(api: Api, python: str) -> None:
    """Only the command that starts it is touched, also if WORKER_PYTHON is a path."""
    await inject(api, "agent_dies", name="^dies$")
    await inject(api, "agent_cut_off", name="^cut$")
    _, dies = await api.reachable("dies")
    _, cut = await api.reachable("cut")
    popen = "subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL)"
    begin = f"import subprocess; print(json.dumps({{'pid': {popen}.pid}}))"
    async with ssh(dies) as connection:
        said = await connection.run(START.format(python, begin))
        pid = int(json.loads(str(said.stdout))["pid"])

        async def gone() -> bool:
            return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

        await until(gone, "it is dead")
    async with ssh(cut) as connection:
        await connection.run("cat > echo.py", input="import sys; print(sys.stdin.read())")
        config = json.dumps({"api_url": "https://example.test/x", "token": "t"})
        said = await connection.run(f"{python} echo.py start --run-dir d", input=config)
        assert json.loads(said.stdout or "") == {"api_url": "http://127.0.0.1:9", "token": "t"}
        assert json.loads((await connection.run(f"{python} echo.py", input=config)).stdout or "") == json.loads(config)


async def test_a_fresh_pod_can_be_unknown_to_a_read(api: Api) -> None:
    """An early 404 is not absence."""
    await inject(api, "early_404", seconds=8)
    pod = await api.create()
    await api.call("GET", f"/v2/pods/{pod['id']}", status=404)

    async def known() -> bool:
        return bool((await api.client.get(f"/v2/pods/{pod['id']}")).status_code == 200)

    await until(known, "the pod is known")


async def test_one_offer_alone_can_be_sold_out(api: Api) -> None:
    """Only create calls that could go nowhere else are refused."""
    await inject(api, "no_capacity", gpu_type="NVIDIA L40S")
    await api.call("POST", "/v2/pods", request(gpu={"id": "NVIDIA L40S", "count": 1}), status=400)
    await api.create()


def test_nth_times_probability_and_name_choose_the_calls() -> None:
    """And a seed gives the same choice again."""
    table = FaultTable(1)
    table.inject({"kind": "internal_error", "operation": "list", "nth": [2, 4]})
    hits = [bool(table.applying(Call("list"), Moment.BEFORE)) for _ in range(5)]
    assert hits == [False, True, False, True, False]
    table.clear()
    table.inject({"kind": "no_capacity", "name": "-b$", "times": 1})
    assert [len(table.applying(Call("create", name), Moment.BEFORE)) for name in ("x-a", "x-b", "x-b")] == [0, 1, 0]
    chosen = []
    for _ in range(2):
        table = FaultTable(5)
        table.inject({"kind": "commit_then_500", "probability": 0.5})
        chosen.append([len(table.applying(Call("create"), Moment.AFTER)) for _ in range(40)])
    assert chosen[0] == chosen[1]
    assert 5 < sum(chosen[0]) < 35


@pytest.mark.parametrize("wrong", [{"kind": "none"}, {"kind": "quota", "often": 1}, {"kind": "quota", "applied": 3}])
def test_a_fault_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    """Rather than never striking."""
    with pytest.raises(ValueError, match="unknown fault"):
        FaultTable(0).inject(wrong)


def test_every_kind_can_be_injected() -> None:
    """The table has no row that the parser refuses."""
    table = FaultTable(0)
    for kind in KINDS:
        table.inject({"kind": kind})
    assert len(table.faults) == len(KINDS)


async def test_the_machine_of_a_running_pod_can_become_sick(api: Api) -> None:
    """Its tools show it from then on, and the agent that is started there reads it where they do."""
    port = await booted(api)
    pod = next(iter(api.emulator.core.world.live()))
    ask = "nvidia-smi --query-gpu=temperature.gpu --format=csv,noheader; dmesg; cat $EMULATED_POD/root/*/*/*/*.events"
    async with ssh(port) as connection:
        await connection.run("cat > echo.py", input="import os, sys; print(os.statvfs('/').f_bavail, sys.stdin.read())")
        before = await connection.run(ask)
        change = {"faults": {"xid": "63", "oom_kills": "3", "disk_full": ""}, "gpus": {"temperature.gpu": "91"}}
        await api.emulator.control("POST", f"/pods/{pod.id}/machine", change)
        after = await connection.run(ask)
        started = await connection.run("python3 echo.py start --run-dir d", input='{"token": "t"}')
    assert "Xid" not in str(before.stdout)
    for said in ("91\n", "NVRM: Xid (PCI:0000:01:00): 63,", "oom_kill 3"):
        assert said in str(after.stdout)
    free, _, config = str(started.stdout).partition(" ")
    assert int(free) < 100_000
    assert json.loads(config)["system_root"] == f"{pod.home.parent}/root"
    for wrong in ({"faults": {"plague": ""}}, {"gpus": {"mood": "91"}}):
        with pytest.raises(ControlRefused):
            await api.emulator.control("POST", f"/pods/{pod.id}/machine", wrong)
