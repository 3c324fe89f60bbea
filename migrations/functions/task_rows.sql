-- Trigger functions of `tasks`: they check and complete every row, whichever statement writes it, and start what
-- follows.
--
-- No setting suppresses a trigger. A statement of a user's own trigger within a claim or a completion is counted,
-- announced and settled like any other statement. The cost of a statement grows linearly with its rows.

-- A task that names no pool, timeout or number of attempts gets what is declared for its type.
create or replace function public.internal_task_routed() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
declare
    v_type public.task_types;
begin
    if new.pool is null or new.max_attempts is null or new.timeout_s is null then
        select * into v_type from public.task_types d where d.task_type = new.task_type;
        new.pool_by_type := new.pool is null;
        new.pool := coalesce(new.pool, v_type.pool, 'default');
        new.max_attempts := coalesce(new.max_attempts, v_type.max_attempts, 3);
        new.timeout_s := coalesce(new.timeout_s, v_type.timeout_s);
    end if;
    new.blocked := new.status = 'Queued' and new.depends_on <> '{}';
    return new;
end
$$;

-- Bounds what enters `tasks`, whichever statement writes it, because an agent must be able to read it.
create or replace function public.internal_task_bounded() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
declare
    c_params_bytes constant int := 1048576;
    c_depends_on constant int := 10000;
    c_type_letters constant int := 200;
begin
    if (tg_op = 'INSERT' or new.timeout_s is distinct from old.timeout_s) and new.timeout_s not between 0.001 and 2592000 then
        perform public.internal_refuse('OR007', 'timeout_s is not valid', format('got %s', new.timeout_s),
            'seconds, at most 2592000, or NULL for none');
    elsif (tg_op = 'INSERT' or new.depends_on is distinct from old.depends_on)
          and exists (select from unnest(new.depends_on) n (id) where n.id is null) then
        perform public.internal_refuse('OR007', 'depends_on contains NULL', '', 'ids of tasks, or {} for none');
    end if;
    if octet_length(new.params::text) > c_params_bytes then
        perform public.internal_refuse('OR007', 'params is too large',
            format('%s bytes, the limit is %s', octet_length(new.params::text), c_params_bytes),
            'upload it and pass its location');
    elsif public.internal_is_unreadable(new.params) then
        perform public.internal_refuse('OR007', 'params cannot be read by a worker',
            'it is nested deeper than 64 levels, or has a number of more than 4000 digits', 'make it flatter');
    elsif cardinality(new.depends_on) > c_depends_on or length(new.task_type) > c_type_letters then
        perform public.internal_refuse('OR007', 'depends_on or task_type is too long',
            format('the limits are %s ids and %s letters', c_depends_on, c_type_letters));
    end if;
    return new;
end
$$;

-- A failure code is shown on terminals and compared with known codes. A pod may send any text as its code, such as an
-- escape sequence. It is stored as INVALID_CODE and the call succeeds, because an agent that is refused would report
-- the same failure forever.
create or replace function public.internal_code_checked() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
begin
    new.failure_code := 'INVALID_CODE';
    return new;
end
$$;

-- pool and max_attempts are nullable for generated clients. NULL in a write means "by task type".
create or replace function public.internal_task_changing() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
begin
    if new.updated_at is not distinct from old.updated_at then
        new.updated_at := public.internal_now();
    end if;
    if new.attempts < new.uncounted then  -- a user starts them again
        new.uncounted := greatest(new.attempts, 0);
    end if;
    if new.blocked and new.depends_on = '{}' then
        new.blocked := false;
    elsif new.status = 'Queued' and not new.blocked
          and (old.status in ('Complete', 'Failed', 'Cancelled') and new.depends_on <> '{}'
               or new.depends_on is distinct from old.depends_on and new.depends_on <> '{}') then
        new.blocked := true;  -- until it is settled, after this statement
    end if;
    if new.pool is null then
        new.pool_by_type := true;
    end if;
    if new.pool is null or new.status = 'Queued' and old.status <> 'Queued' and new.pool_by_type then
        new.pool := coalesce((select d.pool from public.task_types d where d.task_type = new.task_type), 'default');
    end if;
    if new.max_attempts is null then
        new.max_attempts := coalesce((select d.max_attempts from public.task_types d where d.task_type = new.task_type), 3);
    end if;
    return new;
end
$$;

create or replace function public.internal_tasks_added() returns trigger
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    v_waiting uuid[];
    v_ended uuid[];
    v_again uuid[];
begin
    select array_agg(a.id) filter (where a.depends_on <> '{}' and a.status = 'Queued'),
           array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled'))
      into v_waiting, v_ended from added a;
    if v_waiting is not null then
        -- Who deletes a dependency waits until it is known who needs it. Heartbeats and completions do not wait.
        perform from public.tasks d
          where d.id = any (array(select distinct unnest(t.depends_on) from public.tasks t where t.id = any (v_waiting)))
          order by d.id for key share;
        perform public.internal_settle_new(v_waiting);
    end if;
    if v_ended is not null then
        perform public.internal_settle(public.internal_dependants(v_ended), '{}');
    end if;
    -- Of a task with this id that was Complete when it was deleted, the result is kept.
    v_again := array(select r.id from added a join public.task_results r on r.id = a.id where a.status <> 'Complete');
    if v_again <> '{}' then
        perform public.internal_settle(public.internal_needing(v_again), '{}');
    end if;
    perform pg_notify('orchestrator_tasks', p.pool)
       from (select distinct a.pool from added a
              where a.status = 'Queued'
                and (a.depends_on = '{}'
                     or (select t.status = 'Queued' and not t.blocked from public.tasks t where t.id = a.id))) p;
    return null;
