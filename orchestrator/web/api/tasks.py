"""Tasks: submit, list, read, cancel, retry, wait."""

import asyncio
import contextlib
import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from orchestrator.core.api_tokens import TokenScope
from orchestrator.errors import BAD_ARGUMENT, CHANGED, KEY_REUSED, NO_TASK, NOT_ALLOWED, WRONG_STATE
from orchestrator.ports import PortError
from orchestrator.web.api.cursors import cursor_of, place_of
from orchestrator.web.api.models import (
    Acted,
    SubmittedTask,
    SubmittedTasks,
    TaskInput,
    TaskPage,
    TaskQuery,
    TaskShown,
)
from orchestrator.web.api.operations import Api, ApiCall, shown
from orchestrator.web.api.problems import Problem
from orchestrator.web.api.waiting import ENDED, TaskState
from orchestrator.web.errors import NO_STORE

KEY = re.compile(r"[\x21-\x7e]{1,200}")  # of an Idempotency-Key
NOT_VISIBLE = re.compile(r"[^\x21-\x7e]")
MAX_TRACE_CHARS = 200  # of a traceparent, which has 55: what is longer is ignored as well
CREATED, OK = 201, 200  # HTTP statuses
CONTENT = ("params", "result_data")


def task_id_of(call: ApiCall) -> str:
    """The id in the path. Raises Problem: what is no id is not found."""
    try:
        return str(uuid.UUID(call.path["task_id"]))
    except ValueError:
        raise _absent() from None


async def found_task(api: Api, call: ApiCall) -> Mapping[str, Any]:
    """The task in the path, as ApiRows.task has it. Raises Problem."""
    found = await api.rows.task(call.holder, task_id_of(call))
    if found["task"] is None:
        raise _absent()
    return found


def key_of(call: ApiCall) -> str | None:
    """The Idempotency-Key. Raises Problem."""
    key = call.request.headers.get("idempotency-key")
    if key is not None and not KEY.fullmatch(key):
        raise Problem(400, BAD_ARGUMENT, "Idempotency-Key has 1 to 200 visible ASCII characters")
    return key


def state_of(task: Mapping[str, Any]) -> TaskState:
    """A task as those see it who wait for it."""
    names = ("id", "pool", "tenant", "status", "progress", "progress_at", "version")
    return {**{name: task[name] for name in names}, "attempt": task["attempts"]}


async def submit(api: Api, call: ApiCall) -> Response:
    """One task."""
    outcome, (task,) = await _submitted(api, call, [call.body])
    return shown(SubmittedTask(**task), CREATED if task["created"] and outcome == "ok" else OK)


async def submit_many(api: Api, call: ApiCall) -> Response:
    """Several tasks, all or none."""
    outcome, tasks = await _submitted(api, call, call.body.tasks)
    status = CREATED if outcome == "ok" and any(task["created"] for task in tasks) else OK
    return shown(SubmittedTasks(tasks=[SubmittedTask(**task) for task in tasks]), status)


async def page(api: Api, call: ApiCall) -> Response:
    """A page of tasks."""
    query: TaskQuery = call.query
    place = place_of(query.cursor, lambda task_id: str(uuid.UUID(task_id)))
    found = await api.rows.tasks(call.holder, query.wanted(), place, query.limit)
    return shown(TaskPage(tasks=found["tasks"], next=cursor_of(found["next"])))


async def read(api: Api, call: ApiCall) -> Response:
    """One task with its attempts."""
    return _shown(await found_task(api, call))


async def cancel(api: Api, call: ApiCall) -> Response:
    """End a task."""
    return await _act(api, call, "cancel")


async def retry(api: Api, call: ApiCall) -> Response:
    """Queue a failed or cancelled task again."""
    return await _act(api, call, "retry")


async def wait(api: Api, call: ApiCall) -> Response:
    """Answer when the task has ended, or the time is up."""
    with api.watch.place(call.holder.name):
        found = await found_task(api, call)
        now = asyncio.get_running_loop().time
        until, state = now() + call.query.timeout_s, state_of(found["task"])
        while state["status"] not in ENDED and now() < until and not api.watch.closed:
            state = await _changed_or_gone(api, call, state, until - now())
        if state["status"] != found["task"]["status"] or now() >= until:
            with contextlib.suppress(PortError):  # the token may have been revoked meanwhile
                await api.authentication.holder(call.request)
            found = await found_task(api, call)
        return _shown(found, ended=found["task"]["status"] in ENDED)


