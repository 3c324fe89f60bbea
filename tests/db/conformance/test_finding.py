"""Finding tasks and workers: by filters, page by page, and by parts of ids."""

from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from orchestrator.core.states import State
from orchestrator.ports import BadArgument
from tests.db.conformance.builders import FLEET, Fleet, rows_read

FIRST = "5f000000-0000-0000-0000-000000000001"
SECOND = "5f0a0000-0000-0000-0000-000000000002"


async def found(fleet: Fleet, wanted: dict[str, Any], limit: int = 100) -> list[str]:
    """The ids, in order."""
    answer = await fleet.call("task_find", p_filter=wanted, p_limit=limit, p_full=False)
    return [row["id"] for row in answer["tasks"]]


async def test_each_filter_selects_and_all_of_them_together(fleet: Fleet) -> None:
    """Status, type, pool, tenant, labels and age; the counts are of all statuses."""
    mine = {"task_type": "film", "pool": "big", "tenant": "acme", "labels": {"show": "7", "stage": "final"}}
    (old,) = await fleet.submit(mine)
    fleet.wait(60)
    since = fleet.now.isoformat()
    new, other, plain = await fleet.submit(mine, {"tenant": "other", "labels": {"show": "8"}}, {})
    await fleet.call("task_cancel", p_id=old)
    assert await found(fleet, {}) == [plain, other, new, old]
    assert await found(fleet, {"status": ["Cancelled", "Failed"]}) == [old]
    assert await found(fleet, {"type": "film"}) == [new, old] == await found(fleet, {"pool": "big"})
    assert await found(fleet, {"tenant": "acme", "since": since}) == [new]
    assert await found(fleet, {"until": since, "status": ["Queued"]}) == [new]  # the other two came microseconds later
    assert await found(fleet, {"labels": {"show": "7"}}) == [new, old]
    assert await found(fleet, {"labels": {"show": "7", "stage": "first"}}) == []
    assert await found(fleet, {"ids": [old, other]}) == [other, old]
    answer = await fleet.call("task_find", p_filter={"type": "film", "status": ["Queued"]}, p_limit=1, p_full=True)
    assert answer["counts"] == {"Queued": 1, "Cancelled": 1}
    assert answer["tasks"][0]["params"] == {}
    with pytest.raises(BadArgument, match="unknown key 'colour'"):
        await found(fleet, {"colour": 1})


async def test_pages_hold_each_task_once(fleet: Fleet) -> None:
    """Also where many were submitted at the same moment."""
    ids = set(await fleet.submit(count=5))
    fleet.wait(1)
    ids |= set(await fleet.submit(count=2))
    seen: list[str] = []
    before: dict[str, Any] | None = None
    for _ in range(4):
        wanted = {"before": before} if before else {}
        rows = (await fleet.call("task_find", p_filter=wanted, p_limit=2, p_full=False))["tasks"]
        seen += [row["id"] for row in rows]
        before = {"created_at": rows[-1]["created_at"], "id": rows[-1]["id"]} if rows else before
    assert (len(seen), set(seen)) == (7, ids)


async def test_a_queued_task_says_what_it_waits_for(fleet: Fleet) -> None:
    """A worker, tasks before it, its time, or a pause after a failure; any other task: nothing."""
    agent = await fleet.agent()
    (failing,) = await fleet.submit({"priority": 9})
    (held,) = await agent.claim()
    await agent.fail(held, code="NO_HANDLER", message="no handler")
    ready, waiting, timed = await fleet.submit(
        {}, {"depends_on": ["#0", failing]}, {"run_after": "2100-01-01T00:00:00Z"}
    )
    answer = await fleet.call("task_find", p_filter={}, p_limit=9, p_full=False)
    waits = {row["id"]: row["waits"] for row in answer["tasks"]}
    assert waits[ready] == {"kind": "worker"}
    assert waits[waiting] == {"kind": "dependencies", "of": 2, "unmet": 2}
    assert (waits[timed]["kind"], waits[timed]["until"][:4]) == ("scheduled", "2100")
    assert (waits[failing]["kind"], waits[failing]["code"], waits[failing]["after"]) == ("retry", "NO_HANDLER", 1)
    await fleet.call("task_cancel", p_id=ready)
    answer = await fleet.call("task_find", p_filter={"ids": [ready]}, p_limit=9, p_full=False)
    assert answer["tasks"][0]["waits"] is None


async def test_tasks_are_found_by_the_first_digits_of_their_id(fleet: Fleet) -> None:
    """With or without hyphens, in any case; what is no digit finds nothing."""
    await fleet.submit({"id": FIRST}, {"id": SECOND})

    async def matches(prefix: str) -> set[str]:
        return {row["id"] for row in (await fleet.call("task_match", p_prefix=prefix, p_limit=6))["tasks"]}

    assert await matches("5F") == {FIRST, SECOND}
    assert await matches("5f0a") == await matches("5f0a0000-0000") == {SECOND}
    assert await matches("5fff") == await matches("%") == await matches("") == set()


async def test_a_prefix_reads_no_other_task(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """However many there are."""
    await fleet.submit({"id": FIRST})
    await hand.execute("insert into tasks (task_type) select 'many' from generate_series(1, 5000)")
    async with hand.transaction():
        before = await rows_read(hand, "tasks")
        await hand.execute("select task_match('5f000000', 6)")
        assert await rows_read(hand, "tasks") - before < 100


async def test_workers_are_found_by_parts_of_their_ids(fleet: Fleet) -> None:
    """The beginning or the end of the id, or the pod's; live ones first, and no pattern is interpreted."""
    await fleet.spawn("gpu-1-aaaa")
    await fleet.spawn("gpu-2-aaaa")

    async def matches(text: str) -> list[str]:
        answer = await fleet.call("fleet_match_workers", p_fleet=FLEET, p_text=text, p_limit=6)
        return sorted(row["id"] for row in answer["workers"])

    assert await matches("aaaa") == await matches("gpu-") == ["gpu-1-aaaa", "gpu-2-aaaa"]
    assert await matches("gpu-2") == ["gpu-2-aaaa"]
    assert await matches("gpu__") == await matches("%") == await matches("") == []


async def test_workers_are_listed_by_pool_state_gpu_and_age(fleet: Fleet) -> None:
    """With the number of each pool and state; ended ones only if asked for, and not the older ones."""
    await fleet.spawn("w1", pool="big")
    await fleet.spawn("w2", gpu_type="NVIDIA GeForce RTX 4090")

    async def listed(**wanted: Any) -> list[str]:
        answer = await fleet.call("fleet_find_workers", p_fleet=FLEET, p_filter=wanted, p_limit=9)
        assert sum(one["workers"] for one in answer["counts"]) == len(answer["workers"])
        return sorted(row["id"] for row in answer["workers"])

    assert await listed() == ["w1", "w2"] == await listed(status=["spawning"])
    assert await listed(pool="big") == ["w1"]
    assert await listed(gpu="4090") == ["w2"]
    assert await listed(status=["idle"]) == []
    await fleet.end("w1", State.SPAWNING)
    await fleet.move("w1", State.TERMINATING, State.TERMINATED)
    assert await listed() == ["w2"]
    assert await listed(ended=True) == ["w1", "w2"]
    fleet.wait(60)
    assert await listed(ended=True, since=fleet.now.isoformat()) == ["w2"]
