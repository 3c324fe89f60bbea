-- What a worker's row says by itself.

-- What the orchestrator requests of the worker: run, drain or stop.
create or replace function public.internal_wanted(p_worker public.workers) returns text
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    return case when p_worker.stop_requested_at is not null then 'stop'
                when p_worker.status = 'terminating' and p_worker.stage in ('flushing', 'deleting', 'gone') then 'stop'
                when p_worker.status = 'terminating' or p_worker.drain_requested_at is not null then 'drain'
                else 'run' end;
end
$$;

-- A time of a hold; null if it has none, or if a person wrote something else there.
create or replace function public.internal_held_moment(p_held jsonb, p_name text) returns timestamptz
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select case when internal_held_moment.p_held->>internal_held_moment.p_name
                     ~ E'^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d'
                then (internal_held_moment.p_held->>internal_held_moment.p_name)::timestamptz end
$$;
