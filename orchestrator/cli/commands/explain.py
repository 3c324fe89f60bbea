"""`explain`: the reason for the state of a worker, a task or the scaling, and the meaning of a code or a phrase."""

import dataclasses
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli import explain_view as show
from orchestrator.cli.fixes import whole
from orchestrator.cli.options import verbose_option
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.program import suggestion
from orchestrator.cli.session import TASK_PREFIX, find_task_id, find_worker, opened_store, runs, settings_for
from orchestrator.core.model import ID_PATTERN
from orchestrator.diagnostics import causes, knowledge, scaling, tasks, workers
from orchestrator.diagnostics.knowledge import Gotcha
from orchestrator.errors import KINDS, NO_MEANING, NO_TASK, NO_WORKER, Failure

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore

ERROR_ID = re.compile(r"E\d{3}")
GOTCHA = re.compile(r"[Uu](\d{1,2})", re.ASCII)
SUBJECTS = ("scaling",)  # words that are neither an id nor a code
CODE = re.compile(r"[A-Z][A-Z0-9_]{2,40}")  # worker ids are not written like this


@click.command()
@click.argument("subject")
@verbose_option
@json_option
@click.pass_obj
@runs
async def explain(output: Output, subject: str, verbose: bool) -> None:
    """Explain SUBJECT: a worker, pod or task id, `scaling`, a code, or a phrase from a log.

    A code is an error id (E012), a failure code (NO_CAPACITY, XID_79) or the number of a known failure of rented GPUs
    (U22). A phrase ("must be less than 2^16") finds such failures.

    It shows what SUBJECT waits for, since when, until when, what happens then, the evidence, the cost so far, the usual
    times, and the fix. Exit 3 if SUBJECT does not exist.
    """
    if subject == "scaling":
        await _scaling(output, verbose=verbose)
    elif number := GOTCHA.fullmatch(subject):
        _known(output, subject, [found] if (found := knowledge.row(int(number[1]))) else [])
    elif ERROR_ID.fullmatch(subject):
        _error(output, subject)
    elif _is_task(subject):
        await _task(output, subject)
    elif meanings := causes.lookup(subject) or causes.xid_in(subject):
        _code(output, meanings)
    elif CODE.fullmatch(subject):
        near = suggestion(subject, causes.codes())
        raise Failure(NO_MEANING, why=f"{subject} is none of {', '.join(causes.codes()[:8])}, ….{near}")
    elif not ID_PATTERN.fullmatch(subject):
        _known(output, subject, knowledge.find(subject))
    else:
        await _worker_or_phrase(output, subject)


async def _worker_or_phrase(output: Output, subject: str) -> None:
    """Explain a worker by a part of its id, else a task by its first digits, else a phrase."""
    try:
        await _worker(output, subject)
    except Failure as failure:
        if failure.kind is not NO_WORKER:
            raise
        if found := knowledge.find(subject):
            _known(output, subject, found)
        elif TASK_PREFIX.fullmatch(subject.replace("-", "").lower()):
            await _task(output, subject)
        elif near := suggestion(subject, SUBJECTS):
            what, why = f"no worker {subject!r}", f"{failure.why}.{near}"
            raise Failure(NO_WORKER, what=what, why=why, fix=failure.fix) from None
        else:
            raise


async def _worker(output: Output, name: str) -> None:
    policy = settings_for("database").policy()
    async with opened_store() as store:
        found = await store.explain((await find_worker(store, name))["worker"]["id"])
    explanation = workers.explained(found, policy)
    if output.json:
        output.document(kind="worker", at=found["now"], **dataclasses.asdict(explanation))
    else:
        output.show(*show.worker(explanation, _now(found), output.out.width))


async def _task(output: Output, task_id: str) -> None:
    policy = settings_for("database").policy()
    async with opened_store() as store:
        found = await store.explain_task(await find_task_id(store, task_id))
        if not found["task"]:
            raise Failure(NO_TASK, why=f"the database has no task {task_id}")
        quoted = await _quoted(store, found)
    explanation = tasks.explained(found, policy)
    if output.json:
        known = [dataclasses.asdict(one) | {"id": one.id, "line": line} for one, line in quoted]
        output.document(kind="task", at=found["now"], **dataclasses.asdict(explanation), known=known)
    else:
        shown = show.task(explanation, _now(found), output.out.width, narrow=output.narrow)
        output.show(*shown, *show.quoted(quoted))


async def _quoted(store: "SqlStore", found: Mapping[str, Any]) -> Sequence[tuple[Gotcha, str]]:
    """Return what the knowledge base says of the last failed attempt: of its message, else of the end of its log."""
    failed = [one for one in found["attempts"] if one["outcome"] in {"failed", "lost"}]
    if not failed or found["task"]["status"] == "Complete":
        return ()
    if quoted := knowledge.in_log(failed[-1]["message"] or ""):
        return quoted
    from orchestrator import wiring
    from orchestrator.cli.log_tail import tail
    from orchestrator.config.validation import lacks

    settings = settings_for("database")
    if lacks(settings, "blobs"):
        return ()
    return knowledge.in_log(await tail(store, wiring.open_blobs(settings), failed[-1]))


async def _scaling(output: Output, *, verbose: bool) -> None:
    settings = settings_for("database")
    async with opened_store() as store:
        found = await store.explain_scaling()
    from orchestrator import wiring

    pools = scaling.explained(found, await wiring.pool_decisions(settings), settings.policy())
    if output.json:
        facts = {name: found[name] for name in ("leader", "paused")}
        output.document(kind="scaling", at=found["now"], **facts, pools=[dataclasses.asdict(pool) for pool in pools])
    else:
        output.show(*show.scaling(pools, found, _now(found), output.out.width, verbose=verbose))


def _error(output: Output, error_id: str) -> None:
    kind = KINDS.get(error_id)
    if kind is None:
        raise Failure(NO_MEANING, why=f"{error_id} is none of {', '.join(sorted(KINDS))}")
    if output.json:
        output.document(kind="error", **dataclasses.asdict(kind))
    else:
        output.show(f"{kind.id}: {kind.what} (exit status {kind.exit_code})", whole(f"fix: {kind.fix}"))


def _known(output: Output, subject: str, found: Sequence[Gotcha]) -> None:
    if not found:
        raise Failure(NO_MEANING, why=f"the knowledge base (U1 to U43) has nothing about {subject[:80]!r}")
    if output.json:
        rows = [dataclasses.asdict(one) | {"id": one.id, "codes": one.codes} for one in found]
        output.document(kind="known", found=rows)
    else:
        output.show(*(line for one in found for line in show.known(one)))


def _code(output: Output, meanings: Iterable[causes.Cause]) -> None:
    if output.json:
        output.document(kind="code", meanings=[dataclasses.asdict(cause) for cause in meanings])
        return
    for cause in meanings:
        output.show(f"{cause.code}: {cause.means}", f"must act: {cause.who}   then: {cause.then}")
        output.show(whole(f"fix: {cause.fix}"))


def _is_task(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _now(found: Any) -> datetime:
    return datetime.fromisoformat(found["now"])
