"""Tasks from submission to their end: the real agent, the real gateway, a real database and bucket."""

import asyncio
import hashlib
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.process.web.agents import WAIT_S, Agents, Gate
from tests.process.web.builders import ServerUnderTest
from tests.process.worker.scripted import live
from worker import heartbeat, protocol, runner

CANCELLED_WITHIN_S = 5.0


@pytest.fixture
async def agents(gateway: ServerUnderTest, tmp_path: Path) -> AsyncIterator[Agents]:
    """Agents that end with the test."""
    agents = Agents(gateway, tmp_path)
    yield agents
    await agents.close()


async def test_a_running_task_is_cancelled_long_before_the_next_heartbeat(agents: Agents, tmp_path: Path) -> None:
    """Within 5 s, with a handler that will not end: all of it is gone, and the slot works on."""
    assert heartbeat.ASK_S + runner.KILL_CANCELLED_S < CANCELLED_WITHIN_S
    gate = Gate(tmp_path)
    worker = await agents.create(heartbeat_s=2 * WAIT_S, lease_s=6 * WAIT_S)
    (task_id,) = await agents.gateway.submit(worker.caller.pool, task_type="gated", params=gate.params)
    pids = await gate.begun()
    assert (await agents.gateway.store.cancel(task_id))["outcome"] == "cancelling"
    row = await agents.ended(task_id)
    assert (row["status"], live(pids)) == ("Cancelled", [])
    assert await agents.attempts(task_id) == [("cancelled", "CANCELLED", "cancelled")]
    (after,) = await agents.gateway.submit(worker.caller.pool, task_type="quick")
    assert (await agents.ended(after))["status"] == "Complete"
    assert live([worker.pid]) == [worker.pid]


async def test_three_levels_hand_over_what_they_made(agents: Agents) -> None:
    """Two leaves, a join of them, and a join of that: each reads the files of those before it, in its own order."""
    worker = await agents.create()
    leaf = {"task_type": "leaf", "pool": worker.caller.pool}
    join = {"task_type": "join", "pool": worker.caller.pool}
    made = await agents.gateway.store.submit([
        {**leaf, "params": {"says": "a"}}, {**leaf, "params": {"says": "b"}},
        {**join, "depends_on": ["#1", "#0"]}, {**join, "depends_on": ["#2", "#0"]},
    ])  # fmt: skip
    row = await agents.ended(made[3]["id"])
    assert row["status"] == "Complete", row["error_message"]
    key = agents.gateway.blobs.key_of(row["output_location"])
    assert key is not None
    assert re.fullmatch(rf"outputs/{made[3]['id']}/1-[0-9a-f]{{11}}/note\.txt", key)
    assert await agents.gateway.blobs.get(key) == b"((b+a)+a)"


async def test_a_failed_dependency_fails_the_rest_with_its_cause(agents: Agents) -> None:
    """Two levels below, the row says which task began it and with what."""
    worker = await agents.create()
    pool = worker.caller.pool
    first, second, third = [
        made["id"]
        for made in await agents.gateway.store.submit(
            [
                {"task_type": "bad", "pool": pool, "max_attempts": 1},
                *({"task_type": "join", "pool": pool, "depends_on": [on]} for on in ("#0", "#1")),
            ]
        )
    ]
    row = await agents.ended(third)
    cause = f"Dependency {first} (bad) ended as Failed: HANDLER_ERROR: ValueError: no such prompt"
    assert (row["status"], row["failure_code"]) == ("Failed", "DEPENDENCY_FAILED")
    assert row["error_message"] == f"Dependency {second} (join) ended as Failed: {cause}"


async def test_a_poison_task_ends_after_its_attempts(agents: Agents) -> None:
    """It kills each agent that takes it; the workers are given up one by one, and with the last attempt it fails."""
    gateway, pool = agents.gateway, "poison"
    poison, waiting = [
        made["id"]
        for made in await gateway.store.submit(
            [
                {"task_type": "poison", "pool": pool, "max_attempts": 2},
                {"task_type": "quick", "pool": pool, "depends_on": ["#0"]},
            ]
        )
    ]
    for outcome in ("requeued", "failed"):
        worker = await agents.create(pool)
        await agents.shows(poison, {"In Progress"})
        await gateway.until(lambda pid=worker.pid: not live([pid]))  # type: ignore[misc]  # the loop's own
        assert [task["outcome"] for task in await gateway.store.rescue(gateway.term, worker_id=worker.caller.id)] == [
            outcome
        ]
    row = await agents.ended(poison)
    assert (row["status"], row["failure_code"]) == ("Failed", "WORKER_LOST")
    assert await agents.attempts(poison) == [("lost", "WORKER_LOST", "lost")] * 2
    assert (await agents.ended(waiting))["failure_code"] == "DEPENDENCY_FAILED"


