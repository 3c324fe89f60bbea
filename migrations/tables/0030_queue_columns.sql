-- post-deploy
-- no transaction
-- What the queue kept in the rows of `tasks` is in the schema `orchestrator` now; see 0029.

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
do $$
declare
    v_name name;
begin
    foreach v_name in array array['tasks_filled', 'tasks_pool_named', 'tasks_attempts_counted', 'tasks_status_known',
                                  'tasks_completed', 'tasks_gate'] loop
        execute format('alter table public.tasks drop constraint if exists %I', v_name);
    end loop;
    alter table public.tasks alter column pool drop not null, alter column max_attempts drop not null;
end
$$;
drop table if exists public.tasks_unsettled, public.concurrency_notes, public.task_refusals, public.task_counts, public.task_marks,
    public.task_floors;
-- A view of the project's may read such a column: then it stays, and nothing writes it.
do $$
declare
    v_name name;
begin
    foreach v_name in array array['blocked', 'queue_gate', 'queue_turn', 'lease_expires_at', 'progress_at', 'pool_by_type',
                                  'uncounted'] loop
        begin
            execute format('alter table public.tasks drop column if exists %I', v_name);
        exception when dependent_objects_still_exist then
            execute format('alter table public.tasks alter column %I drop not null', v_name);
            raise notice 'the column tasks.% is in use by a view, and is no longer written', v_name using errcode = 'OR100';
        end;
    end loop;
end
$$;
