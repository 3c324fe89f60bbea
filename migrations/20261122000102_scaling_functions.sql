-- Budgets, offers, pools and pauses; the intent and the move now carry a reservation.

-- Today's dollars (UTC), what the live workers may still cost, and what they cost an hour; p_without: a worker to leave out
-- of the latter two.
create function public.internal_spent(p_fleet text, p_without text, p_now timestamptz)
returns table (today_usd numeric, committed_usd numeric, hourly_usd numeric)
language sql stable security definer set search_path = '' as $$
    with day (began) as (
        select date_trunc('day', p_now, 'UTC')
    ), live as (
        select w.*, coalesce(w.price_usd_per_hour, w.reserved_usd_per_hour) as rate
          from public.workers w where w.fleet = p_fleet and w.status <> 'terminated'
    )
    select (select coalesce(sum(case when c.from_at >= d.began then c.usd
                                     else c.usd * extract(epoch from c.to_at - d.began)
                                          / nullif(extract(epoch from c.to_at - c.from_at), 0) end), 0)
              from public.costs c where c.fleet = p_fleet and c.to_at > d.began)
           + coalesce(sum(l.rate * extract(epoch from p_now - greatest(l.state_since, l.billing_since, d.began)) / 3600)
                      filter (where l.billing_since is not null), 0),
           coalesce(sum(greatest(l.reserved_usd - case when l.status = 'terminating'
                            then l.rate * extract(epoch from p_now - l.state_since) / 3600 else 0 end, 0))
                    filter (where l.id is distinct from p_without), 0),
           coalesce(sum(l.rate) filter (where l.id is distinct from p_without), 0)
      from day d left join live l on true group by d.began
$$;

-- Refuses (OR003) a reservation that does not fit. One at a time in a fleet: whoever comes second sees what the first took.
-- p_budget: {hourly_usd, daily_usd, useful_usd}; useful_usd is what it should be able to cost before it is ended again.
create function public.internal_check_budget(p_fleet text, p_worker_id text, p_usd numeric, p_usd_per_hour numeric,
                                             p_budget jsonb, p_now timestamptz)
returns void language plpgsql security definer set search_path = '' as $$
declare
    v_hourly numeric := (p_budget->>'hourly_usd')::numeric;
    v_daily numeric := (p_budget->>'daily_usd')::numeric;
    v_wanted numeric := p_usd + coalesce((p_budget->>'useful_usd')::numeric, 0);
    v_spent record;
begin
    if v_hourly is null and v_daily is null then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('orchestrator budget of ' || p_fleet, 0));
    select * into v_spent from public.internal_spent(p_fleet, p_worker_id, p_now);
    if v_spent.hourly_usd + p_usd_per_hour > v_hourly then
        perform public.internal_refuse('OR003', format('%s is over the hourly budget', p_worker_id),
            format('$%s/h running + $%s/h > MAX_HOURLY_COST_USD=%s', round(v_spent.hourly_usd, 4),
                   round(p_usd_per_hour, 4), v_hourly), 'raise MAX_HOURLY_COST_USD, or let a worker end');
    elsif v_spent.today_usd + v_spent.committed_usd + v_wanted > v_daily then
        perform public.internal_refuse('OR003', format('%s is over the budget of the day', p_worker_id),
            format('$%s spent + $%s committed + $%s > DAILY_BUDGET_USD=%s', round(v_spent.today_usd, 4),
                   round(v_spent.committed_usd, 4), round(v_wanted, 4), v_daily),
            'raise DAILY_BUDGET_USD, or wait for midnight UTC');
    end if;
end
$$;

