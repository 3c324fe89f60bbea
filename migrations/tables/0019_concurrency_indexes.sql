-- pre-deploy
-- no transaction
-- Tasks without a limit are in none of these. The tasks that wait for a key, for a type, and for their time:
create index concurrently if not exists tasks_gate_keys
    on public.tasks (concurrency_key, (~priority), queue_turn, created_at, id)
    where status = 'Queued' and queue_gate = 1 and run_after is null;
create index concurrently if not exists tasks_gate_types
    on public.tasks (task_type, (~priority), queue_turn, created_at, id)
    where status = 'Queued' and queue_gate = 2 and run_after is null;
create index concurrently if not exists tasks_gate_due on public.tasks (run_after)
    where status = 'Queued' and queue_gate in (1, 2) and run_after is not null;
-- The places of keys and of types:
create index concurrently if not exists tasks_key_places on public.tasks (concurrency_key) where queue_gate >= 2;
create index concurrently if not exists tasks_type_places on public.tasks (task_type) where queue_gate = 3;
