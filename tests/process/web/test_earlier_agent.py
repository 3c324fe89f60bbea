"""The calls of an agent of protocol 1, as commit a07c2d37 made them, against the present schema and gateway.

A written copy and not the agent itself: a clone without history has no earlier files, and this must hold there too.
`./run soak rolling_upgrade` runs the whole earlier version, as processes on one database with this one. Nothing in here
changes with the project: an agent that was deployed is not deployed again.
"""

from typing import Any

from tests.process.web.builders import Caller, ServerUnderTest
from worker import protocol

AGENT = {
    "protocol": 1, "code_sha256": "0" * 64, "code_sha": "0" * 64, "pid": 41, "start_time": "12345", "python": "3.10.12",
}  # fmt: skip
LOGS = {"agent": 120, "handler": 0, "system": 0}
FAILURE = {
    "code": "HANDLER_ERROR", "message": "ValueError: no such prompt", "point": "Processing", "exit_class": "exception",
    "retryable": True, "detail": {"traceback": "…", "stderr": ""},
}  # fmt: skip
# What protocol 1 reads of a claimed task, and of what it depends on.
CLAIMED = {"id", "task_type", "params", "attempt", "max_attempts", "timeout_s", "dependencies", "output_prefix"}


async def said(caller: Caller, function: str, **args: Any) -> dict[str, Any]:
    reply = await caller.call(function, **args)
    assert reply.status_code == 200, f"{function}: {reply.text}"
    answer: dict[str, Any] = reply.json()
    return answer


async def claimed(caller: Caller, number: int) -> dict[str, Any]:
    """The one task that a claim brings."""
    answer = await said(caller, "worker_claim", p_claim_no=number, p_batch=1, p_wait_s=0)
    assert answer["wanted"] == "run"
    (task,) = answer["tasks"]
    assert task.keys() >= CLAIMED
    return dict(task)


async def test_an_earlier_agent_registers_works_and_hears(gateway: ServerUnderTest) -> None:
    """Every call of its life, with the arguments it gave and the names it reads in the answers."""
    caller = await gateway.worker()
    ids = set(await gateway.submit(caller.pool, 3))
    hello = await said(caller, "worker_register", p_agent=AGENT)
    assert hello["wanted"] == "run"
    assert float(hello["heartbeat_s"]) > 0

    task = await claimed(caller, 1)
    lease = {"id": task["id"], "attempt": task["attempt"], "progress": {"fraction": 0.5, "message": "half way"}}
    beat = await said(caller, "worker_heartbeat", p_tasks=[lease], p_health={"uptime_s": 1.5}, p_logs=LOGS)
    assert (beat["wanted"], beat["cancel"], beat["fenced"]) == ("run", [], [])
    key = f"{task['output_prefix']}film.mp4"
    granted = await said(caller, "worker_grants", p_items=[{"method": "PUT", "key": key}])
    assert granted["refused"] == []
    assert granted["items"][0].keys() >= {"method", "key", "url", "location"}
    await gateway.blobs.put(key, b"film", content_type="video/mp4")
    fence = {"p_task_id": task["id"], "p_attempt": task["attempt"]}
    result = {"p_output_location": granted["items"][0]["location"], "p_result_data": {"frames": 24}}
    assert (await said(caller, "worker_complete", **fence, **result))["outcome"] == "ok"
    assert (await said(caller, "worker_complete", **fence, **result))["outcome"] == "already"

    second = await claimed(caller, 2)
    fence = {"p_task_id": second["id"], "p_attempt": second["attempt"]}
    assert (await said(caller, "worker_fail", **fence, p_failure=FAILURE))["outcome"] == "requeued"
    third = await claimed(caller, 3)
    fence = {"p_task_id": third["id"], "p_attempt": third["attempt"]}
    assert (await said(caller, "worker_release", **fence, p_reason="drained"))["outcome"] == "ok"
    assert {task["id"], second["id"], third["id"]} == ids


async def test_an_earlier_agent_understands_a_refusal(gateway: ServerUnderTest) -> None:
    """It stops for codes that it knows, in a form that it knows."""
    caller = await gateway.worker()
    reply = await caller.call("worker_heartbeat", token="no.token.atall", p_tasks=[], p_health={}, p_logs={})
    assert reply.status_code == 401
    assert reply.json().keys() >= {"code", "message", "details", "hint"}
    outsider = Caller(caller.id, caller.pool, "another-jti", caller.nonce, caller.client)
    reply = await outsider.call("worker_heartbeat", p_tasks=[], p_health={}, p_logs={})
    assert (reply.status_code // 100, reply.json()["code"]) == (4, "OR006")


def test_protocol_1_is_still_spoken() -> None:
    """A change of the number needs another file like this one; this one stays."""
    assert protocol.PROTOCOL >= 1
    assert set(protocol.CLAIMED) >= CLAIMED
