"""Debian's Slurm and munge on emulated pods, and their faults: real daemons, on private addresses."""

import getpass
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from testbed.runpod.control import ControlRefused
from testbed.services import debian
from testbed.services.free_port import free_port
from tests.process.emulator.build import PATIENCE_S, Api, emulated, ssh, until

pytestmark = pytest.mark.needs_program("slurmctld", "slurm-wlm", "fix: .ci/debian slurm-wlm")
CLUSTER = ".gpu-cluster/one"
SKEW_S = 3_600  # munge's credentials live for 300 s
CONFIGURATION = """
ClusterName=one
SlurmctldHost={controller}({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
PluginDir={plugins}
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
SlurmctldTimeout=30
SlurmdTimeout=30
TreeWidth=64
AuthInfo=socket={home}/munge/socket
SlurmctldPidFile={home}/ctld.pid
SlurmdPidFile={home}/d.pid
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldLogFile={home}/ctld.log
SlurmdLogFile={home}/d.log
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""
MUNGED = "munged --force --key-file={home}/munge/key --socket={home}/munge/socket --pid-file={home}/munge/pid"
MUNGED += " --log-file={home}/munge/log --seed-file={home}/munge/seed"


class Member:
    """A pod with a munge of the cluster's key."""

    def __init__(self, pod: dict[str, Any], connection: asyncssh.SSHClientConnection, home: Path) -> None:
        self.id, self.ip = pod["id"], pod["globalNetworking"]["ip"]
        self.node, self.port = f"node-{self.id}", free_port()
        self.home, self._connection = home / CLUSTER, connection

    async def run(self, command: str, *, text: str = "", status: int | None = 0) -> str:
        """Run a command; its output. `status` None: any."""
        settings = f"export SLURM_CONF={self.home}/slurm.conf; "
        done = await self._connection.run(settings + command, input=text, timeout=PATIENCE_S)
        said = str(done.stdout) + str(done.stderr)
        assert status in (None, done.exit_status), f"{command}: {said}"
        return said

    async def munge(self, key: str) -> None:
        """Start its munge."""
        await self.run(f"mkdir -p {self.home}/munge {self.home}/state {self.home}/spool && chmod 700 {self.home}/munge")
        await self.run(f"umask 077 && cat >{self.home}/munge/key", text=key)
        await self.run(MUNGED.format(home=self.home))

    async def encode(self) -> str:
        """A credential of its munge."""
        return await self.run(f"munge -n -S {self.home}/munge/socket")

    async def decode(self, credential: str) -> str:
        """What its munge says of a credential."""
        said = await self.run(f"unmunge -S {self.home}/munge/socket", text=credential, status=None)
        return next(line for line in said.splitlines() if "STATUS" in line or line.startswith("unmunge"))


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """A fresh account, in a directory whose name is short: a socket's path has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="pods-") as directory:
        async with emulated(Path(directory)) as made:
            yield made


async def members(api: Api, count: int) -> list[Member]:
    """Pods on the global network with one munge key."""
    made = []
    for number in range(count):
        gpu = {"id": "NVIDIA A40", "count": 2}
        pod, port = await api.reachable(f"pod-{number}", gpu=gpu, globalNetworking=True, dataCenterIds=["US-KS-2"])
        home = api.emulator.core.world.pods[pod["id"]].home
        made.append(Member(await api.pod(pod["id"]), await ssh(port), home))
        await made[-1].munge("k" * 128)
    return made


async def slurm(pods: list[Member]) -> None:
    """Configure and start Slurm, and wait until every node is idle."""
    port, (controller, *_) = free_port(), pods
    nodes = "\n".join(
        f"NodeName={pod.node} NodeAddr={pod.ip} NodeHostname={pod.node} Port={pod.port} CPUs=1 Gres=gpu:2"
        for pod in pods
    )
    program = debian.find("slurmctld", debian.SLURM)
    assert program is not None
    place = {"user": getpass.getuser(), "plugins": next(program.path.parents[1].glob("lib/*/slurm-wlm"))}
    for pod in pods:
        name = {"controller": "$(hostname -s)", "address": controller.ip, "port": port, "home": pod.home}
        text = CONFIGURATION.format(**name, **place, nodes=nodes)
        await pod.run(f"sed s/[$].hostname.-s./$(hostname -s)/ >{pod.home}/slurm.conf", text=text)
        gpus = (await pod.run("nvidia-smi -L")).count("GPU ")
        # Slurm counts no GPU without a file. Any file will do: nothing here confines a job to its devices.
        devices = " ".join(f"{pod.home}/gpu{index}" for index in range(gpus))
        lines = "".join(f"Name=gpu File={device}\n" for device in devices.split())
        await pod.run(f"touch {devices} && cat >{pod.home}/gres.conf", text=lines)
    await controller.run("slurmctld")
    for pod in pods:
        await pod.run(f"slurmd -d {program.path.with_name('slurmstepd')} -N {pod.node}")
    await until(lambda: _states(controller, "idle", len(pods)), "every node is idle")


async def _states(controller: Member, state: str, count: int) -> bool:
    said = await controller.run("timeout 5 sinfo -h -N -o %T", status=None)
    return [line.rstrip("*") for line in said.split()].count(state) == count


async def test_a_job_runs_on_two_pods_and_dead_daemons_are_seen(api: Api) -> None:
    """GPUs are counted as nvidia-smi counts them; the dead are those that were named."""
    controller, worker = pods = await members(api, 2)
    await slurm(pods)
    said = await controller.run("timeout 30 srun -N2 -n2 --gres=gpu:2 sh -c 'echo $SLURMD_NODENAME'")
    assert sorted(said.split()) == sorted(pod.node for pod in pods)
    assert "is UP" in await _ping(worker)
    killed = await api.emulator.control("POST", f"/pods/{controller.id}/daemons/kill", {"names": ["slurmctld"]})
    assert killed["killed"] >= 1
    assert "is DOWN" in await _ping(worker)
    assert "slurmd" in await controller.run(f"cat /proc/$(cat {controller.home}/d.pid)/comm")
    killed = await api.emulator.control("POST", f"/pods/{worker.id}/daemons/kill")
    assert killed["killed"] == 2
    await worker.run(f"test ! -e /proc/$(cat {worker.home}/d.pid)")
    with pytest.raises(ControlRefused, match="unknown daemons"):
        await api.emulator.control("POST", f"/pods/{worker.id}/daemons/kill", {"names": ["sshd"]})


@pytest.mark.needs_program("cc", "gcc", "fix: apt-get install gcc libc6-dev")
async def test_slurm_notices_a_cut_line(api: Api) -> None:
    """The controller is down for the member that is cut off, and up again when the line is healed."""
    controller, worker = pods = await members(api, 2)
    await slurm(pods)
    assert "is UP" in await _ping(worker)
    await api.emulator.control("POST", f"/pods/{worker.id}/fabric", {"from": [controller.id]})
    assert "is DOWN" in await _ping(worker)
    assert "is UP" in await _ping(controller)
    await api.emulator.control("POST", f"/pods/{worker.id}/fabric", {"from": []})
    assert "is UP" in await _ping(worker)


async def _ping(pod: Member) -> str:
    return await pod.run("timeout 20 scontrol ping", status=None)


async def test_a_pod_with_another_munge_key_is_refused_by_the_others(api: Api) -> None:
    """Its munge goes on, with credentials that only it accepts."""
    one, two = await members(api, 2)
    assert "Success" in await two.decode(await one.encode())
    assert await api.emulator.control("POST", f"/pods/{two.id}/munge-key") == {"id": two.id, "restarted": 1}
    assert "Invalid credential" in await two.decode(await one.encode())
    assert "Success" in await two.decode(await two.encode())


@pytest.mark.needs_program("faketime", "faketime", "fix: .ci/debian faketime")
async def test_the_clock_of_running_daemons_can_be_moved(api: Api) -> None:
    """The daemons and `date` follow; a pod that booted without such a clock refuses."""
    (plain,) = await members(api, 1)
    with pytest.raises(ControlRefused, match="setting fake_clocks"):
        await api.emulator.control("POST", f"/pods/{plain.id}/clock", {"seconds": SKEW_S})
    await api.emulator.control("POST", "/settings", {"fake_clocks": True})
    one, two = await members(api, 2)
    assert "Success" in await two.decode(await one.encode())
    before = int(await two.run("date +%s"))
    await api.emulator.control("POST", f"/pods/{two.id}/clock", {"seconds": SKEW_S})
    assert int(await two.run("date +%s")) - before >= SKEW_S

    async def expired() -> bool:  # libfaketime looks at the file once a second
        return "Expired credential" in await two.decode(await one.encode())

    await until(expired, "the moved clock rejects credentials")
    assert "Rewound credential" in await one.decode(await two.encode())
    await api.emulator.control("POST", f"/pods/{two.id}/clock", {"seconds": 0})

    async def accepted() -> bool:
        return "Success" in await two.decode(await one.encode())

    await until(accepted, "the clock is right again")
