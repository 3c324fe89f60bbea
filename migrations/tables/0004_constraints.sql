-- post-deploy
-- no transaction
-- The constraints of the tables that may have a user's rows. Each is added without a look at the rows, which takes a short
-- lock, and then validated, which blocks no writer. The functions and triggers exist by now.

-- NULL in a write of pool or max_attempts means "by task type": the triggers fill both in.
alter table public.tasks
    drop constraint if exists tasks_filled,
    alter column status set default 'Queued',
    alter column pool drop default,
    alter column max_attempts drop default,
    add constraint tasks_filled check (pool is not null and max_attempts is not null) not valid;
alter table public.tasks validate constraint tasks_filled;
alter table public.tasks validate constraint tasks_pool_named;
alter table public.tasks validate constraint tasks_attempts_counted;

do $$
declare
    v_rows bigint;
begin
    if not exists (select from pg_catalog.pg_constraint c
                    where c.conrelid = 'public.tasks'::regclass and c.conname = 'tasks_status_known') then
        return;  -- the status is an enum
    end if;
    select count(*) into v_rows from public.tasks
     where status::text not in ('Queued', 'In Progress', 'Complete', 'Failed', 'Cancelled');
    if v_rows = 0 then
        alter table public.tasks validate constraint tasks_status_known;
    else
        raise notice '% tasks keep a status that this system does not know; they are never claimed', v_rows
            using errcode = 'OR100';
    end if;
end
$$;

-- SET NOT NULL reads no row if a valid constraint says the same.
do $$
begin
    if exists (select from pg_catalog.pg_attribute a where a.attrelid = 'public.tasks'::regclass and not a.attnotnull
                  and a.attname in ('attempts', 'created_at', 'updated_at')) then
        alter table public.tasks
            drop constraint if exists tasks_completed,
            add constraint tasks_completed
                check (attempts is not null and created_at is not null and updated_at is not null) not valid;
    end if;
end
$$;
do $$
begin
    if exists (select from pg_catalog.pg_constraint c
                where c.conrelid = 'public.tasks'::regclass and c.conname = 'tasks_completed') then
        -- Rows that were written since 0002 with an explicit NULL.
        update public.tasks t
           set attempts = coalesce(t.attempts, 0), created_at = coalesce(t.created_at, now()),
               updated_at = coalesce(t.updated_at, t.created_at, now())
         where t.attempts is null or t.created_at is null or t.updated_at is null;
        alter table public.tasks validate constraint tasks_completed;
    end if;
end
$$;
do $$
begin
    if exists (select from pg_catalog.pg_constraint c
                where c.conrelid = 'public.tasks'::regclass and c.conname = 'tasks_completed') then
        alter table public.tasks
            alter column attempts set not null, alter column created_at set not null, alter column updated_at set not null;
        alter table public.tasks drop constraint tasks_completed;
    end if;
end
$$;

-- Tasks with dependencies that were written after 0002 and before the triggers.
do $$
declare
    v_source constant text := (
        select case format_type(a.atttypid, null) when 'uuid' then 'array[t.dependant_on]'
                                                  when 'uuid[]' then 't.dependant_on' end
          from pg_catalog.pg_attribute a
         where a.attrelid = 'public.tasks'::regclass and a.attname = 'dependant_on' and not a.attisdropped);
begin
    if v_source is not null then
        execute format($q$
            update public.tasks t set depends_on = %s where t.dependant_on is not null and t.depends_on = '{}'$q$, v_source);
    end if;
    update public.tasks t set blocked = true
     where t.status::text = 'Queued' and not t.blocked and t.depends_on <> '{}'
       and exists (select from unnest(t.depends_on) n (id) left join public.tasks d on d.id = n.id
                    where d.status::text is distinct from 'Complete'
                      and (d.id is not null or not exists (select from public.task_results r where r.id = n.id)));
end
$$;

-- The queue as it is, in one snapshot. From here on the triggers add every difference; see functions/counting.sql.
do $$
begin
    lock table public.task_counts in share update exclusive mode;
    with gone as (delete from public.task_counts)
    insert into public.task_counts (pool, kind, n)
    select t.pool, case when t.blocked then 'blocked' when t.run_after is not null then 'timed' else 'plain' end, count(*)
      from public.tasks t where t.status::text = 'Queued' group by 1, 2;
end
$$;

alter table public.workers validate constraint workers_fleet_named;
alter table public.workers validate constraint workers_pool_named;
alter table public.workers validate constraint workers_reserved;
alter table public.workers validate constraint workers_status_known;
alter table public.workers validate constraint workers_stage_known;
alter table public.workers validate constraint workers_waiting_on_known;
alter table public.workers validate constraint workers_exit_cause_known;
alter table public.workers validate constraint workers_live_waits;
alter table public.workers validate constraint workers_exit_has_cause;

-- A comment blocks no writer.
comment on column public.workers.last_heartbeat is 'Of the current launch; never defaulted to now';
comment on column public.workers.state_since is 'When status last changed; the idle clock';
comment on column public.workers.drain_requested_at is 'An operator or the planner wants it gone, its tasks finished';
comment on column public.workers.stop_requested_at is 'It is wanted gone now, its tasks given up';
comment on column public.workers.reserved_usd is 'What ending it in good order may still cost: part of the committed budget';
comment on column public.workers.billing_since is 'When its pod got a machine, as far as it was seen: costs count from here';
comment on column public.workers.nonce is 'The current launch of its agent; any other is fenced';
comment on column public.workers.token_jti is 'The one token that is accepted; null revokes it';
comment on column public.workers.claim_no is 'The number from which the current launch may claim; a claim that took tasks has its number in task_attempts';
comment on column public.workers.agent is 'What the agent said of itself when it registered';
comment on column public.workers.log_bytes is '{launch: {stream: bytes}} as heartbeats last told';
comment on column public.workers.release is 'image@code that it runs';
comment on column public.workers.reserved_usd_per_hour is 'Its price, before the provider has told it';
comment on column public.workers.climb_ended_at is 'When it left spawning, promoted or not';
comment on column public.workers.billing_until is 'When its pod was last known to be there: nothing later is booked';
comment on column public.workers.ending_since is 'When it began to end, whatever it was before';
comment on column public.workers.held_back is 'Why it claims no more: {since, first, failures, types, codes}';
comment on column public.tasks.attempts is 'How often it was claimed: the fencing token of the claim that holds it';
comment on column public.tasks.pool is 'NULL in a write: by task type';
comment on column public.tasks.priority is 'Higher first, then age';
comment on column public.tasks.max_attempts is 'NULL in a write: by task type';
comment on column public.tasks.uncounted is 'Attempts that do not count against max_attempts: given back unstarted, or before a retry';
comment on column public.tasks.blocked is 'Queued, but a task in depends_on is not Complete; kept by triggers';
comment on column public.tasks.dedupe_key is 'Unique while the task is Queued or In Progress';
comment on column public.tasks.lease_expires_at is 'Renewed by heartbeats; past it the task is rescued';
comment on column public.tasks.progress_at is 'When progress last changed; the stuck clock';
comment on column public.tasks.failed_at_point is 'Claiming, Processing or Completion';
comment on column public.tasks.pool_by_type is 'Its pool was not named by whoever submitted it, but filled in';
