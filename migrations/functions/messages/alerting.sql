-- Alerts. In one transaction, the leader stores their state and the messages that follow; see outbox.sql. The URL of
-- the messages is a secret: a row has the name of its setting.

-- The alerts of a fleet, and how many messages about them were written within the last hour.
create or replace function public.fleet_alerts(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return jsonb_build_object(
        'now', v_now,
        'alerts', coalesce((
            select jsonb_agg(a.state || jsonb_build_object('kind', a.kind, 'subject', a.subject)
                             order by a.kind, a.subject)
              from public.alerts a where a.fleet = p_fleet), '[]'),
        'sent_1h', (select count(*) from public.webhook_messages m
                     where m.fleet = p_fleet and m.event = 'alert' and m.created_at > v_now - interval '1 hour'),
        'unsent', (select count(*) from public.webhook_messages m
                    where m.fleet = p_fleet and m.event = 'alert' and m.next_at is not null),
        'last_failure', (select jsonb_build_object('at', m.created_at, 'failure', m.failure)
                           from public.webhook_messages m
                          where m.fleet = p_fleet and m.event = 'alert' and m.failure is not null
                            and m.created_at > v_now - interval '1 day' order by m.created_at desc limit 1));
end
$$;

-- Replaces the alerts of a fleet, and writes messages: [{dedup_key, url_name, body}]. A key is written only once. A
-- message is never given up untried: its day begins when it is first taken.
create or replace function public.fleet_note_alerts(
    p_fleet text, p_term bigint, p_alerts jsonb, p_messages jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
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
    insert into public.webhook_messages (fleet, event, dedup_key, host, body, created_at, give_up_at, next_at)
    select p_fleet, 'alert', m->>'dedup_key', m->>'url_name', m->'body', v_now, v_now + interval '30 days', v_now
      from jsonb_array_elements(p_messages) m
    on conflict (fleet, dedup_key) where event = 'alert' do nothing;
    get diagnostics v_written = row_count;
    return jsonb_build_object('written', v_written);
end
$$;
