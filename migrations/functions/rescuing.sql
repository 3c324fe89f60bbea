-- Tasks whose worker is lost, or that no worker holds.

create or replace function public.fleet_rescue(
    p_fleet text, p_term bigint, p_worker_id text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_rescue');
    return jsonb_build_object('tasks', public.internal_rescue(p_worker_id, v_now));
end
$$;

-- Rescues tasks whose lease ended more than p_over_s ago. If the orchestrator was not reachable during that time, their
-- workers get the same time again. It is a separate function, because an earlier version that runs at the same time
-- calls fleet_rescue.
create or replace function public.fleet_rescue_overdue(
    p_fleet text, p_term bigint, p_over_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_rescue_overdue');
    return jsonb_build_object('tasks', public.internal_rescue(null, v_now, p_over_s, p_fleet));
end
$$;

-- Ends the attempts of a worker or, if null, those without a holder for p_over_s. If another transaction is ending a
-- task, the function waits a moment for it if the worker is named, and otherwise leaves the task for the next call. A
-- task of a named worker that stays locked is rescued like any other one when its lease has ended. If a worker was ended
-- as task_stuck, tasks without a sign of life for the allowed time (metadata.stuck_s) fail as stuck. Without
-- metadata.stuck_s (an earlier orchestrator), all its tasks do.
create or replace function public.internal_rescue(
    p_worker_id text, p_now timestamptz, p_over_s numeric default 0, p_fleet text default null
) returns jsonb
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_task record;
    v_tasks jsonb := '[]';
    v_ids uuid[];
    v_failure jsonb;
    c_time constant interval := '5 seconds';  -- the next call continues
begin
    if p_worker_id is not null then
        v_ids := public.internal_lock_tasks_of(p_worker_id, p_now);
    else
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t
             where t.status = 'In Progress'
               and (coalesce(t.lease_expires_at, 'infinity') = 'infinity' or t.lease_expires_at <= p_now)
               and public.internal_is_lost(t.*, p_now, p_over_s)
               and not public.internal_is_unrescuable(t.id, p_now)
               and (p_fleet is null or not public.internal_is_of_other_fleet(p_fleet, t.worker_id, p_now))
             order by t.id for no key update skip locked) l;
    end if;
    for v_task in
        select t.id, t.worker_id, t.lease_expires_at, t.updated_at,
               t.lease_expires_at < 'infinity' is true or w.status is not distinct from 'terminated' as leased,
               case when w.exit_cause = 'task_stuck' then
                   extract(epoch from p_now - coalesce(t.progress_at, t.generation_started_at)) end as still_s,
               coalesce((w.metadata->>'stuck_s')::numeric, 0) as stuck_s,
               public.internal_is_outage(w.fleet, w.lease_s, t.lease_expires_at) as outage
          from public.tasks t left join public.workers w on w.id = t.worker_id
         where t.id = any (v_ids) and t.status = 'In Progress' order by t.id loop
        exit when clock_timestamp() > statement_timestamp() + c_time;
        if v_task.outage and v_task.still_s is null then
            v_tasks := v_tasks || jsonb_build_object(
                'id', v_task.id, 'worker_id', v_task.worker_id,
                'outcome', public.internal_rescue_one(v_task.id, 'released', jsonb_build_object(
                    'code', 'RELEASED', 'message', format(
                        'Worker %s could not renew its lease, which ended %s: the database or the orchestrator was away',
                        v_task.worker_id, v_task.lease_expires_at)), false, p_now));
            continue;
        end if;
        v_failure := case
            when v_task.still_s >= v_task.stuck_s then jsonb_build_object(
                'code', 'TASK_STUCK', 'exit_class', 'timeout',
                'message', format('No sign of life for %s s; worker %s was ended for that', floor(v_task.still_s),
                                  v_task.worker_id))
            when p_worker_id is not null then jsonb_build_object(
                'code', 'WORKER_LOST', 'exit_class', 'lost', 'message', format('Worker %s is gone', v_task.worker_id))
            when not v_task.leased then jsonb_build_object(
                'code', 'NO_HOLDER', 'exit_class', 'lost',
                'message', format('It was In Progress without a lease, and it did not change since %s', v_task.updated_at))
            else jsonb_build_object(
                'code', 'LEASE_EXPIRED', 'exit_class', 'lost',
                'message', format('Worker %s did not renew its lease, which ended %s', v_task.worker_id,
                                  v_task.lease_expires_at)) end;
        v_tasks := v_tasks || jsonb_build_object(
            'id', v_task.id, 'worker_id', v_task.worker_id,
            'outcome', public.internal_rescue_one(v_task.id, 'lost', v_failure || '{"point": "Processing"}', true, p_now));
    end loop;
    return v_tasks;
end
$$;

-- Locks the tasks of a worker that may be rescued, except those that another transaction does not free within half a
-- second: the end of a worker does not wait for a forgotten one in a SQL editor.
create or replace function public.internal_lock_tasks_of(p_worker_id text, p_now timestamptz) returns uuid[]
language plpgsql security definer set search_path = '' set enable_seqscan = off set lock_timeout = '500ms' as $$
#variable_conflict use_variable
begin
    return array(
        select t.id from public.tasks t
         where t.worker_id = p_worker_id and t.status = 'In Progress' and not public.internal_is_unrescuable(t.id, p_now)
         order by t.id for no key update);
exception when lock_not_available or deadlock_detected then
    return array(
        select t.id from public.tasks t
         where t.worker_id = p_worker_id and t.status = 'In Progress' and not public.internal_is_unrescuable(t.id, p_now)
         order by t.id for no key update skip locked);
end
$$;

-- Whether a user's trigger prevented the rescue of this task, and the next try is not due yet.
create or replace function public.internal_is_unrescuable(p_task_id uuid, p_now timestamptz) returns boolean
language sql stable security definer set search_path = '' as $$
    select exists (select from public.task_refusals r
                    where r.task_id = internal_is_unrescuable.p_task_id and r.what = 'rescue'
                        and r.retry_at > internal_is_unrescuable.p_now)
$$;

-- Gives up an attempt whose worker is lost; returns 'refused' if a user's trigger prevents it.
create or replace function public.internal_rescue_one(
    p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean, p_now timestamptz
) returns text
language plpgsql security definer set search_path = '' set lock_timeout = '500ms' as $$
#variable_conflict use_variable
declare
    v_outcome text;
begin
    v_outcome := public.internal_give_up(p_task_id, p_outcome, p_failure, p_counted, false, p_now);
    perform public.internal_fire_deferred();
    delete from public.task_refusals r where r.task_id = p_task_id;
    return v_outcome;
exception when others or assert_failure then  -- a user's trigger or constraint may raise anything
    if public.internal_is_transient(sqlstate) and sqlstate <> '55P03' then  -- a trigger waits for another transaction
        raise;
    end if;
    perform public.internal_refused(array[p_task_id], 'rescue',
        format('The database refused to take it back from its worker: %s (%s)', sqlerrm, sqlstate));
    return 'refused';
end
$$;

-- Who holds a task In Progress: 'lease' (a valid one), 'program' (a program of its pool), 'unknown' (no leader has
-- declared the programs) or 'nobody'; and when it may be queued again, if that is known.
create or replace function public.internal_holder(
    p_task public.tasks, p_now timestamptz, out held_by text, out rescue_at timestamptz
)
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_worker record;
    v_program boolean;
    v_stuck_s numeric;
begin
    if p_task.lease_expires_at = '-infinity' then  -- `migrate` found that it had not changed for a day
        held_by := 'nobody';
        return;
    end if;
    select bool_or(s.value->'pools' ? p_task.pool), max((s.value->>'stuck_s')::numeric) into v_program, v_stuck_s
      from public.fleet_settings s where s.name = 'programs';
    select w.status = 'terminated' as gone, w.terminated_at, w.own_program, w.metadata ? 'legacy_status' as legacy
      into v_worker from public.workers w where w.id = p_task.worker_id;
    if p_task.lease_expires_at < 'infinity' then
        rescue_at := p_task.lease_expires_at;
        if v_program and not exists (select from public.task_attempts a
                                      where a.task_id = p_task.id and a.attempt = p_task.attempts) then
            rescue_at := null;  -- the lease is not of a claim: its program has the task in any case
        end if;
    elsif v_worker.gone and not (v_program and v_worker.legacy) then
        rescue_at := v_worker.terminated_at;
    elsif not v_program and v_worker.own_program is not true then
        rescue_at := greatest(p_task.updated_at, p_task.progress_at) + v_stuck_s * interval '1 second';
    end if;
    held_by := case when rescue_at is null and v_stuck_s is null then 'unknown'
                    when rescue_at is null then 'program'
                    when rescue_at > p_now and p_task.lease_expires_at < 'infinity' then 'lease'
                    else 'nobody' end;
end
$$;

-- Whether a task In Progress has had no valid lease and no holder for p_over_s.
create or replace function public.internal_is_lost(p_task public.tasks, p_now timestamptz, p_over_s numeric)
returns boolean
language sql stable security definer set search_path = '' as $$
    select coalesce(h.rescue_at <= internal_is_lost.p_now - internal_is_lost.p_over_s * interval '1 second', false)
        from public.internal_holder(internal_is_lost.p_task, internal_is_lost.p_now) h
$$;

-- Whether the worker belongs to another fleet that has a leader. That leader knows when its agents could have renewed
-- their leases. If a fleet has no leader, any other fleet rescues its tasks.
create or replace function public.internal_is_of_other_fleet(p_fleet text, p_worker_id text, p_now timestamptz)
returns boolean
language sql stable security definer set search_path = '' as $$
    select exists (select from public.workers w join public.fleet_lease l on l.fleet = w.fleet
                    where w.id = internal_is_of_other_fleet.p_worker_id
                        and w.fleet <> internal_is_of_other_fleet.p_fleet
                        and l.expires_at > internal_is_of_other_fleet.p_now)
$$;

-- Whether a lease expired because of an outage: its worker renewed it until about the time when the leader's own lease
-- was last renewed, it ended before or soon after there was a leader again, and the outage was long enough.
create or replace function public.internal_is_outage(p_fleet text, p_lease_s numeric, p_lease_expires_at timestamptz)
returns boolean
language sql stable security definer set search_path = '' as $$
    select exists (
        select from public.fleet_lease l
         where l.fleet = internal_is_outage.p_fleet and l.unled_from is not null
           and l.since - l.unled_from >= greatest(internal_is_outage.p_lease_s - 20,
               internal_is_outage.p_lease_s / 2) * interval '1 second'
           and internal_is_outage.p_lease_expires_at - internal_is_outage.p_lease_s * interval '1 second' >= l.unled_from - interval '60 seconds'
           and internal_is_outage.p_lease_expires_at > l.unled_from
               and internal_is_outage.p_lease_expires_at < l.since + interval '30 seconds')
$$;

-- The leader declares for p_for_s that the object store is unavailable. During this time no worker of its fleet claims.
-- A null reason ends it.
create or replace function public.fleet_store_away(
    p_fleet text, p_term bigint, p_reason text, p_since timestamptz, p_for_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_ended int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_store_away');
    if p_reason is null then
        delete from public.fleet_settings s where s.fleet = p_fleet and s.name = 'store_away';
        get diagnostics v_ended = row_count;
        if v_ended > 0 then  -- waiting claims try again
            perform pg_notify('orchestrator_tasks', p.pool)
               from (select distinct w.pool from public.workers w
                      where w.fleet = p_fleet and w.status in ('active', 'idle')) p;
        end if;
    else
        if p_since is null or p_for_s is null or p_for_s <= 0 or p_for_s > 3600 then
            perform public.internal_refuse('OR007', 'p_since must be given, and p_for_s be from 0 to 3600 seconds');
        end if;
        insert into public.fleet_settings (fleet, name, value, reason, set_at, expires_at)
        values (p_fleet, 'store_away', 'true', left(p_reason, 1000), p_since, v_now + p_for_s * interval '1 second')
        on conflict (fleet, name) do update
           set reason = excluded.reason, set_at = excluded.set_at, expires_at = excluded.expires_at;
    end if;
    return jsonb_build_object('away', p_reason is not null);
end
$$;

create or replace function public.internal_is_store_away(p_fleet text, p_now timestamptz) returns boolean
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    return exists (select from public.fleet_settings s
                    where s.fleet = p_fleet and s.name = 'store_away' and s.expires_at > p_now);
end
$$;
