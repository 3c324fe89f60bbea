"""Explanations over the API are those of the command `explain`."""

import dataclasses

from orchestrator.core.blocked import Blocked, BlockedReason
from orchestrator.diagnostics import tasks, workers
from tests.process.web.api_rig import VIEWER, ApiRig


async def test_a_task_and_a_worker_are_explained(rig: ApiRig) -> None:
    """With who must act, what happens next, and the fix."""
    worker, task_id = await rig.worker(), await rig.submit()
    waiting = await rig.call("GET", f"/tasks/{task_id}/explanation", VIEWER)
    assert waiting.status_code == 200, waiting.text
    told = tasks.explained(await rig.store.explain_task(task_id))
    facts = waiting.json()
    assert (facts["who"], facts["what"], facts["then"], facts["fix"]) == (told.who, told.what, told.then, told.fix)
    assert facts["detail"]["status"] == "Queued"
    facts = (await rig.call("GET", f"/workers/{worker.id}/explanation", VIEWER)).json()
    expected = workers.explained(await rig.store.explain(worker.id))
    assert (facts["subject"], facts["who"], facts["what"]) == (worker.id, expected.who, expected.what)
    assert facts["detail"].keys() < dataclasses.asdict(expected).keys()
    others = await rig.token("read", pools=[f"{rig.pool}-2"])
    for path in (f"/tasks/{task_id}", f"/workers/{worker.id}", "/tasks/no-id", "/workers/gpu-none"):
        assert (await rig.call("GET", f"{path}/explanation", others)).status_code == 404


async def test_the_size_of_the_pools_is_explained(rig: ApiRig) -> None:
    """By the last decision of each pool that the token sees."""
    term = (await rig.store.lead("tests", 3_600)).term
    blocked = Blocked(BlockedReason.PAUSED, 2, detail={"reason": "maintenance"}).as_json()
    inputs = {"claimable": 3, "running": 0, "live": 0}
    for pool in (rig.pool, f"{rig.pool}-2"):
        decision = {"pool": pool, "rule": "r", "target": 2, "inputs": inputs, "actions": [], "blocked": [blocked]}
        await rig.store.record_decision(term, decision)
    mine = await rig.token("read", pools=[rig.pool])
    answer = await rig.call("GET", "/scaling/explanation", mine)
    assert answer.status_code == 200, answer.text
    (pool,) = answer.json()["pools"]
    assert (pool["pool"], pool["target"], pool["blocked"][0]["kind"]) == (rig.pool, 2, "paused")
    assert pool["blocked"][0]["since"]
    assert "maintenance" in pool["blocked"][0]["text"]
    assert len((await rig.call("GET", "/scaling/explanation", VIEWER)).json()["pools"]) == 2
