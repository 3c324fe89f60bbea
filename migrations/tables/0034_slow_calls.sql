-- pre-deploy
-- Calls of agents in which users' triggers took long while they published; see the view orchestrator.slow_pools.
create table if not exists orchestrator.slow_calls (
    no bigint generated always as identity primary key,
    pool text not null,
    at timestamptz not null
);
create index if not exists slow_calls_pool on orchestrator.slow_calls (pool, at);
