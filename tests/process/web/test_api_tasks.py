"""Tasks over the API: submit once, see one's own, act on what was read."""

import asyncio
import time
import uuid
from typing import Any

import psycopg
import pytest

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.core.api_tokens import ENV_ADMIN
from orchestrator.web.api.waiting import POLL_S
from tests.process.web.api_rig import VIEWER, ApiRig, api_rig
from tests.process.web.builders import DEADLINE_S, done
from tests.process.web.test_api_access import NOBODY, refusal


async def test_a_task_from_its_submission_to_its_cancellation(rig: ApiRig) -> None:
    """Each answer has the version for the next action, and the audit log has every action."""
    body = {"task_type": "t", "params": {"n": 1}, "pool": rig.pool, "labels": {"show": "7"}, "priority": 3}
    made = await rig.call("POST", "/tasks", json=body)
    assert (made.status_code, made.json()["created"]) == (201, True)
    path = f"/tasks/{made.json()['id']}"
    read = await rig.call("GET", path)
    task = read.json()
    assert {name: task[name] for name in body} == body
    assert (task["status"], task["attempts"], task["attempt_list"]) == ("Queued", 0, [])
    assert not {"lease_expires_at", "uncounted", "blocked"} & set(task)

    old = {"If-Match": '"another"'}
    assert refusal(await rig.call("POST", f"{path}/cancel", headers=old)) == (412, "E075")
    cancelled = await rig.call("POST", f"{path}/cancel", headers={"If-Match": read.headers["etag"]})
    assert (cancelled.json()["outcome"], cancelled.json()["task"]["status"]) == ("cancelled", "Cancelled")
    again = await rig.call("POST", f"{path}/cancel", headers={"If-Match": cancelled.headers["etag"]})
    assert again.json()["outcome"] == "already"
    queued = await rig.call("POST", f"{path}/retry")
    assert (queued.json()["outcome"], queued.json()["task"]["status"]) == ("requeued", "Queued")
    assert refusal(await rig.call("POST", f"{path}/retry")) == (409, "E051")
    entries = (await rig.call("GET", "/audit")).json()["entries"]
    assert [(one["actor"], one["action"]) for one in entries] == [
        ("env:admin", f"task.{action}") for action in ("retry", "cancel", "submit")
    ]


async def test_a_token_that_may_not_read_sees_no_task_in_the_answers_to_its_actions(rig: ApiRig) -> None:
    """Neither when it cancels or retries, nor when there is nothing left to do."""
    token = await rig.token("submit")
    task = await rig.submit(params={"secret": 1})
    known = {"id", "outcome", "status", "task", "version"}
    for action, outcome in (("cancel", "cancelled"), ("cancel", "already"), ("retry", "requeued")):
        answer = await rig.call("POST", f"/tasks/{task}/{action}", token)
        found = answer.json()
        assert (found["outcome"], found["id"], found["task"], set(found)) == (outcome, task, None, known)
        assert "secret" not in answer.text
        assert answer.headers["etag"] == f'"{found["version"]}"'
    reader = await rig.token("submit", "read")
    assert (await rig.call("POST", f"/tasks/{task}/cancel", reader)).json()["task"]["params"] == {"secret": 1}
    assert (await rig.call("GET", f"/tasks/{task}", token)).status_code == 403


