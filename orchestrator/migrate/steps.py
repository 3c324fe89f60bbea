"""The changes that a database lacks, as steps of SQL: executed one after the other, or printed as one file.

Order: table files marked pre-deploy; the current texts (functions, views, triggers, grants) in one transaction; table
files marked post-deploy. Every step writes its own rows of the ledger.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import sql

from orchestrator import __version__ as release
from orchestrator.migrate import existing_rows
from orchestrator.migrate.files import SqlFile, SqlFiles
from orchestrator.migrate.ledger import BASELINE, LEDGER, Ledger

RELOAD = "notify pgrst, 'reload schema'"  # so that a PostgREST in front of the database learns of the new functions
RECORD = """insert into public.schema_migrations (version, name, checksum, release, functions)
values ({version}, {name}, {checksum}, {release}, null)"""
# Of the functions with these names, only those that this transaction has written: not an unchanged overload.
RECORD_CURRENT = """insert into public.schema_migrations (version, name, checksum, release, functions)
select {version}, {name}, {checksum}, {release}, array(
           select p.oid::regprocedure::text from pg_catalog.pg_proc p
            where p.pronamespace in ('public'::regnamespace, 'orchestrator'::regnamespace)
              and p.proname = any ({functions}) and p.xmin = pg_current_xact_id()::xid order by 1)
    on conflict (version) do update
       set checksum = excluded.checksum, release = excluded.release, functions = excluded.functions,
           applied_at = now()"""
# The internal functions of a development database, as if the file of this version had made them: those that no file
# makes any more are dropped then.
ADOPT_FUNCTIONS = """insert into public.schema_migrations (version, name, checksum, release, functions)
select {version}, {name}, '', {release}, array(
           select p.oid::regprocedure::text from pg_catalog.pg_proc p
            where p.pronamespace = 'public'::regnamespace and p.proname like 'internal\\_%' order by 1)
    on conflict (version) do nothing"""
# Functions that these files made earlier and no longer make: with other arguments, or with another name.
DROP_LEFT = """do $$
declare
    v_function text;
begin
    for v_function in
        select p.oid::regprocedure::text
          from public.schema_migrations m cross join unnest(m.functions) f (signature)
          join pg_catalog.pg_proc p on p.oid = to_regprocedure(f.signature)
         where m.version = any ({versions}) and p.xmin <> pg_current_xact_id()::xid
    loop
        execute 'drop function ' || v_function;
    end loop;
end
$$"""
FORGET = "delete from public.schema_migrations where version = any ({versions})"

GUARD = """do $$
declare
    v_last text;
begin
    if to_regclass('public.schema_migrations') is not null then
        execute 'select max(version) from public.schema_migrations where version ~ ''^\\d{{4}}$''' into v_last;
    end if;
    if v_last is distinct from {last} then
        raise exception 'this file was made for a database with schema %, and this one has %',
            {shown}, coalesce(v_last, 'none')
            using hint = 'Print it again for this database: DATABASE_URL=… python -m orchestrator migrate --sql';
    end if;
