-- What follows for dependent tasks when a task ends, changes or is removed.
--
-- `blocked` is not a counter. It is computed again under a lock. No transaction waits long for another one:
--   * An insert of a dependant does not lock its dependencies against heartbeats and completions.
--   * A transaction that settles a dependant which another transaction has locked waits only briefly, because the
--     other one may wait for it. Then it leaves a row in tasks_unsettled. So does an insert of a task that waits,
--     because a dependency may end in a transaction that does not see the new task. The row is examined again when its
--     transaction commits, by every snapshot and by the hourly retention, until no other transaction changes the task
--     or its dependencies.
--   * What is left to a later call while a transaction commits is examined by the next snapshot.
--   * Rows of tasks_unsettled are bounded. A snapshot examines first those that have waited longest, for a tenth of a
--     second. A transaction waits at most three times for locks of others, and not at all while an older row shows that
--     some transaction stays open.
-- A task that a user's trigger keeps from being settled gets a row in task_refusals and is tried again after a pause.
-- Plans do not depend on statistics: each dependency is looked up by its key, and each join is of arrays.
-- A Complete task may lose this status by a user's UPDATE, or by a deletion and an insertion with the same id. Then
-- dependants that have not started wait for it again, or fail if it is now Failed or Cancelled.
-- If a Complete task is deleted, its result is kept for the tasks that need it. If any other task is deleted, the tasks
-- that depend on it fail.

-- Settles these queued tasks. Dependants of those that end as Failed or Cancelled fail with them, at any depth. If a
-- user's trigger keeps a task from failing, the tasks that depend on it must not fail: the cascade goes level by level,
-- and ends where no task has ended.
create or replace function public.internal_settle(p_ids uuid[], p_gone uuid[]) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    c_most constant int := 2000;  -- tasks that fail in one statement; fewer while a user's trigger refuses one of them
    v_ids uuid[] := p_ids;
    v_gone uuid[] := p_gone;
    v_lock record;
    v_waits int := 3;
    v_ended uuid[];
    v_behind uuid[];
    v_most int := c_most;
begin
    while cardinality(v_ids) > 0 loop
        select * into v_lock from public.internal_lock_queued(v_ids, v_waits);
        v_waits := v_lock.p_waits;
        if v_lock.missed <> '{}' then
            perform public.internal_settle_later(v_lock.missed);
        end if;
        exit when v_lock.locked is null;
        v_ended := public.internal_settle_each(false, v_lock.locked, v_gone);
        v_gone := '{}';
        v_behind := '{}';
        if v_ended <> '{}' then
            v_most := least(2 * v_most, c_most);
            loop
                v_behind := public.internal_fail_dependants(v_ended, v_most);
                exit when v_behind is not null or v_most = 1;
                v_most := v_most / 2;
            end loop;
        end if;
        v_ids := public.internal_dependants(v_ended || v_behind);
    end loop;
end
$$;

-- Fails the dependants of these tasks that no other transaction has locked, at most so many, and returns them. Returns
-- null and changes nothing if a user's trigger refused one of them.
create or replace function public.internal_fail_dependants(p_ended uuid[], p_most int) returns uuid[]
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off set lock_timeout = '100ms' as $$
#variable_conflict use_variable
declare
    v_before text := coalesce(current_setting('orchestrator.settling', true), '');
    v_set text;
    v_all uuid[] := public.internal_waiting_dependants(p_ended, p_most);
    v_places jsonb;  -- places of the tasks in v_all. A value is found without a join, so the estimates of the planner do not matter
    v_locked uuid[];
    v_task record;
    v_cause int;
    v_message text;
    v_ids uuid[] := '{}';
    v_messages text[] := '{}';
    v_ends text[] := '{}';  -- by place: how the task ended, for the message of a dependant; null: it did not end
    v_whys text[] := '{}';  -- why it ended
    v_roots boolean[] := '{}';  -- whether that is the reason of the first task in the chain
