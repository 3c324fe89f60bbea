-- Deletes rows past their retention time.

-- Calls fleet_retention unless that was done within p_every_s; otherwise "deleted" is null. The database keeps the
-- time, because a process may not live for an hour.
create or replace function public.fleet_retain(
    p_fleet text, p_term bigint, p_every_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_deleted jsonb;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_retain');
    if exists (select from public.fleet_chores c
                where c.fleet = p_fleet and c.name = 'retention'
                  and c.done_at > v_now - p_every_s * interval '1 second') then
        return jsonb_build_object('deleted', null);
    end if;
    perform public.internal_raise_sequences();
    v_deleted := public.fleet_retention(p_fleet, p_term, p_now);
    insert into public.fleet_chores (fleet, name, done_at) values (p_fleet, 'retention', v_now)
    on conflict on constraint fleet_chores_pkey do update set done_at = excluded.done_at;
    return jsonb_build_object('deleted', v_deleted);
end
$$;

-- Deletes old rows in bounded batches. Tasks, workers, costs and the ledger of live workers' logs stay. A worker that
-- runs long keeps its newest events; its changes between active and idle are deleted after a week.
create or replace function public.fleet_retention(p_fleet text, p_term bigint, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_bite constant int := 100000;  -- rows per table and call, which is once an hour
    c_audit constant int := 100000;  -- entries of the audit log about tasks that are kept at most, of each actor
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
           and o.at < v_now - interval '7 days'  -- by its index: other rows are not read
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
    perform public.internal_merge_costs(p_fleet, v_now);
    perform public.internal_message_retention(p_fleet, v_now, c_bite);
    delete from public.schedule_runs r where r.ctid = any (array(
        select o.ctid from public.schedule_runs o
         where o.at < v_now - interval '30 days'
           and exists (select from public.schedule_runs n where n.schedule = o.schedule and n.due_at > o.due_at)
           and not exists (select from orchestrator.live q where q.task_id = o.task_id)
         limit c_bite));
    delete from public.api_tokens t
     where t.fleet = p_fleet and least(t.revoked_at, t.expires_at) < v_now - interval '90 days';
    delete from public.api_submissions s where s.fleet = p_fleet and s.at < v_now - interval '24 hours';
    -- 90 days; of submissions a week, because there are as many as tasks. What is done to tasks is also cut by number,
    -- for each actor apart: a token that may only submit must not remove what others did, and above all nothing about
    -- tokens, pools, workers and the other subjects of operators.
    delete from public.audit_log a where a.ctid = any (array(
        select o.ctid from public.audit_log o
         where o.fleet = p_fleet
           and o.at < v_now - case when o.action = 'task.submit' then interval '7 days' else interval '90 days' end
         limit c_bite));
    delete from public.audit_log a where a.ctid = any (array(
        select o.ctid from (select l.ctid, row_number() over (partition by l.actor order by l.id desc) as place
                              from public.audit_log l where l.fleet = p_fleet and starts_with(l.action, 'task.')) o
         where o.place > c_audit limit c_bite));
    perform public.internal_cluster_retention(p_fleet, v_now, c_bite);
    perform orchestrator.maintain_hourly(v_now);
    return jsonb_build_object('decisions', v_decisions, 'worker_events', v_events, 'worker_attempts', v_attempts);
end
$$;

-- Merges the booked intervals of an hour that has ended: one row for each worker and kind.
create or replace function public.internal_merge_costs(p_fleet text, p_now timestamptz) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off as $$
#variable_conflict use_variable
begin
    with hours as (
        select c.worker_id, c.fleet, c.kind, date_trunc('hour', c.from_at, 'UTC') as began, array_agg(c.ctid) as places,
               sum(c.to_at - c.from_at) as took, sum(c.usd) as usd
          from public.costs c
         where c.fleet = p_fleet and c.to_at > p_now - interval '3 hours' and c.to_at < date_trunc('hour', p_now, 'UTC')
           and date_trunc('hour', c.to_at, 'UTC') = date_trunc('hour', c.from_at, 'UTC')
         group by 1, 2, 3, 4 having count(*) > 1
    ), gone as (
        delete from public.costs c where c.ctid = any (array(select unnest(h.places) from hours h))
    )
    insert into public.costs (worker_id, fleet, kind, from_at, to_at, usd)
    select h.worker_id, h.fleet, h.kind, h.began, h.began + h.took, h.usd from hours h;
end
$$;

-- Deletes messages that were sent a day ago, and undelivered ones 30 days after they were given up.
create or replace function public.internal_message_retention(p_fleet text, p_now timestamptz, p_most int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off as $$
#variable_conflict use_variable
begin
    delete from public.webhook_messages m where m.ctid = any (array(
        select o.ctid from public.webhook_messages o where o.sent_at < p_now - interval '1 day' limit p_most));
    delete from public.webhook_messages m where m.ctid = any (array(
        select o.ctid from public.webhook_messages o
         where o.next_at is null and o.sent_at is null
           and o.give_up_at < p_now - case when o.event = 'task.progress' then interval '1 day'
                                           else interval '30 days' end
         limit p_most));
    delete from public.webhook_messages m where m.ctid = any (array(  -- no leader has its address any more
        select o.ctid from public.webhook_messages o
         where o.next_at is not null and o.fleet in ('', p_fleet) and o.give_up_at < p_now - interval '30 days'
         limit p_most));
end
$$;
