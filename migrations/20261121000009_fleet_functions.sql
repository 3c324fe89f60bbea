-- fleet_*: for the orchestrator. Whatever writes names the fleet and the term; a stale term is refused (OR001).

create function public.fleet_lead(p_fleet text, p_holder text, p_ttl_s numeric, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz;
    v_lease public.fleet_lease;
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    if coalesce(p_holder, '') = '' or p_ttl_s is null or p_ttl_s <= 0 or p_ttl_s > 3600 then
        perform public.internal_refuse('OR007', 'p_holder must be named and p_ttl_s be from 0 to 3600 seconds');
    end if;
    insert into public.fleet_lease (fleet, holder, term, expires_at, since)
    values (p_fleet, '', 0, 'epoch', 'epoch') on conflict do nothing;
    select * into v_lease from public.fleet_lease l where l.fleet = p_fleet for update;
    v_now := public.internal_clock(p_now);  -- after the wait for the lock, not before it
    if v_lease.expires_at <= v_now then
        update public.fleet_lease l
           set holder = p_holder, term = l.term + 1, since = v_now,
               expires_at = v_now + p_ttl_s * interval '1 second'
         where l.fleet = p_fleet returning * into v_lease;
    elsif v_lease.holder = p_holder then
        update public.fleet_lease l set expires_at = v_now + p_ttl_s * interval '1 second'
         where l.fleet = p_fleet returning * into v_lease;
    end if;
    return jsonb_build_object('leader', v_lease.holder = p_holder, 'term', v_lease.term, 'holder', v_lease.holder,
                              'expires_at', v_lease.expires_at, 'since', v_lease.since);
end
$$;

create function public.fleet_resign(p_fleet text, p_holder text, p_term bigint, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    update public.fleet_lease l set expires_at = v_now
     where l.fleet = p_fleet and l.holder = p_holder and l.term = p_term and l.expires_at > v_now;
    if found then  -- a standby that listens takes over at once
        perform pg_notify('orchestrator_fleet', '');
        return jsonb_build_object('resigned', true);
    end if;
    return jsonb_build_object('resigned', false);
end
$$;

-- A row as the orchestrator sees it.
create function public.internal_worker_json(p_worker public.workers) returns jsonb
language sql stable security definer set search_path = '' as $$
    select to_jsonb(p_worker) || jsonb_build_object('tasks_running', (
        select count(*) from public.tasks t where t.worker_id = p_worker.id and t.status = 'In Progress'))
$$;

-- The intent: committed before the provider is called. A null term is an operator's request.
create function public.fleet_spawn(p_fleet text, p_term bigint, p_worker jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_created int;
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    perform public.internal_check_keys(p_worker, array['id', 'pool', 'gpu_type', 'gpu_count', 'data_center', 'reserved_usd',
        'heartbeat_s', 'lease_s', 'own_program', 'deadline_s', 'actor', 'reason', 'metadata'], 'p_worker');
    perform public.internal_check_id(p_worker->>'id', 'the worker id');
    perform public.internal_check_id(coalesce(p_worker->>'pool', 'default'), 'the pool');
    if p_term is not null then
        perform public.internal_check_term(p_fleet, p_term, 'fleet_spawn');
    end if;
    perform public.internal_because(
        coalesce(p_worker->>'actor', case when p_term is null then 'operator' else 'orchestrator' end), p_term,
        coalesce(p_worker->>'reason', 'spawn requested'));
    insert into public.workers (
        id, fleet, pool, status, stage, waiting_on, deadline_at, next_attempt_at, instance_type, gpu_type, gpu_count,
        data_center, reserved_usd, heartbeat_s, lease_s, own_program, metadata, created_at, last_heartbeat)
    values (
        p_worker->>'id', p_fleet, coalesce(p_worker->>'pool', 'default'), 'spawning', 'intent', 'orchestrator',
        v_now + coalesce((p_worker->>'deadline_s')::numeric, 30) * interval '1 second', v_now,
        coalesce(p_worker->>'gpu_type', 'unknown'), p_worker->>'gpu_type',
        coalesce((p_worker->>'gpu_count')::int, 1), p_worker->>'data_center',
        coalesce((p_worker->>'reserved_usd')::numeric, 0), coalesce((p_worker->>'heartbeat_s')::numeric, 20),
        coalesce((p_worker->>'lease_s')::numeric, 60), coalesce((p_worker->>'own_program')::boolean, false),
        coalesce(nullif(p_worker->'metadata', 'null'), '{}'), v_now, null)
    on conflict (id) do nothing;
    get diagnostics v_created = row_count;
    return jsonb_build_object('created', v_created = 1);
end
$$;

-- Compare-and-set on one worker. p_fields holds columns, and deadline_s / next_attempt_s in seconds from now.
create function public.fleet_move(p_fleet text, p_term bigint, p_worker_id text, p_from text[], p_to text, p_stage text,
                                  p_reason text, p_fields jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_fields jsonb := coalesce(nullif(p_fields, 'null'), '{}');
    v_old public.workers;
    v_new public.workers;
begin
    perform public.internal_check_keys(v_fields, array['pod_id', 'ssh_host', 'ssh_port', 'host_key', 'nonce', 'code_sha',
        'token_jti', 'price_usd_per_hour', 'gpu_type', 'data_center', 'machine_id', 'waiting_on', 'waiting_for',
        'exit_cause', 'failure_code', 'metadata', 'deadline_s', 'next_attempt_s'], 'p_fields');
    if coalesce(p_reason, '') = '' then
        perform public.internal_refuse('OR007', 'a move needs a reason');
    end if;
    perform public.internal_check_term(p_fleet, p_term, 'fleet_move');
    select * into v_old from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for update;
    if not found then
        perform public.internal_refuse('OR005', format('no worker %s in fleet %s', p_worker_id, p_fleet));
    elsif v_old.status <> all (p_from) then
        perform public.internal_refuse('OR002', format('%s is %s', p_worker_id, v_old.status),
            format('expected it to be %s', array_to_string(p_from, ' or ')), 'Observe again.');
    end if;
    v_new := jsonb_populate_record(v_old, v_fields - array['metadata', 'deadline_s', 'next_attempt_s']);
    v_new.status := coalesce(p_to, v_old.status);
    v_new.stage := coalesce(p_stage, case when p_to = 'terminated' then 'gone' end, v_old.stage);
    if v_new.status in ('terminating', 'terminated') and v_new.exit_cause is null then
        perform public.internal_refuse('OR007', format('%s cannot be %s without an exit_cause', p_worker_id, p_to), '',
            'put exit_cause into p_fields');
    end if;
    perform public.internal_because('orchestrator', p_term, p_reason);
    update public.workers w
       set status = v_new.status, stage = v_new.stage, state_reason = p_reason, pod_id = v_new.pod_id,
           billing_since = case when v_old.pod_id is null and v_new.pod_id is not null then v_now
                                else v_old.billing_since end,
           ssh_host = v_new.ssh_host, ssh_port = v_new.ssh_port, host_key = v_new.host_key, nonce = v_new.nonce,
           code_sha = v_new.code_sha, token_jti = v_new.token_jti, price_usd_per_hour = v_new.price_usd_per_hour,
           gpu_type = v_new.gpu_type, data_center = v_new.data_center, machine_id = v_new.machine_id,
           waiting_on = v_new.waiting_on, waiting_for = v_new.waiting_for, exit_cause = v_new.exit_cause,
           failure_code = v_new.failure_code,
           metadata = w.metadata || coalesce(nullif(v_fields->'metadata', 'null'), '{}'),
           deadline_at = case when v_fields->>'deadline_s' is null then w.deadline_at
                              else v_now + (v_fields->>'deadline_s')::numeric * interval '1 second' end,
           next_attempt_at = case when v_fields->>'next_attempt_s' is null then w.next_attempt_at
                                  else v_now + (v_fields->>'next_attempt_s')::numeric * interval '1 second' end
     where w.id = p_worker_id returning * into v_new;
    if v_new.status = 'terminated' and v_old.status <> 'terminated' then
        perform public.internal_rescue(p_worker_id, v_now);
        update public.worker_attempts a set ended_at = v_now, outcome = 'lost'
         where a.worker_id = p_worker_id and a.ended_at is null;
    end if;
    return jsonb_build_object('worker', public.internal_worker_json(v_new));
end
$$;

-- Whether nobody's lease covers a running task any more; a task without one belongs to whoever claimed it by other means,
-- until its worker has terminated.
create function public.internal_is_abandoned(p_worker_id text, p_lease_expires_at timestamptz, p_now timestamptz)
returns boolean language sql stable security definer set search_path = '' as $$
    select coalesce(p_lease_expires_at <= p_now, exists (
        select from public.workers w
         where w.id = p_worker_id and w.status = 'terminated' and w.terminated_at <= p_now))
$$;

-- Gives up what a worker holds, or (null) what is abandoned. Tasks that somebody is just ending are waited for where the
-- worker is named, and left for the next time where it is not.
create function public.internal_rescue(p_worker_id text, p_now timestamptz) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
    v_task record;
    v_tasks jsonb := '[]';
    v_ids uuid[];
    v_why text := case when p_worker_id is null then 'LEASE_EXPIRED' else 'WORKER_LOST' end;
begin
    if p_worker_id is not null then
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t where t.worker_id = p_worker_id and t.status = 'In Progress'
             order by t.id for update) l;
    else
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t
             where t.status = 'In Progress'
               and public.internal_is_abandoned(t.worker_id, t.lease_expires_at, p_now)
             order by t.id for update skip locked) l;
    end if;
    for v_task in select t.id, t.worker_id, t.lease_expires_at from public.tasks t
                   where t.id = any (v_ids) and t.status = 'In Progress' order by t.id loop
        v_tasks := v_tasks || jsonb_build_object(
            'id', v_task.id, 'worker_id', v_task.worker_id,
            'outcome', public.internal_give_up(v_task.id, 'lost', jsonb_build_object(
                'code', v_why,
                'message', case when p_worker_id is not null then format('Worker %s is gone', v_task.worker_id)
                                else format('Worker %s did not renew its lease, which ended %s', v_task.worker_id,
                                            v_task.lease_expires_at) end,
                'point', 'Processing', 'exit_class', 'lost'), true, false, p_now));
    end loop;
    return v_tasks;
end
$$;

create function public.fleet_rescue(p_fleet text, p_term bigint, p_worker_id text, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_rescue');
    return jsonb_build_object('tasks', public.internal_rescue(p_worker_id, v_now));
end
$$;

create function public.fleet_request_termination(p_fleet text, p_worker_id text, p_reason text, p_now_not_drain boolean,
                                                 p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers;
    v_drain timestamptz;
    v_stop timestamptz;
begin
    select * into v_worker from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for update;
    if not found then
        return jsonb_build_object('outcome', 'not_found');
    end if;
    v_drain := coalesce(v_worker.drain_requested_at, v_now);
    v_stop := case when p_now_not_drain then coalesce(v_worker.stop_requested_at, v_now)
                   else v_worker.stop_requested_at end;
    if v_worker.status = 'terminated' or v_stop is not distinct from v_worker.stop_requested_at
       and (v_worker.drain_requested_at is not null or v_worker.status = 'terminating') then
        return jsonb_build_object('outcome', 'already', 'status', v_worker.status);
    end if;
    update public.workers w set drain_requested_at = v_drain, stop_requested_at = v_stop where w.id = p_worker_id;
    insert into public.worker_events
        (worker_id, fleet, from_state, to_state, from_stage, to_stage, reason, actor, at)
    values (p_worker_id, p_fleet, v_worker.status, v_worker.status, v_worker.stage, v_worker.stage,
            format('termination requested%s: %s', case when p_now_not_drain then ' at once' else '' end,
                   coalesce(p_reason, 'no reason given')), 'operator', v_now);
    return jsonb_build_object('outcome', 'requested', 'status', v_worker.status);
end
$$;