async def test_values_of_users_pass_as_the_database_wrote_them(rig: ApiRig, hand: psycopg.AsyncConnection[Any]) -> None:
    """To decode and encode a million values would hold up all workers. A remark replaces what no program can read."""
    task_id = await rig.submit(params={"big": 2})
    set_params = "update public.tasks set params = %s::jsonb where id = %s"
    await hand.execute(set_params, ('{"n": 1.10, "é": [12345678901234567890123, "\\""]}', task_id))
    path = f"/tasks/{task_id}"
    answers = [await rig.call("GET", path), await rig.call("GET", f"{path}/wait?timeout_s=0")]
    answers.append(await rig.call("POST", f"{path}/cancel"))
    for answer in answers:
        assert '"params": {"n": 1.10, "é": [12345678901234567890123, "\\""]}' in answer.text
        assert answer.json().get("task", answer.json())["result_data"] is None
    found = await rig.rows.task(ENV_ADMIN, task_id)
    assert not {"params", "result_data"} & set(found["task"])

    for value, shown in (
        ('["x", null]', ["x", None]),
        ("[" * 70 + "]" * 70, "(nested too deeply, or with a number too long, to be shown)"),
        ("1" * 4_400, "(nested too deeply, or with a number too long, to be shown)"),
        (f'"{"x" * (8 << 20)}"', "(too large to be shown: 8388610 bytes)"),
    ):
        await hand.execute("update public.tasks set result_data = %s::jsonb where id = %s", (value, task_id))
        assert (await rig.call("GET", path)).json()["result_data"] == shown


async def test_a_text_of_any_size_is_shown_in_part(rig: ApiRig, hand: psycopg.AsyncConnection[Any]) -> None:
    """Of a page of tasks, and of one: decoding 200 whole texts would hold up the calls of all workers."""
    task_id = await rig.submit()
    await hand.execute(
        "update public.tasks set error_message = %s, progress = %s::jsonb where id = %s",
        ("a" + "x" * 90_000 + "é", '{"message": "' + "x" * 100_000 + '"}', task_id),
    )
    for path, most in (("/tasks?limit=1", 4_096), (f"/tasks/{task_id}", 65_536)):
        answer = (await rig.call("GET", path)).json()
        (task,) = answer.get("tasks", [answer])
        text = task["error_message"]
        assert (text[0], text[-1]) == ("a", "é")
        assert f"[… {90_002 - most} characters left out …]" in text
        assert len(text) < most + 50
        assert task["progress"] == {"message": "(too large to be shown)"}
    assert (await rig.rows.task_states([task_id]))[0]["progress"] == {"message": "(too large to be shown)"}


async def test_a_submission_with_a_key_is_done_once(rig: ApiRig) -> None:
    """Whatever has happened to the task meanwhile, and however many repeat it at once."""
    body, key = {"task_type": "t", "pool": rig.pool}, {"Idempotency-Key": uuid.uuid4().hex}
    answers = await asyncio.gather(*(rig.call("POST", "/tasks", json=body, headers=key) for _ in range(10)))
    (task_id,) = {answer.json()["id"] for answer in answers}
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
    await rig.call("POST", f"/tasks/{task_id}/cancel")
    assert (await rig.call("POST", "/tasks", json=body, headers=key)).json()["id"] == task_id
    other = await rig.call("POST", "/tasks", json={**body, "priority": 1}, headers=key)
    assert refusal(other) == (422, "E076")
    another_token = await rig.token("submit")
    theirs = await rig.call("POST", "/tasks", another_token, json=body, headers=key)
    assert theirs.json()["id"] != task_id
    assert refusal(await rig.call("POST", "/tasks", json=body, headers={"Idempotency-Key": "a b"}))[0] == 400


async def test_a_trace_comes_with_the_request_or_the_task(rig: ApiRig) -> None:
    """One that cannot be used is ignored, with a reason; a repetition in another trace is the same submission."""
    trace, other = (f"00-{digit * 32}-{digit * 16}-01" for digit in "12")
    body, key = {"task_type": "t", "pool": rig.pool}, {"Idempotency-Key": uuid.uuid4().hex}
    made = (await rig.call("POST", "/tasks", json=body, headers={**key, "traceparent": trace})).json()
    assert made["ignored"] is None
    again = (await rig.call("POST", "/tasks", json=body, headers={**key, "traceparent": other})).json()
    assert (again["id"], again["created"]) == (made["id"], True)
    assert (await rig.call("GET", f"/tasks/{made['id']}")).json()["traceparent"] == trace
    tasks = [{**body, "traceparent": other}, body, {**body, "traceparent": "é" * 5_000}]
    batch = (await rig.call("POST", "/tasks/batch", json={"tasks": tasks}, headers={"traceparent": trace})).json()
    found = [(await rig.call("GET", f"/tasks/{one['id']}")).json()["traceparent"] for one in batch["tasks"]]
    assert found == [other, trace, None]
    assert "200 characters" in batch["tasks"][2]["ignored"]


