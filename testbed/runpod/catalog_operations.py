"""The catalogue's operations of REST v2: GPU types and data centres."""

from typing import Any

from testbed.runpod import serializers
from testbed.runpod.api import ApiRequest, Operation
from testbed.runpod.catalog import CLOUDS, DATA_CENTERS, GPU_TYPES
from testbed.runpod.replies import ApiReply
from testbed.runpod.state import ApiProblem


async def list_gpus(asked: ApiRequest) -> ApiReply:
    """GET /v2/catalog/gpus."""
    return ApiReply(200, {"gpus": [_gpu(asked, gpu_type) for gpu_type in GPU_TYPES]})


async def get_gpu(asked: ApiRequest) -> ApiReply:
    """GET /v2/catalog/gpus/{id}."""
    gpu_type = asked.request.path_params["id"]
    if gpu_type not in GPU_TYPES:
        raise ApiProblem(404, "gpu type not found")
    return ApiReply(200, _gpu(asked, gpu_type))


def _gpu(asked: ApiRequest, gpu_type: str) -> dict[str, Any]:
    query = asked.request.query_params
    availability = query.get("include") == "AVAILABILITY"
    if availability != ("product" in query):
        raise ApiProblem(400, "include=AVAILABILITY and product go together")
    cloud = query.get("cloud", "SECURE")
    if cloud not in CLOUDS:
        raise ApiProblem(422, f"cloud must be one of {', '.join(CLOUDS)}")
    count = asked.number("count", 1, serializers.MAX_GPUS)
    return serializers.gpu_json(asked.core.world, gpu_type, count=count, availability=availability, cloud=cloud)


async def list_data_centers(asked: ApiRequest) -> ApiReply:
    """GET /v2/catalog/datacenters; of its filters, globalNetwork."""
    wanted = asked.flag("globalNetwork")
    centers = [center for center in DATA_CENTERS.values() if wanted in (None, center.global_network)]
    return ApiReply(200, {"dataCenters": [serializers.data_center_json(center) for center in centers]})


async def get_data_center(asked: ApiRequest) -> ApiReply:
    """GET /v2/catalog/datacenters/{id}."""
    center = DATA_CENTERS.get(asked.request.path_params["id"])
    if center is None:
        raise ApiProblem(404, "data center not found")
    return ApiReply(200, serializers.data_center_json(center))


OPERATIONS: tuple[tuple[str, str, str, Operation], ...] = (
    ("GET", "/v2/catalog/gpus", "catalog", list_gpus),
    ("GET", "/v2/catalog/gpus/{id:path}", "catalog", get_gpu),
    ("GET", "/v2/catalog/datacenters", "catalog", list_data_centers),
    ("GET", "/v2/catalog/datacenters/{id}", "catalog", get_data_center),
)
