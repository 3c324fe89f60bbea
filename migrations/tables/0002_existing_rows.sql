-- pre-deploy
-- no transaction
-- Completes the rows that a user's `tasks` and `workers` had before, a few pages at a time, each in a transaction of its
-- own, so that no writer waits long. Repeated after an interruption, it changes only what is left.

-- A missing number or time is filled in. A task In Progress gets a lease of one hour. It is one UPDATE, because a row that it
-- has moved to another page would be missed by the next one.
do $$
declare
    c_pages constant int := 64;
    v_page bigint := 0;
    v_pages constant bigint := pg_relation_size('public.tasks') / current_setting('block_size')::bigint;
    v_from tid;
    v_upto tid;
    v_leases bigint := 0;
begin
    while v_page <= v_pages loop
        v_from := format('(%s,0)', v_page)::tid;
        v_upto := format('(%s,0)', v_page + c_pages)::tid;
        v_leases := v_leases + (
            select count(*) from public.tasks t
             where t.ctid >= v_from and t.ctid < v_upto and t.status::text = 'In Progress' and t.lease_expires_at is null);
        update public.tasks t
           set attempts = coalesce(t.attempts, 0), created_at = coalesce(t.created_at, now()),
               updated_at = coalesce(t.updated_at, t.created_at, now()),
               lease_expires_at = case when t.status::text = 'In Progress'
                                       then coalesce(t.lease_expires_at, now() + interval '1 hour')
                                       else t.lease_expires_at end
         where t.ctid >= v_from and t.ctid < v_upto
           and (t.attempts is null or t.created_at is null or t.updated_at is null
                or t.status::text = 'In Progress' and t.lease_expires_at is null);
        commit;
        v_page := v_page + c_pages;
    end loop;
    if v_leases > 0 then
        raise notice '% tasks In Progress got a lease of one hour; whoever runs them has until then to finish', v_leases
            using errcode = 'OR100';
    end if;
end
$$;

-- depends_on follows a user's `dependant_on`.
do $$
declare
    c_pages constant int := 64;
    v_page bigint := 0;
    v_pages constant bigint := pg_relation_size('public.tasks') / current_setting('block_size')::bigint;
    v_source constant text := (
        select case format_type(a.atttypid, null) when 'uuid' then 'array[t.dependant_on]'
                                                  when 'uuid[]' then 't.dependant_on' end
          from pg_catalog.pg_attribute a
         where a.attrelid = 'public.tasks'::regclass and a.attname = 'dependant_on' and not a.attisdropped);
begin
    if v_source is null then
        return;
    end if;
    while v_page <= v_pages loop
        execute format($q$
            update public.tasks t set depends_on = %s
             where t.ctid >= $1 and t.ctid < $2 and t.dependant_on is not null and t.depends_on = '{}'$q$, v_source)
          using format('(%s,0)', v_page)::tid, format('(%s,0)', v_page + c_pages)::tid;
        commit;
        v_page := v_page + c_pages;
    end loop;
    raise notice 'tasks.dependant_on is followed by depends_on' using errcode = 'OR100';
end
$$;

-- Blocked is a queued task whose dependencies are not Complete.
do $$
declare
    c_pages constant int := 64;
    v_page bigint := 0;
    v_pages constant bigint := pg_relation_size('public.tasks') / current_setting('block_size')::bigint;
begin
    while v_page <= v_pages loop
        update public.tasks t set blocked = true
         where t.ctid >= format('(%s,0)', v_page)::tid and t.ctid < format('(%s,0)', v_page + c_pages)::tid
           and t.status::text = 'Queued' and not t.blocked and t.depends_on <> '{}'
           and exists (select from unnest(t.depends_on) n (id) left join public.tasks d on d.id = n.id
                        where d.status::text is distinct from 'Complete');
        commit;
        v_page := v_page + c_pages;
    end loop;
end
$$;

-- Rows of an older program are history. A worker that counted as alive is superseded, because nothing is known of it that a
-- fleet could rely on.
do $$
declare
    c_pages constant int := 64;
    v_page bigint := 0;
    v_pages constant bigint := pg_relation_size('public.workers') / current_setting('block_size')::bigint;
    v_alive bigint := 0;
    v_rows bigint;
