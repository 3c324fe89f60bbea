-- pre-deploy
-- no transaction
-- The order of claims with the turns of tenants; it replaces tasks_claim, which the next file drops.
create index concurrently if not exists tasks_claim_order
    on public.tasks (pool, (~priority), queue_turn, created_at, id) include (run_after)
    where status = 'Queued' and not blocked;
create index concurrently if not exists tasks_turns
    on public.tasks (pool, (~priority), coalesce(tenant, ''), queue_turn)
    where status = 'Queued' and not blocked and run_after is null and queue_turn < 9007199254740991;
