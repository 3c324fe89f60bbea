-- A heartbeat is answered by the database, which may be there while nobody leads the fleet: through Supabase's PostgREST for
-- as long as the project lives. So the answer says whether anybody leads; where nobody has for DEADMAN_TIMEOUT_SEC, the agent
-- ends what it holds in good order and has its pod stopped, which nobody else would do.

create or replace function public.worker_heartbeat(p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb,
                                        p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
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
                        else coalesce(w.agent, '{}') || jsonb_build_object('nonce', p_nonce) end
     where w.id = p_worker_id;
    if v_worker.last_heartbeat is null then
        perform pg_notify('orchestrator_fleet', p_worker_id);
    end if;

    select array_agg(l.id) into v_held from (
        select t.id from jsonb_array_elements(coalesce(p_tasks, '[]')) n
          join public.tasks t on t.id = (n->>'id')::uuid and t.attempts = (n->>'attempt')::int
         where t.worker_id = p_worker_id and t.status = 'In Progress'
         order by t.id for update of t) l;
    if v_held is not null then
        update public.tasks t
           set lease_expires_at = v_now + v_worker.lease_s * interval '1 second',
               progress = coalesce(nullif(n->'progress', 'null'), t.progress),
               progress_at = case when coalesce(nullif(n->'progress', 'null'), t.progress) is distinct from t.progress
                                  then v_now else t.progress_at end
          from jsonb_array_elements(p_tasks) n
         where t.id = any (v_held) and t.id = (n->>'id')::uuid and t.attempts = (n->>'attempt')::int;
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
