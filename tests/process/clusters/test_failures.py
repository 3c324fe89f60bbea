"""Each failure of a member is another reading, no call exceeds its deadline, and `stop` ends only its own processes."""

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import cast

import pytest

from orchestrator.adapters.ssh_session import AsyncSshSession
from orchestrator.clusters import node
from orchestrator.clusters.configuration import controller_port
from orchestrator.clusters.node import NodeFailed
from orchestrator.core.clusters.readings import DaemonState, Reading, is_up
from orchestrator.ports import Completed, Session, Unavailable
from tests.process.clusters.rig import PACKAGE, Member, Rig, eventually, processes_with
from worker.processes import alive

pytestmark = pytest.mark.needs_program("slurmctld", PACKAGE, f".ci/debian {PACKAGE}")
MOST_S = 40.0  # of a probe, whose own limits are PROBE_S + MARGIN_S, on a busy machine


async def started(*words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.DEVNULL)


def marked(root: str) -> set[str]:
    """Return the command lines of the daemons' children for this cluster."""
    text, found = f"GPU_CLUSTER_ROOT={root}\0".encode(), set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text in (entry / "environ").read_bytes():
                found.add((entry / "cmdline").read_bytes().decode("utf-8", "replace"))
    return found


async def within_deadline(rig: Rig, member: Member) -> Reading:
    began = time.monotonic()
    reading = await rig.probe(member)
    assert time.monotonic() - began < MOST_S
    return reading


async def test_a_killed_slurmd_is_seen_on_its_pod_and_comes_back(rig: Rig) -> None:
    controller, worker = await rig.add(), await rig.add()
    await rig.deploy()
    worker.kill("slurmd")
    reading = await within_deadline(rig, worker)
    assert (reading.slurmd_state, reading.slurmctld_state, reading.munge_ok) == (DaemonState.DOWN, DaemonState.UP, True)
    beside = await rig.probe(controller, peers=(worker.node,))
    assert beside.slurmd_state is DaemonState.UP
    assert beside.peers == {worker.name.text: False}
    await controller.shell(f"scontrol update NodeName={worker.name.text} State=DOWN Reason=test")
    await node.start_node(worker.session, rig.cluster, worker.name)
    assert is_up((await rig.probe(controller)).state_of(worker.name))


async def test_a_killed_slurmctld_is_seen_from_every_pod_within_the_deadline(rig: Rig) -> None:
    controller, worker = await rig.add(), await rig.add()
    conf = await rig.deploy()
    controller.kill("slurmctld")
    for member in (controller, worker):
        reading = await within_deadline(rig, member)
        assert (reading.slurmctld_state, reading.slurmd_state, reading.munge_ok) == (
            DaemonState.DOWN,
            DaemonState.UP,
            True,
        )
        assert reading.slurmctld_pid is None
        assert reading.node_states is None
        assert reading.error
    await node.start_node(worker.session, rig.cluster, worker.name)
    began = time.monotonic()
    with pytest.raises(NodeFailed, match="NOT_DRAINED"):
        await node.drain(worker.session, rig.cluster, worker.name, "no controller")
    assert time.monotonic() - began < node.UPDATE_S + node.MARGIN_S
    await node.start_controller(controller.session, rig.cluster)
    assert (await node.smoke(controller.session, conf, 2, clock=time.monotonic)).error is None


async def test_a_slurmctld_that_hangs_is_down_and_a_start_replaces_it(rig: Rig) -> None:
    controller = await rig.add()
    await rig.deploy()
    pid = controller.pid("slurmctld")
    os.kill(pid, signal.SIGSTOP)
    reading = await within_deadline(rig, controller)
    assert (reading.slurmctld_state, reading.slurmctld_pid) == (DaemonState.DOWN, pid)
    await node.start_controller(controller.session, rig.cluster)
    assert controller.pid("slurmctld") != pid
    assert (await rig.probe(controller)).slurmctld_state is DaemonState.UP


