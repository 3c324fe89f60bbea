-- How many tasks of a concurrency key or of a task type run at once.
--
-- A task with a limit passes gates: queue_gate 1 waits for its key, 2 waits for its type and holds its place in the key,
-- 3 is let in; 0 means that no limit applies, or that it was written before its limit. A task at gate 1 or 2 is blocked:
-- claims and demand do not see it. A claim takes a task at gate 3 without looking at limits.
--
-- The places of a key are its valid leases and its queued tasks at gate 2 or 3; those of a type are its valid leases and
-- its queued tasks at gate 3. They are counted in rows, by index; there is no counter that could be wrong. Three rules
-- keep their number within the limit:
--   * A statement that adds a place (a new task, a renewed lease, a changed limit) takes the lock of the limit first, and
--     then counts.
--   * A transaction that frees places passes on at most as many. It shares the lock with others that free places, so
--     completions of one key do not wait for each other.
--   * A claim turns a place into a lease.
-- Places that a user's write added beyond the limit are taken back from queued tasks. No running task ends for that.
--
-- No transaction waits for long: one that cannot lock a limit leaves a row in concurrency_notes, which the next snapshot
-- processes. The snapshot also handles expired leases and due tasks; the hourly retention handles rows that were written
-- without triggers. A task whose change a user's trigger refuses has a row in task_refusals. A lock is one of 4096, for
-- which the server's table of locks has room: two limits may share one.

-- Locks the next waiting tasks of each limit that no other transaction has locked, as many as it has room for, in the order
-- of claims: their places, and the name of the limit of each. Those that a user's trigger did not let in are passed over for
-- a while.
create or replace function public.internal_next_waiting(
    p_scope text, p_names text[], p_rooms int[], out names text[], out places tid[]
)
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_now();
begin
    if p_scope = 'key' then
        select array_agg(k.name), array_agg(g.ctid) into names, places
          from unnest(p_names, p_rooms) k (name, room) cross join lateral (
            select t.ctid from public.tasks t
             where t.concurrency_key = k.name and t.status = 'Queued' and t.queue_gate = 1 and t.run_after is null
               and (select r.retry_at from public.task_refusals r
                     where r.task_id = t.id and r.what = 'let_in' and r.retry_at > v_now) is null
             order by t.concurrency_key, ~t.priority, t.queue_turn, t.created_at, t.id
             limit k.room for no key update skip locked) g;
    else
        select array_agg(k.name), array_agg(g.ctid) into names, places
          from unnest(p_names, p_rooms) k (name, room) cross join lateral (
            select t.ctid from public.tasks t
             where t.task_type = k.name and t.status = 'Queued' and t.queue_gate = 2 and t.run_after is null
               and (select r.retry_at from public.task_refusals r
                     where r.task_id = t.id and r.what = 'let_in' and r.retry_at > v_now) is null
             order by t.task_type, ~t.priority, t.queue_turn, t.created_at, t.id
             limit k.room for no key update skip locked) g;
    end if;
end
$$;

-- Whether tasks wait for this limit that may be let in now. In an order that only one index has: to find any row, the
-- planner would read another index as a whole.
create or replace function public.internal_has_waiting(p_scope text, p_name text) returns boolean
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_now();
begin
    if p_scope = 'key' then
        perform from public.tasks t
          where t.concurrency_key = p_name and t.status = 'Queued' and t.queue_gate = 1 and t.run_after is null
            and (select r.retry_at from public.task_refusals r
                  where r.task_id = t.id and r.what = 'let_in' and r.retry_at > v_now) is null
          order by t.concurrency_key, ~t.priority, t.queue_turn, t.created_at, t.id limit 1;
    else
        perform from public.tasks t
          where t.task_type = p_name and t.status = 'Queued' and t.queue_gate = 2 and t.run_after is null
            and (select r.retry_at from public.task_refusals r
                  where r.task_id = t.id and r.what = 'let_in' and r.retry_at > v_now) is null
          order by t.task_type, ~t.priority, t.queue_turn, t.created_at, t.id limit 1;
    end if;
    return found;
end
$$;

