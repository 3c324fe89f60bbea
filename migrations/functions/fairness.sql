-- How the tenants of a pool share it: start-time fair queueing.
--
-- Claims take tasks in the order of (priority, queue_turn, created_at, id). A task of a tenant gets its turn, a virtual
-- time, when it becomes ready to be claimed: right after the turn of the task at the head of the queue, or one step after
-- the last queued task of its tenant, whichever is later. A step is c_step / weight. So tenants alternate by weight, each
-- keeps its own order, a tenant that comes back gets no credit for the past, and one that is alone gets everything. A turn
-- costs two look-ups by index. It is derived from rows of the queue: no counter can be wrong after a user's write, and no
-- transaction waits for another. Transactions that submit tasks of one tenant at the same time do not see each other, so
-- their tasks may get the same turns.
--
-- Tasks without a tenant are one more tenant, with weight 1. They have no turn as long as no tenant has tasks in the pool:
-- then the queue is ordered by age and costs nothing more. A task without a turn comes after all that have one. So a claim
-- that meets tasks of a tenant deals turns to the oldest tasks without a tenant, some of them ahead.
--
-- A task that waits for a dependency or for its time takes no turn. A task that comes back from a worker goes to the
-- head of the queue, unless it waits for its next attempt: tasks that fail again and again must not pass everybody else.

-- The turn of a task that becomes ready; p_front: at the head of the queue. Null for a task without a tenant at the head
-- of a queue without turns.
create or replace function public.internal_next_turn(p_pool text, p_place int, p_tenant text, p_front boolean) returns bigint
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    c_none constant bigint := 9007199254740991;
    c_step constant int := 1000000;
    v_tenant text := coalesce(p_tenant, '');
    v_mark bigint;
    v_head bigint;
    v_last bigint;
    v_weight int;
begin
    -- Below the mark, the index has only entries of tasks that were claimed; see claim_marks.sql. New turns are not below
    -- it. Bounds of pairs: with `=`, the planner may read the tasks of all tenants in the order of claims. A number, as in
    -- the index: a plan for any value of a variable cannot use it.
    select m.turn, l.queue_turn, (select n.weight from public.tenants n where n.tenant = p_tenant)
      into v_mark, v_last, v_weight
      from (select coalesce((
               select case when m.place = p_place and m.queue_turn < c_none then m.queue_turn end
                 from public.task_marks m
                where m.pool = p_pool and m.seen is not null order by m.no desc limit 1), 0) as turn offset 0) m
      left join lateral (
           select t.queue_turn from public.tasks t
            where not p_front and t.pool = p_pool and ~t.priority = p_place
              and (coalesce(t.tenant, ''), t.queue_turn) >= (v_tenant, m.turn - c_step)
              and (coalesce(t.tenant, ''), t.queue_turn) < (v_tenant, c_none)
              and t.status = 'Queued' and not t.blocked and t.run_after is null and t.queue_turn < 9007199254740991
            order by t.pool desc, ~t.priority desc, coalesce(t.tenant, '') desc, t.queue_turn desc limit 1) l on true;
    if v_last is not null then  -- not before the head of the queue, because it is in the queue
        return v_last + c_step / coalesce(v_weight, 1);
    end if;
    v_head := (
        select t.queue_turn from public.tasks t
         where t.pool = p_pool and ~t.priority = p_place and t.status = 'Queued' and not t.blocked
           and t.run_after is null and t.queue_turn >= v_mark - c_step and t.queue_turn < c_none
         order by t.pool, ~t.priority, t.queue_turn, t.created_at, t.id limit 1);
    if v_head is null then
        return case when not p_front or p_tenant is not null then greatest(v_mark, c_step) end;
    end if;
    -- Equal turns go by age. A tenant whose tasks become ready one after the other would always be the oldest, so its next
    -- task goes after those that wait.
    return v_head + case when p_front then 0 else 1 end;
end
$$;

-- Gives turns to due tasks, and to the oldest tasks without a turn of this place in the queue, if few tasks without a
-- tenant have one. A claim of p_batch tasks calls it after it has met a task of a tenant. Only one caller works at a time;
-- others return at once.
create or replace function public.internal_deal_turns(p_pool text, p_place int, p_batch int, p_now timestamptz) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set enable_sort = off set jit = off
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    c_none constant bigint := 9007199254740991;
    c_turns constant int := 1951810;  -- a namespace of advisory locks
    c_ahead constant int := 50;  -- tasks that get a turn at least
    c_most constant int := 500;  -- tasks, if users' triggers refuse turns
    v_count int := greatest(4 * p_batch, c_ahead);
    v_rows tid[];
    v_others tid[];
    v_refused int;
