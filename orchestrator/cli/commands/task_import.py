"""`tasks import`: many tasks from a file of JSON lines. A bad line stops no other; a repetition submits the rest."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.progress import amount
from orchestrator.cli.session import actor, opened_store, runs
from orchestrator.cli.task_lines import Line, read
from orchestrator.errors import BAD_ARGUMENT, SOME_FAILED, Failure
from orchestrator.ports import BadArgument

if TYPE_CHECKING:
    from orchestrator.adapters.store import SqlStore

BATCH = 500  # tasks of one call
BATCH_BYTES = 4 << 20
NAMED = 20  # bad lines that are printed


@dataclass(slots=True)
class _Imported:
    """What became of the lines so far."""

    created: int = 0
    existing: int = 0
    bad: int = 0
    named: list[dict[str, int | str]] = field(default_factory=list)  # {line, why}, at most NAMED

    def refuse(self, line: Line, why: str) -> None:
        """Note a bad line."""
        self.bad += 1
        if len(self.named) < NAMED:
            self.named.append({"line": line.number, "why": one_line(why, 300)})


@click.command("import", short_help="Submit the tasks of a file, one JSON object per line.")
@click.argument("file")
@click.option("--type", "task_type", help="The type of tasks that name none.")
@click.option("--key", help="What makes the ids of this import; by default the file's name.")
@json_option
@click.pass_obj
@runs
async def import_tasks(output: Output, file: str, task_type: str | None, key: str | None) -> int:
    """Submit the tasks of FILE (- is stdin): one JSON object per line, with the fields of task_submit().

    A bad line is named, and the others are submitted; exit 1 if there is one. The id of a task follows from the key and
    the line, so a repetition after an interruption or a correction submits only what is missing. Lines may have an `id`
    of their own.
    """
    imported = _Imported()
    with _opened(file) as (source, size):
        async with opened_store() as store:
            with amount(output, "import", size, unit="bytes") as done:
                for batch in _batches(read(source, key or Path(file).name, task_type)):
                    await _submit(store, [line for line in batch if line.task is not None], imported)
                    for line in batch:
                        if line.task is None:
                            imported.refuse(line, line.why)
                    done(sum(line.size for line in batch))
    return _report(output, imported)


@contextmanager
def _opened(file: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """Open the file. Yields it and its size in bytes, None for stdin. Raises Failure."""
    if file == "-":
        yield sys.stdin.buffer, None
        return
    try:
        with Path(file).open("rb") as source:
            yield source, Path(file).stat().st_size
    except OSError as error:
        raise Failure(BAD_ARGUMENT, what="the file cannot be read", why=str(error)) from None


def _batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    batch: list[Line] = []
    size = 0
    for line in lines:
        if batch and (len(batch) >= BATCH or size + line.size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += line.size
    if batch:
        yield batch


async def _submit(store: "SqlStore", lines: Sequence[Line], imported: _Imported) -> None:
    """Submit the tasks; halves them until the ones that the database refuses are alone."""
    if not lines:
        return
    try:
        made = await store.submit([line.task for line in lines if line.task is not None], actor=actor())
    except BadArgument as error:
        if len(lines) == 1:
            imported.refuse(lines[0], str(error))
            return
        middle = len(lines) // 2
        await _submit(store, lines[:middle], imported)
        await _submit(store, lines[middle:], imported)
        return
    created = sum(bool(row["created"]) for row in made)
    imported.created += created
    imported.existing += len(made) - created


def _report(output: Output, imported: _Imported) -> int:
    """Print the counts and the bad lines, and return the exit code. Raises Failure if lines are bad."""
    imported.named.sort(key=lambda one: int(one["line"]))
    if output.json:
        counts = {"created": imported.created, "existing": imported.existing, "bad": imported.bad}
        output.document(**counts, bad_lines=imported.named)
        return SOME_FAILED.exit_code if imported.bad else 0
    there = f", {imported.existing:,} were there already" if imported.existing else ""
    output.show(f"{imported.created:,} {'task' if imported.created == 1 else 'tasks'} submitted{there}")
    for one in imported.named:
        output.say(f"line {one['line']}: {one['why']}", "red")
    if imported.bad:
        what = f"{imported.bad:,} {'line is' if imported.bad == 1 else 'lines are'} not imported"
        fix = "correct the lines, and repeat the command: it submits only what is missing"
        raise Failure(
            SOME_FAILED, what=what, why=f"line {imported.named[0]['line']}: {imported.named[0]['why']}", fix=fix
        )
    return 0
