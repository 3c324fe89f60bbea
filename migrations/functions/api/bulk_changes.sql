-- Actions on all tasks that fit a filter: a preview, and a change that the leader carries out in the background. A
-- change is a row with its place: each step changes some tasks and moves the place in one transaction. So an
-- interrupted step has done nothing, and the next leader goes on from there. p_scope {pools, tenant} restricts the
-- caller.

-- The filter of an action with the statuses that it changes, if it names none. Raises OR007.
create or replace function public.internal_change_filter(p_action text, p_filter jsonb) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_filter jsonb := jsonb_strip_nulls(p_filter);
    v_may jsonb := case p_action when 'cancel' then '["Queued", "In Progress"]'
                                 when 'retry' then '["Failed", "Cancelled"]' end;
    v_status jsonb;
begin
    if v_may is null then
        perform public.internal_refuse('OR007', format('there is no action %L', left(p_action, 100)));
    end if;
    perform public.internal_check_keys(v_filter, array['status', 'task_type', 'tenant', 'pool', 'labels', 'since'],
                                       'a filter');
    perform public.internal_check_size(v_filter, 8192, 'a filter');
    if v_filter - 'labels' = '{}' and coalesce(v_filter->'labels', '[]') = '[]' then
        perform public.internal_refuse('OR007', 'a change needs a filter', 'it would change every task',
            'name a status, a type, a pool, a tenant or a label');
    end if;
    if coalesce(jsonb_typeof(v_filter->'labels'), 'array') <> 'array'
       or v_filter @? '$.labels[*] ? (@.type() != "object")' then
        perform public.internal_refuse('OR007', 'labels must be a list of objects {key: value}');
    end if;
    if v_filter ? 'since' then
        v_filter := v_filter || jsonb_build_object('since', (v_filter->>'since')::timestamptz);
    end if;
    v_status := case jsonb_typeof(v_filter->'status')
        when 'array' then v_filter->'status'
        when 'string' then jsonb_build_array(v_filter->'status')
        else case p_action when 'cancel' then v_may else '["Failed"]' end end;
    if v_status = '[]' or not v_status <@ v_may then
        perform public.internal_refuse('OR007', format('%s does not apply to such tasks', p_action),
            format('status %s', left(v_status::text, 200)), format('the choice is %s', v_may));
    end if;
    return v_filter || jsonb_build_object('status', v_status);
end
$$;

