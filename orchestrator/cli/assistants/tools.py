"""The table of tools: what an assistant can ask for, and what it can do with a confirmation."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, Field, StringConstraints

from orchestrator.cli.assistants.api import END_BYTES, Answered, Caller, LocalApi
from orchestrator.cli.assistants.commands import CommandRunner
from orchestrator.cli.assistants.confirmation import Intent, is_confirmed, unconfirmed
from orchestrator.core.clusters.addresses import CLUSTER_ID
from orchestrator.core.model import EVERY_POOL, ID_PATTERN
from orchestrator.errors import NOT_ALLOWED, Failure
from orchestrator.web.api.models import (
    MAX_INT,
    STATUSES,
    Cursor,
    InputModel,
    Nothing,
    PoolName,
    Reason,
    TaskType,
    Tenant,
)

Json = dict[str, Any]
TaskId = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]
WorkerId = Annotated[str, StringConstraints(pattern=f"^{ID_PATTERN.pattern}$")]
Confirmed = Annotated[
    str | None,
    Field(
        max_length=200,
        description="Leave it out first: the answer says what would happen. Repeat the call with the text that the "
        "answer names once the user has agreed.",
    ),
]


class Subject(InputModel):
    """What to explain."""

    subject: Annotated[str, StringConstraints(min_length=1, max_length=200)] = Field(
        description="`scaling`, the id of a task, worker or pod, an error id (E012), a failure code, or a log phrase"
    )


class WorkersWanted(InputModel):
    """Which workers."""

    ended: bool = Field(False, description="Also those that have ended")
    cursor: Cursor | None = Field(None, description="`next` of a page")
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class TasksWanted(InputModel):
    """Which tasks."""

    status: STATUSES | None = None
    task_type: TaskType | None = None
    tenant: Tenant | None = None
    cursor: Cursor | None = Field(None, description="`next` of a page")
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class OneTask(InputModel):
    """A task."""

    task_id: TaskId


class OneCluster(InputModel):
    """A cluster."""

    cluster: Annotated[str, StringConstraints(pattern=f"^{CLUSTER_ID.pattern}$")]


class LogWanted(OneTask):
    """A part of a task's log."""

    attempt: Annotated[int, Field(ge=1, le=MAX_INT)] | None = Field(None, description="By default the last one")
    offset: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        None, description="Bytes to skip; without it, the end of the log"
    )


class Times(InputModel):
    """Which time."""

    since: AwareDatetime | None = Field(None, description="By default 24 hours ago")
    until: AwareDatetime | None = Field(None, description="By default now")


class TaskAction(OneTask):
    """A task, and the confirmation."""

    confirm: Confirmed = None


class PauseAction(InputModel):
    """Which pool, for how long, and the confirmation."""

    pool: PoolName | None = Field(None, description="By default every pool")
    reason: Reason = "paused by an assistant"
    minutes: Annotated[float, Field(gt=0, le=525_600)] | None = Field(None, description="It then ends by itself")
    confirm: Confirmed = None


class ResumeAction(InputModel):
    """Which pool, and the confirmation."""

    pool: PoolName | None = Field(None, description="By default every pool")
    confirm: Confirmed = None


class WorkerAction(InputModel):
    """Which worker, how it ends, and the confirmation."""

    worker_id: WorkerId
    reason: Reason = "asked for by an assistant"
    at_once: bool = Field(False, description="Do not wait for its tasks: they are queued again")
    confirm: Confirmed = None


@dataclass(frozen=True, slots=True)
class FactSources:
    """Where facts come from."""

    api: LocalApi
    commands: CommandRunner

    async def facts(self, caller: Caller, path: str, **query: Any) -> Json:
        """The answer of a GET. Raises ApiRefused."""
        given = {name: value for name, value in query.items() if value is not None}
        return accepted(await self.api.call(caller, "GET", path, params=given))


