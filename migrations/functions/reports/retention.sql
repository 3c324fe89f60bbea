-- Deletes rows past their retention time.

-- Calls fleet_retention unless that was done within p_every_s; otherwise "deleted" is null. The database keeps the
-- time, because a process may not live for an hour.
create or replace function public.fleet_retain(
    p_fleet text, p_term bigint, p_every_s numeric, p_days jsonb default null, p_now timestamptz default null
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
    v_deleted := public.fleet_retention(p_fleet, p_term, p_days, p_now);
    insert into public.fleet_chores (fleet, name, done_at) values (p_fleet, 'retention', v_now)
    on conflict on constraint fleet_chores_pkey do update set done_at = excluded.done_at;
    return jsonb_build_object('deleted', v_deleted);
end
$$;

-- Deletes old rows in bounded batches. p_days says how long each is kept, in days: {decisions, events, attempts,
-- workers, audit, history, tasks}; without tasks, those of users stay. Rows of workers keep their costs, and all that
-- names them goes before them. Roll-ups of days stay.
create or replace function public.fleet_retention(
    p_fleet text, p_term bigint, p_days jsonb default null, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_bite constant int := 100000;  -- rows per table and call, which is once an hour
    v_days jsonb := '{"decisions": 30, "events": 90, "attempts": 90, "workers": 400, "audit": 90, "history": 8}'
                    || coalesce(p_days, '{}');
    v_deleted jsonb;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_retention');
    perform public.internal_check_keys(v_days, array['decisions', 'events', 'attempts', 'workers', 'audit', 'history',
                                                     'tasks'], 'p_days');
    v_deleted := public.internal_worker_retention(p_fleet, v_days, v_now, c_bite)
              || public.internal_attempt_retention(p_fleet, v_days, v_now, c_bite)
              || public.internal_audit_retention(p_fleet, v_days, v_now, c_bite);
    perform public.internal_merge_costs(p_fleet, v_now);
    perform public.internal_message_retention(p_fleet, v_now, c_bite);
    delete from public.schedule_runs r where r.ctid = any (array(
        select o.ctid from public.schedule_runs o
         where o.at < v_now - interval '30 days'
           and exists (select from public.schedule_runs n where n.schedule = o.schedule and n.due_at > o.due_at)
           and not exists (select from orchestrator.live q where q.task_id = o.task_id)
         limit c_bite));
    perform public.internal_cluster_retention(p_fleet, v_now, c_bite);
    perform orchestrator.maintain_hourly(v_now);
    return v_deleted;
end
$$;

-- The time before which rows are deleted; null: none.
create or replace function public.internal_before(p_days jsonb, p_name text, p_now timestamptz) returns timestamptz
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select internal_before.p_now
           - (internal_before.p_days->>internal_before.p_name)::numeric * interval '1 day'
$$;

-- What is known of ended workers: first their events, bring-up attempts and log ledger, later their costs, and at last
-- their rows. A worker that runs long keeps its newest events; its changes between active and idle are deleted after a
-- week.
create or replace function public.internal_worker_retention(
    p_fleet text, p_days jsonb, p_now timestamptz, p_most int
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off as $$
#variable_conflict use_variable
declare
    v_row timestamptz := public.internal_before(p_days, 'workers', p_now);
    v_events timestamptz := greatest(public.internal_before(p_days, 'events', p_now), v_row);
    v_counts int[] := '{}';
    v_n int;
    v_old text[];
begin
    delete from public.worker_events e where e.ctid = any (array(
        select o.ctid from public.worker_events o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet
           and o.at < p_now - interval '7 days'  -- by its index: other rows are not read
           and (w.terminated_at < v_events
                or o.from_state in ('active', 'idle') and o.to_state in ('active', 'idle')) limit p_most));
    get diagnostics v_n = row_count;
    v_counts := v_counts || v_n;
    delete from public.worker_attempts a where a.ctid = any (array(
        select o.ctid from public.worker_attempts o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet and w.terminated_at < v_events limit p_most));
    get diagnostics v_n = row_count;
    v_counts := v_counts || v_n;
    delete from public.log_objects l where l.ctid = any (array(
        select o.ctid from public.log_objects o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet and w.terminated_at < v_events limit p_most));
    get diagnostics v_n = row_count;
    v_counts := v_counts || v_n;
    v_old := public.internal_forgotten_workers(p_fleet, v_row, p_most / 100);
    delete from public.costs c where c.worker_id = any (v_old);
    get diagnostics v_n = row_count;
    v_counts := v_counts || v_n;
    delete from orchestrator.worker_totals k where k.worker_id = any (v_old);
    delete from public.workers w where w.id = any (v_old);
    get diagnostics v_n = row_count;
    return jsonb_build_object('worker_events', v_counts[1], 'worker_attempts', v_counts[2],
                              'log_objects', v_counts[3], 'costs', v_counts[4], 'workers', v_n);
end
$$;

-- Ended workers whose rows may go: nothing else names them, their hours are rolled up, and no cluster has them.
create or replace function public.internal_forgotten_workers(p_fleet text, p_before timestamptz, p_most int)
returns text[]
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_nestloop = on
set enable_seqscan = off set jit = off as $$
    select array(
        select w.id from public.workers w
         where w.status = 'terminated' and w.terminated_at < internal_forgotten_workers.p_before
           and w.fleet = internal_forgotten_workers.p_fleet
           and w.terminated_at < orchestrator.usage_until(internal_forgotten_workers.p_fleet)
           and not exists (select from public.worker_events e where e.worker_id = w.id)
           and not exists (select from public.worker_attempts a where a.worker_id = w.id)
           and not exists (select from public.log_objects l where l.worker_id = w.id)
           and not exists (select from orchestrator.attempts a where a.worker_id = w.id)
           and not exists (select from public.cluster_members m where m.worker_id = w.id)
           and not exists (select from orchestrator.live q where q.worker_id = w.id and q.state = 'running')
         order by w.terminated_at limit internal_forgotten_workers.p_most)
$$;

-- Attempts that are rolled up and whose tasks have ended, the history for charts, and, if that is asked for, tasks. The
-- number of an attempt stays in `tasks`, so that the next one goes on from it.
create or replace function public.internal_attempt_retention(
    p_fleet text, p_days jsonb, p_now timestamptz, p_most int
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_history timestamptz := public.internal_before(p_days, 'history', p_now);
    v_attempts timestamptz := greatest(public.internal_before(p_days, 'attempts', p_now),
                                       public.internal_before(p_days, 'workers', p_now));
    v_deleted int;
    v_minutes int;
begin
    delete from orchestrator.attempts a where a.ctid = any (array(
        select o.ctid from orchestrator.attempts o
         where o.ended_at < v_attempts and o.ended_at <= orchestrator.usage_until(p_fleet)
           and o.ended_at <= orchestrator.totals_until(p_fleet)
           and not exists (select from orchestrator.live q where q.task_id = o.task_id)
           and not public.internal_is_of_other_fleet(p_fleet, o.worker_id, p_now)
         order by o.ended_at limit p_most));
    get diagnostics v_deleted = row_count;
    delete from orchestrator.unrun_failures f where f.ctid = any (array(
        select o.ctid from orchestrator.unrun_failures o where o.at < v_attempts limit p_most));
    delete from orchestrator.pool_minutes m where m.fleet = p_fleet and m.at < v_history;
    get diagnostics v_minutes = row_count;
    delete from orchestrator.worker_minutes m where m.ctid = any (array(
        select o.ctid from orchestrator.worker_minutes o where o.at < v_history limit p_most));
    delete from orchestrator.usage u where u.ctid = any (array(
        select o.ctid from orchestrator.usage o
         where o.fleet = p_fleet and o.at < p_now - interval '9 days'
           and (o.span = 'part' or (o.dimension = 'task' or starts_with(o.dimension, 'label:'))
                                   and o.at < public.internal_before(p_days, 'workers', p_now)) limit p_most));
    return jsonb_build_object('attempts', v_deleted, 'pool_minutes', v_minutes,
                              'tasks', public.internal_task_retention(p_days, p_now));
end
$$;

-- Deletes ended tasks of users, the oldest first, if p_days has tasks. What an open task needs stays, and a row that
-- another transaction has locked.
create or replace function public.internal_task_retention(p_days jsonb, p_now timestamptz) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_tasks constant int := 10000;  -- of a call, because triggers of users may run
    v_before timestamptz := public.internal_before(p_days, 'tasks', p_now);
    v_ids uuid[];
begin
    if v_before is null then
        return 0;
    end if;
    v_ids := array(
        select t.id from public.tasks t
         where t.created_at < v_before and t.status in ('Complete', 'Failed', 'Cancelled')
           and coalesce(t.generation_processed_at, t.updated_at) < v_before
           and not exists (select from orchestrator.live q where q.task_id = t.id)
           and not exists (select from orchestrator.edges e where e.needs = t.id)
           and not exists (select from orchestrator.publications p where p.task_id = t.id)
         order by t.created_at limit c_tasks for update skip locked);
    perform orchestrator.enter_users_path();
    delete from public.tasks t where t.id = any (v_ids);
    return cardinality(v_ids);
end
$$;

-- Decisions, submissions, tokens, and the audit log. Of submissions the log keeps a week, because there are as many as
-- tasks. What is done to tasks is also cut by number, for each actor apart: a token that may only submit must not
-- remove what others did, and above all nothing about tokens, pools, workers and the other subjects of operators.
create or replace function public.internal_audit_retention(
    p_fleet text, p_days jsonb, p_now timestamptz, p_most int
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off as $$
#variable_conflict use_variable
declare
    v_audit timestamptz := public.internal_before(p_days, 'audit', p_now);
    c_audit constant int := 100000;  -- entries of the audit log about tasks that are kept at most, of each actor
    v_decisions int;
    v_entries int;
begin
    delete from public.decisions d where d.ctid = any (array(
        select o.ctid from public.decisions o
          join (select n.pool, max(n.id) as id from public.decisions n where n.fleet = p_fleet group by n.pool) newest
            on newest.pool = o.pool and newest.id > o.id
         where o.fleet = p_fleet and o.at < public.internal_before(p_days, 'decisions', p_now) limit p_most));
    get diagnostics v_decisions = row_count;
    delete from public.api_tokens t
     where t.fleet = p_fleet and least(t.revoked_at, t.expires_at) < p_now - interval '90 days';
    delete from public.api_submissions s where s.fleet = p_fleet and s.at < p_now - interval '24 hours';
    delete from orchestrator.bulk_changes c where c.fleet = p_fleet and c.ended_at < v_audit;
    delete from public.audit_log a where a.ctid = any (array(
        select o.ctid from public.audit_log o
         where o.fleet = p_fleet
           and o.at < case when o.action = 'task.submit' then greatest(v_audit, p_now - interval '7 days')
                           else v_audit end
         limit p_most));
    get diagnostics v_entries = row_count;
    delete from public.audit_log a where a.ctid = any (array(
        select o.ctid from (select l.ctid, row_number() over (partition by l.actor order by l.id desc) as place
                              from public.audit_log l where l.fleet = p_fleet and starts_with(l.action, 'task.')) o
         where o.place > c_audit limit p_most));
    return jsonb_build_object('decisions', v_decisions, 'audit_log', v_entries);
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
