-- What was done and spent, by parts of ten minutes and by days. An attempt counts in the part in which it ended, with
-- all that it cost; the time of workers counts where it was. The leader rolls up a part some minutes after its end, so
-- a claim or a completion costs nothing more. A window is read as its stored days and parts, and the rest from the
-- rows.

-- Up to when all parts of a fleet are stored; null: none.
create or replace function orchestrator.usage_until(p_fleet text) returns timestamptz
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select c.done_at from public.fleet_chores c where c.fleet = usage_until.p_fleet and c.name = 'usage'
$$;

-- When the part began in which a moment is.
create or replace function orchestrator.part_of(p_at timestamptz) returns timestamptz
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select date_bin('10 minutes', part_of.p_at, '2000-01-01 00:00:00+00')
$$;

-- The begin of a window, as far as it can be known: parts are kept for nine days, so a window of more than eight days
-- begins with a full day (UTC).
create or replace function orchestrator.usage_since(p_since timestamptz, p_now timestamptz) returns timestamptz
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select case when usage_since.p_since > '-infinity' and usage_since.p_since < usage_since.p_now - interval '8 days'
                then date_trunc('day', usage_since.p_since, 'UTC') else usage_since.p_since end
$$;

-- The attempts of a fleet that ended in a window (its begin excluded), and the open ones unless its end is past.
-- `full_s`: the whole time of the attempt; seconds and usd: its billed part after p_clip.
create or replace function orchestrator.used(
    p_fleet text, p_since timestamptz, p_until timestamptz, p_clip timestamptz, p_now timestamptz
) returns table (task_id uuid, attempt int, outcome text, pool text, full_s numeric, seconds numeric, usd numeric)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
set enable_seqscan = off as $$
#variable_conflict use_variable
begin
    return query
    select a.task_id, a.attempt, a.outcome, w.pool, extract(epoch from a.to_at - a.from_at) / a.of, b.seconds,
           coalesce(w.price_usd_per_hour, w.reserved_usd_per_hour, 0) * b.seconds / 3600
      from public.internal_attempt_times(p_since, p_until, p_now) a
      join public.workers w on w.id = a.worker_id
     cross join lateral (
           select case when w.billing_since is null then 0
                       else greatest(0, extract(epoch from least(a.to_at, w.billing_until, p_until)
                                                           - greatest(a.from_at, p_clip)) / a.of) end) b (seconds)
     where w.fleet = p_fleet;
end
$$;

-- Whether an earlier attempt of a task has cost something.
create or replace function orchestrator.was_paid_before(p_fleet text, p_task_id uuid, p_attempt int) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off as $$
    select exists (
        select from orchestrator.attempts a join public.workers w on w.id = a.worker_id
         where a.task_id = was_paid_before.p_task_id and a.attempt < was_paid_before.p_attempt
           and w.fleet = was_paid_before.p_fleet and w.billing_since is not null
           and least(a.ended_at, w.billing_until) > greatest(a.started_at, (
               select max(b.ended_at) from orchestrator.attempts b  -- the end of the previous one of the same claim
                where b.worker_id = a.worker_id and b.nonce = a.nonce and b.claim_no = a.claim_no
                  and b.ended_at < a.ended_at)))
$$;