class ApiRefused(Exception):
    """The API refuses: a problem."""

    def __init__(self, problem: Json) -> None:
        super().__init__(problem.get("detail", ""))
        self.problem = problem


def accepted(answer: Answered) -> Json:
    """The content. Raises ApiRefused."""
    if answer.refused:
        raise ApiRefused(answer.content)
    return answer.content


@dataclass(frozen=True, slots=True)
class Tool:
    """One row of the table."""

    name: str
    text: str
    arguments: type[BaseModel]
    answer: Callable[[FactSources, Caller, Any], Awaitable[Json]]
    acts: bool = False
    everything: bool = False  # it shows the whole fleet, so a restricted token may not use it


async def _explain(sources: FactSources, _: Caller, given: Subject) -> Json:
    return await sources.commands.json("explain", "--json", "--", given.subject)


async def _health(sources: FactSources, _: Caller, __: Nothing) -> Json:
    return await sources.commands.json("health", "--json")


async def _plan(sources: FactSources, _: Caller, __: Nothing) -> Json:
    return await sources.commands.json("plan", "--json")


async def _workers(sources: FactSources, caller: Caller, given: WorkersWanted) -> Json:
    return await sources.facts(caller, "/workers", **given.model_dump())


async def _tasks(sources: FactSources, caller: Caller, given: TasksWanted) -> Json:
    return await sources.facts(caller, "/tasks", **given.model_dump())


async def _task(sources: FactSources, caller: Caller, given: OneTask) -> Json:
    return await sources.facts(caller, f"/tasks/{given.task_id}")


async def _log(sources: FactSources, caller: Caller, given: LogWanted) -> Json:
    path = f"/tasks/{given.task_id}"
    if given.offset is None:
        return await sources.facts(caller, f"{path}/log-end", attempt=given.attempt)
    query = {"attempt": given.attempt, "offset": given.offset, "limit": END_BYTES}
    return await sources.facts(caller, f"{path}/logs", **query)


async def _costs(sources: FactSources, caller: Caller, given: Times) -> Json:
    return await sources.facts(caller, "/costs", **given.model_dump(mode="json"))


async def _clusters(sources: FactSources, caller: Caller, _: Nothing) -> Json:
    return await sources.facts(caller, sources.api.instances)


async def _cluster(sources: FactSources, caller: Caller, given: OneCluster) -> Json:
    path = f"{sources.api.instances}/{given.cluster}"
    rest = [await sources.facts(caller, f"{path}/{part}") for part in ("members", "member-operations")]
    return {"cluster": await sources.facts(caller, path), **rest[0], **rest[1]}


async def _pools(sources: FactSources, caller: Caller, _: Nothing) -> Json:
    return await sources.facts(caller, "/pools")


def _on_task(action: str) -> Callable[[FactSources, Caller, TaskAction], Awaitable[Json]]:
    async def answer(sources: FactSources, caller: Caller, given: TaskAction) -> Json:
        path, wanted = f"/tasks/{given.task_id}", Intent(caller.token, f"{action} {given.task_id}")
        if not is_confirmed(given.confirm, wanted):
            task = await sources.facts(caller, path)
            facts = {name: task[name] for name in ("id", "task_type", "status", "attempts", "worker_id")}
            return unconfirmed(given.confirm, wanted, {"task": facts})
        return accepted(await sources.api.call(caller, "POST", f"{path}/{action}"))

    return answer


async def _pause(sources: FactSources, caller: Caller, given: PauseAction) -> Json:
    what = f"pause {given.pool or EVERY_POOL}" + (f" for {given.minutes:g} minutes" if given.minutes else "")
    wanted = Intent(caller.token, what, given.reason)
    if not is_confirmed(given.confirm, wanted):
        effect = "no new worker is started; running workers continue"
        return unconfirmed(given.confirm, wanted, {"effect": effect, **await sources.facts(caller, "/pauses")})
    for_s = None if given.minutes is None else timedelta(minutes=given.minutes).total_seconds()
    body = {"pool": given.pool, "reason": given.reason, "for_s": for_s}
    return accepted(await sources.api.call(caller, "POST", "/pauses", json=body))