async def test_a_wrong_munge_key_is_not_a_dead_munged(rig: Rig) -> None:
    controller, worker = await rig.add(), await rig.add()
    conf = await rig.deploy()
    worker.kill("munged")
    dead = await within_deadline(rig, worker)
    assert (dead.munge_ok, dead.munge_matches) == (False, True)
    await node.configure(worker.session, conf, worker.node, os.urandom(128))
    wrong = await within_deadline(rig, worker)
    assert (wrong.munge_ok, wrong.munge_matches, wrong.slurmctld_state) == (False, False, DaemonState.DOWN)
    (worker.root / "munge" / "key").write_bytes(rig.munge_key)  # munged still has the other one
    assert (await rig.probe(worker)).munge_matches is False
    assert (await rig.probe(controller)).munge_ok is True
    await node.configure(worker.session, conf, worker.node, rig.munge_key)
    right = await rig.probe(worker)
    assert (right.munge_ok, right.munge_matches, right.slurmctld_state) == (True, True, DaemonState.UP)
    words = Path(f"/proc/{worker.pid('munged')}/cmdline").read_bytes().split(b"\0")[:-1]
    worker.kill("munged")  # somebody starts another one with the same arguments, and another key
    (worker.root / "munge" / "key").write_bytes(os.urandom(128))
    again = await asyncio.create_subprocess_exec(*words)
    assert await again.wait() == 0
    assert (await rig.probe(worker)).munge_matches is False
    await node.configure(worker.session, conf, worker.node, rig.munge_key)
    assert (await rig.probe(worker)).slurmctld_state is DaemonState.UP


async def test_a_changed_configuration_has_another_identity(rig: Rig) -> None:
    controller = await rig.add()
    await rig.deploy()
    before = (await rig.probe(controller)).conf_sha
    file = controller.root / "etc" / "slurm.conf"
    file.write_text(file.read_text() + "# by hand\n")
    assert (await rig.probe(controller)).conf_sha not in {before, None}
    await rig.deploy()
    assert (await rig.probe(controller)).conf_sha == before


async def test_the_key_is_secret_on_the_pod(rig: Rig) -> None:
    member = await rig.add()
    await rig.deploy()
    assert (member.root / "munge" / "key").stat().st_mode & 0o777 == 0o600
    assert member.root.stat().st_mode & 0o777 == 0o700
    assert (member.root / "munge" / "key").read_bytes() == rig.munge_key
    for file in member.root.rglob("*.log"):
        assert rig.munge_key not in file.read_bytes()


async def test_a_lost_connection_is_not_reached(rig: Rig) -> None:
    member = await rig.add()
    member.sshd.cut()
    await eventually(lambda: asyncio.sleep(0, member.session.closed), "the connection goes")
    assert (await rig.probe(member)).reached is False
    with pytest.raises(Unavailable):
        await node.start_controller(member.session, rig.cluster)
    await rig.connect(member)


SLURM = ("munged", "slurmctld", "slurmd", "slurmstepd")
HOSTILE = {
    "megabytes": "head -c 3000000 /dev/zero | tr '\\0' x",
    "more than a session takes": "yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | head -c 9000000",
    "escapes": "printf '\\033[2J\\033]0;x\\007 is UP\\nnode=\\033[31m idle\\n'",
    "forged lines": "printf 'x\\nslurmd=none\\nmunge=yes\\nnodes=all\\nend=\\n'",
    "half a line": "printf 'gpu-1 id'",
    "no end": "sleep 600",
    "endless": "exec yes",
    "endless line": "exec tr '\\0' x </dev/zero",
    "binary": "head -c 20000 /dev/urandom",
}


@dataclass
class LyingTools:
    """A session to a pod on which one program is another one."""

    session: AsyncSshSession
    tools: Path
    closed: bool = False

    async def run(self, command: str, *, stdin: bytes = b"", timeout_s: float) -> Completed:
        lies = f"export PATH={self.tools}:$PATH RUNPOD_POD_ID=pod; exec {command}"
        return await self.session.run(lies, stdin=stdin, timeout_s=timeout_s)