-- Lets in the next tasks of limits that the caller has locked: p_freed of each, as far as the limit allows; null for as
-- many as it allows. A task that a user's trigger does not let in is passed over. What remains is left to the next snapshot.
create or replace function public.internal_fill(p_scope text, p_names text[], p_freed int[], p_now timestamptz) returns void
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    c_most constant int := 10000;  -- tasks of one call and limit
    c_time constant interval := '500 milliseconds';  -- for tasks that follow refused ones
    v_until timestamptz := clock_timestamp() + c_time;
    v_names text[];
    v_rooms int[];
    v_wanted int;
    v_over text[];
    v_overs int[];
    v_next record;
    v_refused int[] := '{}';
    v_is_whole boolean := true;
    v_is_late boolean;
    v_change record;
begin
    select array_agg(r.name) filter (where r.room > 0), array_agg(r.room) filter (where r.room > 0),
           sum(r.room) filter (where r.room > 0),
           array_agg(r.name) filter (where r.room < 0), array_agg(-r.room) filter (where r.room < 0)
      into v_names, v_rooms, v_wanted, v_over, v_overs
      from (select m.name, least(m.room, f.freed, c_most) as room
              from public.internal_rooms(p_scope, p_names, p_now) m
              left join unnest(p_names, p_freed) f (name, freed) on f.name = m.name) r;
    if v_over is not null and p_freed is null then
        perform public.internal_take_back(p_scope, v_over, v_overs);
    end if;
    if p_freed is not null and cardinality(p_names) > coalesce(cardinality(v_names), 0) then
        -- Exceeded limits, and those that another transaction is about to free. The hashed list keeps this linear.
        insert into public.concurrency_notes (scope, name)
        select p_scope, n.name from unnest(p_names) n (name)
         where case when (n.name in (select unnest(v_names))) is not true
                    then public.internal_has_waiting(p_scope, n.name) end;
    end if;
    while v_names is not null loop
        v_next := public.internal_next_waiting(p_scope, v_names, v_rooms);
        if v_next.places is not null then
            v_change := public.internal_change_gates(p_scope, v_next.places);
            v_refused := v_change.refused;
            v_is_whole := v_change.is_whole;
        end if;
        v_is_late := not v_is_whole or v_refused <> '{}' and clock_timestamp() > v_until;
        if v_is_late or c_most = any (v_rooms) or coalesce(cardinality(v_next.names), 0) < v_wanted then
            insert into public.concurrency_notes (scope, name)
            select p_scope, n.name
              from (select r.name, r.room, 0 as found from unnest(v_names, v_rooms) r (name, room)
                    union all select f.name, 0, 1 from unnest(v_next.names) f (name)) n
             group by n.name
            having case when v_is_late or sum(n.found) < sum(n.room) or max(n.room) = c_most  -- the CASE looks only then
                        then public.internal_has_waiting(p_scope, n.name) end;
        end if;
        exit when v_next.places is null or v_refused = '{}' or not v_is_whole or clock_timestamp() > v_until;
        select array_agg(g.name), array_agg(g.n), sum(g.n) into v_names, v_rooms, v_wanted
          from (select v_next.names[r.place] as name, count(*)::int as n from unnest(v_refused) r (place) group by 1) g;
    end loop;
end
$$;

-- Queued tasks that are let in wait again, as many as a limit is exceeded by, the last ones first. Those that another
-- transaction has locked, or that a user's triggers keep, are left to the next snapshot.
create or replace function public.internal_take_back(p_scope text, p_names text[], p_overs int[]) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_spare constant int := 500;  -- tasks of a limit that are tried in place of refused ones
    c_time constant interval := '200 milliseconds';
    v_until timestamptz := clock_timestamp() + c_time;
    v_found text[];
    v_rows tid[];
    v_spare boolean[];  -- of each in v_rows
    v_first int[];  -- the places in v_rows of the others
    v_left jsonb;  -- by limit: how many are still to be taken back
    v_change record;
    v_place int;
