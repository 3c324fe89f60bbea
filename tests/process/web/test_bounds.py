"""What the pod's own check lets pass, the gateway, the database and the store take: nothing is refused later."""

import json
from decimal import Decimal
from typing import Any

import httpx
import pytest

from tests.process.web.builders import ServerUnderTest, done
from tests.unit.worker.test_rules import BAD_NAMES, BOUNDS, GOOD_NAMES, LOCATION
from worker import protocol


def exact(value: Any) -> Any:
    """With its numbers as the database has them, which knows no exponents."""
    return json.loads(json.dumps(value), parse_float=Decimal, parse_int=Decimal)


@pytest.mark.parametrize("bound", BOUNDS)
async def test_a_result_at_a_bound_is_stored_as_it_is(gateway: ServerUnderTest, bound: str) -> None:
    """Together with the longest location, in UTF-8 as the agent sends it."""
    result = BOUNDS[bound][0]
    worker = await gateway.worker()
    (task_id,) = await gateway.submit(worker.pool)
    await worker.claim()
    call = {"p_worker_id": worker.id, "p_nonce": worker.nonce, **done(task_id, LOCATION), "p_result_data": result}
    reply = await worker.client.post(
        f"/rest/v1/rpc/{protocol.COMPLETE}",
        content=json.dumps(call, separators=(",", ":"), ensure_ascii=False).encode(),
        headers={"Authorization": f"Bearer {worker.token}"},
    )
    assert reply.json() == {"outcome": "ok"}
    assert exact((await gateway.store.task(task_id))["task"]["result_data"]) == exact(result)


async def test_every_name_that_is_taken_is_stored_and_read(gateway: ServerUnderTest) -> None:
    """Spaces, accents and the longest one; the object has the bytes that were sent."""
    worker = await gateway.worker()
    await gateway.submit(worker.pool)
    (task,) = (await worker.claim())["tasks"]
    keys = {task["output_prefix"] + name: name.encode() for name in GOOD_NAMES}
    reply = await worker.call(protocol.GRANTS, p_items=[{"method": "PUT", "key": key} for key in keys])
    assert reply.json()["refused"] == []
    async with httpx.AsyncClient() as pod:
        for item in reply.json()["items"]:
            assert (await pod.put(item["url"], content=keys[item["key"]])).status_code == 200, item["key"]
    for key, content in keys.items():
        assert await gateway.blobs.get(key) == content


async def test_a_name_that_no_output_can_have_is_refused_alone(gateway: ServerUnderTest) -> None:
    """An agent of an earlier release may ask for it; the answer names it, and grants the others."""
    worker = await gateway.worker()
    await gateway.submit(worker.pool)
    (task,) = (await worker.claim())["tasks"]
    prefix = task["output_prefix"]
    bad = [f"{prefix}{name}" for name in BAD_NAMES if name and "\0" not in name and "\udcff" not in name]
    items = [{"method": "PUT", "key": key} for key in (f"{prefix}first", *bad, f"{prefix}last")]
    answer = (await worker.call(protocol.GRANTS, p_items=items)).json()
    assert sorted(answer["refused"]) == sorted(bad)
    assert [item["key"] for item in answer["items"]] == [f"{prefix}first", f"{prefix}last"]
