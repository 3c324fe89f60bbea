-- The heartbeats of many workers in one statement, as the gateway collects them of agents that hold no task. Each counts
-- only under the launch and the token that its worker has now. Whoever is not in the answer is to be asked about alone:
-- that says why; or its row is locked, and must not keep the others waiting.
create function public.fleet_heartbeats(p_beats jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
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

do $$
declare
    v_role name;
begin
    revoke all on function public.fleet_heartbeats(jsonb, timestamptz) from public;
    for v_role in
        select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function public.fleet_heartbeats(jsonb, timestamptz) from %I', v_role);
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        grant execute on function public.fleet_heartbeats(jsonb, timestamptz) to service_role;
    end if;
end
$$;
