"""The operations of REST v2, one short function each."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from testbed.runpod import catalog_operations, request_schemas, serializers
from testbed.runpod.api import ApiRequest, Core, Operation, endpoint
from testbed.runpod.billing import billing
from testbed.runpod.catalog import DATA_CENTERS, RegistryCredentials
from testbed.runpod.faults import Fault, Moment
from testbed.runpod.replies import ApiReply
from testbed.runpod.state import LIVE_STATUSES, NO_GLOBAL_NETWORK, ApiProblem, PodRecord, isoformat

LOG_POLL_S = 0.2


async def create_pod(asked: ApiRequest) -> ApiReply:
    """POST /v2/pods."""
    core = asked.core
    body = asked.parse(request_schemas.CreatePodBody)
    await asyncio.sleep(core.create_s)
    pod = core.world.create(body, asked.faults_at(Moment.POD))
    core.creates.append({"name": pod.name, "at": isoformat(pod.created_at)})
    core.host.start(pod)
    return ApiReply(201, serializers.pod_json(pod))


async def list_pods(asked: ApiRequest) -> ApiReply:
    """GET /v2/pods; the members of RunPod's own clusters only with includeClusterPods."""
    now, with_members = time.time(), asked.flag("includeClusterPods")
    views_of_this = {fault.kind: fault for fault in asked.faults_at(Moment.VIEW)}
    limit = asked.number("limit", asked.core.page_size, 1_000)
    cursor = asked.request.query_params.get("cursor")
    shown = [
        pod
        for pod in asked.core.world.live()
        if (with_members or pod.cluster is None)
        and not _lags(pod, "listing_lag", now)
        and not _named(views_of_this.get("missing_from_list"), pod)
    ]
    chosen, pagination = serializers.page([] if "empty_list" in views_of_this else shown, cursor, limit)
    if "repeated_cursor" in views_of_this:
        pagination = {"nextCursor": cursor or "MA==", "hasNextPage": True}
    flicker, odd = views_of_this.get("flicker_runtime"), views_of_this.get("odd_fields")
    rows = [
        {**serializers.pod_json(pod, flicker=_named(flicker, pod)), **(_fields(odd) if _named(odd, pod) else {})}
        for pod in chosen
    ]
    return ApiReply(200, {"pods": rows, "pagination": pagination})


def _lags(pod: PodRecord, kind: str, now: float) -> bool:
    fault = pod.fault(kind)
    return fault is not None and now < pod.created_at + fault.seconds


def _fields(fault: Fault | None) -> Mapping[str, Any]:
    return (fault.fields if fault is not None else None) or {}


def _named(fault: Fault | None, pod: PodRecord) -> bool:
    """Tell whether a fault of one read is meant for this pod; `detail` is the pod's name, none means all."""
    return fault is not None and fault.detail in (None, pod.name, pod.id)


async def get_pod(asked: ApiRequest) -> ApiReply:
    """GET /v2/pods/{id}."""
    pod = asked.pod()
    if _lags(pod, "early_404", time.time()):
        raise ApiProblem(404, "pod not found")
    flicker = any(fault.kind == "flicker_runtime" for fault in asked.faults_at(Moment.VIEW))
    return ApiReply(200, serializers.pod_json(pod, flicker=flicker))


async def patch_pod(asked: ApiRequest) -> ApiReply:
    """PATCH /v2/pods/{id}."""
    pod, body = asked.own_pod(), asked.parse(request_schemas.PatchPodBody)
    if body.globalNetworking and not DATA_CENTERS[pod.data_center].global_network:
        raise ApiProblem(400, NO_GLOBAL_NETWORK.format(center=pod.data_center))
    pod.name = body.name or pod.name
    pod.env = dict(body.env) if body.env is not None else pod.env
    changed = {"image", "ports", "globalNetworking"}  # the last takes effect at the next start
    pod.request = pod.request.model_copy(update=body.model_dump(include=changed, exclude_none=True))
    return ApiReply(200, serializers.pod_json(pod))


async def delete_pod(asked: ApiRequest) -> ApiReply:
    """DELETE /v2/pods/{id}."""
    asked.core.end_pod(asked.own_pod())
    return ApiReply(204)


async def act_on_pod(asked: ApiRequest) -> ApiReply:
    """POST /v2/pods/{id}/action."""
    pod, action = asked.own_pod(), asked.parse(request_schemas.ActionBody).action
    if action not in serializers.ACTIONS[pod.status]:
        raise ApiProblem(409, f"action {action!r} is not allowed while the pod is {pod.status}")
    host = asked.core.host
    if action == "terminate":
        asked.core.end_pod(pod)
        return ApiReply(204)
    if action in ("stop", "restart"):
        await host.stop(pod)  # first: of a pod that is called EXITED, nothing runs
        pod.status, pod.ssh_visible = "EXITED", False
        pod.log("container stopped")
    if action in ("start", "restart"):
        host.restart(pod)
    return ApiReply(200, serializers.pod_json(pod))