begin
    if p_scope = 'key' then
        select array_agg(k.name order by k.name, g.n), array_agg(g.place order by k.name, g.n),
               array_agg(g.n > k.over order by k.name, g.n)
          into v_found, v_rows, v_spare
          from unnest(p_names, p_overs) k (name, over) cross join lateral (
            select l.place, row_number() over () as n from (
                select t.ctid as place from public.tasks t
                 where t.concurrency_key = k.name and t.status = 'Queued' and t.queue_gate >= 2
                 order by t.priority, t.queue_turn desc, t.created_at desc, t.id desc
                 limit k.over + c_spare for no key update skip locked) l) g;
    else
        select array_agg(k.name order by k.name, g.n), array_agg(g.place order by k.name, g.n),
               array_agg(g.n > k.over order by k.name, g.n)
          into v_found, v_rows, v_spare
          from unnest(p_names, p_overs) k (name, over) cross join lateral (
            select l.place, row_number() over () as n from (
                select t.ctid as place from public.tasks t
                 where t.task_type = k.name and t.status = 'Queued' and t.queue_gate = 3
                 order by t.priority, t.queue_turn desc, t.created_at desc, t.id desc
                 limit k.over + c_spare for no key update skip locked) l) g;
    end if;
    v_first := array(select f.place from unnest(v_spare) with ordinality f (is_spare, place) where not f.is_spare order by 1);
    select c.refused, c.is_whole into v_change from public.internal_change_gates(
        p_scope || ' back', array(select v_rows[f.place] from unnest(v_first) with ordinality f (place, n) order by f.n)) c;
    select jsonb_object_agg(n.name, case when v_change.is_whole then n.over - coalesce(g.n, 0) else n.over end) into v_left
      from unnest(p_names, p_overs) n (name, over)
      left join (select v_found[f.place] as name, count(*) as n
                   from unnest(v_first) with ordinality f (place, n) where f.n <> all (v_change.refused) group by 1) g
        on g.name = n.name;
    if v_change.is_whole and v_change.refused <> '{}' then
        for v_place in select f.place from unnest(v_spare) with ordinality f (is_spare, place) where f.is_spare order by 1 loop
            exit when clock_timestamp() > v_until;
            if (v_left->>v_found[v_place])::int > 0 and exists (
                   select from public.internal_change_gates(p_scope || ' back', v_rows[v_place:v_place]) c
                    where c.refused = '{}') then
                v_left := v_left || jsonb_build_object(v_found[v_place], (v_left->>v_found[v_place])::int - 1);
            end if;
        end loop;
    end if;
    insert into public.concurrency_notes (scope, name)
    select p_scope, l.key from jsonb_each_text(v_left) l
     where case when l.value::int > 0 then case p_scope
        when 'key' then exists (select from public.tasks t
                                 where t.concurrency_key = l.key and t.queue_gate >= 2 and t.status = 'Queued')
        else exists (select from public.tasks t where t.task_type = l.key and t.queue_gate = 3 and t.status = 'Queued') end end;
end
$$;

-- Makes one change to each of these locked tasks, as far as users' triggers and constraints allow: to slices of them, or if
-- that fails to each of 16 parts, and so on. Returns the places in p_rows of the refused ones, and whether all were tried in
-- time. A transaction waits only three times for locks that users' triggers ask for.
-- p_change: 'key' or 'type' (through this gate), 'key back' or 'type back' (behind it again), 'limit' (the trigger finds the
-- gate), 'running' (they have their places), 'due' (they need not wait for their time) or 'turn' (turns from p_turn on).
create or replace function public.internal_change_gates(
    p_change text, p_rows tid[], p_turn bigint default null, out refused int[], out is_whole boolean
)
language plpgsql security definer set search_path = '' set enable_seqscan = off set lock_timeout = '100ms' as $$
#variable_conflict use_variable
declare
    c_slice constant int := 2000;
    c_time constant interval := '1 second';  -- after the first refusal
    c_parts constant int := 16;  -- of what failed: few are tried again and again, and a slow trigger leaves time for some
    c_step constant bigint := 1000000;  -- between two turns
    v_now timestamptz := public.internal_now();
    v_before text := coalesce(current_setting('orchestrator.gating', true), '');
    v_count int := coalesce(cardinality(p_rows), 0);
    v_firsts int[] := array[1];
    v_lasts int[] := array[v_count];
    v_low int;
    v_high int;
    v_step int;
    v_rows tid[];
    -- Where these tasks are now.
    v_gates constant int[] := case p_change when 'key' then array[1] when 'type' then array[2] when 'key back' then array[2, 3]
                                            when 'type back' then array[3] else array[0] end;
    v_key text;
    v_type text;
    v_changed int;
    v_until timestamptz;
    v_is_locked boolean := false;
    v_message text;
    v_sqlstate text;
    v_set text;
