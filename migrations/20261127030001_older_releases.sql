-- A worker keeps its code for its life. What the leader would start now is declared under its term; a worker of another
-- release that has no handler for a type which the present one handles hands the task back, uncounted. While no worker of
-- the present release is there the task waits for one, out of the earlier workers' way; once there is, whoever of the
-- earlier ones still meets such a task is drained on the spot and claims no more.

create function public.fleet_declare_release(
    p_fleet text, p_term bigint, p_releases jsonb, p_task_types jsonb, p_now timestamptz default null
) returns jsonb
    language plpgsql security definer set search_path = ''
as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_declare_release');
    if jsonb_typeof(p_releases) is distinct from 'object' or jsonb_typeof(p_task_types) is distinct from 'array' then
        perform public.internal_refuse('OR007', 'p_releases is {pool: release} and p_task_types a list of names');
    end if;
    insert into public.fleet_settings as s (fleet, name, value, reason, set_at)
    values (p_fleet, 'release',
            jsonb_build_object('term', p_term, 'releases', p_releases, 'task_types', p_task_types), 'declared', v_now)
    on conflict (fleet, name) do update
       set value = excluded.value, set_at = excluded.set_at where s.value <> excluded.value;
    return jsonb_build_object('declared', true);
end
$$;

-- The release that stands in for the worker's where its own has no handler for this type; null: it is as good as any, or
-- nothing is declared. What an earlier leader declared holds until the present one has had the time to do so: one that
-- knows nothing of this, after a roll-back, does not.
create function public.internal_succeeding(p_worker public.workers, p_task_type text, p_now timestamptz) returns text
    language sql stable security definer set search_path = ''
as $$
    select s.value->'releases'->>p_worker.pool
      from public.fleet_settings s join public.fleet_lease l on l.fleet = s.fleet
     where s.fleet = p_worker.fleet and s.name = 'release'
       and ((s.value->>'term')::bigint = l.term or l.since > p_now - interval '60 seconds')
       and s.value->'releases'->>p_worker.pool <> p_worker.release and s.value->'task_types' ? p_task_type
$$;

create function public.internal_is_here(p_fleet text, p_pool text, p_release text) returns boolean
    language sql stable security definer set search_path = ''
as $$
    select exists (select from public.workers w
                    where w.fleet = p_fleet and w.pool = p_pool and w.release = p_release
                      and w.status in ('active', 'idle') and w.drain_requested_at is null)
$$;

create or replace function public.worker_fail(
    p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int, p_failure jsonb, p_now timestamptz default null
) returns jsonb
    language plpgsql security definer set search_path = ''
as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_unable boolean := coalesce(p_failure->>'code' = 'NO_HANDLER', false);
    v_worker public.workers := public.internal_caller(p_worker_id, v_unable);  -- its row is locked before its task's
    v_type text;
    v_release text;
    v_outcome text;
    v_here boolean;
    c_wait_s constant int := 60;  -- doubling up to ten times as much; over when the first of that release is promoted
begin
    perform public.internal_check_keys(coalesce(p_failure, '{}'),
        array['code', 'message', 'point', 'exit_class', 'retryable', 'detail'], 'p_failure');
    perform public.internal_check_size(p_failure, 65536, 'p_failure');
    v_outcome := public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt,
        array['failed', 'cancelled'] || case when v_unable then array['released'] end);
    if v_outcome = 'held' and v_unable then
        select t.task_type, public.internal_succeeding(v_worker, t.task_type, v_now) into v_type, v_release
          from public.tasks t where t.id = p_task_id;
    end if;
    if v_outcome = 'held' and v_release is not null then
        v_outcome := public.internal_give_up(p_task_id, 'released', p_failure || jsonb_build_object(
            'code', 'EARLIER_RELEASE', 'message', format('Worker %s is of an earlier release, %s, which has no handler for %s; %s has one',
                                                         p_worker_id, v_worker.release, v_type, v_release)), false, false, v_now);
        v_here := public.internal_is_here(v_worker.fleet, v_worker.pool, v_release);
        if not v_here then
            update public.tasks t
               set run_after = v_now + c_wait_s * least(2 ^ least(t.uncounted - 1, 4), 10) * interval '1 second'
             where t.id = p_task_id and t.status = 'Queued';
        end if;
        update public.workers w
           set metadata = w.metadata || jsonb_build_object('lacks', v_type),
               drain_requested_at = case when v_here then coalesce(w.drain_requested_at, v_now)
                                         else w.drain_requested_at end
         where w.id = p_worker_id;
        perform pg_notify('orchestrator_fleet', p_worker_id);
    elsif v_outcome = 'held' then
        v_outcome := public.internal_give_up(p_task_id, 'failed', coalesce(p_failure, '{}'), true, true, v_now);
    end if;
    return jsonb_build_object('outcome', v_outcome);
end
$$;

create or replace function public.internal_worker_climbed() returns trigger
    language plpgsql security definer set search_path = ''
as $$
begin
    new.climb_ended_at := public.internal_now();
    if new.status = 'active' then
        new.promoted_at := new.climb_ended_at;
        if new.release is not null then
            insert into public.releases as r (fleet, release, promoted_at)
            values (new.fleet, new.release, new.promoted_at)
            on conflict (fleet, release) do update set promoted_at = excluded.promoted_at
             where r.promoted_at < excluded.promoted_at - interval '1 minute';  -- many are promoted at once
            if not public.internal_is_here(new.fleet, new.pool, new.release) then  -- the first: what waited for it is due
                update public.tasks t set run_after = null
                 where t.pool = new.pool and t.status = 'Queued' and not t.blocked and t.run_after > new.promoted_at
                   and t.failure_code = 'EARLIER_RELEASE';
            end if;
        end if;
    end if;
    return new;
end
$$;

do $$
declare
    v_role name;
    v_function text;
begin
    foreach v_function in array array['internal_succeeding(public.workers, text, timestamptz)', 'internal_is_here(text, text, text)',
                                      'fleet_declare_release(text, bigint, jsonb, jsonb, timestamptz)'] loop
        execute format('revoke all on function public.%s from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles
                       where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function public.%s from %I', v_function, v_role);
        end loop;
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        execute format('grant execute on function public.%s to service_role', v_function);
    end if;
end
$$;