async def test_a_submission_that_is_refused_does_not_use_up_its_key(rig: ApiRig) -> None:
    """The corrected one is another submission."""
    key, body = {"Idempotency-Key": "k"}, {"task_type": "t", "pool": rig.pool}
    wrong = await rig.call("POST", "/tasks", json={**body, "depends_on": [NOBODY]}, headers=key)
    assert refusal(wrong) == (422, "E052")
    assert (await rig.call("POST", "/tasks", json=body, headers=key)).status_code == 201


async def test_many_tasks_are_submitted_together_or_not_at_all(rig: ApiRig) -> None:
    """They may depend on each other."""
    tasks: list[dict[str, Any]] = [{"task_type": "t", "pool": rig.pool}] * 3
    tasks += [{"task_type": "last", "pool": rig.pool, "depends_on": ["#0", "#2"]}]
    made = await rig.call("POST", "/tasks/batch", json={"tasks": tasks})
    ids = [task["id"] for task in made.json()["tasks"]]
    assert made.status_code == 201
    assert (await rig.call("GET", f"/tasks/{ids[3]}")).json()["depends_on"] == [ids[0], ids[2]]
    wrong = await rig.call("POST", "/tasks/batch", json={"tasks": [*tasks, {"task_type": "t", "depends_on": ["#9"]}]})
    assert refusal(wrong)[0] == 422
    assert len((await rig.call("GET", "/audit")).json()["entries"]) == 1
    for count in (0, 1_001):
        assert refusal(await rig.call("POST", "/tasks/batch", json={"tasks": tasks[:1] * count}))[0] == 422


async def test_a_list_is_read_page_by_page(rig: ApiRig) -> None:
    """Newest first, each task once, also if others are submitted meanwhile."""
    token = await rig.token("submit", "read", pools=[rig.pool])
    ids = [await rig.submit(token, task_type=f"t{n % 2}") for n in range(7)]
    seen, cursor = [], None
    for _ in range(10):
        parameters = {"limit": 3, **({"cursor": cursor} if cursor else {})}
        page = (await rig.call("GET", "/tasks", token, params=parameters)).json()
        seen += [task["id"] for task in page["tasks"]]
        cursor = page["next"]
        if cursor is None or len(seen) >= 7:
            break
        await rig.submit(token)
    assert seen[:7] == ids[::-1]
    listed = (await rig.call("GET", "/tasks", token, params={"task_type": "t1", "status": "Queued"})).json()["tasks"]
    assert [task["id"] for task in listed] == ids[5::-2]
    assert "params" not in listed[0]
    for cursor in ("x", "e30", "W10", "WyJhIiwgImIiXQ", "====", "W1tdLCBbXV0"):
        assert refusal(await rig.call("GET", "/tasks", token, params={"cursor": cursor}))[0] == 400


async def test_a_list_is_filtered_by_labels(rig: ApiRig) -> None:
    """Tasks that have all of them. A value may contain whatever a label's value may."""
    one = await rig.submit(labels={"show": "7", "note": "a=b & c"}, tenant=rig.pool)
    await rig.submit(labels={"show": "8"}, tenant=rig.pool)
    await rig.submit(tenant=rig.pool)
    for given, expected in (
        (["show=7"], [one]),
        (["show=7", "note=a=b & c"], [one]),
        (["show=7", "show=8"], []),
        (["show"], None),
        (["=7"], None),
        (["a=" + "x" * 300], None),
        (["a=1"] * 17, None),
    ):
        answer = await rig.call("GET", "/tasks", params=[("tenant", rig.pool), *(("label", pair) for pair in given)])
        if expected is None:
            assert answer.status_code == 400
        else:
            assert [row["id"] for row in answer.json()["tasks"]] == expected, given