begin
    refused := '{}';
    is_whole := true;
    if not public.internal_may_wait() then
        v_set := set_config('lock_timeout', '1ms', true);
    end if;
    if v_count > c_slice then
        v_firsts := array(select n from generate_series((v_count - 1) / c_slice * c_slice + 1, 1, -c_slice) n);
        v_lasts := array(select least(n + c_slice - 1, v_count) from unnest(v_firsts) with ordinality f (n, o) order by o);
    end if;
    while v_count > 0 and cardinality(v_firsts) > 0 loop
        v_low := v_firsts[cardinality(v_firsts)];
        v_high := v_lasts[cardinality(v_lasts)];
        v_firsts := trim_array(v_firsts, 1);
        v_lasts := trim_array(v_lasts, 1);
        v_rows := p_rows[v_low:v_high];
        if clock_timestamp() > v_until then
            is_whole := false;
            exit;
        end if;
        if p_change in ('key', 'type', 'key back', 'type back') then
            v_set := set_config('orchestrator.gating', pg_trigger_depth()::text, true);
        end if;
        begin
            if v_low = v_high then  -- its trigger may give it another limit, at the gate of that one
                select t.concurrency_key, t.task_type into v_key, v_type from public.tasks t where t.ctid = any (v_rows);
            end if;
            if p_change = 'due' then
                with moved as (
                    update public.tasks t
                       set run_after = null, queue_turn = case when t.tenant is null then t.queue_turn
                               else public.internal_next_turn(t.pool, ~t.priority, t.tenant, false) end
                     where t.ctid = any (v_rows) returning t.run_after
                )
                select count(*) filter (where m.run_after is null or m.run_after > v_now)
                  into v_changed from moved m;
            elsif p_change = 'turn' then
                with moved as (
                    update public.tasks t set queue_turn = p_turn + (array_position(p_rows, t.ctid) - 1) * c_step
                     where t.ctid = any (v_rows) returning t.queue_turn
                )
                select count(*) filter (where m.queue_turn between p_turn and p_turn + v_count * c_step) into v_changed from moved m;
            else
                with moved as (
                    update public.tasks t
                       set updated_at = v_now,
                           queue_gate = case when p_change = 'limit' then 0
                                             when p_change = 'running' then 3
                                             when p_change = 'key back' then 1
                                             when p_change = 'type back' then 2
                                             when p_change = 'key' and exists (
                                                 select from public.concurrency_limits l where l.scope = 'type'
                                                     and l.name = t.task_type) then 2
                                             else 3 end
                     where t.ctid = any (v_rows) returning t.status, t.queue_gate, t.blocked, t.concurrency_key, t.task_type
                )
                select count(*) filter (
                           where m.queue_gate <> all (v_gates) and m.blocked = (m.queue_gate in (1, 2))
                              or m.status <> 'Queued' and p_change <> 'running'
                              or v_low = v_high and (m.concurrency_key, m.task_type) is distinct from (v_key, v_type)
                              or p_change = 'limit' and m.concurrency_key is null
                                 and not exists (select from public.concurrency_limits l
                                                  where l.scope = 'type' and l.name = m.task_type))
                  into v_changed from moved m;
            end if;
            if v_changed <= v_high - v_low then
                raise exception using errcode = 'OR008';  -- caught below: a trigger suppressed one of them, or took it back
            end if;
            perform public.internal_fire_deferred();
            continue;
        exception when others or assert_failure then  -- a user's trigger or constraint may raise anything
            if sqlstate in ('55P03', '40P01') then  -- a trigger waits for another transaction
                v_is_locked := true;
            elsif public.internal_is_transient(sqlstate) and sqlstate <> '40001' then
                raise;
            end if;
            v_sqlstate := sqlstate;
            v_message := case sqlstate when 'OR008' then 'A trigger of the database suppressed the change'
                else format('The database refused to let it in: %s (%s)', sqlerrm, sqlstate) end;
        end;
        v_until := coalesce(v_until, clock_timestamp() + c_time);
        if v_is_locked then
            perform public.internal_count_wait();
            if not public.internal_may_wait() then
                v_set := set_config('lock_timeout', '1ms', true);
            end if;
            v_is_locked := false;
        end if;
        if v_low < v_high then
            v_step := (v_high - v_low + c_parts) / c_parts;
            v_firsts := v_firsts || array(select n from generate_series(v_low, v_high, v_step) n order by n desc);
            v_lasts := v_lasts || array(
                select least(n + v_step - 1, v_high) from generate_series(v_low, v_high, v_step) n order by n desc);
            continue;
        end if;
        refused := refused || v_low;
        if p_change in ('key', 'type', 'limit', 'due') then
            perform public.internal_refused(array(
                select t.id from public.tasks t where t.ctid = any (v_rows) and (t.queue_gate > 0 or p_change = 'limit')),
                'let_in', v_message, v_sqlstate);
        end if;
        if p_change = 'type' then
            perform public.internal_leave_key(v_rows[1]);
        end if;
    end loop;
    v_set := set_config('orchestrator.gating', v_before, true);
