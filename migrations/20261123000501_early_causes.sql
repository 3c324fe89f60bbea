-- What a stage suspects before it has ended, and what an explanation needs to say it in time.

-- What is suspected and seen in an attempt that goes on; closing it writes the last word over this one.
create function public.fleet_attempt_note(p_fleet text, p_term bigint, p_id bigint, p_failure_code text, p_evidence jsonb,
                                          p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_attempt_note');
    perform public.internal_check_size(p_evidence, 1048576, 'p_evidence');
    update public.worker_attempts a set failure_code = p_failure_code, evidence = p_evidence
     where a.id = p_id and a.ended_at is null;
    return jsonb_build_object('noted', found);
end
$$;

-- With the end of its lease, which tells how long it has said nothing.
create or replace function public.internal_leader(p_fleet text, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = '' as $$
    select jsonb_build_object('holder', l.holder, 'since', l.since, 'term', l.term, 'expires_at', l.expires_at)
      from public.fleet_lease l where l.fleet = p_fleet and l.expires_at > p_now
$$;

-- One task: what it waits for, who is before it, what its pool's workers do, and each of its attempts.
create or replace function public.fleet_task_explain(p_fleet text, p_task_id uuid, p_now timestamptz default null)
returns jsonb language plpgsql volatile security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_pauses(p_fleet, v_now),
        'task', case when v_task.id is not null then to_jsonb(v_task) end,
        'decision', public.internal_pool_decision(p_fleet, v_task.pool),
        'ahead', (select count(*) from public.tasks t
                   where t.pool = v_task.pool and t.status = 'Queued' and not t.blocked
                     and coalesce(t.run_after <= v_now, true)
                     and (-t.priority, t.created_at, t.id) < (-v_task.priority, v_task.created_at, v_task.id)),
        'workers', coalesce((
            select jsonb_object_agg(s.status, s.n)
              from (select w.status, count(*) as n from public.workers w
                     where w.fleet = p_fleet and w.pool = v_task.pool and w.status <> 'terminated'
                     group by w.status) s), '{}'),
        'worker', (select jsonb_build_object('id', w.id, 'status', w.status, 'last_heartbeat', w.last_heartbeat,
                                             'exit_cause', w.exit_cause, 'failure_code', w.failure_code)
                     from public.workers w where w.id = v_task.worker_id),
        'dependencies', coalesce((
            select jsonb_agg(jsonb_build_object(
                       'id', n.id, 'task_type', d.task_type, 'status', d.status, 'worker_id', d.worker_id,
                       'run_after', d.run_after, 'failure_code', d.failure_code, 'error_message', d.error_message)
                       order by n.place)
              from unnest(v_task.depends_on) with ordinality n (id, place)
              left join public.tasks d on d.id = n.id), '[]'),
        'dependants', (select count(*) from public.tasks t
                        where t.blocked and t.status = 'Queued' and t.depends_on && array[p_task_id]),
        'attempts', coalesce((
            select jsonb_agg(to_jsonb(a) || jsonb_build_object(
                       'price_usd_per_hour', w.price_usd_per_hour, 'worker_status', w.status,
                       'worker_exit_cause', w.exit_cause, 'worker_failure_code', w.failure_code) order by a.attempt)
              from public.task_attempts a left join public.workers w on w.id = a.worker_id
             where a.task_id = p_task_id), '[]')));
end
$$;

-- costs_spent has the same key, and the columns that a sum needs besides.
drop index public.costs_window;

do $$
declare
    v_role name;
begin
    revoke all on function public.fleet_attempt_note(text, bigint, bigint, text, jsonb, timestamptz) from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function public.fleet_attempt_note(text, bigint, bigint, text, jsonb, timestamptz)'
                       ' from %I', v_role);
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        grant execute on function public.fleet_attempt_note(text, bigint, bigint, text, jsonb, timestamptz) to service_role;
    end if;
end
$$;
