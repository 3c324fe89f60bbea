-- Heartbeats of many workers at once, and leases that the leader renews.

-- Renews the leases of a worker's running tasks. The worker sends no heartbeat, but SSH has shown that its agent calls
-- and gets no answer. A task of a program of the user's own has no lease. Returns the number of tasks; a rescue skips
-- those that another transaction has locked, too.
create or replace function public.fleet_keep_tasks(
    p_fleet text, p_term bigint, p_worker_id text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_count int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_keep_tasks');
    update orchestrator.live q set lease_expires_at = v_now + w.lease_s * interval '1 second'
      from public.workers w
     where w.id = p_worker_id and w.fleet = p_fleet and w.status <> 'terminated'
       and q.ctid = any (array(
               select l.ctid from orchestrator.live l
                where l.worker_id = p_worker_id and l.state = 'running' and l.nonce is not null
                  for update skip locked));
    get diagnostics v_count = row_count;
    return jsonb_build_object('tasks', v_count);
end
$$;

-- Heartbeats of many workers in one statement. The gateway collects them from agents that hold no task. Each counts
-- only under the current launch and token of its worker. A worker that is missing in the answer must call alone: then
-- it learns the reason. A locked row is also left out, so that it does not delay the others.
create or replace function public.fleet_heartbeats(p_beats jsonb, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_beat record;
    v_answers jsonb;
begin
    for v_try in 1..2 loop  -- all at once; if one is invalid, again, each in a block of its own
        begin
            v_answers := '{}';
            for v_beat in
                select w.id, w.nonce, b.health, b.logs
                  from jsonb_to_recordset(p_beats) b (worker_id text, nonce text, jti text, health jsonb, logs jsonb)
                  join public.workers w on w.id = b.worker_id and w.nonce = b.nonce and w.token_jti = b.jti
                 where w.status <> 'terminated'
                   for no key update of w skip locked loop
                v_answers := v_answers || public.internal_heartbeat(
                    v_beat.id, v_beat.nonce, v_beat.health, v_beat.logs, p_now, v_try = 2);
            end loop;
            return v_answers;
        exception when others or assert_failure then
            if v_try = 2 or public.internal_is_transient(sqlstate) then
                raise;
            end if;
        end;
    end loop;
end
$$;

-- Returns {worker: answer} of one heartbeat without tasks, or {} for an invalid one if `p_alone`.
create or replace function public.internal_heartbeat(
    p_worker_id text, p_nonce text, p_health jsonb, p_logs jsonb, p_now timestamptz, p_alone boolean
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if not p_alone then
        return jsonb_build_object(p_worker_id,
                                  public.worker_heartbeat(p_worker_id, p_nonce, '[]', p_health, p_logs, p_now));
    end if;
    return public.internal_heartbeat(p_worker_id, p_nonce, p_health, p_logs, p_now, false);
exception when others or assert_failure then
    if not p_alone or public.internal_is_transient(sqlstate) then
        raise;
    end if;
    return '{}';
end
$$;