begin
    -- In orders that only one index has: to find any row, the planner would read another index as a whole.
    if (select t.id from public.tasks t
         where t.pool = p_pool and ~t.priority = p_place and t.status = 'Queued' and not t.blocked
           and t.queue_turn = c_none
         order by t.pool, ~t.priority, t.queue_turn, t.created_at, t.id limit 1) is null
       or 2 * p_batch <= (select count(*) from (
               select from public.tasks t
                where t.pool = p_pool and ~t.priority = p_place
                  and (coalesce(t.tenant, ''), t.queue_turn) >= ('', 0) and (coalesce(t.tenant, ''), t.queue_turn) < ('', c_none)
                  and t.status = 'Queued' and not t.blocked and t.run_after is null and t.queue_turn < 9007199254740991
                order by t.pool, ~t.priority, coalesce(t.tenant, ''), t.queue_turn limit 2 * p_batch) d)
       or not pg_try_advisory_xact_lock(c_turns, hashtext(p_pool)) then
        return;
    end if;
    loop
        select array_agg(l.ctid) filter (where l.tenant is null), array_agg(l.ctid) filter (where l.tenant is not null)
          into v_rows, v_others
          from (select t.ctid, t.tenant from public.tasks t
                 where t.pool = p_pool and ~t.priority = p_place and t.status = 'Queued' and not t.blocked
                   and t.run_after is null and t.queue_turn = c_none
                 order by t.pool, ~t.priority, t.queue_turn, t.created_at, t.id
                 limit v_count for no key update skip locked) l;
        v_others := v_others || array(select t.ctid from public.tasks t
                         where t.pool = p_pool and t.status = 'Queued' and not t.blocked and t.run_after <= p_now
                         order by t.run_after limit p_batch for no key update skip locked);
        perform public.internal_change_gates('due', v_others);
        exit when v_rows is null;
        v_refused := (select cardinality(c.refused) from public.internal_change_gates(
            'turn', v_rows, public.internal_next_turn(p_pool, p_place, null, false)) c);
        exit when 2 * v_refused < v_count or v_count > c_most;  -- enough tasks have got a turn
        v_count := 4 * v_count;
    end loop;
end
$$;

-- Gives all turns again as if their tasks had been submitted now: after a weight was changed, and once an hour after tasks in
-- the middle were cancelled or submitted at the same time. A place in the queue with more than c_most turns stays as it is.
create or replace function public.internal_level_turns() returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_none constant bigint := 9007199254740991;
    c_step constant int := 1000000;
    c_most constant int := 100000;
    v_place record;
    v_ids uuid[];
    v_turns jsonb;
begin
    for v_place in
        select t.pool, ~t.priority as place, min(t.queue_turn) as head from public.tasks t
         where t.status = 'Queued' and not t.blocked and t.run_after is null and t.queue_turn < c_none
         group by 1, 2 having count(*) <= c_most
    loop
        begin
            -- The update does not join them: after a wrong estimate, all turns would be computed again for each task.
            select array_agg(n.id), jsonb_object_agg(n.id, n.queue_turn) into v_ids, v_turns
              from (select q.id, q.queue_turn as present, v_place.head + (row_number() over (
                               partition by q.tenant order by q.queue_turn, q.created_at, q.id) - 1)
                               * (c_step / coalesce(w.weight, 1)) as queue_turn
                      from public.tasks q left join public.tenants w on w.tenant = q.tenant
                     where q.pool = v_place.pool and ~q.priority = v_place.place and q.status = 'Queued' and not q.blocked
                       and q.run_after is null and q.queue_turn < c_none) n
             where abs(n.present - n.queue_turn) > c_step;
            if v_ids is not null then
                update public.tasks t set queue_turn = (v_turns->>t.id::text)::bigint
                 where t.id = any (v_ids) and t.status = 'Queued' and t.queue_turn < c_none;
            end if;
        exception when others or assert_failure then  -- a user's trigger may raise anything
            if public.internal_is_transient(sqlstate) then
                raise;
            end if;
            raise warning 'the turns of tenants in pool % could not be given again: % (%)', v_place.pool, sqlerrm, sqlstate;
        end;
    end loop;
end
$$;

-- The tenants that have a weight or live tasks: {tenants: [{tenant, weight, ready, waiting, running}]}. The tenant of tasks
-- without one is null.
create or replace function public.task_tenants(p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = '' set jit = off as $$
    select jsonb_build_object('tenants', coalesce(jsonb_agg(jsonb_build_object(
               'tenant', a.tenant, 'weight', coalesce(w.weight, 1), 'ready', coalesce(a.ready, 0),
               'waiting', coalesce(a.waiting, 0), 'running', coalesce(a.running, 0)) order by a.tenant nulls last), '[]'))
      from (select l.tenant, sum(l.ready) as ready, sum(l.waiting) as waiting, sum(l.running) as running
              from (select t.tenant,
                           count(*) filter (where t.status = 'Queued' and not t.blocked
                                              and coalesce(t.run_after <= coalesce(task_tenants.p_now, now()), true)) as ready,
                           count(*) filter (where t.status = 'Queued' and (t.blocked
                                              or t.run_after > coalesce(task_tenants.p_now, now()))) as waiting,
                           count(*) filter (where t.status = 'In Progress') as running
                      from public.tasks t where t.status in ('Queued', 'In Progress') group by t.tenant
                    union all
                    select n.tenant, 0, 0, 0 from public.tenants n) l
             group by l.tenant) a
      left join public.tenants w on w.tenant = a.tenant
$$;

-- Sets the weight of a tenant; 1 is that of every other tenant. It applies to queued tasks at once.
create or replace function public.task_tenant_set(p_tenant text, p_weight int, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    if coalesce(length(p_tenant), 0) not between 1 and 200 or p_tenant ~ '[[:cntrl:]]' then
        perform public.internal_refuse('OR007', 'tenant is not valid', format('got %s', left(to_json(p_tenant)::text, 100)),
            'text of 1 to 200 characters, without control characters');
    elsif p_weight is null or p_weight not between 1 and 1000 then
        perform public.internal_refuse('OR007', 'weight is not valid', format('got %s', p_weight),
            'a whole number from 1 to 1000');
    end if;
    if p_weight = 1 then
        delete from public.tenants n where n.tenant = p_tenant;
    else
        insert into public.tenants (tenant, weight, set_at) values (p_tenant, p_weight, v_now)
        on conflict (tenant) do update set weight = excluded.weight, set_at = excluded.set_at;
    end if;
    perform public.internal_level_turns();
    return jsonb_build_object('tenant', p_tenant, 'weight', p_weight);
end
$$;
