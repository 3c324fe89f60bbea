-- Settling: what follows from the end, the change or the removal of a task, whoever makes it.
--
-- * No setting suppresses a trigger. Every statement on `tasks`, also one of a user's trigger within a claim, a completion or
--   a cascade, is counted, marked, announced and settled by the triggers of that statement.
-- * A statement's cost grows with its rows and not with their square, whatever its plan was made for.
-- * Nobody waits long for anybody. Who inserts a dependant does not lock the dependency against heartbeats and completions.
--   Who settles a dependant that another transaction holds waits for it only briefly, since the other may wait for him; then
--   he leaves a row in tasks_unsettled. So does who inserts a task that waits, since a dependency may end in a transaction
--   that does not see the new task. Such a row is looked at again when its transaction commits, by every snapshot and by the
--   hourly retention, until a look proves that nobody was changing the task or what it depends on.
-- * A Complete task that is deleted leaves its result for the tasks that need it. Another one that is deleted fails them.

create table public.tasks_unsettled (
    no bigint generated always as identity primary key,
    task_ids uuid[] not null,
    noted_at timestamptz not null default clock_timestamp()
);
comment on table public.tasks_unsettled is 'Queued tasks whose dependencies, or which themselves, another transaction may be changing';

create table public.task_results (
    id uuid primary key,
    task_type text not null,
    output_location text,
    result_data jsonb,
    deleted_at timestamptz not null
);
comment on table public.task_results is 'Of Complete tasks that were deleted while another task needed them';

create index tasks_needing on public.tasks using gin (depends_on) where status <> 'Complete' and depends_on <> '{}';

-- What tasks hand on to their dependants, deleted ones included.
create function public.internal_results(p_ids uuid[])
returns table (id uuid, task_type text, output_location text, result_data jsonb)
language sql stable security definer set search_path = '' as $$
    select t.id, t.task_type, t.output_location, t.result_data from public.tasks t where t.id = any (p_ids)
    union all
    select r.id, r.task_type, r.output_location, r.result_data from public.task_results r
     where r.id = any (p_ids) and not exists (select from public.tasks t where t.id = r.id)
$$;

-- Queued tasks that wait for one of these.
create function public.internal_dependants(p_ids uuid[]) returns uuid[]
language sql stable security definer set search_path = '' set enable_seqscan = off set enable_indexscan = off set jit = off as $$
    select array_agg(distinct w.id)
      from (select array_agg(e.id) as ids from unnest(p_ids) with ordinality e (id, n) group by (e.n - 1) / 1000) s
     cross join lateral (
           select t.id from public.tasks t where t.blocked and t.status = 'Queued' and t.depends_on && s.ids) w
$$;

-- Locks tasks in the order of their ids and returns true, or gives up after 0.2 s: another transaction may hold one of them
-- and wait for one of ours.
create function public.internal_lock_briefly(p_ids uuid[], p_share boolean) returns boolean
language plpgsql security definer set search_path = '' set lock_timeout = '200ms' as $$
begin
    if p_share then
        perform from public.tasks t where t.id = any (p_ids) order by t.id for share;
    else
        perform from public.tasks t where t.id = any (p_ids) order by t.id for no key update;
    end if;
    return true;
exception when lock_not_available or deadlock_detected then
    return false;
end
$$;

-- Locks the queued ones among these tasks, as far as others let it within the time of `p_waits` tries, and returns them.
create function public.internal_lock_queued(p_ids uuid[], inout p_waits int, out locked uuid[], out missed uuid[])
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
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

-- Queued tasks, locked by the caller: works out whether they wait, and ends those that can never run. `p_gone` are
-- dependencies that no longer exist; any other that does not exist may still be inserted. The ended ones are returned.
create function public.internal_settle_locked(p_ids uuid[], p_gone uuid[]) returns uuid[]
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    v_before text := coalesce(current_setting('orchestrator.settling', true), '');
    v_set text;
begin
    -- At this depth of triggers, and no other, a cascade is followed by the loop in internal_settle.
    v_set := set_config('orchestrator.settling', pg_trigger_depth()::text, true);
    update public.tasks t
       set blocked = not t.blocked
     where t.id = any (p_ids) and t.status = 'Queued'
       and t.blocked is distinct from exists (
               select from unnest(t.depends_on) n (id) left join public.tasks d on d.id = n.id
                where d.status is distinct from 'Complete'
                  and (d.id is not null or not exists (select from public.task_results r where r.id = n.id)));
    update public.tasks t
       set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_FAILED',
           error_message = (
               select left(concat_ws(': ',
                          format('Dependency %s (%s) ended as %s', d.id, d.task_type, d.status),
                          nullif(d.failure_code, 'DEPENDENCY_FAILED'),
                          case when d.failure_code = 'DEPENDENCY_FAILED'
                               then regexp_replace(d.error_message,
                                                   '^.*(Dependency [0-9a-f-]{36} \([^)]*\) ended as )', '\1')
                               else d.error_message end), 4000)
                 from public.tasks d
                where d.id = any (t.depends_on) and d.status in ('Failed', 'Cancelled')
                order by array_position(t.depends_on, d.id) limit 1)
     where t.id = any (p_ids) and t.status = 'Queued'
       and exists (select from public.tasks d where d.id = any (t.depends_on) and d.status in ('Failed', 'Cancelled'));
    if p_gone <> '{}' then
        update public.tasks t
           set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_DELETED',
               error_message = format('Dependency %s does not exist: it was deleted before it was complete', (
                   select n.id from unnest(t.depends_on) n (id) where n.id = any (p_gone) limit 1))
         where t.id = any (p_ids) and t.status = 'Queued' and t.blocked and t.depends_on && p_gone;
    end if;
    v_set := set_config('orchestrator.settling', v_before, true);
    return array(select t.id from public.tasks t
                  where t.id = any (p_ids) and t.status in ('Complete', 'Failed', 'Cancelled'));
end
$$;

drop function public.internal_settle(uuid[]);
-- Settles queued tasks, and those that wait for one that this ends, level by level.
create function public.internal_settle(p_ids uuid[], p_gone uuid[]) returns void
language plpgsql security definer set search_path = '' as $$
declare
    v_ids uuid[] := p_ids;
    v_gone uuid[] := p_gone;
    v_lock record;
    v_waits int := 3;
begin
    while cardinality(v_ids) > 0 loop
        select * into v_lock from public.internal_lock_queued(v_ids, v_waits);
        v_waits := v_lock.p_waits;
        if v_lock.missed <> '{}' then
            insert into public.tasks_unsettled (task_ids) values (v_lock.missed);
        end if;
        exit when v_lock.locked is null;
        v_ids := public.internal_dependants(public.internal_settle_locked(v_lock.locked, v_gone));
        v_gone := '{}';
    end loop;
end
$$;

drop function public.internal_settle_dependants(uuid[]);

-- Of these tasks, which are blocked: those that can never run, since all that they wait for waits in turn for one of them.
create function public.internal_stuck(p_ids uuid[]) returns uuid[]
language sql stable security definer set search_path = ''
set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off as $$
    with recursive edges (id, needs) as materialized (
        select t.id, n.id from public.tasks t cross join unnest(t.depends_on) n (id)
         where t.id = any (p_ids) and t.blocked and t.status = 'Queued'
    ), open (id, needs) as materialized (  -- without those that are complete
        select e.id, e.needs from edges e left join public.tasks d on d.id = e.needs
         where d.status is distinct from 'Complete'
    ), free (id) as (
        select o.id from open o left join (select distinct w.id from open w) w on w.id = o.needs where w.id is null
        union
        select o.id from free f join open o on o.needs = f.id
    )
    select array(select o.id from open o except select f.id from free f)
