"""Rounds of shipments, and what a row says of one that cannot be made."""

import asyncio
from dataclasses import replace
from typing import cast

import asyncssh
import pytest

from orchestrator.core.failures import FailureCode
from orchestrator.core.model import Worker
from orchestrator.core.states import Stage, State
from orchestrator.ports import HostKeyChanged
from orchestrator.worker_logs.schedule import LogSchedule
from orchestrator.worker_logs.shipper import Shipper
from tests.process.worker_logs.logs import Hauling

SOON_S = 60.0


async def test_a_changed_host_key_is_refused_and_recorded_once(hauling: Hauling) -> None:
    """In the worker's row, and as a failed login with its code; no command reaches the other machine."""
    outsider = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    worker = replace(hauling.worker, host_key=" ".join(outsider.split()[:2]))
    hauling.write("agent", 100)
    store, term = hauling.rig.store, hauling.rig.term
    wakes: list[str] = []
    rounds = LogSchedule(store, hauling.shipper(), lambda: wakes.append("late"))
    for _ in range(3):
        rounds.begin(term, [worker], ())
        async with asyncio.timeout(SOON_S):
            while any(task.get_name() == f"ship:{worker.id}" for task in asyncio.all_tasks()):
                await asyncio.sleep(0.02)
    found = await store.worker(worker.id)
    told = [a for a in found["attempts"] if a["failure_code"] == FailureCode.HOST_KEY_CHANGED]
    assert [(a["stage"], a["outcome"], a["exception_type"]) for a in told] == [
        (Stage.SSH_AUTH, "failed", "HostKeyChanged")
    ]
    assert outsider.split()[1] in told[0]["evidence"]["error"]
    assert found["worker"]["metadata"]["logs_late"].startswith("HostKeyChanged")
    assert (found["worker"]["status"], hauling.sshd.commands) == ("active", [])
    assert wakes == ["late"]  # the loop looks at the list, once: the pod may be shown at another address


async def test_an_idle_worker_s_logs_are_read_again_once_it_reports_more_bytes(hauling: Hauling) -> None:
    """Else seldom: the next round finds the same bytes in its row, and leaves it alone."""
    looks: list[str] = []

    class Looks:
        async def ship(self, term: int, worker: Worker, turn: object) -> int:
            looks.append(worker.id)
            return 0

    rounds = LogSchedule(hauling.rig.store, cast("Shipper", Looks()))
    idle = replace(hauling.worker, state=State.IDLE, log_bytes={"launch": {"agent": 10}})
    more = replace(idle, log_bytes={"launch": {"agent": 11}})
    busy = replace(more, state=State.ACTIVE)
    for worker, wanted in ((idle, 1), (idle, 1), (more, 2), (more, 2), (busy, 3), (busy, 4)):
        rounds.begin(hauling.rig.term, [worker], ())
        async with asyncio.timeout(SOON_S):
            while rounds._under_way:
                await asyncio.sleep(0)
        assert len(looks) == wanted


async def test_logs_continue_from_a_new_address_of_the_same_machine_and_of_no_other(hauling: Hauling) -> None:
    """The pinned key counts there too: another machine at the new address is refused, and the pod itself is not."""
    hauling.write("agent", 100)
    rig, sshd, shipper = hauling.rig, hauling.sshd, hauling.shipper()
    assert await shipper.ship(rig.term, hauling.worker) == 100
    hauling.write("agent", 50)
    await sshd.stop()
    own, sshd.port = sshd.host_keys, 0
    sshd.host_keys = [asyncssh.generate_private_key("ssh-ed25519")]
    await sshd.start()
    where, asked = {"ssh_host": "127.0.0.1", "ssh_port": sshd.port}, len(sshd.commands)
    moved = await rig.move(hauling.worker.id, from_states=[State.ACTIVE], fields=where)
    with pytest.raises(HostKeyChanged):
        await shipper.ship(rig.term, moved)
    await sshd.stop()
    assert len(sshd.commands) == asked
    sshd.host_keys = own
    await sshd.start()
    assert await shipper.ship(rig.term, moved) == 50
    assert await hauling.shipped("agent") == hauling.file("agent").read_bytes()
