-- What a replay of the queue needs, and the reviews of the rules of scaling.

-- A page of the runs that ended in a window (its begin excluded), the newest first: {now, runs: [[pool, arrived,
-- started, ended, worker]], next}, in seconds since 1970. `next` is the p_until of the next page; null: there is none.
-- A page has p_limit runs at most, 20,000 in any case, so that no statement takes long. Runs that a worker returned
-- before it began them are left out. If a page ends among runs that ended together, the next one begins with them.
create or replace function public.fleet_task_history(
    p_fleet text, p_pool text, p_since timestamptz, p_until timestamptz, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_until timestamptz := least(coalesce(p_until, v_now), v_now);
    c_most constant int := 20000;
    v_limit int := least(greatest(p_limit, 1), c_most);
    v_answer jsonb;
begin
    perform public.internal_check_window(p_since, v_until);
    with page as materialized (
        select * from orchestrator.task_runs(p_fleet, p_pool, p_since, v_until, v_limit)
    ), bounds as (
        select count(*) = v_limit as is_full, min(p.ended_at) as oldest, max(p.ended_at) as newest from page p
    )
    select jsonb_build_object(
               'now', v_now,
               'runs', coalesce((
                   select jsonb_agg(jsonb_build_array(
                              p.pool, round(extract(epoch from p.arrived_at), 3),
                              round(extract(epoch from p.started_at), 3), round(extract(epoch from p.ended_at), 3),
                              p.worker_id) order by p.ended_at desc)
                     from page p
                    where p.outcome <> 'released'
                      and (not b.is_full or p.ended_at > b.oldest or b.oldest = b.newest)), '[]'),
               'next', case when b.is_full and b.oldest = b.newest then b.oldest - interval '1 microsecond'
                            when b.is_full then b.oldest end)
      into v_answer from bounds b;
    return v_answer;
end
$$;

-- What the workers of each pool cost between two moments: {now, since, until, first_at, pools: {pool: {usd, paid_s,
-- boots, boot_s, unpaid_s, ending_s}}}. The answer says where the window begins (see orchestrator.usage_since), and
-- from when on it had a worker. `boots`: workers that were started in it and got a machine. Of these, the medians from
-- the request to the promotion (boot_s), of the time in it before the billing (unpaid_s), and from the decision to end
-- a worker to the end of the billing (ending_s); null: there are none.
create or replace function public.fleet_pool_costs(
    p_fleet text, p_since timestamptz, p_until timestamptz, p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off
set plan_cache_mode = force_custom_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_until timestamptz := least(coalesce(p_until, v_now), v_now);
    v_since timestamptz := orchestrator.usage_since(p_since, v_now);
    c_workers constant int := 50000;  -- the newest ones
    c_before constant int := 1000;  -- the newest ones before the window, one of which may have lived in it
begin
    perform public.internal_check_window(p_since, v_until);
    return (
        with started as (
            select w.pool, w.created_at, extract(epoch from w.promoted_at - w.created_at) as boot_s,
                   extract(epoch from least(w.billing_since, w.promoted_at) - w.created_at) as unpaid_s,
                   extract(epoch from w.billing_until - w.ending_since) as ending_s
              from (select k.* from public.workers k
                     where k.fleet = p_fleet and k.created_at > v_since and k.created_at <= v_until
                     order by k.created_at desc limit c_workers) w
             where w.billing_since is not null
        ), earlier as (
            select 1 from (select k.* from public.workers k where k.fleet = p_fleet and k.created_at <= v_since
                            order by k.created_at desc limit c_before) w
             where (w.terminated_at <= v_since) is not true limit 1
        ), boots as (
            select s.pool, count(*) as boots, min(s.created_at) as first_at,
                   percentile_cont(0.5) within group (order by s.boot_s) filter (where s.boot_s > 0) as boot_s,
                   percentile_cont(0.5) within group (order by s.unpaid_s) filter (where s.unpaid_s >= 0) as unpaid_s,
                   percentile_cont(0.5) within group (order by s.ending_s) filter (where s.ending_s >= 0) as ending_s
              from started s group by s.pool
        ), paid as (
            select u.name as pool, u.usd, u.seconds
              from orchestrator.usage_between(p_fleet, v_since, v_until, v_now, 'pool') u
        )
        select jsonb_build_object('now', v_now, 'since', v_since, 'until', v_until,
                   'first_at', case when exists (select from earlier) then v_since else min(b.first_at) end,
                   'pools', coalesce(
                   jsonb_object_agg(pool, jsonb_build_object(
                       'usd', coalesce(round(p.usd, 6), 0), 'paid_s', coalesce(round(p.seconds, 3), 0),
                       'boots', coalesce(b.boots, 0), 'boot_s', b.boot_s, 'unpaid_s', b.unpaid_s,
                       'ending_s', b.ending_s)), '{}'))
          from boots b full join paid p using (pool));
end
$$;

-- Keeps the leader's review of the rules of scaling in one pool; it takes the place of the one before. Reviews of
-- pools that are no longer reviewed are removed after 30 days.
create or replace function public.fleet_record_review(
    p_fleet text, p_term bigint, p_pool text, p_review jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off set lock_timeout = '900ms' as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_bytes constant int := 20000;
    c_kept constant interval := '30 days';
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_record_review');
    perform public.internal_check_id(p_pool, 'p_pool');
    if (jsonb_typeof(p_review) = 'object' and octet_length(p_review::text) <= c_bytes) is not true then
        perform public.internal_refuse('OR007', format('a review is an object of at most %s bytes', c_bytes),
                                       format('got %s', coalesce(left(p_review::text, 100), 'null')));
    end if;
    delete from orchestrator.scaling_reviews r where r.fleet = p_fleet and r.at < v_now - c_kept;
    insert into orchestrator.scaling_reviews (fleet, pool, at, review) values (p_fleet, p_pool, v_now, p_review)
    on conflict on constraint scaling_reviews_pkey do update set at = excluded.at, review = excluded.review;
    return jsonb_build_object('at', v_now);
end
$$;

-- The reviews of the last eight days, the pools by name, and when the first known attempt ended: {now, first_at,
-- reviews: [{pool, at, review}]}.
create or replace function public.fleet_scaling_reviews(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_shown constant interval := '8 days';
    c_ahead constant interval := '1 minute';  -- so far may a clock have gone back
    c_longest constant interval := '10 years';  -- a row may have any time
begin
    return jsonb_build_object(
        'now', v_now,
        'first_at', (select least(greatest(a.ended_at, v_now - c_longest), v_now) from orchestrator.attempts a
                      order by a.ended_at limit 1),
        'reviews', coalesce((
            select jsonb_agg(jsonb_build_object('pool', r.pool, 'at', r.at, 'review', r.review) order by r.pool)
              from orchestrator.scaling_reviews r
             where r.fleet = p_fleet and r.at > v_now - c_shown and r.at <= v_now + c_ahead), '[]'));
end
$$;