async def test_a_task_has_its_own_time_and_an_operator_may_run_it_again(agents: Agents, tmp_path: Path) -> None:
    """Its row's timeout_s ends it, where the worker's default would not; a retry has all attempts again."""
    gate = Gate(tmp_path)
    worker = await agents.create()
    limits = {"timeout_s": 15, "max_attempts": 1}  # enough for a handler that is not held up, on a busy machine too
    made = await agents.gateway.store.submit([
        {"task_type": "gated", "pool": worker.caller.pool, "params": gate.params, **limits}
    ])  # fmt: skip
    task_id = made[0]["id"]
    row = await agents.ended(task_id)
    assert (row["status"], row["failure_code"], row["failed_at_point"]) == ("Failed", "TIMEOUT", "Processing")
    gate.open()
    assert (await agents.gateway.store.retry(task_id))["outcome"] == "requeued"
    assert (await agents.ended(task_id))["status"] == "Complete"
    assert await agents.attempts(task_id) == [("failed", "TIMEOUT", "timeout"), ("complete", None, None)]


async def test_an_output_that_was_never_stored_fails_the_attempt(agents: Agents) -> None:
    """At Completion, with a code of its own; it may be tried again."""
    worker = await agents.create()
    (task_id,) = await agents.gateway.submit(worker.caller.pool, task_type="liar", max_attempts=1)
    row = await agents.ended(task_id)
    assert (row["status"], row["failure_code"], row["failed_at_point"]) == (
        "Failed", protocol.OUTPUT_MISSING, "Completion",
    )  # fmt: skip
    assert "note.txt.not was reported as the output" in row["error_message"]


async def test_a_frozen_worker_is_fenced_and_its_upload_has_no_effect(agents: Agents, tmp_path: Path) -> None:
    """Frozen past its lease while another did the work, it comes back, is told, drops its result and works on."""
    gateway, pool = agents.gateway, "zombie"
    (task_id,) = await gateway.submit(pool, task_type="gated", params={**Gate(tmp_path, "a").params, "says": "late"})
    frozen = await agents.create(pool, heartbeat_s=0.5, lease_s=2)
    handler, helper = await Gate(tmp_path, "a").begun()
    everything = (helper, handler, frozen.pid)  # each goes on before who may end it
    _signal(signal.SIGSTOP, everything)
    try:
        async with asyncio.timeout(WAIT_S):
            while not await gateway.store.rescue(gateway.term):
                await asyncio.sleep(0.1)
        Gate(tmp_path, "a").open()
        other = await agents.create(pool)
        row = await agents.ended(task_id)
        assert f"/outputs/{task_id}/2-" in row["output_location"]
        assert await asyncio.to_thread(other.pod.stop, 2) == {"stopped": True}
    finally:
        _signal(signal.SIGCONT, everything)
    (fresh,) = await gateway.submit(pool, task_type="quick")
    assert (await agents.ended(fresh))["worker_id"] == frozen.caller.id
    assert await agents.ended(task_id) == row
    assert await agents.attempts(task_id) == [("lost", "LEASE_EXPIRED", "lost"), ("complete", None, None)]
    launch = hashlib.md5(frozen.caller.nonce.encode(), usedforsecurity=False).hexdigest()[:11]
    assert await gateway.blobs.get(f"outputs/{task_id}/1-{launch}/note.txt") == b"late"
    ends = frozen.pod.events("task_reported") + frozen.pod.events("task_dropped")
    assert [(end["task"], end.get("outcome", "fenced")) for end in ends if end["task"] == task_id] == [
        (task_id, "fenced")
    ]


def _signal(number: signal.Signals, pids: tuple[int, ...]) -> None:
    for pid in pids:
        os.kill(pid, number)
