-- Tasks whose worker is lost, or that no worker holds.

-- Ends the attempts of a worker or, if null, those without a holder for p_over_s. A task that another transaction is
-- changing is left for the next call. If a worker was ended as task_stuck, tasks without a sign of life for the allowed
-- time (metadata.stuck_s) fail as stuck. Without metadata.stuck_s (an earlier orchestrator), all its tasks do.
create or replace function orchestrator.rescue(
    p_worker_id text, p_now timestamptz, p_over_s numeric default 0, p_fleet text default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_time constant interval := '5 seconds';  -- the next call continues
    v_task orchestrator.live;
    v_tasks jsonb := '[]';
begin
    for v_task in
        select q.* from orchestrator.live q
         where q.state = 'running'
           and case when p_worker_id is not null then q.worker_id = p_worker_id
                    else (q.lease_expires_at is null or q.lease_expires_at <= p_now)
                         and orchestrator.is_lost(q.*, p_now, p_over_s)
                         and (p_fleet is null or not public.internal_is_of_other_fleet(p_fleet, q.worker_id, p_now)) end
         order by q.task_id for update skip locked
    loop
        exit when clock_timestamp() > statement_timestamp() + c_time;
        v_tasks := v_tasks || jsonb_build_object('id', v_task.task_id, 'worker_id', v_task.worker_id, 'outcome',
                                                 orchestrator.rescue_one(v_task, p_worker_id is not null, p_now));
    end loop;
    return v_tasks;
end
$$;

-- Ends the attempt of a locked task that has lost its worker. An attempt does not count if its worker's end was planned
-- (workers.exit_cause), or after an outage. Nor does it count if the machine failed, or if no agent reached a gateway,
-- up to three times each for a task: a task that makes machines fail, or breaks their network, must not run without
-- end. After the first lost attempt the task is ready at once, because the worker is the likely cause. From the second
-- one on it waits for half a minute each time, because the task may be the cause.
create or replace function orchestrator.rescue_one(p_task orchestrator.live, p_is_gone boolean, p_now timestamptz)
returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c_faults constant int := 3;
    v_worker public.workers;
    v_fault text;
    v_still_s numeric;
    v_is_counted boolean := true;
    v_was_lost constant boolean := exists (
        select from orchestrator.attempts a
         where a.task_id = p_task.task_id and a.attempt > p_task.uncounted and a.outcome = 'lost');
begin
    select * into v_worker from public.workers w where w.id = p_task.worker_id;
    if v_worker.exit_cause = 'task_stuck' then
        v_still_s := extract(epoch from p_now - p_task.progress_at);
    end if;
    if v_worker.status in ('terminating', 'terminated') then
        v_fault := case when v_worker.failure_code = 'GATEWAY_UNREACHED' then v_worker.failure_code
                        when v_worker.exit_cause in ('gpu_fault', 'host_fault') then 'MACHINE_FAULT' end;
    end if;
    if v_fault is not null then
        v_is_counted := c_faults <= (select count(*) from orchestrator.attempts a
                                      where a.task_id = p_task.task_id and a.failure_code = v_fault);
        return orchestrator.give_up(
            p_task, case when v_is_counted then 'lost' else 'released' end,
            jsonb_build_object('code', v_fault, 'exit_class', 'lost', 'point', 'Processing', 'message', case v_fault
                when 'MACHINE_FAULT'
                then format('The machine of worker %s failed: %s', v_worker.id, v_worker.exit_cause)
                else format('Worker %s was ended: its agent reached no gateway', v_worker.id) end),
            v_is_counted, v_is_counted and v_was_lost, p_now);
    elsif v_worker.status in ('terminating', 'terminated') and v_worker.exit_cause in (
              'idle_timeout', 'scale_down', 'manual', 'shutdown', 'budget', 'superseded', 'worker_sick',
              'stale_code') then
        return orchestrator.give_up(p_task, 'released', jsonb_build_object('code', 'RELEASED', 'message',
            format('Worker %s was ended: %s', v_worker.id, v_worker.exit_cause)), false, false, p_now);
    elsif v_still_s is null
          and public.internal_is_outage(v_worker.fleet, v_worker.lease_s, p_task.lease_expires_at) then
        return orchestrator.give_up(p_task, 'released', jsonb_build_object('code', 'RELEASED', 'message', format(
            'Worker %s could not renew its lease, which ended %s: the database or the orchestrator was away',
            v_worker.id, p_task.lease_expires_at)), false, false, p_now);
    end if;
    return orchestrator.give_up(p_task, 'lost', '{"point": "Processing"}' || case
        when v_still_s >= coalesce((v_worker.metadata->>'stuck_s')::numeric, 0) then jsonb_build_object(
            'code', 'TASK_STUCK', 'exit_class', 'timeout', 'message',
            format('No sign of life for %s s; worker %s was ended for that', floor(v_still_s), v_worker.id))
        when p_is_gone then jsonb_build_object(
            'code', 'WORKER_LOST', 'exit_class', 'lost', 'message', format('Worker %s is gone', p_task.worker_id))
        when p_task.lease_expires_at is null and v_worker.status is distinct from 'terminated' then jsonb_build_object(
            'code', 'NO_HOLDER', 'exit_class', 'lost', 'message',
            format('It was In Progress without a lease, and it did not change since %s', p_task.progress_at))
        else jsonb_build_object(
            'code', 'LEASE_EXPIRED', 'exit_class', 'lost', 'message', format(
                'Worker %s did not renew its lease, which ended %s', p_task.worker_id, p_task.lease_expires_at)) end,
        true, v_was_lost, p_now);
end
$$;

-- Who holds a running task: 'lease' (a valid one), 'program' (a program of its pool), 'unknown' (no leader has declared
-- the programs) or 'nobody'; and when it may be queued again, if that is known.
create or replace function orchestrator.holder(
    p_task orchestrator.live, p_now timestamptz, out held_by text, out rescue_at timestamptz
)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_worker record;
    v_program boolean;
    v_stuck_s numeric;
begin
    if p_task.lease_expires_at = '-infinity' then  -- `migrate` found that it had not changed for a day
        held_by := 'nobody';
        return;
    elsif p_task.lease_expires_at is not null then
        -- The agent may have named it without effect, because a user's transaction had locked it.
        rescue_at := greatest(p_task.lease_expires_at, (
            select w.last_heartbeat + l.lease from orchestrator.launches l join public.workers w on w.id = l.worker_id
             where l.worker_id = p_task.worker_id and l.nonce = p_task.nonce and p_task.task_id = any (l.skipped)));
        held_by := case when rescue_at > p_now then 'lease' else 'nobody' end;
        return;
    end if;
    select bool_or(s.value->'pools' ? p_task.pool), max((s.value->>'stuck_s')::numeric) into v_program, v_stuck_s
      from public.fleet_settings s where s.name = 'programs';
    select w.status = 'terminated' as gone, w.terminated_at, w.own_program, coalesce(
               to_jsonb(w)->>'legacy_status', w.metadata->>'legacy_status', 'terminated') <> 'terminated' as legacy
      into v_worker from public.workers w where w.id = p_task.worker_id;
    if v_worker.gone and not (v_program and v_worker.legacy) then
        rescue_at := v_worker.terminated_at;
    elsif not v_program and v_worker.own_program is not true then
        rescue_at := p_task.progress_at + v_stuck_s * interval '1 second';
    end if;
    held_by := case when rescue_at is not null then 'nobody' when v_stuck_s is null then 'unknown' else 'program' end;
end
$$;

-- Whether a running task has had no valid lease and no holder for p_over_s.
create or replace function orchestrator.is_lost(p_task orchestrator.live, p_now timestamptz, p_over_s numeric)
returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(h.rescue_at <= is_lost.p_now - is_lost.p_over_s * interval '1 second', false)
      from orchestrator.holder(is_lost.p_task, is_lost.p_now) h
$$;

-- Each of these tasks failed on a worker that is sick, or whose machine failed, and gets one attempt back. One that
-- failed for good because of it is queued again, with the tasks that failed because of that.
create or replace function orchestrator.give_back(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_id uuid;
    v_task public.tasks;
    v_attempt orchestrator.attempts;
begin
    foreach v_id in array coalesce(p_ids, '{}') loop
        v_task := orchestrator.current_task(v_id);
        select * into v_attempt from orchestrator.attempts a where a.task_id = v_id order by a.attempt desc limit 1;
        if v_task.status = 'Failed' and v_attempt.outcome = 'failed' and v_attempt.permanent is not true
           and v_attempt.attempt - v_attempt.uncounted >= v_task.max_attempts then
            perform orchestrator.write_each('back', orchestrator.failed_dependants(v_id));
        end if;
    end loop;
    update orchestrator.live q set uncounted = q.uncounted + 1
     where q.ctid = any (array(select l.ctid from orchestrator.live l
                                where l.task_id = any (p_ids) and l.uncounted < l.attempt for update skip locked));
end
$$;

-- Whether the worker belongs to another fleet that has a leader. That leader knows when its agents could have renewed
-- their leases. If a fleet has no leader, any other fleet rescues its tasks.
create or replace function public.internal_is_of_other_fleet(p_fleet text, p_worker_id text, p_now timestamptz)
returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select exists (select from public.workers w join public.fleet_lease l on l.fleet = w.fleet
                    where w.id = internal_is_of_other_fleet.p_worker_id
                        and w.fleet <> internal_is_of_other_fleet.p_fleet
                        and l.expires_at > internal_is_of_other_fleet.p_now)
$$;

-- Whether a lease expired because of an outage: its worker renewed it until about the time when the leader's own lease
-- was last renewed, it ended before or soon after there was a leader again, and the outage was long enough.
create or replace function public.internal_is_outage(p_fleet text, p_lease_s numeric, p_lease_expires_at timestamptz)
returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select exists (
        select from public.fleet_lease l
         where l.fleet = internal_is_outage.p_fleet and l.unled_from is not null
           and l.since - l.unled_from >= greatest(internal_is_outage.p_lease_s - 20,
               internal_is_outage.p_lease_s / 2) * interval '1 second'
           and internal_is_outage.p_lease_expires_at - internal_is_outage.p_lease_s * interval '1 second'
               >= l.unled_from - interval '60 seconds'
           and internal_is_outage.p_lease_expires_at > l.unled_from
               and internal_is_outage.p_lease_expires_at < l.since + interval '30 seconds')
$$;