begin
    if not public.internal_may_wait() then
        v_set := set_config('lock_timeout', '1ms', true);
    end if;
    select array_agg(l.id) into v_locked from (
        select t.id from public.tasks t where t.id = any (v_all) and t.status = 'Queued' and t.blocked
         order by t.id for no key update skip locked) l;
    if v_locked is null then
        return '{}';
    end if;
    select jsonb_object_agg(p.id, p.n) into v_places from unnest(v_all) with ordinality p (id, n);
    for v_task in
        select (v_places->t.id::text)::int as n, t.id, t.task_type, t.status, t.failure_code, t.error_message,
               array(select (v_places->d.id::text)::int from unnest(t.depends_on) with ordinality d (id, place)
                      where v_places ? d.id::text order by d.place) as needs
          from public.tasks t where t.id = any (p_ended || v_locked) and v_places ? t.id::text order by 1
    loop
        v_cause := null;
        if v_task.status in ('Failed', 'Cancelled') then
            v_roots[v_task.n] := v_task.failure_code is not distinct from 'DEPENDENCY_FAILED';
            v_whys[v_task.n] := case
                when v_roots[v_task.n] then regexp_replace(
                    v_task.error_message, E'^.*(Dependency [0-9a-f-]{36} \\([^)]*\\) ended as )', E'\\1')
                else concat_ws(': ', v_task.failure_code, v_task.error_message) end;
            v_ends[v_task.n] := format('Dependency %s (%s) ended as %s', v_task.id, v_task.task_type, v_task.status);
            continue;
        end if;
        foreach v_cause in array v_task.needs loop
            exit when v_ends[v_cause] is not null;
            v_cause := null;
        end loop;
        continue when v_cause is null;
        v_message := public.internal_message(concat_ws(': ', v_ends[v_cause], nullif(v_whys[v_cause], '')));
        v_ids := v_ids || v_task.id;
        v_messages := v_messages || v_message;
        v_ends[v_task.n] := format('Dependency %s (%s) ended as Failed', v_task.id, v_task.task_type);
        v_whys[v_task.n] := case when v_roots[v_cause] then v_whys[v_cause] else v_message end;
        v_roots[v_task.n] := true;
    end loop;
    begin
        v_set := set_config('orchestrator.settling', pg_trigger_depth()::text, true);
        v_places := jsonb_object(v_ids::text[], v_messages);
        update public.tasks t
           set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_FAILED', error_message = v_places->>t.id::text
         where t.id = any (v_ids) and t.status = 'Queued';
        if (select count(*) from public.tasks t where t.id = any (v_ids) and t.status = 'Failed') < cardinality(v_ids) then
            raise exception using errcode = 'OR008';  -- caught below
        end if;
        v_set := set_config('orchestrator.settling', v_before, true);
        perform public.internal_fire_deferred();
    exception when others or assert_failure then  -- OR008, or a user's trigger
        if sqlstate = '55P03' then
            perform public.internal_count_wait();
        elsif public.internal_is_transient(sqlstate) then
            raise;
        end if;
        return null;
    end;
    return v_ids;
end
$$;

-- Settles these tasks, or ends them as a cycle, as far as users' triggers allow: all at once, or if that fails each
-- half, and so on. Returns the ended ones. Tasks that cannot be tried in time are left to a later call. A transaction waits
-- only three times for locks that users' triggers ask for.
create or replace function public.internal_settle_each(p_is_cycle boolean, p_ids uuid[], p_gone uuid[]) returns uuid[]
language plpgsql security definer set search_path = '' set jit = off set lock_timeout = '100ms' as $$
#variable_conflict use_variable
declare
    c_time constant interval := '200 milliseconds';  -- for tasks that fail
    v_until timestamptz;
    v_first int[] := '{1}';
    v_last int[] := array[cardinality(p_ids)];
    v_low int;
    v_high int;
    v_some uuid[];
    v_ended uuid[] := '{}';
    v_message text;
    v_sqlstate text;
    v_set text;