-- The same summed up by the dimensions fleet, queue, type, tenant, task and label:KEY; p_only: by this one alone. A
-- task counts once, where its first attempt that cost something ended: so the numbers of windows add up.
create or replace function orchestrator.usage_of_tasks(
    p_fleet text, p_since timestamptz, p_until timestamptz, p_clip timestamptz, p_now timestamptz, p_only text
) returns setof orchestrator.usage
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_variable
begin
    return query
    select p_fleet, d.dimension, 'part'::text, p_since, d.name,
           count(*) filter (where f.is_first), count(*) filter (where u.seconds > 0),
           count(*) filter (where u.outcome = 'complete'),
           count(*) filter (where u.outcome in ('failed', 'lost')),
           count(*) filter (where d.dimension = 'fleet' and u.outcome in ('failed', 'lost') and t.status = 'Failed'
                              and not exists (select from orchestrator.attempts n
                                               where n.task_id = u.task_id and n.attempt > u.attempt)),
           coalesce(sum(u.full_s) filter (where u.outcome = 'complete'), 0), sum(u.seconds), sum(u.usd),
           coalesce(sum(u.usd) filter (where u.outcome <> 'complete'), 0)
      from orchestrator.used(p_fleet, p_since, p_until, p_clip, p_now) u
      left join lateral (
           select coalesce(p.status, k.status::text) as status, k.task_type, k.tenant, k.labels from public.tasks k
             left join orchestrator.publications p on p.task_id = k.id and p.no > k.published
            where k.id = u.task_id and p_only is distinct from 'queue' and p_only is distinct from 'task'
           offset 0) t on true  -- by its key, each
     cross join lateral (
           select u.seconds > 0 and (u.attempt = 1 or not orchestrator.was_paid_before(p_fleet, u.task_id, u.attempt))
                  as is_first offset 0) f
     cross join lateral (
           select * from (values ('fleet', ''), ('queue', u.pool), ('type', t.task_type), ('tenant', t.tenant),
                                 ('task', u.task_id::text)) v (dimension, name)
            where v.name is not null
           union all
           select 'label:' || l.key, l.value
             from jsonb_each_text(case jsonb_typeof(t.labels) when 'object' then t.labels else '{}' end) l) d
     where p_only is null or d.dimension = p_only
     group by d.dimension, d.name;
end
$$;

-- The time of workers in a window by the dimensions kind (booting, busy, idle, draining), pool and gpu.
create or replace function orchestrator.usage_of_workers(
    p_fleet text, p_since timestamptz, p_until timestamptz, p_now timestamptz, p_only text
) returns setof orchestrator.usage
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    return query
    select p_fleet, d.dimension, 'part'::text, p_since, d.name, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint,
           0::numeric, sum(b.seconds), sum(b.usd), 0::numeric
      from public.internal_booked(p_fleet, p_since, p_until, p_now) b
      left join public.workers w on w.id = b.worker_id
     cross join lateral (values ('kind', b.kind), ('pool', coalesce(w.pool, '')),
                                ('gpu', coalesce(w.gpu_type, w.instance_type, ''))) d (dimension, name)
     where p_only is null or d.dimension = p_only
     group by d.dimension, d.name;
end
$$;

-- Sums of one dimension in a window: its full days and parts as they are stored, the rest from the rows.
create or replace function orchestrator.usage_between(
    p_fleet text, p_since timestamptz, p_until timestamptz, p_now timestamptz, p_dimension text
) returns setof orchestrator.usage
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_variable
declare
    v_is_work boolean := p_dimension not in ('kind', 'pool', 'gpu');
    v_parts timestamptz := orchestrator.part_of(p_since);
    v_until timestamptz := least(orchestrator.part_of(p_until),
                                    coalesce(orchestrator.usage_until(p_fleet), '-infinity'));
    v_days timestamptz;  -- full days
    v_rest timestamptz := date_trunc('day', v_until, 'UTC');
begin
    v_parts := v_parts + case when v_parts < p_since then interval '10 minutes' else '0' end;
    v_days := date_trunc('day', v_parts, 'UTC');
    v_days := v_days + case when v_days < v_parts then interval '1 day' else '0' end;
    if v_parts >= v_until then
        v_parts := p_since;
        v_until := p_since;
    end if;
    if v_days >= v_rest then
        v_days := v_until;
        v_rest := v_until;
    end if;
    return query
    select p_fleet, p_dimension, ''::text, p_since, s.name, sum(s.tasks)::bigint, sum(s.attempts)::bigint,
           sum(s.completed)::bigint, sum(s.failed)::bigint, sum(s.given_up)::bigint, sum(s.completed_s),
           sum(s.seconds), sum(s.usd), sum(s.wasted_usd)
      from (
        select * from orchestrator.usage h
         where h.fleet = p_fleet and h.dimension = p_dimension and h.span = 'part'
           and h.at >= v_parts and h.at < v_days
        union all
        select * from orchestrator.usage d
         where d.fleet = p_fleet and d.dimension = p_dimension and d.span = 'day' and d.at >= v_days and d.at < v_rest
        union all
        select * from orchestrator.usage h
         where h.fleet = p_fleet and h.dimension = p_dimension and h.span = 'part'
           and h.at >= v_rest and h.at < v_until
        union all
        select r.* from (values (p_since, v_parts), (v_until, p_until)) w (since, until)
         cross join lateral orchestrator.usage_of_tasks(p_fleet, w.since, w.until, p_since, p_now, p_dimension) r
         where v_is_work and w.since < w.until
        union all
        select r.* from (values (p_since, v_parts), (v_until, p_until)) w (since, until)
         cross join lateral orchestrator.usage_of_workers(p_fleet, w.since, w.until, p_now, p_dimension) r
         where not v_is_work and w.since < w.until) s
     group by s.name;
