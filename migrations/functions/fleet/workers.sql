-- Rows of `workers`: registration, spawning, transitions, requests to end.
--
-- worker_* functions are the contract with agents (worker/protocol.py). Old pods survive deploys, so names and meanings
-- are only added to. fleet_* functions that write name the fleet and the term; a stale term is refused (OR001).

create or replace function public.worker_register(
    p_worker_id text, p_nonce text, p_agent jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, true);
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop');
    end if;
    if p_agent is null or jsonb_typeof(p_agent) <> 'object' then
        perform public.internal_refuse('OR007', 'p_agent must be a JSON object');
    end if;
    perform public.internal_check_size(p_agent, 65536, 'p_agent');
    update public.workers w
       set last_heartbeat = v_now, agent = p_agent || jsonb_build_object('nonce', p_nonce)
     where w.id = p_worker_id;
    perform pg_notify('orchestrator_fleet', p_worker_id);
    return jsonb_build_object('outcome', 'ok', 'wanted', public.internal_wanted(v_worker),
                              'heartbeat_s', v_worker.heartbeat_s, 'lease_s', v_worker.lease_s);
end
$$;

-- The caller's row. A pod must be the worker that it names (sub) and hold the one current token (jti).
create or replace function public.internal_caller(p_worker_id text, p_lock boolean) returns public.workers
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_claims jsonb;
    v_worker public.workers;
    v_set text;
begin
    v_set := set_config('orchestrator.alone', statement_timestamp()::text, true);
    if public.internal_is_pod() then
        v_claims := nullif(current_setting('request.jwt.claims', true), '')::jsonb;
        if v_claims->>'sub' is null or v_claims->>'sub' is distinct from p_worker_id then
            perform public.internal_refuse('OR006', 'the token is not of this worker');
        end if;
    end if;
    if p_lock then
        select * into v_worker from public.workers w where w.id = p_worker_id for no key update;
    else
        select * into v_worker from public.workers w where w.id = p_worker_id;
    end if;
    if v_worker.id is null or v_worker.status = 'terminated' then
        perform public.internal_refuse('OR005', 'no such worker, or it has terminated', '', 'stop');
    end if;
    if v_claims is not null and (v_worker.token_jti is null
                                 or v_claims->>'jti' is distinct from v_worker.token_jti) then
        perform public.internal_refuse('OR006', 'the token was revoked');
    end if;
    return v_worker;
end
$$;

