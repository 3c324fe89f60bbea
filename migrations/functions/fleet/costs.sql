-- What workers cost: booked intervals, budgets, and the share of each attempt.

create or replace function public.internal_check_window(p_since timestamptz, p_until timestamptz) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if p_since is null or p_since >= p_until then
        perform public.internal_refuse('OR007', 'p_since must be before p_until',
            format('got %s and %s', p_since, p_until));
    end if;
end
$$;

-- What was booked for each worker between two moments, with the open intervals of the live ones: only the part within
-- the window.
create or replace function public.internal_booked(
    p_fleet text, p_since timestamptz, p_until timestamptz, p_now timestamptz
) returns table (worker_id text, kind text, seconds numeric, usd numeric)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_variable
begin
    return query
    with booked as (
        select c.worker_id, c.kind, c.from_at, c.to_at, c.usd
          from public.costs c where c.fleet = p_fleet and c.to_at > p_since and c.from_at < p_until
        union all
        select w.id, o.kind, o.from_at, o.to_at, o.usd
          from public.workers w cross join lateral public.internal_open_interval(w.*, p_now) o
         where w.fleet = p_fleet and w.status <> 'terminated' and o.to_at > p_since and o.from_at < p_until
    ), spent as (
        select b.worker_id, b.kind,
               extract(epoch from least(b.to_at, p_until) - greatest(b.from_at, p_since)) as seconds,
               b.usd * extract(epoch from least(b.to_at, p_until) - greatest(b.from_at, p_since))
                     / extract(epoch from b.to_at - b.from_at) as usd
          from booked b where b.to_at > b.from_at
    )
    select s.worker_id, s.kind, sum(s.seconds), sum(s.usd) from spent s group by s.worker_id, s.kind;
end
$$;

-- Attempts that ended after p_since and not after p_until, with the open ones unless p_until is past, or those of the
-- claims of one task, each with its time span and the number of attempts (`of`) that share it. Tasks of one claim run
-- one after the other: the time of each begins when the previous one ended. An open attempt lasts until p_now. Planned
-- at each call, because the best plan depends on p_since.
create or replace function public.internal_attempt_times(
    p_since timestamptz, p_until timestamptz, p_now timestamptz, p_task_id uuid default null
)
returns table (worker_id text, task_id uuid, attempt int, outcome text, from_at timestamptz, to_at timestamptz,
               of bigint)
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_variable
begin
    return query
    with open as (
        select q.worker_id, q.nonce, q.claim_no, q.task_id, q.attempt, null::text as outcome,
               q.claimed_at as started_at, null::timestamptz as ended_at
          from orchestrator.live q where q.state = 'running' and q.nonce is not null
    ), reaching as (
        select a.worker_id, a.nonce, a.claim_no, a.task_id, a.attempt, a.outcome, a.started_at, a.ended_at
          from orchestrator.attempts a where p_task_id is null and a.ended_at > p_since and a.ended_at <= p_until
        union all
        select o.* from open o where p_task_id is null and p_until >= p_now
        union all
        select a.* from (select distinct b.worker_id, b.nonce, b.claim_no
                           from public.task_attempts b where b.task_id = p_task_id) c
         cross join lateral (
               select a.worker_id, a.nonce, a.claim_no, a.task_id, a.attempt, a.outcome, a.started_at, a.ended_at
                 from orchestrator.attempts a
                where a.worker_id = c.worker_id and a.nonce = c.nonce and a.claim_no = c.claim_no
               union all
               select o.* from open o
                where o.worker_id = c.worker_id and o.nonce = c.nonce and o.claim_no = c.claim_no) a
    )
    select e.worker_id, e.task_id, e.attempt, e.outcome,
           greatest(e.started_at,
                    case when e.started_at <= p_since then (  -- the end of the previous attempt of the same claim
                        select max(b.ended_at) from orchestrator.attempts b
                         where b.worker_id = e.worker_id and b.nonce = e.nonce and b.claim_no = e.claim_no
                           and b.ended_at <= p_since) end,
                    max(e.to_at) over (partition by e.worker_id, e.nonce, e.claim_no order by e.to_at
                                       range between unbounded preceding and current row exclude group)),
           e.to_at, count(*) over (partition by e.worker_id, e.nonce, e.claim_no, e.to_at)
      from (select r.*, coalesce(r.ended_at, p_now) as to_at from reaching r) e;
