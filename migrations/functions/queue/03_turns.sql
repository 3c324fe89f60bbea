-- How the tenants of a pool share it: start-time fair queueing.
--
-- Claims take tasks in the order of (priority, turn, created_at, id). A task of a tenant gets its turn, a virtual time,
-- when it becomes ready: right after the turn of the task at the head of the queue, or one step after the last ready
-- task of its tenant, whichever is later. A step is c_step / weight. So tenants alternate by weight, each keeps its own
-- order, a tenant that comes back gets no credit for the past, and one that is alone gets everything. A turn costs two
-- look-ups by index. It is derived from rows of the queue: there is no counter, and no transaction waits for another.
-- Transactions that submit tasks of one tenant at the same time do not see each other, so their tasks may get the same
-- turns.
--
-- Tasks without a tenant are one more tenant, with weight 1. They have no turn as long as no tenant has tasks in the
-- pool: then the queue is ordered by age and costs nothing more. A task without a turn comes after all that have one.
-- So a claim that meets tasks of a tenant gives turns to the oldest tasks without a tenant, some of them ahead.
--
-- A task that comes back from a worker goes to the head of the queue, unless it waits for its next attempt: tasks that
-- fail again and again must not overtake all others.

-- The turn of a task that becomes ready; p_front: at the head of the queue. c_none for a task without a tenant, unless
-- it comes to the head of a queue with turns.
create or replace function orchestrator.next_turn(p_pool text, p_place int, p_tenant text, p_front boolean)
returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set jit = off set plan_cache_mode = force_generic_plan as $$
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
    -- Below the mark, the index has only entries of tasks that were claimed; see marks.sql. New turns are not below it.
    -- Bounds of pairs: with `=`, the planner may read the tasks of all tenants in the order of claims.
    select m.turn, l.turn, (select n.weight from public.tenants n where n.tenant = p_tenant)
      into v_mark, v_last, v_weight
      from (select coalesce((
               select case when m.place = p_place and m.turn < c_none then m.turn end from orchestrator.marks m
                where m.pool = p_pool and m.seen is not null order by m.no desc limit 1), 0) as turn offset 0) m
      left join lateral (
           select q.turn from orchestrator.live q
            where not p_front and q.pool = p_pool and q.place = p_place
              and (coalesce(q.tenant, ''), q.turn) >= (v_tenant, m.turn - c_step)
              and (coalesce(q.tenant, ''), q.turn) < (v_tenant, c_none)
              and q.state = 'ready' and q.turn < 9007199254740991
            order by q.pool desc, q.place desc, coalesce(q.tenant, '') desc, q.turn desc limit 1) l on true;
    if v_last is not null then  -- not before the head of the queue, because it is in the queue
        return v_last + c_step / coalesce(v_weight, 1);
    end if;
    v_head := (
        select q.turn from orchestrator.live q
         where q.pool = p_pool and q.place = p_place and q.state = 'ready' and q.turn >= v_mark - c_step
           and q.turn < c_none
         order by q.pool, q.place, q.turn, q.created_at, q.task_id limit 1);
    if v_head is null then
        return case when p_front and p_tenant is null then c_none else greatest(v_mark, c_step) end;
    end if;
    -- Equal turns go by age. A tenant whose tasks become ready one after the other would always be the oldest, so its
    -- next task goes after those that wait.
    return v_head + case when p_front then 0 else 1 end;
end
$$;