end
$$;

-- A task whose type does not let it in gives its place in its key to the next one of the key.
create or replace function public.internal_leave_key(p_row tid) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    v_key text := (select t.concurrency_key from public.tasks t where t.ctid = p_row);
begin
    if v_key is not null and (select c.refused = '{}' from public.internal_change_gates('key back', array[p_row]) c) then
        insert into public.concurrency_notes (scope, name) values ('key', v_key);
    end if;
end
$$;

-- Places of these limits were added or are asked for: counts again under their locks.
create or replace function public.internal_let_in(p_scope text, p_names text[], p_now timestamptz) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_names text[] := array(select distinct n.name from unnest(p_names) n (name) where n.name is not null);
    v_locked text[] := public.internal_lock_limits(p_scope, v_names, false);
begin
    if cardinality(v_locked) < cardinality(v_names) then
        insert into public.concurrency_notes (scope, name)
        select p_scope, n.name from unnest(v_names) n (name) where (n.name in (select unnest(v_locked))) is not true;
    end if;
    if v_locked <> '{}' then
        perform public.internal_fill(p_scope, v_locked, null, p_now);
    end if;
end
$$;

-- This transaction has freed one place of a limit for each time that its name is given: the next tasks get them.
create or replace function public.internal_pass_on(p_scope text, p_names text[], p_now timestamptz) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_names text[];
    v_freed int[];
    v_locked text[];
begin
    select array_agg(f.name), array_agg(f.n) into v_names, v_freed
      from (select n.name, count(*)::int as n from unnest(p_names) n (name) group by 1) f;
    v_locked := public.internal_lock_limits(p_scope, v_names, true);
    if cardinality(v_locked) < cardinality(v_names) then
        insert into public.concurrency_notes (scope, name)
        select p_scope, n.name from unnest(v_names) n (name) where (n.name in (select unnest(v_locked))) is not true;
        select array_agg(n.name), array_agg(n.freed) into v_names, v_freed
          from unnest(v_names, v_freed) n (name, freed) where (n.name in (select unnest(v_locked))) is true;
    end if;
    if p_scope = 'type' then  -- a statement names few of them, and the places of a large limit take long to count
        select array_agg(n.name), array_agg(n.freed) into v_names, v_freed
          from unnest(v_names, v_freed) n (name, freed) where public.internal_has_waiting('type', n.name);
    end if;
    if v_names is not null then
        perform public.internal_fill(p_scope, v_names, v_freed, p_now);
    end if;
end
$$;

-- What a statement on tasks has changed about limits: names of keys and types to count again, and freed places.
create or replace function public.internal_limits_changed(
    p_new_keys text[], p_free_keys text[], p_new_types text[], p_free_types text[]
) returns void
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_now();
    v_limited text[];
