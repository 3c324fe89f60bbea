-- pre-deploy
-- All tables, their columns, own constraints and indexes. Append-only: a later change is a new file.
--
-- `tasks` and `workers` may exist already, with a user's rows and a user's programs that write them. Here they only get
-- columns with constant defaults and constraints that are not checked for existing rows, so the table locks are short.
-- Their statements come last, because a lock is held until the transaction ends. 0002 completes existing rows, 0003 makes
-- the indexes, and 0004 checks the constraints.

do $$
declare
    v_type text;
begin
    select format_type(a.atttypid, null) into v_type
      from pg_catalog.pg_attribute a
     where a.attrelid = to_regclass('public.tasks') and a.attname = 'id' and not a.attisdropped;
    if v_type <> 'uuid' then
        raise exception 'the existing table tasks has an id of type %', v_type
            using errcode = 'OR007', detail = 'Task ids are uuids everywhere.', hint = 'Convert the column first.';
    end if;
end
$$;

alter table public.schema_migrations enable row level security;

-- Each pod names the database that it belongs to, so that two orchestrators with the same RunPod key and fleet but with
-- different databases do not delete each other's pods.
create table public.database_identity (
    is_this boolean primary key default true check (is_this),  -- one row
    id uuid not null default gen_random_uuid()  -- made once; a restored copy of this database is the same one
);
insert into public.database_identity default values;
alter table public.database_identity enable row level security;

-- Tasks -------------------------------------------------------------------------------------------------------------

create table public.task_attempts (
    task_id uuid not null,
    attempt int not null,  -- the fencing token
    worker_id text not null,
    nonce text not null,  -- the launch of the agent that claimed it
    claim_no bigint not null,  -- the agent's number of the claim; a repeated one gets the same tasks
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
    primary key (task_id, attempt),
    check ((ended_at is null) = (outcome is null))
) with (
    -- An attempt is ended in place: its end is in no index, and its page has room.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);
comment on column public.task_attempts.given_back is 'It does not count, because its worker was sick; at most one of a task';
comment on column public.task_attempts.permanent is 'The handler said that another attempt would fail as well';
create index task_attempts_claim on public.task_attempts (worker_id, nonce, claim_no);
create index task_attempts_worker on public.task_attempts (worker_id, started_at desc);
-- Rows are appended all the time, and the newest end is read every few seconds: a block range index costs a claim nothing.
create index task_attempts_started on public.task_attempts using brin (started_at) with (pages_per_range = 8);
create index task_attempts_ended on public.task_attempts using brin (ended_at) with (pages_per_range = 8);
alter table public.task_attempts enable row level security;

-- See functions/claiming.sql.
create sequence public.task_attempts_floor as integer minvalue 0 start 0;

-- See functions/counting.sql.
create table public.task_counts (
    pool text not null,
    kind text not null,  -- plain, timed, blocked
    n bigint not null
) with (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);
alter table public.task_counts replica identity full;
comment on table public.task_counts is 'Differences; the sum for a pool and kind is the number of its queued tasks';
alter table public.task_counts enable row level security;

-- See functions/claim_marks.sql. Read newest first and by transaction, so that dead rows are not read.
create table public.task_marks (
    no bigint generated always as identity primary key,
    pool text not null,
    seen pg_snapshot,
    xid xid8 not null default pg_current_xact_id(),
    place int not null,  -- ~priority: ascending, so that a place is one comparison of rows
    created_at timestamptz not null,
    id uuid not null
) with (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);
create index task_marks_raised on public.task_marks (pool, no desc) where seen is not null;
create index task_marks_lowered on public.task_marks (pool, xid) where seen is null;
alter table public.task_marks enable row level security;

create table public.task_results (
    id uuid primary key,
    task_type text not null,
    output_location text,
    result_data jsonb,
    deleted_at timestamptz not null,
    output_object jsonb
);
comment on table public.task_results is 'Of Complete tasks that were deleted while another task needed them';
alter table public.task_results enable row level security;

