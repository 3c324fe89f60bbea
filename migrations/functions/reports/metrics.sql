-- Counters for /metrics that only grow.

-- Attempts that began and ended after p_since (null: from now on), up to `until`, which the caller passes as p_since of
-- its next call. `until` is a little in the past: the rows of a transaction become visible some time after it read the
-- clock. `unpublished`: tasks of all fleets whose row could not be written.
create or replace function public.fleet_metrics(p_fleet text, p_since timestamptz, p_now timestamptz default null)
returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_nestloop = off set jit = off
as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_until timestamptz := v_now - interval '2 seconds';
    v_since timestamptz := greatest(coalesce(p_since, v_until), v_until - interval '1 hour');
begin
    return jsonb_build_object(
        'until', v_until,
        'claimed', (
            select count(*) from public.task_attempts a join public.workers w on w.id = a.worker_id
             where w.fleet = p_fleet and a.started_at > v_since and a.started_at <= v_until),
        'unpublished', (
            select jsonb_build_object('n', count(*),
                                      'oldest_s', coalesce(greatest(extract(epoch from v_now - min(p.at)), 0), 0))
              from orchestrator.publications p where p.reason is not null),
        'ended', coalesce((
            select jsonb_agg(jsonb_build_object('outcome', e.outcome, 'code', e.failure_code, 'n', e.n))
              from (select a.outcome, a.failure_code, count(*) as n
                      from orchestrator.attempts a join public.workers w on w.id = a.worker_id
                     where w.fleet = p_fleet and a.ended_at > v_since and a.ended_at <= v_until
                     group by a.outcome, a.failure_code) e), '[]'),
        'log_bytes_pending', (
            select coalesce(sum(greatest(0, s.bytes::bigint - coalesce(o.last_byte, 0))), 0)
              from public.workers w
             cross join lateral jsonb_each(w.log_bytes) b (boot_id, streams)
             cross join lateral jsonb_each_text(b.streams) s (stream, bytes)
              left join lateral (
                    select l.last_byte from public.log_objects l
                     where l.worker_id = w.id and l.boot_id = b.boot_id and l.stream = s.stream
                       and (l.shipped_at is not null or l.declared_lost)
                     order by l.seq desc limit 1) o on true
             where w.fleet = p_fleet and w.status <> 'terminated' and jsonb_typeof(w.log_bytes) = 'object'));
end
$$;
