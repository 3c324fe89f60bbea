"""`migrate`: bring the database to this version's schema, show what is missing, or print it as SQL."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import opened_store, settings_for
from orchestrator.core.plurals import counted
from orchestrator.errors import BAD_ARGUMENT, MIGRATE, OLD_SCHEMA, Failure
from orchestrator.ports import SchemaMismatch

if TYPE_CHECKING:
    from orchestrator.migrate import MigrationReport

FEW = 5  # files that are named without -v
HAS_CHANGES = 2  # exit code of --plan if there is something to apply


@click.command()
@click.option("--requeue-held", is_flag=True, help="Queue again the tasks In Progress that no worker holds.")
@click.option("--plan", "only_plan", is_flag=True, help="Change nothing: show what would be applied; exit 2 if any.")
@click.option("-v", "--verbose", is_flag=True, help="Name every file.")
@click.option("--sql", is_flag=True, help="Change nothing: print the missing SQL as one file.")
@click.option("--remove", "take_away", is_flag=True, help="Drop what migrate added; keep the rows of tasks.")
@click.option("--force", "--yes", "force", is_flag=True, help="With --remove: do not ask.")
@json_option
@click.pass_obj
def migrate(
    output: Output, *, requeue_held: bool, only_plan: bool, sql: bool, verbose: bool, take_away: bool, force: bool
) -> int:
    """Bring the database's schema up to this version. Safe to repeat, and safe while an orchestrator runs.

    Tasks In Progress that no worker holds are listed. --requeue-held queues them again: use it if no program of yours
    works on them.

    --sql prints one file for `supabase db push` or the SQL editor. It has the SQL that the database at DATABASE_URL
    lacks or, without DATABASE_URL, the whole schema.

    --plan shows the steps with their locks and rows, and what changes for others: row level security, grants, and what
    runs in statements on tasks. It also tries the triggers of yours on tasks and workers, in a transaction that is
    rolled back, and names those that would make writes of the orchestrator fail.

    --remove uninstalls: tasks keeps your rows and your columns, and workers does if it was yours. It needs that no
    orchestrator leads and no worker is live.

    Without DATABASE_URL and --sql, the command only checks the schema at SUPABASE_URL: exit 4 if it is missing or
    older.
    """
    if sql:
        click.echo(asyncio.run(_missing_sql()), nl=False)  # unchanged: no markup, no redaction
        return 0
    url = settings_for("database").database_url
    from orchestrator.migrate import migrate as bring_up

    if (requeue_held or only_plan or take_away) and not url:
        option = "--plan" if only_plan else "--remove" if take_away else "--requeue-held"
        raise Failure(BAD_ARGUMENT, why=f"{option} needs a connection to the database", fix="set DATABASE_URL")
    if only_plan:
        assert url is not None  # noqa: S101  checked above
        return _show_migration_plan(output, url.get_secret_value(), verbose=verbose)
    if take_away:
        assert url is not None  # noqa: S101  checked above
        return _remove(output, url.get_secret_value(), force=force)
    report = asyncio.run(
        bring_up(url.get_secret_value(), requeue_held=requeue_held, tell=output.say) if url else _look_at_schema()
    )
    if output.json:
        output.document(applied=report.applied, notes=report.notes, version=report.version)
        return 0
    _show_files(output, "applied", report.applied, verbose=verbose)
    for note in report.notes:
        output.say(note)
    if report.applied:
        output.show(f"Applied {counted(len(report.applied), 'file')}. The schema is now {report.version}.")
    else:
        output.show(f"The schema is up to date ({report.version}).")
    return 0


def _show_migration_plan(output: Output, url: str, *, verbose: bool) -> int:
    """Show what `migrate` would apply to the database."""
    from orchestrator.migrate import planned

    report = asyncio.run(planned(url))
    if output.json:
        output.document(would_apply=report.applied, plan=report.plan, notes=report.notes, version=report.version)
    else:
        _show_files(output, "would apply", report.applied, verbose=verbose)
        for note in (*report.plan, *report.notes):
            output.say(note)
        what = f"would apply {counted(len(report.applied), 'file')}" if report.applied else "would change nothing"
        output.show(f"migrate {what}. The schema is now {report.version or 'none'}.")
    return HAS_CHANGES if report.applied else 0


def _remove(output: Output, url: str, *, force: bool) -> int:
    """Drop what `migrate` added to the database."""
    from orchestrator.migrate import removed

    output.confirm("Drop the orchestrator's tables, columns and functions from this database?", force=force)
    notes = asyncio.run(removed(url))
    if output.json:
        output.document(removed=True, notes=notes, version=None)
        return 0
    for note in notes:
        output.say(note)
    output.show("Removed. The table tasks keeps your rows.")
    return 0


def _show_files(output: Output, did: str, files: Sequence[str], *, verbose: bool) -> None:
    """Name a few files, and count many by their folder, unless each was asked for."""
    if verbose or len(files) <= FEW:
        for name in files:
            output.show(f"{did} {name}")
        return
    tables = [name for name in files if name.isdigit()]
    functions = [name for name in files if name.startswith("functions/")]
    numbers = " to ".join(dict.fromkeys((tables[0], tables[-1]))) if tables else ""
    parts = [f"{counted(len(tables), 'file')} of tables ({numbers})"] if tables else []
    parts += [f"{counted(len(functions), 'file')} of functions"] if functions else []
    parts += [name for name in files if name not in {*tables, *functions}]
    output.show(f"{did} {', '.join(parts)}; -v names each")


async def _missing_sql() -> str:
    """Return the SQL file for the database at DATABASE_URL, or for a new one."""
    from orchestrator.migrate import missing_sql

    url = settings_for().database_url
    return await missing_sql(url.get_secret_value() if url else None, datetime.now(UTC))


async def _look_at_schema() -> "MigrationReport":
    """Check the schema at SUPABASE_URL, whose API cannot create tables.

    Raises Failure if this version cannot use it.
    """
    from orchestrator.migrate import looked_at

    try:
        async with opened_store() as store:
            return looked_at(await store.check_functions())
    except SchemaMismatch as error:
        why = str(error).partition("; fix: ")[0]
        raise Failure(OLD_SCHEMA, why=why, fix=MIGRATE["SUPABASE_URL"]) from None
