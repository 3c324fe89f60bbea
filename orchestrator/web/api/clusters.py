"""Clusters over HTTP, at the addresses of app instances: the project is the fleet."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from starlette.responses import Response

from orchestrator.core.cluster_states import OperationKind
from orchestrator.core.clusters.addresses import CLUSTER_ID
from orchestrator.core.clusters.rows import ClusterRow
from orchestrator.diagnostics.clusters import (
    cluster_document,
    detail,
    ended_members,
    live_members,
    member_document,
    problems,
)
from orchestrator.errors import NO_CLUSTER, NO_WORKER, WRONG_STATE
from orchestrator.web.api.cluster_models import (
    AppInstanceShown,
    AppInstancesShown,
    MembersShown,
    OperationsAccepted,
    OperationsShown,
)
from orchestrator.web.api.operations import Api, ApiCall, shown
from orchestrator.web.api.problems import Problem

APP = "slurm"


async def instances(api: Api, call: ApiCall) -> Response:
    """The clusters that the token sees."""
    _check_project(api, call)
    found = await api.rows.clusters.report()
    seen = [_instance(api, row, found.now) for row in found.clusters if call.holder.sees(row.pool)]
    return shown(AppInstancesShown.model_validate({"app_instances": seen}))


async def instance(api: Api, call: ApiCall) -> Response:
    """One cluster."""
    row, now = await _found(api, call)
    return shown(AppInstanceShown.model_validate(_instance(api, row, now)))


async def members(api: Api, call: ApiCall) -> Response:
    """Its members, with what the last probe of each said."""
    row = await _visible(api, call)
    made = [
        member_document(one)
        | {"adapter_detail": dict(detail(one)), "connection": {"host": one.ssh_host, "port": one.ssh_port}}
        for one in (*live_members(row), *ended_members(row))
    ]
    return shown(MembersShown.model_validate({"members": made}))


async def operations(api: Api, call: ApiCall) -> Response:
    """The operations on its members, and the tasks on their pods."""
    row = await _visible(api, call)
    made = {"member_operations": row.operations, "node_tasks": row.node_tasks}
    return shown(OperationsShown.model_validate(made, from_attributes=True))


async def reconcile(api: Api, call: ApiCall) -> Response:
    """Configure its members again."""
    return await _asked(api, call, OperationKind.RECONCILE)


async def bootstrap_ssh(api: Api, call: ApiCall) -> Response:
    """Write the orchestrator's SSH key into the members' authorized_keys again."""
    return await _asked(api, call, OperationKind.BOOTSTRAP_SSH)


async def _asked(api: Api, call: ApiCall, kind: OperationKind) -> Response:
    name, rows = (await _visible(api, call)).id, api.rows.clusters
    ask = rows.reconcile if kind is OperationKind.RECONCILE else rows.bootstrap_ssh
    answer = await ask(name, call.body.worker_id, actor=call.holder.name)
    if answer["outcome"] == "not_found":
        fix = f"GET /api/v1/projects/{api.rows.fleet}/app-instances/{name}/members"
        raise Problem(404, NO_WORKER, "the cluster has no such live member", fix=fix)
    if answer["outcome"] == "no_members":
        why = "the cluster has no live member: a worker becomes a member when it is promoted"
        raise Problem(409, WRONG_STATE, why, fix=f"GET /api/v1/projects/{api.rows.fleet}/app-instances/{name}")
    return shown(OperationsAccepted.model_validate({"member_operations": answer["operations"]}), 202)


def _check_project(api: Api, call: ApiCall) -> None:
    if call.path["project"] != api.rows.fleet:
        why = "there is no project with this id: a project is the FLEET_ID of the orchestrator"
        raise Problem(404, NO_CLUSTER, why, fix="use the FLEET_ID, which is default unless you set it")


async def _visible(api: Api, call: ApiCall) -> ClusterRow:
    """The cluster in the path. Raises Problem."""
    return (await _found(api, call))[0]


async def _found(api: Api, call: ApiCall) -> tuple[ClusterRow, datetime]:
    """The cluster in the path, and the time of the database. Raises Problem."""
    _check_project(api, call)
    name = call.path["app_instance_id"]
    found = await api.rows.clusters.report(name) if CLUSTER_ID.fullmatch(name) else None
    if found is None or not found.clusters or not call.holder.sees(found.clusters[0].pool):
        fix = f"GET /api/v1/projects/{api.rows.fleet}/app-instances"
        raise Problem(404, NO_CLUSTER, "there is no cluster with this id, or not for this token", fix=fix)
    return found.clusters[0], found.now


def _instance(api: Api, row: ClusterRow, now: datetime) -> dict[str, Any]:
    own = {"project_id": api.rows.fleet, "app_slug": APP, "diagnoses": [asdict(one) for one in problems(row, now)]}
    return cluster_document(row) | own