-- The intent: committed before the provider is called, its reservation with it. A null term is an operator's request.
create or replace function public.fleet_spawn(p_fleet text, p_term bigint, p_worker jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_usd numeric := coalesce((p_worker->>'reserved_usd')::numeric, 0);
    v_usd_per_hour numeric := coalesce((p_worker->>'reserved_usd_per_hour')::numeric, 0);
    v_created int;
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    perform public.internal_check_keys(p_worker, array['id', 'pool', 'gpu_type', 'gpu_count', 'data_center', 'release',
        'reserved_usd', 'reserved_usd_per_hour', 'budget', 'heartbeat_s', 'lease_s', 'own_program', 'deadline_s', 'actor',
        'reason', 'metadata'], 'p_worker');
    perform public.internal_check_id(p_worker->>'id', 'the worker id');
    perform public.internal_check_id(coalesce(p_worker->>'pool', 'default'), 'the pool');
    if p_term is not null then
        perform public.internal_check_term(p_fleet, p_term, 'fleet_spawn');
    end if;
    if not exists (select from public.workers w where w.id = p_worker->>'id') then
        perform public.internal_check_budget(p_fleet, p_worker->>'id', v_usd, v_usd_per_hour, p_worker->'budget', v_now);
    end if;
    perform public.internal_because(
        coalesce(p_worker->>'actor', case when p_term is null then 'operator' else 'orchestrator' end), p_term,
        coalesce(p_worker->>'reason', 'spawn requested'));
    insert into public.workers (
        id, fleet, pool, status, stage, waiting_on, deadline_at, next_attempt_at, instance_type, gpu_type, gpu_count,
        data_center, release, reserved_usd, reserved_usd_per_hour, heartbeat_s, lease_s, own_program, metadata,
        created_at, last_heartbeat)
    values (
        p_worker->>'id', p_fleet, coalesce(p_worker->>'pool', 'default'), 'spawning', 'intent', 'orchestrator',
        v_now + coalesce((p_worker->>'deadline_s')::numeric, 30) * interval '1 second', v_now,
        coalesce(p_worker->>'gpu_type', 'unknown'), p_worker->>'gpu_type',
        coalesce((p_worker->>'gpu_count')::int, 1), p_worker->>'data_center', p_worker->>'release', v_usd, v_usd_per_hour,
        coalesce((p_worker->>'heartbeat_s')::numeric, 20), coalesce((p_worker->>'lease_s')::numeric, 60),
        coalesce((p_worker->>'own_program')::boolean, false),
        coalesce(nullif(p_worker->'metadata', 'null'), '{}'), v_now, null)
    on conflict (id) do nothing;
    get diagnostics v_created = row_count;
    return jsonb_build_object('created', v_created = 1);
end
$$;

-- Compare-and-set on one worker. p_fields holds columns, deadline_s / next_attempt_s in seconds from now, and with a new
-- reservation the budget that it must fit into.
create or replace function public.fleet_move(
    p_fleet text, p_term bigint, p_worker_id text, p_from text[], p_to text, p_stage text, p_reason text, p_fields jsonb,
    p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_fields jsonb := coalesce(nullif(p_fields, 'null'), '{}');
    v_old public.workers;
    v_new public.workers;
begin
    perform public.internal_check_keys(v_fields, array['pod_id', 'ssh_host', 'ssh_port', 'host_key', 'nonce', 'code_sha',
        'token_jti', 'price_usd_per_hour', 'gpu_type', 'data_center', 'machine_id', 'release', 'reserved_usd',
        'reserved_usd_per_hour', 'budget', 'waiting_on', 'waiting_for', 'exit_cause', 'failure_code', 'metadata',
        'deadline_s', 'next_attempt_s'], 'p_fields');
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
    v_new := jsonb_populate_record(v_old, v_fields - array['budget', 'metadata', 'deadline_s', 'next_attempt_s']);
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
           billing_since = case when v_old.pod_id is null and v_new.pod_id is not null then v_now
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
        perform public.internal_rescue(p_worker_id, v_now);
        update public.worker_attempts a set ended_at = v_now, outcome = 'lost'
         where a.worker_id = p_worker_id and a.ended_at is null;
    end if;
    return jsonb_build_object('worker', public.internal_worker_json(v_new));
end
$$;

-- 30 s of cool-down after a refusal, doubling up to 600 s; a success clears it. After it one create call probes the offer,
-- and each success doubles how many may be under way.
create or replace function public.fleet_note_offer(p_fleet text, p_term bigint, p_key text, p_refused boolean, p_code text,
                                                   p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_note_offer');
    insert into public.offers as o (fleet, key, cooldown_until, refusals, last_refusal, last_code, last_success, probe_budget)
    values (p_fleet, p_key, case when p_refused then v_now + interval '30 seconds' end,
            case when p_refused then 1 else 0 end, case when p_refused then v_now end,
            case when p_refused then p_code end, case when not p_refused then v_now end, case when p_refused then 1 end)
    on conflict (fleet, key) do update
       set refusals = case when p_refused then o.refusals + 1 else 0 end,
           cooldown_until = case when p_refused
                                 then v_now + least(30 * 2 ^ least(o.refusals, 10), 600) * interval '1 second' end,
           probe_budget = case when p_refused then 1 else least(o.probe_budget * 2, 1024) end,
           last_refusal = coalesce(excluded.last_refusal, o.last_refusal),
           last_code = coalesce(excluded.last_code, o.last_code),
           last_success = coalesce(excluded.last_success, o.last_success);
    return '{}';
end
$$;

-- What this fleet says of the types of tasks: p_pools is a list of {task_type, pool, timeout_s, max_attempts}. What it said
-- before and says no more is forgotten.
create function public.fleet_declare_pools(p_fleet text, p_term bigint, p_pools jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_type jsonb;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_declare_pools');
    for v_type in select value from jsonb_array_elements(coalesce(p_pools, '[]')) loop
        perform public.internal_check_keys(v_type, array['task_type', 'pool', 'timeout_s', 'max_attempts'], 'p_pools');
    end loop;
    delete from public.task_types t
     where t.fleet = p_fleet
       and t.task_type not in (select d->>'task_type' from jsonb_array_elements(coalesce(p_pools, '[]')) d);
    insert into public.task_types (task_type, fleet, pool, timeout_s, max_attempts, declared_at)
    select d->>'task_type', p_fleet, d->>'pool', (d->>'timeout_s')::numeric, (d->>'max_attempts')::int, v_now
      from jsonb_array_elements(coalesce(p_pools, '[]')) d
    on conflict (task_type) do update
       set fleet = excluded.fleet, pool = excluded.pool, timeout_s = excluded.timeout_s,
           max_attempts = excluded.max_attempts, declared_at = excluded.declared_at;
    return jsonb_build_object('declared', jsonb_array_length(coalesce(p_pools, '[]')));
end
$$;

-- The pauses in force: {pool: {reason, until}}; "*" stands for every pool.
create function public.internal_pauses(p_fleet text, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = '' as $$
    select coalesce(jsonb_object_agg(coalesce(nullif(substr(s.name, 8), ''), '*'),
                                     jsonb_build_object('reason', s.reason, 'until', s.expires_at)), '{}')
      from public.fleet_settings s
     where s.fleet = p_fleet and (s.name = 'paused' or s.name like 'paused:%') and coalesce(s.expires_at > p_now, true)
$$;

-- Stops spawning, in one pool or (null) in all, for a time or (null) until it is resumed. A null reason resumes; without a
-- pool that ends every pause.
drop function public.fleet_pause(text, text, timestamptz);
create function public.fleet_pause(p_fleet text, p_pool text, p_reason text, p_for_s numeric,
                                   p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    if p_pool is not null then
        perform public.internal_check_id(p_pool, 'p_pool');
    end if;
    if p_for_s <= 0 then
        perform public.internal_refuse('OR007', 'a pause must last longer than nothing', format('got %s s', p_for_s));
    end if;
    if p_reason is null then
        delete from public.fleet_settings s
         where s.fleet = p_fleet
           and case when p_pool is null then s.name = 'paused' or s.name like 'paused:%'
                    else s.name = 'paused:' || p_pool end;
    else
        insert into public.fleet_settings (fleet, name, value, reason, set_at, expires_at)
        values (p_fleet, coalesce('paused:' || p_pool, 'paused'), 'true', p_reason, v_now,
                v_now + p_for_s * interval '1 second')
        on conflict (fleet, name) do update
           set value = excluded.value, reason = excluded.reason, set_at = excluded.set_at,
               expires_at = excluded.expires_at;
    end if;
    perform pg_notify('orchestrator_fleet', '');
    return jsonb_build_object('paused', public.internal_pauses(p_fleet, v_now));
end
$$;
