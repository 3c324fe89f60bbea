-- pre-deploy
-- Whose message it is: each owner has a fair share of what is sent at once (functions/outbox.sql).
alter table public.webhook_messages add column if not exists owner text not null default '';
comment on column public.webhook_messages.owner is 'Who has a share of what is sent at once: a row of webhooks, or the tenant of the task';
