"""Clusters over the API, at the addresses of the runbook: read by tokens that see the pool, reconciled by operators."""

import uuid

import pytest

from orchestrator.core.cluster_states import ClusterStatus, MemberRole, MemberStatus
from tests.process.web.api_rig import VIEWER, ApiRig
from tests.process.web.test_api_access import refusal


async def made(rig: ApiRig) -> tuple[str, str, str]:
    """A cluster of one node in deploying: its address, its name, and its member."""
    name, rows, term = f"c-{uuid.uuid4().hex[:8]}", rig.rows.clusters, (await rig.store.lead("tests", 3_600)).term
    await rows.create(name, rig.pool, nodes=1, actor="test")
    assert await rows.move(term, name, [ClusterStatus.REQUESTED], ClusterStatus.ALLOCATING, "test", deadline_s=600)
    worker = (await rig.worker(name)).id
    assert await rows.join(term, name, worker, MemberRole.CONTROLLER, node_name=worker.replace("_", "-")) == 0
    detail = {"phase": "configuring", "slurmctld_state": "down", "error": "slurmctld does not run"}
    fields = {"ssh_host": "213.173.110.7", "ssh_port": 12086, "fabric_addr": "10.65.0.3", "hostname": "c0ffee"}
    assert await rows.move_member(
        term, name, worker, [MemberStatus.PENDING], MemberStatus.RECONCILING, "test", adapter_detail=detail, **fields
    )
    waits = {"deadline_s": 600, "waiting_for": "slurmctld"}
    assert await rows.move(term, name, [ClusterStatus.ALLOCATING], ClusterStatus.DEPLOYING, "test", **waits)
    return f"/projects/{rig.rows.fleet}/app-instances/{name}", name, worker


async def test_an_instance_says_its_state_and_what_it_waits_for(rig: ApiRig) -> None:
    """In the list, and alone with its cost."""
    path, name, _ = await made(rig)
    (listed,) = (await rig.call("GET", path.rpartition("/")[0], VIEWER)).json()["app_instances"]
    read = (await rig.call("GET", path, VIEWER)).json()
    assert (listed["id"], listed["status"], listed["app_slug"]) == (name, "deploying", "slurm")
    assert (read["project_id"], read["nodes"], read["ready_nodes"]) == (rig.rows.fleet, 1, 0)
    assert (read["waits"]["who"], read["waits"]["what"]) == ("orchestrator", "slurmctld")
    assert read["waits"]["until"] == read["deadline_at"] is not None
    codes = [one["code"] for one in read["diagnoses"]]
    assert codes == [one["code"] for one in listed["diagnoses"]] == ["NO_APP_CONTROLLER", "CONTROLLER_DOWN"]
    assert (listed["cost_usd"], read["cost_usd"] is None) == (None, False)


async def test_a_member_has_an_address_for_ssh_and_a_host_name_that_is_only_shown(rig: ApiRig) -> None:
    """And what the last probe said, without the keys of its launch."""
    path, _, worker = await made(rig)
    answer = await rig.call("GET", f"{path}/members", VIEWER)
    (one,) = answer.json()["members"]
    assert (one["worker_id"], one["node_name"], one["role"]) == (worker, worker.replace("_", "-"), "controller")
    assert one["connection"] == {"host": "213.173.110.7", "port": 12086}
    assert (one["hostname"], one["fabric_addr"], one["status"]) == ("c0ffee", "10.65.0.3", "reconciling")
    assert one["adapter_detail"]["host"] == "213.173.110.7"
    assert one["adapter_detail"]["error"] == "slurmctld does not run"
    assert not {"nonce", "token_jti", "host_key"} & set(one["worker"])
    assert "boot-1" not in answer.text


async def test_a_reconcile_is_an_operation_that_is_recorded_once(rig: ApiRig) -> None:
    """Of every member, or of one; in the audit log, under the name of the token."""
    path, name, worker = await made(rig)
    token = await rig.token("operate", name="ops")
    for part, kind in (("reconcile", "reconcile"), ("bootstrap-ssh/reconcile", "bootstrap_ssh")):
        answers = [await rig.call("POST", f"{path}/{part}", token, json=body) for body in ({}, {"worker_id": worker})]
        assert {answer.status_code for answer in answers} == {202}
        first, again = (answer.json()["member_operations"] for answer in answers)
        assert [one["kind"] for one in first] == [kind]
        assert (first[0]["worker_id"], first[0]["status"], first[0]["actor"]) == (worker, "accepted", "ops")
        assert first == again, "an open operation is not recorded twice"
    found = (await rig.call("GET", f"{path}/member-operations", VIEWER)).json()
    assert [one["kind"] for one in found["member_operations"]] == ["bootstrap_ssh", "reconcile"]
    assert found["node_tasks"] == []
    entries = [one for one in (await rig.call("GET", "/audit")).json()["entries"] if one["actor"] == "ops"]
    assert {one["action"] for one in entries} == {"cluster.reconcile", "cluster.bootstrap_ssh"}
    assert {one["subject"] for one in entries} == {name}


async def test_what_cannot_be_reconciled_is_refused(rig: ApiRig) -> None:
    """Without the scope, for an unknown member, and without a member."""
    path, *_ = await made(rig)
    assert refusal(await rig.call("POST", f"{path}/reconcile", VIEWER)) == (403, "E072")
    assert refusal(await rig.call("POST", f"{path}/reconcile", json={"worker_id": "gpu-nobody"})) == (404, "E040")
    assert refusal(await rig.call("POST", f"{path}/reconcile", json={"worker_id": "no id"}))[0] == 422
    name = f"c-{uuid.uuid4().hex[:8]}"
    await rig.rows.clusters.create(name, f"{rig.pool}-2", nodes=1, actor="test")
    empty = f"/projects/{rig.rows.fleet}/app-instances/{name}"
    assert refusal(await rig.call("POST", f"{empty}/bootstrap-ssh/reconcile")) == (409, "E051")


@pytest.mark.parametrize("part", ["", "/members", "/member-operations"])
async def test_another_project_another_pool_and_another_name_are_not_there(rig: ApiRig, part: str) -> None:
    """The answers are equal: a token learns nothing about clusters of other pools."""
    path, name, _ = await made(rig)
    theirs = await rig.token("read", pools=["other"])
    mine = await rig.token("read", pools=[rig.pool])
    assert (await rig.call("GET", f"{path}{part}", mine)).status_code == 200
    assert refusal(await rig.call("GET", f"{path}{part}", theirs)) == (404, "E045")
    names = (f"{name}x", "%00", "A B")
    for wrong in (path.replace(rig.rows.fleet, "other"), *(path.replace(name, one) for one in names)):
        assert refusal(await rig.call("GET", f"{wrong}{part}"))[0] == 404
    assert (await rig.call("GET", path.rpartition("/")[0], theirs)).json() == {"app_instances": []}
