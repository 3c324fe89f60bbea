-- What is deleted after its time.

-- Deletes what is past its age, as fleet_retention does, if that was not done within p_every_s. "deleted" is null if it
-- is not due. The database keeps the time, because a process may not live for an hour.
create or replace function public.fleet_retain(
    p_fleet text, p_term bigint, p_every_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set jit = off as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_deleted jsonb;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_retain');
    if exists (select from public.fleet_chores c
                where c.fleet = p_fleet and c.name = 'retention' and c.done_at > v_now - p_every_s * interval '1 second') then
        return jsonb_build_object('deleted', null);
    end if;
    v_deleted := public.fleet_retention(p_fleet, p_term, p_now);
    insert into public.fleet_chores (fleet, name, done_at) values (p_fleet, 'retention', v_now)
    on conflict on constraint fleet_chores_pkey do update set done_at = excluded.done_at;
    return jsonb_build_object('deleted', v_deleted);
end
$$;

-- Deletes old rows in bounded batches. Tasks, workers, costs and the ledger of live workers' logs stay. A worker that
-- is kept for long keeps its newest events; its steps between active and idle go after a week.
create or replace function public.fleet_retention(p_fleet text, p_term bigint, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = '' set enable_nestloop = off set jit = off as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_bite constant int := 100000;  -- rows per table and call, which is once an hour
    v_decisions int;
    v_events int;
    v_attempts int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_retention');
    delete from public.decisions d where d.ctid = any (array(
        select o.ctid from public.decisions o
          join (select n.pool, max(n.id) as id from public.decisions n where n.fleet = p_fleet group by n.pool) newest
            on newest.pool = o.pool and newest.id > o.id
         where o.fleet = p_fleet and o.at < v_now - interval '30 days' limit c_bite));
    get diagnostics v_decisions = row_count;
    delete from public.worker_events e where e.ctid = any (array(
        select o.ctid from public.worker_events o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet
           and o.at < v_now - interval '7 days'  -- by its index: the rest is not looked at
           and (w.terminated_at < v_now - interval '90 days'
                or o.from_state in ('active', 'idle') and o.to_state in ('active', 'idle')) limit c_bite));
    get diagnostics v_events = row_count;
    delete from public.worker_attempts a where a.ctid = any (array(
        select o.ctid from public.worker_attempts o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet and w.terminated_at < v_now - interval '90 days' limit c_bite));
    get diagnostics v_attempts = row_count;
    delete from public.log_objects l where l.ctid = any (array(
        select o.ctid from public.log_objects o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet and w.terminated_at < v_now - interval '90 days' limit c_bite));
    with hours as (
        select c.worker_id, c.fleet, c.kind, date_trunc('hour', c.from_at, 'UTC') as began, array_agg(c.ctid) as places,
               sum(c.to_at - c.from_at) as took, sum(c.usd) as usd
          from public.costs c
         where c.fleet = p_fleet and c.to_at > v_now - interval '3 hours' and c.to_at < date_trunc('hour', v_now, 'UTC')
           and date_trunc('hour', c.to_at, 'UTC') = date_trunc('hour', c.from_at, 'UTC')
         group by 1, 2, 3, 4 having count(*) > 1
    ), gone as (
        delete from public.costs c where c.ctid = any (array(select unnest(h.places) from hours h))
    )
    insert into public.costs (worker_id, fleet, kind, from_at, to_at, usd)
    select h.worker_id, h.fleet, h.kind, h.began, h.began + h.took, h.usd from hours h;
    -- What a holder lost by a write without triggers. An attempt that began before has been looked at before.
    perform public.internal_close_attempts(array(
        select a.task_id from public.task_attempts a left join public.tasks t on t.id = a.task_id
         where a.ended_at is null and a.started_at > v_now - interval '2 days'
           and (t.status = 'In Progress' and t.attempts = a.attempt and t.worker_id = a.worker_id) is not true), false);
    delete from public.task_floors f  -- no launch that could use the number is left
     where not exists (select from public.workers w where w.status <> 'terminated' and w.created_at <= f.noted_at);
    perform public.internal_roll_up(true);
    return jsonb_build_object('decisions', v_decisions, 'worker_events', v_events, 'worker_attempts', v_attempts);
end
$$;
