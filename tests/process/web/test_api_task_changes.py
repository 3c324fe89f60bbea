"""Actions on all tasks that fit a filter, over the API."""

from orchestrator.core.api_tokens import ENV_ADMIN
from tests.process.web.api_rig import ADMIN, VIEWER, ApiRig
from tests.process.web.test_api_access import refusal


async def work(rig: ApiRig) -> None:
    """Do what the leader does, until nothing is left."""
    term = (await rig.store.lead("tests", 3_600)).term
    while (await rig.rows.task_changes.step(term))["more"]:
        pass


async def test_a_change_from_its_preview_to_its_end(rig: ApiRig) -> None:
    """A repetition with the same key starts no other one. The audit log has it, and each task."""
    ids = [await rig.submit(labels={"show": "7"}) for _ in range(3)]
    await rig.submit()
    body = {"action": "cancel", "pool": rig.pool, "labels": {"show": "7"}}
    preview = (await rig.call("POST", "/task-changes/preview", json=body)).json()
    assert (preview["tasks"], preview["is_all"], preview["usd"]) == (3, True, 0)
    assert preview["by"] == [{"task_type": "t", "status": "Queued", "tasks": 3, "usd": 0}]
    key = {"Idempotency-Key": "k1"}
    answers = [await rig.call("POST", "/task-changes", json=body, headers=key) for _ in range(2)]
    assert [(one.status_code, one.json()["outcome"]) for one in answers] == [(202, "started"), (200, "repeated")]
    assert refusal(await rig.call("POST", "/task-changes", json={**body, "action": "retry"}, headers=key))[0] == 422
    path = f"/task-changes/{answers[0].json()['id']}"
    assert (await rig.call("GET", path)).json()["outcome"] is None
    await work(rig)
    row = (await rig.call("GET", path)).json()
    assert (row["outcome"], row["changed"], row["refused"], row["actor"]) == ("done", 3, 0, "env:admin")
    assert (await rig.call("GET", "/task-changes")).json()["changes"] == [row]
    assert (await rig.call("POST", f"{path}/stop")).json() == {"outcome": "already"}
    for name in ids:
        assert (await rig.call("GET", f"/tasks/{name}")).json()["status"] == "Cancelled"
    entries = (await rig.call("GET", "/audit")).json()["entries"]
    assert [one["action"] for one in entries if one["action"] != "task.submit"] == [
        "tasks.done", *["task.cancel"] * 3, "tasks.cancel"
    ]  # fmt: skip


async def test_a_change_is_stopped(rig: ApiRig) -> None:
    """It changes nothing more."""
    task = await rig.submit()
    body = {"action": "cancel", "status": ["Queued"], "pool": rig.pool}
    path = f"/task-changes/{(await rig.call('POST', '/task-changes', json=body)).json()['id']}"
    assert (await rig.call("POST", f"{path}/stop")).json() == {"outcome": "stopped"}
    await work(rig)
    row = (await rig.call("GET", path)).json()
    assert (row["outcome"], row["stopped_by"], row["changed"]) == ("stopped", "env:admin", 0)
    assert (await rig.call("GET", f"/tasks/{task}")).json()["status"] == "Queued"


async def test_a_change_needs_the_scope_that_one_task_needs(rig: ApiRig) -> None:
    """A reader sees changes; a token that may submit starts and stops them."""
    body = {"action": "cancel", "pool": rig.pool, "task_type": "none"}
    for path in ("/task-changes", "/task-changes/preview"):
        assert refusal(await rig.call("POST", path, VIEWER, json=body)) == (403, "E072")
    for scope in ("submit", "operate"):
        started = await rig.call("POST", "/task-changes", await rig.token(scope), json=body)
        assert started.status_code == 202
        path = f"/task-changes/{started.json()['id']}"
        assert (await rig.call("GET", path, VIEWER)).status_code == 200
        assert refusal(await rig.call("POST", f"{path}/stop", VIEWER)) == (403, "E072")
        assert (await rig.call("POST", f"{path}/stop", await rig.token(scope))).status_code == 200


async def test_a_token_of_a_pool_or_a_tenant_changes_its_own(rig: ApiRig) -> None:
    """Whatever the filter names. It finds no change of those who see more."""
    mine = await rig.submit(tenant=f"acme-{rig.pool}")
    other = await rig.submit(pool="other", tenant="somebody", labels={"of": rig.pool})
    whole = await rig.rows.task_changes.start(ENV_ADMIN, "cancel", {"task_type": "none"}, key=None)
    for limits in ({"pools": [rig.pool]}, {"tenant": f"acme-{rig.pool}"}):
        token = await rig.token("submit", "read", **limits)
        body = {"action": "cancel", "task_type": "t"}
        assert (await rig.call("POST", "/task-changes/preview", token, json=body)).json()["tasks"] == 1
        made = await rig.call("POST", "/task-changes", token, json=body)
        await work(rig)
        path = f"/task-changes/{made.json()['id']}"
        assert (await rig.call("GET", path, token)).json()["changed"] == 1
        assert [row["id"] for row in (await rig.call("GET", "/task-changes", token)).json()["changes"]] == [
            made.json()["id"]
        ]
        assert refusal(await rig.call("GET", f"/task-changes/{whole['id']}", token)) == (404, "E046")
        assert refusal(await rig.call("POST", f"/task-changes/{whole['id']}/stop", token)) == (404, "E046")
        assert (await rig.call("POST", f"/tasks/{mine}/retry")).status_code == 200
    assert (await rig.call("GET", f"/tasks/{other}")).json()["status"] == "Queued"
    await rig.call("POST", f"/tasks/{other}/cancel")


async def test_what_is_no_change_is_refused(rig: ApiRig) -> None:
    """With the reason: no filter, a status that the action does not change, no id."""
    for body in (
        {"action": "cancel"}, {"action": "cancel", "status": ["Failed"]}, {"action": "delete", "pool": "p"},
        {"action": "retry", "status": []}, {"action": "retry", "since": "yesterday"}, {"action": "retry", "state": "x"},
    ):  # fmt: skip
        assert refusal(await rig.call("POST", "/task-changes", ADMIN, json=body)) == (422, "E052"), body
    for name in ("0", "x", "-1", "1" * 30, "999999999"):
        assert refusal(await rig.call("GET", f"/task-changes/{name}")) == (404, "E046")
    body, key = {"action": "cancel", "pool": "p"}, {"Idempotency-Key": ""}
    answer = await rig.call("POST", "/task-changes", json=body, headers=key)
    assert answer.status_code == 400


async def test_tasks_are_listed_by_pool(rig: ApiRig) -> None:
    """Together with any other filter."""
    task = await rig.submit()
    found = (await rig.call("GET", f"/tasks?pool={rig.pool}&status=Queued")).json()["tasks"]
    assert [one["id"] for one in found] == [task]
    assert (await rig.call("GET", f"/tasks?pool={rig.pool}x")).json()["tasks"] == []
