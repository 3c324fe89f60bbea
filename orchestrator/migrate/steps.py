"""The changes that a database lacks, as steps of SQL: executed one after the other, or printed as one file.

Order: table files marked pre-deploy; the current texts (functions, views, triggers, grants) in one transaction; the
adoption of the tasks that were there before; table files marked post-deploy. Every step writes its own rows of the
ledger.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import sql

from orchestrator import __version__ as release
from orchestrator.migrate.files import SqlFile, SqlFiles
from orchestrator.migrate.ledger import LEDGER, Ledger

RELOAD = "notify pgrst, 'reload schema'"  # so that a PostgREST in front of the database learns of the new functions
RECORD = """insert into public.schema_migrations (version, name, checksum, release, functions)
values ({version}, {name}, {checksum}, {release}, null) on conflict (version) do nothing"""
# Of the functions with these names, only those that this transaction has written: not an unchanged overload.
RECORD_CURRENT = """insert into public.schema_migrations (version, name, checksum, release, functions)
select {version}, {name}, {checksum}, {release}, array(
           select p.oid::regprocedure::text from pg_catalog.pg_proc p
            where p.pronamespace in ('public'::regnamespace, 'orchestrator'::regnamespace)
              and p.proname = any ({functions}) and p.xmin = pg_current_xact_id()::xid order by 1)
    on conflict (version) do update
       set checksum = excluded.checksum, release = excluded.release, functions = excluded.functions,
           applied_at = now()"""
# The rows of versions before the first release: what they made is in these files now.
CONTAIN = """delete from public.schema_migrations where version ~ '^\\d{{4}}$' and version > '0001';
update public.schema_migrations set checksum = {checksum}, release = {release} where version = '0001'"""
# What the user's tables are like before the first change, for `migrate --remove`.
RECORDED_WITH = "0001"
FIND = """select set_config('orchestrator.found', coalesce((
    select jsonb_object_agg(c.relname, jsonb_build_object(
               'row_security', c.relrowsecurity,
               'columns', (select jsonb_object_agg(a.attname, jsonb_build_object(
                                      'not_null', a.attnotnull, 'default', pg_get_expr(d.adbin, d.adrelid),
                                      'comment', col_description(c.oid, a.attnum)))
                             from pg_catalog.pg_attribute a
                             left join pg_catalog.pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
                            where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
               'checks', coalesce((select jsonb_object_agg(o.conname, pg_get_constraintdef(o.oid))
                                     from pg_catalog.pg_constraint o
                                    where o.conrelid = c.oid and o.contype = 'c'), '{}')))
      from pg_catalog.pg_class c
     where c.oid in (to_regclass('public.tasks'), to_regclass('public.workers')))::text, '{}'), true)"""
RECORD_FOUND = """update public.schema_migrations set found = current_setting('orchestrator.found')::jsonb
 where version = '0001'"""
ADOPTION = "the tasks"
BATCH = 10_000  # tasks that are adopted in one transaction
ADOPT = f"select * from orchestrator.adopt({BATCH})"  # noqa: S608
ENTER = f"select * from orchestrator.enter_missing({{first}}, {BATCH})"  # noqa: S608
ADOPT_ALL = f"""do $$
declare
    v_batch record;
begin
    loop
        v_batch := orchestrator.adopt({BATCH});
        exit when v_batch.blocks >= v_batch.all_blocks;
    end loop;
end
$$"""
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
    adopts: bool = False  # its statement is repeated until every task is adopted


def steps(files: SqlFiles, ledger: Ledger) -> list[Step]:
    """Return the steps that the database lacks, in order; none if it is up to date."""
    missing = ledger.missing(files)
    made = [_table_step(file) for file in missing if not file.post_deploy]
    made += _current_steps(files, ledger)
    if not ledger.is_adopted:
        made.append(Step((), (Statement(ADOPTION, ADOPT),), adopts=True))
    made += [_table_step(file) for file in missing if file.post_deploy]
    if not made:
        return []
    return [Step((), (Statement("schema_migrations", LEDGER), *_containing(files, ledger))), *made]


def _containing(files: SqlFiles, ledger: Ledger) -> Iterable[Statement]:
    """Return what makes the ledger of a database from before the first release that of these files."""
    if ledger.contained:
        yield Statement("schema_migrations", _filled(CONTAIN, checksum=files.tables[0].checksum, release=release))
        yield from (_record(file) for file in files.tables[1:] if file.version <= ledger.contained)


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
    return [ADOPT_ALL] if step.adopts else [_in_one_transaction(one) for one in step.statements]


def _table_step(file: SqlFile) -> Step:
    made = (*(Statement(file.path, text) for text in file.statements()), _record(file))
    if file.version == RECORDED_WITH:
        made = (Statement(file.path, FIND), *made, Statement(file.path, RECORD_FOUND))
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
