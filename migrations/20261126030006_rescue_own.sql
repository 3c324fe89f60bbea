-- A fleet rescues the tasks of its own workers, and of those whose fleet nobody leads. Another fleet in the same database knows
-- best when its agents could have renewed their leases: while its door was closed, they could not, whatever our clock says.
create function public.internal_is_anothers(p_fleet text, p_worker_id text, p_now timestamptz) returns boolean
language sql stable security definer set search_path = '' as $$
    select exists (select from public.workers w join public.fleet_lease l on l.fleet = w.fleet
                    where w.id = p_worker_id and w.fleet <> p_fleet and l.expires_at > p_now)
$$;

drop function public.internal_rescue(text, timestamptz, numeric);

-- Gives up what a worker holds, or (null) what is abandoned since p_over_s. Tasks that somebody is just ending are waited
-- for where the worker is named, and left for the next time where it is not.
create function public.internal_rescue(p_worker_id text, p_now timestamptz, p_over_s numeric default 0,
                                       p_fleet text default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_task record;
    v_tasks jsonb := '[]';
    v_ids uuid[];
    v_why text := case when p_worker_id is null then 'LEASE_EXPIRED' else 'WORKER_LOST' end;
begin
    if p_worker_id is not null then
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t where t.worker_id = p_worker_id and t.status = 'In Progress'
             order by t.id for update) l;
    else
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t
             where t.status = 'In Progress'
               and public.internal_is_abandoned(t.worker_id, t.lease_expires_at, p_now - p_over_s * interval '1 second')
               and (p_fleet is null or not public.internal_is_anothers(p_fleet, t.worker_id, p_now))
             order by t.id for update skip locked) l;
    end if;
    for v_task in select t.id, t.worker_id, t.lease_expires_at from public.tasks t
                   where t.id = any (v_ids) and t.status = 'In Progress' order by t.id loop
        v_tasks := v_tasks || jsonb_build_object(
            'id', v_task.id, 'worker_id', v_task.worker_id,
            'outcome', public.internal_give_up(v_task.id, 'lost', jsonb_build_object(
                'code', v_why,
                'message', case when p_worker_id is not null then format('Worker %s is gone', v_task.worker_id)
                                else format('Worker %s did not renew its lease, which ended %s', v_task.worker_id,
                                            v_task.lease_expires_at) end,
                'point', 'Processing', 'exit_class', 'lost'), true, false, p_now));
    end loop;
    return v_tasks;
end
$$;

create or replace function public.fleet_rescue_overdue(p_fleet text, p_term bigint, p_over_s numeric, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_rescue_overdue');
    return jsonb_build_object('tasks', public.internal_rescue(null, v_now, p_over_s, p_fleet));
end
$$;

do $$
declare
    v_function regprocedure;
    v_role name;
begin
    foreach v_function in array array['public.internal_rescue(text, timestamptz, numeric, text)',
                                      'public.internal_is_anothers(text, text, timestamptz)']::regprocedure[] loop
        execute format('revoke all on function %s from public', v_function);
        for v_role in
            select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function %s from %I', v_function, v_role);
        end loop;
    end loop;
end
$$;
