-- pre-deploy
-- What outlives the rows of attempts, workers and costs: roll-ups, and the history for charts.

-- What was done and spent in ten minutes or in a day (UTC), by one dimension in each row; see
-- functions/fleet/usage.sql. Dimensions of tasks: fleet, queue (a pool's tasks), type, tenant, task, label:KEY. Of
-- workers: kind, pool, gpu.
create table if not exists orchestrator.usage (
    fleet text not null,
    dimension text not null,
    span text not null,  -- part (ten minutes) or day
    at timestamptz not null,  -- when it began
    name text not null,
    tasks bigint not null default 0,  -- whose first attempt ended
    attempts bigint not null default 0,
    completed bigint not null default 0,
    failed bigint not null default 0,  -- attempts that failed or were lost
    given_up bigint not null default 0,  -- tasks that failed for good
    completed_s numeric not null default 0,  -- of the attempts that completed
    seconds numeric not null default 0,
    usd numeric not null default 0,
    wasted_usd numeric not null default 0,  -- of attempts that did not complete
    primary key (fleet, dimension, span, at, name)
);

-- Tasks that failed without an attempt: what they need failed, or no worker can get them.
create table if not exists orchestrator.unrun_failures (
    task_id uuid not null,
    no int not null,  -- as in publications
    at timestamptz not null,
    primary key (task_id, no)
);
create index if not exists unrun_failures_at on orchestrator.unrun_failures (at);

-- What the leader saw of each pool at the end of a minute; see functions/fleet/history.sql.
create table if not exists orchestrator.pool_minutes (
    fleet text not null,
    pool text not null,
    at timestamptz not null,  -- the full minute
    ready int not null,
    waiting int not null,  -- for other tasks, limits or their time
    running int not null,
    spawning int not null,
    active int not null,
    idle int not null,
    ending int not null,
    usd_per_hour numeric not null,
    completed int not null,  -- attempts that ended since the minute before
    failed int not null,
    primary key (fleet, pool, at)
);

-- What each worker last reported in a minute.
create table if not exists orchestrator.worker_minutes (
    worker_id text not null,
    at timestamptz not null,
    status text not null,
    running int not null,  -- tasks
    gpu_percent real,  -- of all its GPUs
    gpu_used_mb bigint,
    gpu_total_mb bigint,
    primary key (worker_id, at)
);
create index if not exists worker_minutes_age on orchestrator.worker_minutes using brin (at);
alter table orchestrator.worker_minutes set (
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 10000
);

-- The pools and types that tasks have named; the leader adds what the newest tasks and the audit's pages name.
create table if not exists orchestrator.task_names (
    pool text not null,
    task_type text not null,
    primary key (pool, task_type)
);

-- Attempts of each worker that ended until the time that fleet_chores has as `totals`; see functions/fleet/history.sql.
create table if not exists orchestrator.worker_totals (
    worker_id text primary key,
    completed bigint not null,
    failed bigint not null  -- or lost
);
