-- pre-deploy
-- The trace of which a task is a part (W3C Trace Context). Optional: NULL means none. The trigger tasks_bounded checks it,
-- see functions/task_rows.sql.

do $$
declare
    v_type text;
begin
    select format_type(a.atttypid, null) into v_type from pg_catalog.pg_attribute a
     where a.attrelid = 'public.tasks'::regclass and a.attname = 'traceparent' and not a.attisdropped;
    if v_type <> 'text' then
        raise exception 'the existing column tasks.traceparent has type %, not text', v_type
            using errcode = 'OR007', detail = 'This system stores the trace of a task as text.',
                  hint = 'Rename your column, or convert it.';
    end if;
end
$$;
alter table public.tasks
    add column if not exists traceparent text;
comment on column public.tasks.traceparent is 'The trace that it is a part of, 00-<trace>-<span>-<flags>; NULL for none';