end
$$;

create or replace function public.internal_tasks_changed() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
declare
    v_ended uuid[];
    v_taken_back uuid[];
    v_waiting uuid[];
    v_pools text[];
    v_workers text[];
    v_finished text[];
    v_left uuid[];
    v_queued bigint;
    -- Whether the statement is one of internal_settle_locked, and of no trigger within it.
    v_is_settling boolean := current_setting('orchestrator.settling', true) is not distinct from (pg_trigger_depth() - 1)::text;
begin
    -- A full join is hashed or merged: no plan of it is quadratic, whatever number of rows it was made for.
    select array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled') and a.status is distinct from b.status),
           array_agg(a.id) filter (where a.status = 'Queued'
                                     and (a.depends_on is distinct from b.depends_on
                                          or b.status <> 'Queued' and a.depends_on <> '{}'
                                          or b.blocked and not a.blocked and not v_is_settling)),
           array_agg(distinct a.pool) filter (where a.status = 'Queued' and not a.blocked
                                                and (b.status is distinct from 'Queued' or b.blocked or b.pool <> a.pool
                                                     or b.run_after > coalesce(a.run_after, '-infinity'))),
           array_agg(distinct b.worker_id) filter (where b.status = 'In Progress' and b.worker_id is not null
                                                     and (a.status in ('In Progress', 'Complete')) is not true),
           array_agg(distinct b.worker_id) filter (where b.status = 'In Progress' and a.status = 'Complete'),
           array_agg(b.id) filter (where b.status = 'In Progress'
                                     and (a.status = 'In Progress' and a.attempts = b.attempts
                                          and a.worker_id = b.worker_id) is not true),
           count(*) filter (where a.status = 'Queued' or b.status = 'Queued'),
           array_agg(b.id) filter (where b.status = 'Complete' and a.status is distinct from 'Complete')
      into v_ended, v_waiting, v_pools, v_workers, v_finished, v_left, v_queued, v_taken_back
      from changed a full join was b on b.id = a.id;
    if v_left is not null then
        perform public.internal_close_attempts(v_left, false);
    end if;
    if v_ended is not null and not v_is_settling then
        perform public.internal_settle(public.internal_dependants(v_ended), '{}');
    end if;
    if v_taken_back is not null then
        perform public.internal_settle(public.internal_needing(v_taken_back), '{}');
    end if;
    if v_waiting is not null then
        perform public.internal_settle_new(v_waiting);
    end if;
    perform pg_notify('orchestrator_tasks', p) from unnest(v_pools) p;
    perform pg_notify('orchestrator_fleet', w) from unnest(v_workers) w;
    perform pg_notify('orchestrator_fleet', w.id) from public.workers w  -- of a running worker's results nobody need know
      where w.id = any (v_finished) and public.internal_wanted(w) <> 'run';
    if v_queued > 0 then
        insert into public.task_counts (pool, kind, n)
        select c.pool, c.kind, sum(c.n)
          from (select a.pool, case when a.blocked then 'blocked' when a.run_after is not null then 'timed'
                                    else 'plain' end as kind, 1 as n
                  from changed a where a.status = 'Queued'
                union all
                select b.pool, case when b.blocked then 'blocked' when b.run_after is not null then 'timed'
                                    else 'plain' end, -1
                  from was b where b.status = 'Queued') c
         group by 1, 2 having sum(c.n) <> 0;
        insert into public.task_marks (pool, place, created_at, id)
        select a.pool, min(~a.priority), min(a.created_at), '00000000-0000-0000-0000-000000000000'
          from changed a where a.status = 'Queued' and not a.blocked and a.run_after is null group by a.pool;
    end if;
    return null;
end
$$;

create or replace function public.internal_tasks_removed() returns trigger
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    v_held uuid[];
    v_lost uuid[];
begin
    if tg_op = 'TRUNCATE' then
        delete from public.task_results;
        delete from public.tasks_unsettled;
        delete from public.task_refusals;
        perform public.internal_close_attempts(
            array(select a.task_id from public.task_attempts a where a.ended_at is null), true);
        return null;
    end if;
    insert into public.task_results (id, task_type, output_location, result_data, output_object, deleted_at)
    select r.id, r.task_type, r.output_location, r.result_data, r.output_object, public.internal_now()
      from removed r
     where r.status = 'Complete'
       and exists (select from public.tasks t
                    where t.status <> 'Complete' and t.depends_on <> '{}' and t.depends_on @> array[r.id])
    on conflict (id) do update
       set output_location = excluded.output_location, result_data = excluded.result_data,
           output_object = excluded.output_object, deleted_at = excluded.deleted_at;
    select array_agg(r.id) filter (where r.status = 'In Progress'), array_agg(r.id) filter (where r.status <> 'Complete')
      into v_held, v_lost from removed r;
    if v_held is not null then
        perform public.internal_close_attempts(v_held, true);
    end if;
    if v_lost is not null then
        perform public.internal_settle(public.internal_dependants(v_lost), v_lost);
    end if;
    return null;
end
$$;
