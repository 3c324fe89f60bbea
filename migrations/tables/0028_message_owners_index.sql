-- post-deploy
-- no transaction
-- The order of fleet_messages_take. It replaces webhook_messages_due.
create index concurrently if not exists webhook_messages_turns
    on public.webhook_messages (fleet, owner, host, next_at) where next_at is not null;
drop index if exists public.webhook_messages_due;
