-- Alerts, and the outbox: messages to external addresses. In one transaction, the leader stores the state of the alerts
-- and the messages that follow. It sends them afterwards. If the leader dies in between, the next leader sends them.

-- The alerts of a fleet, and how many messages about them were written within the last hour.
create or replace function public.fleet_alerts(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql stable security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return jsonb_build_object(
        'now', v_now,
        'alerts', coalesce((
            select jsonb_agg(a.state || jsonb_build_object('kind', a.kind, 'subject', a.subject) order by a.kind, a.subject)
              from public.alerts a where a.fleet = p_fleet), '[]'),
        'sent_1h', (select count(*) from public.outbox o
                     where o.fleet = p_fleet and o.kind = 'alert' and o.created_at > v_now - interval '1 hour'),
        'unsent', (select count(*) from public.outbox o where o.fleet = p_fleet and o.next_at is not null),
        'last_failure', (select jsonb_build_object('at', o.created_at, 'failure', o.failure) from public.outbox o
                          where o.fleet = p_fleet and o.kind = 'alert' and o.failure is not null
                            and o.created_at > v_now - interval '1 day' order by o.created_at desc limit 1));
end
$$;

-- Replaces the alerts of a fleet, and writes messages: [{dedup_key, url_name, body}]. A key is written only once.
create or replace function public.fleet_note_alerts(
    p_fleet text, p_term bigint, p_alerts jsonb, p_messages jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_written int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_note_alerts');
    delete from public.alerts a
     where a.fleet = p_fleet
       and not exists (select from jsonb_array_elements(p_alerts) n
                        where n->>'kind' = a.kind and n->>'subject' = a.subject);
    insert into public.alerts as a (fleet, kind, subject, state)
    select p_fleet, n->>'kind', n->>'subject', n - 'kind' - 'subject' from jsonb_array_elements(p_alerts) n
    on conflict (fleet, kind, subject) do update set state = excluded.state;
    insert into public.outbox (fleet, kind, dedup_key, url_name, body, created_at, next_at)
    select p_fleet, 'alert', m->>'dedup_key', m->>'url_name', m->'body', v_now, v_now from jsonb_array_elements(p_messages) m
    on conflict (fleet, kind, dedup_key) do nothing;
    get diagnostics v_written = row_count;
    return jsonb_build_object('written', v_written);
end
$$;

-- Messages that are due, the oldest first. Each one is due again after p_lease_s, in case this leader dies before it
-- closes the message.
create or replace function public.fleet_outbox_take(
    p_fleet text, p_term bigint, p_url_name text, p_limit int, p_lease_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_messages jsonb;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_outbox_take');
    with due as (
        select o.id from public.outbox o
         where o.fleet = p_fleet and o.next_at <= v_now and o.url_name = p_url_name
         order by o.next_at limit least(p_limit, 100) for update skip locked
    ), taken as (
        update public.outbox o set attempts = least(o.attempts, 1000000) + 1, next_at = v_now + p_lease_s * interval '1 second'
          from due where o.id = due.id
        returning o.id, o.kind, o.url_name, o.body, o.attempts, o.created_at
    )
    select coalesce(jsonb_agg(to_jsonb(t.*) order by t.created_at, t.id), '[]') into v_messages from taken t;
    return jsonb_build_object('now', v_now, 'messages', v_messages);
end
$$;

-- Records how an attempt to send ended. If p_failure is null, the message was sent. If p_retry_s is null, there is no
-- further attempt.
create or replace function public.fleet_outbox_close(
    p_fleet text, p_term bigint, p_id uuid, p_error text, p_retry_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_outbox_close');
    update public.outbox o
       set failure = left(p_error, 500),
           sent_at = case when p_error is null then v_now end,
           next_at = case when p_error is not null then v_now + p_retry_s * interval '1 second' end
     where o.id = p_id and o.fleet = p_fleet and o.sent_at is null;
    return jsonb_build_object('closed', found);
end
$$;
