"""The table of operations: the routes and the OpenAPI document are made from it."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from orchestrator.core.api_tokens import TokenScope
from orchestrator.errors import BAD_REQUEST, NO_ROUTE
from orchestrator.ports import PortError
from orchestrator.web.api import (
    change_models,
    cluster_models,
    clusters,
    explanations,
    fleet_models,
    logs,
    models,
    outputs,
    task_changes,
    task_events,
    tasks,
)
from orchestrator.web.api.fleet_operations import FLEET_OPERATIONS, JSON, OPERATE, READ, STREAM
from orchestrator.web.api.openapi import document
from orchestrator.web.api.operations import Api, Operation, endpoint, too_many_refusals
from orchestrator.web.api.problems import Problem, of_port_error
from orchestrator.web.errors import NO_STORE

BASE = "/api/v1"
SUBMIT = frozenset({TokenScope.SUBMIT})
CHANGE_TASKS = frozenset({TokenScope.SUBMIT, TokenScope.OPERATE})
INSTANCES = "/projects/{project}/app-instances"
INSTANCE = INSTANCES + "/{app_instance_id}"

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "POST", "/tasks", "submitTask", "Submit a task", SUBMIT, tasks.submit, models.SubmittedTask,
        body=models.TaskInput, status=201, is_tenants=True, is_idempotent_by_key=True, takes_trace=True,
        also={200: "It was there already: by its dedupe_key, or by the Idempotency-Key"}, problems=(403, 422),
    ),
    Operation(
        "POST", "/tasks/batch", "submitTasks", "Submit several tasks, all or none", SUBMIT, tasks.submit_many,
        models.SubmittedTasks, body=models.TasksInput, status=201, is_tenants=True, is_idempotent_by_key=True,
        takes_trace=True, also={200: "All were there already"}, problems=(403, 422),
    ),
    Operation(
        "GET", "/tasks", "listTasks", "List tasks, newest first", READ, tasks.page, models.TaskPage,
        query=models.TaskQuery, is_tenants=True,
    ),
    Operation(
        "GET", "/tasks/{task_id}", "getTask", "Read a task", READ, tasks.read, models.TaskShown, is_tenants=True,
        has_version=True, problems=(404,),
    ),
    Operation(
        "POST", "/tasks/{task_id}/cancel", "cancelTask", "Cancel a waiting or running task", CHANGE_TASKS, tasks.cancel,
        models.Acted, is_tenants=True, has_version=True, takes_version=True, problems=(404, 412),
    ),
    Operation(
        "POST", "/tasks/{task_id}/retry", "retryTask", "Queue a failed or cancelled task again", CHANGE_TASKS,
        tasks.retry, models.Acted, is_tenants=True, has_version=True, takes_version=True, problems=(404, 409, 412, 422),
    ),
    Operation(
        "GET", "/tasks/{task_id}/wait", "waitForTask", "Wait until a task has ended, for 25 s at most", READ,
        tasks.wait, models.Waited, query=models.WaitQuery, is_tenants=True, has_version=True, problems=(404,),
    ),
    Operation(
        "GET", "/tasks/{task_id}/events", "followTask", "Follow the state and the progress of a task", READ,
        task_events.follow, is_tenants=True, media_types=STREAM, problems=(404,),
    ),
    Operation(
        "GET", "/tasks/{task_id}/output", "getOutput", "Get the output of a task", READ, outputs.output,
        models.OutputShown, is_tenants=True, also={302: "The output, by a URL that is valid for five minutes"},
        problems=(404,),
    ),
    Operation(
        "GET", "/tasks/{task_id}/logs", "getLogs", "Read or follow the log of an attempt", READ, logs.read,
        models.LogShown, query=models.LogQuery, is_tenants=True, media_types=(*JSON, *STREAM), problems=(404, 422),
    ),
    Operation(
        "GET", "/tasks/{task_id}/explanation", "explainTask", "Explain where a task is, and why", READ,
        explanations.task, fleet_models.ExplanationShown, problems=(404,),
    ),
    Operation(
        "POST", "/task-changes/preview", "previewTaskChange", "Count what an action on a filter would change",
        CHANGE_TASKS, task_changes.preview, change_models.TaskChangePreview, body=change_models.TaskChangeInput,
        is_tenants=True,
    ),
    Operation(
        "POST", "/task-changes", "startTaskChange", "Cancel or retry all tasks that fit a filter, in the background",
        CHANGE_TASKS, task_changes.start, change_models.TaskChangeStarted, body=change_models.TaskChangeInput,
        status=202, is_tenants=True, is_idempotent_by_key=True, also={200: "It was there already, by the key"},
    ),
    Operation(
        "GET", "/task-changes", "listTaskChanges", "List actions on filters, newest first", READ, task_changes.page,
        change_models.TaskChangesShown, query=change_models.TaskChangesQuery, is_tenants=True,
    ),
    Operation(
        "GET", "/task-changes/{change_id}", "getTaskChange", "Read how far an action on a filter is", READ,
        task_changes.read, change_models.TaskChangeShown, is_tenants=True, problems=(404,),
    ),
    Operation(
        "POST", "/task-changes/{change_id}/stop", "stopTaskChange", "Stop an action on a filter", CHANGE_TASKS,
        task_changes.stop, change_models.TaskChangeStopped, is_tenants=True, problems=(404,),
    ),
    *FLEET_OPERATIONS,
    Operation(
        "GET", INSTANCES, "listAppInstances", "List clusters", READ, clusters.instances,
        cluster_models.AppInstancesShown, problems=(404,),
    ),
    Operation(
        "GET", INSTANCE, "getAppInstance", "Read a cluster", READ, clusters.instance, cluster_models.AppInstanceShown,
        problems=(404,),
    ),
    Operation(
        "GET", f"{INSTANCE}/members", "listMembers", "List the members of a cluster", READ, clusters.members,
        cluster_models.MembersShown, problems=(404,),
    ),
    Operation(
        "GET", f"{INSTANCE}/member-operations", "listMemberOperations", "List what is done to the members of a cluster",
        READ, clusters.operations, cluster_models.OperationsShown, problems=(404,),
    ),
    Operation(
        "POST", f"{INSTANCE}/reconcile", "reconcile", "Configure the members of a cluster again", OPERATE,
        clusters.reconcile, cluster_models.OperationsAccepted, body=cluster_models.ReconcileInput, status=202,
        problems=(404, 409, 422),
    ),
    Operation(
        "POST", f"{INSTANCE}/bootstrap-ssh/reconcile", "reconcileBootstrapSsh",
        "Write the SSH key of the orchestrator into the members again", OPERATE, clusters.bootstrap_ssh,
        cluster_models.OperationsAccepted, body=cluster_models.ReconcileInput, status=202, problems=(404, 409, 422),
    ),
)  # fmt: skip

ADDRESSES = (("GET", "/openapi.json"), *((one.method, one.path) for one in OPERATIONS))


def routes(api: Api) -> list[BaseRoute]:
    """The routes of the API, and an answer in its form for every other address below it."""
    made = [Route(f"{BASE}/openapi.json", _document(api), methods=["GET"])]
    made += [Route(BASE + one.path, endpoint(api, one), methods=[one.method]) for one in OPERATIONS]
    for route in made:
        (route.methods or set()).discard("HEAD")  # a stream would be made, and thrown away
    return [*made, Route(BASE + "/{rest:path}", _Elsewhere(api, made))]


def _document(api: Api) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return await _if_on(api) or JSONResponse(await asyncio.to_thread(_made), headers=NO_STORE)

    return answer


@functools.cache
def _made() -> Mapping[str, Any]:
    """Return the document. It takes a twentieth of a second, and few processes are asked for it."""
    return document(OPERATIONS, BASE)


async def _if_on(api: Api) -> Response | None:
    try:
        await api.authentication.require_on()
    except Problem as problem:
        return problem.response()
    except PortError as error:
        return of_port_error(error).response()
    return None


class _Elsewhere:
    """Every other address: one with a slash at its end means the one without it; 405 with its methods, or 404."""

    def __init__(self, api: Api, made: Sequence[Route]) -> None:
        self._api, self._made = api, made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path_params"]["rest"].removesuffix("/")
        without = {**scope, "path": scope["path"].removesuffix("/")}
        for route in self._made if path else ():
            match, found = route.matches(without)
            if match is Match.FULL:
                await route.handle({**without, **found}, receive, send)
                return
        allowed = {method for method, known in ADDRESSES if _matches(known, path)}
        answer = await _if_on(self._api)
        if answer is None and allowed:
            headers = {"Allow": ", ".join(sorted(allowed))}
            answer = Problem(405, BAD_REQUEST, "this address has other methods", headers=headers).response()
        answer = answer or Problem(404, NO_ROUTE, "there is nothing at this address").response()
        answer = too_many_refusals(Request(scope)) or answer
        await answer(scope, receive, send)


def _matches(pattern: str, path: str) -> bool:
    parts, given = pattern.strip("/").split("/"), path.split("/")
    return len(parts) == len(given) and all(
        part == own or (own and part.startswith("{")) for part, own in zip(parts, given, strict=True)
    )