-- What an action would change: {now, filter, tasks, looked, is_all, by: [{task_type, status, tasks, usd}], groups,
-- usd}. It looks at the newest so many tasks that may fit; is_all: there are no more. usd: of a retry, what that many
-- attempts of the type have cost on average within seven days, null without such a figure; of a cancel, what the
-- running attempts have cost so far. A token of a tenant sees no costs: null. `by` has the largest groups, `groups` is
-- the number of all.
create or replace function public.task_changes_preview(
    p_fleet text, p_scope jsonb, p_action text, p_filter jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    c_looked_at constant int := 5000;
    c_groups constant int := 50;
    v_now timestamptz := public.internal_clock(p_now);
    v_filter jsonb := public.internal_change_filter(p_action, p_filter);
    v_sees_costs boolean := p_scope->>'tenant' is null;
    v_looked int;
    v_by jsonb;
    v_groups jsonb;
begin
    with seen as materialized (
        select t.*, t.n <= c_looked_at and public.internal_fits(p_scope, v_filter, t.status, t.task_type, t.pool,
                                                                t.tenant, t.labels) as fits
          from orchestrator.tasks_after(v_filter, v_now, null, c_looked_at + 1)
          with ordinality t (id, created_at, status, task_type, pool, tenant, labels, n)
    ), lost as materialized (
        select u.task_id, sum(u.usd) as usd from orchestrator.used(p_fleet, v_now, v_now, '-infinity', v_now) u
         where p_action = 'cancel' and v_sees_costs group by u.task_id
    ), groups as (
        select s.task_type, s.status, count(*) as tasks,
               case when not v_sees_costs then null when p_action = 'cancel' then coalesce(sum(l.usd), 0)
                    else count(*) * orchestrator.usd_per_attempt(p_fleet, s.task_type, v_now) end as usd
          from seen s left join lost l on l.task_id = s.id where s.fits group by s.task_type, s.status
    )
    select (select count(*) from seen),
           coalesce(jsonb_agg(to_jsonb(g.*) order by g.tasks desc, g.task_type, g.status), '[]')
      into v_looked, v_groups from groups g;
    select coalesce(jsonb_agg(g.value), '[]') into v_by
      from (select e.value from jsonb_array_elements(v_groups) with ordinality e (value, n)
             order by e.n limit c_groups) g;
    return jsonb_build_object(
        'now', v_now, 'filter', v_filter,
        'tasks', (select coalesce(sum((e->>'tasks')::bigint), 0) from jsonb_array_elements(v_groups) e),
        'looked', least(v_looked, c_looked_at), 'is_all', v_looked <= c_looked_at, 'by', v_by,
        'groups', jsonb_array_length(v_groups),
        'usd', (select case when bool_and(e->>'usd' is not null) then sum((e->>'usd')::numeric) end
                  from jsonb_array_elements(v_groups) e));
end
$$;

-- The mean cost of an attempt of a type within seven days: of its full days, and the parts of today. Null: unknown.
create or replace function orchestrator.usd_per_attempt(p_fleet text, p_task_type text, p_now timestamptz)
returns numeric
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select sum(s.usd) / nullif(sum(s.attempts), 0)
      from (select u.usd, u.attempts from orchestrator.usage u
             where u.fleet = usd_per_attempt.p_fleet and u.dimension = 'type' and u.span = 'day'
               and u.at >= date_trunc('day', usd_per_attempt.p_now - interval '7 days', 'UTC')
               and u.name = usd_per_attempt.p_task_type
            union all
            select u.usd, u.attempts from orchestrator.usage u
             where u.fleet = usd_per_attempt.p_fleet and u.dimension = 'type' and u.span = 'part'
               and u.at >= date_trunc('day', usd_per_attempt.p_now, 'UTC')
               and u.name = usd_per_attempt.p_task_type) s
$$;

-- Starts a change, once for a key. {outcome: started, repeated or key_reused, id}
create or replace function public.task_changes_start(
    p_fleet text, p_actor text, p_scope jsonb, p_key text, p_action text, p_filter jsonb,
    p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    c_open constant int := 100;  -- of those who see everything, or the same part
    v_now timestamptz := public.internal_clock(p_now);
    v_filter jsonb := public.internal_change_filter(p_action, p_filter);
    v_scope jsonb := coalesce(p_scope, '{}');
    v_known orchestrator.bulk_changes;
    v_id bigint;
begin
    insert into orchestrator.bulk_changes (fleet, actor, key, scope, action, filter, created_at, place_at)
    values (p_fleet, left(p_actor, 100), left(p_key, 200), v_scope, p_action, v_filter, v_now, v_now)
    on conflict (fleet, actor, key) do nothing returning id into v_id;  -- waits for the transaction that has the key
    if v_id is null then
        select * into v_known from orchestrator.bulk_changes c
         where c.fleet = p_fleet and c.actor = left(p_actor, 100) and c.key = left(p_key, 200);
        return jsonb_build_object('id', v_known.id, 'outcome', case
            when (v_known.action, v_known.filter, v_known.scope) is not distinct from (p_action, v_filter, v_scope)
            then 'repeated' else 'key_reused' end);
    end if;
    if (select count(*) from orchestrator.bulk_changes c
         where c.fleet = p_fleet and c.ended_at is null and c.scope = v_scope) > c_open then
        perform public.internal_refuse('OR007', 'too many changes wait', format('the limit is %s', c_open),
                                       'wait for them, or stop some');
    end if;
    perform public.internal_audit(p_fleet, p_actor, 'tasks.' || p_action, v_id::text, v_filter, v_now);
    return jsonb_build_object('outcome', 'started', 'id', v_id);
end
$$;

-- The changes that a caller sees, the newest first, or one of them: {now, changes}. Those of others are visible if they
-- can change only what this caller sees.
create or replace function public.task_changes(
    p_fleet text, p_scope jsonb, p_id bigint, p_limit int, p_now timestamptz default null
) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('now', public.internal_clock(task_changes.p_now), 'changes', coalesce((
        select jsonb_agg(to_jsonb(c.*) - array['fleet', 'key', 'scope', 'place_id', 'locked']
                         || jsonb_build_object('locked', cardinality(c.locked)) order by c.id desc)
          from (select * from orchestrator.bulk_changes b
                 where b.fleet = task_changes.p_fleet
                   and b.id between coalesce(task_changes.p_id, 0) and coalesce(task_changes.p_id, 9223372036854775807)
                   and public.internal_sees_change(task_changes.p_scope, b.scope)
                 order by b.id desc limit least(greatest(coalesce(task_changes.p_limit, 100), 1), 1000)) c), '[]'))
$$;

create or replace function public.internal_sees_change(p_scope jsonb, p_of jsonb) returns boolean
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select (jsonb_typeof(internal_sees_change.p_scope->'pools') is distinct from 'array'
            or jsonb_typeof(internal_sees_change.p_of->'pools') = 'array'
               and internal_sees_change.p_scope->'pools' @> (internal_sees_change.p_of->'pools'))
       and (internal_sees_change.p_scope->>'tenant' is null
            or coalesce(internal_sees_change.p_scope->>'tenant' = internal_sees_change.p_of->>'tenant', false))
$$;

-- Stops a change: {outcome: stopped, already or not_found}. It waits for the leader's step, and no step follows. What
-- is changed stays changed.
create or replace function public.task_changes_stop(
    p_fleet text, p_actor text, p_scope jsonb, p_id bigint, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_change orchestrator.bulk_changes;
begin
    select * into v_change from orchestrator.bulk_changes c where c.fleet = p_fleet and c.id = p_id for update;
    if v_change.id is null or not public.internal_sees_change(p_scope, v_change.scope) then
        return jsonb_build_object('outcome', 'not_found');
    elsif v_change.ended_at is not null then
        return jsonb_build_object('outcome', 'already');
    end if;
    update orchestrator.bulk_changes c
       set outcome = 'stopped', ended_at = v_now, stopped_by = left(p_actor, 100), locked = '{}' where c.id = p_id;
    perform public.internal_audit(p_fleet, p_actor, 'tasks.stop', p_id::text,
        jsonb_build_object('changed', v_change.changed, 'looked', v_change.looked), v_now);
    return jsonb_build_object('outcome', 'stopped');
end
$$;

-- A step of the oldest open change: {id, outcome, looked, changed, refused, more}; id is null if there is none. `more`:
-- another step has work at once. Each step ends soon, because others may want the tasks that it has changed. Callers
-- that see everything come first, so that no token of a tenant or of some pools keeps an operator waiting.
create or replace function public.fleet_change_tasks(p_fleet text, p_term bigint, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    c_patience constant interval := '30 seconds';  -- with tasks that others have locked
    v_now timestamptz := public.internal_clock(p_now);
    v_change orchestrator.bulk_changes;
    v_is_last boolean;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_change_tasks');
    select * into v_change from orchestrator.bulk_changes c
     where c.fleet = p_fleet and c.ended_at is null
     order by jsonb_strip_nulls(c.scope) <> '{}', c.id limit 1 for update;
    if not found then
        return jsonb_build_object('id', null, 'more', false);
    end if;
    set constraints all immediate;  -- a user's deferred check refuses its own task, and not all of them at the commit
    v_is_last := v_now > v_change.walked_at + c_patience;
    if v_change.walked_at is null then
        v_change := public.internal_change_next(v_change, v_now);
    else
        v_change := public.internal_change_locked(v_change, v_is_last, v_now);
    end if;
    if v_change.walked_at is not null and v_change.locked = '{}' then
        v_change.ended_at := v_now;
        v_change.outcome := 'done';
        perform public.internal_audit(p_fleet, v_change.actor, 'tasks.done', v_change.id::text,
            jsonb_build_object('changed', v_change.changed, 'refused', v_change.refused), v_now);
    end if;
    update orchestrator.bulk_changes c
       set started_at = coalesce(c.started_at, v_now), place_at = v_change.place_at, place_id = v_change.place_id,
           walked_at = v_change.walked_at, locked = v_change.locked, looked = v_change.looked,
           changed = v_change.changed, refused = v_change.refused, refusal = v_change.refusal,
           ended_at = v_change.ended_at, outcome = v_change.outcome
     where c.id = v_change.id;
    return jsonb_build_object(
        'id', v_change.id, 'outcome', v_change.outcome, 'looked', v_change.looked, 'changed', v_change.changed,
        'refused', v_change.refused,
        'more', v_change.ended_at is not null or v_change.walked_at is null or coalesce(v_is_last, false));
end
$$;

-- The change after the next tasks in its order.
create or replace function public.internal_change_next(p_change orchestrator.bulk_changes, p_now timestamptz)
returns orchestrator.bulk_changes
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    c_tasks constant int := 200;  -- that are changed in one transaction
    c_looked_at constant int := 2000;
    c_within constant interval := '1 second';
    v_until constant timestamptz := clock_timestamp() + c_within;
    v_task record;
    v_looked int := 0;
    v_tried int := 0;
begin
    for v_task in select * from orchestrator.tasks_after(p_change.filter, p_change.place_at, p_change.place_id,
                                                         c_looked_at) loop
        if v_tried = c_tasks or clock_timestamp() > v_until
           or current_setting('orchestrator.is_cancelled', true) = 'yes' then
            return p_change;
        end if;
        v_looked := v_looked + 1;
        p_change.looked := p_change.looked + 1;
        p_change.place_at := v_task.created_at;
        p_change.place_id := v_task.id;
        if public.internal_fits(p_change.scope, p_change.filter, v_task.status, v_task.task_type, v_task.pool,
                                v_task.tenant, v_task.labels) then
            v_tried := v_tried + 1;
            p_change := public.internal_change_task(p_change, v_task.id, false, p_now);
        end if;
    end loop;
    if v_looked < c_looked_at then
        p_change.walked_at := p_now;
    end if;
    return p_change;
end
$$;

-- The change after another try of tasks that others had locked; p_is_last: those that still are count as refused.
create or replace function public.internal_change_locked(
    p_change orchestrator.bulk_changes, p_is_last boolean, p_now timestamptz
) returns orchestrator.bulk_changes
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    c_within constant interval := '1 second';
    v_until constant timestamptz := clock_timestamp() + c_within;
    v_id uuid;
begin
    foreach v_id in array p_change.locked loop
        exit when clock_timestamp() > v_until or current_setting('orchestrator.is_cancelled', true) = 'yes';
        p_change.locked := (p_change.locked)[2:];
        p_change := public.internal_change_task(p_change, v_id, p_is_last, p_now);
    end loop;
    return p_change;
end
$$;

-- Changes one task, if it still fits, and counts it. A refusal of a user's trigger or constraint undoes this task
-- alone. One that another transaction has locked is tried again later, unless p_is_last; so is the one at which the
-- step is cancelled, because the leader ends, and not because a trigger takes long.
create or replace function public.internal_change_task(
    p_change orchestrator.bulk_changes, p_id uuid, p_is_last boolean, p_now timestamptz
) returns orchestrator.bulk_changes
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
set lock_timeout = '50ms' as $$
#variable_conflict use_variable
declare
    c_locked constant int := 1000;
    c_long constant interval := '1 second';
    v_began constant timestamptz := clock_timestamp();
    v_task public.tasks;
    v_is_later boolean;
    v_why text;
begin
    begin
        perform from public.tasks t where t.id = p_id for no key update skip locked;
        if not found and exists (select from public.tasks t where t.id = p_id) then
            raise lock_not_available;
        end if;
        v_task := orchestrator.current_task(p_id);
        if v_task.id is null or not public.internal_fits(p_change.scope, p_change.filter, v_task.status::text,
                v_task.task_type::text, v_task.pool::text, v_task.tenant::text, v_task.labels) then
            return p_change;  -- it has changed meanwhile
        end if;
        perform case p_change.action when 'cancel' then public.task_cancel(p_id, p_now)
                                     else public.task_retry(p_id, p_now) end;
        if exists (select from public.tasks t where t.id = p_id and case p_change.action
                     when 'cancel' then t.cancel_requested_at is null else t.status <> 'Queued' end) then
            raise exception 'a trigger of the database suppressed it';
        end if;
        perform public.internal_audit(p_change.fleet, p_change.actor, 'task.' || p_change.action, p_id::text,
                                      jsonb_build_object('change', p_change.id), p_now);
        p_change.changed := p_change.changed + 1;
        return p_change;
    exception
        when lock_not_available or deadlock_detected then
            v_is_later := true;
            v_why := 'another transaction has locked it';
        when others or assert_failure or query_canceled then
            v_is_later := sqlstate = '57014' and clock_timestamp() < v_began + c_long;
            v_why := orchestrator.refusal(sqlstate, sqlerrm);
    end;
    if v_is_later and not p_is_last and cardinality(p_change.locked) < c_locked then
        p_change.locked := p_change.locked || p_id;
        return p_change;
    end if;
    p_change.refused := p_change.refused + 1;
    p_change.refusal := coalesce(p_change.refusal, left(format('task %s: %s', p_id, v_why), 500));
    return p_change;
end
$$;