@pytest.mark.parametrize("restriction", ["tenant", "pool"])
async def test_what_is_not_ones_own_looks_absent(rig: ApiRig, restriction: str) -> None:
    """To read, list, wait, follow, cancel, retry and depend on."""
    if restriction == "tenant":
        mine = await rig.token("submit", "read", tenant=f"acme-{rig.pool}")
        foreign = await rig.submit(tenant="other")
        nobodys = await rig.submit()
    else:
        mine = await rig.token("submit", "read", "operate", pools=[rig.pool])
        foreign = nobodys = await rig.submit(pool=f"{rig.pool}-2")
    own = await rig.submit(mine)
    for task_id in (foreign, nobodys, NOBODY, "no-id"):
        for method, end in (("GET", ""), ("GET", "/wait"), ("GET", "/events"), ("GET", "/output"), ("GET", "/logs"),
                            ("POST", "/cancel"), ("POST", "/retry")):  # fmt: skip
            answer = await rig.call(method, f"/tasks/{task_id}{end}", mine)
            assert refusal(answer) == (404, "E041"), (task_id, end)
            assert answer.json()["detail"] == "there is no task with this id, or not for this token"
    listed = (await rig.call("GET", "/tasks", mine)).json()["tasks"]
    assert [task["id"] for task in listed] == [own]
    texts = []
    for task_id in (foreign, foreign.upper(), str(uuid.uuid4())):
        body = {"task_type": "t", "pool": rig.pool, "depends_on": [task_id]}
        answer = await rig.call("POST", "/tasks", mine, json=body)
        assert refusal(answer) == (422, "E052")
        texts.append(answer.json()["detail"].replace(task_id, "…"))
    assert len(set(texts)) == 1
    assert (await rig.call("GET", f"/tasks/{foreign}")).json()["status"] == "Queued"


async def test_a_tenants_tasks_are_its_own_whatever_it_sends(rig: ApiRig) -> None:
    """Its tenant is set; its dedupe keys do not meet those of others."""
    mine, theirs = await rig.token("submit", "read", tenant="a"), await rig.token("submit", "read", tenant="b")
    own = await rig.submit(mine, dedupe_key="k")
    assert (await rig.call("GET", f"/tasks/{own}")).json()["tenant"] == "a"
    assert await rig.submit(mine, dedupe_key="k") == own
    assert len({own, await rig.submit(theirs, dedupe_key="k"), await rig.submit(dedupe_key="k" + rig.pool)}) == 3
    wrong = await rig.call("POST", "/tasks", mine, json={"task_type": "t", "tenant": "b"})
    assert refusal(wrong) == (403, "E072")


async def test_a_token_of_a_pool_submits_to_it_alone(rig: ApiRig) -> None:
    """Also if the task's type would choose another pool; a dedupe key does not tell that another pool has it."""
    mine = await rig.token("submit", "read", pools=[rig.pool])
    for task in ({"pool": "default"}, {}):
        answer = await rig.call("POST", "/tasks", mine, json={"task_type": "t", **task})
        assert answer.status_code in {403, 422}
    key = uuid.uuid4().hex
    foreign = await rig.submit(pool="another", dedupe_key=key)
    own = await rig.submit(mine, dedupe_key=key)
    assert own != foreign
    assert await rig.submit(mine, dedupe_key=key) == own
    await rig.call("POST", f"/tasks/{foreign}/cancel", headers={"If-Match": "*"})
    assert await rig.submit(mine, dedupe_key=key) == own
    free = uuid.uuid4().hex
    first = await rig.submit(mine, dedupe_key=free)
    assert await rig.submit(mine, dedupe_key=free) == first
    assert {one["id"] for one in (await rig.call("GET", "/tasks", mine)).json()["tasks"]} == {own, first}


