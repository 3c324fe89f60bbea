"""`explain`: why a worker, a task or the scaling is where it is, and what an error id or a code means."""

import dataclasses
import re
import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import click

from orchestrator.cli import explain_view as show
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import find_worker, opened_store, runs, settings_for
from orchestrator.diagnostics import causes, scaling, tasks, workers
from orchestrator.errors import KINDS, NO_MEANING, NO_TASK, Failure

ERROR_ID = re.compile(r"E\d{3}")
CODE = re.compile(r"[A-Z][A-Z0-9_]{2,40}")  # worker ids are not written like this


@click.command()
@click.argument("subject")
@json_option
@click.pass_obj
@runs
async def explain(output: Output, subject: str) -> None:
    """Explain SUBJECT: a worker or pod id, a task id, `scaling`, an error id (E012) or a code (NO_CAPACITY).

    Whom it waits for, since when, until when, what happens then, the proof, the cost so far, what is usual, the fix.
    Exit 3 if there is no such thing.
    """
    if subject == "scaling":
        await _scaling(output)
    elif ERROR_ID.fullmatch(subject):
        _error(output, subject)
    elif _is_task(subject):
        await _task(output, subject)
    elif meanings := causes.lookup(subject):
        _code(output, meanings)
    elif CODE.fullmatch(subject):
        raise Failure(NO_MEANING, why=f"{subject} is none of {', '.join(causes.codes()[:8])}, …")
    else:
        await _worker(output, subject)


async def _worker(output: Output, name: str) -> None:
    policy = settings_for("database").policy()
    async with opened_store() as store:
        found = await store.explain((await find_worker(store, name))["worker"]["id"])
    told = workers.explained(found, policy)
    if output.json:
        output.document(kind="worker", at=found["now"], **dataclasses.asdict(told))
    else:
        output.show(show.worker(told, _now(found)))


async def _task(output: Output, task_id: str) -> None:
    policy = settings_for("database").policy()
    async with opened_store() as store:
        found = await store.explain_task(uuid.UUID(task_id))
    if not found["task"]:
        raise Failure(NO_TASK, why=f"the database has no task {task_id}")
    told = tasks.explained(found, policy)
    if output.json:
        output.document(kind="task", at=found["now"], **dataclasses.asdict(told))
    else:
        output.show(*show.task(told, _now(found), narrow=output.narrow))


async def _scaling(output: Output) -> None:
    settings = settings_for("database")
    async with opened_store() as store:
        found = await store.explain_scaling()
    from orchestrator import wiring

    told = scaling.explained(found, await wiring.pool_decisions(settings), settings.policy())
    if output.json:
        facts = {name: found[name] for name in ("leader", "paused")}
        output.document(kind="scaling", at=found["now"], **facts, pools=[dataclasses.asdict(pool) for pool in told])
    else:
        output.show(*show.scaling(told, found, _now(found)))


def _error(output: Output, error_id: str) -> None:
    kind = KINDS.get(error_id)
    if kind is None:
        raise Failure(NO_MEANING, why=f"{error_id} is none of {', '.join(sorted(KINDS))}")
    if output.json:
        output.document(kind="error", **dataclasses.asdict(kind))
    else:
        output.show(f"{kind.id}: {kind.what} (exit status {kind.exit_code})", f"fix: {kind.fix}")


def _code(output: Output, meanings: Iterable[causes.Cause]) -> None:
    if output.json:
        output.document(kind="code", meanings=[dataclasses.asdict(cause) for cause in meanings])
        return
    for cause in meanings:
        output.show(f"{cause.code}: {cause.means}", f"must act: {cause.who}   then: {cause.then}", f"fix: {cause.fix}")


def _is_task(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _now(found: Any) -> datetime:
    return datetime.fromisoformat(found["now"])
