"""What people may do from a page. Each action has a page of its own that names its effect and its cost, and asks.

The same functions as the command line and the API do it, and write the audit log.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from orchestrator.core.api_tokens import TokenHolder, TokenScope
from orchestrator.core.model import EVERY_POOL, ID_PATTERN
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import span, usd
from orchestrator.errors import BAD_ARGUMENT, NO_TASK, NO_WORKER, NOT_ALLOWED, WRONG_STATE
from orchestrator.web.api.operations import Api
from orchestrator.web.api.problems import Problem

OPERATE = frozenset({TokenScope.OPERATE})
CHANGE_TASKS = frozenset({TokenScope.SUBMIT, TokenScope.OPERATE})
MAX_REASON_CHARS = 200
MAX_MINUTES = 525_600  # of a pause
SAYS = {  # by the outcome of a change of a task
    "cancelled": "It is cancelled.",
    "cancelling": "Its worker is told to stop.",
    "already": "It had ended already.",
    "requeued": "It is queued again.",
}
Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ActionEffect:
    """What an action would do, before anybody agrees."""

    question: str
    effects: tuple[str, ...]  # sentences, the cost among them
    command: str  # the same in a terminal
    back: str  # the page to which it belongs


@dataclass(frozen=True, slots=True)
class ActionDone:
    """What was done, in a sentence, and the page that shows it."""

    said: str
    to: str


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


async def _pause_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    pool = _pool(holder, fields)
    seen = await api.rows.observe()
    live = [one for one in seen["workers"] if pool in (None, one["pool"])]
    ready = sum(one["claimable"] for one in seen["demand"] if pool in (None, one["pool"]))
    effects = (
        f"No new worker starts{_in(pool)} until somebody resumes it, or the time is over.",
        f"Workers that are there ({len(live)}) go on with their tasks, and end when they are idle.",
        f"{counted(ready, 'ready task')} {'waits' if ready == 1 else 'wait'} for the workers that are there.",
        f"The fleet costs {usd(_per_hour(seen))}/h now; a pause makes it cheaper only as workers end.",
    )
    command = "orchestrator pause" + (f" --pool {pool}" if pool else "") + " --reason '…'"
    return ActionEffect(f"Pause {pool or 'every pool'}?", effects, command, "/pools")


async def _pause(api: Api, holder: TokenHolder, fields: Fields) -> str:
    pool, minutes = _pool(holder, fields), fields.get("minutes", "").strip()
    for_s = None
    if minutes:
        if not minutes.isdecimal() or not 0 < int(minutes[:9]) <= MAX_MINUTES:
            raise Problem(422, BAD_ARGUMENT, f"the minutes are a whole number from 1 to {MAX_MINUTES}")
        for_s = int(minutes) * 60.0
    reason = fields.get("reason", "").strip()[:MAX_REASON_CHARS] or "paused on the dashboard"
    await api.rows.pause(holder.name, reason, pool=pool, for_s=for_s)
    return f"{pool or 'Every pool'} is paused" + (f" for {span(for_s)}." if for_s else ".")


async def _resume_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    pool = _pool(holder, fields)
    seen = await api.rows.observe()
    held = sum(one["blocked"]["paused"] for one in seen["demand"] if pool in (None, one["pool"]))
    effects = (f"{counted(held, 'task')} of paused pools may start workers again, as far as limits and budgets allow.",)
    command = "orchestrator resume" + (f" --pool {pool}" if pool else "")
    return ActionEffect(f"Resume {pool or 'every pool'}?", effects, command, "/pools")


async def _resume(api: Api, holder: TokenHolder, fields: Fields) -> str:
    pool = _pool(holder, fields)
    await api.rows.pause(holder.name, None, pool=pool)
    return f"{pool or 'Every pool'} is resumed."


async def _spawn_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    pool = _configured(api, holder, fields)
    seen = await api.rows.observe()
    prices = [float(one["price_usd_per_hour"]) for one in seen["workers"]
              if one["pool"] == pool.name and one["price_usd_per_hour"] is not None]  # fmt: skip
    price = (
        f"about {usd(max(prices))}/h, like its other workers" if prices else "the price of the first offer with stock"
    )
    effects = (
        f"The leader starts one worker more in {pool.name} than the queue needs.",
        f"It costs {price}, from the creation of its pod until it has been idle for the pool's timeout.",
        "Budgets and MAX_ACTIVE_GPUS apply to it too.",
    )
    return ActionEffect(
        f"Start a worker in {pool.name}?", effects, f"orchestrator spawn --pool {pool.name}", "/workers"
    )


async def _spawn(api: Api, holder: TokenHolder, fields: Fields) -> str:
    pool, policy = _configured(api, holder, fields), api.policy
    if policy is None:
        raise Problem(409, WRONG_STATE, "this process does not know the pools")
    name = f"gpu-{datetime.now(UTC):%Y%m%d_%H%M%S}-{secrets.token_hex(4)}"
    await api.rows.spawn(holder.name, policy.asked_intent(name, pool))
    return f"{name} is asked for."


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
    reason = fields.get("reason", "").strip()[:MAX_REASON_CHARS] or "asked for on the dashboard"
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


def _pool(holder: TokenHolder, fields: Fields) -> str | None:
    """The pool that is named; None for every pool. Raises Problem."""
    pool = fields.get("pool", "").strip() or EVERY_POOL
    if pool == EVERY_POOL and holder.pools is None:
        return None
    if pool == EVERY_POOL or not holder.sees(pool):
        raise Problem(403, NOT_ALLOWED, f"the token {holder.name} may change its own pools only")
    if not ID_PATTERN.fullmatch(pool):
        raise Problem(422, BAD_ARGUMENT, "this is no name of a pool")
    return pool


def _configured(api: Api, holder: TokenHolder, fields: Fields) -> Any:
    """The pool that is named, as the settings have it. Raises Problem."""
    name = _pool(holder, fields)
    known = {one.name: one for one in (api.policy.pools if api.policy else ())}
    if name not in known:
        raise Problem(404, BAD_ARGUMENT, f"the pools of this process are {', '.join(known)}")
    return known[name]


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


def _in(pool: str | None) -> str:
    return f" in {pool}" if pool else ""


def _per_hour(seen: Mapping[str, Any]) -> float:
    return sum(float(one["price_usd_per_hour"] or 0) for one in seen["workers"])


ACTIONS: Mapping[str, PageAction] = {
    one.name: one
    for one in (
        PageAction("pause", "Pause", ("pool",), OPERATE, _pause_effect, _pause, asks=("reason", "minutes")),
        PageAction("resume", "Resume", ("pool",), OPERATE, _resume_effect, _resume),
        PageAction("spawn", "Start a worker", ("pool",), OPERATE, _spawn_effect, _spawn),
        PageAction("drain", "Drain", ("worker",), OPERATE, _terminate_effect, _terminate, asks=("reason",)),
        PageAction("terminate", "End now", ("worker", "at_once"), OPERATE, _terminate_effect, _terminate,
                   asks=("reason",), is_dangerous=True),
        PageAction("cancel", "Cancel the task", ("task",), CHANGE_TASKS, _cancel_effect, _cancel, is_dangerous=True),
        PageAction("retry", "Retry the task", ("task",), CHANGE_TASKS, _retry_effect, _retry),
    )
}  # fmt: skip
