-- Limits of concurrency keys and types, as they are set and shown. queue/04_states.sql says how tasks pass them.

-- Sets how many tasks of a key or a type run at once; null removes the limit.
create or replace function public.task_limit_set(p_kind text, p_name text, p_most int, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_found boolean := true;
begin
    if p_kind is null or p_kind not in ('key', 'type') then
        perform public.internal_refuse('OR007', 'kind is not valid', format('got %L', left(p_kind, 100)),
                                       'key or type');
    elsif coalesce(length(p_name), 0) not between 1 and 200 or p_name ~ '[[:cntrl:]]' then
        perform public.internal_refuse('OR007', 'name is not valid', format('got %s', left(to_json(p_name)::text, 100)),
            'text of 1 to 200 characters, without control characters');
    elsif p_most is not null and p_most not between 0 and 100000 then
        perform public.internal_refuse('OR007', 'the limit is not valid', format('got %s', p_most),
            'a whole number from 0 to 100000');
    end if;
    if p_most is null then
        delete from public.concurrency_limits l where l.scope = p_kind and l.name = p_name;
        v_found := found;
    else
        insert into public.concurrency_limits (scope, name, most, set_at) values (p_kind, p_name, p_most, v_now)
        on conflict (scope, name) do update set most = excluded.most, set_at = excluded.set_at;
    end if;
    if p_kind = 'type' then
        perform orchestrator.limit_type(p_name);
        -- Transactions that have not committed may insert tasks of the type as if nothing had changed.
        insert into orchestrator.rechecks (kind, name) values ('limit', p_name);
    end if;
    perform orchestrator.admit(p_kind, array[p_name], null);
    return jsonb_build_object('found', v_found);
end
$$;

-- The limits that are set, and the keys with live tasks: {limits: [{scope, name, most, is_set, running, ready,
-- waiting}]}, at most 1000, those with most waiting tasks first. A key without a row has the limit 1.
create or replace function public.task_limits(p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    with used as (
        select s.scope, s.name, count(*) filter (where q.state = 'running') as running,
               count(*) filter (where q.state = 'ready') as ready, count(*) filter (where q.state = s.waits) as waiting
          from orchestrator.live q
         cross join lateral (values ('key', q.concurrency_key, 'waits_for_key'::orchestrator.task_state),
                                    ('type', q.task_type, 'waits_for_type')) s (scope, name, waits)
         where s.name is not null group by 1, 2
    ), listed as (
        select coalesce(l.scope, u.scope) as scope, coalesce(l.name, u.name) as name, coalesce(l.most, 1) as most,
               l.name is not null as is_set, coalesce(u.running, 0) as running, coalesce(u.ready, 0) as ready,
               coalesce(u.waiting, 0) as waiting
          from public.concurrency_limits l full join used u on u.scope = l.scope and u.name = l.name
         where l.name is not null or u.scope = 'key'
         order by 7 desc, 1, 2 limit 1000
    )
    select jsonb_build_object('limits', coalesce(jsonb_agg(to_jsonb(d) order by d.waiting desc, d.scope, d.name), '[]'))
      from listed d
$$;

-- Which limit a task waits for: {kind: limit, scope, name, most, running, next}; next is a task that has a slot and
-- does not run yet.
create or replace function public.internal_limit_waits(p_task orchestrator.live) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    v_scope text := case p_task.state when 'waits_for_key' then 'key' else 'type' end;
    v_name text := case p_task.state when 'waits_for_key' then p_task.concurrency_key else p_task.task_type end;
    v_running int;
    v_next uuid;
begin
    if v_scope = 'key' then
        select count(*) filter (where q.state = 'running'),
               (array_agg(q.task_id) filter (where q.state <> 'running'))[1]
          into v_running, v_next
          from orchestrator.live q
         where q.concurrency_key = v_name and q.state in ('ready', 'waits_for_type', 'running');
    else
        select count(*) filter (where q.state = 'running'),
               (array_agg(q.task_id) filter (where q.state <> 'running'))[1]
          into v_running, v_next
          from orchestrator.live q where q.task_type = v_name and q.type_limited and q.state in ('ready', 'running');
    end if;
    return jsonb_build_object('kind', 'limit', 'scope', v_scope, 'name', v_name, 'running', v_running, 'next', v_next,
        'most', coalesce((select l.most from public.concurrency_limits l
                           where l.scope = v_scope and l.name = v_name), 1));
end
$$;