$$;

-- Ends tasks that wait for each other: those that lead to one of these, or all where null. More than `c_most` are left to
-- the hourly look at all.
create function public.internal_settle_cycles(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    c_most constant int := 10000;
    v_ids uuid[];
    v_lock record;
begin
    if p_ids is null then
        v_ids := array(select t.id from public.tasks t where t.blocked and t.status = 'Queued');
    elsif public.internal_dependants(p_ids) is null then
        return;  -- nobody waits for them
    else
        with recursive needed (id) as (
            select unnest(p_ids)
            union
            select n.id from needed d join public.tasks t on t.id = d.id and t.blocked and t.status = 'Queued'
                        cross join unnest(t.depends_on) n (id)
        )
        select array_agg(l.id) into v_ids from (select d.id from needed d limit c_most + 1) l;
        if cardinality(v_ids) > c_most then
            return;
        end if;
    end if;
    v_ids := public.internal_stuck(v_ids);
    if v_ids <> '{}' then
        select * into v_lock from public.internal_lock_queued(v_ids, 1);
        update public.tasks t
           set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_CYCLE',
               error_message = format('It waits for task %s, and these tasks wait for each other: none can ever run',
                                      t.depends_on[1])
         where t.id = any (v_lock.locked) and t.status = 'Queued' and t.blocked;
    end if;
end
$$;

drop function public.internal_settle_new(uuid[]);
-- Settles tasks that have just begun to wait, in the transaction that made them.
create function public.internal_settle_new(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    v_waiting uuid[];
begin
    perform public.internal_settle(p_ids, '{}');
    v_waiting := array(select t.id from public.tasks t where t.id = any (p_ids) and t.blocked and t.status = 'Queued');
    if v_waiting <> '{}' then
        perform public.internal_settle_cycles(v_waiting);
        insert into public.tasks_unsettled (task_ids) values (v_waiting);
    end if;
end
$$;

-- Another look at the tasks of one row. The row goes once nobody else was changing them, or what they wait for: who ends a
-- dependency later sees them.
create function public.internal_settle_again(p_no bigint, p_waits boolean) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    v_ids uuid[];
    v_needed uuid[];
    v_still int;
    v_lock record;
begin
    select u.task_ids into v_ids from public.tasks_unsettled u where u.no = p_no for update skip locked;
    if not found then
        return;
    end if;
    select * into v_lock from public.internal_lock_queued(v_ids, 0);
    v_needed := array(
        select d.id from public.tasks d
         where d.status in ('Queued', 'In Progress')
           and d.id = any (array(select unnest(t.depends_on) from public.tasks t where t.id = any (v_lock.locked))));
    select count(*) into v_still from (
        select from public.tasks d where d.id = any (v_needed) and d.status in ('Queued', 'In Progress')
         order by d.id for share skip locked) s;
    if v_still < cardinality(v_needed) and p_waits and public.internal_lock_briefly(v_needed, true) then
        v_still := cardinality(v_needed);
    end if;
    perform public.internal_settle(v_lock.locked, '{}');
    if v_lock.missed = '{}' and v_still = cardinality(v_needed) then
        delete from public.tasks_unsettled u where u.no = p_no;
    end if;
end
$$;

create function public.internal_settle_at_commit() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    perform public.internal_settle_again(new.no, true);
    return null;
end
$$;
create constraint trigger tasks_unsettled_at_commit after insert on public.tasks_unsettled
    deferrable initially deferred for each row execute function public.internal_settle_at_commit();

-- The rest of them, at each snapshot.
create function public.internal_settle_late() returns void
language plpgsql security definer set search_path = '' set jit = off as $$
declare
    c_bite constant int := 1000;
    v_no bigint;
begin
    for v_no in select u.no from public.tasks_unsettled u order by u.no limit c_bite loop
        perform public.internal_settle_again(v_no, false);
    end loop;
end
$$;

-- Everything that waits, once an hour: rows that were written without triggers, and tasks that have waited in vain for a
-- task that does not exist.
create function public.internal_settle_all(p_now timestamptz) returns void
language plpgsql security definer set search_path = '' set jit = off as $$
declare
    c_slice constant int := 1000;
    c_absent constant interval := '1 hour';  -- after that nobody will insert it
    v_ids uuid[];
    v_gone uuid[];
begin
    perform public.internal_settle_late();
    for v_ids in
        select array_agg(q.id) from (
            select t.id, row_number() over () as n from public.tasks t where t.status = 'Queued' and t.depends_on <> '{}') q
         group by q.n / c_slice
    loop
        v_gone := array(
            select distinct n.id from public.tasks t cross join unnest(t.depends_on) n (id)
             where t.id = any (v_ids) and t.updated_at < p_now - c_absent
               and not exists (select from public.tasks d where d.id = n.id)
               and not exists (select from public.task_results r where r.id = n.id));
        perform public.internal_settle(v_ids, v_gone);
    end loop;
    perform public.internal_settle_cycles(null);
    delete from public.task_results r
     where not exists (select from public.tasks t
                        where t.status <> 'Complete' and t.depends_on <> '{}' and t.depends_on @> array[r.id]);
end
$$;

-- Closes what a holder no longer has: by its number, or any other of a task that is held by somebody else or by nobody.
create function public.internal_close_attempts(p_ids uuid[], p_gone boolean) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
begin
    update public.task_attempts a
       set ended_at = greatest(public.internal_now(), a.started_at),
           outcome = case t.status when 'Complete' then 'complete' when 'Failed' then 'failed'
                                   when 'Cancelled' then 'cancelled' else 'lost' end,
           message = case when p_gone then 'The task was deleted'
                          else format('The task was changed by hand: %s', t.status) end
      from unnest(p_ids) n (id) left join public.tasks t on t.id = n.id
     where a.task_id = n.id and a.ended_at is null
       and (t.status = 'In Progress' and t.attempts = a.attempt and t.worker_id = a.worker_id) is not true;
end
$$;

create or replace function public.internal_tasks_changed() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
declare
    v_ended uuid[];
    v_waiting uuid[];
    v_pools text[];
    v_workers text[];
    v_finished text[];
    v_left uuid[];
    v_queued bigint;
begin
    -- A full join is hashed or merged: no plan of it is quadratic, whatever number of rows it was made for.
    select array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled') and a.status is distinct from b.status),
           array_agg(a.id) filter (where a.status = 'Queued'
                                     and (a.depends_on is distinct from b.depends_on
                                          or b.status <> 'Queued' and a.depends_on <> '{}')),
           array_agg(distinct a.pool) filter (where a.status = 'Queued' and not a.blocked
                                                and (b.status is distinct from 'Queued' or b.blocked or b.pool <> a.pool
                                                     or b.run_after > coalesce(a.run_after, '-infinity'))),
           array_agg(distinct b.worker_id) filter (where b.status = 'In Progress' and b.worker_id is not null
                                                     and (a.status in ('In Progress', 'Complete')) is not true),
           array_agg(distinct b.worker_id) filter (where b.status = 'In Progress' and a.status = 'Complete'),
           array_agg(b.id) filter (where b.status = 'In Progress'
                                     and (a.status = 'In Progress' and a.attempts = b.attempts
                                          and a.worker_id = b.worker_id) is not true),
           count(*) filter (where a.status = 'Queued' or b.status = 'Queued')
      into v_ended, v_waiting, v_pools, v_workers, v_finished, v_left, v_queued
      from changed a full join was b on b.id = a.id;
    if v_left is not null then
        perform public.internal_close_attempts(v_left, false);
    end if;
    if v_ended is not null
       and current_setting('orchestrator.settling', true) is distinct from (pg_trigger_depth() - 1)::text then
        perform public.internal_settle(public.internal_dependants(v_ended), '{}');
    end if;
    if v_waiting is not null then
        perform public.internal_settle_new(v_waiting);
    end if;
    perform pg_notify('orchestrator_tasks', p) from unnest(v_pools) p;
    perform pg_notify('orchestrator_fleet', w) from unnest(v_workers) w;
    perform pg_notify('orchestrator_fleet', w.id) from public.workers w  -- of a running worker's results nobody need know
      where w.id = any (v_finished) and public.internal_wanted(w) <> 'run';
    if v_queued > 0 then
        insert into public.task_counts (pool, kind, n)
        select c.pool, c.kind, sum(c.n)
          from (select a.pool, case when a.blocked then 'blocked' when a.run_after is not null then 'timed'
                                    else 'plain' end as kind, 1 as n
                  from changed a where a.status = 'Queued'
                union all
                select b.pool, case when b.blocked then 'blocked' when b.run_after is not null then 'timed'
                                    else 'plain' end, -1
                  from was b where b.status = 'Queued') c
         group by 1, 2 having sum(c.n) <> 0;
        insert into public.task_marks (pool, place, created_at, id)
        select a.pool, min(~a.priority), min(a.created_at), '00000000-0000-0000-0000-000000000000'
          from changed a where a.status = 'Queued' and not a.blocked and a.run_after is null group by a.pool;
    end if;
    return null;
end
$$;

create or replace function public.internal_tasks_added() returns trigger
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    v_waiting uuid[];
    v_ended uuid[];
begin
    select array_agg(a.id) filter (where a.depends_on <> '{}' and a.status = 'Queued'),
           array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled'))
      into v_waiting, v_ended from added a;
    if v_waiting is not null then
        -- Who deletes a dependency waits until it is known who needs it. Heartbeats and completions do not wait.
        perform from public.tasks d
          where d.id = any (array(select unnest(t.depends_on) from public.tasks t where t.id = any (v_waiting)))
          order by d.id for key share;
        perform public.internal_settle_new(v_waiting);
    end if;
    if v_ended is not null then
        perform public.internal_settle(public.internal_dependants(v_ended), '{}');
    end if;
    perform pg_notify('orchestrator_tasks', p.pool)
       from (select distinct a.pool from added a
              where a.status = 'Queued'
                and (a.depends_on = '{}'
                     or (select t.status = 'Queued' and not t.blocked from public.tasks t where t.id = a.id))) p;
    return null;
end
$$;

create function public.internal_tasks_removed() returns trigger
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    v_held uuid[];
    v_lost uuid[];
begin
    if tg_op = 'TRUNCATE' then
        delete from public.task_results;
        delete from public.tasks_unsettled;
        perform public.internal_close_attempts(
            array(select a.task_id from public.task_attempts a where a.ended_at is null), true);
        return null;
    end if;
    insert into public.task_results (id, task_type, output_location, result_data, deleted_at)
    select r.id, r.task_type, r.output_location, r.result_data, public.internal_now()
      from removed r
     where r.status = 'Complete'
       and exists (select from public.tasks t
                    where t.status <> 'Complete' and t.depends_on <> '{}' and t.depends_on @> array[r.id])
    on conflict (id) do update
       set output_location = excluded.output_location, result_data = excluded.result_data, deleted_at = excluded.deleted_at;
    select array_agg(r.id) filter (where r.status = 'In Progress'), array_agg(r.id) filter (where r.status <> 'Complete')
      into v_held, v_lost from removed r;
    if v_held is not null then
        perform public.internal_close_attempts(v_held, true);
    end if;
    if v_lost is not null then
        perform public.internal_settle(public.internal_dependants(v_lost), v_lost);
    end if;
    return null;
end
$$;
create trigger tasks_removed after delete on public.tasks referencing old table as removed
    for each statement execute function public.internal_tasks_removed();
create trigger tasks_removed_all after truncate on public.tasks
    for each statement execute function public.internal_tasks_removed();

drop trigger tasks_changed on public.tasks;
create trigger tasks_changed after update on public.tasks referencing old table as was new table as changed
    for each statement execute function public.internal_tasks_changed();
drop trigger tasks_changing on public.tasks;
create trigger tasks_changing before update on public.tasks for each row execute function public.internal_task_changing();

create or replace function public.internal_clock(p_now timestamp with time zone) RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_now timestamptz := clock_timestamp();
    v_set text;
begin
    if p_now is not null and not public.internal_is_pod() then
        v_now := p_now;
    end if;
    v_set := set_config('orchestrator.now', v_now::text, true);
    v_set := set_config('orchestrator.statement', statement_timestamp()::text, true);
    return v_now;
end
$$;

create or replace function public.internal_now() RETURNS timestamp with time zone
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
begin
    -- The time of a call holds for what follows from that call, and not for a user's next statement in its transaction.
    if current_setting('orchestrator.statement', true) = statement_timestamp()::text then
        return current_setting('orchestrator.now', true)::timestamptz;
    end if;
    return clock_timestamp();
end
$$;

create or replace function public.internal_hold(p_worker public.workers, p_nonce text, p_task_id uuid, p_attempt integer, p_outcomes text[]) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_held boolean;
begin
    if p_worker.nonce is distinct from p_nonce then
        return 'fenced';
    end if;
    select t.status = 'In Progress' and t.worker_id = p_worker.id and t.attempts = p_attempt into v_held
      from public.tasks t where t.id = p_task_id for no key update;
    if v_held then
        return 'held';
    elsif exists (select from public.task_attempts a
                   where a.task_id = p_task_id and a.attempt = p_attempt and a.worker_id = p_worker.id
                     and a.outcome = any (p_outcomes)) then
        return 'already';
    end if;
    return 'fenced';
end
$$;

create or replace function public.task_cancel(p_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
begin
    select * into v_task from public.tasks t where t.id = p_id for no key update;
    if not found then
        return jsonb_build_object('outcome', 'not_found', 'status', null);
    elsif v_task.status = 'Queued' then
        update public.tasks t set status = 'Cancelled', blocked = false, cancel_requested_at = v_now where t.id = p_id;
        return jsonb_build_object('outcome', 'cancelled', 'status', 'Cancelled');
    elsif v_task.status = 'In Progress' then  -- its agent is told with the next heartbeat
        update public.tasks t set cancel_requested_at = v_now where t.id = p_id and t.cancel_requested_at is null;
        return jsonb_build_object('outcome', 'cancelling', 'status', 'In Progress');
    end if;
    return jsonb_build_object('outcome', 'already', 'status', v_task.status);
end
$$;

create or replace function public.task_retry(p_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
    v_ids uuid[];
begin
    select * into v_task from public.tasks t where t.id = p_id for no key update;
    if not found then
        return jsonb_build_object('outcome', 'not_found');
    elsif v_task.status not in ('Failed', 'Cancelled') then
        return jsonb_build_object('outcome', 'not_ended', 'status', v_task.status);
    end if;
    with recursive revived (id) as (
        select p_id
        union
        select t.id from revived r join public.tasks t on t.depends_on @> array[r.id]
         where t.status = 'Failed' and t.failure_code = 'DEPENDENCY_FAILED'
    )
    select array_agg(l.id) into v_ids from (
        select t.id from public.tasks t where t.id in (select r.id from revived r) order by t.id for no key update) l;
    update public.tasks t
       set status = 'Queued', uncounted = t.attempts, run_after = null, worker_id = null, lease_expires_at = null,
           cancel_requested_at = null, error_message = null, failure_code = null, failed_at_point = null,
           progress = null, progress_at = null, blocked = t.depends_on <> '{}'
     where t.id = any (v_ids);
    return jsonb_build_object('outcome', 'requeued', 'tasks', to_jsonb(v_ids));
exception when unique_violation then
    perform public.internal_refuse('OR007', 'a task with the same dedupe_key is already queued or running',
        format('dedupe_key %L', v_task.dedupe_key), 'wait for that one, or cancel it');
    return null;
end
$$;

create or replace function public.worker_heartbeat(p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    AS $_$
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
                        else coalesce(w.agent, '{}') || jsonb_build_object('nonce', p_nonce) end,
           deadline_at = case when w.status in ('active', 'idle') then v_now + w.lease_s * interval '1 second'
                              else w.deadline_at end,
           next_attempt_at = case when w.status in ('active', 'idle') then v_now + w.heartbeat_s * interval '1 second'
                                  else w.next_attempt_at end
     where w.id = p_worker_id;
    if v_worker.last_heartbeat is null then
        perform pg_notify('orchestrator_fleet', p_worker_id);
    end if;

    select array_agg(l.id) into v_held from (
        select t.id from jsonb_array_elements(coalesce(p_tasks, '[]')) n
          join public.tasks t on t.id = (n->>'id')::uuid and t.attempts = (n->>'attempt')::int
         where t.worker_id = p_worker_id and t.status = 'In Progress'
         order by t.id for no key update of t) l;
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
$_$;

create or replace function public.internal_give_up(p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean, p_backoff boolean, p_now timestamp with time zone) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_task public.tasks;
    v_outcome text := 'requeued';
    v_status public.tasks.status%type := 'Queued';
    v_used int;
    v_jitter numeric;
    v_run_after timestamptz;
    v_planned text;  -- why its worker is being ended, if that was meant
    v_backoff boolean := p_backoff;
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
    if p_outcome = 'lost' then
        select w.exit_cause into v_planned from public.workers w
         where w.id = v_task.worker_id and w.status in ('terminating', 'terminated')
           and w.exit_cause in ('idle_timeout', 'scale_down', 'manual', 'shutdown', 'max_lifetime', 'budget',
                                'superseded');
    end if;
    if v_planned is not null then
        p_outcome := 'released';
        p_counted := false;
        p_failure := jsonb_build_object(
            'code', 'RELEASED', 'message', format('Worker %s was ended: %s', v_task.worker_id, v_planned));
    end if;
    v_used := v_task.attempts - v_task.uncounted;
    if p_outcome = 'lost' and v_used > 1 then
        v_backoff := exists (select from public.task_attempts a where a.task_id = p_task_id
                                and a.attempt < v_task.attempts and a.outcome = 'lost');
    end if;
    if v_task.cancel_requested_at is not null then
        v_outcome := 'cancelled';
        v_status := 'Cancelled';
    elsif p_counted and (v_used >= v_task.max_attempts or p_failure->'retryable' = 'false') then
        v_outcome := 'failed';
        v_status := 'Failed';
    elsif v_backoff then
        -- 30 s, doubling up to an hour after each failure; +-20 % from the id, so that a crowd does not come back at once.
        v_jitter := 0.8 + 0.4 * ('x' || substr(md5(p_task_id::text || v_task.attempts), 1, 7))::bit(28)::int / 268435455.0;
        v_run_after := p_now + v_jitter * interval '1 second'
            * case when p_outcome = 'lost' then 30 else least(30 * 2 ^ least(v_used - 1, 20), 3600) end;
    end if;
    -- The attempt first: the task's own triggers close what is still open.
    update public.task_attempts a
       set ended_at = p_now,
           outcome = case when v_outcome = 'cancelled' then 'cancelled' else p_outcome end,
           failure_code = left(p_failure->>'code', 100), exit_class = left(p_failure->>'exit_class', 100),
           failed_at_point = left(p_failure->>'point', 100), message = left(p_failure->>'message', 4000),
           detail = p_failure->'detail',
           log_last = (select (w.log_bytes #>> array[a.nonce, 'handler'])::bigint
                         from public.workers w where w.id = a.worker_id)
     where a.task_id = p_task_id and a.attempt = v_task.attempts and a.ended_at is null;
    update public.tasks t
       set status = v_status, run_after = v_run_after, lease_expires_at = null,
           uncounted = t.uncounted + case when p_counted then 0 else 1 end,
           worker_id = case when v_outcome = 'requeued' then null else t.worker_id end,
           generation_processed_at = case when v_outcome = 'requeued' then null else p_now end,
           error_message = left(p_failure->>'message', 4000), failure_code = left(p_failure->>'code', 100),
           failed_at_point = case when p_failure->>'point' in ('Claiming', 'Processing', 'Completion')
                                  then p_failure->>'point' end
     where t.id = p_task_id;
    return v_outcome;
end
$$;

create or replace function public.internal_complete_many(p_worker public.workers, p_nonce text, p_results jsonb, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_log_last bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    v_ids uuid[];
    v_attempts int[];
    v_data jsonb[];
    v_fine boolean;
    v_held uuid[];
begin
    perform public.internal_check_size(p_results, 1048576, 'p_results');
    begin
        select array_agg((e->>'task_id')::uuid), array_agg((e->>'attempt')::int), array_agg(nullif(e->'result_data', 'null')),
               bool_and(jsonb_typeof(e) = 'object' and e->>'task_id' is not null and (e->>'attempt')::int is not null
                        and e - array['task_id', 'attempt', 'result_data'] = '{}')
          into v_ids, v_attempts, v_data, v_fine
          from jsonb_array_elements(p_results) e;
    exception when data_exception then  -- no list, or something in it is no id or number
        v_fine := false;
    end;
    if v_fine is not true or cardinality(v_ids) > 100 then
        perform public.internal_refuse('OR007', 'p_results is a list of 1 to 100 {task_id, attempt, result_data}');
    end if;
    if p_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'outcomes', (select jsonb_agg('fenced'::text) from jsonb_array_elements(p_results)));
    end if;
    with done as (
        -- In the order in which a heartbeat locks them. The case keeps the index of what runs out of it, which is full of
        -- what has just ended.
        update public.tasks t
           set status = 'Complete', output_location = null, result_data = r.result_data,
               generation_processed_at = p_now, lease_expires_at = null, error_message = null, failure_code = null,
               updated_at = p_now
          from (select * from unnest(v_ids, v_attempts, v_data) u (id, attempt, result_data) order by 1) r
         where t.id = r.id and t.attempts = r.attempt
           and case when t.status = 'In Progress' then t.worker_id end = p_worker.id
        returning t.id, t.attempts
    ), ended as (
        update public.task_attempts a set ended_at = p_now, outcome = 'complete', log_last = v_log_last
          from done d where a.task_id = d.id and a.attempt = d.attempts
    )
    select array_agg(d.id) into v_held from done d;
    if cardinality(v_held) = cardinality(v_ids) then
        return jsonb_build_object('outcome', 'ok', 'outcomes', array_fill('ok'::text, array[cardinality(v_ids)]));
    end if;
    return jsonb_build_object('outcome', 'ok', 'outcomes', (
        select jsonb_agg(case
                   when (r->>'task_id')::uuid = any (v_held) and t.attempts = (r->>'attempt')::int then 'ok'
                   when exists (select from public.task_attempts a
                                 where a.task_id = (r->>'task_id')::uuid and a.attempt = (r->>'attempt')::int
                                   and a.worker_id = p_worker.id and a.outcome = 'complete') then 'already'
                   else 'fenced' end order by n)
          from jsonb_array_elements(p_results) with ordinality e (r, n)
          left join public.tasks t on t.id = (r->>'task_id')::uuid));
end
$$;

create or replace function public.worker_complete(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_log_last bigint := (v_worker.log_bytes #>> array[v_worker.nonce, 'handler'])::bigint;
    v_held uuid;
    v_answer jsonb;
begin
    if p_result_data is not null then
        perform public.internal_check_size(p_result_data, 1048576, 'p_result_data');
    end if;
    if p_output_location is not null then
        perform public.internal_check_size(to_jsonb(p_output_location), 4096, 'p_output_location');
        if p_output_location like 's3://%' and public.internal_is_pod() and public.internal_is_over_postgrest()
           and public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']) = 'held' then
            v_answer := public.internal_ask(p_worker_id, 'HEAD', p_output_location, v_now);
            if v_answer is null then
                return jsonb_build_object('outcome', 'pending');
            elsif v_answer->'found' = 'false' then
                return jsonb_build_object('outcome', 'unverified', 'code', 'OUTPUT_MISSING');
            end if;
        end if;
    end if;
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced');
    end if;
    with done as (
        update public.tasks t
           set status = 'Complete', output_location = p_output_location, result_data = p_result_data,
               generation_processed_at = v_now, lease_expires_at = null, error_message = null, failure_code = null,
               updated_at = v_now
         where t.id = p_task_id and t.attempts = p_attempt
           and case when t.status = 'In Progress' then t.worker_id end = p_worker_id
        returning t.id, t.attempts
    ), ended as (
        update public.task_attempts a set ended_at = v_now, outcome = 'complete', log_last = v_log_last
          from done d where a.task_id = d.id and a.attempt = d.attempts
    )
    select d.id into v_held from done d;
    if v_held is null then
        return jsonb_build_object('outcome', public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']));
    end if;
    return jsonb_build_object('outcome', 'ok');
end
$$;

create or replace function public.internal_roll_up(p_anew boolean) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
begin
    if p_anew then
        perform public.internal_settle_all(public.internal_now());
    end if;
    lock table public.task_counts in share update exclusive mode;  -- one at a time; inserts go on
    if p_anew then
        with gone as (delete from public.task_counts)
        insert into public.task_counts (pool, kind, n)
        select t.pool, case when t.blocked then 'blocked' when t.run_after is not null then 'timed' else 'plain' end, count(*)
          from public.tasks t where t.status = 'Queued' group by 1, 2;
        perform public.internal_raise_mark(p.pool, public.internal_now(), true)
           from (select distinct m.pool from public.task_marks m) p;
    else
        with gone as (delete from public.task_counts returning pool, kind, n)
        insert into public.task_counts (pool, kind, n)
        select g.pool, g.kind, sum(g.n) from gone g group by 1, 2 having sum(g.n) <> 0;
    end if;
end
$$;

create or replace function public.fleet_snapshot(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_paused jsonb := public.internal_pauses(p_fleet, v_now);
    v_avoid jsonb := '{}';
    c_climbs constant int := 100;  -- of each pool: what the breaker looks back on
    c_batch constant int := 100;  -- tasks of one claim
    c_differences constant int := 1000;  -- more rows than that are rolled up first
begin
    perform public.internal_settle_late();
    if (select count(*) from (select from public.task_counts limit c_differences + 1) c) > c_differences then
        perform public.internal_roll_up(false);
    end if;
    if to_regclass('public.hosts') is not null then  -- it comes with a later migration
        select coalesce(jsonb_object_agg(h.key, h.avoid_until), '{}') into v_avoid
          from public.hosts h where h.fleet = p_fleet and h.avoid_until > v_now;
    end if;
    return (
        with recursive spawned(pool) as (  -- from one to the next in the index, however many workers each has had
            (select w.pool from public.workers w where w.fleet = p_fleet order by w.pool limit 1)
            union all
            select (select w.pool from public.workers w where w.fleet = p_fleet and w.pool > s.pool order by w.pool limit 1)
              from spawned s where s.pool is not null
        ), running as (
            select t.worker_id, t.pool, count(*) as n, min(coalesce(t.progress_at, t.generation_started_at)) as progress_at,
                   max(coalesce(t.progress_at, t.generation_started_at)) as moved_at,
                   (array_agg(t.id order by coalesce(t.progress_at, t.generation_started_at), t.id))[1] as slowest
              from public.tasks t where t.status = 'In Progress' group by t.worker_id, t.pool
        ), held as (
            select r.worker_id, sum(r.n) as n, min(r.progress_at) as progress_at, max(r.moved_at) as moved_at,
                   (array_agg(r.slowest order by r.progress_at))[1] as slowest
              from running r where r.worker_id is not null group by r.worker_id
        ), counts as (
            select c.pool, c.kind, sum(c.n) as n from public.task_counts c group by c.pool, c.kind
        ), due as (  -- what has come due since it was put off
            select c.pool, count(t.run_after) as n, min(t.created_at) as oldest
              from counts c
              left join public.tasks t on t.pool = c.pool and t.status = 'Queued' and not t.blocked
                                      and t.run_after is not null and t.run_after <= v_now
             where c.kind = 'timed' and c.n > 0 group by c.pool
        ), queued as (
            select c.pool, c.total, c.dependencies, c.timed - coalesce(d.n, 0) as scheduled,
                   c.plain + coalesce(d.n, 0) as ready,
                   least(d.oldest, case when c.plain > 0 then (
                       select min(t.created_at) from public.tasks t
                        where t.pool = c.pool and t.status = 'Queued' and not t.blocked and t.run_after is null) end) as oldest
              from (select pool, sum(n) as total, coalesce(sum(n) filter (where kind = 'blocked'), 0) as dependencies,
                           coalesce(sum(n) filter (where kind = 'timed'), 0) as timed,
                           coalesce(sum(n) filter (where kind = 'plain'), 0) as plain
                      from counts group by pool having sum(n) <> 0) c
              left join due d on d.pool = c.pool
        ), demand as (
            select p.pool, v_paused ?| array['*', p.pool] as paused, coalesce(q.ready, 0) as ready,
                   coalesce(r.n, 0) as running, coalesce(q.dependencies, 0) as dependencies,
                   coalesce(q.scheduled, 0) as scheduled, q.oldest
              from (select pool from queued union select pool from running) p
              left join queued q on q.pool = p.pool
              left join (select pool, sum(n) as n from running group by pool) r on r.pool = p.pool
        ), climbs as (
            select w.id, w.pool, w.created_at, w.climb_ended_at, w.promoted_at is not null as promoted, w.exit_cause, w.failure_code,
                   w.release, w.ending_since,
                   row_number() over (partition by w.pool order by w.climb_ended_at desc, w.id) as place
              from public.workers w where w.fleet = p_fleet and w.climb_ended_at > v_now - interval '1 day'
        )
        select jsonb_build_object(
            'now', v_now,
            'workers', coalesce((
                select jsonb_agg(to_jsonb(w) || jsonb_build_object('tasks_running', coalesce(h.n, 0),
                           'progress_at', case when w.own_program then h.progress_at else h.moved_at end,
                           'slowest_task', h.slowest,
                           'done_elsewhere_at', case when w.held_back is not null then public.internal_done_elsewhere(w) end,
                           'empty_since', case when w.status = 'active' and h.n is null then greatest(w.state_since, (
                               select max(a.ended_at) from (select a.ended_at from public.task_attempts a
                                where a.worker_id = w.id order by a.started_at desc limit c_batch) a)) end) order by w.id)
                  from public.workers w left join held h on h.worker_id = w.id
                 where w.fleet = p_fleet and w.status <> 'terminated'), '[]'),
            'demand', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'pool', d.pool, 'claimable', case when d.paused then 0 else d.ready end, 'running', d.running,
                           'blocked', jsonb_build_object('dependencies', d.dependencies, 'scheduled', d.scheduled,
                                                         'paused', case when d.paused then d.ready else 0 end),
                           'oldest_claimable_at', d.oldest) order by d.pool) from demand d), '[]'),
            'expired_leases', (
                select count(*) from public.tasks t
                 where t.status = 'In Progress'
                   and public.internal_is_abandoned(t.worker_id, t.lease_expires_at, v_now)
                   and not public.internal_is_anothers(p_fleet, t.worker_id, v_now)),
            'offers', coalesce((
                select jsonb_agg(to_jsonb(o) - 'fleet' order by o.key) from public.offers o
                 where o.fleet = p_fleet), '[]'),
            'last_spawn_at', coalesce((
                select jsonb_object_agg(s.pool, n.created_at) from spawned s
                 cross join lateral (
                       select w.created_at from public.workers w
                        where w.fleet = p_fleet and w.pool = s.pool and w.stage is not null
                        order by w.created_at desc limit 1) n), '{}'),
            'ended', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'worker_id', c.id, 'pool', c.pool, 'at', c.climb_ended_at, 'promoted', c.promoted,
                           'exit_cause', c.exit_cause, 'failure_code', c.failure_code, 'release', c.release,
                           'boot_s', case when c.promoted then extract(epoch from c.climb_ended_at - c.created_at) end,
                           'ending_since', case when c.promoted then c.ending_since end,
                           'worked', c.promoted and exists (  -- bounded, where a handler fails a thousand tasks
                               select from (select a.outcome from public.task_attempts a where a.worker_id = c.id
                                             order by a.started_at limit c_batch) a where a.outcome = 'complete'))
                       order by c.climb_ended_at, c.id)
                  from climbs c where c.place <= c_climbs), '[]'),
            'proven', coalesce((
                select jsonb_agg(r.release order by r.release) from public.releases r
                 where r.fleet = p_fleet and r.promoted_at > v_now - interval '30 days'), '[]'),
            'spent', (select to_jsonb(s) from public.internal_spent(p_fleet, null, v_now) s),
            'avoid', v_avoid,
            'paused', v_paused,
            'database_id', (select i.id from public.database_identity i where i.is_this),
            'queued_total', (select coalesce(sum(q.total), 0) from queued q))
    );
end
$$;

create or replace function public.internal_claimed(p_worker_id text, p_nonce text, p_claim_no bigint) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select coalesce(jsonb_agg(jsonb_build_object(
               'id', t.id, 'task_type', t.task_type, 'params', t.params, 'attempt', t.attempts,
               'max_attempts', t.max_attempts, 'timeout_s', t.timeout_s,
               'output_prefix', format('outputs/%s/%s/', t.id, t.attempts),
               'dependencies', coalesce((
                    select jsonb_agg(jsonb_build_object('id', d.id, 'task_type', d.task_type,
                                                        'output_location', d.output_location,
                                                        'result_data', d.result_data) order by n.place)
                      from unnest(t.depends_on) with ordinality n (id, place) join public.internal_results(t.depends_on) d on d.id = n.id), '[]')
           ) order by t.priority desc, t.created_at, t.id), '[]')
      from public.task_attempts a
      join public.tasks t on t.id = a.task_id and t.attempts = a.attempt
     where a.worker_id = p_worker_id and a.nonce = p_nonce and a.claim_no = p_claim_no and a.ended_at is null
       and t.status = 'In Progress' and t.worker_id = p_worker_id
$$;

create or replace function public.worker_grants(p_worker_id text, p_nonce text, p_items jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $_$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_asks boolean := public.internal_is_pod() and public.internal_is_over_postgrest();
    v_item jsonb;
    v_key text;
    v_answer jsonb := '{}';
    v_granted jsonb := '[]';
    v_refused jsonb := '[]';
    v_pending jsonb := '[]';
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'items', '[]'::jsonb, 'refused', '[]'::jsonb);
    end if;
    if p_items is null or jsonb_typeof(p_items) <> 'array' or jsonb_array_length(p_items) > 1000 then
        perform public.internal_refuse('OR007', 'p_items must be a list of at most 1000 {method, key}');
    end if;
    for v_item in select value from jsonb_array_elements(p_items) loop
        v_key := v_item->>'key';
        if v_key ~ '^outputs/[^/]+/[0-9]+/[^/]' and v_key !~ '(^|/)\.{1,2}(/|$)|//|[[:cntrl:]]' and length(v_key) <= 900
           and exists (
               select from public.tasks t
                where t.worker_id = p_worker_id and t.status = 'In Progress'
                  and case v_item->>'method'
                          when 'PUT' then starts_with(v_key, format('outputs/%s/%s/', t.id, t.attempts))
                          when 'GET' then exists (
                              select from public.internal_results(t.depends_on) d
                               where starts_with(v_key, format('outputs/%s/', d.id))
                                 and right(d.output_location, length(v_key) + 1) = '/' || v_key)
                          else false
                      end) then
            if v_asks then
                v_answer := public.internal_ask(p_worker_id, v_item->>'method', v_key, v_now);
            end if;
            if v_answer is null then
                v_pending := v_pending || jsonb_build_array(v_key);
            elsif v_answer ? 'refused' then
                v_refused := v_refused || jsonb_build_array(v_key);
            else
                v_granted := v_granted || (jsonb_build_object('method', v_item->>'method', 'key', v_key) || v_answer);
            end if;
        else
            v_refused := v_refused || jsonb_build_array(v_key);
        end if;
    end loop;
    if v_pending <> '[]' then
        return jsonb_build_object('outcome', 'pending', 'items', v_granted, 'refused', v_refused, 'pending', v_pending);
    end if;
    return jsonb_build_object('outcome', 'ok', 'items', v_granted, 'refused', v_refused);
end
$_$;

create or replace function public.internal_inputs(p_task_id uuid, p_limit_bytes integer, OUT bytes bigint, OUT code text, OUT message text) RETURNS record
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_needs int;
begin
    bytes := 0;
    select cardinality(t.depends_on), octet_length(t.params::text)
           + coalesce((select sum(octet_length(d.result_data::text)) from public.internal_results(t.depends_on) d), 0)
      into v_needs, bytes from public.tasks t where t.id = p_task_id;
    if bytes > p_limit_bytes then
        code := 'INPUTS_TOO_LARGE';
        message := format('Its params and the results of the %s tasks that it depends on are more than %s MiB',
                          v_needs, p_limit_bytes / 1048576);
    elsif exists (select from public.tasks t where t.id = p_task_id and public.internal_is_unreadable(t.params))
       or exists (select from public.tasks t cross join lateral public.internal_results(t.depends_on) d
                   where t.id = p_task_id and public.internal_is_unreadable(d.result_data)) then
        code := 'INPUTS_UNREADABLE';
        message := 'Its params or the results of the tasks that it depends on are nested deeper than 64 levels, '
                   'or have a number of more than 4000 digits';
    end if;
exception when program_limit_exceeded or statement_too_complex or numeric_value_out_of_range then
    code := 'INPUTS_TOO_LARGE';
    message := format('Its params or the results of the tasks that it depends on cannot be written as text: %s', sqlerrm);
end
$$;

drop function public.internal_sift(tid[], int, timestamptz, uuid[]);
create function public.internal_sift(p_rows tid[], p_limit_bytes integer, p_now timestamp with time zone, INOUT p_passed uuid[], OUT fit tid[]) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_sort TO 'off'
    AS $$
declare
    v_task record;
    v_inputs record;
    v_bytes bigint := 0;
begin
    for v_task in select t.ctid as place, t.id from public.tasks t where t.ctid = any (p_rows)
                   order by ~t.priority, t.created_at, t.id loop
        select * into v_inputs from public.internal_inputs(v_task.id, p_limit_bytes);
        if v_inputs.code is null then
            v_bytes := v_bytes + v_inputs.bytes;
            exit when v_bytes > p_limit_bytes;
            fit := fit || v_task.place;
        elsif not public.internal_end_unclaimed(v_task.id, v_inputs.code, v_inputs.message, p_now) then
            p_passed := p_passed || v_task.id;
        end if;
    end loop;
end
$$;

drop function public.internal_hand_over(public.workers, bigint, tid[], int, timestamptz);
create function public.internal_hand_over(p_worker public.workers, p_claim_no bigint, p_rows tid[], p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_sort TO 'off'
    AS $$
declare
    v_tasks jsonb;
    v_log_first bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    v_floor int := (select f.last_value from public.task_attempts_floor f);
begin
    with taken as (
        update public.tasks t
           set status = 'In Progress', worker_id = p_worker.id, updated_at = p_now,
               (attempts, uncounted) = (
                   select n.attempt, t.uncounted + n.attempt - t.attempts - 1
                     from (select 1 + greatest(t.attempts, v_floor, (select max(a.attempt) from public.task_attempts a
                                                                      where a.task_id = t.id)) as attempt) n),
               lease_expires_at = p_now + p_worker.lease_s * interval '1 second',
               progress = null, progress_at = p_now, run_after = null, error_message = null, failure_code = null,
               failed_at_point = null, generation_started_at = p_now, generation_processed_at = null
         where t.ctid = any (p_rows)
        returning t.id, t.task_type, t.params, t.attempts, t.max_attempts, t.timeout_s, t.depends_on, t.priority, t.created_at, t.status
    ), noted as (
        insert into public.task_attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, log_first)
        select k.id, k.attempts, p_worker.id, p_worker.nonce, p_claim_no, p_now, v_log_first
          from taken k where k.status = 'In Progress'  -- as a user's trigger left it
    )
    select jsonb_agg(jsonb_build_object(
               'id', k.id, 'task_type', k.task_type, 'params', k.params, 'attempt', k.attempts,
               'max_attempts', k.max_attempts, 'timeout_s', k.timeout_s,
               'output_prefix', 'outputs/' || k.id || '/' || k.attempts || '/',
               'dependencies', case when k.depends_on = '{}' then '[]' else coalesce((
                   select jsonb_agg(jsonb_build_object('id', d.id, 'task_type', d.task_type,
                                                       'output_location', d.output_location,
                                                       'result_data', d.result_data) order by n.place)
                     from unnest(k.depends_on) with ordinality n (id, place)
                     join public.internal_results(k.depends_on) d on d.id = n.id), '[]') end)
               order by k.priority desc, k.created_at, k.id)
      into v_tasks from taken k where k.status = 'In Progress';
    return v_tasks;
end
$$;

create or replace function public.internal_hand_over_singly(p_worker public.workers, p_claim_no bigint, p_rows tid[], p_now timestamp with time zone, INOUT p_passed uuid[], OUT tasks jsonb) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_sort TO 'off'
    AS $$
declare
    v_task record;
    v_message text;
begin
    for v_task in select t.ctid as place, t.id from public.tasks t where t.ctid = any (p_rows)
                   order by ~t.priority, t.created_at, t.id loop
        begin
            tasks := coalesce(tasks, '[]') || public.internal_hand_over(
                p_worker, p_claim_no, array[v_task.place], p_now);
            continue;
        exception when others then  -- whatever a user's row, trigger or constraint makes of it
            if public.internal_is_passing(sqlstate) then
                raise;
            end if;
            v_message := format('The database refused to hand it to a worker: %s (%s)', sqlerrm, sqlstate);
        end;
        if not public.internal_end_unclaimed(v_task.id, 'TASK_UNCLAIMABLE', v_message, p_now) then
            p_passed := p_passed || v_task.id;
        end if;
    end loop;
end
$$;

create or replace function public.internal_take(p_worker public.workers, p_claim_no bigint, p_batch integer, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_sort TO 'off'
    AS $$
declare
    v_from record;
    v_rows tid[];
    v_heavy boolean;
    v_tasks jsonb;
    v_passed uuid[] := '{}';  -- tasks that can neither be claimed nor ended
    c_least constant int := -2147483648;
    -- Single claims between two tries to raise the mark; of n at once, by the root of n fewer: a try costs what reading past
    -- the tasks of that many claims does.
    c_raise_every constant int := 32;
    c_lowered constant int := 64;  -- marks; more than that are not read again and again
    c_light_bytes constant int := 2000;  -- of params, as stored and as text: a hundred times that is a small answer
    c_bytes constant int := 33554432;  -- of an answer: what an agent reads, and what is made well within a call's deadline
    c_looks constant int := 20;  -- a claim that found only tasks to end comes to nothing; the next one goes on
begin
    select m.place, m.created_at, m.id, m.lowered into v_from from public.internal_mark(p_worker.pool, p_now) m;
    for v_look in 1..c_looks loop
        select array_agg(l.ctid), bool_or(l.heavy)
          into v_rows, v_heavy from (
            select q.ctid,
                   case when q.depends_on <> '{}' or pg_column_size(q.params) > c_light_bytes then true
                        else octet_length(q.params::text) > c_light_bytes or public.internal_is_unreadable(q.params) end as heavy
              from public.tasks q
             where q.pool = p_worker.pool and q.status = 'Queued' and not q.blocked
               and (q.run_after is null or q.run_after <= p_now)
               and (~q.priority, q.created_at, q.id) >= (v_from.place, v_from.created_at, v_from.id)
               and q.id <> all (v_passed)
             order by ~q.priority, q.created_at, q.id
             limit p_batch for no key update skip locked) l;
        if v_heavy then
            select s.p_passed, s.fit into v_passed, v_rows
              from public.internal_sift(v_rows, c_bytes, p_now, v_passed) s;
            continue when v_rows is null;
        elsif v_rows is null then
            -- Nothing, where the counts say that there is something: others are taking it now, or a mark is wrong. No task
            -- waits for ever for that: it is looked everywhere before a worker is sent away.
            if v_from.place = c_least
               or coalesce((select sum(c.n) from public.task_counts c where c.pool = p_worker.pool and c.kind = 'plain'), 0) <= 0 then
                return null;
            end if;
            perform public.internal_raise_mark(p_worker.pool, p_now, true);
            v_from.place := c_least;
            v_from.created_at := '-infinity';
            continue;
        end if;
        begin
            v_tasks := public.internal_hand_over(p_worker, p_claim_no, v_rows, p_now);
        exception when others then  -- one of them is the cause, and it is found without the others
            if public.internal_is_passing(sqlstate) then
                raise;
            end if;
            v_tasks := null;
        end;
        if v_tasks is null then
            select s.p_passed, s.tasks into v_passed, v_tasks
              from public.internal_hand_over_singly(p_worker, p_claim_no, v_rows, p_now, v_passed) s;
        end if;
        exit when v_tasks is not null;
    end loop;
    if v_tasks is not null
       and (p_claim_no % ceil(c_raise_every / sqrt(p_batch))::int = 0 or v_from.lowered > c_lowered) then
        perform public.internal_raise_mark(p_worker.pool, p_now, false);
    end if;
    return v_tasks;
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
               and public.internal_is_abandoned(t.worker_id, t.lease_expires_at, p_now - p_over_s * interval '1 second')
               and (p_fleet is null or not public.internal_is_anothers(p_fleet, t.worker_id, p_now))
             order by t.id for no key update skip locked) l;
    end if;
    for v_task in
        select t.id, t.worker_id, t.lease_expires_at,
               case when w.exit_cause = 'task_stuck' then
                   extract(epoch from p_now - coalesce(t.progress_at, t.generation_started_at)) end as still_s,
               coalesce((w.metadata->>'stuck_s')::numeric, 0) as stuck_s
          from public.tasks t left join public.workers w on w.id = t.worker_id
         where t.id = any (v_ids) and t.status = 'In Progress' order by t.id loop
        v_failure := case
            when v_task.still_s >= v_task.stuck_s then jsonb_build_object(
                'code', 'TASK_STUCK', 'exit_class', 'timeout',
                'message', format('No progress for %s s; worker %s was ended for that', floor(v_task.still_s),
                                  v_task.worker_id))
            when p_worker_id is not null then jsonb_build_object(
                'code', 'WORKER_LOST', 'exit_class', 'lost', 'message', format('Worker %s is gone', v_task.worker_id))
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

create or replace function public.fleet_task_explain(p_fleet text, p_task_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
    c_workers constant int := 25;  -- the newest of its pool, and …
    c_attempts constant int := 200;  -- … the newest of each: what is usual for its type
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_pauses(p_fleet, v_now),
        'task', case when v_task.id is not null then to_jsonb(v_task) end,
        'usual', (
            select jsonb_build_object('task_type', v_task.task_type, 'n', count(*),
                       'p50_s', round(percentile_cont(0.5) within group (order by x.seconds)::numeric, 3),
                       'p95_s', round(percentile_cont(0.95) within group (order by x.seconds)::numeric, 3))
              from (select w.id from public.workers w where w.fleet = p_fleet and w.pool = v_task.pool
                     order by w.created_at desc limit c_workers) w
              cross join lateral (select * from public.task_attempts b where b.worker_id = w.id
                                   order by b.started_at desc limit c_attempts) a
              join public.tasks t on t.id = a.task_id
              cross join lateral (select extract(epoch from a.ended_at - greatest(a.started_at, (
                       select max(b.ended_at) from public.task_attempts b  -- the one before, of the same claim
                        where b.worker_id = a.worker_id and b.nonce = a.nonce and b.claim_no = a.claim_no
                          and b.ended_at < a.ended_at))) as seconds) x
             where a.outcome = 'complete' and t.task_type = v_task.task_type),
        'decision', public.internal_pool_decision(p_fleet, v_task.pool),
        'ahead', (select count(*) from public.tasks t
                   where t.pool = v_task.pool and t.status = 'Queued' and not t.blocked
                     and coalesce(t.run_after <= v_now, true)
                     and (~t.priority, t.created_at, t.id) < (~v_task.priority, v_task.created_at, v_task.id)),
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
                       'id', n.id, 'task_type', coalesce(d.task_type, r.task_type),
                       'status', coalesce(d.status::text, case when r.id is not null then 'Complete' end), 'worker_id', d.worker_id,
                       'run_after', d.run_after, 'failure_code', d.failure_code, 'error_message', d.error_message)
                       order by n.place)
              from unnest(v_task.depends_on) with ordinality n (id, place)
              left join public.tasks d on d.id = n.id
              left join public.task_results r on r.id = n.id), '[]'),
        'dependants', (select count(*) from public.tasks t
                        where t.blocked and t.status = 'Queued' and t.depends_on && array[p_task_id]),
        'attempts', coalesce((
            select jsonb_agg(to_jsonb(a) || jsonb_build_object(
                       'price_usd_per_hour', w.price_usd_per_hour, 'worker_status', w.status,
                       'worker_exit_cause', w.exit_cause, 'worker_failure_code', w.failure_code,
                       'usd', case when w.price_usd_per_hour is not null then round(coalesce(s.usd, 0), 6) end)
                       order by a.attempt)
              from public.task_attempts a left join public.workers w on w.id = a.worker_id
              left join public.internal_shares('-infinity', v_now, v_now, p_task_id) s
                     on s.task_id = a.task_id and s.attempt = a.attempt
             where a.task_id = p_task_id), '[]')));
