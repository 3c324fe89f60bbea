-- pre-deploy
-- Webhooks: who is told about the end of tasks, and the messages that are still to be sent; see functions/webhooks.sql.

do $$
declare
    v_column record;
begin
    for v_column in
        select a.attname as name, format_type(a.atttypid, null) as type, e.type as expected
          from (values ('webhook_url', 'text'), ('webhook_progress', 'boolean')) e (name, type)
          join pg_catalog.pg_attribute a
            on a.attrelid = 'public.tasks'::regclass and a.attname = e.name and not a.attisdropped
         where format_type(a.atttypid, null) <> e.type
    loop
        raise exception 'the existing column tasks.% has type %, not %', v_column.name, v_column.type, v_column.expected
            using errcode = 'OR007', detail = 'This system stores where it reports the end of a task in this column.',
                  hint = 'Rename your column, or convert it.';
    end loop;
end
$$;
alter table public.tasks
    add column if not exists webhook_url text,
    add column if not exists webhook_progress boolean;
comment on column public.tasks.webhook_url is 'It gets a signed message when the task ends; NULL for none';
comment on column public.tasks.webhook_progress is 'Whether webhook_url also gets the progress, a message in 10 s at most';

create table public.webhooks (
    name text primary key check (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    task_type text check (length(task_type) between 1 and 200),
    url text not null check (length(url) <= 2000),
    progress boolean not null default false,
    created_at timestamptz not null
);
comment on table public.webhooks is 'Addresses that are told about the end of every task of a type';
comment on column public.webhooks.task_type is 'NULL for tasks of every type';
alter table public.webhooks enable row level security;

-- Not the outbox of alerts: whoever ends a task knows no fleet, and each message has an address of its own.
create table public.webhook_messages (
    id uuid primary key default gen_random_uuid(),
    event text not null check (event in ('task.completed', 'task.failed', 'task.cancelled', 'task.progress')),
    task_id uuid not null,
    webhook text,
    url text not null,
    host text not null,
    body jsonb not null,
    created_at timestamptz not null,
    give_up_at timestamptz not null,
    attempts int not null default 0,
    next_at timestamptz,
    sent_at timestamptz,
    failure text check (octet_length(failure) <= 2000)
);
comment on column public.webhook_messages.webhook is 'The row of webhooks that asked for it; NULL for the webhook_url of its task';
comment on column public.webhook_messages.host is 'Host and port of the URL: a slow host delays no other';
comment on column public.webhook_messages.next_at is 'The next attempt; null once it was sent or given up';
create index webhook_messages_due on public.webhook_messages (host, next_at) where next_at is not null;
create index webhook_messages_late on public.webhook_messages (give_up_at) where next_at is not null;
create index webhook_messages_overdue on public.webhook_messages (next_at) where next_at is not null;
create index webhook_messages_lost on public.webhook_messages (give_up_at) where next_at is null and sent_at is null;
create index webhook_messages_progress on public.webhook_messages (task_id, created_at) where next_at is not null and event = 'task.progress';
create index webhook_messages_recent on public.webhook_messages (created_at desc);
create index webhook_messages_by_age on public.webhook_messages (sent_at) where sent_at is not null;
create index webhook_messages_by_task on public.webhook_messages (task_id);
alter table public.webhook_messages enable row level security;