async def test_a_wait_ends_with_the_task(rig: ApiRig) -> None:
    """Within a second. A short one answers with the task as it is."""
    worker, task_id = await rig.worker(), await rig.submit()
    early = (await rig.call("GET", f"/tasks/{task_id}/wait", params={"timeout_s": 0.1})).json()
    assert (early["ended"], early["task"]["status"]) == (False, "Queued")
    waiting = asyncio.create_task(rig.call("GET", f"/tasks/{task_id}/wait", VIEWER))
    await worker.claim()
    await worker.call("worker_complete", **done(task_id))
    async with asyncio.timeout(DEADLINE_S):
        ended = (await waiting).json()
    assert (ended["ended"], ended["task"]["status"], ended["task"]["result_data"]) == (True, "Complete", {"n": 1})
    (attempt,) = ended["task"]["attempt_list"]
    assert (attempt["worker_id"], attempt["outcome"]) == (worker.id, "complete")
    assert "nonce" not in attempt


async def test_waiting_calls_are_bounded_for_each_token(rig: ApiRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that has gone, or was answered, leaves its place; other tokens have places of their own."""
    monkeypatch.setattr("orchestrator.web.api.waiting.MAX_WAITS_PER_TOKEN", 4)
    task_id = await rig.submit()
    path = f"/tasks/{task_id}/wait"
    waiting = [asyncio.create_task(rig.call("GET", path)) for _ in range(4)]
    async with asyncio.timeout(DEADLINE_S):
        while rig.api.watch._by_token["env:admin"] < 4:
            await asyncio.sleep(0.01)
    refused = await rig.call("GET", path)
    assert refusal(refused) == (429, "E073")
    assert refused.headers["retry-after"] == "10"
    assert refusal(await rig.call("GET", f"/tasks/{task_id}/events")) == (429, "E073")
    assert (await rig.call("GET", path, VIEWER, params={"timeout_s": 0})).status_code == 200
    for one in waiting[:2]:
        one.cancel()
    async with asyncio.timeout(DEADLINE_S):
        while rig.api.watch._by_token["env:admin"] > 2:
            await asyncio.sleep(0.01)
    await rig.call("POST", f"/tasks/{task_id}/cancel")
    assert [answer.json()["ended"] for answer in await asyncio.gather(*waiting[2:])] == [True, True]
    assert rig.api.watch._by_token.total() == 0


async def test_a_server_that_stops_answers_those_who_wait(api_db: PostgresDb, blobs: S3Blobs) -> None:
    """With the task as it is: they ask the next server."""
    async with api_rig(api_db, blobs) as rig:
        task_id = await rig.submit()
        waiting = asyncio.create_task(rig.call("GET", f"/tasks/{task_id}/wait"))
        async with asyncio.timeout(DEADLINE_S):
            while not rig.api.watch._by_token:
                await asyncio.sleep(0.01)
            rig.wakeups.close()
            assert (await waiting).json()["ended"] is False


async def test_the_database_is_not_polled_while_no_caller_waits(rig: ApiRig) -> None:
    """And a hundred who wait cost one query each half second."""
    task_id = await rig.submit()
    calls = 0
    states = rig.rows.task_states

    async def counted(ids: Any) -> Any:
        nonlocal calls
        calls += 1
        return await states(ids)

    rig.api.watch._rows = type("Counted", (), {"task_states": staticmethod(counted)})()
    path = f"/tasks/{task_id}/wait"
    began = time.monotonic()
    answers = await asyncio.gather(*(rig.call("GET", path, params={"timeout_s": 1.2}) for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert 1 <= calls <= (time.monotonic() - began) / POLL_S + 1
    polling = rig.api.watch._polling
    assert polling is not None
    async with asyncio.timeout(DEADLINE_S):
        await polling  # it ends because nobody waits
