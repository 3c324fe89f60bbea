-- post-deploy
-- One outbox: webhook_messages also has the messages about alerts; see functions/outbox.sql. The functions that use the
-- new columns have just been replaced; a call about alerts in between fails, and is repeated.

alter table public.webhook_messages
    add column if not exists fleet text not null default '',
    add column if not exists dedup_key text;
alter table public.webhook_messages
    alter column task_id drop not null,
    alter column url drop not null,
    drop constraint webhook_messages_event_check,
    add constraint webhook_messages_event_check check (
        case when event = 'alert'
             then fleet <> '' and dedup_key is not null and url is null and octet_length(body::text) <= 65536
             else event in ('task.completed', 'task.failed', 'task.cancelled', 'task.progress')
                  and fleet = '' and task_id is not null and url is not null end);
comment on table public.webhook_messages is 'The outbox: messages about tasks to webhooks, and about alerts to ALERT_WEBHOOK_URL';
comment on column public.webhook_messages.fleet is 'Whose leader sends this message about an alert; empty for a message about a task, which any leader sends';
comment on column public.webhook_messages.dedup_key is 'A message about an alert is written once for each key';
comment on column public.webhook_messages.url is 'NULL for a message about an alert: that URL is a secret and is not stored';
comment on column public.webhook_messages.host is 'Host and port of the URL, or the setting with the URL: a slow host delays no other';

insert into public.webhook_messages
       (id, fleet, event, dedup_key, host, body, created_at, give_up_at, attempts, next_at, sent_at, failure)
select o.id, o.fleet, 'alert', o.dedup_key, o.url_name, o.body, o.created_at,
       case when o.next_at is null then o.created_at else now() + interval '1 day' end,
       o.attempts, o.next_at, o.sent_at, o.failure
  from public.outbox o;
drop table public.outbox;

drop index public.webhook_messages_due;
drop index public.webhook_messages_late;
create index webhook_messages_due on public.webhook_messages (fleet, host, next_at) where next_at is not null;
create index webhook_messages_late on public.webhook_messages (fleet, give_up_at) where next_at is not null;
create unique index webhook_messages_alerts on public.webhook_messages (fleet, dedup_key) where event = 'alert';
create index webhook_messages_alerts_by_age on public.webhook_messages (fleet, created_at) where event = 'alert';