async def _changed_or_gone(api: Api, call: ApiCall, state: TaskState, timeout_s: float) -> TaskState:
    """The next state. Raises ClientDisconnect if the caller has gone, and Problem if the task is gone."""
    changing = asyncio.ensure_future(api.watch.changed(state["id"], state, timeout_s))
    gone = asyncio.ensure_future(_disconnected(call.request))
    try:
        await asyncio.wait({changing, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not changing.done():
            raise ClientDisconnect
        changed = changing.result()
    finally:
        changing.cancel()
        gone.cancel()
        await asyncio.gather(changing, gone, return_exceptions=True)
    if changed is None:
        raise _absent()
    return changed


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _submitted(api: Api, call: ApiCall, tasks: list[TaskInput]) -> tuple[str, list[dict[str, Any]]]:
    holder, rows = call.holder, [task.model_dump(mode="json", exclude_none=True) for task in tasks]
    for row in rows:
        if holder.tenant is not None and row.get("tenant", holder.tenant) != holder.tenant:
            raise Problem(403, NOT_ALLOWED, f"the token {holder.name} submits tasks of its own tenant only")
        if row.get("pool") is not None and not holder.sees(row["pool"], holder.tenant):
            raise Problem(403, NOT_ALLOWED, f"the token {holder.name} may not use the pool {row['pool']}")
    key = key_of(call)
    traces = [row.pop("traceparent", None) for row in rows]  # a repetition is the same, although its trace is another
    digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
    header = call.request.headers.get("traceparent")
    for row, trace in zip(rows, traces, strict=True):
        if (trace := header if trace is None else trace) is not None:
            row["traceparent"] = NOT_VISIBLE.sub("?", trace[:MAX_TRACE_CHARS])
    answer = await api.rows.submit(holder, rows, key=key, sha256=digest)
    if answer["outcome"] == "key_reused":
        raise Problem(422, KEY_REUSED, "within 24 hours, one key identifies one submission")
    return answer["outcome"], answer["tasks"]


async def _act(api: Api, call: ApiCall, action: str) -> Response:
    task_id, given = task_id_of(call), call.request.headers.get("if-match", "*").strip()
    version = None if given == "*" else given.removeprefix("W/").strip('"')
    answer = await api.rows.act(call.holder, task_id, action, version)
    if answer["outcome"] == "not_found":
        raise _absent()
    if answer["outcome"] == "changed":
        headers = {"ETag": f'"{answer["version"]}"'}
        raise Problem(412, CHANGED, "the task is not in the state that If-Match names", headers=headers)
    if answer["outcome"] == "not_ended":
        why = f"it is {answer['status']}: only a Failed or Cancelled task can be retried"
        raise Problem(409, WRONG_STATE, why, fix="read the task again")
    acted = {"outcome": answer["outcome"], **{name: answer["task"][name] for name in ("id", "status", "version")}}
    if not call.holder.may({TokenScope.READ}):
        return shown(Acted(**acted, task=None), headers={"ETag": f'"{acted["version"]}"'})
    return _shown(answer, **acted)


def _shown(found: Mapping[str, Any], **around: Any) -> Response:
    """A task; with `around`, as the part `task` of an object. Params and result pass as the database wrote them."""
    task = TaskShown.model_validate({**found["task"], "params": None, "attempt_list": found.get("attempts") or []})
    content = ", ".join(f'"{name}": {found.get(name) or "null"}' for name in CONTENT)
    text = f"{_open(task.model_dump(mode='json', exclude=set(CONTENT)))}, {content}}}"
    body = f'{_open(around)}, "task": {text}}}' if around else text
    return Response(body, headers=NO_STORE | {"ETag": f'"{task.version}"'}, media_type="application/json")


def _open(fields: Mapping[str, Any]) -> str:
    """The JSON of an object without its end."""
    return json.dumps(fields, ensure_ascii=False)[:-1]


def _absent() -> Problem:
    return Problem(404, NO_TASK, "there is no task with this id, or not for this token", fix="GET /api/v1/tasks")
