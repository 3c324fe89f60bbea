"""Actions on all tasks that fit a filter. Their pages count the tasks and their cost first."""

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

from orchestrator.core.api_tokens import TokenHolder
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.task_changes import cost_text, count_text, filter_text, groups_text
from orchestrator.errors import KEY_REUSED
from orchestrator.web.api.operations import Api
from orchestrator.web.api.problems import Problem
from orchestrator.web.api.task_changes import absent, change_id_of
from orchestrator.web.dashboard.action_effects import KEY, ActionDone, ActionEffect, Fields
from orchestrator.web.dashboard.actions import CHANGE_TASKS, PageAction
from orchestrator.web.dashboard.task_filters import FILTERS, given_in, options_of, query_of

LATER = "Tasks that are submitted after you confirm are left alone."
PACE = "The leader changes them in the background, the newest first. Its page shows how far it is, and stops it."
Row = Mapping[str, Any]


async def _effect(action: str, api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    given = given_in(fields)
    seen = await api.rows.task_changes.preview(holder, action, query_of(given).wanted())
    effects = [f"It is about tasks that are {filter_text(seen['filter'])}."]
    if not seen["is_all"]:
        effects.append(f"Only the newest {seen['looked']:,} that may fit were looked at: older ones are changed too.")
    if seen["by"]:
        effects.append(f"{groups_text(seen)}.")
    effects += [cost_text(action, seen), LATER, PACE]
    command = f"orchestrator tasks {action} {options_of(given)} --background"
    question = f"{action.capitalize()} {count_text(seen)}?"
    return ActionEffect(question, tuple(effects), command, f"/tasks?{urlencode(given)}")


async def _start(action: str, api: Api, holder: TokenHolder, fields: Fields) -> ActionDone:
    wanted = query_of(given_in(fields)).wanted()
    started = await api.rows.task_changes.start(holder, action, wanted, key=fields[KEY] or None)
    if started["outcome"] == "key_reused":
        raise Problem(422, KEY_REUSED, "this form has started another change", fix="load its page again")
    return ActionDone("It is asked for.", f"/tasks/changes/{started['id']}")


async def _stop_effect(api: Api, holder: TokenHolder, fields: Fields) -> ActionEffect:
    row = await _change(api, holder, fields)
    done = {"cancel": "cancelled", "retry": "queued again"}[row["action"]]
    effects = (
        f"{counted(row['changed'], 'task')} {'is' if row['changed'] == 1 else 'are'} {done} by now, and stay so.",
        "The others are left as they are.",
    )
    command = f"orchestrator tasks changes {row['id']} --stop"
    return ActionEffect(f"Stop change {row['id']}?", effects, command, f"/tasks/changes/{row['id']}")


async def _stop(api: Api, holder: TokenHolder, fields: Fields) -> str:
    row = await _change(api, holder, fields)
    outcome = (await api.rows.task_changes.stop(holder, row["id"]))["outcome"]
    return "It is stopped." if outcome == "stopped" else "It had ended already."


async def _change(api: Api, holder: TokenHolder, fields: Fields) -> Row:
    row = await api.rows.task_changes.one(holder, change_id_of(fields.get("change", "")))
    if row is None:
        raise absent()
    return row


BULK_ACTIONS: Mapping[str, PageAction] = {
    one.name: one
    for one in (
        PageAction("cancel-tasks", "Cancel the tasks", FILTERS, CHANGE_TASKS, partial(_effect, "cancel"),
                   partial(_start, "cancel"), is_dangerous=True, is_once=True),
        PageAction("retry-tasks", "Retry the tasks", FILTERS, CHANGE_TASKS, partial(_effect, "retry"),
                   partial(_start, "retry"), is_once=True),
        PageAction("stop-change", "Stop", ("change",), CHANGE_TASKS, _stop_effect, _stop, is_dangerous=True),
    )
}  # fmt: skip