@pytest.mark.parametrize("tool", ["sinfo", "scontrol", "munge", "date", "getent"])
async def test_what_a_hostile_pod_prints_is_unknown(rig: Rig, tool: str) -> None:
    """The tools of a pod lie. No probe fails, none waits too long, and no text of theirs gets through."""
    member = await rig.add()
    await rig.deploy()

    async def probe(kind: str) -> None:
        tools = rig.directory / "tools" / kind.replace(" ", "-")
        tools.mkdir(parents=True)
        (tools / tool).write_text(f"#!/bin/sh\n{HOSTILE[kind]}\n")
        (tools / tool).chmod(0o755)
        began = time.monotonic()
        lying = cast("Session", LyingTools(member.session, tools))
        reading = await node.probe(lying, rig.question())
        assert time.monotonic() - began < MOST_S, kind
        assert reading.fabric_addr is None, kind
        assert reading.node_states in (None, {member.name.text: "idle"}), kind
        texts = (reading.error, reading.hostname, reading.version)
        assert all(text is None or (text.isprintable() and len(text) <= 400) for text in texts), kind

    await asyncio.gather(*map(probe, HOSTILE))


async def test_a_removal_ends_exactly_the_clusters_processes(rig: Rig) -> None:
    controller, worker = await rig.add(), await rig.add()
    await rig.deploy()
    names = (f"{rig.cluster}{letter}" for letter in ascii_lowercase)  # the first one's id with something after it
    other_id = next(name for name in names if controller_port(name) != controller_port(rig.cluster))
    other = Rig(rig.directory, rig.key, other_id, list(rig.members))
    neighbour = Member(controller.home, controller.node, controller.sshd, controller.session, other.cluster)
    other.members = [neighbour]
    await other.deploy()
    reader = await started("tail", "-f", str(controller.root / "etc" / "slurm.conf"))
    sleep = f"sleep 9{time.time_ns() % 10**9}"
    await controller.shell(f"sbatch -N2 -o /dev/null --wrap 'srun setsid {sleep}1 & {sleep}2'")

    async def job_runs() -> bool:
        return len([line for line in processes_with(f"{sleep}1") if line.startswith("sleep")]) == 2

    await eventually(job_runs, "the job starts")
    try:
        (controller.root / "run" / "slurmd.pid").unlink()  # lost: the command line still tells
        for member in (controller, worker):
            await node.remove(member.session, rig.cluster)
            assert not any(name in line.split(" ")[0] for line in processes_with(f"{member.root}/") for name in SLURM)
        assert processes_with(sleep) == []
        left = marked(str(controller.root)) | marked(str(worker.root))
        assert not left, left
        assert reader.returncode is None
        assert all(alive(neighbour.pid(name), None) for name in ("munged", "slurmctld", "slurmd"))
        assert (await other.probe(neighbour)).slurmd_state is DaemonState.UP
    finally:
        reader.kill()
        await reader.wait()
        await node.remove(neighbour.session, other.cluster)


async def test_a_reused_pid_is_not_ended(rig: Rig) -> None:
    member = await rig.add()
    await rig.deploy()
    for name in ("slurmd", "slurmctld", "munged"):
        member.kill(name)
    stranger = await started("sleep", "600")
    try:
        for name in ("slurmd", "slurmctld", "munged"):
            (member.root / "run" / f"{name}.pid").write_text(f"{stranger.pid}\n")
        reading = await rig.probe(member)
        assert (reading.slurmd_state, reading.slurmctld_pid, reading.munge_ok) == (DaemonState.DOWN, None, False)
        await node.remove(member.session, rig.cluster)
        assert stranger.returncode is None
        await rig.deploy()
        assert stranger.returncode is None
    finally:
        stranger.kill()
        await stranger.wait()


async def test_a_home_that_is_no_plain_path_is_refused(rig: Rig, tmp_path: Path) -> None:
    member = await rig.add()
    rig.environment = {"HOME": f"{tmp_path}/with space"}
    with pytest.raises(NodeFailed, match="BAD_HOME"):
        await rig.deploy()
    rig.environment = {}
    with pytest.raises(ValueError, match="no id of a cluster"):
        await node.remove(member.session, "../../etc")
