"""The billing history of REST v2: what each pod has cost, by hour or by day."""

import time
from datetime import datetime
from typing import Any

from testbed.runpod.api import ApiRequest
from testbed.runpod.replies import ApiReply
from testbed.runpod.state import ApiProblem, isoformat

BUCKETS_S = {"hour": 3_600, "day": 86_400}  # longer ones are not emulated
SINCE_S = 30 * 86_400  # when no startTime is given
MAX_BUCKETS = 10_000


async def billing(asked: ApiRequest) -> ApiReply:
    """GET /v2/billing/pods: a record per pod and bucket in which the pod cost anything."""
    query, now = asked.request.query_params, time.time()
    size = query.get("bucketSize", "day")
    if size not in BUCKETS_S:
        raise ApiProblem(400, f"bucketSize must be one of {', '.join(BUCKETS_S)}")
    step_s = BUCKETS_S[size]
    since = _moment(query.get("startTime"), now - SINCE_S, "startTime")
    until = _moment(query.get("endTime"), now, "endTime")
    first, last = since - since % step_s, until + -until % step_s  # snapped outwards, to whole buckets
    if not 0 < last - first <= MAX_BUCKETS * step_s:
        raise ApiProblem(400, f"the period must be of 1 to {MAX_BUCKETS} buckets")
    records: list[dict[str, Any]] = []
    total_usd = 0.0
    for pod in asked.core.world.pods.values():
        if query.get("podId") not in {None, pod.id} or pod.assigned_at is None:
            continue
        start = max(first, pod.assigned_at - pod.assigned_at % step_s)
        while start < min(last, pod.ended_at or now):
            usd = pod.billed_usd(min(start + step_s, now), start)
            span = {"startTime": isoformat(start), "endTime": isoformat(start + step_s)}
            records.append({"podId": pod.id, **span, **_amounts(usd)})
            total_usd += usd
            start += step_s
    asked_for = {"startTime": isoformat(first), "endTime": isoformat(last), "bucketSize": size}
    pods = len({record["podId"] for record in records})
    counts = {"recordCount": len(records), "uniquePodCount": pods}
    metadata = {"query": {**asked_for, "podId": query.get("podId")}, **counts, "totals": _amounts(total_usd)}
    return ApiReply(200, {"records": records, "metadata": metadata})


def _amounts(usd: float) -> dict[str, float]:
    """Dollars as the history splits them; here all of it is the GPU's."""
    return {"totalAmount": round(usd, 6), "gpuAmount": round(usd, 6), "cpuAmount": 0.0, "diskAmount": 0.0}


def _moment(text: str | None, default: float, name: str) -> float:
    try:
        return default if text is None else datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise ApiProblem(400, f"{name} must be an RFC 3339 time") from error
