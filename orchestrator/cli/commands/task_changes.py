"""`tasks cancel` and `tasks retry`: tasks by id, or all that a filter selects, each in a transaction of its own."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.commands.task_bulk import background_option, in_background
from orchestrator.cli.commands.task_lists import filtered, wanted
from orchestrator.cli.known_names import require_known
from orchestrator.cli.options import force_option
from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.progress import amount
from orchestrator.cli.session import actor, find_task_id, opened_store, runs
from orchestrator.cli.task_rows import counted_by_status
from orchestrator.errors import BAD_ARGUMENT, NO_TASK, SOME_FAILED, WRONG_STATE, Failure
from orchestrator.ports import BadArgument

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore

PAGE = 500  # tasks that are asked for at once
AT_ONCE = 4  # calls; a command has as many connections
NAMED = 20  # tasks whose refusal is printed
MAX_IDS = 1_000
Row = Mapping[str, Any]
SAYS = {
    "cancelled": "cancelled",
    "cancelling": "its worker is told to stop",
    "already": "it had ended already",
    "requeued": "queued again",
    "not_ended": "neither Failed nor Cancelled",
    "not_found": "it does not exist",
}


@dataclass(slots=True)
class _ChangeOutcomes:
    """What became of the tasks of one command."""

    outcomes: Counter[str] = field(default_factory=Counter)
    refused: list[dict[str, str]] = field(default_factory=list)  # {id, why}, at most NAMED
    refusals: int = 0


@dataclass(frozen=True, slots=True)
class _TaskChange:
    """What a command does to each task."""

    verb: str
    call: Callable[[str], Awaitable[Row]]
    statuses: Sequence[str]  # that it changes
    default: Sequence[str]  # that it selects without --status
    ask: bool


@click.command(short_help="Cancel waiting or running tasks.")
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@filtered
@background_option
@force_option
@json_option
@click.pass_obj
@runs
async def cancel(output: Output, tasks: Sequence[str], background: bool, force: bool, **selected: Any) -> int:
    """Cancel each TASK, or every task that the options select: a waiting one at once, a running one by its worker.

    Without --status, the options select Queued and In Progress tasks.
    """
    async with opened_store() as store:
        if background:
            return await in_background(store, output, "cancel", tasks, selected, force=force)
        live = ("Queued", "In Progress")
        return await _changed(
            store,
            output,
            _TaskChange("cancel", partial(store.cancel, actor=actor()), live, live, not force),
            tasks,
            selected,
        )


@click.command(short_help="Queue failed or cancelled tasks again.")
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@filtered
@background_option
@force_option
@json_option
@click.pass_obj
@runs
async def retry(output: Output, tasks: Sequence[str], background: bool, force: bool, **selected: Any) -> int:
    """Queue each TASK again, or every task that the options select. Its attempts count from zero.

    Without --status, the options select Failed tasks. Tasks that failed only because of a retried task are queued again
    with it.
    """
    async with opened_store() as store:
        if background:
            return await in_background(store, output, "retry", tasks, selected, force=force)
        ask = not tasks and not force
        change = _TaskChange("retry", partial(store.retry, actor=actor()), ("Failed", "Cancelled"), ("Failed",), ask)
        return await _changed(store, output, change, tasks, selected)


async def _changed(
    store: "SqlStore", output: Output, change: _TaskChange, tasks: Sequence[str], selected: Mapping[str, Any]
) -> int:
    """Change the named or the selected tasks. Return the exit code. Raises Failure."""
    chosen = wanted(**selected)
    if bool(tasks) == bool(chosen) or len(tasks) > MAX_IDS:
        choices = "--status, --type, --pool, --since, --label or --tenant"
        raise Failure(BAD_ARGUMENT, why=f"name tasks (at most {MAX_IDS:,}), or select them with {choices}")
    if not tasks:
        await require_known(store, pool=selected["pool"], task_type=selected["task_type"])
        return await _by_filter(store, output, change, chosen)
    ids = [await find_task_id(store, name) for name in tasks]
    if change.ask:
        what = f"task {ids[0]}" if len(ids) == 1 else f"{len(ids):,} tasks"
        output.confirm(f"{change.verb.capitalize()} {what}?", force=False)
    return await (_one(output, change, ids[0]) if len(ids) == 1 else _many(output, change, _pages(ids), len(ids)))


async def _by_filter(store: "SqlStore", output: Output, change: _TaskChange, chosen: dict[str, Any]) -> int:
    """Count what the filter selects, ask, and change it. Tasks that are submitted meanwhile are left alone."""
    if odd := set(chosen.get("status", ())) - set(change.statuses):
        why = f"--status {min(odd)!r}: the choice is {' or '.join(change.statuses)}"
        raise Failure(BAD_ARGUMENT, what=f"{change.verb} does not apply to such tasks", why=why)
    chosen.setdefault("status", list(change.default))
    seen = await store.find.tasks(chosen, 0)
    counts = {status: n for status, n in seen["counts"].items() if status in chosen["status"]}
    beyond = [status for status in chosen["status"] if status in seen["counts_beyond"]]
    total = sum(counts.values())
    if not total and not beyond:
        output.say("No task matches; nothing was done.")
    elif change.ask:
        what = counted_by_status({status: counts.get(status, 0) for status in (*counts, *beyond)}, beyond)
        output.confirm(f"{change.verb.capitalize()} {what} {'task' if total == 1 else 'tasks'}?", force=False)
    pages = _selected(store, chosen | {"until": seen["now"]}) if total or beyond else _pages([])
    return await _many(output, change, pages, None if beyond else total)


async def _pages(ids: Sequence[str]) -> AsyncIterator[Sequence[str]]:
    for start in range(0, len(ids), PAGE):
        yield ids[start : start + PAGE]


async def _selected(store: "SqlStore", chosen: Mapping[str, Any]) -> AsyncIterator[Sequence[str]]:
    """Yield the ids that the filter selects, a page at a time, newest first."""
    before: dict[str, Any] = {"created_at": chosen["until"], "id": "00000000-0000-0000-0000-000000000000"}
    while True:
        found = await store.find.tasks({**chosen, "before": before}, PAGE)
        rows = found["tasks"]
        if rows:
            yield [str(row["id"]) for row in rows]
        if len(rows) < PAGE and not found["next"]:
            return
        before = found["next"] or {"created_at": rows[-1]["created_at"], "id": rows[-1]["id"]}


async def _one(output: Output, change: _TaskChange, task_id: str) -> int:
    """Change one task and say what became of it. Raises Failure if it does not exist or cannot be changed."""
    answer = await change.call(task_id)
    if answer["outcome"] == "not_found":
        raise Failure(NO_TASK, why=f"the database has no task {task_id}")
    if answer["outcome"] == "not_ended":
        fix = f"python -m orchestrator tasks show {task_id}"
        why = "it is neither Failed nor Cancelled"
        raise Failure(WRONG_STATE, what=f"task {task_id} cannot be retried", why=why, fix=fix)
    if output.json:
        output.document(**answer)
        return 0
    status = f" ({answer['status']})" if answer.get("status") else ""
    output.show(f"{task_id}: {SAYS.get(answer['outcome'], answer['outcome'])}{status}")
    return 0


async def _many(output: Output, change: _TaskChange, pages: AsyncIterator[Sequence[str]], total: int | None) -> int:
    """Change many tasks, a few at a time. Raises Failure if the database refused some of them.

    `total` is None if there are more than were counted.
    """
    changed, slots = _ChangeOutcomes(), asyncio.Semaphore(AT_ONCE)

    async def one(task_id: str) -> None:
        async with slots:
            try:
                changed.outcomes[(await change.call(task_id))["outcome"]] += 1
            except BadArgument as error:  # such as a trigger of a user, or a dedupe key that is taken
                changed.refusals += 1
                if len(changed.refused) < NAMED:
                    changed.refused.append({"id": task_id, "why": one_line(str(error), 300)})

    with amount(output, change.verb, total) as done:
        async for page in pages:
            await asyncio.gather(*map(one, page))
            done(len(page))
    if output.json:
        output.document(outcomes=dict(changed.outcomes), refusals=changed.refusals, refused=changed.refused)
        return SOME_FAILED.exit_code if changed.refusals else 0
    for outcome, n in changed.outcomes.most_common():
        output.show(f"{n:,} {'task' if n == 1 else 'tasks'}: {SAYS.get(outcome, outcome)}")
    if changed.refusals:
        why = "; ".join(f"{one['id']}: {one['why']}" for one in changed.refused[:3])
        raise Failure(SOME_FAILED, what=f"the database refused to change {changed.refusals:,} of them", why=why)
    return 0