-- Gives turns to the oldest tasks without one of this place in the queue, if few tasks without a tenant have one. A
-- claim of p_batch tasks calls it after it has met a task of a tenant. Only one caller works at a time; others return
-- at once.
create or replace function orchestrator.give_turns(p_pool text, p_place int, p_batch int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    c_none constant bigint := 9007199254740991;
    c_step constant bigint := 1000000;
    c_turns constant int := 1951810;  -- a namespace of advisory locks
    c_ahead constant int := 50;  -- tasks that get a turn at least
    v_first bigint;
begin
    -- In orders that only one index has: to find any row, the planner would read another index as a whole.
    if (select q.task_id from orchestrator.live q
         where q.pool = p_pool and q.place = p_place and q.state = 'ready' and q.turn = c_none
         order by q.pool, q.place, q.turn, q.created_at, q.task_id limit 1) is null
       or 2 * p_batch <= (select count(*) from (
               select from orchestrator.live q
                where q.pool = p_pool and q.place = p_place
                  and (coalesce(q.tenant, ''), q.turn) >= ('', 0) and (coalesce(q.tenant, ''), q.turn) < ('', c_none)
                  and q.state = 'ready' and q.turn < 9007199254740991
                order by q.pool, q.place, coalesce(q.tenant, ''), q.turn limit 2 * p_batch) d)
       or not pg_try_advisory_xact_lock(c_turns, hashtext(p_pool)) then
        return;
    end if;
    v_first := orchestrator.next_turn(p_pool, p_place, null, false);
    with oldest as (
        select q.task_id, q.created_at from orchestrator.live q
         where q.pool = p_pool and q.place = p_place and q.state = 'ready' and q.turn = c_none
         order by q.pool, q.place, q.turn, q.created_at, q.task_id
         limit greatest(4 * p_batch, c_ahead) for no key update skip locked
    ), numbered as (
        select o.task_id, row_number() over (order by o.created_at, o.task_id) - 1 as n from oldest o
    ), given as (
        update orchestrator.live q
           set turn = v_first + c_step * (select n.n from numbered n where n.task_id = q.task_id)
         where q.task_id = any (array(select o.task_id from oldest o))
        returning q.turn, q.created_at
    )
    insert into orchestrator.marks (pool, place, turn, created_at, task_id)
    select p_pool, p_place, min(g.turn), min(g.created_at), '00000000-0000-0000-0000-000000000000' from given g
    having count(*) > 0;
end
$$;

-- Gives all turns again as if their tasks had become ready now: after a weight was changed, and once an hour after
-- tasks in the middle were cancelled or submitted at the same time. A place in the queue with more than c_most turns
-- stays as it is. It waits for no transaction. Its rows are joined by hashes: a nested loop compares each with all
-- others, and a plan that was made while the queue was short may have one.
create or replace function orchestrator.level_turns() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_nestloop = off set jit = off as $$
#variable_conflict use_variable
declare
    c_none constant bigint := 9007199254740991;
    c_step constant int := 1000000;
    c_most constant int := 100000;
    v_place record;
begin
    for v_place in
        select q.pool, q.place, min(q.turn) as head from orchestrator.live q
         where q.state = 'ready' and q.turn < c_none group by 1, 2 having count(*) <= c_most
    loop
        with levelled as (
            select q.task_id, q.turn as present, v_place.head + (row_number() over (
                       partition by q.tenant order by q.turn, q.created_at, q.task_id) - 1)
                       * (c_step / coalesce(w.weight, 1)) as turn
              from orchestrator.live q left join public.tenants w on w.tenant = q.tenant
             where q.pool = v_place.pool and q.place = v_place.place and q.state = 'ready' and q.turn < c_none
        ), free as materialized (
            select q.task_id, n.turn from levelled n join orchestrator.live q on q.task_id = n.task_id
             where q.pool = v_place.pool and q.place = v_place.place and q.state = 'ready' and q.turn < c_none
               and abs(n.present - n.turn) > c_step
               for update of q skip locked
        ), given as (
            update orchestrator.live q set turn = f.turn from free f
             where q.task_id = f.task_id and q.pool = v_place.pool and q.place = v_place.place and q.state = 'ready'
               and q.turn < c_none
            returning q.turn, q.created_at
        )
        insert into orchestrator.marks (pool, place, turn, created_at, task_id)
        select v_place.pool, v_place.place, min(g.turn), min(g.created_at), '00000000-0000-0000-0000-000000000000'
          from given g having count(*) > 0;
    end loop;
end
$$;
