-- pre-deploy
-- The queue's own tables, beside `tasks`. Users cannot write them, and PostgREST does not expose their schema.
--
-- A task that is Queued or In Progress has one row in `live`. Claims, completions, heartbeats, leases, limits, turns and
-- the planner read and write only these tables. `tasks` has the specification of a task and the state that was published
-- last: a user's trigger, lock or constraint can delay the publication of its own row, and nothing else.
--
-- `migrate` applies this file again if something of it is missing, and then fills `live` from `tasks`.
--
-- No table here has a CHECK constraint or a trigger with WHEN: PostgreSQL parses each of them again for every statement.
create schema if not exists orchestrator;

do $$
begin
    if to_regtype('orchestrator.task_state') is null then
        drop table if exists orchestrator.live cascade;  -- it has lost the column of this type
        create type orchestrator.task_state as enum (
            'ready', 'waits_for_tasks', 'waits_for_key', 'waits_for_type', 'waits_for_time', 'running');
    end if;
end
$$;

create table if not exists orchestrator.live (
    task_id uuid primary key,
    created_at timestamptz not null,
    turn bigint not null default 9007199254740991,  -- among the tenants of its pool and priority; this number for none
    claim_no bigint,
    claimed_at timestamptz,
    lease_expires_at timestamptz,  -- null: a program of the user's runs it
    progress_at timestamptz,
    run_after timestamptz,
    cancel_requested_at timestamptz,
    place int not null,  -- ~priority: ascending, so that a place in the queue is one comparison of rows
    attempt int not null default 0,  -- of the last claim: the fencing number
    attempts_shown int not null default 0,  -- the value of tasks.attempts that is known here: another one is a user's
    uncounted int not null default 0,  -- attempts that do not count against max_attempts
    max_attempts int not null,
    shown int not null default 0,  -- what `tasks` shows: 2 * attempt if In Progress of this attempt, else 0
    state orchestrator.task_state not null,
    has_needs boolean not null default false,  -- depends_on names a task
    is_heavy boolean not null default false,  -- its size counts in the answer to a claim
    type_limited boolean not null default false,  -- its type has a limit
    has_webhook boolean not null default false,
    pool text not null,
    task_type text not null,
    worker_id text,
    nonce text,
    concurrency_key text,
    tenant text,
    dedupe_key text,
    timeout_s numeric,
    log_first bigint
) with (
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);
create index if not exists live_claim on orchestrator.live (pool, place, turn, created_at, task_id) where state = 'ready';
create index if not exists live_oldest on orchestrator.live (pool, created_at) where state = 'ready';
create index if not exists live_turns on orchestrator.live (pool, place, (coalesce(tenant, '')), turn)
    where state = 'ready' and turn < 9007199254740991;
create index if not exists live_running on orchestrator.live (worker_id) where state = 'running';
create index if not exists live_timed on orchestrator.live (pool, run_after) where state = 'waits_for_time';
create index if not exists live_waiting on orchestrator.live (pool, state) where state in ('waits_for_tasks', 'waits_for_key', 'waits_for_type');
create unique index if not exists live_dedupe on orchestrator.live (dedupe_key) where dedupe_key is not null;
create index if not exists live_key_waiting on orchestrator.live (concurrency_key, place, turn, created_at, task_id)
    where state = 'waits_for_key';
create index if not exists live_key_places on orchestrator.live (concurrency_key)
    where concurrency_key is not null and state in ('ready', 'waits_for_type', 'running');
create index if not exists live_type_waiting on orchestrator.live (task_type, place, turn, created_at, task_id)
    where state = 'waits_for_type';
create index if not exists live_type_places on orchestrator.live (task_type) where type_limited and state in ('ready', 'running');

-- What tasks in `live` need. A row stays until its task runs no more: a need may be taken back.
create table if not exists orchestrator.edges (
    task_id uuid not null,
    needs uuid not null,
    is_met boolean not null,
    primary key (task_id, needs)
);
create index if not exists edges_needs on orchestrator.edges (needs);
create index if not exists edges_unmet on orchestrator.edges (task_id) where not is_met;

