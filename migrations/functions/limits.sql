-- Limits of concurrency keys and types: setting and showing them, their locks, and how many places they have left.
-- concurrency.sql says how tasks pass them.

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

-- Locks limits until the transaction ends, and returns the names that are locked. A shared lock never waits; an
-- exclusive one waits for a tenth of a second, three times in a transaction. A transaction with an old snapshot cannot
-- count and gets no lock.
create or replace function public.internal_lock_limits(p_scope text, p_names text[], p_shared boolean) returns text[]
language plpgsql security definer set search_path = '' set lock_timeout = '100ms' as $$
#variable_conflict use_variable
declare
    c_limits constant int := 1951811;  -- a namespace of advisory locks
    c_locks constant int := 4095;
    v_locked text[];
    v_names text[];
    v_locks int[];
    v_place int := 0;
    v_lock int;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        return '{}';
    elsif p_shared then
        return array(select n.name from unnest(p_names) n (name)
                      where pg_try_advisory_xact_lock_shared(c_limits, hashtext(p_scope || ':' || n.name) & c_locks));
    end if;
    select coalesce(array_agg(l.name) filter (where l.is_locked), '{}'),
           array_agg(l.name order by l.lock) filter (where not l.is_locked),
           array_agg(l.lock order by l.lock) filter (where not l.is_locked)
      into v_locked, v_names, v_locks
      from (select o.name, o.lock, pg_try_advisory_xact_lock(c_limits, o.lock) as is_locked
              from (select n.name, hashtext(p_scope || ':' || n.name) & c_locks as lock from unnest(p_names) n (name)
                     order by 2 offset 0) o) l;
    foreach v_lock in array coalesce(v_locks, '{}') loop  -- in the order of locks, so that few wait for each other
        v_place := v_place + 1;
        exit when not public.internal_may_wait();
        begin
            perform pg_advisory_xact_lock(c_limits, v_lock);
            v_locked := v_locked || v_names[v_place];
        exception when lock_not_available or deadlock_detected then
            perform public.internal_count_wait();
        end;
    end loop;
    return v_locked;
end
$$;

-- How many more places these limits have; null for any number.
create or replace function public.internal_rooms(p_scope text, p_names text[], p_now timestamptz)
returns table (name text, room int)
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
begin
    if p_scope = 'key' then
        return query
        select n.name, coalesce((select l.most from public.concurrency_limits l where l.scope = 'key' and l.name = n.name), 1)
               - (select count(*) from public.tasks t
                   where t.concurrency_key = n.name and t.queue_gate >= 2
                     and (t.status = 'Queued' or t.status = 'In Progress'
                          and (t.lease_expires_at is null or t.lease_expires_at > p_now)))::int
          from unnest(p_names) n (name);
    else
        return query
        select n.name, (select l.most from public.concurrency_limits l where l.scope = 'type' and l.name = n.name)
               - (select count(*) from public.tasks t
                   where t.task_type = n.name and t.queue_gate = 3
                     and (t.status = 'Queued' or t.status = 'In Progress'
                          and (t.lease_expires_at is null or t.lease_expires_at > p_now)))::int
          from unnest(p_names) n (name);
    end if;
end
$$;

-- Whether this limit, which the caller has locked, has more places left than its name is in p_taken.
create or replace function public.internal_has_room(p_scope text, p_name text, p_taken text[], p_now timestamptz) returns boolean
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    return coalesce((select r.room > cardinality(array_positions(p_taken, p_scope || ':' || p_name))
                       from public.internal_rooms(p_scope, array[p_name], p_now) r), false);
end
$$;

-- Returns which of these held tasks, which the caller has locked, may have their leases renewed. A lease that has expired
-- may have been replaced by the lease of another task. While this transaction renews one that ends soon, its limit is
-- locked: nobody may count it as expired before this transaction ends.
create or replace function public.internal_renewable(p_ids uuid[], p_lease_s numeric, p_now timestamptz) returns uuid[]
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_soon_s constant numeric := 5;  -- longer than the rest of the caller's transaction
    v_task record;
    v_ids uuid[] := p_ids;
    v_taken text[] := '{}';  -- a name for each place that a task before it gets
    v_then timestamptz;
    v_is_expired boolean;
    v_fits boolean;
