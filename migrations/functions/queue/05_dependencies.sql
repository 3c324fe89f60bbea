-- Tasks that wait for other tasks.
--
-- `edges` has what each task in `live` needs, and whether that is Complete. No transaction waits for another one: what is
-- locked is left to the leader as a row of `rechecks`, and so is each task that begins to wait, because a task that it needs
-- may end in a transaction that does not see the new edge.
-- A Complete task may lose this status by a user's write. Then dependants that do not run wait for it again, or fail if it
-- is now Failed or Cancelled. If a Complete task is deleted, its result is kept for the tasks that need it; if any other
-- task is deleted, the tasks that need it fail.

-- What has become of a task, for the tasks that need it: open, Complete, Failed, Cancelled or absent.
create or replace function orchestrator.need_status(p_id uuid) returns text
language plpgsql stable security definer set search_path = '' as $$
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
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_ended uuid[];
begin
    delete from orchestrator.edges e
     where e.task_id = any (p_ids)
       and (select e.needs = any (t.depends_on) from public.tasks t where t.id = e.task_id) is not true;
    insert into orchestrator.edges (task_id, needs, is_met)
    select t.id, n.id, orchestrator.need_status(n.id) = 'Complete'
      from public.tasks t cross join lateral (select distinct u.id from unnest(t.depends_on) u (id)) n
     where t.id = any (p_ids) and n.id is not null
    on conflict do nothing;
    v_ended := array(select distinct e.needs from orchestrator.edges e
                      where e.task_id = any (p_ids) and not e.is_met
                        and orchestrator.need_status(e.needs) in ('Failed', 'Cancelled'));
    if v_ended <> '{}' then
        perform orchestrator.fail_dependants(v_ended, 'DEPENDENCY_FAILED');
    end if;
    insert into orchestrator.rechecks (kind, name)
    select 'needs', i.id::text from unnest(p_ids) i (id)
     where exists (select from orchestrator.edges e where e.task_id = i.id);
end
$$;

