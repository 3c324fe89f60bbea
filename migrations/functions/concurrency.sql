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

-- Locks limits until the transaction ends, and returns the names that are locked. A shared lock never waits; an
-- exclusive one waits for a tenth of a second, three times in a transaction. A transaction with an old snapshot cannot
-- count and gets no lock.
create or replace function public.internal_lock_limits(p_scope text, p_names text[], p_shared boolean) returns text[]
language plpgsql security definer set search_path = '' set lock_timeout = '100ms' as $$
#variable_conflict use_variable
declare
    c_limits constant int := 1951811;  -- a namespace of advisory locks
    c_locks constant int := 4095;
    c_waits constant int := 3;
    v_waits int := coalesce(nullif(current_setting('orchestrator.limit_waits', true), '')::int, 0);
    v_locked text[];
    v_names text[];
    v_locks int[];
    v_place int := 0;
    v_lock int;
    v_set text;
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
        exit when v_waits >= c_waits;
        begin
            perform pg_advisory_xact_lock(c_limits, v_lock);
            v_locked := v_locked || v_names[v_place];
        exception when lock_not_available or deadlock_detected then
            v_waits := v_waits + 1;
            v_set := set_config('orchestrator.limit_waits', v_waits::text, true);
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

-- Locks the next waiting tasks of a limit that no other transaction has locked, in the order of claims. Those that a
-- user's trigger did not let in are passed over for a while.
create or replace function public.internal_waiting(p_scope text, p_names text[], p_rooms int[])
returns table (name text, place tid)
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_now();
begin
    if p_scope = 'key' then
        return query select k.name, g.ctid from unnest(p_names, p_rooms) k (name, room) cross join lateral (
            select t.ctid from public.tasks t
             where t.concurrency_key = k.name and t.status = 'Queued' and t.queue_gate = 1 and t.run_after is null
               and (select r.retry_at from public.task_refusals r
                     where r.task_id = t.id and r.what = 'let_in' and r.retry_at > v_now) is null
             order by t.concurrency_key, ~t.priority, t.queue_turn, t.created_at, t.id
             limit k.room for no key update skip locked) g;
    else
        return query select k.name, g.ctid from unnest(p_names, p_rooms) k (name, room) cross join lateral (
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
    v_over text[];
    v_overs int[];
    v_found text[];
    v_rows tid[];
    v_refused int[] := '{}';
    v_is_whole boolean := true;
    v_is_late boolean;
begin
    select array_agg(r.name) filter (where r.room > 0), array_agg(r.room) filter (where r.room > 0),
           array_agg(r.name) filter (where r.room < 0), array_agg(-r.room) filter (where r.room < 0)
      into v_names, v_rooms, v_over, v_overs
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
        select array_agg(w.name), array_agg(w.place) into v_found, v_rows
          from public.internal_waiting(p_scope, v_names, v_rooms) w;
        if v_rows is not null then
            select c.refused, c.is_whole into v_refused, v_is_whole from public.internal_change_gates(p_scope, v_rows) c;
        end if;
        v_is_late := not v_is_whole or v_refused <> '{}' and clock_timestamp() > v_until;
        if v_is_late or c_most = any (v_rooms)
           or coalesce(cardinality(v_found), 0) < (select sum(r.room) from unnest(v_rooms) r (room)) then
            insert into public.concurrency_notes (scope, name)
            select p_scope, n.name
              from (select r.name, r.room, 0 as found from unnest(v_names, v_rooms) r (name, room)
                    union all select f.name, 0, 1 from unnest(v_found) f (name)) n
             group by n.name
            having case when v_is_late or sum(n.found) < sum(n.room) or max(n.room) = c_most  -- the CASE looks only then
                        then public.internal_has_waiting(p_scope, n.name) end;
        end if;
        exit when v_rows is null or v_refused = '{}' or not v_is_whole or clock_timestamp() > v_until;
        select array_agg(g.name), array_agg(g.n) into v_names, v_rooms
          from (select v_found[r.place] as name, count(*)::int as n from unnest(v_refused) r (place) group by 1) g;
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
-- that fails to each half, and so on. Returns the places in p_rows of the refused ones, and whether all were tried in
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
    c_waits constant int := 3;
    c_step constant bigint := 1000000;  -- between two turns
    v_now timestamptz := public.internal_now();
    v_before text := coalesce(current_setting('orchestrator.gating', true), '');
    v_count int := coalesce(cardinality(p_rows), 0);
    v_firsts int[] := array[1];
    v_lasts int[] := array[v_count];
    v_low int;
    v_high int;
    v_rows tid[];
    -- Where these tasks are now.
    v_gates constant int[] := case p_change when 'key' then array[1] when 'type' then array[2] when 'key back' then array[2, 3]
                                            when 'type back' then array[3] else array[0] end;
    v_key text;
    v_type text;
    v_changed int;
    v_until timestamptz;
    v_waits int;
    v_message text;
    v_set text;
begin
    refused := '{}';
    is_whole := true;
    if coalesce(nullif(current_setting('orchestrator.limit_waits', true), '')::int, 0) >= c_waits then
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
                               else public.internal_next_turn(t.pool, ~t.priority, t.tenant, t.attempts > 0) end
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
                v_waits := 1 + coalesce(nullif(current_setting('orchestrator.limit_waits', true), '')::int, 0);
            elsif public.internal_is_transient(sqlstate) and left(sqlstate, 2) <> '40' and sqlstate <> '55006' then
                raise;
            end if;
            v_message := case sqlstate when 'OR008' then 'A trigger of the database suppressed the change'
                else format('The database refused to let it in: %s (%s)', sqlerrm, sqlstate) end;
        end;
        v_until := coalesce(v_until, clock_timestamp() + c_time);
        if v_waits is not null then
            v_set := set_config('orchestrator.limit_waits', v_waits::text, true);
            if v_waits >= c_waits then
                v_set := set_config('lock_timeout', '1ms', true);
            end if;
            v_waits := null;
        end if;
        if v_low < v_high then
            v_firsts := v_firsts || array[(v_low + v_high) / 2 + 1, v_low];
            v_lasts := v_lasts || array[v_high, (v_low + v_high) / 2];
            continue;
        end if;
        refused := refused || v_low;
        if p_change in ('key', 'type', 'limit', 'due') then
            perform public.internal_refused(array(
                select t.id from public.tasks t where t.ctid = any (v_rows) and (t.queue_gate > 0 or p_change = 'limit')),
                'let_in', v_message);
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
    -- Tasks may wait for a limit that was removed: those that were postponed then, and those that the removal did not reach.
    p_new_types := array(select distinct n.name from unnest(p_new_types) n (name)
                          where (n.name in (select unnest(v_limited))) is true or public.internal_has_waiting('type', n.name));
    if p_new_types <> '{}' then
        perform public.internal_let_in('type', p_new_types, v_now);
    end if;
    p_free_types := array(select f.name from unnest(p_free_types) f (name)
                           where (f.name in (select unnest(v_limited))) is true
                             and (f.name in (select unnest(p_new_types))) is not true);
    if p_free_types <> '{}' then
        perform public.internal_pass_on('type', p_free_types, v_now);
    end if;
end
$$;

-- The pause after a refusal is over: the limit that the task waits for is filled at this snapshot. A task that could not
-- begin to wait is tried at once. The refusal is forgotten if the task waits for no limit any more.
create or replace function public.internal_try_let_in(p_task_id uuid) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    v_row tid;
begin
    insert into public.concurrency_notes (scope, name)
    select case t.queue_gate when 1 then 'key' else 'type' end,
           case t.queue_gate when 1 then t.concurrency_key else t.task_type end
      from public.tasks t where t.id = p_task_id and t.status = 'Queued' and t.queue_gate in (1, 2);
    if found then
        return;
    end if;
    select t.ctid into v_row from public.tasks t
     where t.id = p_task_id and t.status = 'Queued' and not t.blocked and t.queue_gate = 0 for no key update skip locked;
    if v_row is null or public.internal_begin_waiting(array[v_row]) = '{}' then
        delete from public.task_refusals r where r.task_id = p_task_id and r.what = 'let_in';
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

-- Whether this limit, which the caller has locked, has more places left than its name is in p_taken.
create or replace function public.internal_has_room(p_scope text, p_name text, p_taken text[], p_now timestamptz) returns boolean
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    return coalesce((select r.room > cardinality(array_positions(p_taken, p_scope || ':' || p_name))
                       from public.internal_rooms(p_scope, array[p_name], p_now) r), false);
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
