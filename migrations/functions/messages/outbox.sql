-- The outbox (table webhook_messages): messages about tasks, which any leader sends, and about the alerts of a fleet,
-- which its leader sends. Each is written by the statement that it reports, and stays a row until its receiver has
-- taken it, so that none is lost if the leader crashes.

-- Messages about alerts of the fleet or about tasks that are due: p_per_host for a host at most, less those that p_busy
-- {host: n} counts, and p_per_owner for an owner, less those that p_owners {owner: n} counts. Each one is due again
-- after p_lease_s, in case this leader crashes. A call looks at 500 pairs of an owner and a host, in their order after
-- p_after '["owner", "host"]'; `after` says where the next call continues, and is null at the end. What has been tried
-- for a day is given up; a message about a task also if it could not be tried.
create or replace function public.fleet_messages_take(
    p_fleet text, p_term bigint, p_of_fleet boolean, p_busy jsonb, p_per_host int, p_limit int, p_lease_s numeric,
    p_after text, p_owners jsonb default '{}', p_per_owner int default null, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set enable_incremental_sort = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_pairs constant int := 500;
    v_fleet constant text := case when p_of_fleet then p_fleet else '' end;
    v_owner text := coalesce(p_after::jsonb->>0, '');
    v_host text := coalesce(p_after::jsonb->>1, '');
    v_busy jsonb := p_busy;
    v_owners jsonb := p_owners;
    v_room int;  -- of the owner; null: no bound
    v_some uuid[];
    v_ids uuid[] := '{}';
    v_messages jsonb;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_messages_take');
    update public.webhook_messages m
       set next_at = null, give_up_at = v_now, failure = coalesce(m.failure, 'it was not sent within a day')
     where m.id = any (array(select l.id from public.webhook_messages l
                              where l.next_at is not null and l.fleet = v_fleet and l.give_up_at <= v_now
                              order by l.fleet, l.give_up_at limit 1000 for update skip locked));
    for v_look in 1..c_pairs loop
        exit when cardinality(v_ids) >= p_limit;
        v_room := p_per_owner - coalesce((v_owners->>v_owner)::int, 0);
        if v_room <= 0 then
            select m.owner, m.host into v_owner, v_host from public.webhook_messages m
             where m.next_at is not null and m.fleet = v_fleet and m.owner > v_owner
             order by m.fleet, m.owner, m.host limit 1;
        else
            select m.owner, m.host into v_owner, v_host from public.webhook_messages m
             where m.next_at is not null and m.fleet = v_fleet and (m.owner, m.host) > (v_owner, v_host)
             order by m.fleet, m.owner, m.host limit 1;
        end if;
        exit when v_host is null;
        v_room := p_per_owner - coalesce((v_owners->>v_owner)::int, 0);
        v_some := array(
            select m.id from public.webhook_messages m
             where m.fleet = v_fleet and m.owner = v_owner and m.host = v_host and m.next_at <= v_now
             order by m.fleet, m.owner, m.host, m.next_at
             limit greatest(least(p_limit - cardinality(v_ids), p_per_host - coalesce((v_busy->>v_host)::int, 0),
                                  v_room), 0)
               for update skip locked);
        if cardinality(v_some) > 0 then
            v_ids := v_ids || v_some;
            v_busy := v_busy || jsonb_build_object(v_host, coalesce((v_busy->>v_host)::int, 0) + cardinality(v_some));
            v_owners := v_owners
                || jsonb_build_object(v_owner, coalesce((v_owners->>v_owner)::int, 0) + cardinality(v_some));
        end if;
    end loop;
    with taken as (
        update public.webhook_messages m
           set attempts = least(m.attempts, 1000000) + 1, next_at = v_now + p_lease_s * interval '1 second',
               give_up_at = least(m.give_up_at, v_now + interval '1 day')
         where m.id = any (v_ids)
        returning m.*
    )
    select coalesce(jsonb_agg(jsonb_build_object(
               'id', t.id, 'event', t.event, 'owner', t.owner, 'host', t.host, 'body', t.body, 'attempts', t.attempts,
               'url', case when t.webhook is null then t.url else (  -- the address of today; null: it was removed
                          select w.url from public.webhooks w where w.name = t.webhook) end)
                           order by t.owner, t.host), '[]')
      into v_messages from taken t;
    return jsonb_build_object('messages', v_messages,
        'after', case when v_host is not null then jsonb_build_array(v_owner, v_host)::text end);
end
$$;

-- Records how an attempt to send ended. If p_error is null, the message was sent. If p_retry_s is null, or the day is
-- over by then, there is no further attempt.
create or replace function public.fleet_message_close(
    p_fleet text, p_term bigint, p_id uuid, p_error text, p_retry_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_next timestamptz := v_now + p_retry_s * interval '1 second';
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_message_close');
    update public.webhook_messages m
       set failure = left(p_error, 500),
           sent_at = case when p_error is null then v_now end,
           next_at = case when p_error is not null and v_next < m.give_up_at then v_next end,
           give_up_at = case when p_error is null or v_next < m.give_up_at then m.give_up_at else v_now end
     where m.id = p_id and m.fleet in ('', p_fleet) and m.sent_at is null;
    return jsonb_build_object('closed', found);
end
$$;
