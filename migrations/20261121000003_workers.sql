-- The fleet's rows. `workers` is what existing projects have: its rows stay, as history; what still counted as alive is
-- superseded, because nothing is known of it that a new fleet could stand for.

create table if not exists public.workers (
    id text primary key,
    instance_type text not null default 'unknown',
    status text not null default 'spawning',
    last_heartbeat timestamptz,
    metadata jsonb not null default '{}',
    created_at timestamptz not null default now()
);

alter table public.workers
    add column if not exists instance_type text default 'unknown',
    add column if not exists last_heartbeat timestamptz,
    add column if not exists metadata jsonb default '{}',
    add column if not exists created_at timestamptz default now(),
    add column if not exists fleet text not null default 'default',
    add column if not exists pool text not null default 'default',
    add column if not exists state_since timestamptz,
    add column if not exists state_reason text,
    add column if not exists stage text,
    add column if not exists stage_since timestamptz,
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
    add column if not exists log_bytes jsonb not null default '{}';

comment on column public.workers.state_since is 'When status last changed; the idle clock';
comment on column public.workers.drain_requested_at is 'An operator or the planner wants it gone, its tasks finished';
comment on column public.workers.stop_requested_at is 'It is wanted gone now, its tasks given up';
comment on column public.workers.billing_since is 'When its pod id became known: costs count from here';
comment on column public.workers.nonce is 'The current launch of its agent; any other is fenced';
comment on column public.workers.last_heartbeat is 'Of the current launch; never defaulted to now';
comment on column public.workers.token_jti is 'The one token that is accepted; null revokes it';
comment on column public.workers.claim_no is 'The highest claim number of the current launch';
comment on column public.workers.agent is 'What the agent said of itself when it registered';
comment on column public.workers.log_bytes is '{launch: {stream: bytes}} as heartbeats last told';

do $$
declare
    v_constraint name;
    v_rows bigint;
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

    update public.workers
       set metadata = coalesce(metadata, '{}') || jsonb_build_object('legacy_status', status),
           status = 'terminated'
     where status is distinct from 'terminated';
    get diagnostics v_rows = row_count;
    if v_rows > 0 then
        raise notice '% workers from before were set aside as terminated (superseded); metadata.legacy_status keeps '
            'what they were', v_rows using errcode = 'OR100';
    end if;
    update public.workers
       set exit_cause = 'superseded', metadata = coalesce(metadata, '{}'), created_at = coalesce(created_at, now()),
           state_since = now(), stage_since = now(), terminated_at = now(), state_reason = 'older than this schema'
     where status = 'terminated';
end
$$;

alter table public.workers
    alter column status set default 'spawning',
    alter column status set not null,
    alter column last_heartbeat drop default,
    alter column instance_type set default 'unknown',
    alter column metadata set default '{}',
    alter column metadata set not null,
    alter column created_at set default now(),
    alter column created_at set not null,
    alter column state_since set default now(),
    alter column state_since set not null,
    alter column stage_since set default now(),
    alter column stage_since set not null,
    add constraint workers_id_safe check (id ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$') not valid,
    add constraint workers_fleet_named check (fleet ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$'),
    add constraint workers_pool_named check (pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$'),
    add constraint workers_status_known
        check (status in ('spawning', 'active', 'idle', 'terminating', 'terminated')),
    add constraint workers_stage_known
        check (stage in ('intent', 'pod_created', 'pod_running', 'ssh_details', 'tcp', 'ssh_auth', 'exec', 'identity',
                         'platform', 'gpu_inventory', 'gpu_health', 'gpu_fabric', 'deploy', 'process', 'heartbeat',
                         'promoted', 'draining', 'flushing', 'deleting', 'gone')),
    add constraint workers_waiting_on_known
        check (waiting_on in ('orchestrator', 'provider', 'worker', 'operator', 'capacity', 'budget')),
    add constraint workers_exit_cause_known
        check (exit_cause in ('idle_timeout', 'scale_down', 'manual', 'shutdown', 'max_lifetime', 'budget', 'superseded',
                              'spawn_failed', 'heartbeat_lost', 'task_stuck', 'gpu_fault', 'host_fault', 'pod_lost',
                              'stale_code', 'agent_crashed')),
    -- Nobody waits without someone being named and a clock running.
    add constraint workers_live_waits
        check (status = 'terminated'
               or (stage is not null and waiting_on is not null and deadline_at is not null
                   and next_attempt_at is not null)),
    add constraint workers_exit_has_cause
        check (status not in ('terminating', 'terminated') or exit_cause is not null);

create index workers_live on public.workers (fleet, id) where status <> 'terminated';
create index workers_recent on public.workers (fleet, pool, created_at desc);
alter table public.workers set (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

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
