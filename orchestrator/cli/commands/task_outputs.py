"""`tasks output`: the result of a task and its files, listed, as addresses, or downloaded."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.progress import amount
from orchestrator.cli.session import find_task_id, opened_store, runs, settings_for
from orchestrator.cli.tables import table
from orchestrator.cli.task_files import URL_S, StoredFile, download, files_of, target, url_of
from orchestrator.diagnostics.amounts import octets
from orchestrator.errors import NO_TASK, WRONG_STATE, Failure

if TYPE_CHECKING:
    from orchestrator.adapters.s3 import S3Blobs

RESULT_CHARACTERS = 20_000


@click.command("output", short_help="Show, link or download what a task has stored.")
@click.argument("task")
@click.option("-o", "--output-dir", "directory", metavar="DIR", help="Download every file into this directory.")
@click.option("--url", is_flag=True, help=f"Print an address for each file that is valid for {URL_S // 3600} h.")
@click.option("--force", "--yes", "force", is_flag=True, help="Overwrite files that are there already.")
@json_option
@click.pass_obj
@runs
async def show_outputs(output: Output, task: str, *, directory: str | None, url: bool, force: bool) -> None:
    """Show the result of TASK and its files. Exit 1 if the task is not Complete."""
    async with opened_store() as store:
        row = (await store.task(await find_task_id(store, task)))["task"]
    if row is None:
        raise Failure(NO_TASK, why=f"the database has no task {task}")
    if row["status"] != "Complete":
        fix = f"python -m orchestrator tasks watch {row['id']}"
        raise Failure(WRONG_STATE, what=f"task {row['id']} has no output", why=f"it is {row['status']}", fix=fix)
    blobs = _bucket(required=bool(url or directory))
    files = await files_of(row, blobs)
    urls = [url_of(blobs, one, row) for one in files] if blobs is not None and (url or directory) else []
    if directory:
        await _download(output, files, urls, Path(directory), force=force)
    facts = {"id": row["id"], "result": row.get("result_data"), "outputs": [dataclasses.asdict(one) for one in files]}
    if url:
        output.addresses(urls, **facts)
    elif output.json:
        output.document(**facts)
    elif not directory:
        _show(output, row.get("result_data"), files)


def _bucket(*, required: bool) -> "S3Blobs | None":
    """Open the bucket. Without settings for it: None, or a Failure if it is required."""
    from orchestrator import wiring
    from orchestrator.config.validation import lacks

    settings = settings_for("database")
    if not required and lacks(settings, "blobs"):
        return None
    return wiring.open_blobs(settings_for("database", "blobs"))


async def _download(
    output: Output, files: Sequence[StoredFile], urls: Sequence[str], into: Path, *, force: bool
) -> None:
    paths = [target(into, one.name) for one in files]
    if len(set(paths)) < len(paths):
        paths = [target(into, f"{number}/{one.name}") for number, one in enumerate(files, 1)]
    there = [path for path in paths if path.exists()]
    if there and not force:
        why = f"{there[0]}" + (f" and {len(there) - 1} more" if len(there) > 1 else "")
        raise Failure(WRONG_STATE, what="a file is there already", why=why, fix="repeat it with --force, or another -o")
    sizes = [one.size for one in files]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    with amount(output, "download", total, unit="bytes") as done:
        for one, url, path in zip(files, urls, paths, strict=True):
            await download(url, one, path, done)
            if not output.json:
                output.show(str(path))
    if not files:
        output.say("The task has stored no file.")


def _show(output: Output, result: object, files: Sequence[StoredFile]) -> None:
    if result is not None:
        output.show(Text(one_line(result, RESULT_CHARACTERS)))
    if files:
        shown = table("file", "size", "location")
        for one in files:
            shown.add_row(one_line(one.name), "–" if one.size is None else octets(one.size), one.location)
        output.show(shown)
    if result is None and not files:
        output.say("The task has neither a result nor a file.")