end
$$;

do $$
declare
    v_table text;
    v_function regprocedure;
    v_role name;
begin
    foreach v_table in array array['tasks_unsettled', 'task_results'] loop
        execute format('alter table public.%I enable row level security', v_table);
        execute format('revoke all on public.%I from public', v_table);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated') loop
            execute format('revoke all on public.%I from %I', v_table, v_role);
        end loop;
        if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
            execute format('grant all on public.%I to service_role', v_table);
        end if;
    end loop;
    revoke all on sequence public.tasks_unsettled_no_seq from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated') loop
        execute format('revoke all on sequence public.tasks_unsettled_no_seq from %I', v_role);
    end loop;
    for v_function in
        select p.oid::regprocedure from pg_catalog.pg_proc p
         where p.pronamespace = 'public'::regnamespace
           and p.proname in ('internal_hand_over', 'internal_sift', 'internal_results', 'internal_dependants', 'internal_lock_briefly', 'internal_lock_queued', 'internal_settle_locked',
                             'internal_settle', 'internal_stuck', 'internal_settle_cycles', 'internal_settle_new', 'internal_settle_again',
                             'internal_settle_at_commit', 'internal_settle_late', 'internal_settle_all', 'internal_close_attempts', 'internal_tasks_removed')
    loop
        execute format('revoke all on function %s from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function %s from %I', v_function, v_role);
        end loop;
    end loop;
end
$$;
