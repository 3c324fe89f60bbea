-- pre-deploy
-- What the learned rule of scaling knows of each pool; see functions/fleet/scaling_facts.sql. It can be lost: it is
-- learned again from attempts.
create table if not exists orchestrator.scaling_statistics (
    fleet text not null,
    pool text not null,
    statistics jsonb not null,
    until timestamptz not null,  -- what ended later is not in it
    primary key (fleet, pool)
);
