-- What the leader does for the queue each second.

create or replace function public.fleet_maintain(p_fleet text, p_term bigint, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
set lock_timeout = '900ms' as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_maintain');
    return orchestrator.maintain(v_now);
end
$$;

-- Due tasks, limits and dependencies that were left, pending publications. Returns how much was done, by kind.
create or replace function orchestrator.maintain(p_now timestamptz) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_most constant int := 1000;
    c_publications constant int := 100;  -- in one statement
    v_pool text;
    v_rechecked int;
    v_published int := 0;
    v_audited int;
    v_count int;
begin
    for v_pool in
        with recursive pools (pool) as (  -- from one to the next in the index, however many tasks each has
            (select q.pool from orchestrator.live q where q.state = 'waits_for_time' order by q.pool limit 1)
            union all
            select (select q.pool from orchestrator.live q where q.state = 'waits_for_time' and q.pool > p.pool
                     order by q.pool limit 1)
              from pools p where p.pool is not null)
        select p.pool from pools p where p.pool is not null
    loop
        perform orchestrator.advance_due(v_pool, c_most);
    end loop;
    perform orchestrator.audit_limits('key', c_most);
    perform orchestrator.audit_limits('type', c_most);
    v_rechecked := orchestrator.look_at_rechecks(c_most);
    delete from orchestrator.slow_calls s where s.at < p_now - interval '2 minutes';
    loop
        v_count := orchestrator.publish_due(c_publications);
        v_published := v_published + v_count;
        exit when v_count < c_publications or v_published >= c_most
                  or current_setting('orchestrator.is_cancelled', true) = 'yes'
               or clock_timestamp() > statement_timestamp() + interval '1 second';
    end loop;
    v_audited := cardinality(orchestrator.audit(null));
    perform orchestrator.review_holds(p_now);  -- last: calls of these workers wait until the transaction ends
    return jsonb_build_object('rechecked', v_rechecked, 'published', v_published, 'audited', v_audited);
end
$$;

-- Looks again at tasks whose needs another transaction had locked.
create or replace function orchestrator.look_at_needs(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
begin
    insert into orchestrator.rechecks (kind, name)
    select 'needs', n.id::text from unnest(orchestrator.look_again(p_ids, false)) n (id);
    perform orchestrator.end_cycles(p_ids);
end
$$;

-- Looks again at what another transaction had locked, at most so many; returns how many it looked at.
create or replace function orchestrator.look_at_rechecks(p_most int) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_needs constant int := 50000;  -- in one call
    v_keys text[];
    v_types text[];
    v_limited text[];
    v_needs uuid[];
    v_shows uuid[];
    v_unmet uuid[];
    v_edited uuid[];
    v_unfit uuid[];
    v_entered uuid[];
    v_edges uuid[];
    v_count int;
begin
    with taken as (
        delete from orchestrator.rechecks r
         where r.no = any (array(select o.no from orchestrator.rechecks o
                                  order by o.no limit p_most for update skip locked))
        returning r.kind, r.name
    )
    select array_agg(distinct t.name) filter (where t.kind = 'key'),
           array_agg(distinct t.name) filter (where t.kind = 'type'),
           array_agg(distinct t.name) filter (where t.kind = 'limit'),
           array_agg(distinct t.name::uuid) filter (where t.kind = 'needs'),
           array_agg(distinct t.name::uuid) filter (where t.kind = 'unmet'),
           array_agg(distinct t.name::uuid) filter (where t.kind = 'edit'),
           array_agg(distinct t.name::uuid) filter (where t.kind = 'unfit'),
           array_agg(distinct t.name::uuid) filter (where t.kind = 'enter'),
           array_agg(distinct t.name::uuid) filter (where t.kind = 'edges'),
           array_agg(distinct t.name::uuid) filter (where t.kind = 'show'), count(*)
      into v_keys, v_types, v_limited, v_needs, v_unmet, v_edited, v_unfit, v_entered, v_edges, v_shows, v_count
      from taken t;
    if v_unfit is not null then
        perform orchestrator.end_unfit(v_unfit);
    end if;
    if v_entered is not null then
        perform orchestrator.enter_free(v_entered);
    end if;
    if v_edges is not null then
        perform orchestrator.drop_old_edges(v_edges);
    end if;
    if v_edited is not null then
        perform orchestrator.reconcile_free(v_edited);
    end if;
    if v_unmet is not null then
        perform orchestrator.unmeet_again(v_unmet);
    end if;
    if v_needs is not null then
        perform orchestrator.look_at_needs(orchestrator.with_few_needs(v_needs, c_needs, 'needs'));
    end if;
    if v_keys is not null then
        perform orchestrator.admit('key', v_keys, null);
    end if;
    if v_limited is not null then
        perform orchestrator.limit_type(t.name) from unnest(v_limited) t (name);
        perform orchestrator.admit('type', v_limited, null);
    end if;
    if v_types is not null then
        perform orchestrator.admit('type', v_types, null);
    end if;
    if v_shows is not null then
        perform orchestrator.show_running(v_shows);
    end if;
    return v_count;
end
$$;

-- Publishes In Progress of tasks whose claims could not, for a second; the next call continues. One of which a user's
-- trigger takes too long is not tried again.
create or replace function orchestrator.show_running(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c_time constant interval := '1 second';
    v_id uuid;
    v_left uuid[] := '{}';
    v_claimed_at timestamptz;
    v_began constant timestamptz := clock_timestamp();
begin
    foreach v_id in array p_ids loop
        if current_setting('orchestrator.is_cancelled', true) = 'yes' or clock_timestamp() > v_began + c_time then
            v_left := v_left || v_id;
            continue;
        end if;
        update orchestrator.live q set shown = 2 * q.attempt, attempts_shown = q.attempt
         where q.ctid = (select l.ctid from orchestrator.live l
                          where l.task_id = v_id and l.state = 'running' and l.shown <> 2 * l.attempt
                            and l.nonce is not null for update skip locked)
        returning q.claimed_at into v_claimed_at;
        if found then
            perform orchestrator.publish_running(array[v_id], v_claimed_at, false);
            delete from orchestrator.rechecks r
             where r.kind = 'show' and r.name = v_id::text
               and current_setting('orchestrator.is_cancelled', true) = 'yes';
        else
            v_left := v_left || v_id;
        end if;
    end loop;
    insert into orchestrator.rechecks (kind, name)
    select 'show', q.task_id::text from orchestrator.live q
     where q.task_id = any (v_left) and q.state = 'running' and q.shown <> 2 * q.attempt and q.nonce is not null;
end
$$;

-- Ends tasks that claims have left because no worker can get them. One that fits by now is ready again.
create or replace function orchestrator.end_unfit(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_task orchestrator.live;
    v_inputs record;
    v_seen uuid[] := '{}';
begin
    for v_task in select * from orchestrator.live q where q.task_id = any (p_ids) and q.state <> 'running'
                   order by q.task_id for update skip locked loop
        v_seen := v_seen || v_task.task_id;
        v_inputs := orchestrator.inputs_size(v_task.task_id, (
            select c.id from public.cluster_apps c where c.pool = v_task.pool and c.status not in ('deleted', 'failed')
             order by c.max_nodes desc limit 1));
        if v_inputs.code is not null then
            perform orchestrator.leave(array[v_task.task_id]);
            perform orchestrator.publish_later(array[orchestrator.end_without_run(
                v_task, 'Failed', v_inputs.code, v_inputs.message, 'Claiming')], null);
            perform orchestrator.ended(array[v_task.task_id], 'Failed');
        elsif v_task.state = 'waits_for_tasks' then
            perform orchestrator.advance(array[v_task.task_id]);
        end if;
    end loop;
    insert into orchestrator.rechecks (kind, name)  -- another transaction is changing them
    select 'unfit', q.task_id::text from orchestrator.live q
     where q.task_id = any (p_ids) and q.task_id <> all (v_seen) and q.state <> 'running';
end
$$;

-- The same at a time that the caller chooses.
create or replace function orchestrator.maintain_at(p_now timestamptz) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return orchestrator.maintain(v_now);
end
$$;

-- What is looked at once an hour: results that nobody needs any more, dependencies that have been absent for an hour,
-- tasks that wait for each other, and the turns of tenants.
create or replace function orchestrator.maintain_hourly(p_now timestamptz) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_nestloop = on set jit = off as $$
#variable_conflict use_variable
declare
    c_most constant int := 100000;
    v_waiting uuid[] := array(select q.task_id from orchestrator.live q where q.state = 'waits_for_tasks' limit c_most);
begin
    delete from public.task_results r where not exists (select from orchestrator.edges e where e.needs = r.id);
    perform orchestrator.look_again(array(
        select w.id from unnest(v_waiting) w (id)
         where exists (select from orchestrator.edges e
                        where e.task_id = w.id and not e.is_met and orchestrator.need_status(e.needs) = 'absent')
           and (select t.updated_at from public.tasks t where t.id = w.id) < p_now - interval '1 hour'), true);
    perform orchestrator.end_cycles(v_waiting);
    perform orchestrator.level_turns();
end
$$;

create or replace function public.fleet_rescue(
    p_fleet text, p_term bigint, p_worker_id text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_rescue');
    return jsonb_build_object('tasks', orchestrator.rescue(p_worker_id, v_now));
end
$$;

-- Rescues tasks whose lease ended more than p_over_s ago. If the orchestrator was not reachable during that time, their
-- workers get the same time again. It is a separate function, because an earlier version that runs at the same time
-- calls fleet_rescue.
create or replace function public.fleet_rescue_overdue(
    p_fleet text, p_term bigint, p_over_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_rescue_overdue');
    return jsonb_build_object('tasks', orchestrator.rescue(null, v_now, p_over_s, p_fleet));
end
$$;
