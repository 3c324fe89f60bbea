"""What somebody can do who has a token to read the tasks of one tenant, and knows the ids of others."""

import re
import uuid
from typing import Any

import pytest

from orchestrator.core.api_tokens import ENV_ADMIN
from orchestrator.web.api.cursors import cursor_of
from orchestrator.web.api.operations import Operation
from orchestrator.web.api.routes import OPERATIONS
from tests.process.web.api_rig import ADMIN, ApiRig

SECRET = "a-secret-of-the-other-tenant"
BODIES: dict[str, Any] = {
    "submitTask": {"task_type": "t", "tenant": "other"},
    "submitTasks": {"tasks": [{"task_type": "t", "tenant": "other"}]},
    "pause": {"reason": "r"},
}


@pytest.mark.parametrize("one", OPERATIONS, ids=lambda one: one.name)
async def test_no_operation_shows_or_changes_anothers(rig: ApiRig, one: Operation) -> None:
    """With its ids, and without If-Match or with a forged one."""
    token = await rig.token("read", tenant=f"outsider-{uuid.uuid4().hex}")
    labels = {"note": SECRET}
    task_id = await rig.submit(tenant="other", params={"text": SECRET}, labels=labels, webhook_url=f"https://{SECRET}/")
    worker = await rig.worker()
    before = (await rig.call("GET", f"/tasks/{task_id}")).json()
    cluster = f"c-{task_id[:8]}"
    await rig.rows.clusters.create(cluster, rig.pool, nodes=1, actor="test")
    change = await rig.rows.task_changes.start(ENV_ADMIN, "cancel", {"task_type": SECRET}, key=None)
    ids = {"task_id": task_id, "worker_id": worker.id, "project": rig.rows.fleet, "app_instance_id": cluster}
    ids |= {"change_id": change["id"]}
    path = one.path.format(**ids)
    for query in ({}, {"tenant": "other"}, {"label": f"note={SECRET}"}, {"follow": "true"}, {"timeout_s": "0"}):
        for headers in (
            {},
            {"If-Match": f'"{before["version"]}"'},
            {"Accept": "text/event-stream", "Last-Event-ID": "0"},
        ):
            body = BODIES.get(one.name, {}) if one.body else None
            answer = await rig.call(one.method, path, token, params=query, headers=headers, json=body)
            assert SECRET not in answer.text
            assert rig.pool not in answer.text
            if one.name == "listTaskChanges":
                assert answer.status_code == 400 or answer.json()["changes"] == []
            elif "/tasks" not in one.path or "{" in one.path or one.method != "GET":
                assert answer.status_code in {400, 403, 404}, (query, headers, answer.text)
            else:
                assert answer.status_code == 400 or answer.json()["tasks"] == []
    assert (await rig.call("GET", f"/tasks/{task_id}")).json() == before


async def test_a_task_that_waits_for_a_limit_names_no_task_of_others(rig: ApiRig) -> None:
    """A concurrency key is the same one in all pools; the task that has its place may be in another pool."""
    key = uuid.uuid4().hex
    first = await rig.submit(pool="another", concurrency_key=key)
    mine = await rig.submit(concurrency_key=key)
    for token, named in ((ADMIN, True), (await rig.token("read", pools=[rig.pool]), False)):
        explained = await rig.call("GET", f"/tasks/{mine}/explanation", token)
        assert (explained.status_code, key in explained.text, first in explained.text) == (200, True, named)


async def test_a_dependency_of_another_pool_is_not_named(rig: ApiRig) -> None:
    """Neither while the task waits for it nor when it has failed. One of the token's own pool is."""
    token = await rig.token("read", pools=[rig.pool])
    other, own = await rig.submit(pool="another", task_type=SECRET), await rig.submit(task_type="of-mine")
    waits = await rig.submit(depends_on=[other, own])
    explained = await rig.call("GET", f"/tasks/{waits}/explanation", token)
    assert explained.status_code == 200
    assert (other in explained.text, SECRET in explained.text, own in explained.text) == (False, False, True)
    assert [one["id"] for one in explained.json()["detail"]["dependencies"]] == [own]
    assert explained.json()["what"] == f"2 of 2 dependencies: of-mine {own} is Queued; and 1 of other pools"
    alone = await rig.submit(depends_on=[other])
    explained = await rig.call("GET", f"/tasks/{alone}/explanation", token)
    assert (other in explained.text, explained.json()["what"]) == (False, "1 of 1 dependencies: 1 of other pools")
    assert other in (await rig.call("GET", f"/tasks/{alone}/explanation")).text
    await rig.call("POST", f"/tasks/{other}/cancel")
    assert other not in (await rig.call("GET", f"/tasks/{alone}/explanation", token)).json()["fix"]


async def test_a_token_of_pools_does_not_see_the_audit_log(rig: ApiRig) -> None:
    """It names tasks and workers of all pools."""
    task_id = await rig.submit(pool="another")
    answer = await rig.call("GET", "/audit", await rig.token("admin", pools=[rig.pool]))
    assert (answer.status_code, answer.json()["id"], task_id in answer.text) == (403, "E072", False)
    assert task_id in (await rig.call("GET", "/audit")).text


@pytest.mark.parametrize(
    ("since", "status"),
    [("0001-01-01T00:00:00+14:00", 422), ("9999-12-31T23:59:59-14:00", 422), ("2026-01-01T00:00:00+23:59", 200)],
)
async def test_a_time_that_no_calendar_has_is_refused(rig: ApiRig, since: str, status: int) -> None:
    """Such a time becomes one before the year 1, or after the year 9999. An unusual offset is an offset."""
    answer = await rig.call("GET", "/costs", params={"since": since})
    assert (answer.status_code, answer.json().get("id")) == (status, None if status == 200 else "E052"), answer.text


@pytest.mark.parametrize(
    "place",
    [
        ["9999-99-99T99:99:99+99:99", "6545cbb7-13ac-42cf-8f81-c2154cbc4659"],
        ["2026-01-01T00:00:00+23:59", "6545cbb7-13ac-42cf-8f81-c2154cbc4659"],
        ["2026-02-30T00:00:00+00:00", "6545cbb7-13ac-42cf-8f81-c2154cbc4659"],
        ["0000-01-01T00:00:00+00:00", "6545cbb7-13ac-42cf-8f81-c2154cbc4659"],
        ["infinity", "6545cbb7-13ac-42cf-8f81-c2154cbc4659"],
        ["2026-01-01T00:00:00+00:00", "'; drop table tasks; --"],
        ["2026-01-01T00:00:00+00:00"],
        [1, 2],
        [None, None],
    ],
)
async def test_a_forged_cursor_is_refused(rig: ApiRig, place: Any) -> None:
    """As what it is, and by the API itself."""
    for path in ("/tasks", "/workers"):
        answer = await rig.call("GET", path, params={"cursor": cursor_of(place)})
        assert (answer.status_code, "none of ours" in answer.text) == (400, True), answer.text


@pytest.mark.parametrize(
    "name", ["x" * 3000, "%00", "..", "%2e%2e%2f", "a%0d%0ab", "-1", "9" * 400, "%f0%9f%92%a9", "{}", "null"]
)
async def test_an_invalid_id_is_not_found(rig: ApiRig, name: str) -> None:
    """Whatever its length."""
    for path in (f"/tasks/{name}", f"/workers/{name}", f"/tasks/{name}/output", f"/tasks/{name}/logs"):
        answer = await rig.call("GET", path, ADMIN)
        assert answer.status_code in {400, 404}, (path, answer.status_code)
        assert not re.search(r"Traceback|psycopg|sql", answer.text)
