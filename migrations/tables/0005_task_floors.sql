-- pre-deploy
-- The numbers that guard the claims of a task, see functions/claiming.sql. One sequence for all tasks could be spent by one
-- absurd number in task_attempts.

create table public.task_floors (
    task_id uuid primary key,
    attempt int not null,
    noted_at timestamptz not null
);
comment on table public.task_floors is 'The highest number of a task whose row in task_attempts went while a worker could use it';
alter table public.task_floors enable row level security;
