-- Tasks that wait for other tasks.
--
-- `edges` has what each task in `live` needs, and whether that is Complete. No transaction waits for another one: what
-- is locked is left to the leader as a row of `rechecks`, and so is each task that begins to wait, because a task that
-- it needs may end in a transaction that does not see the new edge. A Complete task may lose this status by a user's
-- write. Then dependants that do not run wait for it again, or fail if it is now Failed or Cancelled. If a Complete
-- task is deleted, its result is kept for the tasks that need it; if any other task is deleted, the tasks that need it
-- fail.

-- What has become of a task, for the tasks that need it: open, Complete, Failed, Cancelled or absent.
create or replace function orchestrator.need_status(p_id uuid) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_status text;
begin
    if exists (select from orchestrator.live q where q.task_id = p_id) then
        return 'open';
    end if;
    v_status := coalesce((select p.status from orchestrator.publications p where p.task_id = p_id),
                         (select t.status::text from public.tasks t where t.id = p_id),
                         (select 'Complete' from public.task_results r where r.id = p_id));
    return case when v_status is null then 'absent' when v_status in ('Complete', 'Failed', 'Cancelled') then v_status
                else 'open' end;
end
$$;

-- Makes the edges of these tasks follow their depends_on. The leader looks at those that have unmet ones.
create or replace function orchestrator.set_edges(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_ended uuid[];
begin
    delete from orchestrator.edges e
     where e.task_id = any (p_ids)
       and (select e.needs = any (orchestrator.needs(t.*)) from public.tasks t where t.id = e.task_id) is not true;
    insert into orchestrator.edges (task_id, needs, is_met)
    select t.id, n.id, orchestrator.need_status(n.id) = 'Complete'
      from public.tasks t cross join lateral (select distinct u.id from unnest(orchestrator.needs(t.*)) u (id)) n
     where t.id = any (p_ids) and n.id is not null
    on conflict do nothing;
    v_ended := array(select distinct n.needs  -- "offset 0": not in the order of all edges
                       from (select e.needs from orchestrator.edges e
                              where e.task_id = any (p_ids) and not e.is_met offset 0) n
                      where orchestrator.need_status(n.needs) in ('Failed', 'Cancelled'));
    if v_ended <> '{}' then
        perform orchestrator.fail_dependants(v_ended, 'DEPENDENCY_FAILED');
    end if;
    insert into orchestrator.rechecks (kind, name)
    select distinct 'needs', e.task_id::text from orchestrator.edges e where e.task_id = any (p_ids);
end
$$;

-- Looks again at edges that another transaction had locked as their tasks left the queue. A task that was inserted with
-- the id of a deleted one must not fail with what only that one needed.
create or replace function orchestrator.drop_old_edges(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_live uuid[] := array(select q.task_id from orchestrator.live q where q.task_id = any (p_ids));
begin
    perform orchestrator.drop_edges(array(select i.id from unnest(p_ids) i (id)
                                           where (i.id in (select unnest(v_live))) is not true));
    delete from orchestrator.edges e
     where e.ctid = any (array(
               select f.ctid from orchestrator.edges f
                where f.task_id = any (v_live)
                  and (select f.needs = any (orchestrator.needs(t.*)) from public.tasks t
                        where t.id = f.task_id) is not true for update skip locked));
    insert into orchestrator.rechecks (kind, name)
    select distinct 'edges', e.task_id::text from orchestrator.edges e
     where e.task_id = any (v_live)
       and (select e.needs = any (orchestrator.needs(t.*)) from public.tasks t where t.id = e.task_id) is not true;
end
$$;

-- These tasks are Complete: dependants that need no other task advance.
create or replace function orchestrator.meet(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_behind uuid[];
begin
    with met as (
        update orchestrator.edges e set is_met = true
         where e.ctid = any (array(select f.ctid from orchestrator.edges f
                                    where f.needs = any (p_ids) and not f.is_met for update skip locked))
        returning e.task_id
    )
    select array_agg(distinct m.task_id) into v_behind from met m;
    insert into orchestrator.rechecks (kind, name)  -- another transaction deletes or changes these dependants
    select distinct 'needs', e.task_id::text from orchestrator.edges e where e.needs = any (p_ids) and not e.is_met;
    if v_behind is not null then
        perform orchestrator.advance_met(v_behind);
    end if;
end
$$;

-- Which of these tasks wait for tasks. It reads them by their keys: an index of all that wait may be long.
create or replace function orchestrator.waiting(p_ids uuid[]) returns uuid[]
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_sort = off set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
begin
    return array(select q.task_id from orchestrator.live q
                  where q.task_id = any (p_ids) and q.state = 'waits_for_tasks' order by q.task_id);
end
$$;

-- The same, locked, without those that another transaction has locked.
create or replace function orchestrator.lock_waiting(p_ids uuid[]) returns uuid[]
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set enable_bitmapscan = off set jit = off as $$
#variable_conflict use_variable
begin
    return array(select q.task_id from orchestrator.live q
                  where q.task_id = any (p_ids) and q.state = 'waits_for_tasks'
                  order by q.task_id for update skip locked);
end
$$;

-- Advances those of these tasks that no longer wait for a task.
create or replace function orchestrator.advance_met(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_locked uuid[] := orchestrator.lock_waiting(p_ids);
    v_free uuid[];
begin
    insert into orchestrator.rechecks (kind, name)
    select 'needs', w.id::text from unnest(orchestrator.waiting(p_ids)) w (id)
     where (w.id in (select unnest(v_locked))) is not true;
    -- Under the locks: another transaction that had one has committed its edge.
    v_free := array(select l.id from unnest(v_locked) l (id)
                     where (select true from orchestrator.edges e
                             where e.task_id = l.id and not e.is_met limit 1) is null);
    if v_free <> '{}' then
        perform orchestrator.advance(v_free);
    end if;
end
$$;

-- These tasks are not Complete any more, but Queued or In Progress: their dependants wait again, running ones after
-- their attempt. A row that is locked, or runs, is left to the leader: an open transaction of a user's must not hold up
-- the dependant's agent. Without the row's lock, an agent that releases the dependant meanwhile does not see the
-- change.
create or replace function orchestrator.unmeet(p_ids uuid[], p_with_running boolean) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_behind uuid[] := array(
        select q.task_id from orchestrator.live q
         where q.task_id = any (array(select e.task_id from orchestrator.edges e where e.needs = any (p_ids)))
           and (p_with_running or q.state <> 'running') order by q.task_id for update skip locked);
begin
    update orchestrator.edges e set is_met = false
     where e.ctid = any (array(select f.ctid from orchestrator.edges f where f.needs = any (p_ids) and f.is_met
                                  for update skip locked));
    perform orchestrator.wait_again(v_behind);
    insert into orchestrator.rechecks (kind, name)
    select distinct 'unmet', e.needs::text from orchestrator.edges e
     where e.needs = any (p_ids) and (e.is_met or e.task_id <> all (v_behind) and exists (
               select from orchestrator.live q where q.task_id = e.task_id));
end
$$;

-- The leader's part of it: under the locks of those that are open, so that none of them is completed in between.
create or replace function orchestrator.unmeet_again(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_open uuid[] := array(select q.task_id from orchestrator.live q
                            where q.task_id = any (p_ids) order by q.task_id for share skip locked);
begin
    insert into orchestrator.rechecks (kind, name)
    select 'unmet', q.task_id::text from orchestrator.live q
     where q.task_id = any (p_ids) and q.task_id <> all (v_open);
    perform orchestrator.unmeet(v_open, true);
end
$$;

-- These tasks ended as Failed or Cancelled, or were deleted before they were Complete: the tasks that need them fail,
-- at any depth.
create or replace function orchestrator.fail_dependants(p_ids uuid[], p_code text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_mergejoin = off set enable_hashjoin = on set enable_nestloop = on set plan_cache_mode = force_generic_plan
set jit = off as $$
#variable_conflict use_variable
declare
    c_most constant int := 10000;  -- tasks of one call; the leader continues
    c_batch constant int := 100;  -- ends that are written at once, however many levels they are of
    v_ids uuid[] := p_ids;
    v_whys text[];  -- the error messages of the tasks that need these
    v_roots text[];  -- their parts about the first task of the chain
    v_with_slots orchestrator.live[];  -- removed tasks with a slot of a limit
    v_held orchestrator.live[];
    v_ends orchestrator.publications[];
    v_count int := 0;
begin
    if not exists (select from orchestrator.edges e where e.needs = any (p_ids)) then
        return;
    end if;
    select array_agg(w.why order by w.n),
           array_agg(case when p_code = 'DEPENDENCY_FAILED' then orchestrator.first_cause(w.why) end order by w.n)
      into v_whys, v_roots
      from (select i.n, case p_code when 'DEPENDENCY_DELETED'
                   then format('Dependency %s does not exist: it was deleted before it was complete', i.id)
                   else orchestrator.why_dependant_failed(orchestrator.current_task(i.id)) end as why
              from unnest(p_ids) with ordinality i (id, n) offset 0) w;
    loop  -- one level of dependants after the other; a nested loop would compare each task of a level with all others
        perform set_config('enable_nestloop', 'off', true);
        with behind as (
            select distinct on (e.task_id) e.task_id, c.why, c.root
              from unnest(v_ids, v_whys, v_roots) c (id, why, root)  -- by its key, each
             cross join lateral (select f.task_id, f.needs from orchestrator.edges f where f.needs = c.id offset 0) e
             order by e.task_id, e.needs
        ), gone as (
            delete from orchestrator.live q
             where q.ctid = any (array(
                       select l.ctid from orchestrator.live l
                        where l.task_id = any (array(select b.task_id from behind b)) and l.state <> 'running'
                        limit c_most - v_count for update skip locked))
            returning q as task
        ), left_over as (
            insert into orchestrator.rechecks (kind, name)
            select 'needs', b.task_id::text
              from behind b
             cross join lateral (select from orchestrator.live k
                                  where k.task_id = b.task_id and k.state <> 'running' offset 0) l
             where b.task_id not in (select (g.task).task_id from gone g)
        ), ended as (
            select g.task, b.task_id, b.why, b.root,
                   format('Dependency %s (%s) ended as Failed: %s', b.task_id, (g.task).task_type,
                          coalesce(b.root, p_code || ': ' || b.why)) as next
              from gone g join behind b on b.task_id = (g.task).task_id offset 0
        )
        select array_agg(e.task_id), array_agg(e.next), array_agg(coalesce(e.root, e.next)),
               v_ends || array_agg(orchestrator.end_without_run(e.task, 'Failed', p_code, e.why)),
               array_agg(e.task) filter (where (e.task).concurrency_key is not null or (e.task).type_limited)
          into v_ids, v_whys, v_roots, v_ends, v_held from ended e;
        perform set_config('enable_nestloop', 'on', true);
        v_count := v_count + coalesce(cardinality(v_ids), 0);
        v_with_slots := v_with_slots || v_held;
        if v_ids is not null and p_code <> 'DEPENDENCY_FAILED' then
            -- The edges of the others stay: they show what is queued again with a task.
            perform orchestrator.drop_edges(v_ids);
            p_code := 'DEPENDENCY_FAILED';
        end if;
        if cardinality(v_ends) >= c_batch or v_ids is null and v_ends is not null then
            perform orchestrator.publish_later(v_ends, null);
            perform public.internal_webhooks_write(array(select (unnest(v_ends)).task_id), public.internal_now());
            v_ends := null;
        end if;
        exit when v_ids is null;
    end loop;
    perform orchestrator.refill_after(v_with_slots);
end
$$;

-- The error message of a task that needs this one, which ended. In a chain, it names the first task and its failure.
create or replace function orchestrator.why_dependant_failed(p_task public.tasks) returns text
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    return concat_ws(': ', format('Dependency %s (%s) ended as %s', p_task.id, p_task.task_type, p_task.status),
                     nullif(p_task.failure_code, 'DEPENDENCY_FAILED'),
                     case when p_task.failure_code = 'DEPENDENCY_FAILED'
                          then orchestrator.first_cause(p_task.error_message)
                          else left(p_task.error_message, 4000) end);
end
$$;

create or replace function orchestrator.first_cause(p_message text) returns text
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    return regexp_replace(p_message, E'^.*(Dependency [0-9a-f-]{36} \\([^)]*\\) ended as )', E'\\1');
end
$$;

-- Looks again at tasks that wait for others; returns those that must be looked at once more, because a task that they
-- need is being ended by another transaction. p_lost: whether a task that does not exist counts as deleted.
create or replace function orchestrator.look_again(p_ids uuid[], p_lost boolean) returns uuid[]
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_locked uuid[] := orchestrator.lock_waiting(p_ids);
    -- A ready task fails too if a user has set a Complete task that it needs to Failed or Cancelled.
    v_needs uuid[] := array(select distinct n.needs from (
                                select e.needs, e.is_met from orchestrator.edges e
                                 where e.task_id = any (p_ids) offset 0) n
                             where not n.is_met or orchestrator.need_status(n.needs) in ('Failed', 'Cancelled'));
    v_free uuid[] := array(select q.task_id from orchestrator.live q
                            where q.task_id = any (v_needs) order by q.task_id for share skip locked);
    v_statuses jsonb;
    v_some uuid[];
begin
    -- After the locks: what is not free here and not open has ended by now, or is being ended.
    select coalesce(jsonb_object_agg(n.id, orchestrator.need_status(n.id)), '{}') into v_statuses
      from unnest(v_needs) n (id);
    v_some := array(select s.key::uuid from jsonb_each_text(v_statuses) s where s.value = 'Complete');
    if v_some <> '{}' then
        perform orchestrator.meet(v_some);
    end if;
    v_some := array(select s.key::uuid from jsonb_each_text(v_statuses) s where s.value in ('Failed', 'Cancelled'));
    if v_some <> '{}' then
        perform orchestrator.fail_dependants(v_some, 'DEPENDENCY_FAILED');
    end if;
    v_some := array(select s.key::uuid from jsonb_each_text(v_statuses) s where s.value = 'absent' and p_lost);
    if v_some <> '{}' then
        perform orchestrator.fail_dependants(v_some, 'DEPENDENCY_DELETED');
    end if;
    perform orchestrator.advance_met(v_locked);
    return array(select w.id from unnest(orchestrator.waiting(p_ids)) w (id)
                  where (w.id in (select unnest(v_locked))) is not true
                     or exists (select from orchestrator.edges e
                                 where e.task_id = w.id and not e.is_met and v_statuses->>(e.needs::text) = 'open'
                                   and (e.needs in (select unnest(v_free))) is not true));
end
$$;

-- Fails tasks that wait for each other: those that lead to one of these. None of them can ever run.
create or replace function orchestrator.end_cycles(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_stuck uuid[];
    v_ends orchestrator.publications[];
begin
    with recursive reached (id) as (
        select unnest(p_ids)
        union
        select e.needs from reached r join orchestrator.edges e on e.task_id = r.id and not e.is_met
    ), waiting (id) as materialized (
        select unnest(orchestrator.waiting(array(select r.id from reached r)))
    ), inner_edges (id, needs, is_inner) as materialized (
        select w.id, e.needs, e.needs in (select i.id from waiting i)
          from waiting w join orchestrator.edges e on e.task_id = w.id and not e.is_met
    ), free (id) as (
        select n.id from inner_edges n where not n.is_inner
        union
        select n.id from free f join inner_edges n on n.needs = f.id
    )
    select array_agg(w.id) into v_stuck from waiting w where w.id not in (select f.id from free f);
    v_stuck := orchestrator.lock_waiting(v_stuck);
    if v_stuck <> '{}' then
        select array_agg(orchestrator.end_without_run(q.*, 'Failed', 'DEPENDENCY_CYCLE', format(
                   'It waits for task %s, and these tasks wait for each other: none can ever run', c.id)))
          into v_ends
          from orchestrator.live q
         cross join lateral (select e.needs as id from orchestrator.edges e
                              where e.task_id = q.task_id and e.needs = any (v_stuck) limit 1) c
         where q.task_id = any (v_stuck);
        perform orchestrator.leave(v_stuck);
        perform orchestrator.publish_later(v_ends, null);
        perform public.internal_webhooks_write(v_stuck, public.internal_now());
        perform orchestrator.fail_dependants(v_stuck, 'DEPENDENCY_FAILED');
    end if;
end
$$;

-- This task and those that failed only because of it, at any depth: their edges are kept.
create or replace function orchestrator.failed_dependants(p_id uuid) returns uuid[]
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
    with recursive behind (id) as (
        select failed_dependants.p_id
        union
        select f.task_id from behind b cross join lateral (
            select e.task_id from orchestrator.edges e
             where e.needs = b.id
               and (orchestrator.current_task(e.task_id)).failure_code = 'DEPENDENCY_FAILED' offset 0) f
    )
    select array_agg(b.id) from behind b
$$;