begin
    while v_page <= v_pages loop
        with done as (
            update public.workers w
               set metadata = coalesce(w.metadata, '{}') || case when w.status = 'terminated' then '{}'
                                                                 else jsonb_build_object('legacy_status', w.status) end,
                   status = 'terminated', exit_cause = 'superseded', created_at = coalesce(w.created_at, now()),
                   terminated_at = now(), state_reason = 'older than this schema'
             where w.ctid >= format('(%s,0)', v_page)::tid and w.ctid < format('(%s,0)', v_page + c_pages)::tid
               and w.exit_cause is null
            returning w.metadata ? 'legacy_status' as was_alive)
        select count(*) filter (where d.was_alive) into v_rows from done d;
        commit;
        v_alive := v_alive + v_rows;
        v_page := v_page + c_pages;
    end loop;
    if v_alive > 0 then
        raise notice '% workers from before were set aside as terminated (superseded); metadata.legacy_status keeps '
            'what they were', v_alive using errcode = 'OR100';
    end if;
end
$$;

-- What every row must satisfy from now on, also those that a user's program still writes. 0004 validates it.
do $$
begin
    lock table public.workers in access exclusive mode;
    update public.workers w
       set metadata = coalesce(w.metadata, '{}') || case when w.status = 'terminated' then '{}'
                                                         else jsonb_build_object('legacy_status', w.status) end,
           status = 'terminated', exit_cause = 'superseded', created_at = coalesce(w.created_at, now()),
           terminated_at = now(), state_reason = 'older than this schema'
     where w.exit_cause is null;
    update public.workers w
       set metadata = coalesce(w.metadata, '{}'), created_at = coalesce(w.created_at, now())
     where w.metadata is null or w.created_at is null;
    alter table public.workers
        alter column status set not null,
        alter column metadata set not null,
        alter column created_at set not null,
        drop constraint if exists workers_fleet_named,
        drop constraint if exists workers_pool_named,
        drop constraint if exists workers_reserved,
        drop constraint if exists workers_status_known,
        drop constraint if exists workers_stage_known,
        drop constraint if exists workers_waiting_on_known,
        drop constraint if exists workers_exit_cause_known,
        drop constraint if exists workers_live_waits,
        drop constraint if exists workers_exit_has_cause,
        add constraint workers_fleet_named
            check (fleet ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' and octet_length(fleet) <= 63) not valid,
        add constraint workers_pool_named
            check (pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' and octet_length(pool) <= 63) not valid,
        add constraint workers_reserved check (reserved_usd >= 0 and reserved_usd_per_hour >= 0) not valid,
        add constraint workers_status_known
            check (status in ('spawning', 'active', 'idle', 'terminating', 'terminated')) not valid,
        add constraint workers_stage_known
            check (stage in ('intent', 'pod_created', 'pod_running', 'ssh_details', 'tcp', 'ssh_auth', 'exec', 'identity',
                             'platform', 'gpu_inventory', 'gpu_health', 'gpu_fabric', 'deploy', 'process', 'heartbeat',
                             'promoted', 'draining', 'flushing', 'deleting', 'gone')) not valid,
        add constraint workers_waiting_on_known
            check (waiting_on in ('orchestrator', 'provider', 'worker', 'operator', 'capacity', 'budget')) not valid,
        add constraint workers_exit_cause_known
            check (exit_cause in ('idle_timeout', 'scale_down', 'manual', 'shutdown', 'max_lifetime', 'budget', 'superseded',
                                  'spawn_failed', 'heartbeat_lost', 'task_stuck', 'gpu_fault', 'host_fault', 'pod_lost',
                                  'stale_code', 'agent_crashed', 'worker_sick', 'release_bad')) not valid,
        -- Each live worker names who must act next, and by when.
        add constraint workers_live_waits
            check (status = 'terminated'
                   or (stage is not null and waiting_on is not null and deadline_at is not null
                       and next_attempt_at is not null)) not valid,
        add constraint workers_exit_has_cause
            check (status not in ('terminating', 'terminated') or exit_cause is not null) not valid;
end
$$;
