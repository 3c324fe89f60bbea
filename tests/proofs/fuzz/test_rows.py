"""Bad input for the database: through the workers' gateway, as tasks, and as replies of pods and providers."""

import json
import math
from random import Random
from typing import Any

from orchestrator.adapters.store import SqlStore
from orchestrator.core.failures import FailureCode
from orchestrator.core.states import Stage, State
from orchestrator.ports import BadArgument, PortError, StageAttempt
from tests.db.conformance.builders import FLEET, Fleet
from tests.process.web.builders import ServerUnderTest, done
from tests.proofs.fuzz.mutate import HOSTILE, spoilt, spoilt_bytes
from worker import protocol

BODIES = 400
TASKS = 500
TASK: dict[str, Any] = {
    "task_type": "render",
    "params": {"prompt": "a", "n": [1, 2.5, None, True, {"deep": "x"}]},
    "pool": "default",
    "priority": 1,
    "max_attempts": 3,
    "run_after": "2026-11-21T12:00:00+00:00",
    "dedupe_key": "k",
    "timeout_s": 12.5,
    "tenant": "acme",
    "labels": {"show": "7"},
}


async def test_a_mutated_call_of_a_worker_is_answered_or_refused(gateway: ServerUnderTest) -> None:
    """The answer is never an error of ours, and the database is unchanged."""
    worker = await gateway.worker()
    (task_id,) = await gateway.submit(worker.pool)
    await worker.claim()
    bodies: dict[str, dict[str, Any]] = {
        protocol.REGISTER: {"p_agent": {"protocol": 1, "pid": 4711}},
        protocol.CLAIM: {"p_claim_no": 1, "p_batch": 1, "p_wait_s": 0},
        protocol.HEARTBEAT: {
            "p_tasks": [{"id": task_id, "attempt": 1, "progress": {"fraction": 0.5, "message": "x"}}],
            "p_health": {"disk": 0.5},
            "p_logs": {"agent": 100, "handler": 0},
        },
        protocol.COMPLETE: done(task_id, "s3://x/y") | {"p_attempt": 9},
        protocol.COMPLETE_MANY: {"p_results": [{"task_id": task_id, "attempt": 9, "result_data": {"n": 1}}]},
        protocol.COMPLETE_AND_CLAIM: {
            "p_results": [{"task_id": task_id, "attempt": 9, "result_data": {"n": 1}}],
            "p_claim_no": 1,
            "p_batch": 1,
        },
        protocol.FAIL: {
            "p_task_id": task_id,
            "p_attempt": 9,
            "p_failure": {"code": "X", "message": "m", "retryable": True},
        },
        protocol.RELEASE: {"p_task_id": task_id, "p_attempt": 9, "p_reason": "draining"},
        protocol.GRANTS: {"p_items": [{"method": "PUT", "key": f"outputs/{task_id}/1/a.png"}]},
        protocol.RENEW: {},
    }
    answered: dict[int, int] = {}
    for number in range(BODIES):
        draw = Random(f"bodies:{number}")
        function = draw.choice(sorted(bodies))
        body = {"p_worker_id": worker.id, "p_nonce": worker.nonce, **bodies[function]}
        content = json.dumps(spoilt(draw, body)).encode()
        if number % 5 == 0:
            content = spoilt_bytes(draw, content)
        headers = {"Authorization": f"Bearer {worker.token}", "Content-Type": "application/json"}
        reply = await gateway.client.post(f"/rest/v1/rpc/{function}", content=content, headers=headers)
        assert reply.status_code < 500, (number, function, content[:500], reply.text)
        assert isinstance(reply.json(), dict)
        if reply.status_code != 200:
            assert list(reply.json()) == ["code", "message", "details", "hint"]
        answered[reply.status_code] = answered.get(reply.status_code, 0) + 1
    assert answered[200] > BODIES / 20
    assert (await gateway.store.task(task_id))["task"]["status"] in {"In Progress", "Complete"}


async def test_a_mutated_task_is_refused_or_stored_unchanged(fleet: Fleet) -> None:
    """An accepted task has the submitted values: none is changed into another one."""
    kept = 0
    for number in range(TASKS):
        draw = Random(f"tasks:{number}")
        task = spoilt(draw, TASK | {"dedupe_key": f"k{number}"})
        try:
            answer = await fleet.call("task_submit", p_tasks=[task])
        except BadArgument:
            continue  # named, with what would be right
        except PortError as error:
            raise AssertionError((number, task, error)) from error
        row = await fleet.task(answer["tasks"][0]["id"])
        if not answer["tasks"][0]["created"]:
            continue
        kept += 1
        assert row["task_type"] == task["task_type"]
        assert row["params"] == (task.get("params") or {}), number
        assert row["priority"] == (task.get("priority") or 0)
        assert 1 <= row["max_attempts"] <= 100
    assert kept > TASKS / 10


async def test_any_text_of_a_pod_or_provider_can_be_stored(fleet: Fleet) -> None:
    """A NUL byte in a tool's output must not keep the row of an attempt open, or prevent the end of a worker."""
    store = SqlStore(fleet.db, FLEET)
    worker_id = await fleet.spawn()
    for said in HOSTILE:
        attempt = await store.open_attempt(fleet.term, worker_id, Stage.GPU_HEALTH)
        evidence = {"error": said, said[:50]: [said], "number": math.nan, "more": {"endless": math.inf}}
        await store.close_attempt(fleet.term, attempt, StageAttempt("failed", FailureCode.GPU_COUNT, "X", evidence))
        fields = {"waiting_for": said, "metadata": {"last_snapshot": {"said": said, "at": math.nan}}}
        await store.move(fleet.term, worker_id, from_states=[State.SPAWNING], reason=f"said {said}", fields=fields)
        decision = {"pool": "default", "rule": said, "target": 1, "inputs": {}, "actions": [], "blocked": [said]}
        await store.record_decision(fleet.term, decision)
    rows = (await store.worker(worker_id))["attempts"]
    assert [row["outcome"] for row in rows] == ["failed"] * len(HOSTILE)