end
$$;

-- Stores the next part that is over, and the day that it ends. Returns false if none is due. Of a dimension, the 1000
-- most expensive names of a part and of a day have a row, and the others have one together; of tasks the first 5, and
-- of a day 20 of those.
create or replace function orchestrator.roll_up(p_fleet text, p_now timestamptz) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_nestloop = on set jit = off as $$
#variable_conflict use_variable
declare
    c_lag constant interval := '10 minutes';  -- until then every transaction has committed
    c_day constant interval := '1 day';
    v_at timestamptz := orchestrator.usage_until(p_fleet);
    v_end timestamptz;
begin
    if v_at is null then
        v_at := orchestrator.part_of(least(
            (select min(a.ended_at) - interval '1 microsecond' from orchestrator.attempts a), p_now,
            (select min(c.from_at) from public.costs c where c.fleet = p_fleet)));
        insert into public.fleet_chores (fleet, name, done_at) values (p_fleet, 'usage', v_at);
    end if;
    v_end := v_at + interval '10 minutes';
    if v_end > p_now - c_lag then
        return false;
    end if;
    perform orchestrator.store_usage(p_fleet, 'part', v_at, array(
        select u from orchestrator.usage_of_tasks(p_fleet, v_at, v_end, '-infinity', p_now, null) u
        union all
        select u from orchestrator.usage_of_workers(p_fleet, v_at, v_end, p_now, null) u));
    if date_trunc('day', v_end, 'UTC') = v_end then
        perform orchestrator.store_usage(p_fleet, 'day', v_end - c_day, array(
            select row(p_fleet, u.dimension, 'day', v_end - c_day, u.name, sum(u.tasks), sum(u.attempts),
                       sum(u.completed), sum(u.failed), sum(u.given_up), sum(u.completed_s), sum(u.seconds),
                       sum(u.usd), sum(u.wasted_usd))::orchestrator.usage
              from orchestrator.usage u
             where u.fleet = p_fleet and u.span = 'part' and u.at >= v_end - c_day and u.at < v_end
             group by u.dimension, u.name));
    end if;
    update public.fleet_chores c set done_at = v_end where c.fleet = p_fleet and c.name = 'usage';
    return true;
end
$$;

create or replace function orchestrator.store_usage(
    p_fleet text, p_span text, p_at timestamptz, p_rows orchestrator.usage[]
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    c_names constant int := 1000;
    c_tasks constant int := case p_span when 'day' then 20 else 5 end;
begin
    insert into orchestrator.usage
    select p_fleet, r.dimension, p_span, p_at, r.name, sum(r.tasks), sum(r.attempts), sum(r.completed), sum(r.failed),
           sum(r.given_up), sum(r.completed_s), sum(r.seconds), sum(r.usd), sum(r.wasted_usd)
      from (select u.dimension, case when u.place > c_names then '(others)' else u.name end as name, u.tasks,
                   u.attempts, u.completed, u.failed, u.given_up, u.completed_s, u.seconds, u.usd, u.wasted_usd
              from (select e.*, row_number() over (partition by e.dimension order by e.usd desc, e.name) as place
                      from unnest(p_rows) e) u
             where u.dimension <> 'task' or u.place <= c_tasks) r
     group by r.dimension, r.name;
end
$$;
