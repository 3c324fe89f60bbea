"""What people may do from a page. Each action has a page of its own that names its effect and its cost, and asks.

The same functions as the command line and the API do it, and write the audit log.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from orchestrator.core.api_tokens import TokenHolder, TokenScope
from orchestrator.core.model import ID_PATTERN
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import usd
from orchestrator.errors import NO_TASK, NO_WORKER, WRONG_STATE
from orchestrator.web.api.operations import Api
from orchestrator.web.api.problems import Problem
from orchestrator.web.dashboard import message_actions, pool_actions, stop_action
from orchestrator.web.dashboard.action_effects import ActionDone, ActionEffect, Fields, reason_of

OPERATE = frozenset({TokenScope.OPERATE})
CHANGE_TASKS = frozenset({TokenScope.SUBMIT, TokenScope.OPERATE})
SAYS = {  # by the outcome of a change of a task
    "cancelled": "It is cancelled.",
    "cancelling": "Its worker is told to stop.",
    "already": "It had ended already.",
    "requeued": "It is queued again.",
}


@dataclass(frozen=True, slots=True)
class PageAction:
    """One row of the table ACTIONS."""

    name: str
    label: str  # of the button that does it
    fields: tuple[str, ...]
    scopes: frozenset[TokenScope]
    effect: Callable[[Api, TokenHolder, Fields], Awaitable[ActionEffect]]
    act: Callable[[Api, TokenHolder, Fields], Awaitable[str | ActionDone]]  # a sentence says what was done
    asks: tuple[str, ...] = ()  # fields that its page asks for
    is_dangerous: bool = False
    is_once: bool = False  # its form has a key, by which a repetition is known
    has_parts: bool = False  # it is several changes, of which some may be done; a second time does the others


async def _terminate_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    row = await _worker(api, holder, fields)
    running, at_once = row.get("tasks_running") or 0, fields.get("at_once") == "yes"
    effects = (
        f"{row['id']} is {row['status']} and costs {usd(row['price_usd_per_hour'])}/h until its pod is deleted.",
        f"{counted(running, 'running task')} {'will be queued again' if at_once else 'will be finished first'}.",
        "Its logs are shipped before the pod is deleted.",
        "The queue may start another worker in its place.",
    )
    command = f"orchestrator terminate {row['id']}" + (" --now" if at_once else "")
    verb = "End" if at_once else "Drain"
    return ActionEffect(f"{verb} {row['id']}?", effects, command, f"/workers/{row['id']}")


async def _terminate(api: Api, holder: TokenHolder, fields: Fields) -> str:
    row, at_once = await _worker(api, holder, fields), fields.get("at_once") == "yes"
    reason = reason_of(fields, "asked for on the dashboard")
    outcome = (await api.rows.terminate(holder.name, row["id"], reason, at_once=at_once))["outcome"]
    return f"The end of {row['id']} is asked for." if outcome == "requested" else f"{row['id']} was to end already."


async def _task_effect(api: Api, holder: TokenHolder, fields: Fields, verb: str) -> ActionEffect:
    task = await _task(api, holder, fields)
    effects = [f"It is {task['status']} after {counted(task['attempts'], 'attempt')}."]
    if verb == "retry":
        effects += ["It is queued again, and a worker that takes it costs its time."]
    else:
        effects += ["Its worker is told to stop it."] if task["status"] == "In Progress" else []
        effects += ["Tasks that need it end too."]
    question, command = f"{verb.capitalize()} this {task['task_type']} task?", f"orchestrator tasks {verb} {task['id']}"
    return ActionEffect(question, tuple(effects), command, f"/tasks/{task['id']}")


async def _change_task(api: Api, holder: TokenHolder, fields: Fields, verb: str) -> str:
    task = await _task(api, holder, fields)
    answer = await api.rows.act(holder, task["id"], verb, None)
    if answer["outcome"] == "not_ended":
        raise Problem(409, WRONG_STATE, f"it is {answer['status']}: only a Failed or Cancelled task can be retried")
    return SAYS.get(answer["outcome"], f"{answer['outcome']}.")


async def _cancel_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    return await _task_effect(api, holder, fields, "cancel")


async def _retry_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    return await _task_effect(api, holder, fields, "retry")


async def _cancel(api: Api, holder: TokenHolder, fields: Fields) -> str:
    return await _change_task(api, holder, fields, "cancel")


async def _retry(api: Api, holder: TokenHolder, fields: Fields) -> str:
    return await _change_task(api, holder, fields, "retry")


async def _worker(api: Api, holder: TokenHolder, fields: Fields) -> Mapping[str, Any]:
    name = fields.get("worker", "")
    row = await api.rows.worker(name) if ID_PATTERN.fullmatch(name) else None
    if row is None or not holder.sees(row["pool"]):
        raise Problem(404, NO_WORKER, "there is no worker with this id, or not for this token")
    return row


async def _task(api: Api, holder: TokenHolder, fields: Fields) -> Mapping[str, Any]:
    try:
        name = str(UUID(fields.get("task", "")))
    except ValueError:
        raise Problem(404, NO_TASK, "this is no id of a task") from None
    task: Mapping[str, Any] | None = (await api.rows.task(holder, name))["task"]
    if task is None:
        raise Problem(404, NO_TASK, "there is no task with this id, or not for this token")
    return task


ACTIONS: Mapping[str, PageAction] = {
    one.name: one
    for one in (
        PageAction("pause", "Pause", ("pool",), OPERATE, pool_actions.pause_effect, pool_actions.pause,
                   asks=("reason", "minutes")),
        PageAction("stop", "Stop everything", (), OPERATE, stop_action.stop_effect, stop_action.stop,
                   asks=("reason",), is_dangerous=True, has_parts=True),
        PageAction("resume", "Resume", ("pool",), OPERATE, pool_actions.resume_effect, pool_actions.resume),
        PageAction("limit", "Limit", ("pool",), OPERATE, pool_actions.limit_effect, pool_actions.limit,
                   asks=("reason", "max", "minutes")),
        PageAction("unlimit", "End the limit", ("pool",), OPERATE, pool_actions.unlimit_effect, pool_actions.unlimit),
        PageAction("spawn", "Start a worker", ("pool",), OPERATE, pool_actions.spawn_effect, pool_actions.spawn,
                   is_once=True),
        PageAction("drain", "Drain", ("worker",), OPERATE, _terminate_effect, _terminate, asks=("reason",)),
        PageAction("terminate", "End now", ("worker", "at_once"), OPERATE, _terminate_effect, _terminate,
                   asks=("reason",), is_dangerous=True),
        PageAction("resend", "Send again", ("message",), OPERATE, message_actions.resend_effect,
                   message_actions.resend),
        PageAction("cancel", "Cancel the task", ("task",), CHANGE_TASKS, _cancel_effect, _cancel, is_dangerous=True),
        PageAction("retry", "Retry the task", ("task",), CHANGE_TASKS, _retry_effect, _retry),
    )
}  # fmt: skip