async def _resume(sources: FactSources, caller: Caller, given: ResumeAction) -> Json:
    wanted = Intent(caller.token, f"resume {given.pool or EVERY_POOL}")
    if not is_confirmed(given.confirm, wanted):
        effect = "workers are started again as the queue needs them, which costs money"
        return unconfirmed(given.confirm, wanted, {"effect": effect, **await sources.facts(caller, "/pauses")})
    query = {"pool": given.pool} if given.pool else {}
    return accepted(await sources.api.call(caller, "DELETE", "/pauses", params=query))


async def _terminate(sources: FactSources, caller: Caller, given: WorkerAction) -> Json:
    path, what = f"/workers/{given.worker_id}", f"terminate {given.worker_id}" + (" at once" if given.at_once else "")
    wanted = Intent(caller.token, what, given.reason)
    if not is_confirmed(given.confirm, wanted):
        ends = "its tasks are queued again, and its pod is deleted" if given.at_once else "it finishes its tasks first"
        worker = await sources.facts(caller, path)
        return unconfirmed(given.confirm, wanted, {"effect": ends, "worker": worker})
    body = {"reason": given.reason, "at_once": given.at_once}
    return accepted(await sources.api.call(caller, "POST", f"{path}/terminate", json=body))


def check_allowed(tool: Tool, who: Json) -> None:
    """Raise Failure if the token may not use the tool."""
    if tool.acts and not who["operates"]:
        raise Failure(NOT_ALLOWED, why=f"{tool.name} needs a token with the scope operate; {who['name']} has none")
    if not who["reads"]:
        raise Failure(NOT_ALLOWED, why=f"the token {who['name']} needs the scope read")
    if tool.everything and not who["everything"]:
        why = f"{tool.name} shows the whole fleet, and the token {who['name']} is restricted to pools or a tenant"
        raise Failure(NOT_ALLOWED, why=why)


TOOLS: tuple[Tool, ...] = (
    Tool("health", "The daily check: whether all is well, what to do, the numbers.", Nothing, _health, everything=True),
    Tool(
        "explain",
        "Why a worker, a task or the scaling is as it is: what it waits for, since when, what happens then, the fix.",
        Subject, _explain, everything=True,
    ),
    Tool("plan", "What the next tick of the control loop would do.", Nothing, _plan, everything=True),
    Tool("list_workers", "The workers, newest first; `next` is the cursor of the next page.", WorkersWanted, _workers),
    Tool("list_tasks", "The tasks, newest first; `next` is the cursor of the next page.", TasksWanted, _tasks),
    Tool("get_task", "One task with its params, result and attempts.", OneTask, _task),
    Tool("task_log", f"The end of a task's log, or {END_BYTES >> 10} KiB of it from an offset on.", LogWanted, _log),
    Tool("costs", "What the fleet cost, by state, task type and worker.", Times, _costs),
    Tool("list_pools", "The pools: the last decision of each, its pause, and the offers.", Nothing, _pools),
    Tool("list_clusters", "The Slurm clusters: state, nodes, and what each waits for.", Nothing, _clusters),
    Tool("get_cluster", "One cluster with its members and what is done to them.", OneCluster, _cluster),
    Tool("cancel_task", "Cancel a waiting or running task.", TaskAction, _on_task("cancel"), acts=True),
    Tool("retry_task", "Queue a failed or cancelled task again.", TaskAction, _on_task("retry"), acts=True),
    Tool("pause_pool", "Stop starting workers.", PauseAction, _pause, acts=True),
    Tool("resume_pool", "Start workers again.", ResumeAction, _resume, acts=True),
    Tool("terminate_worker", "Ask for a worker's end.", WorkerAction, _terminate, acts=True),
)  # fmt: skip
BY_NAME = {tool.name: tool for tool in TOOLS}
