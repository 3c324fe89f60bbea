-- pre-deploy
-- Actions on all tasks that fit a filter. The leader changes some at a time, the newest first; see
-- functions/api/bulk_changes.sql.
create table if not exists orchestrator.bulk_changes (
    id bigint generated always as identity primary key,
    fleet text not null,
    actor text not null,
    key text,  -- of the form or the call that started it: a repetition starts nothing
    scope jsonb not null,  -- {pools, tenant}: what the actor may see
    action text not null check (action in ('cancel', 'retry')),
    filter jsonb not null,  -- {status, task_type, tenant, labels, pool, since}
    created_at timestamptz not null,  -- tasks that were created later are left alone
    started_at timestamptz,  -- the leader's first step
    place_at timestamptz not null,  -- the last task that was looked at
    place_id uuid not null default '00000000-0000-0000-0000-000000000000',
    walked_at timestamptz,  -- every task was looked at; those in `locked` are tried again
    locked uuid[] not null default '{}',
    looked bigint not null default 0,
    changed bigint not null default 0,
    refused bigint not null default 0,
    refusal text check (length(refusal) <= 500),  -- the first one
    ended_at timestamptz,
    outcome text check (outcome in ('done', 'stopped')),
    stopped_by text,
    unique (fleet, actor, key),
    check ((ended_at is null) = (outcome is null)),
    check (coalesce(outcome = 'stopped', false) = (stopped_by is not null))
);
create index if not exists bulk_changes_open on orchestrator.bulk_changes (fleet, id) where ended_at is null;