end
$$;

-- The cost of each attempt of the claims of a task: its share of its claim, until the billing of its worker ended.
create or replace function public.internal_shares(p_task_id uuid, p_now timestamptz)
returns table (fleet text, task_id uuid, attempt int, outcome text, seconds numeric, usd numeric)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select w.fleet, a.task_id, a.attempt, a.outcome, x.seconds,
           coalesce(w.price_usd_per_hour, w.reserved_usd_per_hour, 0) * x.seconds / 3600
      from public.internal_attempt_times('-infinity', internal_shares.p_now, internal_shares.p_now,
                                         internal_shares.p_task_id) a
      join public.workers w on w.id = a.worker_id
      cross join lateral (
          select extract(epoch from least(a.to_at, w.billing_until) - a.from_at) / a.of) x (seconds)
     where w.billing_since is not null and x.seconds > 0
$$;

create or replace function public.internal_worker_costs(p_worker public.workers, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with spent (kind, usd) as (
        select c.kind, c.usd from public.costs c where c.worker_id = internal_worker_costs.p_worker.id
        union all
        select o.kind, o.usd
          from public.internal_open_interval(internal_worker_costs.p_worker, internal_worker_costs.p_now) o
    ), by_kind as (select kind, sum(usd) as usd from spent group by kind)
    select jsonb_build_object(
        'cost_usd', coalesce((select round(sum(k.usd), 6) from by_kind k), 0),
        'cost_by_kind', coalesce((select jsonb_object_agg(k.kind, round(k.usd, 6)) from by_kind k), '{}'))
$$;

-- The open interval of a live worker that is billed; no row if there is none.
create or replace function public.internal_open_interval(p_worker public.workers, p_now timestamptz)
returns table (kind text, from_at timestamptz, to_at timestamptz, usd numeric)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select case internal_open_interval.p_worker.status when 'spawning' then 'booting' when 'active' then 'busy'
           when 'idle' then 'idle'
                                else 'draining' end,
           i.from_at, i.to_at,
           coalesce(internal_open_interval.p_worker.price_usd_per_hour,
                    internal_open_interval.p_worker.reserved_usd_per_hour, 0)
               * extract(epoch from i.to_at - i.from_at) / 3600
      from (select greatest(internal_open_interval.p_worker.state_since,
          internal_open_interval.p_worker.billing_since) as from_at,
                   least(internal_open_interval.p_now, internal_open_interval.p_worker.billing_until) as to_at) i
     where internal_open_interval.p_worker.status <> 'terminated'
       and internal_open_interval.p_worker.billing_since is not null and i.to_at > i.from_at
$$;

-- Ends the billing of a worker at the time when its pod was last known to exist, which may be long before its row
-- changes.
create or replace function public.internal_worker_billing() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_seen_at timestamptz;
    v_deleted timestamptz;
begin
    if new.billing_since is null or new.status = old.status or new.status not in ('terminating', 'terminated') then
        return new;
    end if;
    select max(a.ended_at) filter (where a.outcome = 'ok' and a.stage <> 'deleting'),
           max(a.ended_at) filter (where a.outcome = 'ok' and a.stage = 'deleting' and a.evidence->'known' = 'true')
      into v_seen_at, v_deleted
      from public.worker_attempts a where a.worker_id = new.id;
    if new.failure_code = 'POD_MISSING' and new.billing_until is null then
        -- The pod existed at its last heartbeat, last completed stage, last claim, and in the last list.
        new.billing_until := greatest(new.billing_since, new.last_heartbeat, v_seen_at,
                                      case when old.status in ('active', 'idle') then old.state_since end,
                                      (new.metadata->>'listed_at')::timestamptz);
    end if;
    if new.status = 'terminated' then  -- absence is confirmed, so the last delete is known to have worked
        new.billing_until := least(new.billing_until, v_deleted);
    end if;
    return new;
end
$$;

-- Booked intervals end with the billing of the worker.
create or replace function public.internal_cost_booking() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_until timestamptz;
begin
    select w.billing_until into v_until from public.workers w where w.id = new.worker_id;
    if new.from_at >= v_until then
        return null;
    elsif new.to_at > v_until then
        new.usd := new.usd * extract(epoch from v_until - new.from_at) / extract(epoch from new.to_at - new.from_at);
        new.to_at := v_until;
    end if;
    return new;
end
$$;

-- Today's dollars (UTC), the highest further cost of the live workers, and their cost per hour. p_without: a worker to
-- leave out of the latter two.
create or replace function public.internal_spent(p_fleet text, p_without text, p_now timestamptz)
returns table (today_usd numeric, committed_usd numeric, hourly_usd numeric)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with day (began) as (
        select date_trunc('day', internal_spent.p_now, 'UTC')
    ), live as (
        select w.id, w.status, w.state_since, w.billing_since,
               coalesce(w.price_usd_per_hour, w.reserved_usd_per_hour) as rate,
               -- A list may show the price, which the reply to the create call did not have; it may exceed the price of
               -- the offer.
               w.reserved_usd * greatest(1, w.price_usd_per_hour / nullif(w.reserved_usd_per_hour, 0)) as reserve
          from public.workers w where w.fleet = internal_spent.p_fleet and w.status <> 'terminated'
    )
    select (select coalesce(sum(case when c.from_at >= d.began then c.usd
                                     else c.usd * extract(epoch from c.to_at - d.began)
                                          / nullif(extract(epoch from c.to_at - c.from_at), 0) end), 0)
              from public.costs c where c.fleet = internal_spent.p_fleet and c.to_at > d.began)
           + coalesce(sum(l.rate * extract(epoch from internal_spent.p_now
                                           - greatest(l.state_since, l.billing_since, d.began)) / 3600)
                      filter (where l.billing_since is not null), 0),
           coalesce(sum(greatest(0, l.reserve - case when l.status <> 'terminating' then 0
                            else l.rate * extract(epoch from internal_spent.p_now - l.state_since) / 3600 end))
                    filter (where l.id is distinct from internal_spent.p_without), 0),
           coalesce(sum(l.rate) filter (where l.id is distinct from internal_spent.p_without), 0)
      from day d left join live l on true group by d.began
$$;

-- Refuses (OR003) a reservation that does not fit the budget. Only one runs at a time in a fleet, so that the second
-- one counts the first one. p_budget: {hourly_usd, daily_usd, useful_usd}; useful_usd is what the worker should be able
-- to cost before it is ended.
create or replace function public.internal_check_budget(
    p_fleet text, p_worker_id text, p_usd numeric, p_usd_per_hour numeric, p_budget jsonb, p_now timestamptz
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_hourly numeric := (p_budget->>'hourly_usd')::numeric;
    v_daily numeric := (p_budget->>'daily_usd')::numeric;
    v_wanted numeric := p_usd + coalesce((p_budget->>'useful_usd')::numeric, 0);
    v_spent record;
begin
    if v_hourly is null and v_daily is null then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('orchestrator budget of ' || p_fleet, 0));
    select * into v_spent from public.internal_spent(p_fleet, p_worker_id, p_now);
    if v_spent.hourly_usd + p_usd_per_hour > v_hourly then
        perform public.internal_refuse('OR003', format('%s is over the hourly budget', p_worker_id),
            format('$%s/h running + $%s/h > MAX_HOURLY_COST_USD=%s', round(v_spent.hourly_usd, 4),
                   round(p_usd_per_hour, 4), v_hourly), 'raise MAX_HOURLY_COST_USD, or let a worker end');
    elsif v_spent.today_usd + v_spent.committed_usd + v_wanted > v_daily then
        perform public.internal_refuse('OR003', format('%s is over the budget of the day', p_worker_id),
            format('$%s spent + $%s committed + $%s > DAILY_BUDGET_USD=%s', round(v_spent.today_usd, 4),
                   round(v_spent.committed_usd, 4), round(v_wanted, 4), v_daily),
            'raise DAILY_BUDGET_USD, or wait for midnight UTC');
    end if;
end
$$;
