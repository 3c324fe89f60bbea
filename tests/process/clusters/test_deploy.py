"""Slurm comes up on the members of a cluster, runs a job on all of them, and follows a change of its members."""

import asyncio
import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.clusters import configuration, node
from orchestrator.core.clusters.readings import DaemonState, is_busy, is_drained
from tests.process.clusters.rig import PACKAGE, Rig, eventually, processes_with

pytestmark = pytest.mark.needs_program("slurmctld", PACKAGE, f".ci/debian {PACKAGE}")


async def test_two_nodes_come_up_and_a_smoke_job_runs_on_both(rig: Rig) -> None:
    controller, worker = await rig.add(), await rig.add()
    before = await rig.probe(controller)
    assert (before.reached, before.slurm_installed, before.conf_sha) == (True, True, "")
    assert before.slurmd_state is DaemonState.DOWN
    began = time.monotonic()
    conf = await rig.deploy()
    result = await node.smoke(controller.session, conf, 2, clock=time.monotonic)
    assert result.error is None
    assert result.nodes == (controller.name.text, worker.name.text)
    print(f"deployed and smoke-tested in {time.monotonic() - began:.1f} s, the job in {result.seconds} s")  # noqa: T201

    await rig.until(controller, lambda seen: set((seen.node_states or {}).values()) == {"idle"})  # its Epilog is over
    reading = await rig.probe(controller, peers=(worker.node,))
    assert (reading.slurmctld_state, reading.slurmd_state) == (DaemonState.UP, DaemonState.UP)
    assert reading.node_states == {controller.name.text: "idle", worker.name.text: "idle"}
    assert (reading.munge_ok, reading.munge_matches) == (True, True)
    assert reading.conf_sha == configuration.conf_sha(conf)
    assert reading.peers == {worker.name.text: True}
    assert reading.slurmctld_pid == controller.pid("slurmctld")
    assert reading.slurmctld_started_at is not None
    assert abs(datetime.now(UTC) - reading.slurmctld_started_at) < timedelta(seconds=60)
    assert reading.clock_skew_s is not None
    assert abs(reading.clock_skew_s) < 20, "with the start of a shell"
    assert (reading.cpus or 0) >= 1
    assert (reading.memory_mb or 0) > 100
    assert (reading.version or "").count(".") >= 1
    assert reading.error is None

    other = await rig.probe(worker)
    assert other.slurmctld_state is DaemonState.UP
    assert other.slurmctld_pid is None
    assert other.conf_sha == reading.conf_sha


async def test_every_operation_can_be_repeated(rig: Rig) -> None:
    controller = await rig.add()
    conf = await rig.deploy()
    first = controller.pid("munged")
    await rig.deploy()
    assert controller.pid("munged") == first
    await node.reconfigure(controller.session, conf, controller.node, rig.munge_key)
    assert (await node.smoke(controller.session, conf, 1, clock=time.monotonic)).error is None
    for _ in range(2):
        await node.remove(controller.session, rig.cluster)
    assert not controller.root.exists()


async def test_a_third_node_joins_and_the_running_job_continues(rig: Rig) -> None:
    controller, worker = await rig.add(), await rig.add()
    await rig.deploy()
    flag = rig.directory / "flag"
    script = f"#!/bin/sh\nsrun -N2 -n2 sh -c 'until [ -e {flag} ]; do sleep 0.1; done; echo $SLURMD_NODENAME'\n"
    (rig.directory / "job.sh").write_text(script)
    out = rig.directory / "out"
    await controller.shell(f"sbatch -N2 -o {out} {rig.directory}/job.sh")
    both = {controller.name.text, worker.name.text}

    async def is_running() -> bool:
        return await controller.shell("squeue -h -o %T") == "RUNNING\n"

    await eventually(is_running, "the job starts")
    third = await rig.add()
    conf = rig.configuration()
    await node.configure(third.session, conf, third.node, rig.munge_key)
    for one in (controller, worker):
        await node.reconfigure(one.session, conf, one.node, rig.munge_key)
    await node.start_node(third.session, rig.cluster, third.name)
    reading = await rig.until(controller, lambda seen: seen.state_of(third.name) == "idle")
    assert all(is_busy(reading.state_of(name)) for name in both)
    assert {(await rig.probe(one)).conf_sha for one in rig.members} == {configuration.conf_sha(conf)}
    flag.touch()

    async def is_over() -> bool:
        return await controller.shell("squeue -h -o %T") == ""

    await eventually(is_over, "the job ends")
    assert "ExitCode=0:0" in await controller.shell("scontrol show job 1")
    assert set(out.read_text().split()) == both
    assert (await node.smoke(controller.session, conf, 3, clock=time.monotonic)).error is None


