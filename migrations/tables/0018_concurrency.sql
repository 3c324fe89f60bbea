-- pre-deploy
-- How many tasks of a key or of a type may run at once; see functions/concurrency.sql.
create table public.concurrency_limits (
    scope text not null check (scope in ('key', 'type')),
    name text not null check (length(name) between 1 and 200),
    most int not null check (most between 0 and 100000),
    set_at timestamptz not null,
    primary key (scope, name)
);
comment on table public.concurrency_limits is 'A key without a row has the limit 1; a type without a row has none';
alter table public.concurrency_limits enable row level security;

-- Limits that a transaction could not lock, or whose next tasks it could not let in; the next snapshot counts them again.
create table public.concurrency_notes (
    no bigint generated always as identity primary key,
    scope text not null,
    name text not null
);
alter table public.concurrency_notes enable row level security;

do $$
declare
    v_column record;
begin
    for v_column in
        select a.attname as name, format_type(a.atttypid, null) as type, e.type as expected
          from (values ('concurrency_key', 'text'), ('queue_gate', 'smallint')) e (name, type)
          join pg_catalog.pg_attribute a
            on a.attrelid = 'public.tasks'::regclass and a.attname = e.name and not a.attisdropped
         where format_type(a.atttypid, null) <> e.type
    loop
        raise exception 'the existing column tasks.% has type %, not %', v_column.name, v_column.type, v_column.expected
            using errcode = 'OR007', detail = 'This system limits tasks by it.', hint = 'Rename your column, or convert it.';
    end loop;
end
$$;
alter table public.tasks
    add column if not exists concurrency_key text,
    add column if not exists queue_gate smallint not null default 0;
comment on column public.tasks.concurrency_key is 'Tasks with the same key run at once at most as often as its limit allows; NULL for none';
comment on column public.tasks.queue_gate is '0: no limit applies; 1: it waits for its key; 2: for its type; 3: it is let in. Kept by triggers';
