-- A pod that vanished was there when a list last showed it, which may be later than its last heartbeat.

create or replace function public.internal_worker_billing() returns trigger
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
        -- It was there at its last heartbeat, at the last stage that was proven, at its last claim, in the last list.
        new.billing_until := greatest(new.billing_since, new.last_heartbeat, v_proven,
                                      case when old.status in ('active', 'idle') then old.state_since end,
                                      (new.metadata->>'listed_at')::timestamptz);
    end if;
    if new.status = 'terminated' then  -- now that absence is proven, the last delete is known to have worked
        new.billing_until := least(new.billing_until, v_deleted);
    end if;
    return new;
end
$$;
