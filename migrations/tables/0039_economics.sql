-- pre-deploy
-- What the rules of scaling need.

-- What the learned rule knows of each pool; see functions/fleet/scaling_facts.sql. It can be lost: it is learned again
-- from attempts.
create table if not exists orchestrator.scaling_statistics (
    fleet text not null,
    pool text not null,
    statistics jsonb not null,
    until timestamptz not null,  -- what ended later is not in it
    primary key (fleet, pool)
);

-- A claim clears run_after in `tasks`. Without it, the time for which a task was scheduled would look like waiting.
alter table orchestrator.attempts
    add column if not exists run_after timestamptz;  -- before when it could not be claimed; null for at once, or unknown

-- The leader's last review of the rules of scaling in each pool; see functions/fleet/economics.sql.
create table if not exists orchestrator.scaling_reviews (
    fleet text not null,
    pool text not null,
    at timestamptz not null,
    review jsonb not null,
    primary key (fleet, pool)
);
