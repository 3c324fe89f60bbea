-- Limits of concurrency keys and types, as they are set and shown. queue/04_states.sql says how tasks pass them.

-- Sets how many tasks of a key or a type run at once; null removes the limit.
create or replace function public.task_limit_set(p_kind text, p_name text, p_most int, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_queued constant int := 10000;  -- tasks of a type that begin to wait at once; claims let the others wait when they meet them
    v_found boolean := true;
    v_rows tid[];
    v_passed uuid[];
begin
    if p_kind is null or p_kind not in ('key', 'type') then
        perform public.internal_refuse('OR007', 'kind is not valid', format('got %L', left(p_kind, 100)), 'key or type');
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
    if p_kind = 'type' and p_most is not null then
        v_rows := public.internal_lock_ready(p_name, c_queued);
        if v_rows <> '{}' then
            v_passed := public.internal_begin_waiting(v_rows);
        end if;
        perform public.internal_change_gates('running', array(
            select t.ctid from public.tasks t where t.status = 'In Progress' and t.task_type = p_name and t.queue_gate = 0
               for no key update skip locked));
    elsif p_kind = 'type' then  -- tasks that a user's trigger did not let wait need not wait any more
        delete from public.task_refusals r using public.tasks t
         where r.what = 'let_in' and t.id = r.task_id and t.task_type = p_name and t.queue_gate = 0;
    end if;
    perform public.internal_let_in(p_kind, array[p_name], v_now);
    return jsonb_build_object('found', v_found);
end
$$;

-- The limits that are set, and the keys with live tasks: {limits: [{scope, name, most, is_set, running, ready, waiting}]},
-- at most 1000, those with most waiting tasks first. A key without a row has the limit 1.
create or replace function public.task_limits(p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = '' set jit = off as $$
    with used as (
        select s.scope, s.name, count(*) filter (where t.status = 'In Progress') as running,
               count(*) filter (where t.status = 'Queued' and not t.blocked) as ready,
               count(*) filter (where t.status = 'Queued' and t.queue_gate = s.gate) as waiting
          from public.tasks t
          cross join lateral (values ('key', t.concurrency_key, 1), ('type', t.task_type, 2)) s (scope, name, gate)
         where t.status in ('Queued', 'In Progress') and s.name is not null group by 1, 2
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

-- Which limit a task at a gate waits for: {kind: limit, scope, name, most, running, next}; next is a task that was let in
-- before it and does not run yet.
create or replace function public.internal_limit_waits(p_task public.tasks, p_now timestamptz) returns jsonb
language plpgsql stable security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_scope text := case p_task.queue_gate when 1 then 'key' else 'type' end;
    v_name text := case p_task.queue_gate when 1 then p_task.concurrency_key else p_task.task_type end;
    v_running int;
    v_next uuid;
begin
    if v_scope = 'key' then
        select count(*) filter (where t.status = 'In Progress' and coalesce(t.lease_expires_at > p_now, true)),
               (array_agg(t.id) filter (where t.status = 'Queued'))[1]
          into v_running, v_next from public.tasks t where t.concurrency_key = v_name and t.queue_gate >= 2;
    else
        select count(*) filter (where t.status = 'In Progress' and coalesce(t.lease_expires_at > p_now, true)),
               (array_agg(t.id) filter (where t.status = 'Queued'))[1]
          into v_running, v_next from public.tasks t where t.task_type = v_name and t.queue_gate = 3;
    end if;
    return jsonb_build_object('kind', 'limit', 'scope', v_scope, 'name', v_name, 'running', v_running, 'next', v_next,
        'most', coalesce((select l.most from public.concurrency_limits l where l.scope = v_scope and l.name = v_name), 1));
end
$$;
