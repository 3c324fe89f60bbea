-- pre-deploy
-- no transaction
-- Indexes of the tables that may have a user's rows. They are built while others write (`migrate` removes an invalid index
-- that an interrupted build has left, and builds it again).

-- What a claim reads, in the order in which it takes tasks; blocked tasks are not in it.
create index concurrently if not exists tasks_claim on public.tasks (pool, (~priority), created_at, id) include (run_after)
    where status = 'Queued' and not blocked;
create index concurrently if not exists tasks_running on public.tasks (worker_id) where status = 'In Progress';
-- An entry is in its place at once: in a list of pending entries each search for dependants would read that list, up to 4 MB.
create index concurrently if not exists tasks_dependants on public.tasks using gin (depends_on) with (fastupdate = off)
    where blocked;
create index concurrently if not exists tasks_needing on public.tasks using gin (depends_on) with (fastupdate = off)
    where status <> 'Complete' and depends_on <> '{}';
create unique index concurrently if not exists tasks_dedupe on public.tasks (dedupe_key)
    where dedupe_key is not null and status in ('Queued', 'In Progress');
create index concurrently if not exists tasks_recent on public.tasks (created_at desc);
create index concurrently if not exists tasks_timed on public.tasks (pool, run_after) include (created_at)
    where status = 'Queued' and not blocked and run_after is not null;
create index concurrently if not exists tasks_oldest on public.tasks (pool, created_at)
    where status = 'Queued' and not blocked and run_after is null;

create index concurrently if not exists workers_live on public.workers (fleet, id) where status <> 'terminated';
create index concurrently if not exists workers_recent on public.workers (fleet, pool, created_at desc);
create index concurrently if not exists workers_climbs on public.workers (fleet, climb_ended_at) where climb_ended_at is not null;
