-- Records of the leader: bring-up attempts, decisions, offers, and machines and places that failed.

-- A bring-up has one open attempt at a time. An attempt that is still open was left by an orchestrator that died.
create or replace function public.fleet_attempt_open(
    p_fleet text, p_term bigint, p_worker_id text, p_stage text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_id bigint;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_attempt_open');
    perform from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for no key update;
    if not found then
        perform public.internal_refuse('OR005', format('no worker %s in fleet %s', p_worker_id, p_fleet));
    end if;
    update public.worker_attempts a set ended_at = v_now, outcome = 'lost'
     where a.worker_id = p_worker_id and a.ended_at is null;
    insert into public.worker_attempts (worker_id, stage, attempt, term, started_at)
    select p_worker_id, p_stage, count(*) + 1, p_term, v_now
      from public.worker_attempts a where a.worker_id = p_worker_id and a.stage = p_stage
    returning id into v_id;
    return jsonb_build_object('id', v_id);
end
$$;

create or replace function public.fleet_attempt_close(
    p_fleet text, p_term bigint, p_id bigint, p_outcome text, p_failure_code text, p_exception_type text,
    p_evidence jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_attempt_close');
    perform public.internal_check_size(p_evidence, 1048576, 'p_evidence');
    update public.worker_attempts a
       set ended_at = v_now, outcome = p_outcome, failure_code = p_failure_code, exception_type = p_exception_type,
           evidence = p_evidence
     where a.id = p_id and a.ended_at is null;
    if not found and not exists (select from public.worker_attempts a where a.id = p_id) then
        perform public.internal_refuse('OR007', format('there is no attempt %s', p_id));
    end if;
    return '{}';
end
$$;

-- Records a suspected cause and evidence of an open attempt. Closing it overwrites them.
create or replace function public.fleet_attempt_note(
    p_fleet text, p_term bigint, p_id bigint, p_failure_code text, p_evidence jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_attempt_note');
    perform public.internal_check_size(p_evidence, 1048576, 'p_evidence');
    update public.worker_attempts a set failure_code = p_failure_code, evidence = p_evidence
     where a.id = p_id and a.ended_at is null;
    return jsonb_build_object('noted', found);
end
$$;

create or replace function public.fleet_record_decision(
    p_fleet text, p_term bigint, p_decision jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_last public.decisions;
    v_id bigint;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_record_decision');
    perform public.internal_check_keys(p_decision, array['pool', 'rule', 'target', 'inputs', 'actions', 'blocked'],
                                       'p_decision');
    select * into v_last from public.decisions d
     where d.fleet = p_fleet and d.pool = p_decision->>'pool' order by d.id desc limit 1;
    if v_last.id is null or v_last.rule is distinct from p_decision->>'rule'
       or v_last.target is distinct from (p_decision->>'target')::int
       or v_last.actions is distinct from coalesce(p_decision->'actions', '[]')
       or v_last.blocked is distinct from coalesce(p_decision->'blocked', '[]') then
        insert into public.decisions (fleet, pool, term, at, rule, target, inputs, actions, blocked)
        values (p_fleet, p_decision->>'pool', p_term, v_now, p_decision->>'rule', (p_decision->>'target')::int,
                coalesce(p_decision->'inputs', '{}'), coalesce(p_decision->'actions', '[]'),
                coalesce(p_decision->'blocked', '[]'))
        returning id into v_id;
    end if;
    return jsonb_build_object('id', v_id);
end
$$;

create or replace function public.fleet_decisions(p_fleet text, p_limit int, p_now timestamptz default null)
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('decisions', coalesce((
        select jsonb_agg(to_jsonb(d.*) order by d.id desc) from (
            select * from public.decisions d where d.fleet = fleet_decisions.p_fleet
             order by d.id desc limit least(greatest(coalesce(fleet_decisions.p_limit, 100), 0), 10000)) d), '[]'))
$$;

-- Records a refusal or a success of an offer. An offer that was never refused has no probe budget: least() ignores
-- null.
create or replace function public.fleet_note_offer(
    p_fleet text, p_term bigint, p_key text, p_refused boolean, p_code text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_note_offer');
    insert into public.offers as o (fleet, key, cooldown_until, refusals, last_refusal, last_code, last_success,
                                    probe_budget)
    values (p_fleet, p_key, case when p_refused then v_now + interval '30 seconds' end,
            case when p_refused then 1 else 0 end, case when p_refused then v_now end,
            case when p_refused then p_code end, case when not p_refused then v_now end, case when p_refused then 1 end)
    on conflict (fleet, key) do update
       set refusals = case when p_refused then o.refusals + 1 else 0 end,
           cooldown_until = case when p_refused
                                 then v_now + least(30 * 2 ^ least(o.refusals, 10), 600) * interval '1 second' end,
           probe_budget = case when p_refused then 1
                                when o.probe_budget is not null then least(o.probe_budget * 2, 1024) end,
           last_refusal = coalesce(excluded.last_refusal, o.last_refusal),
           last_code = coalesce(excluded.last_code, o.last_code),
           last_success = coalesce(excluded.last_success, o.last_success);
    return '{}';
end
$$;

-- Records one failure of a machine or place. It is avoided for p_avoid_s from its p_after-th strike on. A strike that
-- is more than p_memory_s older than the next one is forgotten.
create or replace function public.fleet_strike(
    p_fleet text, p_term bigint, p_key text, p_code text, p_evidence jsonb, p_avoid_s numeric, p_after int,
    p_memory_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_what jsonb := jsonb_build_array(coalesce(nullif(p_evidence, 'null'), '{}')
                                      || jsonb_build_object('code', p_code, 'at', v_now));
    v_host public.hosts;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_strike');
    perform public.internal_check_size(p_evidence, 65536, 'p_evidence');
    if coalesce(p_key, '') = '' or coalesce(p_code, '') = '' or p_avoid_s is null or p_after is null
       or p_memory_s is null then
        perform public.internal_refuse('OR007', 'a strike needs p_key, p_code, p_avoid_s, p_after and p_memory_s');
    end if;
    delete from public.hosts h
     where h.fleet = p_fleet and h.last_failure < v_now - interval '90 days' and coalesce(h.avoid_until <= v_now, true);
    insert into public.hosts as h (fleet, key, strikes, evidence, last_failure)
    values (p_fleet, p_key, 1, v_what, v_now)
    on conflict (fleet, key) do update
       set strikes = case when h.last_failure < v_now - p_memory_s * interval '1 second' then 1 else h.strikes + 1 end,
           evidence = (select jsonb_agg(e.what order by e.n)
                         from jsonb_array_elements(v_what || h.evidence) with ordinality e (what, n) where e.n <= 10),
           last_failure = v_now
    returning * into v_host;
    if v_host.strikes >= p_after then
        update public.hosts h set avoid_until = greatest(h.avoid_until, v_now + p_avoid_s * interval '1 second')
         where h.fleet = p_fleet and h.key = p_key returning * into v_host;
    end if;
    return jsonb_build_object('strikes', v_host.strikes, 'avoid_until', v_host.avoid_until);
end
$$;

-- Machines and places that failed, the newest failure first; with p_avoided only those that are avoided now.
create or replace function public.fleet_hosts(p_fleet text, p_avoided boolean, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return jsonb_build_object('now', v_now, 'hosts', coalesce((
        select jsonb_agg(to_jsonb(h.*) - 'fleet'
                         || jsonb_build_object('avoided', coalesce(h.avoid_until > v_now, false))
                         order by h.last_failure desc, h.key)
          from (select * from public.hosts h
                 where h.fleet = p_fleet and (h.avoid_until > v_now or not coalesce(p_avoided, false))
                 order by h.last_failure desc, h.key limit 1000) h),
        '[]'));
end
$$;
