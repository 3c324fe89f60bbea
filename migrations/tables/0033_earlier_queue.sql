-- post-deploy
-- no transaction
-- What the state before the queue had: it kept the queue in the rows of `tasks`. Elsewhere nothing of this exists.

drop index concurrently if exists public.tasks_claim;
drop index concurrently if exists public.tasks_claim_order;
drop index concurrently if exists public.tasks_turns;
drop index concurrently if exists public.tasks_running;
drop index concurrently if exists public.tasks_dependants;
drop index concurrently if exists public.tasks_needing;
drop index concurrently if exists public.tasks_dedupe;
drop index concurrently if exists public.tasks_timed;
drop index concurrently if exists public.tasks_oldest;
drop index concurrently if exists public.tasks_gate_keys;
drop index concurrently if exists public.tasks_gate_types;
drop index concurrently if exists public.tasks_gate_due;
drop index concurrently if exists public.tasks_key_places;
drop index concurrently if exists public.tasks_type_places;
drop table if exists public.tasks_unsettled;
drop table if exists public.concurrency_notes;
drop table if exists public.task_refusals;
drop table if exists public.task_counts;
drop table if exists public.task_marks;
drop table if exists public.task_floors;
alter index if exists orchestrator.task_attempts_claim rename to attempts_claim;
-- Without a lock on `tasks` where nothing of it is there. The right was one on public.task_attempts.
do $$
declare
    v_name name;
begin
    if exists (select from pg_catalog.pg_attribute a where a.attrelid = 'public.tasks'::regclass and a.attname = 'queue_gate') then
        delete from orchestrator.attempts a where a.ended_at is null;  -- of tasks that had gone
        alter table public.tasks
            drop constraint if exists tasks_status_known,
            drop column if exists blocked,
            drop column if exists queue_gate,
            drop column if exists queue_turn,
            drop column if exists lease_expires_at,
            drop column if exists progress_at,
            drop column if exists pool_by_type,
            drop column if exists uncounted;
    end if;
    for v_name in select c.conname from pg_catalog.pg_constraint c
                   where c.conrelid = 'orchestrator.attempts'::regclass and starts_with(c.conname, 'task_attempts_') loop
        execute format('alter table orchestrator.attempts rename constraint %I to %I', v_name, substr(v_name, 6));
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        revoke all on orchestrator.attempts from service_role;
    end if;
end
$$;
