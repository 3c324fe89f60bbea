-- Workers that fail one task after the other.
--
-- Such a worker claims no more (held_back) until the planner knows whether the worker is sick or its release is bad.
-- Another worker's result counts only if its task began after these tasks had begun to fail. Failures that the handler
-- calls permanent hold a worker back only if another worker completes such tasks. A task of a type for which the declared
-- release has no handler says nothing about the worker. Tasks that a sick worker failed get
-- one attempt back, once. The controller of a cluster is not held back: its jobs run on other nodes too, no other worker
-- of the pool could give a second opinion, and its end would end all of Slurm's jobs.

-- Holds a worker back if its last tasks all failed, each a different one. Other workers then run the remaining tasks.
create or replace function public.internal_hold_back(p_worker public.workers, p_now timestamptz) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_limit int := greatest(1, coalesce((p_worker.metadata->>'max_failures')::int, 5));
    v_failures int;
    v_types text[];
    v_codes text[];
    v_first timestamptz;
    v_permanent boolean;
    v_held jsonb;
    v_task uuid;
    c_look constant int := 200;  -- attempts of this worker that are examined: two claims of the largest size
    c_named constant int := 5;  -- types and codes that are recorded
begin
    if p_worker.held_back is not null or p_worker.own_program or p_worker.cluster is not null
       or p_worker.status not in ('active', 'idle') then
        return;
    end if;
    with newest as (
        select a.task_id, a.ended_at, a.outcome, a.failure_code, a.permanent from public.task_attempts a
         where a.worker_id = p_worker.id order by a.started_at desc limit c_look
    ), failed as (
        select n.task_id, n.failure_code, n.ended_at, n.permanent from newest n
         where n.outcome = 'failed'
           and n.ended_at > coalesce((select max(d.ended_at) from newest d where d.outcome = 'complete'), '-infinity')
    )
    select count(distinct f.task_id), (array_agg(distinct t.task_type))[1:c_named],
           (array_agg(distinct f.failure_code))[1:c_named],
           min(f.ended_at), bool_and(coalesce(f.permanent, false))
      into v_failures, v_types, v_codes, v_first, v_permanent
      from failed f left join public.tasks t on t.id = f.task_id
     where not (f.failure_code is not distinct from 'NO_HANDLER' and t.task_type is not null and coalesce(
               (select s.value->'task_types' <> '[]' and not s.value->'task_types' ? t.task_type from public.fleet_settings s
                 where s.fleet = p_worker.fleet and s.name = 'release'), false));
    if v_failures < v_limit then
        return;
    end if;
    v_held := jsonb_build_object('since', p_now, 'first', v_first, 'failures', v_failures,
                                 'types', to_jsonb(array_remove(v_types, null)),
                                 'codes', to_jsonb(array_remove(v_codes, null)));
    if v_permanent then  -- the handler blames these tasks; only a completion elsewhere contradicts it
        p_worker.held_back := v_held;
        if public.internal_done_elsewhere(p_worker) is null then
            return;
        end if;
    end if;
    update public.workers w
       set held_back = v_held,
           waiting_on = 'orchestrator',
           waiting_for = format('a second opinion: it claims no more after %s different tasks failed in a row (%s)',
                                v_failures, array_to_string(v_codes, ', '))
     where w.id = p_worker.id;
    for v_task in
        select t.id from public.tasks t where t.worker_id = p_worker.id and t.status = 'In Progress'
         order by t.id for no key update skip locked loop
        perform public.internal_rescue_one(v_task, 'released', jsonb_build_object('code', 'RELEASED', 'message',
            format('Worker %s claims no more: its last %s tasks failed', p_worker.id, v_failures)), false, p_now);
    end loop;
    perform pg_notify('orchestrator_fleet', p_worker.id);
end
$$;