async def pod_logs(asked: ApiRequest) -> Response:
    """GET /v2/pods/{id}/logs: the system log as server-sent events, resumable by Last-Event-ID."""
    pod, query = asked.pod(), asked.request.query_params
    if query.get("source", "system") not in ("container", "system"):
        raise ApiProblem(400, "source must be container or system")
    after = asked.request.headers.get("last-event-id", "")
    first = int(after) + 1 if after.isdigit() else 0
    if "tail" in query:
        first = max(first, len(pod.system_log) - asked.number("tail", 100, 10_000))
    lines = _events(pod, first) if query.get("source", "system") == "system" else _events(pod, len(pod.system_log))
    return StreamingResponse(lines, 200, {"Cache-Control": "no-store"}, "text/event-stream")


async def _events(pod: PodRecord, first: int) -> AsyncIterator[str]:
    number = first
    while True:
        while number < len(pod.system_log):
            moment, line = pod.system_log[number]
            event = {"timestamp": isoformat(moment), "source": "system", "message": line}
            yield f"id: {number}\nevent: log\ndata: {json.dumps(event)}\n\n"
            number += 1
        if pod.gone or pod.status not in LIVE_STATUSES:
            return
        await asyncio.sleep(LOG_POLL_S)


async def list_volumes(asked: ApiRequest) -> ApiReply:
    """GET /v2/network-volumes."""
    volumes = [serializers.volume_json(volume) for volume in asked.core.world.volumes]
    return ApiReply(200, {"networkVolumes": volumes, "pagination": {"nextCursor": None, "hasNextPage": False}})


async def list_registries(asked: ApiRequest) -> ApiReply:
    """GET /v2/registries: without the credentials themselves, and not in pages."""
    return ApiReply(200, {"registries": [{"id": one.id, "name": one.name} for one in asked.core.world.registries]})


async def create_registry(asked: ApiRequest) -> ApiReply:
    """POST /v2/registries."""
    name = asked.parse(request_schemas.RegistryBody).name
    world = asked.core.world
    made = RegistryCredentials(f"reg{len(world.registries) + 1}emulated", name)
    world.registries.append(made)
    return ApiReply(201, {"id": made.id, "name": made.name})


async def list_templates(asked: ApiRequest) -> ApiReply:
    """GET /v2/templates: this account has none."""
    del asked
    return ApiReply(200, {"templates": [], "pagination": {"nextCursor": None, "hasNextPage": False}})


async def get_ssh_keys(asked: ApiRequest) -> ApiReply:
    """GET /v2/account/ssh-keys."""
    return ApiReply(200, {"keys": asked.core.world.ssh_keys})


async def put_ssh_keys(asked: ApiRequest) -> ApiReply:
    """PUT /v2/account/ssh-keys."""
    asked.core.world.ssh_keys = asked.parse(request_schemas.SshKeysBody).keys
    return ApiReply(200, {"keys": asked.core.world.ssh_keys})


async def graphql(asked: ApiRequest) -> ApiReply:
    """POST /graphql: `myself` only."""
    if "myself" not in asked.parse(request_schemas.GraphqlBody).query:
        return ApiReply(200, {"errors": [{"message": "only myself is answered here"}]})
    core, now = asked.core, time.time()
    burning = sum(pod.usd_per_hour for pod in core.world.pods.values() if pod.assigned_at and not pod.ended_at)
    myself = {
        "id": "user_emulated",
        "pubKey": "\n".join(core.world.ssh_keys),
        "clientBalance": round(core.world.remaining_usd(now), 6),
        "currentSpendPerHr": round(burning, 4),
        "networkVolumes": [serializers.volume_json(volume) for volume in core.world.volumes],
    }
    return ApiReply(200, {"data": {"myself": myself}})


async def retired(asked: ApiRequest) -> ApiReply:
    """Everything under /v1."""
    raise ApiProblem(410, f"REST API v1 has been retired; {asked.request.url.path} is gone, use /v2")


OPERATIONS: tuple[tuple[str, str, str, Operation], ...] = (
    ("GET", "/v2/pods", "list", list_pods),
    ("POST", "/v2/pods", "create", create_pod),
    ("GET", "/v2/pods/{id}", "get", get_pod),
    ("PATCH", "/v2/pods/{id}", "patch", patch_pod),
    ("DELETE", "/v2/pods/{id}", "delete", delete_pod),
    ("POST", "/v2/pods/{id}/action", "action", act_on_pod),
    ("GET", "/v2/pods/{id}/logs", "logs", pod_logs),
    ("GET", "/v2/network-volumes", "volumes", list_volumes),
    ("GET", "/v2/registries", "registries", list_registries),
    ("POST", "/v2/registries", "registries", create_registry),
    ("GET", "/v2/templates", "templates", list_templates),
    *catalog_operations.OPERATIONS,
    ("GET", "/v2/account/ssh-keys", "ssh_keys", get_ssh_keys),
    ("PUT", "/v2/account/ssh-keys", "ssh_keys", put_ssh_keys),
    ("GET", "/v2/billing/pods", "billing", billing),
    ("POST", "/graphql", "graphql", graphql),
)


def routes(core: Core) -> list[Route]:
    """Every route of the public API."""
    made = [
        Route(path, endpoint(core, method, path, name, operation), methods=[method])
        for method, path, name, operation in OPERATIONS
    ]
    every = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    made.append(Route("/v1/{rest:path}", endpoint(core, "ANY", "/v1", "retired", retired), methods=every))
    return made
