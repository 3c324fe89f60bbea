"""Rounds of shipments, and what a row says of one that cannot be made."""

import asyncio
from dataclasses import replace

import asyncssh

from orchestrator.core.states import FailureCode, Stage
from orchestrator.log_rounds import LogRounds
from tests.shipping.logs import Hauling

SOON_S = 10.0


async def test_a_changed_host_key_is_refused_and_recorded_once(hauling: Hauling) -> None:
    """In the worker's row, and as a failed login with its code; no command reaches the stranger."""
    stranger = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    worker = replace(hauling.worker, host_key=" ".join(stranger.split()[:2]))
    hauling.write("agent", 100)
    store, term = hauling.rig.store, hauling.rig.term
    rounds = LogRounds(store, hauling.shipper())
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
    assert stranger.split()[1] in told[0]["evidence"]["error"]
    assert found["worker"]["metadata"]["logs_late"].startswith("HostKeyChanged")
    assert (found["worker"]["status"], hauling.sshd.commands) == ("active", [])