end
$$"""
HEAD = """-- GPU orchestrator {release}: what the database lacks of schema {version}.
-- Suggested file name: supabase/migrations/{now:%Y%m%d%H%M%S}_gpu_orchestrator.sql
-- It can be applied with `supabase db push`, in the SQL editor or with psql, all of it or nothing. While it runs,
-- writers of an existing table `tasks` wait; `orchestrator migrate` with DATABASE_URL does not let them wait."""
SETTINGS = (  # whatever the role or the database has as its default
    "set local search_path = ''",
    "set local check_function_bodies = off",
    "set local quote_all_identifiers = off",
    "set local client_min_messages = notice",
)
TRIGGERS = "triggers.sql"
DROPPED_INDEX = re.compile(r"^drop index concurrently if exists public\.(\w+);", re.MULTILINE)
DROPPED_TABLE = re.compile(r"^drop table if exists public\.(\w+);", re.MULTILINE)
DROPPED_CONSTRAINT = re.compile(r"drop constraint if exists (\w+)")
MAKES = re.compile(
    r"^(?:(?:--[^\n]*)?\n)*(?:create (?:unique )?index concurrently if not exists (\w+)"
    r"|alter table public\.\w+ validate constraint (\w+);"
    r"|do \$\$\nbegin\n    lock table public\.(\w+) )"
)
ADDS = re.compile(r",\s*add constraint (\w+) check \([^()]*\) not valid")
COMMIT = re.compile(r"^\s*commit;\n", re.MULTILINE)  # of a batch within a DO block


@dataclass(frozen=True)
class Statement:
    """One or several statements of a file that are sent together."""

    path: str
    text: str


@dataclass(frozen=True)
class Step:
    """Statements that are applied as one transaction, or one by one; repeated as a whole after an interruption."""

    versions: tuple[str, ...]  # the versions that the step applies, for the ledger and the report
    statements: tuple[Statement, ...]
    in_transaction: bool = True


def steps(files: SqlFiles, ledger: Ledger) -> list[Step]:
    """Return the steps that the database lacks, in order; none if it is up to date."""
    missing = ledger.missing(files)
    gone = _gone(files, missing)
    made = [_table_step(file, gone) for file in missing if not file.post_deploy]
    made += _current_steps(files, ledger)
    made += [_table_step(file, gone) for file in missing if file.post_deploy]
    if not made:
        return []
    first = [Statement("schema_migrations", LEDGER)]
    if ledger.is_development:
        first += [_record(file) for file in files.tables if file.version <= BASELINE]
        first.append(_record(files.current[0], ADOPT_FUNCTIONS))
    return [Step((), tuple(first)), *made]


def grants(files: SqlFiles) -> Step:
    """Return the step that grants the current rights again."""
    return Step((), tuple(_current(files.current[-1])))


def script(files: SqlFiles, ledger: Ledger, now: datetime) -> str:
    """Return the steps as one file, for users who apply SQL by other means."""
    there = steps(files, ledger)
    if not there:
        return "-- The schema is up to date.\n"
    head = HEAD.format(release=release, version=files.version, now=now)
    last = ledger.tables[-1] if ledger.tables else None
    guard = _filled(GUARD, last=last, shown=last or "none")
    texts = [text for step in there for text in _of_script(step)]
    everything = ("begin", *SETTINGS, guard, *texts, RELOAD, "commit")
    body = "\n\n".join(text.rstrip().removesuffix(";") + ";" for text in everything)
    return f"{head}\n\n{body}\n"


def _of_script(step: Step) -> list[str]:
    rows = [text for version in step.versions for text in existing_rows.before(version)]
    return [*rows, *(_in_one_transaction(one) for one in step.statements)]


def _gone(files: SqlFiles, missing: Sequence[SqlFile]) -> frozenset[str]:
    """Return what later steps drop: a user's table must not wait for it to be built or filled."""
    dropped = {name for file in missing for each in (DROPPED_INDEX, DROPPED_TABLE) for name in each.findall(file.sql)}
    (triggers,) = (file.sql for file in files.current if file.path == TRIGGERS)
    return frozenset(dropped | set(DROPPED_CONSTRAINT.findall(triggers)))


def _without(gone: frozenset[str], statement: str) -> str:
    """Return a statement without what is gone later; empty if nothing is left."""
    made = MAKES.search(statement)
    if made and not gone.isdisjoint(made.groups()):
        return ""
    return ADDS.sub(lambda clause: "" if clause[1] in gone else clause[0], statement)


def _table_step(file: SqlFile, gone: frozenset[str]) -> Step:
    statements = tuple(
        Statement(file.path, text)
        for one in file.statements()
        if (text := _without(gone, existing_rows.rewritten(file.version, one)))
    )
    made = (*statements, _record(file))
    if file.version == existing_rows.RECORDED_WITH:
        made = (Statement(file.path, existing_rows.FIND), *made, Statement(file.path, existing_rows.RECORD_FOUND))
    return Step((file.version,), made, file.in_transaction)


def _current_steps(files: SqlFiles, ledger: Ledger) -> Iterable[Step]:
    changed, removed = ledger.changed(files), ledger.removed(files)
    if not changed and not removed:
        return
    *others, grants = changed or files.current[-1:]
    touched = [*(file.version for file in others), *removed]
    statements = [statement for file in others for statement in _current(file)]
    statements.append(Statement("functions", _filled(DROP_LEFT, versions=touched)))
    statements += [_record(file, RECORD_CURRENT) for file in others]
    if removed:
        statements.append(Statement("schema_migrations", _filled(FORGET, versions=list(removed))))
    statements += [*_current(grants), _record(grants, RECORD_CURRENT)]  # the grants read which functions are recorded
    yield Step(tuple(file.version for file in (*others, grants)), tuple(statements))


def _current(file: SqlFile) -> Sequence[Statement]:
    """Split a file into statements. Functions lock no table and are sent together.

    Of others, an error must name the one that waits for a lock.
    """
    if file.path.startswith("functions/"):
        return (Statement(file.path, file.sql),)
    return tuple(Statement(file.path, text) for text in file.statements())


def _record(file: SqlFile, form: str = RECORD) -> Statement:
    text = _filled(
        form, version=file.version, name=file.name, checksum=file.checksum, release=release,
        functions=list(file.functions),
    )  # fmt: skip
    return Statement(file.path, text)


def _in_one_transaction(statement: Statement) -> str:
    text = COMMIT.sub("", statement.text)
    return re.sub(r"(?m)^((?:create (?:unique )?|drop )index) concurrently", r"\1", text)


def _filled(form: str, **values: object) -> str:
    literals = {name: sql.Literal(value) for name, value in values.items()}
    return sql.SQL(form).format(**literals).as_string()
