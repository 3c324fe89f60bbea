"""Why a task or a worker is where it is, and why the pools have their size: the facts of `explain`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from orchestrator.core.actions import PoolDecision
from orchestrator.core.api_tokens import TokenHolder
from orchestrator.core.blocked import from_json
from orchestrator.diagnostics import scaling as scaling_facts
from orchestrator.diagnostics import tasks as task_facts
from orchestrator.diagnostics import workers as worker_facts
from orchestrator.web.api.fleet import visible_worker
from orchestrator.web.api.fleet_models import ExplanationShown, PoolExplained, ScalingExplained
from orchestrator.web.api.operations import Api, ApiCall, shown
from orchestrator.web.api.tasks import found_task, task_id_of

COMMON = ("who", "what", "code", "since", "then", "fix")


async def task(api: Api, call: ApiCall) -> Response:
    """What the task waits for, or why it ended."""
    await found_task(api, call)  # for this token
    found = await api.rows.task_explained(task_id_of(call))
    if found["task"] is None:  # deleted in between
        await found_task(api, call)
    if call.holder.pools is not None:
        found = without_others(call.holder, found)
    explanation = dataclasses.asdict(task_facts.explained(found, api.policy))
    return _shown(found["now"], explanation["task_id"], explanation, until=explanation.pop("until"))


async def worker(api: Api, call: ApiCall) -> Response:
    """What the worker waits for, or why it ended."""
    name = (await visible_worker(api, call))["id"]
    found = await api.rows.worker_explained(name)
    explanation = dataclasses.asdict(worker_facts.explained(found, api.policy))
    return _shown(found["now"], explanation["worker_id"], explanation, until=explanation.pop("deadline"))


async def scaling(api: Api, call: ApiCall) -> Response:
    """Each pool's last decision, and since when each reason blocks it."""
    found = await api.rows.scaling()
    made = [
        PoolDecision(pool, row["rule"], row["target"], row["inputs"], tuple(map(from_json, row["blocked"])))
        for pool, row in sorted(found["decisions"].items())
        if row and call.holder.sees(pool)
    ]
    pools = [
        PoolExplained.model_validate(dataclasses.asdict(one) | {"at": found["decisions"][one.pool]["at"]})
        for one in scaling_facts.explained(found, made, api.policy)
    ]
    return shown(ScalingExplained.model_validate({"at": found["now"], "pools": pools}))


def without_others(holder: TokenHolder, found: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts without the names of tasks of pools that the holder does not see."""
    dependencies = [
        one if one["status"] is None or holder.sees(one.get("pool")) else {"id": None, "status": one["status"]}
        for one in found["dependencies"]
    ]
    limit = found.get("limit")
    waiting = [one for one in found["waiting"] if holder.sees(one["pool"])]
    return {**found, "dependencies": dependencies, "waiting": waiting, "limit": limit and {**limit, "next": None}}


def _shown(at: str, subject: str, explanation: Mapping[str, Any], *, until: str | None) -> Response:
    common = {name: explanation[name] for name in COMMON}
    rest = {name: value for name, value in explanation.items() if name not in common}
    return shown(
        ExplanationShown.model_validate({"at": at, "subject": subject, "until": until, "detail": rest} | common)
    )
