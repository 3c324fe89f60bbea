"""The rows that a user's `tasks` and `workers` had before: completed a few pages at a time, without their triggers.

A trigger of the user's that fires for an update means a change of a task, and this is none. So each batch disables
these triggers in its own transaction, which keeps writers out for milliseconds: no write of theirs goes without its
triggers. The table files that complete rows too then find none.
"""

import re

FIRST = "0002"
COMPLETED_BEFORE = frozenset({FIRST, "0004"})  # the table files that update existing rows, the first one also workers
PAGES = 64  # of one batch
LAST_PAGE = 4_294_967_294

NOTHING = "null::uuid[]"

# A task In Progress that has not changed for a day has no worker any more: it gets a lease that no rescue ends.
TASKS = """
select c.ctid as place, n.needs, l.lease, c.status::text = 'Queued' and n.needs <> '{}' and (c.blocked or exists (
           select from unnest(n.needs) x (id) left join public.tasks d on d.id = x.id
            where d.status::text is distinct from 'Complete'
              and (d.id is not null or not exists (select from public.task_results r where r.id = x.id)))) as blocked,
       c.attempts is null or c.created_at is null or c.updated_at is null as lacks,
       l.lease is distinct from c.lease_expires_at as leased, n.needs <> c.depends_on as pointed,
       c.blocked as was_blocked
  from public.tasks c
 cross join lateral (select case when c.depends_on = '{}' then coalesce(<needs>, '{}') else c.depends_on end as needs) n
 cross join lateral (
       select case when c.status::text <> 'In Progress' or c.lease_expires_at is not null then c.lease_expires_at
                   when greatest(c.created_at, c.updated_at, c.generation_started_at) < now() - interval '1 day'
                   then '-infinity' else now() + interval '1 hour' end as lease) l
 where c.ctid >= '<first>'::tid and c.ctid < '<end>'::tid
"""
CHANGED = "(b.lacks or b.leased or b.pointed or b.blocked <> b.was_blocked)"
COMPLETE_TASKS = f"""
update public.tasks t
   set attempts = coalesce(t.attempts, 0), created_at = coalesce(t.created_at, now()),
       updated_at = coalesce(t.updated_at, t.created_at, now()),
       lease_expires_at = b.lease, depends_on = b.needs, blocked = b.blocked
  from ({TASKS}) b where t.ctid = b.place and {CHANGED}
"""  # noqa: S608  no text of a user is in it
COUNT_TASKS = f"""
select count(*), count(*) filter (where b.leased and b.lease > now()),
       count(*) filter (where b.leased and b.lease < now())
  from ({TASKS}) b where {CHANGED}
"""  # noqa: S608  no text of a user is in it
SUPERSEDE_WORKERS = """
update public.workers w
   set metadata = coalesce(w.metadata, '{}') || case when w.status = 'terminated' then '{}'
                                                     else jsonb_build_object('legacy_status', w.status) end,
       status = 'terminated', exit_cause = 'superseded', created_at = coalesce(w.created_at, now()),
       terminated_at = now(), state_reason = 'older than this schema'
 where w.ctid >= '<first>'::tid and w.ctid < '<end>'::tid and w.exit_cause is null
"""
COUNT_WORKERS = """
select count(*), count(*) filter (where w.status <> 'terminated' or w.status is null), 0 from public.workers w
 where w.ctid >= '<first>'::tid and w.ctid < '<end>'::tid and w.exit_cause is null
"""
# What a task depends on, by the type of the user's own column.
NEEDS = """
select coalesce((
    select case format_type(a.atttypid, null)
                when 'uuid' then 'case when c.dependant_on is not null then array[c.dependant_on] end'
                when 'uuid[]' then 'c.dependant_on' end
      from pg_catalog.pg_attribute a
     where a.attrelid = to_regclass('public.tasks') and a.attname = 'dependant_on' and not a.attisdropped),
    '<nothing>')
""".replace("<nothing>", NOTHING)
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
# Around a statement, in its transaction: it locks the table, so that no write of a user goes without its triggers. The
# user's checks and generated columns find their tables and functions as in the login's own statements.
DISABLE = r"""do $do$
declare
    v_trigger record;
    v_triggers constant jsonb := (
        select coalesce(jsonb_agg(jsonb_build_object('name', g.tgname, 'always', g.tgenabled = 'A')), '[]')
          from pg_catalog.pg_trigger g join pg_catalog.pg_proc p on p.oid = g.tgfoid
         where g.tgrelid = 'public.<table>'::regclass and not g.tgisinternal and g.tgenabled in ('O', 'A')
           and not (p.pronamespace = 'public'::regnamespace and p.proname like 'internal\_%'));
begin
    for v_trigger in select t.name from jsonb_to_recordset(v_triggers) t (name text) loop
        execute format('alter table public.<table> disable trigger %I', v_trigger.name);
    end loop;
    perform set_config('orchestrator.disabled_triggers', v_triggers::text, true);
    perform set_config('search_path', s.reset_val, true) from pg_catalog.pg_settings s where s.name = 'search_path';
end
$do$;
"""
ENABLE = """;
do $do$
declare
    v_trigger record;
begin
    perform set_config('search_path', '', true);
    for v_trigger in select t.name, t.always
                       from jsonb_to_recordset(current_setting('orchestrator.disabled_triggers')::jsonb)
                            t (name text, always boolean) loop
        execute format('alter table public.<table> enable %s trigger %I',
                       case when v_trigger.always then 'always' else '' end, v_trigger.name);
    end loop;
end
$do$;"""
# Of tasks, an update of a table file: the completion has done the same, and without rows it fires triggers too.
UPDATE = re.compile(r"^ *(?:-- [^\n]*\n *)?update public\.tasks t\b[^;]*;\n", re.MULTILINE)
UPDATES = re.compile(r"^ *update public\.(tasks|workers)\b", re.MULTILINE)


