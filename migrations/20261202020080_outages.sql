-- Outages use up no attempt. While the object store is away the leader says so here, and no worker of its fleet claims.
-- A lease that lapsed while nobody could renew it (the database or the orchestrator was away) is no loss of its worker.

alter table public.fleet_lease add column unled_from timestamptz;
comment on column public.fleet_lease.unled_from is
    'When the lease before this term ended: from then until `since` no leader was there, or it could not reach the database.';

create or replace function public.fleet_store_away(
    p_fleet text, p_term bigint, p_reason text, p_since timestamptz, p_for_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_ended int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_store_away');
    if p_reason is null then
        delete from public.fleet_settings s where s.fleet = p_fleet and s.name = 'store_away';
        get diagnostics v_ended = row_count;
        if v_ended > 0 then  -- claims that wait look again
            perform pg_notify('orchestrator_tasks', p.pool)
               from (select distinct w.pool from public.workers w
                      where w.fleet = p_fleet and w.status in ('active', 'idle')) p;
        end if;
    else
        if p_since is null or p_for_s is null or p_for_s <= 0 or p_for_s > 3600 then
            perform public.internal_refuse('OR007', 'p_since must be given, and p_for_s be from 0 to 3600 seconds');
        end if;
        insert into public.fleet_settings (fleet, name, value, reason, set_at, expires_at)
        values (p_fleet, 'store_away', 'true', left(p_reason, 1000), p_since, v_now + p_for_s * interval '1 second')
        on conflict (fleet, name) do update
           set reason = excluded.reason, set_at = excluded.set_at, expires_at = excluded.expires_at;
    end if;
    return jsonb_build_object('away', p_reason is not null);
end
$$;

create or replace function public.internal_is_store_away(p_fleet text, p_now timestamptz) returns boolean
language sql stable security definer set search_path = '' as $$
    select exists (select from public.fleet_settings s
                    where s.fleet = p_fleet and s.name = 'store_away' and s.expires_at > p_now)
$$;

-- Whether a lease lapsed in an outage: its worker renewed it until about when the leader's own lease was last renewed, it
-- ended before, or soon after, there was a leader again, and the outage was long enough to let it lapse.
create or replace function public.internal_is_outage(p_fleet text, p_lease_s numeric, p_lease_expires_at timestamptz)
returns boolean
language sql stable security definer set search_path = '' as $$
    select exists (
        select from public.fleet_lease l
         where l.fleet = p_fleet and l.unled_from is not null
           and l.since - l.unled_from >= greatest(p_lease_s - 20, p_lease_s / 2) * interval '1 second'
           and p_lease_expires_at - p_lease_s * interval '1 second' >= l.unled_from - interval '60 seconds'
           and p_lease_expires_at > l.unled_from and p_lease_expires_at < l.since + interval '30 seconds')
$$;

create or replace function public.fleet_lead(p_fleet text, p_holder text, p_ttl_s numeric, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
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
               unled_from = case when l.term > 0 then l.expires_at end,
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

create or replace function public.internal_claim(p_worker public.workers, p_nonce text, p_claim_no bigint, p_batch integer, p_wait_s numeric, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_wanted text := public.internal_wanted(p_worker);
    v_tasks jsonb;
    v_status text := p_worker.status;
    v_claim_no bigint := p_worker.claim_no;
    v_spent boolean := false;
begin
    if p_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'tasks', '[]'::jsonb);
    end if;
    if p_claim_no is null or p_claim_no < 1 or p_batch is null or p_batch not between 1 and 100 then
        perform public.internal_refuse('OR007', 'p_claim_no counts from 1 and p_batch is from 1 to 100',
            format('got p_claim_no %s, p_batch %s', p_claim_no, p_batch));
    end if;
    if v_wanted <> 'run' or p_worker.status not in ('spawning', 'active', 'idle') then
        v_tasks := public.internal_claimed(p_worker.id, p_nonce, p_claim_no);
    elsif p_claim_no < v_claim_no
       or p_claim_no <= (select max(a.claim_no) from public.task_attempts a
                          where a.worker_id = p_worker.id and a.nonce = p_nonce) then
        v_tasks := public.internal_claimed(p_worker.id, p_nonce, p_claim_no);
        v_spent := v_tasks = '[]';
    else
        if p_worker.status <> 'spawning' and p_worker.held_back is null then
            if not public.internal_is_store_away(p_worker.fleet, p_now) then
                v_tasks := public.internal_take(p_worker, p_claim_no, p_batch, p_now);
            end if;
            if v_tasks is not null then
                v_status := 'active';
            elsif p_worker.status = 'active' and not exists (
                    select from public.tasks t where t.worker_id = p_worker.id and t.status = 'In Progress') then
                v_status := 'idle';
            end if;
        end if;
        if v_tasks is null then
            v_claim_no := p_claim_no;
            if coalesce(p_wait_s, 0) <= 0 or public.internal_is_pod() and public.internal_is_over_postgrest() then
                v_claim_no := p_claim_no + 1;
            end if;
        end if;
        if v_status <> p_worker.status then
            perform public.internal_because('worker', null, case v_status
                when 'active' then format('claimed %s of pool %s', jsonb_array_length(v_tasks), p_worker.pool)
                else format('asked for work of pool %s and there was none', p_worker.pool) end);
            update public.workers w set status = v_status, claim_no = v_claim_no where w.id = p_worker.id;
        elsif v_claim_no <> p_worker.claim_no then
            update public.workers w set claim_no = v_claim_no where w.id = p_worker.id;
        end if;
    end if;
    return jsonb_build_object('outcome', 'ok', 'wanted', v_wanted, 'pool', p_worker.pool, 'state', v_status,
                              'tasks', coalesce(v_tasks, '[]'), 'spent', v_spent);
end
$$;

create or replace function public.internal_rescue(p_worker_id text, p_now timestamp with time zone, p_over_s numeric DEFAULT 0, p_fleet text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_task record;
    v_tasks jsonb := '[]';
    v_ids uuid[];
    v_failure jsonb;
begin
    if p_worker_id is not null then
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t where t.worker_id = p_worker_id and t.status = 'In Progress'
             order by t.id for no key update) l;
    else
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t
             where t.status = 'In Progress'
               and (coalesce(t.lease_expires_at, 'infinity') = 'infinity' or t.lease_expires_at <= p_now)
               and public.internal_is_lost(t, p_now, p_over_s)
               and (p_fleet is null or not public.internal_is_anothers(p_fleet, t.worker_id, p_now))
             order by t.id for no key update skip locked) l;
    end if;
    for v_task in
        select t.id, t.worker_id, t.lease_expires_at, t.updated_at,
               t.lease_expires_at < 'infinity' is true or w.status is not distinct from 'terminated' as leased,
               case when w.exit_cause = 'task_stuck' then
                   extract(epoch from p_now - coalesce(t.progress_at, t.generation_started_at)) end as still_s,
               coalesce((w.metadata->>'stuck_s')::numeric, 0) as stuck_s,
               public.internal_is_outage(w.fleet, w.lease_s, t.lease_expires_at) as outage
          from public.tasks t left join public.workers w on w.id = t.worker_id
         where t.id = any (v_ids) and t.status = 'In Progress' order by t.id loop
        if v_task.outage and v_task.still_s is null then
            v_tasks := v_tasks || jsonb_build_object(
                'id', v_task.id, 'worker_id', v_task.worker_id,
                'outcome', public.internal_give_up(v_task.id, 'released', jsonb_build_object(
                    'code', 'RELEASED', 'message', format(
                        'Worker %s could not renew its lease, which ended %s: the database or the orchestrator was away',
                        v_task.worker_id, v_task.lease_expires_at)), false, false, p_now));
            continue;
        end if;
        v_failure := case
            when v_task.still_s >= v_task.stuck_s then jsonb_build_object(
                'code', 'TASK_STUCK', 'exit_class', 'timeout',
                'message', format('No progress for %s s; worker %s was ended for that', floor(v_task.still_s),
                                  v_task.worker_id))
            when p_worker_id is not null then jsonb_build_object(
                'code', 'WORKER_LOST', 'exit_class', 'lost', 'message', format('Worker %s is gone', v_task.worker_id))
            when not v_task.leased then jsonb_build_object(
                'code', 'NO_HOLDER', 'exit_class', 'lost',
                'message', format('It was In Progress without a lease, and it did not change since %s', v_task.updated_at))
            else jsonb_build_object(
                'code', 'LEASE_EXPIRED', 'exit_class', 'lost',
                'message', format('Worker %s did not renew its lease, which ended %s', v_task.worker_id,
                                  v_task.lease_expires_at)) end;
        v_tasks := v_tasks || jsonb_build_object(
            'id', v_task.id, 'worker_id', v_task.worker_id,
            'outcome', public.internal_give_up(v_task.id, 'lost', v_failure || '{"point": "Processing"}', true, false, p_now));
    end loop;
    return v_tasks;
end
$$;

do $$
declare
    v_role name;
    v_function text;
begin
    foreach v_function in array array['internal_is_store_away(text, timestamptz)',
                                      'internal_is_outage(text, numeric, timestamptz)',
                                      'fleet_store_away(text, bigint, text, timestamptz, numeric, timestamptz)'] loop
        execute format('revoke all on function public.%s from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function public.%s from %I', v_function, v_role);
        end loop;
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        execute format('grant execute on function public.%s to service_role', v_function);
    end if;
end
$$;