-- These tasks are Complete: tasks that need no other one go on.
create or replace function orchestrator.meet(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
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
        perform orchestrator.let_go(v_behind);
    end if;
end
$$;

-- Moves on those of these tasks that wait for no task any more.
create or replace function orchestrator.let_go(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_locked uuid[] := array(select q.task_id from orchestrator.live q
                              where q.task_id = any (p_ids) and q.state = 'waits_for_tasks'
                              order by q.task_id for update skip locked);
    v_free uuid[];
begin
    insert into orchestrator.rechecks (kind, name)
    select 'needs', q.task_id::text from orchestrator.live q
     where q.task_id = any (p_ids) and q.state = 'waits_for_tasks' and (q.task_id in (select unnest(v_locked))) is not true;
    -- Under the locks: another transaction that had one has committed its edge.
    v_free := array(select l.id from unnest(v_locked) l (id)
                     where not exists (select from orchestrator.edges e where e.task_id = l.id and not e.is_met));
    if v_free <> '{}' then
        perform orchestrator.advance(v_free);
    end if;
end
$$;

-- These tasks are not Complete any more, but Queued or In Progress: their dependants that do not run wait again.
create or replace function orchestrator.unmeet(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_behind uuid[] := array(
        select q.task_id from orchestrator.live q
         where q.task_id = any (array(select e.task_id from orchestrator.edges e where e.needs = any (p_ids)))
         order by q.task_id for update skip locked);
begin
    update orchestrator.edges e set is_met = false
     where e.needs = any (p_ids) and e.task_id = any (v_behind) and e.is_met;
    perform orchestrator.wait_again(v_behind);
end
$$;

-- These tasks ended as Failed or Cancelled, or were deleted before they were Complete: the tasks that need them fail, at any
-- depth.
create or replace function orchestrator.fail_dependants(p_ids uuid[], p_code text) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_most constant int := 10000;  -- tasks of one call; the leader continues
    v_ids uuid[] := p_ids;
    v_behind uuid[];
    v_locked uuid[];
    v_count int := 0;
begin
    loop
        v_behind := array(select distinct e.task_id from orchestrator.edges e where e.needs = any (v_ids));
        exit when v_behind = '{}';
        v_locked := array(select q.task_id from orchestrator.live q
                           where q.task_id = any (v_behind) and q.state <> 'running' and v_count < c_most
                           order by q.task_id for update skip locked);
        insert into orchestrator.rechecks (kind, name)
        select 'needs', q.task_id::text from orchestrator.live q
         where q.task_id = any (v_behind) and q.state <> 'running' and (q.task_id in (select unnest(v_locked))) is not true;
        exit when v_locked = '{}';
        perform orchestrator.end_waiting(v_locked, v_ids, p_code);
        v_count := v_count + cardinality(v_locked);
        v_ids := v_locked;
        p_code := 'DEPENDENCY_FAILED';
    end loop;
end
$$;

-- Ends locked tasks that wait, because one of p_causes ended. Their ends are published later.
create or replace function orchestrator.end_waiting(p_ids uuid[], p_causes uuid[], p_code text) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_ends orchestrator.publications[];
begin
    select array_agg(orchestrator.end_without_run(q.*, 'Failed', p_code, case p_code
               when 'DEPENDENCY_DELETED' then format(
                   'Dependency %s does not exist: it was deleted before it was complete', c.id)
               when 'DEPENDENCY_CYCLE' then format(
                   'It waits for task %s, and these tasks wait for each other: none can ever run', c.id)
               else orchestrator.why_dependant_failed(c.id) end))
      into v_ends
      from orchestrator.live q
     cross join lateral (select e.needs as id from orchestrator.edges e
                          where e.task_id = q.task_id and e.needs = any (p_causes) limit 1) c
     where q.task_id = any (p_ids);
    perform orchestrator.leave(p_ids, p_code = 'DEPENDENCY_FAILED');
    perform orchestrator.publish_later(v_ends, null);
    perform public.internal_webhooks_write(p_ids, public.internal_now());
end
$$;

-- The message of a task that failed because this one ended. Of a chain, the first task and its failure are named.
create or replace function orchestrator.why_dependant_failed(p_id uuid) returns text
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_task public.tasks := orchestrator.current_task(p_id);
begin
    return public.internal_message(concat_ws(': ',
        format('Dependency %s (%s) ended as %s', v_task.id, v_task.task_type, v_task.status),
        nullif(v_task.failure_code, 'DEPENDENCY_FAILED'),
        case when v_task.failure_code = 'DEPENDENCY_FAILED'
             then regexp_replace(v_task.error_message, E'^.*(Dependency [0-9a-f-]{36} \\([^)]*\\) ended as )', E'\\1')
             else v_task.error_message end));
end
$$;

-- Looks again at tasks that wait for others; returns those that must be looked at once more, because a task that they need
-- is being ended by another transaction. p_lost: whether a task that does not exist counts as deleted.
create or replace function orchestrator.look_again(p_ids uuid[], p_lost boolean) returns uuid[]
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_locked uuid[] := array(select q.task_id from orchestrator.live q
                              where q.task_id = any (p_ids) and q.state = 'waits_for_tasks'
                              order by q.task_id for update skip locked);
    v_needs uuid[] := array(select distinct e.needs from orchestrator.edges e
                             where e.task_id = any (v_locked) and not e.is_met);
    v_free uuid[] := array(select q.task_id from orchestrator.live q
                            where q.task_id = any (v_needs) order by q.task_id for key share skip locked);
    v_statuses jsonb;
    v_some uuid[];
begin
    -- After the locks: what is not free here and not open has ended by now, or is being ended.
    select coalesce(jsonb_object_agg(n.id, orchestrator.need_status(n.id)), '{}') into v_statuses from unnest(v_needs) n (id);
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
    perform orchestrator.let_go(v_locked);
    return array(select q.task_id from orchestrator.live q
                  where q.task_id = any (p_ids) and q.state = 'waits_for_tasks'
                    and ((q.task_id in (select unnest(v_locked))) is not true
                         or exists (select from orchestrator.edges e
                                     where e.task_id = q.task_id and not e.is_met
                                       and v_statuses->>(e.needs::text) = 'open'
                                       and (e.needs in (select unnest(v_free))) is not true)));
end
$$;

-- Fails tasks that wait for each other: those that lead to one of these. None of them can ever run.
create or replace function orchestrator.end_cycles(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_stuck uuid[];
begin
    with recursive reached (id) as (
        select unnest(p_ids)
        union
        select e.needs from reached r join orchestrator.edges e on e.task_id = r.id and not e.is_met
    ), waiting (id) as materialized (
        select q.task_id from reached r join orchestrator.live q on q.task_id = r.id where q.state = 'waits_for_tasks'
    ), inner_edges (id, needs, is_inner) as materialized (
        select w.id, e.needs, e.needs in (select i.id from waiting i)
          from waiting w join orchestrator.edges e on e.task_id = w.id and not e.is_met
    ), free (id) as (
        select n.id from inner_edges n where not n.is_inner
        union
        select n.id from free f join inner_edges n on n.needs = f.id
    )
    select array_agg(w.id) into v_stuck from waiting w where w.id not in (select f.id from free f);
    v_stuck := array(select q.task_id from orchestrator.live q
                      where q.task_id = any (v_stuck) and q.state = 'waits_for_tasks' order by q.task_id for update skip locked);
    if v_stuck <> '{}' then
        perform orchestrator.end_waiting(v_stuck, v_stuck, 'DEPENDENCY_CYCLE');
        perform orchestrator.fail_dependants(v_stuck, 'DEPENDENCY_FAILED');
    end if;
end
$$;