begin
    if p_new_keys is not null then
        perform public.internal_let_in('key', p_new_keys, v_now);
        -- A hashed list: with <> all, a connection's plan for any array compares each name with each other one.
        p_free_keys := array(select f.name from unnest(p_free_keys) f (name)
                              where (f.name in (select unnest(p_new_keys))) is not true);
    end if;
    if p_free_keys <> '{}' then
        perform public.internal_pass_on('key', p_free_keys, v_now);
    end if;
    if p_new_types is null and p_free_types is null then
        return;
    end if;
    v_limited := array(select l.name from public.concurrency_limits l
                        where l.scope = 'type' and l.name = any (p_new_types || p_free_types));
    if p_new_types is not null then
        -- Tasks may wait for a limit that was removed: those that were postponed then, and those that the removal did not
        -- reach.
        p_new_types := array(select distinct n.name from unnest(p_new_types) n (name)
                              where (n.name in (select unnest(v_limited))) is true or public.internal_has_waiting('type', n.name));
        if p_new_types <> '{}' then
            perform public.internal_let_in('type', p_new_types, v_now);
        end if;
    end if;
    if v_limited <> '{}' then
        p_free_types := array(select f.name from unnest(p_free_types) f (name)
                               where (f.name in (select unnest(v_limited))) is true
                                 and (f.name in (select unnest(p_new_types))) is not true);
        if p_free_types <> '{}' then
            perform public.internal_pass_on('type', p_free_types, v_now);
        end if;
    end if;
end
$$;

-- At each snapshot: makes due tasks wait for their limits, processes the notes, and fills the places of expired leases.
create or replace function public.internal_let_in_pending(p_now timestamptz) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_most constant int := 1000;
    c_late constant int := 100;  -- tasks; a user's trigger may refuse the change of each
    v_rows tid[];
    v_keys text[];
    v_types text[];
    v_limited text[];
begin
    v_rows := array(select t.ctid from public.tasks t
                     where t.status = 'Queued' and t.queue_gate in (1, 2) and t.run_after <= p_now
                       and (select r.retry_at from public.task_refusals r
                             where r.task_id = t.id and r.what = 'let_in' and r.retry_at > p_now) is null
                     order by t.run_after limit c_most for no key update skip locked);
    perform public.internal_change_gates('due', v_rows);
    with taken as (
        delete from public.concurrency_notes n
         where n.no = any (array(select o.no from public.concurrency_notes o order by o.no limit c_most for update skip locked))
        returning n.no, n.scope, n.name
    ), again as (  -- later notes of the same limits
        delete from public.concurrency_notes n
         where n.no = any (array(select o.no from public.concurrency_notes o
                                  where (o.scope, o.name) in (select t.scope, t.name from taken t)
                                    and o.no <> all (select t.no from taken t) for update skip locked))
    )
    select array_agg(distinct t.name) filter (where t.scope = 'key'), array_agg(distinct t.name) filter (where t.scope = 'type')
      into v_keys, v_types from taken t;
    v_limited := array(select l.name from public.concurrency_limits l where l.scope = 'type' order by l.name limit c_most);
    if v_limited <> '{}' then
        -- Claims and submissions that were open when a limit was set have not seen it.
        v_rows := array(select t.ctid from public.tasks t
                         where t.status = 'In Progress' and t.queue_gate = 0 and t.task_type = any (v_limited)
                         limit c_late for no key update skip locked);
        if v_rows <> '{}' then
            perform public.internal_change_gates('running', v_rows);
        end if;
        v_types := v_types || array(select r.name from public.internal_rooms('type', v_limited, p_now) r where r.room < 0);
    end if;
    select v_keys || array_agg(distinct e.concurrency_key), v_types || array_agg(distinct e.task_type) into v_keys, v_types
      from (select t.concurrency_key, t.task_type from public.tasks t
             where t.status = 'In Progress' and t.lease_expires_at <= p_now
               and t.queue_gate + 0 = 3  -- not by the index of places, which has all ready tasks
             limit c_most) e;
    perform public.internal_limits_changed(array_remove(v_keys, null), null, v_types, null);
end
$$;

-- Once an hour: tasks that were written without triggers wait for their limits, and each limit is counted again. Claims
-- let further tasks wait when they meet them, and the next snapshots count further limits.
create or replace function public.internal_let_in_all(p_now timestamptz) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_most constant int := 10000;  -- tasks of one call, …
    c_slice constant int := 1000;  -- … and of one statement
    v_rows tid[];
