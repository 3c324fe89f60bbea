-- pre-deploy
-- Recurring tasks, and one row for each time at which one was due; see functions/schedules.sql.
create table public.schedules (
    name text primary key check (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    cron text check (length(cron) between 9 and 200),
    every_s int check (every_s between 10 and 31536000),
    timezone text not null default 'UTC' check (length(timezone) between 1 and 64),
    task jsonb not null check (jsonb_typeof(task) = 'object' and octet_length(task::text) <= 1200000),
    overlap text not null default 'skip' check (overlap in ('skip', 'queue')),
    catch_up text not null default 'none' check (catch_up in ('none', 'once')),
    created_at timestamptz not null default now(),
    paused_at timestamptz,
    next_at timestamptz,
    problem text check (octet_length(problem) <= 2000),
    check (num_nonnulls(cron, every_s) = 1)
);
comment on column public.schedules.task is 'The task to submit, as one entry of task_submit';
comment on column public.schedules.overlap is 'What to do at a due time while the task of the last one has not ended';
comment on column public.schedules.catch_up is 'Whether the last of the due times that nobody could serve is served late';
comment on column public.schedules.next_at is 'The next due time; null until the leader has worked it out';
comment on column public.schedules.problem is 'Why the leader cannot work out due times; a change of the row clears it';
create index schedules_due on public.schedules (next_at) where paused_at is null and problem is null;
alter table public.schedules enable row level security;

create table public.schedule_runs (
    schedule text not null references public.schedules (name) on delete cascade,
    due_at timestamptz not null,
    outcome text not null check (outcome in ('fired', 'skipped', 'missed')),
    task_id uuid,
    reason text check (octet_length(reason) <= 2000),
    at timestamptz not null,
    primary key (schedule, due_at)
);
comment on table public.schedule_runs is 'What came of each due time: a task (fired), an overlap or a refusal (skipped), or nothing (missed)';
create index schedule_runs_by_age on public.schedule_runs (at);
alter table public.schedule_runs enable row level security;