begin
    while cardinality(v_first) > 0 loop
        if not public.internal_may_wait() then
            v_set := set_config('lock_timeout', '1ms', true);
        end if;
        v_low := v_first[cardinality(v_first)];
        v_high := v_last[cardinality(v_last)];
        v_first := trim_array(v_first, 1);
        v_last := trim_array(v_last, 1);
        begin
            if p_is_cycle then
                perform public.internal_end_cycle(p_ids[v_low:v_high]);
            else
                v_some := public.internal_settle_locked(p_ids[v_low:v_high], p_gone);
            end if;
            perform public.internal_fire_deferred();
            v_ended := v_ended || v_some;
            continue;
        exception when others or assert_failure then  -- a user's trigger or constraint may raise anything
            if sqlstate = '55P03' then
                perform public.internal_count_wait();
            elsif public.internal_is_transient(sqlstate) then
                raise;
            end if;
            v_message := format('The database refused to settle it: %s (%s)', sqlerrm, sqlstate);
            v_sqlstate := sqlstate;
        end;
        v_until := coalesce(v_until, clock_timestamp() + c_time);
        if v_low = v_high then
            perform public.internal_refused(p_ids[v_low:v_low], 'settle', v_message, v_sqlstate);
        elsif clock_timestamp() > v_until then
            perform public.internal_settle_later(p_ids[v_low:v_high]);
        else
            v_first := v_first || array[(v_low + v_high) / 2 + 1, v_low];
            v_last := v_last || array[v_high, (v_low + v_high) / 2];
        end if;
    end loop;
    return v_ended;
end
$$;