begin
    for v_task in
        select t.id, t.concurrency_key as key, t.lease_expires_at,
               (select l.name from public.concurrency_limits l where l.scope = 'type' and l.name = t.task_type) as type
          from public.tasks t
         where t.id = any (p_ids) and t.lease_expires_at <= p_now + least(c_soon_s, p_lease_s / 4) * interval '1 second'
           and t.queue_gate + 0 = 3  -- not by the index of places, which has all ready tasks
         order by t.id
    loop
        v_fits := (v_task.key is null or public.internal_lock_limits('key', array[v_task.key], false) <> '{}')
              and (v_task.type is null or public.internal_lock_limits('type', array[v_task.type], false) <> '{}');
        -- Under the locks: another transaction that had them has counted a lease that had expired by then.
        v_then := p_now + (clock_timestamp() - statement_timestamp());
        v_is_expired := v_task.lease_expires_at <= v_then;
        if v_fits and v_is_expired then
            v_fits := (v_task.key is null or public.internal_has_room('key', v_task.key, v_taken, v_then))
                  and (v_task.type is null or public.internal_has_room('type', v_task.type, v_taken, v_then));
        end if;
        if not v_fits then
            v_ids := array_remove(v_ids, v_task.id);
            if not v_is_expired then  -- the worker has its task still, and nobody rescues it meanwhile
                perform public.internal_note_locked(null, array[v_task.id], p_lease_s, p_now);
            end if;
        elsif v_is_expired then
            v_taken := v_taken || array['key:' || v_task.key, 'type:' || v_task.type];
        end if;
    end loop;
    return v_ids;
end
$$;

-- How one change of a task concerns limits: whether it frees a place of its key or type, and whether a limit must be
-- counted again, because the task waits for it or has a place that was not counted.
create or replace function public.internal_places(
    p_after public.tasks, p_before public.tasks, p_now timestamptz,
    out asks_key boolean, out frees_key boolean, out asks_type boolean, out frees_type boolean
)
language plpgsql immutable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_same_key boolean := coalesce(p_before.concurrency_key = p_after.concurrency_key, false);
    v_same_type boolean := coalesce(p_before.task_type = p_after.task_type, false);
    v_was_queued boolean := coalesce(p_before.status = 'Queued', false);
    v_is_queued boolean := coalesce(p_after.status = 'Queued', false);
    -- It has places, with a valid lease or let in: those of its type at gate 3, those of its key, if it has one, from gate 2 on.
    v_was_placed boolean := v_was_queued or coalesce(p_before.status = 'In Progress', false);
    v_is_placed boolean := v_is_queued or coalesce(p_after.status = 'In Progress', false);
    v_was_valid boolean := v_was_queued or coalesce(p_before.lease_expires_at > p_now, true);
    v_is_valid boolean := v_is_queued or coalesce(p_after.lease_expires_at > p_now, true);
    v_had_key boolean := v_was_placed and p_before.queue_gate >= 2 and p_before.concurrency_key is not null;
    v_has_key boolean := v_is_placed and p_after.queue_gate >= 2 and p_after.concurrency_key is not null;
    v_had_type boolean := v_was_placed and p_before.queue_gate = 3;
    v_has_type boolean := v_is_placed and p_after.queue_gate = 3;
begin
    frees_key := v_had_key and v_was_valid and not (v_has_key and v_same_key);
    frees_type := v_had_type and v_was_valid and not (v_has_type and v_same_type);
    asks_key := v_is_queued and p_after.queue_gate = 1 and p_after.run_after is null
                and not (v_was_queued and p_before.queue_gate = 1 and p_before.run_after is null and v_same_key)
        or v_has_key and v_is_valid and not (v_had_key and v_was_valid and v_same_key)
        or v_had_key and not v_was_valid and not (v_has_key and v_same_key);
    asks_type := v_is_queued and p_after.queue_gate = 2 and p_after.run_after is null
                 and not (v_was_queued and p_before.queue_gate >= 2 and p_before.run_after is null and v_same_type)
        or v_has_type and v_is_valid and not (v_had_type and v_was_valid and v_same_type)
           and not (v_is_queued and v_was_queued and p_before.queue_gate = 2 and v_same_type)
        or v_had_type and not v_was_valid and not (v_has_type and v_same_type);
end
$$;
