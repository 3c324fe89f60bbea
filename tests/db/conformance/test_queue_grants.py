"""The keys that a worker may read and write: what a call for many of them costs, and what it answers."""

from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from tests.db.conformance.builders import Fleet

STORED = """
update tasks set status = 'Complete', output_location = 's3://b/outputs/' || id || '/1-0123456789a/x.bin',
       output_object = case when %s then jsonb_build_object(
           'etag', 'e', 'location', 's3://b/outputs/' || id || '/1-0123456789a/x.bin') end
 where id = any (%s::uuid[])
"""


async def test_a_call_for_the_outputs_of_a_large_fan_in_is_linear(fleet: Fleet, hand: AsyncConnection[DictRow]) -> None:
    """A thousand keys of 3,000 dependencies are answered in time, in their order, each by its own dependency."""
    needed = await fleet.submit(count=2_000) + await fleet.submit(count=1_000)
    await hand.execute(STORED, (True, needed[::2]))
    await hand.execute(STORED, (False, needed[1::2]))
    (other,) = await fleet.submit()
    await hand.execute(STORED, (True, [other]))
    await fleet.submit(depends_on=needed)
    agent = await fleet.agent()
    await agent.claim()
    keys = [f"outputs/{task_id}/1-0123456789a/x.bin" for task_id in needed[:900]]
    beside = [f"outputs/{task_id}/1-0123456789a/y.bin" for task_id in needed[:98]]
    refused = [f"outputs/{other}/1-0123456789a/x.bin", f"outputs/{needed[0]}/2-0123456789a/x.bin"]
    items = [{"method": "GET", "key": key} for key in keys + beside + refused]
    answer: Any = await agent.call("grants", p_items=items)
    assert [(one["key"], one.get("etag")) for one in answer["items"]] == [
        (key, None if n % 2 or n >= len(keys) else "e") for n, key in enumerate(keys + beside)
    ]
    assert answer["refused"] == refused


async def test_what_is_no_item_is_refused_alone(fleet: Fleet) -> None:
    """Entries of other shapes, and a key that comes twice."""
    await fleet.submit()
    agent = await fleet.agent()
    (task,) = await agent.claim()
    good = {"method": "PUT", "key": task["output_prefix"] + "x"}
    answer = await agent.call(
        "grants", p_items=[7, None, "x", [], {}, {"method": "PUT"}, good, good, good | {"method": 1}]
    )
    assert [one["key"] for one in answer["items"]] == [good["key"]] * 2
    assert answer["refused"] == [None] * 6 + [good["key"]]
