-- A pod whose create call got no answer costs money from that call on, and not from when somebody found it: that may be an
-- hour later, where the orchestrator was gone meanwhile. `billed_s` says for how long it may have been there unseen.

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
        'deadline_s', 'next_attempt_s', 'unbilled_s', 'billed_s'], 'p_fields');
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
        perform public.internal_rescue(p_worker_id, v_now);
        update public.worker_attempts a set ended_at = v_now, outcome = 'lost'
         where a.worker_id = p_worker_id and a.ended_at is null;
    end if;
    return jsonb_build_object('worker', public.internal_worker_json(v_new));
end
$$;