-- Records the intent and its reservation before the provider is called. A null term is an operator's request. If the
-- pool has a live cluster, the worker is reserved for it.
create or replace function public.fleet_spawn(
    p_fleet text, p_term bigint, p_worker jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_usd numeric := coalesce((p_worker->>'reserved_usd')::numeric, 0);
    v_usd_per_hour numeric := coalesce((p_worker->>'reserved_usd_per_hour')::numeric, 0);
    v_created int;
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    perform public.internal_check_keys(p_worker, array['id', 'pool', 'gpu_type', 'gpu_count', 'data_center', 'release',
        'reserved_usd', 'reserved_usd_per_hour', 'budget', 'heartbeat_s', 'lease_s', 'own_program', 'deadline_s',
        'actor', 'reason', 'metadata', 'cluster'], 'p_worker');
    perform public.internal_check_id(p_worker->>'id', 'the worker id');
    perform public.internal_check_id(coalesce(p_worker->>'pool', 'default'), 'the pool');
    if p_term is not null then
        perform public.internal_check_term(p_fleet, p_term, 'fleet_spawn');
    end if;
    if not exists (select from public.workers w where w.id = p_worker->>'id') then
        perform public.internal_check_budget(p_fleet, p_worker->>'id', v_usd, v_usd_per_hour,
                                             p_worker->'budget', v_now);
    end if;
    perform public.internal_because(
        coalesce(p_worker->>'actor', case when p_term is null then 'operator' else 'orchestrator' end), p_term,
        coalesce(p_worker->>'reason', 'spawn requested'));
    insert into public.workers (
        id, fleet, pool, status, stage, waiting_on, deadline_at, next_attempt_at, instance_type, gpu_type, gpu_count,
        data_center, release, reserved_usd, reserved_usd_per_hour, heartbeat_s, lease_s, own_program, metadata,
        created_at, last_heartbeat, cluster)
    values (
        p_worker->>'id', p_fleet, coalesce(p_worker->>'pool', 'default'), 'spawning', 'intent', 'orchestrator',
        v_now + coalesce((p_worker->>'deadline_s')::numeric, 30) * interval '1 second', v_now,
        coalesce(p_worker->>'gpu_type', 'unknown'), p_worker->>'gpu_type',
        coalesce((p_worker->>'gpu_count')::int, 1), p_worker->>'data_center', p_worker->>'release', v_usd,
        v_usd_per_hour, coalesce((p_worker->>'heartbeat_s')::numeric, 20),
        coalesce((p_worker->>'lease_s')::numeric, 60), coalesce((p_worker->>'own_program')::boolean, false),
        coalesce(nullif(p_worker->'metadata', 'null'), '{}'), v_now, null,
        coalesce(p_worker->>'cluster', (
            select c.id from public.cluster_apps c
             where c.fleet = p_fleet and c.pool = coalesce(p_worker->>'pool', 'default')
               and c.status not in ('deleted', 'failed'))))
    on conflict (id) do nothing;
    get diagnostics v_created = row_count;
    return jsonb_build_object('created', v_created = 1);
end
$$;

-- Compare-and-set of a worker's state and stage. p_fields holds columns; also deadline_s and next_attempt_s in seconds
-- from now; unbilled_s (so many seconds ago, the pod was seen without a machine); billed_s (for so long, the pod may
-- have existed unseen); and with a new reservation the budget that it must fit into. A pod costs money from the moment
-- it has a machine, which may be a minute after the create call returned.
create or replace function public.fleet_move(
    p_fleet text, p_term bigint, p_worker_id text, p_from text[], p_to text, p_stage text, p_reason text,
    p_fields jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_fields jsonb := coalesce(nullif(p_fields, 'null'), '{}');
    v_old public.workers;
    v_new public.workers;
begin
    perform public.internal_check_keys(v_fields,
                                       array['pod_id', 'ssh_host', 'ssh_port', 'host_key', 'nonce', 'code_sha',
        'token_jti', 'price_usd_per_hour', 'gpu_type', 'data_center', 'machine_id', 'release', 'reserved_usd',
        'reserved_usd_per_hour', 'budget', 'waiting_on', 'waiting_for', 'exit_cause', 'failure_code', 'metadata',
        'deadline_s', 'next_attempt_s', 'unbilled_s', 'billed_s'], 'p_fields');
    if coalesce(p_reason, '') = '' then
        perform public.internal_refuse('OR007', 'a move needs a reason');
    end if;
    perform public.internal_check_term(p_fleet, p_term, 'fleet_move');
    select * into v_old from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for no key update;
    if not found then
        perform public.internal_refuse('OR005', format('no worker %s in fleet %s', p_worker_id, p_fleet));
    elsif v_old.status <> all (p_from) then
        perform public.internal_refuse('OR002', format('%s is %s', p_worker_id, v_old.status),
            format('expected it to be %s', array_to_string(p_from, ' or ')), 'Observe again.');
    end if;
    v_new := jsonb_populate_record(
        v_old, v_fields - array['budget', 'metadata', 'deadline_s', 'next_attempt_s', 'unbilled_s', 'billed_s']);
    v_new.status := coalesce(p_to, v_old.status);
    v_new.stage := coalesce(p_stage, case when p_to = 'terminated' then 'gone' end, v_old.stage);
    if v_new.status in ('terminating', 'terminated') and v_new.exit_cause is null then
        perform public.internal_refuse('OR007', format('%s cannot be %s without an exit_cause', p_worker_id, p_to), '',
            'put exit_cause into p_fields');
    end if;
    perform public.internal_check_budget(p_fleet, p_worker_id, v_new.reserved_usd, v_new.reserved_usd_per_hour,
                                         v_fields->'budget', v_now);
    perform public.internal_because('orchestrator', p_term, p_reason);
    update public.workers w
       set status = v_new.status, stage = v_new.stage, state_reason = p_reason, pod_id = v_new.pod_id,
           billing_since = case when v_old.pod_id is null and v_new.pod_id is not null
                                    then v_now - coalesce((v_fields->>'billed_s')::numeric, 0) * interval '1 second'
                                when v_old.status = 'spawning' then greatest(v_old.billing_since,
                                    v_now - (v_fields->>'unbilled_s')::numeric * interval '1 second')
                                else v_old.billing_since end,
           ssh_host = v_new.ssh_host, ssh_port = v_new.ssh_port, host_key = v_new.host_key, nonce = v_new.nonce,
           code_sha = v_new.code_sha, token_jti = v_new.token_jti, price_usd_per_hour = v_new.price_usd_per_hour,
           gpu_type = v_new.gpu_type, data_center = v_new.data_center, machine_id = v_new.machine_id,
           release = v_new.release, reserved_usd = v_new.reserved_usd,
           reserved_usd_per_hour = v_new.reserved_usd_per_hour,
           waiting_on = v_new.waiting_on, waiting_for = v_new.waiting_for, exit_cause = v_new.exit_cause,
           failure_code = v_new.failure_code,
           metadata = w.metadata || coalesce(nullif(v_fields->'metadata', 'null'), '{}'),
           deadline_at = case when v_fields->>'deadline_s' is null then w.deadline_at
                              else v_now + (v_fields->>'deadline_s')::numeric * interval '1 second' end,
           next_attempt_at = case when v_fields->>'next_attempt_s' is null then w.next_attempt_at
                                  else v_now + (v_fields->>'next_attempt_s')::numeric * interval '1 second' end
     where w.id = p_worker_id returning * into v_new;
    if v_new.status = 'terminated' and v_old.status <> 'terminated' then
        perform orchestrator.rescue(p_worker_id, v_now);
        update public.worker_attempts a set ended_at = v_now, outcome = 'lost'
         where a.worker_id = p_worker_id and a.ended_at is null;
    end if;
    return jsonb_build_object('worker', public.internal_worker_json(v_new));
end
$$;

create or replace function public.fleet_request_termination(
    p_fleet text, p_worker_id text, p_reason text, p_now_not_drain boolean, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers;
    v_drain timestamptz;
    v_stop timestamptz;
begin
    select * into v_worker from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for no key update;
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

create or replace function public.fleet_workers(
    p_fleet text, p_all boolean, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return jsonb_build_object('now', v_now, 'workers', coalesce((
        select jsonb_agg(public.internal_worker_report(w.*, v_now) order by w.created_at desc, w.id)
          from (select * from public.workers w
                 where w.fleet = p_fleet and (coalesce(p_all, false) or w.status <> 'terminated')
                 order by w.created_at desc, w.id limit least(greatest(coalesce(p_limit, 1000), 0), 10000)) w), '[]'));
end
$$;

-- One worker with its events and attempts. If there are many, the first and the newest ones are returned, with the
-- number of those left out. The seconds in each state count all events.
create or replace function public.fleet_worker(p_fleet text, p_worker_id text, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers;
    c_first constant int := 200;  -- its bring-up …
    c_last constant int := 800;  -- … and its end
    c_tasks constant int := 1000;  -- the newest
begin
    select * into v_worker from public.workers w where w.id = p_worker_id and w.fleet = p_fleet;
    if not found then
        return jsonb_build_object('now', v_now, 'worker', null, 'events', '[]'::jsonb, 'attempts', '[]'::jsonb,
                                  'tasks', '[]'::jsonb, 'left_out', '{}'::jsonb, 'states', '{}'::jsonb);
    end if;
    return jsonb_build_object(
        'now', v_now,
        'worker', public.internal_worker_report(v_worker, v_now),
        'events', coalesce((
            select jsonb_agg(to_jsonb(e.*) order by e.id) from (
                (select * from public.worker_events b where b.worker_id = p_worker_id order by b.id limit c_first)
                union
                (select * from public.worker_events b where b.worker_id = p_worker_id
                  order by b.id desc limit c_last)) e),
            '[]'),
        'attempts', coalesce((
            select jsonb_agg(to_jsonb(a.*) order by a.id) from (
                (select * from public.worker_attempts b where b.worker_id = p_worker_id order by b.id limit c_first)
                union
                (select * from public.worker_attempts b where b.worker_id = p_worker_id
                  order by b.id desc limit c_last)) a),
            '[]'),
        'tasks', coalesce((select jsonb_agg(to_jsonb(a.*) order by a.started_at, a.task_id)
                             from (select * from public.task_attempts a where a.worker_id = p_worker_id
                                    order by a.started_at desc limit c_tasks) a), '[]'),
        'left_out', jsonb_build_object(
            'events', jsonb_build_object('at', c_first, 'count', (
                select greatest(count(*) - c_first - c_last, 0) from public.worker_events e
                 where e.worker_id = p_worker_id)),
            'attempts', jsonb_build_object('at', c_first, 'count', (
                select greatest(count(*) - c_first - c_last, 0) from public.worker_attempts a
                 where a.worker_id = p_worker_id)),
            'tasks', jsonb_build_object('at', 0, 'count', (
                select greatest(count(*) - c_tasks, 0) from public.task_attempts a where a.worker_id = p_worker_id))),
        'states', coalesce((
            select jsonb_object_agg(s.state, s.seconds)
              from (select m.state, sum(extract(epoch from coalesce(m.to_at, v_now) - m.at)) as seconds
                      from (select e.to_state as state, e.at, lead(e.at) over (order by e.id) as to_at
                              from public.worker_events e
                             where e.worker_id = p_worker_id and e.from_state is distinct from e.to_state) m
                     where m.state <> 'terminated' group by m.state) s), '{}'));
end
$$;

-- A row as JSON for the orchestrator.
create or replace function public.internal_worker_json(p_worker public.workers) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select to_jsonb(internal_worker_json.p_worker) || jsonb_build_object('tasks_running', (
        select count(*) from orchestrator.live q
         where q.worker_id = internal_worker_json.p_worker.id and q.state = 'running'))
$$;

create or replace function public.internal_worker_report(p_worker public.workers, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select public.internal_worker_json(internal_worker_report.p_worker)
        || public.internal_worker_costs(internal_worker_report.p_worker, internal_worker_report.p_now) || (
        select jsonb_build_object('tasks_done', a.completed, 'tasks_failed', a.failed)
          from (select coalesce(max(c.done_at), '-infinity') as until from public.fleet_chores c
                 where c.fleet = internal_worker_report.p_worker.fleet and c.name = 'totals') t
         cross join lateral orchestrator.worker_attempts(
               internal_worker_report.p_worker.id,
               case when internal_worker_report.p_worker.terminated_at < t.until - interval '1 day' then 'infinity'
                    else t.until end,
               t.until < internal_worker_report.p_now - interval '1 hour') a)
        || jsonb_build_object('trouble', (
        -- Why the last attempt at the present stage failed; NULL while none has failed.
        select jsonb_build_object('code', a.failure_code, 'cause', a.evidence ->> 'cause')
          from (select a.failure_code, a.evidence from public.worker_attempts a
                 where internal_worker_report.p_worker.status = 'spawning'
                     and a.worker_id = internal_worker_report.p_worker.id and a.outcome is not null
                   and a.stage in (internal_worker_report.p_worker.stage, case internal_worker_report.p_worker.stage
                       when 'intent' then 'pod_created' end)
                 order by a.id desc limit 1) a
         where a.failure_code is not null))
$$;

-- An amount of US dollars as it is stored. A value written by hand that cannot be an amount would hide what is spent.
-- Then the earlier amount stays, or p_none if there is none.
create or replace function public.internal_amount(p_new numeric, p_old numeric, p_none numeric) returns numeric
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select case when coalesce(internal_amount.p_new between 0 and 1000000, true) then internal_amount.p_new
                when internal_amount.p_old between 0 and 1000000 then internal_amount.p_old
                else internal_amount.p_none end
$$;

-- Before a change: refuses an illegal transition and sets the columns that follow from a legal one.
create or replace function public.internal_worker_changing() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_now();
    v_reason text := coalesce(nullif(current_setting('orchestrator.reason', true), ''), 'changed by hand');
begin
    new.price_usd_per_hour := public.internal_amount(new.price_usd_per_hour, old.price_usd_per_hour, null);
    new.reserved_usd_per_hour := public.internal_amount(new.reserved_usd_per_hour, old.reserved_usd_per_hour, 0);
    new.reserved_usd := public.internal_amount(new.reserved_usd, old.reserved_usd, 0);
    if tg_op = 'INSERT' then
        if new.status <> 'spawning' then
            perform public.internal_refuse('OR007', format('a worker cannot begin as %s', new.status),
                'every worker is spawned, by an intent', 'insert it as spawning');
        end if;
        new.state_since := v_now;
        new.stage_since := v_now;
        new.state_reason := v_reason;
        return new;
    end if;
    if new.status <> old.status then
        if not exists (select from public.worker_transitions t
                        where t.from_state = old.status and t.to_state = new.status) then
            perform public.internal_refuse('OR007',
                                           format('%s cannot go from %s to %s', old.id, old.status, new.status),
                'it is not in worker_transitions', 'spawning > active <> idle > terminating > terminated');
        end if;
        new.state_since := v_now;
        new.state_reason := v_reason;
        if new.status = 'terminated' then
            new.terminated_at := v_now;
            new.token_jti := null;
        elsif new.status = 'terminating' then
            new.ending_since := v_now;
        end if;
    end if;
    if new.stage is distinct from old.stage then
        new.stage_since := v_now;
    end if;
    if new.nonce is distinct from old.nonce then  -- a new launch: the facts of the old one do not apply to it
        new.last_heartbeat := null;
        new.claim_no := 0;
    end if;
    return new;
end
$$;

-- After a change, when it is certain (an insert may still give way to an existing row): writes history and costs, and
-- notifies. A change of the SSH address is an event of its own: a restarted pod may have its SSH at another port.
create or replace function public.internal_worker_changed() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_from_state text;
    v_from_stage text;
    v_from timestamptz;
    v_moved_to text;
begin
    if tg_op = 'UPDATE' then
        v_from_state := old.status;
        v_from_stage := old.stage;
        v_from := greatest(old.state_since, new.billing_since);
        if old.ssh_host is not null and (old.ssh_host, old.ssh_port) is distinct from (new.ssh_host, new.ssh_port) then
            v_moved_to := concat_ws(':', new.ssh_host, new.ssh_port);
        end if;
        if new.status <> old.status and new.billing_since is not null and v_from < new.state_since then
            insert into public.costs (worker_id, fleet, kind, from_at, to_at, usd)
            values (old.id, old.fleet,
                    case old.status when 'spawning' then 'booting' when 'active' then 'busy' when 'idle' then 'idle'
                                    else 'draining' end,
                    v_from, new.state_since,
                    -- If RunPod never shows a price, the time still has a cost: otherwise the daily budget would have
                    -- no effect.
                    coalesce(new.price_usd_per_hour, new.reserved_usd_per_hour, 0)
                        * extract(epoch from new.state_since - v_from) / 3600);
        end if;
    end if;
    if v_from_state is distinct from new.status or v_from_stage is distinct from new.stage
       or v_moved_to is not null then
        insert into public.worker_events
            (worker_id, fleet, from_state, to_state, from_stage, to_stage, reason, term, actor, at, detail)
        values (new.id, new.fleet, v_from_state, new.status, v_from_stage, new.stage,
                coalesce(nullif(current_setting('orchestrator.reason', true), ''), 'changed by hand'),
                nullif(current_setting('orchestrator.term', true), '')::bigint,
                coalesce(nullif(current_setting('orchestrator.actor', true), ''), session_user),
                public.internal_now(),
                jsonb_strip_nulls(jsonb_build_object('exit_cause', new.exit_cause, 'failure_code', new.failure_code,
                                                     'pod_id', new.pod_id, 'waiting_for', new.waiting_for,
                                                     'ssh', v_moved_to)));
    end if;
    perform pg_notify('orchestrator_fleet', new.id);
    return null;
end
$$;

-- When a worker leaves spawning: records the end of its bring-up and, if it was promoted, its release. Tasks that
-- waited for that release become due.
create or replace function public.internal_bringup_ended() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    new.bringup_ended_at := public.internal_now();
    if new.status = 'active' then
        new.promoted_at := new.bringup_ended_at;
        if new.release is not null then
            insert into public.releases as r (fleet, release, promoted_at)
            values (new.fleet, new.release, new.promoted_at)
            on conflict (fleet, release) do update set promoted_at = excluded.promoted_at
             where r.promoted_at < excluded.promoted_at - interval '1 minute';  -- many are promoted at once
            -- the first: waiting tasks become due
            if not public.internal_is_here(new.fleet, new.pool, new.release) then
                perform orchestrator.write_each('due', array(
                    select q.task_id from orchestrator.live q join public.tasks t on t.id = q.task_id
                     where q.pool = new.pool and q.state = 'waits_for_time' and t.failure_code = 'EARLIER_RELEASE'));
            end if;
        end if;
    end if;
    return new;
end
$$;

-- Events are append-only.
create or replace function public.internal_events_are_final() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    perform public.internal_refuse('OR007', format('%s is append-only', tg_table_name));
    return null;
end
$$;
