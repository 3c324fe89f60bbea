-- post-deploy
-- no transaction
-- Indexes of tables that may have rows, for reads that must not grow with them; they are built while others write.
-- A window of ended attempts is read by their ends: exactly its rows, whenever the table was last vacuumed.
create index concurrently if not exists attempts_by_end on orchestrator.attempts (ended_at);
drop index concurrently if exists orchestrator.attempts_ended;
-- Of failures apart, which are few. A completion writes nothing here.
create index concurrently if not exists attempts_failed on orchestrator.attempts (ended_at)
    where outcome in ('failed', 'lost');
-- A block range index does not know the newest ranges until a vacuum: then each read scans them.
alter table orchestrator.attempts set (
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000
);
alter table public.worker_events set (
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000
);
-- Failed bring-up stages of a day, and when the same stages last succeeded.
create index concurrently if not exists worker_attempts_failed on public.worker_attempts (ended_at)
    where outcome in ('failed', 'timeout', 'lost');
-- Pages of workers, the newest first; ended ones by their end; and parts of their ids, from both ends.
create index concurrently if not exists workers_newest on public.workers (fleet, created_at desc, id);
create index concurrently if not exists workers_ended on public.workers (terminated_at) where status = 'terminated';
create index concurrently if not exists workers_id_begins on public.workers (id collate "C");
create index concurrently if not exists workers_id_ends on public.workers (reverse(id) collate "C");
create index concurrently if not exists workers_pod on public.workers (pod_id collate "C") where pod_id is not null;
create index concurrently if not exists audit_log_age on public.audit_log (at);
-- What was done with one task or worker, and by whom.
create index concurrently if not exists audit_log_subject on public.audit_log (fleet, subject, id desc);
