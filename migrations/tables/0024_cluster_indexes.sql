-- pre-deploy
-- no transaction
-- The workers that a cluster reserves or has had.
create index concurrently if not exists workers_cluster on public.workers (cluster, id) where cluster is not null;