-- Settles tasks that begin to wait, in the transaction that inserts or changes them. Their Complete dependencies are
-- locked in share mode without a wait, so that a user who changes one later waits for this transaction and sees the
-- dependant. A dependency that is already locked may be about to change: then the dependant gets a row in
-- tasks_unsettled.
create or replace function public.internal_settle_new(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_waiting uuid[];
    v_ready uuid[];
    v_needed uuid[];
    v_kept int;
begin
    perform public.internal_settle(p_ids, '{}');
    -- The other conditions are in a FILTER, not in WHERE: a plan from an empty queue would read an index of all queued
    -- tasks instead of these ids.
    v_waiting := (select coalesce(array_agg(t.id) filter (where t.blocked and t.status = 'Queued'), '{}')
                    from public.tasks t where t.id = any (p_ids));
    if v_waiting <> '{}' then
        perform public.internal_settle_cycles(v_waiting);
        perform public.internal_settle_later(v_waiting);
    end if;
    v_ready := (select coalesce(array_agg(t.id)
                           filter (where not t.blocked and t.status = 'Queued' and t.depends_on <> '{}'), '{}')
                  from public.tasks t where t.id = any (p_ids));
    v_needed := array(select d.id from public.tasks d where d.id = any (array(
                          select distinct unnest(t.depends_on) from public.tasks t where t.id = any (v_ready))));
    select count(*) into v_kept from (
        select from public.tasks d where d.id = any (v_needed) and d.status = 'Complete'
         order by d.id for share skip locked) k;
    if v_kept < cardinality(v_needed) then
        perform public.internal_settle_later(v_ready);
    end if;
end
$$;

-- For queued tasks that the caller has locked: computes whether they wait, and ends those that can never run. `p_gone`
-- are dependencies that no longer exist; any other missing one may still be inserted. Returns the ended ones. A change
-- that a user's trigger suppresses is recorded.
create or replace function public.internal_settle_locked(p_ids uuid[], p_gone uuid[]) returns uuid[]
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_before text := coalesce(current_setting('orchestrator.settling', true), '');
    v_set text;
    v_gone jsonb := (select jsonb_object_agg(g.id, true) from unnest(p_gone) g (id) where g.id is not null);
    v_begin uuid[];  -- tasks that begin to wait …
    v_end uuid[];  -- … and that wait no more
    v_waiting uuid[];
    v_ready uuid[];
    v_failed jsonb;  -- of each task that fails: the dependency that failed before it …
    v_lost jsonb;  -- … or does not exist
    v_some uuid[];
    v_done uuid[];
    v_kept uuid[] := '{}';
begin
    -- Only at this depth of triggers does the loop in internal_settle follow a cascade.
    v_set := set_config('orchestrator.settling', pg_trigger_depth()::text, true);
    select array_agg(l.id) filter (where l.failed is null and not l.is_lost and not l.blocked and l.waits),
           array_agg(l.id) filter (where l.failed is null and not l.is_lost and l.blocked and not l.waits),
           coalesce(jsonb_object_agg(l.id, l.failed) filter (where l.failed is not null), '{}'),
           coalesce(jsonb_object_agg(l.id, l.lost) filter (where l.failed is null and l.is_lost), '{}')
      into v_begin, v_end, v_failed, v_lost
      from (select t.id, t.blocked and t.queue_gate = 0 as blocked, n.waits, n.failed, n.lost, n.is_lost
              from public.tasks t
             cross join lateral (
                   select coalesce(bool_or(s.status <> 'Complete'), false) as waits,
                          (array_agg(s.id) filter (where s.status in ('Failed', 'Cancelled')))[1] as failed,
                          (array_agg(s.id) filter (where s.status = 'gone'))[1] as lost,
                          coalesce(bool_or(s.status = 'gone'), false) as is_lost
                     from (select n.id,  -- each by its key: a join could read the whole table for each task
                                  coalesce((select d.status::text from public.tasks d where d.id = n.id),
                                           (select 'Complete' from public.task_results r where r.id = n.id),
                                           case when n.id is null or v_gone ? n.id::text then 'gone' else 'absent' end) as status
                             from unnest(t.depends_on) n (id) offset 0) s) n
             where t.id = any (p_ids) and t.status = 'Queued') l;
    if v_begin is not null or v_end is not null then
        with done as (
            update public.tasks t set blocked = not (t.blocked and t.queue_gate = 0), queue_gate = 0
             where t.id = any (v_begin || v_end) and t.status = 'Queued'
            returning t.id, t.status = 'Queued' and t.blocked and t.queue_gate = 0 as waits
        )
        select array_agg(d.id) filter (where d.waits), array_agg(d.id) filter (where not d.waits) into v_waiting, v_ready
          from done d;
        v_kept := array((select unnest(v_begin) except select unnest(v_waiting))
                        union all (select unnest(v_end) except select unnest(v_ready)));
    end if;
    if v_failed <> '{}' then
        v_some := array(select k::uuid from jsonb_object_keys(v_failed) k);
        with done as (
            update public.tasks t
               set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_FAILED',
                   error_message = (
                       select public.internal_message(concat_ws(': ',
                                  format('Dependency %s (%s) ended as %s', d.id, d.task_type, d.status),
                                  nullif(d.failure_code, 'DEPENDENCY_FAILED'),
                                  case when d.failure_code = 'DEPENDENCY_FAILED'
                                       then regexp_replace(d.error_message,
                                                           E'^.*(Dependency [0-9a-f-]{36} \\([^)]*\\) ended as )', E'\\1')
                                       else d.error_message end))
                         from public.tasks d where d.id = (v_failed->>t.id::text)::uuid)
             where t.id = any (v_some) and t.status = 'Queued' returning t.id, t.status
        )
        select array_agg(d.id) into v_done from done d where d.status <> 'Queued';
        v_kept := v_kept || array(select unnest(v_some) except select unnest(v_done));
    end if;
    if v_lost <> '{}' then
        v_some := array(select k::uuid from jsonb_object_keys(v_lost) k);
        with done as (
            update public.tasks t
               set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_DELETED',
                   error_message = case
                       when v_lost->t.id::text = 'null' then 'depends_on contains NULL'
                       else public.internal_message(format(
                           'Dependency %s does not exist: it was deleted before it was complete', v_lost->>t.id::text)) end
             where t.id = any (v_some) and t.status = 'Queued' returning t.id, t.status
        )
        select array_agg(d.id) into v_done from done d where d.status <> 'Queued';
        v_kept := v_kept || array(select unnest(v_some) except select unnest(v_done));
    end if;
    v_set := set_config('orchestrator.settling', v_before, true);
    if v_kept <> '{}' then
        perform public.internal_refused(v_kept, 'settle', 'A trigger of the database suppressed the change');
    end if;
    return array(select t.id from public.tasks t
                  where t.id = any (p_ids) and t.status in ('Complete', 'Failed', 'Cancelled'));
end
$$;

-- Settles the tasks of these rows again. A row is deleted if no other transaction was changing its tasks or their
-- dependencies; a transaction that changes a dependency later sees them. Returns how many rows it examined; other
-- callers examine the rest.
create or replace function public.internal_settle_again(p_nos bigint[], p_waits boolean) returns int
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_nos bigint[];
    v_ids uuid[];
    v_needed uuid[];
    v_kept uuid[];
    v_open uuid[];
    v_busy jsonb;
    v_lock record;
begin
    select array_agg(l.no) into v_nos from (
        select u.no from public.tasks_unsettled u where u.no = any (p_nos) order by u.no for update skip locked) l;
    if v_nos is null then
        return 0;
    end if;
    v_ids := array(select distinct unnest(u.task_ids) from public.tasks_unsettled u where u.no = any (v_nos));
    select * into v_lock from public.internal_lock_queued(v_ids, 0);
    v_needed := array(
        select d.id from public.tasks d
         where d.status in ('Queued', 'In Progress', 'Complete')
           and d.id = any (array(select distinct unnest(t.depends_on) from public.tasks t where t.id = any (v_lock.locked))));
    v_kept := array(select s.id from (
        select d.id from public.tasks d where d.id = any (v_needed) and d.status in ('Queued', 'In Progress', 'Complete')
         order by d.id for share skip locked) s);
    if cardinality(v_kept) < cardinality(v_needed) and p_waits and public.internal_lock_briefly(v_needed, true) then
        v_kept := v_needed;
    end if;
    perform public.internal_settle(v_lock.locked, '{}');
    v_open := v_lock.missed;
    if cardinality(v_kept) < cardinality(v_needed) then
        select jsonb_object_agg(b.id, true) into v_busy from (select unnest(v_needed) as id except select unnest(v_kept)) b;
        v_open := v_open || array(select t.id from public.tasks t
                                   where t.id = any (v_lock.locked)
                                     and exists (select from unnest(t.depends_on) n (id) where v_busy ? n.id::text));
    end if;
    select coalesce(jsonb_object_agg(o.id, true), '{}') into v_busy from unnest(v_open) o (id);
    delete from public.tasks_unsettled u
     where u.no = any (v_nos) and not exists (select from unnest(u.task_ids) n (id) where v_busy ? n.id::text);
    if not p_waits and v_open <> '{}' then
        update public.tasks_unsettled u
           set tried_at = clock_timestamp(), task_ids = array(select n.id from unnest(u.task_ids) n (id)
               where v_busy ? n.id::text)
         where u.no = any (v_nos);
    end if;
    return cardinality(v_nos);
end
$$;

create or replace function public.internal_settle_at_commit() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_set text;
begin
    v_set := set_config('orchestrator.commits', 'true', true);
    perform public.internal_settle_again(array[new.no], true);
    v_set := set_config('orchestrator.commits', '', true);
    return null;
end
$$;

-- Leaves these tasks to a later call: at the commit, or, in a commit, to the next snapshot.
create or replace function public.internal_settle_later(p_ids uuid[]) returns void
language sql security definer set search_path = '' as $$
    insert into public.tasks_unsettled (task_ids, tried_at)
    select array_agg(n.id),
           case when current_setting('orchestrator.commits', true) = 'true' then clock_timestamp() else '-infinity' end
      from unnest(internal_settle_later.p_ids) with ordinality n (id, place) group by (n.place - 1) / 500
$$;

-- At each snapshot, for about a tenth of a second: settles the tasks that were left to a later call, and those that a
-- user's trigger kept from being settled, let in or claimed. No error stops the snapshot.
create or replace function public.internal_settle_pending() returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set lock_timeout = '100ms'
set jit = off as $$
#variable_conflict use_variable
declare
    c_time constant interval := '100 milliseconds';
    c_rows constant int := 500;  -- of one call, …
    c_tasks constant int := 1000;  -- … in which no row begins after so many tasks
    v_began timestamptz := clock_timestamp();
    v_nos bigint[];
    v_no bigint;
    v_refusal record;
begin
    while clock_timestamp() < v_began + c_time loop
        select array_agg(b.no) into v_nos from (
            select u.no, sum(cardinality(u.task_ids)) over (order by u.tried_at, u.no) - cardinality(u.task_ids) as before
              from (select * from public.tasks_unsettled u where u.tried_at < v_began
                     order by u.tried_at, u.no limit c_rows) u) b
         where b.before < c_tasks;
        exit when v_nos is null;
        begin
            exit when public.internal_settle_again(v_nos, false) = 0;
        exception when others or assert_failure then  -- a transient error: then each row alone, and the failing one last the next time
            foreach v_no in array v_nos loop
                begin
                    if clock_timestamp() < v_began + c_time then
                        perform public.internal_settle_again(array[v_no], false);
                    end if;
                exception when others or assert_failure then
                    update public.tasks_unsettled u set tried_at = clock_timestamp() where u.no = v_no;
                end;
            end loop;
            exit;
        end;
    end loop;
    -- Of both kinds in turn, and one of each at least, however long that takes. A limit may have no place for long, and its
    -- tasks must not be the first ones for ever.
    for v_refusal in
        (select r.task_id, r.what, row_number() over (order by r.retry_at) as n from public.task_refusals r
          where r.retry_at <= public.internal_now() and r.what in ('claim', 'settle') order by 3 limit c_rows)
        union all
        (select r.task_id, r.what, row_number() over (order by random()) from public.task_refusals r
          where r.retry_at <= public.internal_now() and r.what = 'let_in' order by 3 limit c_rows)
        order by 3
    loop
        exit when v_refusal.n > 1 and clock_timestamp() > v_began + 2 * c_time;
        begin
            if v_refusal.what = 'claim' then
                perform public.internal_try_refused(v_refusal.task_id);
            elsif v_refusal.what = 'let_in' then
                perform public.internal_try_let_in(v_refusal.task_id);
            else
                perform public.internal_settle(array[v_refusal.task_id], '{}');
                delete from public.task_refusals r
                 where r.task_id = v_refusal.task_id and r.what = 'settle' and r.retry_at <= public.internal_now();
            end if;
        exception when others or assert_failure then
            perform public.internal_refused(array[v_refusal.task_id], v_refusal.what, format('%s (%s)', sqlerrm, sqlstate));
        end;
    end loop;
end
$$;

-- Settles all waiting tasks, once an hour: rows that were written without triggers, and tasks that have waited too long
-- for a task that does not exist. An error of one batch stops neither the others nor the retention.
create or replace function public.internal_settle_all(p_now timestamptz) returns void
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    c_slice constant int := 1000;
    c_time constant interval := '5 seconds';  -- for refused tasks that are due
    c_absent constant interval := '1 hour';  -- after that, a missing dependency counts as lost
    v_ids uuid[];
    v_gone uuid[];
begin
    loop
        perform public.internal_settle_pending();
        exit when clock_timestamp() > statement_timestamp() + c_time or not exists (
            select from public.task_refusals r
             where r.retry_at <= public.internal_now() and r.what in ('claim', 'settle'));
    end loop;
    for v_ids in
        select array_agg(q.id) from (
            select t.id, row_number() over () as n from public.tasks t
             where t.status = 'Queued' and (t.blocked or t.depends_on <> '{}')) q
         group by q.n / c_slice
    loop
        begin
            v_gone := array(
                select distinct n.id from public.tasks t cross join unnest(t.depends_on) n (id)
                 where t.id = any (v_ids) and t.updated_at < p_now - c_absent
                   and not exists (select from public.tasks d where d.id = n.id)
                   and not exists (select from public.task_results r where r.id = n.id));
            perform public.internal_settle(v_ids, v_gone);
        exception when others or assert_failure then
            raise warning 'tasks could not be settled: % (%)', sqlerrm, sqlstate;
        end;
    end loop;
    begin
        perform public.internal_settle_cycles(null);
    exception when others or assert_failure then
        raise warning 'cycles could not be ended: % (%)', sqlerrm, sqlstate;
    end;
    delete from public.task_results r
     where not exists (select from public.tasks t
                        where t.status <> 'Complete' and t.depends_on <> '{}' and t.depends_on @> array[r.id]);
    delete from public.task_refusals r
     where not exists (select from public.tasks t where t.id = r.task_id and t.status in ('Queued', 'In Progress'));
end
$$;

-- In these searches `offset 0` keeps the planner from a join, for which it might read all waiting tasks.

-- Those of these tasks that failed or were cancelled, and their dependants at any depth, each after a task that it
-- waits for. At most p_most dependants.
create or replace function public.internal_waiting_dependants(p_ended uuid[], p_most int) returns uuid[]
language sql stable security definer set search_path = '' set enable_seqscan = off set enable_indexscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
    with recursive ended (ids) as (
        select array(select d.id from public.tasks d where d.id = any (internal_waiting_dependants.p_ended)
            and d.status in ('Failed', 'Cancelled'))
    ), behind (id) as (
        select n.id from ended e cross join unnest(e.ids) n (id)
        union
        select w.id from behind b cross join lateral (
            select t.id from public.tasks t
             where t.blocked and t.status = 'Queued' and t.depends_on @> array[b.id] offset 0) w
    )
    select array_agg(l.id)
      from (select b.id from behind b
             limit internal_waiting_dependants.p_most + cardinality(internal_waiting_dependants.p_ended)) l
$$;

-- Queued tasks that depend on one of these.
create or replace function public.internal_dependants(p_ids uuid[]) returns uuid[]
language plpgsql stable security definer set search_path = '' set enable_seqscan = off set enable_indexscan = off
set jit = off as $$
#variable_conflict use_variable
declare
    c_slice constant int := 1000;
    v_ids uuid[] := '{}';
begin
    for v_first in 1..coalesce(cardinality(p_ids), 0) by c_slice loop
        v_ids := v_ids || array(
            select t.id from public.tasks t
             where t.blocked and t.status = 'Queued' and t.depends_on && p_ids[v_first:v_first + c_slice - 1]);
    end loop;
    if cardinality(p_ids) > c_slice then
        v_ids := array(select distinct n.id from unnest(v_ids) n (id));
    end if;
    return nullif(v_ids, '{}');
end
$$;

-- Tasks that depend on one of these and have not started: ready or waiting.
create or replace function public.internal_needing(p_ids uuid[]) returns uuid[]
language sql stable security definer set search_path = '' set enable_seqscan = off set enable_indexscan = off
set jit = off as $$
    select array_agg(distinct w.id)
      from (select array_agg(e.id) as ids from unnest(internal_needing.p_ids) with ordinality e (id, n)
             group by (e.n - 1) / 1000) s
     cross join lateral (
           select t.id from public.tasks t
            where t.status = 'Queued' and t.depends_on <> '{}' and t.depends_on && s.ids offset 0) w
$$;

-- The results of tasks for their dependants, deleted tasks included.
create or replace function public.internal_results(p_ids uuid[])
returns table (id uuid, task_type text, output_location text, result_data jsonb, output_object jsonb)
language sql stable security definer set search_path = '' as $$
    select t.id, t.task_type, t.output_location, t.result_data,
           case when t.output_object->>'location' = t.output_location then t.output_object end
      from public.tasks t where t.id = any (internal_results.p_ids)
    union all
    select r.id, r.task_type, r.output_location, r.result_data,
           case when r.output_object->>'location' = r.output_location then r.output_object end
      from public.task_results r
     where r.id = any (internal_results.p_ids) and not exists (select from public.tasks t where t.id = r.id)
$$;

-- Locks those of these tasks that are queued, as far as other transactions allow within `p_waits` tries, and returns
-- them.
create or replace function public.internal_lock_queued(
    p_ids uuid[], inout p_waits int, out locked uuid[], out missed uuid[]
)
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
begin
    for v_look in 1..2 loop
        select array_agg(l.id) into locked from (
            select t.id from public.tasks t where t.id = any (p_ids) and t.status = 'Queued'
             order by t.id for no key update skip locked) l;
        missed := array(select t.id from public.tasks t where t.id = any (p_ids) and t.status = 'Queued'
                        except select unnest(locked));
        exit when missed = '{}' or p_waits = 0 or not public.internal_lock_briefly(missed, false);
    end loop;
    if missed <> '{}' and p_waits > 0 then
        p_waits := p_waits - 1;
    end if;
end
$$;

-- Locks tasks in the order of their ids and returns true, or gives up after 0.2 s, because another transaction may have
-- locked one of them and wait for one of ours.
create or replace function public.internal_lock_briefly(p_ids uuid[], p_share boolean) returns boolean
language plpgsql security definer set search_path = '' set enable_seqscan = off set lock_timeout = '100ms' as $$
#variable_conflict use_variable
declare
    c_waits constant int := 3;  -- without success, in one transaction
    v_waits int := coalesce(nullif(current_setting('orchestrator.waits', true), '')::int, 0);
    v_set text;
begin
    if v_waits >= c_waits
       or exists (select from public.tasks_unsettled u where u.noted_at < clock_timestamp() - interval '1 second') then
        return false;
    end if;
    begin
        if p_share then
            perform from public.tasks t where t.id = any (p_ids) order by t.id for share;
        else
            perform from public.tasks t where t.id = any (p_ids) order by t.id for no key update;
        end if;
        return true;
    exception when lock_not_available or deadlock_detected then
        v_set := set_config('orchestrator.waits', (v_waits + 1)::text, true);
    end;
    return false;
end
$$;
