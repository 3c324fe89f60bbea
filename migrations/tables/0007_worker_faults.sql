-- pre-deploy
-- no transaction
-- The machine faults of the last hour, which each tick reads.
create index concurrently if not exists workers_faults on public.workers (fleet, ending_since)
    where exit_cause in ('gpu_fault', 'host_fault');
