"""Actions on all tasks that fit a filter: preview, start, list, read, stop."""

import re

from starlette.responses import Response

from orchestrator.errors import KEY_REUSED, NO_CHANGE
from orchestrator.web.api.change_models import (
    TaskChangeInput,
    TaskChangePreview,
    TaskChangeShown,
    TaskChangesShown,
    TaskChangeStarted,
    TaskChangeStopped,
)
from orchestrator.web.api.operations import Api, ApiCall, shown
from orchestrator.web.api.problems import Problem
from orchestrator.web.api.tasks import key_of

CHANGE_ID = re.compile(r"[1-9][0-9]{0,17}")
OK, ACCEPTED = 200, 202  # HTTP statuses


async def preview(api: Api, call: ApiCall) -> Response:
    """What would be changed."""
    body: TaskChangeInput = call.body
    found = await api.rows.task_changes.preview(call.holder, body.action, body.wanted())
    return shown(TaskChangePreview.model_validate({**found, "at": found["now"]}))


async def start(api: Api, call: ApiCall) -> Response:
    """Start a change."""
    body: TaskChangeInput = call.body
    started = await api.rows.task_changes.start(call.holder, body.action, body.wanted(), key=key_of(call))
    if started["outcome"] == "key_reused":
        raise Problem(422, KEY_REUSED, "one key identifies one change")
    return shown(TaskChangeStarted.model_validate(started), OK if started["outcome"] == "repeated" else ACCEPTED)


async def page(api: Api, call: ApiCall) -> Response:
    """The newest changes."""
    found = await api.rows.task_changes.all(call.holder, call.query.limit)
    return shown(TaskChangesShown(at=found["now"], changes=list(found["changes"])))


async def read(api: Api, call: ApiCall) -> Response:
    """One change."""
    found = await api.rows.task_changes.one(call.holder, change_id_of(call.path["change_id"]))
    if found is None:
        raise absent()
    return shown(TaskChangeShown.model_validate(found))


async def stop(api: Api, call: ApiCall) -> Response:
    """End a change."""
    stopped = await api.rows.task_changes.stop(call.holder, change_id_of(call.path["change_id"]))
    if stopped["outcome"] == "not_found":
        raise absent()
    return shown(TaskChangeStopped.model_validate(stopped))


def change_id_of(text: str) -> int:
    """The id in an address. Raises Problem: what is no id is not found."""
    if not CHANGE_ID.fullmatch(text):
        raise absent()
    return int(text)


def absent() -> Problem:
    """No such change."""
    return Problem(404, NO_CHANGE, "there is no change with this id, or not for this token")
