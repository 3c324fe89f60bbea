-- Heartbeats of workers.

-- A heartbeat of a ready worker sets the clock of its row: the next one is due at next_attempt_at, and its tasks are
-- its own until deadline_at. A spawning or terminating row keeps the clock of its stage. The answer says whether
-- anybody leads the fleet: if nobody has for DEADMAN_TIMEOUT_SEC, the agent ends its tasks and has its pod stopped.
create or replace function public.worker_heartbeat(
    p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_held uuid[];
    v_cancel jsonb;
    v_fenced jsonb;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'cancel', '[]'::jsonb, 'fenced', '[]'::jsonb);
    end if;
    if jsonb_typeof(coalesce(p_tasks, '[]')) <> 'array' or jsonb_array_length(coalesce(p_tasks, '[]')) > 1000 then
        perform public.internal_refuse('OR007', 'p_tasks must be a list of at most 1000 {id, attempt, progress}');
    end if;
    perform public.internal_check_size(p_tasks, 1048576, 'p_tasks');
    perform public.internal_check_size(p_health, 65536, 'p_health');
    perform public.internal_check_size(p_logs, 4096, 'p_logs');
    if p_logs is not null and p_logs <> 'null' and (
           jsonb_typeof(p_logs) <> 'object'
           or exists (select from jsonb_each(p_logs) l
                       where jsonb_typeof(l.value) <> 'number' or l.value::text !~ '^[0-9]{1,15}$')) then
        perform public.internal_refuse('OR007', 'p_logs must be {stream: bytes}', left(p_logs::text, 200));
    end if;

    update public.workers w
       set last_heartbeat = v_now, health = coalesce(p_health, w.health),
           log_bytes = case when jsonb_typeof(p_logs) = 'object'
                            then w.log_bytes || jsonb_build_object(p_nonce, p_logs) else w.log_bytes end,
           agent = case when w.agent->>'nonce' = p_nonce then w.agent
                        else coalesce(w.agent, '{}') || jsonb_build_object('nonce', p_nonce) end,
           deadline_at = case when w.status in ('active', 'idle') then v_now + w.lease_s * interval '1 second'
                              else w.deadline_at end,
           next_attempt_at = case when w.status in ('active', 'idle') then v_now + w.heartbeat_s * interval '1 second'
                                  else w.next_attempt_at end
     where w.id = p_worker_id;
    if v_worker.last_heartbeat is null then
        perform pg_notify('orchestrator_fleet', p_worker_id);
    end if;

    select array_agg(l.id) into v_held from (
        select t.id from jsonb_array_elements(coalesce(p_tasks, '[]')) n
          join public.tasks t on t.id = (n->>'id')::uuid and t.attempts = (n->>'attempt')::int
         where t.worker_id = p_worker_id and t.status = 'In Progress'
         order by t.id for no key update of t) l;
    if v_held is not null then
        perform public.internal_renew(v_held, p_tasks, v_worker.lease_s, v_now);
    end if;
    select coalesce(jsonb_agg(t.id), '[]') into v_cancel
      from public.tasks t where t.id = any (v_held) and t.cancel_requested_at is not null;
    select coalesce(jsonb_agg(n->>'id'), '[]') into v_fenced
      from jsonb_array_elements(coalesce(p_tasks, '[]')) n where (n->>'id')::uuid <> all (coalesce(v_held, '{}'));
    return jsonb_build_object('outcome', 'ok', 'wanted', public.internal_wanted(v_worker), 'cancel', v_cancel,
                              'fenced', v_fenced, 'heartbeat_s', v_worker.heartbeat_s, 'lease_s', v_worker.lease_s,
                              'led', exists (select from public.fleet_lease l
                                              where l.fleet = v_worker.fleet and l.expires_at > v_now));
end
$$;

-- Renew the leases of these tasks, which the caller has locked: of each that the database lets change.
create or replace function public.internal_renew(p_ids uuid[], p_tasks jsonb, p_lease_s numeric, p_now timestamptz)
returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off as $$
declare
    v_id uuid;
begin
    update public.tasks t
       set lease_expires_at = p_now + p_lease_s * interval '1 second',
           progress = coalesce(nullif(n->'progress', 'null'), t.progress),
           progress_at = case when coalesce(nullif(n->'progress', 'null'), t.progress) is distinct from t.progress
                              then p_now else t.progress_at end
      from jsonb_array_elements(p_tasks) n
     where t.id = any (p_ids) and t.id = (n->>'id')::uuid and t.attempts = (n->>'attempt')::int;
    perform public.internal_fire_deferred();
exception when others then  -- a user's trigger or constraint may raise anything
    if public.internal_is_passing(sqlstate) then
        raise;
    end if;
    if cardinality(p_ids) > 1 then
        foreach v_id in array p_ids loop
            perform public.internal_renew(array[v_id], p_tasks, p_lease_s, p_now);
        end loop;
    end if;  -- otherwise its lease runs out
end
$$;

-- Heartbeats of many workers in one statement. The gateway collects them from agents that hold no task. Each counts
-- only under the current launch and token of its worker. A worker that is missing in the answer needs a call of its
-- own, which says why, or its row is locked and must not delay the others.
create or replace function public.fleet_heartbeats(p_beats jsonb, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    v_beat record;
    v_answers jsonb := '{}';
begin
    for v_beat in
        select w.id, w.nonce, b.health, b.logs
          from jsonb_to_recordset(p_beats) b (worker_id text, nonce text, jti text, health jsonb, logs jsonb)
          join public.workers w on w.id = b.worker_id and w.nonce = b.nonce and w.token_jti = b.jti
         where w.status <> 'terminated'
           for update of w skip locked loop
        v_answers := v_answers || jsonb_build_object(
            v_beat.id, public.worker_heartbeat(v_beat.id, v_beat.nonce, '[]', v_beat.health, v_beat.logs, p_now));
    end loop;
    return v_answers;
end
$$;
