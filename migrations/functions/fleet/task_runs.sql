-- The runs of a fleet's tasks, each with the time from which a worker could have run it.

-- The attempts of a fleet that ended in a window (its begin excluded) on workers of one pool (p_pool null: of any), the
-- newest first and p_limit at most. Of attempts of other pools and fleets, so many times as many are passed over.
--
-- `arrived_at`: of a first attempt, when the task was created, its run_after was over and what it depends on had ended;
-- of a later one, when the attempt before had ended and its run_after was over. If the task's row is gone, it is the
-- start; it is never later than that.
create or replace function orchestrator.task_runs(
    p_fleet text, p_pool text, p_since timestamptz, p_until timestamptz, p_limit int
) returns table (task_id uuid, attempt int, pool text, arrived_at timestamptz, started_at timestamptz,
                 ended_at timestamptz, outcome text, worker_id text)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_sort = off set jit = off set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_column
declare
    c_passed_over constant int := 10;
    v_limit int := least(greatest(p_limit, 1), 1000000);
begin
    return query
    select e.task_id, e.attempt, e.pool,
           case when t.created_at is null then e.started_at
                else least(e.started_at, orchestrator.arrival(t.created_at, e.run_after, p.ended_at, n.ended_at)) end,
           e.started_at, e.ended_at, e.outcome, e.worker_id
      from (select a.task_id, a.attempt, w.pool, a.run_after, a.started_at, a.ended_at, a.outcome, a.worker_id
              from (select b.* from orchestrator.attempts b
                     where b.ended_at > p_since and b.ended_at <= p_until
                     order by b.ended_at desc limit v_limit * c_passed_over::bigint) a
             cross join lateral (  -- by its key, each
                   select k.pool from public.workers k
                    where k.id = a.worker_id and k.fleet = p_fleet and (p_pool is null or k.pool = p_pool) offset 0) w
             limit v_limit) e
      left join lateral (select k.created_at, orchestrator.needs(k.*) as needs from public.tasks k
                          where k.id = e.task_id offset 0) t on true
      left join lateral orchestrator.previous_end(e.task_id, e.attempt) p (ended_at) on true
      left join lateral orchestrator.needs_end(t.needs) n (ended_at) on t.needs <> '{}' and p.ended_at is null;
end
$$;

-- From when a worker could run a task. Of a first attempt, its previous_end is null.
create or replace function orchestrator.arrival(
    p_created_at timestamptz, p_run_after timestamptz, p_previous_end timestamptz, p_needs_end timestamptz
) returns timestamptz
language sql immutable as $$
    select case when arrival.p_previous_end is null
                then greatest(arrival.p_created_at, arrival.p_run_after, arrival.p_needs_end)
                else greatest(arrival.p_previous_end, arrival.p_run_after) end
$$;

-- When the attempt before this one ended; null or no row if there was none. This function and the next have no settings
-- and not the rights of their owner, so that they become a part of the query.
create or replace function orchestrator.previous_end(p_task_id uuid, p_attempt int) returns setof timestamptz
language sql stable as $$
    select b.ended_at from orchestrator.attempts b
     where b.task_id = previous_end.p_task_id and b.attempt < previous_end.p_attempt
     order by b.attempt desc limit 1
$$;

-- When the last of these tasks ended; null if nothing is known of their attempts.
create or replace function orchestrator.needs_end(p_ids uuid[]) returns setof timestamptz
language sql stable as $$
    select max(l.ended_at) from unnest(needs_end.p_ids) i (id)
     cross join lateral (select b.ended_at from orchestrator.attempts b where b.task_id = i.id
                          order by b.attempt desc limit 1) l
$$;