-- When another worker completed a task of the types that this worker failed, which began after these failures.
create or replace function public.internal_done_elsewhere(p_worker public.workers) returns timestamptz
language sql stable security definer set search_path = '' as $$
    select max(a.ended_at)
      from public.workers o
     cross join lateral (
           select n.task_id, n.outcome, n.started_at, n.ended_at from public.task_attempts n
            where n.worker_id = o.id order by n.started_at desc limit 20) a
     cross join lateral (select d.task_type from public.tasks d where d.id = a.task_id offset 0) t  -- each by its key
     where o.fleet = internal_done_elsewhere.p_worker.fleet and o.status <> 'terminated' and o.pool = internal_done_elsewhere.p_worker.pool and o.id <> internal_done_elsewhere.p_worker.id
       and a.outcome = 'complete'
       and a.started_at >= coalesce(internal_done_elsewhere.p_worker.held_back->>'first', internal_done_elsewhere.p_worker.held_back->>'since')::timestamptz
       and internal_done_elsewhere.p_worker.held_back->'types' ? t.task_type
$$;

-- When a worker ends because it is sick or its machine failed, each task that it failed since its last success gets one
-- attempt back, once in the task's life.
create or replace function public.internal_worker_sick() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_ids uuid[];
    v_attempts jsonb;
    c_look constant int := 200;
begin
    with newest as (
        select a.task_id, a.attempt, a.ended_at, a.outcome from public.task_attempts a
         where a.worker_id = new.id order by a.started_at desc limit c_look
    ), failed as (
        select distinct on (n.task_id) n.task_id, n.attempt from newest n
         where n.outcome = 'failed'
           and n.ended_at > coalesce((select max(d.ended_at) from newest d where d.outcome = 'complete'), '-infinity')
           and not exists (select from public.task_attempts g where g.task_id = n.task_id and g.given_back)
         order by n.task_id, n.attempt desc
    ), locked as (
        select t.id, f.attempt from failed f join public.tasks t on t.id = f.task_id
         where t.status in ('Queued', 'In Progress', 'Failed') and t.uncounted < t.attempts
         order by t.id for no key update of t skip locked
    )
    select jsonb_object_agg(l.id, l.attempt), array_agg(l.id) into v_attempts, v_ids from locked l;
    perform public.internal_change_each('back', v_ids, v_attempts);
    return null;
end
$$;

-- Gives each of these tasks back the attempt that p_attempts has for it. internal_change_each calls it.
create or replace function public.internal_give_back(p_ids uuid[], p_attempts jsonb) returns void
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
begin
    update public.task_attempts a set given_back = true
     where a.task_id = any (p_ids) and a.attempt = (p_attempts->>a.task_id::text)::int;
    update public.tasks t set uncounted = t.uncounted + 1 where t.id = any (p_ids) and t.status <> 'Failed';
    update public.tasks t
       set status = 'Queued', uncounted = t.uncounted + 1, run_after = null, worker_id = null, lease_expires_at = null,
           error_message = null, failure_code = null, failed_at_point = null, progress = null, progress_at = null,
           generation_processed_at = null
     where t.id = any (p_ids) and t.status = 'Failed' and t.attempts - t.uncounted >= t.max_attempts
       and not exists (select from public.tasks d where d.dedupe_key = t.dedupe_key and d.id <> t.id
                          and d.status in ('Queued', 'In Progress'));
    with recursive revived (id) as (  -- tasks that failed only because one of these had failed
        select t.id from public.tasks t where t.id = any (p_ids) and t.status = 'Queued'
        union
        select f.id from revived r cross join lateral (  -- by the index of dependencies, and not a join of all tasks
            select t.id from public.tasks t
             where t.depends_on @> array[r.id] and t.depends_on <> '{}' and t.status = 'Failed'
               and t.failure_code = 'DEPENDENCY_FAILED' offset 0) f
    )
    update public.tasks t
       set status = 'Queued', blocked = true, run_after = null, error_message = null, failure_code = null,
           failed_at_point = null, generation_processed_at = null
     where t.id in (select r.id from revived r) and t.status = 'Failed'
       and not exists (select from public.tasks d where d.dedupe_key = t.dedupe_key and d.id <> t.id
                          and d.status in ('Queued', 'In Progress'));
end
$$;