-- See functions/claiming.sql. No trigger of a user can suppress such a row.
create table public.task_refusals (
    task_id uuid primary key,
    what text not null,
    reason text not null,
    times int not null default 1,
    refused_at timestamptz not null,
    retry_at timestamptz not null,
    constraint task_refusals_what_known check (what in ('claim', 'rescue', 'settle'))
);
create index task_refusals_due on public.task_refusals (retry_at);
comment on table public.task_refusals is
    'Tasks that a trigger or a constraint of a user keeps from being claimed, rescued or settled';
alter table public.task_refusals enable row level security;

-- What POOLS_FILE says of a type; the leader declares it.
create table public.task_types (
    task_type text primary key,
    fleet text not null,
    pool text check (pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$'),
    timeout_s numeric check (timeout_s > 0),
    max_attempts int check (max_attempts between 1 and 100),
    declared_at timestamptz not null
);
alter table public.task_types enable row level security;

-- See functions/settling.sql.
create table public.tasks_unsettled (
    no bigint generated always as identity primary key,
    task_ids uuid[] not null,
    noted_at timestamptz not null default clock_timestamp(),
    tried_at timestamptz not null default '-infinity'
);
create index tasks_unsettled_next on public.tasks_unsettled (tried_at, no);
create index tasks_unsettled_noted on public.tasks_unsettled (noted_at);
comment on table public.tasks_unsettled is 'Queued tasks whose dependencies, or which themselves, another transaction may be changing';
alter table public.tasks_unsettled enable row level security;

-- Workers -----------------------------------------------------------------------------------------------------------

-- Legal transitions, the same as in orchestrator/core/states.py; a test holds the two equal.
create table public.worker_transitions (
    from_state text not null,
    to_state text not null,
    primary key (from_state, to_state)
);
insert into public.worker_transitions (from_state, to_state) values
    ('spawning', 'active'), ('spawning', 'terminating'),
    ('active', 'idle'), ('active', 'terminating'),
    ('idle', 'active'), ('idle', 'terminating'),
    ('terminating', 'terminated');
alter table public.worker_transitions enable row level security;

create table public.worker_events (
    id bigint generated always as identity primary key,
    worker_id text not null,
    fleet text not null,
    from_state text,  -- null: the row was inserted
    to_state text not null,
    from_stage text,
    to_stage text,
    reason text not null,
    term bigint,  -- of the orchestrator that wrote it; null: a pod, an operator, or by hand
    actor text not null,
    at timestamptz not null,
    detail jsonb not null default '{}'
);
create index worker_events_worker on public.worker_events (worker_id, id);
create index worker_events_age on public.worker_events using brin (at);
alter table public.worker_events enable row level security;

create table public.worker_attempts (
    id bigint generated always as identity primary key,
    worker_id text not null,
    stage text not null,
    attempt int not null,  -- counted per stage
    term bigint not null,
    started_at timestamptz not null,
    ended_at timestamptz,
    outcome text check (outcome in ('ok', 'failed', 'timeout', 'cancelled', 'lost')),
    failure_code text,
    exception_type text,
    evidence jsonb,
    check ((ended_at is null) = (outcome is null))
);
create index worker_attempts_worker on public.worker_attempts (worker_id, id);
alter table public.worker_attempts enable row level security;

create table public.costs (
    id bigint generated always as identity primary key,
    worker_id text not null,
    fleet text not null,
    kind text not null check (kind in ('booting', 'busy', 'idle', 'draining')),
    from_at timestamptz not null,
    to_at timestamptz not null,
    usd numeric not null,
    check (to_at >= from_at)
);
create index costs_worker on public.costs (worker_id);
create index costs_spent on public.costs (fleet, to_at) include (from_at, usd);  -- the sum of a day, at each tick
alter table public.costs enable row level security;

create table public.log_objects (
    worker_id text not null,
    boot_id text not null,  -- the launch that wrote the stream
    stream text not null,
    seq int not null,
    first_byte bigint not null,
    last_byte bigint,  -- exclusive; null: lost bytes whose end was never known
    sha256 text,  -- of the raw bytes
    key text,  -- of the object; null: there is none
    begun_at timestamptz not null,
    shipped_at timestamptz,
    declared_lost boolean not null default false,
    reason text,
    primary key (worker_id, boot_id, stream, seq),
    check (first_byte >= 0 and (last_byte is null or last_byte > first_byte)),
    check (declared_lost or (last_byte is not null and sha256 is not null and key is not null)),
    check (not (declared_lost and shipped_at is not null)),
    check (not declared_lost or reason is not null)
);
alter table public.log_objects enable row level security;

-- Fleets ------------------------------------------------------------------------------------------------------------

create table public.fleet_lease (
    fleet text primary key,
    holder text not null,
    term bigint not null,  -- the fencing token: grows by one with each change of leader
    expires_at timestamptz not null,
    since timestamptz not null,  -- when this term began
    unled_from timestamptz
);
comment on column public.fleet_lease.unled_from is
    'When the lease before this term ended: from then until `since` no leader was there, or it could not reach the database.';
alter table public.fleet_lease enable row level security;

create table public.decisions (
    id bigint generated always as identity primary key,
    fleet text not null,
    pool text not null,
    term bigint not null,
    at timestamptz not null,
    rule text not null,  -- the formula with its numbers
    target int not null,
    inputs jsonb not null,
    actions jsonb not null,
    blocked jsonb not null  -- what was wanted and not done, and why
);
create index decisions_pool on public.decisions (fleet, pool, id desc);
create index decisions_age on public.decisions (at);
alter table public.decisions enable row level security;

create table public.offers (
    fleet text not null,
    key text not null,  -- GPU type|data centre|cloud
    cooldown_until timestamptz,
    refusals int not null default 0,  -- in a row
    last_refusal timestamptz,
    last_code text,
    last_success timestamptz,
    probe_budget int check (probe_budget > 0),
    primary key (fleet, key)
);
comment on column public.offers.probe_budget is 'Create calls that may be under way at once: 1 after a refusal, doubled by a success';
alter table public.offers enable row level security;

-- Machines and places that failed, and until when they are avoided.
create table public.hosts (
    fleet text not null,
    key text not null check (key ~ '^(machine|place):.'),  -- machine:<id>, place:<data centre>|<GPU type>
    strikes int not null check (strikes > 0),  -- that still count
    evidence jsonb not null,  -- the newest ten: code, worker, pod, when, what was seen
    last_failure timestamptz not null,
    avoid_until timestamptz,  -- null: remembered, not avoided
    primary key (fleet, key)
);
alter table public.hosts enable row level security;

create table public.releases (
    fleet text not null,
    release text not null,
    promoted_at timestamptz not null,  -- the last time
    primary key (fleet, release)
);
alter table public.releases enable row level security;

create table public.fleet_settings (
    fleet text not null,
    name text not null,
    value jsonb not null,
    reason text not null,
    set_at timestamptz not null,
    expires_at timestamptz,
    primary key (fleet, name)
);
alter table public.fleet_settings enable row level security;

-- When a regular job of a fleet was last done, because a process may not live until the next time.
create table public.fleet_chores (
    fleet text not null,
    name text not null check (name <> ''),
    done_at timestamptz not null,
    primary key (fleet, name)
);
alter table public.fleet_chores enable row level security;

-- workers -----------------------------------------------------------------------------------------------------------

create table if not exists public.workers (
    id text primary key,
    instance_type text not null default 'unknown',
    status text not null default 'spawning',
    last_heartbeat timestamptz,
    metadata jsonb not null default '{}',
    created_at timestamptz not null default now()
);

do $$
declare
    v_constraint name;
begin
    if (select t.typcategory <> 'S' from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid
         where a.attrelid = 'public.workers'::regclass and a.attname = 'status') then
        alter table public.workers alter column status drop default;
        alter table public.workers alter column status type text using status::text;
    end if;
    for v_constraint in
        select c.conname from pg_catalog.pg_constraint c
         where c.conrelid = 'public.workers'::regclass and c.contype = 'c'
           and c.conkey = array[(select a.attnum from pg_catalog.pg_attribute a
                                  where a.attrelid = c.conrelid and a.attname = 'status')]
    loop
        execute format('alter table public.workers drop constraint %I', v_constraint);
    end loop;
end
$$;

-- The default of state_since and stage_since is computed once, for all existing rows.
alter table public.workers
    add column if not exists instance_type text default 'unknown',
    add column if not exists last_heartbeat timestamptz,
    add column if not exists metadata jsonb default '{}',
    add column if not exists created_at timestamptz default now(),
    add column if not exists fleet text not null default 'default',
    add column if not exists pool text not null default 'default',
    add column if not exists state_since timestamptz not null default now(),
    add column if not exists state_reason text,
    add column if not exists stage text,
    add column if not exists stage_since timestamptz not null default now(),
    add column if not exists waiting_on text,
    add column if not exists waiting_for text,
    add column if not exists deadline_at timestamptz,
    add column if not exists next_attempt_at timestamptz,
    add column if not exists exit_cause text,
    add column if not exists failure_code text,
    add column if not exists drain_requested_at timestamptz,
    add column if not exists stop_requested_at timestamptz,
    add column if not exists terminated_at timestamptz,
    add column if not exists pod_id text,
    add column if not exists ssh_host text,
    add column if not exists ssh_port int,
    add column if not exists host_key text,
    add column if not exists gpu_type text,
    add column if not exists gpu_count int not null default 1,
    add column if not exists data_center text,
    add column if not exists machine_id text,
    add column if not exists price_usd_per_hour numeric,
    add column if not exists reserved_usd numeric not null default 0,
    add column if not exists billing_since timestamptz,
    add column if not exists nonce text,
    add column if not exists code_sha text,
    add column if not exists token_jti text,
    add column if not exists claim_no bigint not null default 0,
    add column if not exists own_program boolean not null default false,
    add column if not exists heartbeat_s numeric not null default 20,
    add column if not exists lease_s numeric not null default 60,
    add column if not exists agent jsonb,
    add column if not exists health jsonb,
    add column if not exists log_bytes jsonb not null default '{}',
    add column if not exists release text,
    add column if not exists reserved_usd_per_hour numeric not null default 0,
    add column if not exists climb_ended_at timestamptz,
    add column if not exists promoted_at timestamptz,
    add column if not exists billing_until timestamptz,
    add column if not exists ending_since timestamptz,
    add column if not exists held_back jsonb,
    alter column status set default 'spawning',
    alter column instance_type set default 'unknown',
    alter column metadata set default '{}',
    alter column created_at set default now(),
    add constraint workers_id_safe check (id ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$') not valid;
alter table public.workers alter column last_heartbeat drop default;  -- a worker that never sent one must not look alive
alter table public.workers set (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

-- What a pod that speaks to PostgREST asks; see functions/asks.sql.
create table public.worker_asks (
    id bigint generated always as identity primary key,
    worker_id text not null references public.workers (id) on delete cascade,
    method text not null check (method in ('GET', 'PUT', 'HEAD', 'RENEW')),
    subject text not null check (octet_length(subject) <= 4096),
    asked_at timestamptz not null,
    answered_at timestamptz,
    answer jsonb,
    terms jsonb not null default '{}'  -- of the upload; or the object to be found
);
comment on column public.worker_asks.method is 'GET and PUT: sign a URL; HEAD: is the object there?; RENEW: the next token';
comment on column public.worker_asks.subject is 'A granted key; with HEAD a location; with RENEW the jti of the token';
comment on column public.worker_asks.answer is '{url, location}, {found}, {sealed: [text]} or {refused: true}';
create unique index worker_asks_once on public.worker_asks (worker_id, method, md5(subject));
create index worker_asks_open on public.worker_asks (worker_id) where answered_at is null;
alter table public.worker_asks enable row level security;

-- tasks -------------------------------------------------------------------------------------------------------------

create table if not exists public.tasks (
    id uuid primary key default gen_random_uuid(),
    task_type text not null,
    params jsonb not null default '{}',
    status text not null default 'Queued',
    worker_id text,
    attempts int not null default 0,
    output_location text,
    result_data jsonb,
    error_message text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    generation_started_at timestamptz,
    generation_processed_at timestamptz
);

-- An enum for the status learns our states. A text gets a constraint in place of the user's own, which would refuse
-- Cancelled.
do $$
declare
    v_type record;
    v_state text;
    v_constraint name;
begin
    select t.typtype, t.typcategory, n.nspname, t.typname into v_type
      from pg_catalog.pg_attribute a
      join pg_catalog.pg_type t on t.oid = a.atttypid
      join pg_catalog.pg_namespace n on n.oid = t.typnamespace
     where a.attrelid = 'public.tasks'::regclass and a.attname = 'status' and not a.attisdropped;
    if v_type.typtype = 'e' then
        foreach v_state in array array['Queued', 'In Progress', 'Complete', 'Failed', 'Cancelled'] loop
            execute format('alter type %I.%I add value if not exists %L', v_type.nspname, v_type.typname, v_state);
        end loop;
        raise notice 'tasks.status stays the enum %', v_type.typname using errcode = 'OR100';
    elsif v_type.typcategory = 'S' then
        for v_constraint in
            select c.conname from pg_catalog.pg_constraint c
             where c.conrelid = 'public.tasks'::regclass and c.contype = 'c'
               and c.conkey = array[(select a.attnum from pg_catalog.pg_attribute a
                                      where a.attrelid = c.conrelid and a.attname = 'status')]
        loop
            execute format('alter table public.tasks drop constraint %I', v_constraint);
        end loop;
        alter table public.tasks add constraint tasks_status_known
            check (status in ('Queued', 'In Progress', 'Complete', 'Failed', 'Cancelled')) not valid;
    end if;
end
$$;

-- pool and max_attempts have a default only until the trigger that fills them in exists: 0004 drops it.
alter table public.tasks
    add column if not exists worker_id text,
    add column if not exists attempts int default 0,
    add column if not exists output_location text,
    add column if not exists result_data jsonb,
    add column if not exists error_message text,
    add column if not exists created_at timestamptz default now(),
    add column if not exists updated_at timestamptz default now(),
    add column if not exists generation_started_at timestamptz,
    add column if not exists generation_processed_at timestamptz,
    add column if not exists pool text default 'default',
    add column if not exists priority int not null default 0,
    add column if not exists max_attempts int default 3,
    add column if not exists uncounted int not null default 0,
    add column if not exists timeout_s numeric,
    add column if not exists run_after timestamptz,
    add column if not exists depends_on uuid[] not null default '{}',
    add column if not exists blocked boolean not null default false,
    add column if not exists dedupe_key text,
    add column if not exists lease_expires_at timestamptz,
    add column if not exists progress jsonb,
    add column if not exists progress_at timestamptz,
    add column if not exists cancel_requested_at timestamptz,
    add column if not exists failure_code text,
    add column if not exists failed_at_point text,
    add column if not exists pool_by_type boolean not null default false,
    add column if not exists output_object jsonb,
    alter column attempts set default 0,
    alter column created_at set default now(),
    alter column updated_at set default now(),
    -- No bounded repetition, which takes ten times as long on each update of the row.
    add constraint tasks_pool_named check (pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' and octet_length(pool) <= 63) not valid,
    add constraint tasks_attempts_counted
        check (attempts >= 0 and uncounted between 0 and attempts and max_attempts > 0) not valid;
alter table public.tasks set (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

-- Row level security without a policy closes both tables to anon and authenticated. If no policy gives them a way in, they
-- also lose what Supabase grants on every new table: row level security does not hold TRUNCATE.
do $$
declare
    v_table regclass;
    v_role name;
begin
    foreach v_table in array array['public.tasks', 'public.workers']::regclass[] loop
        if exists (select from pg_catalog.pg_class c where c.oid = v_table and not c.relrowsecurity)
           and exists (select from pg_catalog.pg_roles r
                        where r.rolname in ('anon', 'authenticated') and has_table_privilege(r.oid, v_table, 'select')) then
            raise notice '% now has row level security: who reads it as anon or authenticated needs a policy',
                (select c.relname from pg_catalog.pg_class c where c.oid = v_table) using errcode = 'OR100';
        end if;
        execute format('alter table %s enable row level security', v_table);
        execute format('revoke all on %s from public', v_table);
        if not exists (select from pg_catalog.pg_policy p where p.polrelid = v_table) then
            for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated') loop
                execute format('revoke all on %s from %I', v_table, v_role);
            end loop;
        end if;
    end loop;
end
$$;