-- What a call of an agent must know of its launch, in one narrow row. A trigger of `workers` keeps it.
create table if not exists orchestrator.launches (
    worker_id text primary key,
    nonce text,
    jti text,
    fleet text not null,
    pool text not null,
    status text not null,
    wanted text not null,
    may boolean not null,  -- it may claim, as far as its own row says
    cluster text,  -- that reserves it
    lease interval not null,
    log_bytes bigint,
    claim_no bigint not null default 0,  -- the highest number that was answered
    skipped uuid[] not null default '{}'  -- tasks of the last heartbeat that a user's transaction had locked
) with (
    fillfactor = 30,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

-- What `tasks` does not show yet. Such a row is the truth until it is published; see publishing.sql.
create table if not exists orchestrator.publications (
    task_id uuid primary key,
    no int not null,  -- 2 * attempt + 1
    status text not null,
    shown text not null,  -- the status that `tasks` shows meanwhile
    at timestamptz not null,
    started_at timestamptz,
    worker_id text,
    attempts int,
    result_data jsonb,
    output_location text,
    output_object jsonb,
    error_message text,
    failure_code text,
    failed_at_point text,
    run_after timestamptz,
    reason text,
    times int not null default 0,
    retry_at timestamptz
);
create index if not exists publications_due on orchestrator.publications (retry_at);

-- What another transaction kept from being looked at; the leader looks again. kind: needs, show, edit, enter,
-- edges or unfit (of a task), unmet (of a task that others need), key, type, or limit (of a type that was set or removed).
create table if not exists orchestrator.rechecks (
    no bigint generated always as identity primary key,
    kind text not null,
    name text not null
);

-- Where claims begin to look in each pool; see marks.sql. Read newest first and by transaction, so that dead rows are not.
create table if not exists orchestrator.marks (
    no bigint generated always as identity primary key,
    pool text not null,
    seen pg_snapshot,
    xid xid8 not null default pg_current_xact_id(),
    place int not null,
    turn bigint not null,
    created_at timestamptz not null,
    task_id uuid not null
) with (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);
create index if not exists marks_raised on orchestrator.marks (pool, no desc) where seen is not null;
create index if not exists marks_lowered on orchestrator.marks (pool, xid) where seen is null;

-- How far the audit of each table has come; see functions/queue/17_auditing.sql.
create table if not exists orchestrator.audits (
    rel text primary key,
    next_block bigint not null,
    next_name text,  -- after which limits are looked at next
    began_at timestamptz not null,
    ended_at timestamptz  -- when it was read to its end the last time
);

-- Attempts that have ended.
create table if not exists orchestrator.attempts (
    task_id uuid not null,
    attempt int not null,  -- the fencing number
    worker_id text not null,
    nonce text not null,  -- the launch of the agent that claimed it
    claim_no bigint not null,  -- the agent's number of the claim
    started_at timestamptz not null,
    ended_at timestamptz,
    outcome text,  -- complete, failed, cancelled, released, lost
    failure_code text,
    exit_class text,  -- exception, oom, vram_oom, signal, timeout, cancelled, lost
    failed_at_point text,
    message text,
    detail jsonb,
    log_first bigint,  -- position of the handler log, by the last heartbeat, at the start and at the end
    log_last bigint,
    given_back boolean,
    permanent boolean,
    upload_started_at timestamptz,
    upload_ended_at timestamptz,
    uncounted int not null default 0,  -- attempts that did not count against max_attempts, as it ended
    primary key (task_id, attempt)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);
comment on column orchestrator.attempts.given_back is
    'It does not count, because its worker was sick; at most one of a task';
comment on column orchestrator.attempts.permanent is 'The handler said that another attempt would fail as well';
comment on column orchestrator.attempts.upload_started_at is
    'When its agent began to upload its first output; NULL for none, or unknown';
comment on column orchestrator.attempts.upload_ended_at is
    'When its last output was stored; NULL for none, or unknown';
create index if not exists attempts_claim on orchestrator.attempts (worker_id, nonce, claim_no);
create index if not exists attempts_worker on orchestrator.attempts (worker_id, started_at desc);
-- Rows are appended all the time, and the newest end is read every few seconds: a block range index costs a claim nothing.
create index if not exists attempts_started on orchestrator.attempts using brin (started_at) with (pages_per_range = 8);
create index if not exists attempts_ended on orchestrator.attempts using brin (ended_at) with (pages_per_range = 8);
alter table orchestrator.attempts enable row level security;

-- The table that users write to comes last.
alter table public.tasks add column if not exists published int not null default 0;
