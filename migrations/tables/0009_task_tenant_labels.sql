-- pre-deploy
-- On whose behalf a task runs, and what its submitter calls it. Both are optional: NULL means none. The trigger
-- tasks_bounded checks them, see functions/task_rows.sql.

do $$
declare
    v_column record;
begin
    for v_column in
        select a.attname as name, format_type(a.atttypid, null) as type, e.type as expected
          from (values ('tenant', 'text'), ('labels', 'jsonb')) e (name, type)
          join pg_catalog.pg_attribute a
            on a.attrelid = 'public.tasks'::regclass and a.attname = e.name and not a.attisdropped
         where format_type(a.atttypid, null) <> e.type
    loop
        raise exception 'the existing column tasks.% has type %, not %', v_column.name, v_column.type, v_column.expected
            using errcode = 'OR007', detail = 'This system stores the tenant as text and the labels as one JSON object.',
                  hint = 'Rename your column, or convert it.';
    end loop;
end
$$;
alter table public.tasks
    add column if not exists tenant text,
    add column if not exists labels jsonb;
comment on column public.tasks.tenant is 'On whose behalf it runs; NULL for nobody in particular';
comment on column public.tasks.labels is
    'An object of at most 16 keys (1 to 63 characters) with texts of at most 200 characters; NULL for none';
