-- Which releases of the users' code the workers of a pool have.

-- The release that replaces the worker's release for this type, because the worker's release has no handler for it.
-- Null if any release may run it, or if no release is declared. A declaration of an earlier leader is valid until the
-- present leader has had time to declare; a leader of an earlier version never declares one.
create or replace function public.internal_replacing_release(
    p_worker public.workers, p_task_type text, p_now timestamptz
)
returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select s.value->'releases'->>internal_replacing_release.p_worker.pool
      from public.fleet_settings s join public.fleet_lease l on l.fleet = s.fleet
     where s.fleet = internal_replacing_release.p_worker.fleet and s.name = 'release'
       and ((s.value->>'term')::bigint = l.term or l.since > internal_replacing_release.p_now - interval '60 seconds')
       and s.value->'releases'->>internal_replacing_release.p_worker.pool <> internal_replacing_release.p_worker.release
       and s.value->'task_types' ? internal_replacing_release.p_task_type
$$;

-- Whether a worker of this release is ready in the pool and not drained.
create or replace function public.internal_is_here(p_fleet text, p_pool text, p_release text) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select exists (select from public.workers w
                    where w.fleet = internal_is_here.p_fleet and w.pool = internal_is_here.p_pool
                      and w.release = internal_is_here.p_release
                      and w.status in ('active', 'idle') and w.drain_requested_at is null)
$$;
