-- What follows from a change of a task, whoever makes it: dependants wait, are freed or fail; listeners are told.
--
-- `blocked` is never counted up or down but worked out anew, under a lock: of the dependant when a dependency ends (two
-- that end at once see each other), of the dependencies when the dependant is new (none ends unseen in between).

create function public.internal_task_touched() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    new.updated_at := public.internal_now();
    return new;
end
$$;
create trigger tasks_touched before update on public.tasks
    for each row execute function public.internal_task_touched();

-- Works out `blocked` of queued tasks, and fails those of which a dependency has failed; the caller holds the locks.
create function public.internal_settle(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' as $$
begin
    update public.tasks t
       set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_FAILED',
           error_message = (select format('Dependency %s (%s) ended as %s', d.id, d.task_type, d.status)
                              from public.tasks d
                             where d.id = any (t.depends_on) and d.status in ('Failed', 'Cancelled') limit 1)
     where t.id = any (p_ids) and t.status = 'Queued'
       and exists (select from public.tasks d where d.id = any (t.depends_on) and d.status in ('Failed', 'Cancelled'));
    update public.tasks t
       set blocked = not t.blocked
     where t.id = any (p_ids) and t.status = 'Queued'
       and t.blocked is distinct from exists (
               select from unnest(t.depends_on) n (id) left join public.tasks d on d.id = n.id
                where d.status is distinct from 'Complete');
end
$$;

create function public.internal_settle_new(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' as $$
begin
    perform from public.tasks d
      where d.id in (select unnest(t.depends_on) from public.tasks t where t.id = any (p_ids))
      order by d.id for share;
    perform public.internal_settle(p_ids);
end
$$;

-- Of tasks that have just ended: frees those that waited for them, or fails them, and theirs in turn. Level by level, and
-- not through the trigger that each level fires: a long chain would be a deep stack.
create function public.internal_settle_dependants(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' as $$
declare
    v_ended uuid[] := p_ids;
    v_dependants uuid[];
begin
    while v_ended is not null loop
        select array_agg(l.id) into v_dependants from (
            select t.id from public.tasks t
             where t.blocked and t.status = 'Queued' and t.depends_on && v_ended
             order by t.id for update) l;
        exit when v_dependants is null;
        perform set_config('orchestrator.settling', 'on', true);
        perform public.internal_settle(v_dependants);
        perform set_config('orchestrator.settling', '', true);
        select array_agg(t.id) into v_ended from public.tasks t where t.id = any (v_dependants) and t.status = 'Failed';
    end loop;
end
$$;

create function public.internal_tasks_added() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    v_waiting uuid[];
    v_ended uuid[];
begin
    select array_agg(a.id) filter (where a.depends_on <> '{}' and a.status = 'Queued'),
           array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled'))
      into v_waiting, v_ended from added a;
    if v_waiting is not null then
        perform public.internal_settle_new(v_waiting);
    end if;
    if v_ended is not null then
        perform public.internal_settle_dependants(v_ended);
    end if;
    perform pg_notify('orchestrator_tasks', p.pool)
       from (select distinct a.pool from added a
              where a.status = 'Queued'
                and (a.depends_on = '{}'
                     or exists (select from public.tasks t where t.id = a.id and t.status = 'Queued' and not t.blocked))
            ) p;
    return null;
end
$$;
create trigger tasks_added after insert on public.tasks
    referencing new table as added for each statement execute function public.internal_tasks_added();

create function public.internal_tasks_changed() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    v_ended uuid[];
    v_waiting uuid[];
    v_pools text[];
    v_workers text[];
begin
    select array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled') and a.status <> b.status),
           array_agg(a.id) filter (where a.status = 'Queued'
                                     and (a.depends_on <> b.depends_on or b.status <> 'Queued' and a.depends_on <> '{}')),
           array_agg(distinct a.pool) filter (where a.status = 'Queued' and not a.blocked
                                                and (b.status <> 'Queued' or b.blocked
                                                     or b.run_after > coalesce(a.run_after, '-infinity'))),
           array_agg(distinct b.worker_id) filter (where b.status = 'In Progress' and a.status <> 'In Progress')
      into v_ended, v_waiting, v_pools, v_workers
      from changed a join was b on b.id = a.id;
    if v_ended is not null and coalesce(current_setting('orchestrator.settling', true), '') = '' then
        perform public.internal_settle_dependants(v_ended);
    end if;
    if v_waiting is not null then
        perform public.internal_settle_new(v_waiting);
    end if;
    perform pg_notify('orchestrator_tasks', p) from unnest(v_pools) p;
    perform pg_notify('orchestrator_fleet', w) from unnest(v_workers) w where w is not null;
    return null;
end
$$;
create trigger tasks_changed after update on public.tasks
    referencing old table as was new table as changed for each statement execute function public.internal_tasks_changed();
