-- Webhooks: signed messages about the end of tasks, and about their progress. A message is written by the statement
-- that ends the task, in any program. The leader sends it afterwards (outbox.sql).

-- Writes messages about the progress of running tasks: one in p_every_s for a task and an address. Unsent ones of tasks
-- that have ended are deleted.
create or replace function public.fleet_webhooks_progress(
    p_fleet text, p_term bigint, p_every_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set enable_incremental_sort = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_deleted constant int := 10000;
    v_written int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_webhooks_progress');
    delete from public.webhook_messages m where m.id = any (array(
        select l.id from public.webhook_messages l
         where l.next_at is not null and l.event = 'task.progress'
           and not exists (select from orchestrator.live q where q.task_id = l.task_id and q.state = 'running')
         order by l.task_id, l.created_at limit c_deleted));
    insert into public.webhook_messages (event, task_id, webhook, url, owner, host, body, created_at, give_up_at,
                                         next_at)
    select 'task.progress', t.id, u.webhook, u.url, public.internal_message_owner(u.webhook, t.tenant),
           public.internal_webhook_host(u.url),
           public.internal_webhook_body(orchestrator.current_task(t.id), 'task.progress', v_now), v_now,
           v_now + interval '1 minute', v_now
      from orchestrator.live r
     cross join lateral (select * from public.tasks k where k.id = r.task_id offset 0) t  -- by its key, each
     cross join lateral (select null::text as webhook, t.webhook_url as url where t.webhook_progress
                          union all
                         select w.name, w.url from public.webhooks w
                          where w.progress and (w.task_type is null or w.task_type = t.task_type)) u
      left join lateral (
           select m.created_at, m.next_at, m.body  -- `offset 0`: not by the index of times, which has all messages
             from (select n.* from public.webhook_messages n where n.task_id = t.id offset 0) m
            where m.event = 'task.progress' and m.webhook is not distinct from u.webhook
            order by m.created_at desc limit 1) last on true
     where r.state = 'running' and r.worker_id is not null and t.progress is not null
       and octet_length(t.progress::text) <= 16384 and public.internal_webhook_host(u.url) is not null
       and (last.created_at is null
            or last.next_at is null and last.created_at <= v_now - p_every_s * interval '1 second'
               and last.body->'data'->'progress' is distinct from t.progress)
     limit 1000;
    get diagnostics v_written = row_count;
    return jsonb_build_object('written', v_written);
end
$$;

-- Adds or replaces an address: {name, task_type, url, progress}.
create or replace function public.fleet_webhook_put(
    p_fleet text, p_actor text, p_webhook jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_webhooks constant int := 100;  -- of a database: each of them costs every end of a task
    v_created boolean;
begin
    perform public.internal_check_keys(p_webhook, array['name', 'task_type', 'url', 'progress'], 'a webhook');
    if public.internal_webhook_host(p_webhook->>'url') is null then
        perform public.internal_refuse('OR007', 'url is not valid', '', public.internal_webhook_rule());
    elsif (select count(*) from public.webhooks w where w.name <> p_webhook->>'name') >= c_webhooks then
        perform public.internal_refuse('OR007', 'there are too many webhooks', format('the limit is %s', c_webhooks),
            'remove some, or give tasks a webhook_url of their own');
    end if;
    insert into public.webhooks as w (name, task_type, url, progress, created_at)
    values (p_webhook->>'name', p_webhook->>'task_type', p_webhook->>'url',
            coalesce((p_webhook->>'progress')::boolean, false), v_now)
    on conflict (name) do update
       set task_type = excluded.task_type, url = excluded.url, progress = excluded.progress
    returning w.xmax = 0 into v_created;
    perform public.internal_audit(p_fleet, p_actor, 'webhook.put', p_webhook->>'name', jsonb_build_object(
        'task_type', p_webhook->>'task_type', 'host', public.internal_webhook_host(p_webhook->>'url')), v_now);
    return jsonb_build_object('created', v_created);
end
$$;

-- Removes an address with its unsent messages.
create or replace function public.fleet_webhook_remove(
    p_fleet text, p_actor text, p_name text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_found boolean;
begin
    delete from public.webhooks w where w.name = p_name;
    v_found := found;
    if v_found then
        delete from public.webhook_messages m where m.webhook = p_name and m.sent_at is null;
        perform public.internal_audit(p_fleet, p_actor, 'webhook.remove', p_name, null, public.internal_clock(p_now));
    end if;
    return jsonb_build_object('found', v_found);
end
$$;

-- Makes unsent messages due now, for another day: this one, or all that were given up (p_id null; 10,000 at once).
create or replace function public.fleet_webhook_retry(
    p_fleet text, p_actor text, p_id uuid, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_count int;
begin
    update public.webhook_messages m set next_at = v_now, give_up_at = v_now + interval '1 day'
     where m.sent_at is null
       and m.id = any (array(select l.id from public.webhook_messages l
                              where l.event <> 'alert' and l.sent_at is null and case
                                  when p_id is null then l.next_at is null else l.id = p_id end
                              limit 10000));
    get diagnostics v_count = row_count;
    if v_count > 0 then
        perform public.internal_audit(p_fleet, p_actor, 'webhook.retry', coalesce(p_id::text, '*'),
            jsonb_build_object('messages', v_count), v_now);
    end if;
    return jsonb_build_object('due', v_count);
end
$$;

-- The trouble of webhooks that health shows: messages that were given up within a day, and those that were not tried
-- for five minutes. It counts 10,000 of them at most.
create or replace function public.internal_webhook_troubles(p_now timestamptz) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
    select jsonb_build_object('undeliverable', l.n, 'host', l.host, 'failure', l.failure, 'late', w.n)
      from (select count(*) as n, (array_agg(m.host order by m.give_up_at desc))[1] as host,
                   (array_agg(m.failure order by m.give_up_at desc))[1] as failure
              from (select * from public.webhook_messages g
                     where g.next_at is null and g.sent_at is null and g.event not in ('task.progress', 'alert')
                       and g.give_up_at > internal_webhook_troubles.p_now - interval '1 day' limit 10000) m) l,
           (select count(*) as n from (
                select from public.webhook_messages g
                 where g.next_at is not null and g.event not in ('task.progress', 'alert')
                   and g.next_at < internal_webhook_troubles.p_now - interval '5 minutes' limit 10000) m) w
$$;

-- The addresses, and the newest messages in one of the states `waiting`, `undeliverable` and `sent`, or of one task.
create or replace function public.fleet_webhooks(
    p_fleet text, p_state text, p_task_id uuid, p_limit int, p_now timestamptz default null
) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object(
        'now', public.internal_clock(fleet_webhooks.p_now),
        'webhooks', coalesce((select jsonb_agg(to_jsonb(w) order by w.name) from public.webhooks w), '[]'),
        'troubles', public.internal_webhook_troubles(public.internal_clock(fleet_webhooks.p_now)),
        'messages', coalesce((
            select jsonb_agg(to_jsonb(m) - array['body', 'url', 'state', 'fleet', 'dedup_key']
                || jsonb_build_object('state', m.state)
                             order by m.created_at desc, m.id)
              from (select n.*, s.state from public.webhook_messages n
                     cross join lateral (select case when n.sent_at is not null then 'sent'
                                                     when n.next_at is null then 'undeliverable'
                                                     else 'waiting' end as state) s
                     where n.event <> 'alert'
                       and (fleet_webhooks.p_task_id is null or n.task_id = fleet_webhooks.p_task_id)
                       and (fleet_webhooks.p_state is null or s.state = fleet_webhooks.p_state)
                     order by n.created_at desc, n.id limit least(greatest(coalesce(fleet_webhooks.p_limit, 100), 0),
                         1000)) m), '[]'))
$$;
