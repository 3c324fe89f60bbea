-- When a pod stopped costing money. A worker's last interval is closed when its row moves, and that may be long after its
-- pod went: somebody deleted it while nobody looked, or its absence took a while to prove.

alter table public.workers add column billing_until timestamptz;
comment on column public.workers.billing_until is 'When its pod was last known to be there: nothing later is booked';

create index costs_window on public.costs (fleet, to_at);

create function public.internal_worker_billing() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    v_proven timestamptz;
    v_deleted timestamptz;
begin
    if new.billing_since is null or new.status = old.status or new.status not in ('terminating', 'terminated') then
        return new;
    end if;
    select max(a.ended_at) filter (where a.outcome = 'ok' and a.stage <> 'deleting'),
           max(a.ended_at) filter (where a.outcome = 'ok' and a.stage = 'deleting' and a.evidence->'known' = 'true')
      into v_proven, v_deleted
      from public.worker_attempts a where a.worker_id = new.id;
    if new.failure_code = 'POD_MISSING' and new.billing_until is null then
        -- It vanished: it was there at its last heartbeat, at the last stage that was proven, at its last claim.
        new.billing_until := greatest(new.billing_since, new.last_heartbeat, v_proven,
                                      case when old.status in ('active', 'idle') then old.state_since end);
    end if;
    if new.status = 'terminated' then  -- now that absence is proven, the last delete is known to have worked
        new.billing_until := least(new.billing_until, v_deleted);
    end if;
    return new;
end
$$;
create trigger workers_billing before update of status on public.workers
    for each row execute function public.internal_worker_billing();

-- What is booked ends there, whoever books it.
create function public.internal_cost_booking() returns trigger
language plpgsql security definer set search_path = '' as $$
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
create trigger costs_booking before insert on public.costs
    for each row execute function public.internal_cost_booking();

-- The interval that is still open, of a live worker that is billed: no row while there is none.
create function public.internal_open_interval(p_worker public.workers, p_now timestamptz)
returns table (kind text, from_at timestamptz, to_at timestamptz, usd numeric)
language sql stable security definer set search_path = '' as $$
    select case p_worker.status when 'spawning' then 'booting' when 'active' then 'busy' when 'idle' then 'idle'
                                else 'draining' end,
           i.from_at, i.to_at,
           coalesce(p_worker.price_usd_per_hour, 0) * extract(epoch from i.to_at - i.from_at) / 3600
      from (select greatest(p_worker.state_since, p_worker.billing_since) as from_at,
                   least(p_now, p_worker.billing_until) as to_at) i
     where p_worker.status <> 'terminated' and p_worker.billing_since is not null and i.to_at > i.from_at
$$;

create or replace function public.internal_worker_costs(p_worker public.workers, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = '' as $$
    with spent (kind, usd) as (
        select c.kind, c.usd from public.costs c where c.worker_id = p_worker.id
        union all
        select o.kind, o.usd from public.internal_open_interval(p_worker, p_now) o
    ), by_kind as (select kind, sum(usd) as usd from spent group by kind)
    select jsonb_build_object(
        'cost_usd', coalesce((select round(sum(k.usd), 6) from by_kind k), 0),
        'cost_by_kind', coalesce((select jsonb_object_agg(k.kind, round(k.usd, 6)) from by_kind k), '{}'))
$$;