def without_triggers(table: str, statement: str) -> str:
    """Return statements that are sent together: this one, which fires no trigger of the user's on this table."""
    return f"{DISABLE}{statement.rstrip().removesuffix(';')}{ENABLE}".replace("<table>", table)


def rewritten(version: str, statement: str) -> str:
    """Return a statement of a table file without its updates of existing rows, which a completion has made before.

    One that also changes the table keeps what it must do under its own lock. Empty if nothing is left.
    """
    if version not in COMPLETED_BEFORE or not UPDATES.search(statement):
        return statement
    if "alter table" not in statement:
        return ""
    return without_triggers("workers", statement) if "public.workers" in statement else UPDATE.sub("", statement)


def completion(table: str, update: str, first_page: int = 0, end_page: int = LAST_PAGE) -> str:
    """Return the statement that completes the rows of these pages without the user's triggers."""
    run = f"do $do$ begin execute replace($q${update}$q$, '<' || 'needs>', ({NEEDS})); end $do$"
    return _of_pages(without_triggers(table, run), first_page, end_page)


def counting(query: str, needs: str, first_page: int, end_page: int) -> str:
    """Return the query that counts the rows of these pages that a completion would change. `needs`: answer of NEEDS."""
    return _of_pages(query.replace("<needs>", needs), first_page, end_page)


def notes(leased: int, stale: int, alive: int) -> tuple[str, ...]:
    """Return what the completion did, for the operator."""
    found = (
        (leased, "tasks In Progress got a lease of one hour; whoever runs them has until then to finish"),
        (stale, "tasks In Progress have not changed for a day: no worker starts for them, and none is queued again"),
        (alive, "workers from before were set aside as terminated (superseded): see their metadata.legacy_status"),
    )
    return tuple(f"{number} {text}" for number, text in found if number)


def before(version: str) -> tuple[str, ...]:
    """Return the statements that complete all rows, for one file of SQL: nobody writes others until its end."""
    if version != FIRST:
        return ()
    return completion("tasks", COMPLETE_TASKS), completion("workers", SUPERSEDE_WORKERS)


def _of_pages(text: str, first: int, end: int) -> str:
    return text.replace("<first>", f"({first},0)").replace("<end>", f"({end},0)")
