"""The output of a task: a presigned URL for one GET, as a redirect or as JSON."""

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.responses import RedirectResponse, Response

from orchestrator.errors import NO_BUCKET, NO_OUTPUT
from orchestrator.outputs import GRANT_TTL_S, ITS_TASKS, grant, owner_of, recorded_object
from orchestrator.ports import NotFound
from orchestrator.web.api.models import OutputShown
from orchestrator.web.api.operations import Api, ApiCall, shown
from orchestrator.web.api.problems import Problem
from orchestrator.web.api.tasks import found_task
from orchestrator.web.errors import NO_STORE

JSON_TYPE = "application/json"


async def output(api: Api, call: ApiCall) -> Response:
    """Redirect to the output; with `Accept: application/json`, answer where it lies."""
    task = (await found_task(api, call))["task"]
    location = task["output_location"]
    if task["status"] != "Complete" or not location:
        raise Problem(404, NO_OUTPUT, f"the task is {task['status']}, and has no output")
    key, recorded = api.blobs.key_of(location), recorded_object(task)
    if key is None:
        return shown(OutputShown(location=location, url=None, expires_in_s=None))
    await _check(api, call, task, key)
    try:
        granted = await grant(api.blobs, "GET", key, recorded)
    except TimeoutError:
        raise Problem(503, NO_BUCKET, "the bucket did not answer", headers={"Retry-After": "2"}) from None
    except NotFound:
        granted = {"refused": True}
    if "refused" in granted:
        why = "the object in the bucket is another one now" if "replaced" in granted else "it is not an output's object"
        raise Problem(404, NO_OUTPUT, why)
    await asyncio.sleep(0)
    if JSON_TYPE not in call.request.headers.get("accept", ""):
        return RedirectResponse(granted["url"], status_code=302, headers=NO_STORE)
    facts = {"bytes": recorded.get("bytes"), "sha256": recorded.get("sha256")}
    return shown(OutputShown(location=location, url=granted["url"], expires_in_s=GRANT_TTL_S, **facts))


async def _check(api: Api, call: ApiCall, task: Mapping[str, Any], key: str) -> None:
    """Raise Problem unless the object belongs to this task or its dependencies, and the token sees its task."""
    owner, restricted = owner_of(key, task), call.holder.pools is not None or call.holder.tenant is not None
    if owner is None or (restricted and (await api.rows.task(call.holder, owner))["task"] is None):
        raise Problem(404, NO_OUTPUT, f"its location is not in the folder of {ITS_TASKS}, or not for this token")