async def test_a_node_is_drained_and_removed(rig: Rig) -> None:
    controller, worker = await rig.add(), await rig.add()
    await rig.deploy()
    await node.drain(controller.session, rig.cluster, worker.name, "an operator's \x1b[31mrequest; $(reboot)")
    reading = await rig.until(controller, lambda seen: is_drained(seen.state_of(worker.name)))
    assert reading.state_of(controller.name) == "idle"
    await node.start_node(worker.session, rig.cluster, worker.name)
    assert is_drained((await rig.probe(controller)).state_of(worker.name))  # a restart does not undo it
    await node.remove(worker.session, rig.cluster)
    smaller = rig.configuration(controller)
    await node.reconfigure(controller.session, smaller, controller.node, rig.munge_key)
    reading = await rig.until(controller, lambda seen: seen.node_states == {controller.name.text: "idle"})
    assert reading.conf_sha == configuration.conf_sha(smaller)
    assert (await rig.probe(worker)).conf_sha == ""
    assert processes_with(str(worker.root)) == []


async def test_another_member_becomes_the_controller(rig: Rig) -> None:
    first, second = await rig.add(), await rig.add()
    await rig.deploy()
    first.kill("slurmctld")
    conf = replace(rig.configuration(), controller=second.name)
    for one in (first, second):
        await node.configure(one.session, conf, one.node, rig.munge_key)
    await node.start_controller(second.session, rig.cluster)
    for one in (first, second):
        await node.start_node(one.session, rig.cluster, one.name)
    assert (await node.smoke(second.session, conf, 2, clock=time.monotonic)).error is None
    assert (await rig.probe(first)).slurmctld_pid is None
    assert list((first.root / "state").iterdir()) == []


async def test_the_managed_key_is_one_line_of_authorized_keys(rig: Rig) -> None:
    member = await rig.add()
    file = member.home / ".ssh" / "authorized_keys"
    before = file.read_text()
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1"
    for one in ("ssh-ed25519 AAAAold", key, key):
        await node.set_authorized_key(member.session, rig.cluster, one)
    assert file.read_text() == f"{before}{key} gpu-orchestrator-managed\n"


async def test_a_probe_asks_the_agents_api_and_reads_its_log(rig: Rig) -> None:
    member = await rig.add()
    logs = member.home / ".orchestrator" / "run" / "launch-1" / "logs"
    logs.mkdir(parents=True)
    line = '{"at": "2026-01-01T00:00:00.000Z", "event": "heartbeat_refused", "why": "HTTP 401: JWT expired"}\n'
    (logs / "agent.log").write_text("x" * 50_000 + "\n" + line + '{"event": "task_claimed"}\n')
    server = await asyncio.start_server(_not_found, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        reading = await rig.probe(member, nonce="launch-1", api_url=f"http://127.0.0.1:{port}/")
        assert (reading.api_reachable, reading.agent_log_tail) == (True, ("token_expired",))
    reading = await rig.probe(member, nonce="another", api_url=f"http://127.0.0.1:{port}/")
    assert (reading.api_reachable, reading.agent_log_tail) == (False, ())


async def test_a_probe_tests_the_url_that_the_agent_was_started_with(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one of later launches, and not through a proxy, which the agent does not use."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    member = await rig.add()
    run = member.home / ".orchestrator" / "run" / "launch-1"
    run.mkdir(parents=True)
    server = await asyncio.start_server(_not_found, "127.0.0.1", 0)
    ours, other = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "http://127.0.0.1:9"
    async with server:
        for its, new, is_reached in ((ours, other, True), (other, ours, False)):
            (run / "config.json").write_text(json.dumps({"api_url": its, "token": "secret"}))
            reading = await rig.probe(member, nonce="launch-1", api_url=new)
            assert (reading.api_reachable, reading.api_url) == (is_reached, its)
    assert "refused" in str(reading.api_error)


async def _not_found(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


async def test_slurm_that_is_there_is_not_installed_again(rig: Rig) -> None:
    member = await rig.add()
    await node.install(member.session, rig.cluster)
    assert not member.root.exists()
