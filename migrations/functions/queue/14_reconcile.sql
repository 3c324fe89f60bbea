-- What a user's write to `tasks` means for the queue: a wish is a difference from what the queue has shown.
--
-- reconcile() derives the row of `live` from the row of `tasks`. It is idempotent. Triggers call it for the rows of a
-- user's statement, and the leader for rows that were written while the triggers were off, or within a publication. It
-- runs in users' statements: it has no exception block, and it writes only our tables. An end that it causes for
-- another task is published later.

create or replace function orchestrator.reconcile(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    v_new uuid[];
    v_edited uuid[];
    v_id uuid;
    v_task public.tasks;
    v_live orchestrator.live;
    v_end orchestrator.publications;
begin
    perform from orchestrator.live q where q.task_id = any (p_ids) order by q.task_id for update;
    v_new := array(select t.id from public.tasks t
                    where t.id = any (p_ids) and t.status in ('Queued', 'In Progress')
                      and (select true from orchestrator.live q where q.task_id = t.id) is null
                      and (select true from orchestrator.publications p where p.task_id = t.id) is null);
    if v_new <> '{}' then
        perform orchestrator.enter(v_new);
    end if;
    -- Tasks of which only the specification has changed, all at once. Tasks of tenants get their turns one after the
    -- other.
    v_edited := array(
        select i.id
          from unnest(p_ids) i (id)
         cross join lateral (select * from public.tasks k where k.id = i.id offset 0) t  -- by its key, each
         cross join lateral (select * from orchestrator.live l where l.task_id = i.id offset 0) q
         where t.status = 'Queued' and q.state <> 'running' and t.tenant is null and q.tenant is null
           and t.cancel_requested_at is not distinct from q.cancel_requested_at
           and (i.id in (select unnest(v_new))) is not true
           and (select true from orchestrator.publications p where p.task_id = i.id) is null);
    if v_edited <> '{}' then
        perform orchestrator.edit(v_edited);
    end if;
    for v_id in select i.id from unnest(p_ids) i (id)
                 where i.id not in (select n.id from unnest(v_new || v_edited) n (id)) loop
        select * into v_task from public.tasks t where t.id = v_id;
        select * into v_live from orchestrator.live q where q.task_id = v_id;
        select * into v_end from orchestrator.publications p where p.task_id = v_id;
        if v_task.id is null then
            perform orchestrator.task_removed(v_id);
        elsif v_end.task_id is not null and v_task.status::text = v_end.shown
              and v_live.state is distinct from 'running' then
            -- It shows what it showed before: the end is published later, and the rest are edits of the next attempt.
            if v_live.task_id is not null then
                perform orchestrator.edit(array[v_id], v_end);
            end if;
        else
            if v_end.task_id is not null then
                delete from orchestrator.publications p where p.task_id = v_id;
            end if;
            if v_live.task_id is not null then
                perform orchestrator.follow(v_task, v_live);
            elsif v_task.status in ('Queued', 'In Progress') then
                perform orchestrator.enter(array[v_id]);
            else
                perform orchestrator.follow_end(v_task);
            end if;
        end if;
    end loop;
end
$$;

-- Tasks that have no row in `live`: they are queued again, or a program of the user's runs them.
create or replace function orchestrator.enter(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
begin
    -- kept from a failure; what they need has changed since
    delete from orchestrator.edges e where e.task_id = any (p_ids);
    perform orchestrator.insert_live(p_ids);
    perform orchestrator.unmeet(p_ids, false);
end
$$;

-- A task that has no row in `live` and that a user has set to Complete, Failed or Cancelled.
create or replace function orchestrator.follow_end(p_task public.tasks) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
begin
    delete from orchestrator.edges e
     where e.task_id = p_task.id and p_task.failure_code is distinct from 'DEPENDENCY_FAILED';
    if p_task.status = 'Complete' then
        perform orchestrator.meet(array[p_task.id]);
        return;
    end if;
    perform orchestrator.fail_dependants(array[p_task.id], 'DEPENDENCY_FAILED');
    update orchestrator.edges e set is_met = false  -- of failed tasks: a retry asks for it again
     where e.ctid = any (array(
               select f.ctid from orchestrator.edges f
                where f.needs = p_task.id and f.is_met
                  and (select true from orchestrator.live q where q.task_id = f.task_id) is null
                  for update skip locked));
end
$$;

-- Reconciles tasks. A row that the queue cannot hold, which was written while the triggers were off, harms no other.
create or replace function orchestrator.reconcile_each(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_id uuid;
begin
    perform orchestrator.reconcile(p_ids);
exception when others or assert_failure then
    foreach v_id in array p_ids loop
        begin
            perform orchestrator.reconcile(array[v_id]);
        exception when others or assert_failure then
            raise warning 'task % cannot be queued (%): %', v_id, sqlstate, left(sqlerrm, 1000);
        end;
    end loop;
end
$$;

-- Reconciles those of these tasks, in this order, that no other transaction has locked; the leader does the others.
create or replace function orchestrator.reconcile_free(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_needs constant int := 10000;  -- in one call
    v_free uuid[] := array(select q.task_id from orchestrator.live q
                            where q.task_id = any (p_ids) order by q.task_id for update skip locked);
begin
    insert into orchestrator.rechecks (kind, name)
    select 'edit', q.task_id::text from orchestrator.live q
     where q.task_id = any (p_ids) and (q.task_id in (select unnest(v_free))) is not true;
    perform orchestrator.reconcile_each(orchestrator.with_few_needs(array(
        select i.id from unnest(p_ids) with ordinality i (id, n) where i.id in (select unnest(v_free)) order by i.n),
        c_needs));
    perform orchestrator.enter_free(array(  -- a user's trigger has queued a task again as its end was published
        select i.id from unnest(p_ids) i (id)
         where not exists (select from orchestrator.live q where q.task_id = i.id)));
end
$$;

-- Brings those of these tasks that have no row in `live` into the queue, if no other transaction has locked them; the
-- leader does the others.
create or replace function orchestrator.enter_free(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_needs constant int := 10000;  -- in one call
    v_free uuid[] := array(select t.id from public.tasks t where t.id = any (p_ids) for share skip locked);
begin
    insert into orchestrator.rechecks (kind, name)
    select 'enter', t.id::text from public.tasks t
     where t.id = any (p_ids) and (t.id in (select unnest(v_free))) is not true;
    perform orchestrator.reconcile_each(orchestrator.with_few_needs(array(
        select i.id from unnest(v_free) i (id)
         where (select true from orchestrator.live q where q.task_id = i.id) is null), c_needs));
end
$$;

-- The first of these tasks that need no more than so many tasks in all, but one at least. The leader does the others:
-- rechecks of the given kind, or 'edit' or 'enter'. One call with all of them might exceed its time again and again.
create or replace function orchestrator.with_few_needs(p_ids uuid[], p_most int, p_kind text default null)
returns uuid[]
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_few uuid[];
begin
    select array_agg(s.id order by s.n) filter (where s.needs <= p_most or s.n = 1) into v_few
      from (select i.id, i.n, sum(least(coalesce(cardinality(orchestrator.needs(t.*)), 0), p_most))
                                  over (order by i.n) as needs
              from unnest(p_ids) with ordinality i (id, n) left join public.tasks t on t.id = i.id) s;
    insert into orchestrator.rechecks (kind, name)
    select coalesce(p_kind, case when exists (select from orchestrator.live q where q.task_id = i.id) then 'edit'
                                 else 'enter' end), i.id::text
      from unnest(p_ids) i (id) where (i.id in (select unnest(v_few))) is not true;
    return coalesce(v_few, '{}');
end
$$;

-- A task that has a row in `live`.
create or replace function orchestrator.follow(p_task public.tasks, p_live orchestrator.live) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_is_running boolean := p_live.state = 'running';
    -- A row that does not show this attempt yet has the status of an earlier one, which is no wish: another statement
    -- of the user's may change it meanwhile, also one of a trigger within our publication of other rows.
    v_is_shown boolean := v_is_running and (
        p_live.nonce is null or p_live.shown = 2 * p_live.attempt and p_task.published >= 2 * p_live.attempt);
    v_is_earlier boolean := v_is_running and not v_is_shown and p_task.worker_id is not distinct from (
        select a.worker_id from orchestrator.attempts a
         where a.task_id = p_task.id and a.attempt = p_task.published / 2);
begin
    if p_task.status in ('Complete', 'Failed', 'Cancelled') then
        perform orchestrator.end_by_hand(p_live, lower(p_task.status::text), p_task.status::text);
        perform orchestrator.leave(array[p_task.id]);
        perform orchestrator.ended(array[p_task.id], p_task.status::text);
    elsif p_task.status = 'Queued' and v_is_shown or p_task.status = 'In Progress' and not v_is_earlier and not (
              v_is_running and p_task.worker_id is not distinct from p_live.worker_id) then
        perform orchestrator.end_by_hand(p_live, 'lost', p_task.status::text);
        perform orchestrator.leave(array[p_task.id]);
        perform orchestrator.insert_live(array[p_task.id]);
    elsif p_task.cancel_requested_at is distinct from p_live.cancel_requested_at
          and p_task.cancel_requested_at is not null
          and not v_is_running then
        perform orchestrator.leave(array[p_task.id]);
        perform orchestrator.publish_later(array[orchestrator.end_without_run(p_live, 'Cancelled', null, null)], null);
        perform orchestrator.ended(array[p_task.id], 'Cancelled');
    else
        perform orchestrator.edit(array[p_task.id]);
    end if;
end
$$;

-- A user has ended the attempt of a running task. Its worker is told by its next heartbeat, or by the notification.
create or replace function orchestrator.end_by_hand(p_live orchestrator.live, p_outcome text, p_what text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_now();
begin
    if p_live.state <> 'running' or p_live.nonce is null then
        return;
    end if;
    insert into orchestrator.attempts (task_id, attempt, claim_no, started_at, ended_at, worker_id, nonce, outcome,
                                       message, log_first, uncounted, run_after)
    values (p_live.task_id, p_live.attempt, coalesce(p_live.claim_no, 0), p_live.claimed_at,
            greatest(v_now, p_live.claimed_at), p_live.worker_id, p_live.nonce, p_outcome,
            case when p_what is null then 'The task was deleted'
                 else format('The task was changed by hand: %s', p_what) end,
            p_live.log_first, p_live.uncounted, p_live.run_after)
    on conflict do nothing;
    perform pg_notify('orchestrator_fleet', p_live.worker_id);
end
$$;

-- Follows the specifications of tasks. One that runs keeps its pool, its type and its key, with their slots, until its
-- attempt ends. p_end: of the one task, if its last attempt is not shown yet as it ended; its pause counts, and not the
-- row's.
create or replace function orchestrator.edit(p_ids uuid[], p_end orchestrator.publications default null) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_before orchestrator.live[] := array(select q from orchestrator.live q where q.task_id = any (p_ids));
    v_needing uuid[];
    v_moved uuid[];
    v_keys text[];
    v_types text[];
begin
    update orchestrator.live q
       set (place, created_at, run_after, tenant, dedupe_key, max_attempts, timeout_s, has_needs, is_heavy, has_webhook,
            cancel_requested_at, uncounted, attempts_shown, pool, concurrency_key, task_type, type_limited) = (
           select s.place, coalesce(s.created_at, q.created_at),
                  case when q.state = 'running' then q.run_after  -- a claim clears that of tasks
                       when p_end.task_id is null then s.run_after
                       else public.internal_readable_time(p_end.run_after) end,
                  s.tenant, s.dedupe_key, s.max_attempts, s.timeout_s, s.has_needs, s.is_heavy, s.has_webhook,
                  s.cancel_requested_at, greatest(0, least(q.attempt, q.uncounted + q.attempts_shown - s.attempts)),
                  s.attempts,
                  case when q.state = 'running' then q.pool else s.pool end,
                  case when q.state = 'running' then q.concurrency_key else s.concurrency_key end,
                  case when q.state = 'running' then q.task_type else s.task_type end,
                  case when q.state = 'running' then q.type_limited else s.type_limited end
             from orchestrator.specified s where s.task_id = q.task_id)
     where q.task_id = any (p_ids);
    v_needing := array(
        select b.task_id
          from unnest(v_before) b
         cross join lateral (select * from public.tasks k where k.id = b.task_id offset 0) t  -- by its key, each
         where (b.has_needs or orchestrator.needs(t.*) <> '{}') and orchestrator.is_fit(t.*)
           and (select array_agg(e.needs order by e.needs) from orchestrator.edges e where e.task_id = b.task_id)
               is distinct from (select array_agg(distinct n.id order by n.id)
                                   from unnest(orchestrator.needs(t.*)) n (id)));
    if v_needing <> '{}' then
        perform orchestrator.set_edges(v_needing);
    end if;
    select array_agg(b.task_id),
           array_agg(b.concurrency_key) filter (where b.concurrency_key is not null
                                                  and b.state in ('ready', 'waits_for_type')),
           array_agg(b.task_type) filter (where b.type_limited and b.state = 'ready')
      into v_moved, v_keys, v_types
      from unnest(v_before) b
     cross join lateral (select * from orchestrator.live l where l.task_id = b.task_id offset 0) q
     where b.state <> 'running'
       and ((b.pool, b.place, b.created_at, b.run_after, b.concurrency_key, b.task_type, b.tenant, b.type_limited)
            is distinct from (q.pool, q.place, q.created_at, q.run_after, q.concurrency_key, q.task_type, q.tenant,
                              q.type_limited)
            or (b.task_id in (select unnest(v_needing))) is true);
    if v_moved is not null then
        perform orchestrator.advance(v_moved);
        perform orchestrator.refill('key', v_keys);
        perform orchestrator.refill('type', v_types);
    end if;
end
$$;

-- A task was deleted, or is not there for another reason.
create or replace function orchestrator.task_removed(p_id uuid) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_live orchestrator.live;
begin
    delete from orchestrator.publications p where p.task_id = p_id;
    delete from orchestrator.edges e
     where e.task_id = p_id and not exists (select from orchestrator.live q where q.task_id = p_id);
    select * into v_live from orchestrator.live q where q.task_id = p_id;
    if v_live.task_id is not null then
        perform orchestrator.end_by_hand(v_live, 'lost', null);
        perform orchestrator.leave(array[p_id]);
        perform orchestrator.fail_dependants(array[p_id], 'DEPENDENCY_DELETED');
    end if;
end
$$;

-- Whether the queue can hold a task. A user's statement that writes another one is refused, or its triggers are off:
-- then it must not keep the leader from all other tasks. The function has no settings, so that it costs nothing.
create or replace function orchestrator.is_fit(p_task public.tasks) returns boolean language sql stable as $$
    select (is_fit.p_task).published <= 2000000 and cardinality(orchestrator.needs(is_fit.p_task)) <= 10000
$$;

-- What a task asks for, with the values of its type where it names none. It is the one place that derives columns of
-- `live` from columns of `tasks`.
create or replace view orchestrator.specified as
select t.id as task_id, t.status, t.worker_id, coalesce(t.attempts, 0) as attempts, t.published, t.cancel_requested_at,
       t.dedupe_key, t.tenant, t.concurrency_key, t.task_type,
       public.internal_readable_time(t.created_at) as created_at,
       public.internal_readable_time(t.run_after) as run_after,
       -- of a column of the user's, which may be a bigint or a numeric
       ~(least(greatest(coalesce(t.priority, 0), -2147483648), 2147483647)::int) as place,
       coalesce(t.pool, d.pool, 'default') as pool,
       coalesce(t.max_attempts, d.max_attempts, 3) as max_attempts,
       case when coalesce(t.timeout_s, d.timeout_s) between 0.001 and 2592000
            then coalesce(t.timeout_s, d.timeout_s) end as timeout_s,
       orchestrator.needs(t.*) <> '{}' as has_needs,
       case when pg_column_size(t.params) > 2000 then true
            when pg_column_size(t.params) <= 200 and octet_length(t.params::text) <= 200 then false
            else coalesce(octet_length(t.params::text) > 2000
                          or public.internal_is_unreadable(t.params), false) end as is_heavy,
       exists (select from public.concurrency_limits l where l.scope = 'type' and l.name = t.task_type) as type_limited,
       t.webhook_url is not null as has_webhook,
       orchestrator.is_fit(t.*) as is_fit
  from public.tasks t left join public.task_types d on d.task_type = t.task_type;

-- Tasks whose row in `live` does not follow what `tasks` shows: what reconcile() would change.
create or replace view orchestrator.differences as
select t.id
  from public.tasks t
  left join lateral (select * from orchestrator.live l where l.task_id = t.id offset 0) q on true  -- by its key, each
  left join lateral (select * from orchestrator.publications l where l.task_id = t.id offset 0) p on true
  left join lateral (select * from orchestrator.specified l
                      where l.task_id = t.id and q.task_id is not null offset 0) s on true
 where case
       when p.task_id is not null and q.task_id is null then t.status::text <> p.shown
       when q.task_id is null then t.status in ('Queued', 'In Progress') and orchestrator.is_fit(t.*) or exists (
           select from orchestrator.edges e where e.needs = t.id and e.is_met <> (t.status = 'Complete')
            union all  -- kept from a failure that a user has undone
           select from orchestrator.edges e
            where e.task_id = t.id and t.failure_code is distinct from 'DEPENDENCY_FAILED')
       when p.task_id is not null then true  -- its queued row is edited, or the user's write takes the place of the end
       when q.state = 'running' then t.status <> 'In Progress' or q.shown <> 2 * q.attempt and q.nonce is not null
                                     or t.worker_id is distinct from q.worker_id
       else t.status <> 'Queued' end
    or q.task_id is not null and (
           q.has_needs and orchestrator.is_fit(t.*)
           and (select array_agg(e.needs order by e.needs) from orchestrator.edges e where e.task_id = t.id)
               is distinct from (select array_agg(distinct n.id order by n.id)
                                   from unnest(orchestrator.needs(t.*)) n (id))
           or (q.place, q.created_at, q.tenant, q.dedupe_key, q.max_attempts, q.timeout_s, q.has_needs,
               q.is_heavy, q.has_webhook, q.cancel_requested_at, q.attempts_shown)
              is distinct from (s.place, coalesce(s.created_at, q.created_at), s.tenant, s.dedupe_key,
                                s.max_attempts, s.timeout_s, s.has_needs, s.is_heavy, s.has_webhook,
                                s.cancel_requested_at, s.attempts)
           or q.state <> 'running' and (q.pool, q.run_after, q.concurrency_key, q.task_type, q.type_limited)
              is distinct from (s.pool, s.run_after, s.concurrency_key, s.task_type, s.type_limited));

-- Adds tasks to the queue. Numbers go on from the attempts of a task. A row that is there already is newer.
create or replace function orchestrator.insert_live(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    c_none constant bigint := 9007199254740991;
    v_now timestamptz := public.internal_now();
    v_needing uuid[];
    v_keys text[];
    v_types text[];
    v_pools text[];
begin
    with made as (
        insert into orchestrator.live (
            task_id, created_at, run_after, place, pool, max_attempts, timeout_s, task_type, concurrency_key, tenant,
            dedupe_key, has_needs, is_heavy, type_limited, has_webhook, cancel_requested_at, attempts_shown, attempt,
            uncounted, state, turn, worker_id, claimed_at, progress_at)
        select s.task_id, coalesce(s.created_at, v_now), s.run_after, s.place, s.pool, s.max_attempts, s.timeout_s,
               s.task_type, s.concurrency_key, s.tenant, s.dedupe_key, s.has_needs, s.is_heavy, s.type_limited,
               s.has_webhook, s.cancel_requested_at, s.attempts, n.attempt + (w.state = 'running')::int,
               least(n.attempt, greatest(n.uncounted + n.attempt - greatest(s.attempts, 0), 0)),
               w.state, case when w.state = 'ready' and s.tenant is not null
                             then orchestrator.next_turn(s.pool, s.place, s.tenant, false) else c_none end,
               case when w.state = 'running' then s.worker_id end, case when w.state = 'running' then v_now end,
               case when w.state = 'running' then v_now end
          from unnest(p_ids) i (id)
         -- by its key, each
         cross join lateral (select * from orchestrator.specified d where d.task_id = i.id offset 0) s
         cross join lateral (
               select greatest(max(l.attempt), s.published / 2, 0) as attempt,
                      coalesce(max(l.uncounted), 0) as uncounted
                 from (select a.attempt, a.uncounted from orchestrator.attempts a where a.task_id = i.id
                        order by a.attempt desc limit 1) l offset 0) n
         cross join lateral (select case when s.status = 'In Progress' then 'running'
                                         when s.has_needs then 'waits_for_tasks'
                                         when s.run_after > v_now then 'waits_for_time'
                                         when s.concurrency_key is not null then 'waits_for_key'
                                         when s.type_limited then 'waits_for_type'
                                         else 'ready' end::orchestrator.task_state as state offset 0) w
         where s.status in ('Queued', 'In Progress') and s.is_fit
        on conflict (task_id) do nothing
        returning task_id, pool, place, turn, created_at, state, concurrency_key, task_type, type_limited, has_needs
    ), marked as (
        insert into orchestrator.marks (pool, place, turn, created_at, task_id)
        select m.pool, min(m.place), min(m.turn), min(m.created_at), '00000000-0000-0000-0000-000000000000'
          from made m where m.state = 'ready' group by m.pool
    )
    select array_agg(m.task_id) filter (where m.has_needs),
           array_agg(distinct m.concurrency_key) filter (where m.concurrency_key is not null
                                                           and m.state in ('waits_for_key', 'running')),
           array_agg(distinct m.task_type) filter (where m.type_limited and m.state in ('waits_for_type', 'running')),
           array_agg(distinct m.pool) filter (where m.state = 'ready')
      into v_needing, v_keys, v_types, v_pools from made m;
    if v_pools is not null then
        perform orchestrator.announce(v_pools, false);
    end if;
    if v_needing is not null then
        perform orchestrator.set_edges(v_needing);
        perform orchestrator.advance(v_needing);
    end if;
    if v_keys is not null then
        perform orchestrator.admit('key', v_keys, null);
    end if;
    if v_types is not null then
        perform orchestrator.admit('type', v_types, null);
    end if;
end
$$;
