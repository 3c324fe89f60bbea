"""What a person does is noted in the audit log by the transaction that does it, or it is not done."""

from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.adapters.schedule_store import ScheduleStore
from orchestrator.adapters.store import SqlStore
from orchestrator.ports import BadArgument, Db
from tests.db.conformance.builders import FLEET, Fleet

Hand = AsyncConnection[DictRow]
NIGHTLY = {"every_s": 3600, "task": {"task_type": "t"}}


async def act(fleet: Fleet, action: str, subject: str, actor: str | None = "cli:me", **args: Any) -> Any:
    """One action."""
    named = {"p_actor": actor, "p_action": action, "p_subject": subject, "p_args": args}
    return await fleet.call("fleet_act", p_fleet=FLEET, **named)


async def noted(fleet: Fleet) -> list[tuple[str, str, str]]:
    """Actor, action and subject, the oldest first."""
    entries = (await fleet.call("fleet_audit", p_fleet=FLEET, p_before=None, p_limit=100))["entries"]
    return [(one["actor"], one["action"], one["subject"]) for one in reversed(entries)]


async def test_each_action_is_noted_once(fleet: Fleet) -> None:
    """With who did it, and to what. What changes nothing is not noted."""
    agent = await fleet.agent()
    waiting, ended = await fleet.submit(count=2)
    await fleet.call("task_cancel", p_id=ended)
    for action, subject, args in (
        ("worker.spawn", "gpu-9", {"id": "gpu-9", "reason": "by hand"}),
        ("worker.terminate", agent.id, {"reason": "r", "at_once": True}),
        ("pool.pause", "big", {"reason": "r", "for_s": 60}),
        ("pool.resume", "*", {}),
        ("task.cancel", waiting, {}),
        ("task.retry", ended, {}),
        ("schedule.put", "nightly", NIGHTLY),
        ("schedule.pause", "nightly", {}),
        ("schedule.resume", "nightly", {}),
        ("schedule.remove", "nightly", {}),
    ):
        before = await noted(fleet)
        await act(fleet, action, subject, **args)
        assert await noted(fleet) == [*before, ("cli:me", action, subject)]
    before = await noted(fleet)
    for action, subject, args in (
        ("worker.spawn", "gpu-9", {"id": "gpu-9", "reason": "by hand"}),
        ("worker.terminate", agent.id, {"reason": "r", "at_once": True}),
        ("worker.terminate", "gpu-none", {"reason": "r"}),
        ("task.cancel", waiting, {}),
        ("task.retry", ended, {}),
        ("schedule.remove", "nightly", {}),
    ):
        await act(fleet, action, subject, **args)
    assert await noted(fleet) == before
    with pytest.raises(BadArgument, match="no action"):
        await act(fleet, "worker.promote", agent.id)


async def test_an_action_that_cannot_be_audited_is_not_done(fleet: Fleet, hand: Hand) -> None:
    """Here because nobody is named."""
    agent = await fleet.agent()
    with pytest.raises(BadArgument):
        await act(fleet, "worker.terminate", agent.id, None, reason="r", at_once=True)
    with pytest.raises(BadArgument):
        await act(fleet, "pool.pause", "*", None, reason="r")
    row = await (await hand.execute("select stop_requested_at from workers")).fetchone()
    assert row == {"stop_requested_at": None}
    assert (await fleet.call("fleet_pauses", p_fleet=FLEET))["paused"] == {}


async def test_the_stores_note_their_actions(db: Db, fleet: Fleet) -> None:
    """Those that the commands use."""
    store, schedules = SqlStore(db, FLEET), ScheduleStore(db, FLEET)
    agent, (task,) = await fleet.agent(), await fleet.submit()
    await store.request_termination(agent.id, "r", actor="cli:a")
    await store.pause("r", for_s=10, actor="cli:a")
    assert await store.pause(None, actor="cli:a") == {}
    await store.submit([{"task_type": "t"}], actor="cli:a")
    await store.cancel(task, actor="cli:a")
    await store.retry(task, actor="cli:a")
    await schedules.put({"name": "nightly", **NIGHTLY}, actor="cli:a")
    await schedules.remove("nightly", actor="cli:a")
    assert [(actor, action) for actor, action, _ in await noted(fleet)] == [
        ("cli:a", "worker.terminate"), ("cli:a", "pool.pause"), ("cli:a", "pool.resume"), ("cli:a", "task.submit"),
        ("cli:a", "task.cancel"), ("cli:a", "task.retry"), ("cli:a", "schedule.put"), ("cli:a", "schedule.remove"),
    ]  # fmt: skip


async def test_a_users_params_are_stored_as_they_are(fleet: Fleet, db: Db) -> None:
    """Signed URLs and keys too: the handler needs them. What pods and libraries say is redacted, not a submission."""
    params = {
        "url": f"https://b.example/k?X-Amz-Credential=AKIA{'A' * 16}%2F1&X-Amz-Signature={'0a' * 32}",
        "database": "postgresql://me:secret@db/x",
        "token": "ghp_" + "a" * 36,
    }
    (made,) = await SqlStore(db, FLEET).submit([{"task_type": "t", "params": params}], actor="cli:a")
    assert (await SqlStore(db, FLEET).task(made["id"]))["task"]["params"] == params