begin
    v_rows := array(select t.ctid from public.tasks t
                     where t.status = 'Queued' and not t.blocked and t.queue_gate = 0
                       and (t.concurrency_key is not null
                            or exists (select from public.concurrency_limits l where l.scope = 'type' and l.name = t.task_type))
                     limit c_most for no key update skip locked);
    for v_first in 1..cardinality(v_rows) by c_slice loop
        perform public.internal_begin_waiting(v_rows[v_first:v_first + c_slice - 1]);
    end loop;
    perform public.internal_change_gates('key', array(  -- a user's trigger has removed their keys
        select t.ctid from public.tasks t
         where t.status = 'Queued' and t.queue_gate = 1 and t.concurrency_key is null
         limit c_most for no key update skip locked));
    insert into public.concurrency_notes (scope, name)
    select 'key', t.concurrency_key from public.tasks t
     where t.status = 'Queued' and t.queue_gate = 1 and t.concurrency_key is not null group by 2
    union all
    select 'type', t.task_type from public.tasks t where t.status = 'Queued' and t.queue_gate = 2 group by 2;
    perform public.internal_let_in_pending(p_now);
end
$$;

-- Locks the ready tasks of a type that have passed no gate. A claim that is about to commit is waited for, but an open
-- transaction of a user for a tenth of a second only: then the tasks that it has locked are left out.
create or replace function public.internal_lock_ready(p_type text, p_most int) returns tid[]
language plpgsql security definer set search_path = '' set enable_seqscan = off set lock_timeout = '100ms' as $$
#variable_conflict use_variable
begin
    return array(select t.ctid from public.tasks t
                  where t.status = 'Queued' and not t.blocked and t.queue_gate = 0 and t.task_type = p_type
                  limit p_most for no key update);
exception when lock_not_available or deadlock_detected then
    return array(select t.ctid from public.tasks t
                  where t.status = 'Queued' and not t.blocked and t.queue_gate = 0 and t.task_type = p_type
                  limit p_most for no key update skip locked);
end
$$;

-- Of these locked tasks, lets those wait that have a limit and have passed no gate: they were written without triggers, or
-- before the limit of their type. Returns the ids of those that a user's trigger keeps as they are.
create or replace function public.internal_begin_waiting(p_rows tid[]) returns uuid[]
language plpgsql security definer set search_path = '' set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    v_ids uuid[] := array(select t.id from public.tasks t where t.ctid = any (p_rows));
begin
    perform public.internal_change_gates('limit', p_rows);
    return array(select t.id from public.tasks t
                  where t.id = any (v_ids) and t.status = 'Queued' and not t.blocked and t.queue_gate = 0
                    and (t.concurrency_key is not null
                         or exists (select from public.concurrency_limits l where l.scope = 'type' and l.name = t.task_type)));
end
$$;

-- Locks further tasks of a pool that have passed no gate although they have a limit, from this place in its queue on: one
-- call lets them all wait, however few a claim takes.
create or replace function public.internal_lock_ungated(
    p_pool text, p_place int, p_turn bigint, p_created_at timestamptz, p_id uuid, p_now timestamptz
) returns tid[]
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off as $$
#variable_conflict use_variable
declare
    c_ahead constant int := 500;  -- tasks of the queue
begin
    return array(
        select t.ctid from public.tasks t
         where t.id = any (array(
                   select l.id from (
                       select q.id, q.queue_gate, q.concurrency_key, q.task_type from public.tasks q
                        where q.pool = p_pool and q.status = 'Queued' and not q.blocked
                          and (q.run_after is null or q.run_after <= p_now)
                          and (~q.priority, q.queue_turn, q.created_at, q.id) >= (p_place, p_turn, p_created_at, p_id)
                          and (select r.task_id from public.task_refusals r where r.task_id = q.id) is null
                        order by ~q.priority, q.queue_turn, q.created_at, q.id limit c_ahead) l
                    where l.queue_gate = 0
                      and (l.concurrency_key is not null or exists (
                              select from public.concurrency_limits c where c.scope = 'type' and c.name = l.task_type))))
           and t.status = 'Queued' and not t.blocked and t.queue_gate = 0
           for no key update skip locked);
end
$$;
