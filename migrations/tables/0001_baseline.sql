-- pre-deploy
-- All tables in `public`, their columns, constraints and indexes. A later change is a new file. The numbers 0002 to 0030
-- belonged to versions before the first release; this file contains what they made.
--
-- `tasks` and `workers` may exist already, with a user's rows and a user's programs that write them. They get columns that
-- may be null or have a constant default, so no row is rewritten, updated or read, and the table locks are short. Their
-- statements come last, because a lock is held until the transaction ends. 0032 makes their indexes.

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
    id uuid not null default gen_random_uuid(),  -- made once; a restored copy of this database is the same one
    led_in text  -- server and database where the fleet is led, so that a copy is recognised; null: not led yet
);
insert into public.database_identity default values;
alter table public.database_identity enable row level security;

-- Tasks -------------------------------------------------------------------------------------------------------------

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

-- How tenants share a queue; see functions/queue/03_turns.sql.
create table public.tenants (
    tenant text primary key check (length(tenant) between 1 and 200),
    weight int not null default 1 check (weight between 1 and 1000),
    set_at timestamptz not null default now()
);
comment on table public.tenants is 'Shares of the tenants that do not have the weight 1';
comment on column public.tenants.weight is 'Tasks of this tenant that are claimed for each one of a tenant with the weight 1';
alter table public.tenants enable row level security;

-- How many tasks of a key or of a type may run at once; see functions/queue/04_states.sql.
create table public.concurrency_limits (
    scope text not null check (scope in ('key', 'type')),
    name text not null check (length(name) between 1 and 200),
    most int not null check (most between 0 and 100000),
    set_at timestamptz not null,
    primary key (scope, name)
);
comment on table public.concurrency_limits is 'A key without a row has the limit 1; a type without a row has none';
alter table public.concurrency_limits enable row level security;

-- Recurring tasks, and one row for each time at which one was due; see functions/schedules.sql.
create table public.schedules (
    name text primary key check (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    cron text check (length(cron) between 9 and 200),
    every_s int check (every_s between 10 and 31536000),
    timezone text not null default 'UTC' check (length(timezone) between 1 and 64),
    task jsonb not null check (jsonb_typeof(task) = 'object' and octet_length(task::text) <= 1200000),
    overlap text not null default 'skip' check (overlap in ('skip', 'queue')),
    catch_up text not null default 'none' check (catch_up in ('none', 'once')),
    created_at timestamptz not null default now(),
    paused_at timestamptz,
    next_at timestamptz,
    problem text check (octet_length(problem) <= 2000),
    check (num_nonnulls(cron, every_s) = 1)
);
comment on column public.schedules.task is 'The task to submit, as one entry of task_submit';
comment on column public.schedules.overlap is 'What to do at a due time while the task of the last one has not ended';
comment on column public.schedules.catch_up is 'Whether the last of the due times that nobody could serve is served late';
comment on column public.schedules.next_at is 'The next due time; null until the leader has worked it out';
comment on column public.schedules.problem is 'Why the leader cannot work out due times; a change of the row clears it';
create index schedules_due on public.schedules (next_at) where paused_at is null and problem is null;
alter table public.schedules enable row level security;

create table public.schedule_runs (
    schedule text not null references public.schedules (name) on delete cascade,
    due_at timestamptz not null,
    outcome text not null check (outcome in ('fired', 'skipped', 'missed')),
    task_id uuid,
    reason text check (octet_length(reason) <= 2000),
    at timestamptz not null,
    primary key (schedule, due_at)
);
comment on table public.schedule_runs is 'What came of each due time: a task (fired), an overlap or a refusal (skipped), or nothing (missed)';
create index schedule_runs_by_age on public.schedule_runs (at);
alter table public.schedule_runs enable row level security;

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

-- Clusters ----------------------------------------------------------------------------------------------------------

-- Slurm clusters on the workers of a pool: the clusters, their members, what is done with members, and what is done on
-- pods; see functions/clusters.sql. The legal changes of their states are rows, as those of workers.

create table public.cluster_transitions (
    subject text not null check (subject in ('cluster', 'member', 'operation', 'node_task')),
    from_state text not null,
    to_state text not null,
    primary key (subject, from_state, to_state)
);
comment on table public.cluster_transitions is 'The legal transitions, as in orchestrator/core/cluster_states.py; a test compares';
insert into public.cluster_transitions (subject, from_state, to_state) values
    ('cluster', 'requested', 'allocating'), ('cluster', 'requested', 'deleting'), ('cluster', 'requested', 'failed'),
    ('cluster', 'allocating', 'requested'), ('cluster', 'allocating', 'deploying'),
    ('cluster', 'allocating', 'deleting'), ('cluster', 'allocating', 'failed'),
    ('cluster', 'deploying', 'running'), ('cluster', 'deploying', 'deleting'), ('cluster', 'deploying', 'failed'),
    ('cluster', 'running', 'requested'), ('cluster', 'running', 'degraded'), ('cluster', 'running', 'deleting'),
    ('cluster', 'running', 'failed'),
    ('cluster', 'degraded', 'requested'), ('cluster', 'degraded', 'running'), ('cluster', 'degraded', 'deleting'),
    ('cluster', 'degraded', 'failed'),
    ('cluster', 'deleting', 'deleted'), ('cluster', 'deleting', 'failed'),
    ('member', 'pending', 'reconciling'), ('member', 'pending', 'removed'), ('member', 'pending', 'failed'),
    ('member', 'reconciling', 'ready'), ('member', 'reconciling', 'draining'), ('member', 'reconciling', 'removed'),
    ('member', 'reconciling', 'failed'),
    ('member', 'ready', 'reconciling'), ('member', 'ready', 'draining'), ('member', 'ready', 'failed'),
    ('member', 'draining', 'ready'), ('member', 'draining', 'removed'), ('member', 'draining', 'failed'),
    ('operation', 'accepted', 'dispatched'), ('operation', 'accepted', 'failed'), ('operation', 'accepted', 'expired'),
    ('operation', 'dispatched', 'running'), ('operation', 'dispatched', 'succeeded'),
    ('operation', 'dispatched', 'failed'), ('operation', 'dispatched', 'expired'),
    ('operation', 'running', 'succeeded'), ('operation', 'running', 'failed'), ('operation', 'running', 'expired'),
    ('node_task', 'queued', 'dispatched'), ('node_task', 'queued', 'failed'), ('node_task', 'queued', 'expired'),
    ('node_task', 'dispatched', 'completed'), ('node_task', 'dispatched', 'failed'),
    ('node_task', 'dispatched', 'expired');
alter table public.cluster_transitions enable row level security;

create table public.cluster_apps (
    id text primary key check (id ~ '^[a-z0-9][a-z0-9-]{0,40}$'),
    fleet text not null,
    pool text not null,
    status text not null default 'requested' check (status in (
        'requested', 'allocating', 'deploying', 'running', 'degraded', 'deleting', 'deleted', 'failed')),
    nodes int not null,
    min_nodes int not null check (min_nodes between 0 and 64),
    max_nodes int not null check (max_nodes between 1 and 64),
    conf_sha text check (octet_length(conf_sha) <= 100),
    reason text check (octet_length(reason) <= 2000),
    failure_code text check (failure_code ~ '^[A-Z0-9_]{1,64}$'),
    waiting_for text check (octet_length(waiting_for) <= 2000),
    deadline_at timestamptz,
    created_at timestamptz not null default now(),
    status_since timestamptz not null default now(),
    smoke_at timestamptz,
    smoke_evidence jsonb check (octet_length(smoke_evidence::text) <= 65536),
    delete_requested_at timestamptz,
    constraint cluster_apps_size check (nodes between min_nodes and max_nodes)
);
comment on table public.cluster_apps is 'Slurm clusters, each on the workers of one pool';
comment on column public.cluster_apps.nodes is 'How many members it should have while it is allocating, deploying, running or degraded';
comment on column public.cluster_apps.conf_sha is 'The configuration that its members should have';
comment on column public.cluster_apps.smoke_at is 'When its last smoke job succeeded';
create unique index cluster_apps_of_pool on public.cluster_apps (fleet, pool) where status not in ('deleted', 'failed');
create index cluster_apps_ended on public.cluster_apps (fleet, status_since) where status in ('deleted', 'failed');
alter table public.cluster_apps enable row level security;

create table public.cluster_members (
    cluster text not null references public.cluster_apps (id) on delete cascade,
    worker_id text not null,
    role text not null check (role in ('controller', 'worker')),
    status text not null default 'pending' check (status in (
        'pending', 'reconciling', 'ready', 'draining', 'removed', 'failed')),
    node_name text not null check (node_name ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    index_no int not null check (index_no between 0 and 63),
    ssh_host text check (octet_length(ssh_host) <= 253),
    ssh_port int check (ssh_port between 1 and 65535),
    fabric_addr text check (octet_length(fabric_addr) <= 45),
    hostname text check (octet_length(hostname) <= 253),
    adapter_detail jsonb not null default '{}'
        check (jsonb_typeof(adapter_detail) = 'object' and octet_length(adapter_detail::text) <= 16384),
    created_at timestamptz not null default now(),
    status_since timestamptz not null default now(),
    reason text check (octet_length(reason) <= 2000),
    primary key (cluster, worker_id)
);
comment on column public.cluster_members.node_name is 'The name of the node in Slurm';
comment on column public.cluster_members.ssh_host is 'The transport address: what SSH connects to';
comment on column public.cluster_members.fabric_addr is 'The private address, an IP literal: what members connect to';
comment on column public.cluster_members.hostname is 'What the pod calls itself; nobody connects to it';
create unique index cluster_members_index on public.cluster_members (cluster, index_no)
    where status not in ('removed', 'failed');
create unique index cluster_members_node on public.cluster_members (cluster, node_name)
    where status not in ('removed', 'failed');
create unique index cluster_members_controller on public.cluster_members (cluster)
    where role = 'controller' and status not in ('removed', 'failed');
create index cluster_members_ended on public.cluster_members (cluster, status_since) where status in ('removed', 'failed');
alter table public.cluster_members enable row level security;

create table public.member_operations (
    id bigint generated always as identity primary key,
    cluster text not null references public.cluster_apps (id) on delete cascade,
    worker_id text,
    kind text not null check (kind in ('add', 'reconcile', 'drain', 'bootstrap_ssh')),
    status text not null default 'accepted' check (status in (
        'accepted', 'dispatched', 'running', 'succeeded', 'failed', 'expired')),
    actor text not null check (octet_length(actor) <= 400),
    error text check (octet_length(error) <= 2000),
    evidence jsonb check (octet_length(evidence::text) <= 65536),
    created_at timestamptz not null default now(),
    status_since timestamptz not null default now(),
    deadline_at timestamptz not null
);
comment on table public.member_operations is 'What is done with one member; worker_id NULL: with all of them';
create unique index member_operations_open on public.member_operations (cluster, (coalesce(worker_id, '')), kind)
    where status in ('accepted', 'dispatched', 'running');
create index member_operations_newest on public.member_operations (cluster, id);
create index member_operations_late on public.member_operations (deadline_at)
    where status in ('accepted', 'dispatched', 'running');
create index member_operations_ended on public.member_operations (status_since)
    where status in ('succeeded', 'failed', 'expired');
alter table public.member_operations enable row level security;

create table public.node_tasks (
    id bigint generated always as identity primary key,
    cluster text not null references public.cluster_apps (id) on delete cascade,
    worker_id text not null,
    operation_id bigint,
    kind text not null check (kind in ('allocation.reconcile_managed_authorized_key')),
    payload jsonb not null default '{}'
        check (jsonb_typeof(payload) = 'object' and octet_length(payload::text) <= 16384),
    via text not null check (via in ('agent', 'ssh')),
    status text not null default 'queued' check (status in ('queued', 'dispatched', 'completed', 'failed', 'expired')),
    error text check (octet_length(error) <= 2000),
    created_at timestamptz not null default now(),
    status_since timestamptz not null default now(),
    deadline_at timestamptz not null
);
comment on table public.node_tasks is 'What is done on one pod, by its agent or over SSH; a payload has no secrets';
create index node_tasks_open on public.node_tasks (worker_id, id) where status in ('queued', 'dispatched');
create index node_tasks_of_cluster on public.node_tasks (cluster, id) where status in ('queued', 'dispatched');
create index node_tasks_newest on public.node_tasks (cluster, id);
create index node_tasks_late on public.node_tasks (deadline_at) where status in ('queued', 'dispatched');
create index node_tasks_ended on public.node_tasks (status_since) where status in ('completed', 'failed', 'expired');
alter table public.node_tasks enable row level security;

create table public.cluster_events (
    id bigint generated always as identity primary key,
    cluster text not null references public.cluster_apps (id) on delete cascade,
    worker_id text,
    subject text not null,
    from_state text,  -- null: the row was inserted
    to_state text not null,
    reason text,
    at timestamptz not null
);
create index cluster_events_newest on public.cluster_events (cluster, id);
create index cluster_events_age on public.cluster_events (at);
alter table public.cluster_events enable row level security;

-- The API and messages ----------------------------------------------------------------------------------------------

-- Who may use the API, and what was done through it; see functions/tokens.sql.
create table public.api_tokens (
    fleet text not null,
    name text not null check (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$'),
    hash text not null unique check (hash ~ '^[0-9a-f]{64}$'),
    scopes text[] not null check (scopes <> '{}' and scopes <@ array['submit', 'read', 'operate', 'admin']),
    pools text[] check (cardinality(pools) between 1 and 100),
    tenant text check (length(tenant) between 1 and 200),
    created_at timestamptz not null,
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    primary key (fleet, name)
);
comment on column public.api_tokens.hash is 'SHA-256 of the token, a random number of 256 bits; the token itself is not stored';
comment on column public.api_tokens.pools is 'It sees and changes tasks of these pools only; NULL for every pool';
comment on column public.api_tokens.tenant is 'It sees and changes tasks of this tenant only; NULL for every tenant';
comment on column public.api_tokens.last_used_at is 'To the minute';
alter table public.api_tokens enable row level security;

create table public.audit_log (
    id bigint generated always as identity primary key,
    fleet text not null,
    at timestamptz not null,
    actor text not null check (length(actor) <= 100),
    action text not null check (length(action) <= 100),
    subject text not null check (length(subject) <= 300),
    detail jsonb check (octet_length(detail::text) <= 8192)
);
comment on table public.audit_log is 'Actions, with the name of the token or the program that asked for them';
create index audit_log_recent on public.audit_log (fleet, id desc);
alter table public.audit_log enable row level security;

-- What was answered to a submission with an Idempotency-Key. A dedupe key only lasts while its task lives.
create table public.api_submissions (
    fleet text not null,
    actor text not null check (length(actor) <= 100),
    key text not null check (length(key) between 1 and 200),
    sha256 text not null,
    answer jsonb,
    at timestamptz not null,
    primary key (fleet, actor, key)
);
comment on column public.api_submissions.sha256 is 'Of the submission: another one under the same key is refused';
create index api_submissions_by_age on public.api_submissions (fleet, at);
alter table public.api_submissions enable row level security;

-- What the leader has found wrong for how long; see functions/alerting.sql.
create table public.alerts (
    fleet text not null,
    kind text not null,
    subject text not null,
    state jsonb not null check (octet_length(state::text) <= 16384),
    primary key (fleet, kind, subject)
);
comment on table public.alerts is 'Conditions that lead or led to a message, as the leader keeps them from one check to the next';
alter table public.alerts enable row level security;

-- Webhooks: who is told about the end of tasks; see functions/webhooks.sql.
create table public.webhooks (
    name text primary key check (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    task_type text check (length(task_type) between 1 and 200),
    url text not null check (length(url) <= 2000),
    progress boolean not null default false,
    created_at timestamptz not null
);
comment on table public.webhooks is 'Addresses that are told about the end of every task of a type';
comment on column public.webhooks.task_type is 'NULL for tasks of every type';
alter table public.webhooks enable row level security;

-- The outbox: messages to webhooks and about alerts; see functions/outbox.sql.
create table public.webhook_messages (
    id uuid primary key default gen_random_uuid(),
    event text not null,
    task_id uuid,
    webhook text,
    url text,
    host text not null,
    body jsonb not null,
    created_at timestamptz not null,
    give_up_at timestamptz not null,
    attempts int not null default 0,
    next_at timestamptz,
    sent_at timestamptz,
    failure text check (octet_length(failure) <= 2000),
    owner text not null default '',
    fleet text not null default '',
    dedup_key text,
    constraint webhook_messages_event_check check (
        case when event = 'alert'
             then fleet <> '' and dedup_key is not null and url is null and octet_length(body::text) <= 65536
             else event in ('task.completed', 'task.failed', 'task.cancelled', 'task.progress')
                  and fleet = '' and task_id is not null and url is not null end)
);
comment on table public.webhook_messages is 'The outbox: messages about tasks to webhooks, and about alerts to ALERT_WEBHOOK_URL';
comment on column public.webhook_messages.webhook is 'The row of webhooks that asked for it; NULL for the webhook_url of its task';
comment on column public.webhook_messages.owner is 'Who has a share of what is sent at once: a row of webhooks, or the tenant of the task';
comment on column public.webhook_messages.fleet is 'Whose leader sends this message about an alert; empty for a message about a task, which any leader sends';
comment on column public.webhook_messages.dedup_key is 'A message about an alert is written once for each key';
comment on column public.webhook_messages.url is 'NULL for a message about an alert: that URL is a secret and is not stored';
comment on column public.webhook_messages.host is 'Host and port of the URL, or the setting with the URL: a slow host delays no other';
comment on column public.webhook_messages.next_at is 'The next attempt; null once it was sent or given up';
create index webhook_messages_turns on public.webhook_messages (fleet, owner, host, next_at) where next_at is not null;
create index webhook_messages_late on public.webhook_messages (fleet, give_up_at) where next_at is not null;
create index webhook_messages_overdue on public.webhook_messages (next_at) where next_at is not null;
create index webhook_messages_lost on public.webhook_messages (give_up_at) where next_at is null and sent_at is null;
create index webhook_messages_progress on public.webhook_messages (task_id, created_at)
    where next_at is not null and event = 'task.progress';
create index webhook_messages_recent on public.webhook_messages (created_at desc);
create index webhook_messages_by_age on public.webhook_messages (sent_at) where sent_at is not null;
create index webhook_messages_by_task on public.webhook_messages (task_id);
create unique index webhook_messages_alerts on public.webhook_messages (fleet, dedup_key) where event = 'alert';
create index webhook_messages_alerts_by_age on public.webhook_messages (fleet, created_at) where event = 'alert';
alter table public.webhook_messages enable row level security;

-- workers -----------------------------------------------------------------------------------------------------------

create table if not exists public.workers (
    id text primary key,
    instance_type text not null default 'unknown',
    status text not null default 'spawning',
    last_heartbeat timestamptz,
    metadata jsonb not null default '{}',
    created_at timestamptz not null default now()
);

-- Workers of an older program are history: nothing is known of them that a fleet could rely on. They read as terminated,
-- without an update: their column `status` becomes `legacy_status`, and the new column has this default for existing rows.
do $$
declare
    v_name text;
begin
    if exists (select from pg_catalog.pg_attribute a where a.attrelid = 'public.workers'::regclass and a.attname = 'cluster'
                  and not a.attisdropped) then
        raise exception 'the existing column workers.cluster is not of this system' using errcode = 'OR007',
            detail = 'This system stores there which cluster reserves a worker; a worker with any other value claims nothing.',
            hint = 'Rename your column.';
    end if;
    lock table public.workers in access exclusive mode;
    for v_name in
        select c.conname from pg_catalog.pg_constraint c
         where c.conrelid = 'public.workers'::regclass and c.contype = 'c'
           and c.conkey = array[(select a.attnum from pg_catalog.pg_attribute a
                                  where a.attrelid = c.conrelid and a.attname = 'status')]
    loop
        execute format('alter table public.workers drop constraint %I', v_name);
    end loop;
    if not exists (select from public.workers) and (
           select t.typcategory = 'S' from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid
            where a.attrelid = 'public.workers'::regclass and a.attname = 'status') then
        return;
    end if;
    foreach v_name in array array['status', 'exit_cause', 'terminated_at', 'state_reason'] loop
        if exists (select from pg_catalog.pg_attribute a where a.attrelid = 'public.workers'::regclass
                      and a.attname = v_name and not a.attisdropped) then
            execute format('alter table public.workers rename column %I to %I', v_name, 'legacy_' || v_name);
            execute format('alter table public.workers alter column %1$I drop default, alter column %1$I drop not null',
                           'legacy_' || v_name);
        end if;
    end loop;
    alter table public.workers
        add column status text not null default 'terminated',
        add column exit_cause text default 'superseded',
        add column terminated_at timestamptz default now(),
        add column state_reason text default 'older than this schema';
    alter table public.workers
        alter column exit_cause drop default, alter column terminated_at drop default, alter column state_reason drop default;
    raise notice 'workers from before count as terminated (superseded); their column legacy_status keeps what they were'
        using errcode = 'OR100';
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
    add column if not exists bringup_ended_at timestamptz,
    add column if not exists promoted_at timestamptz,
    add column if not exists billing_until timestamptz,
    add column if not exists ending_since timestamptz,
    add column if not exists held_back jsonb,
    add column if not exists cluster text,
    alter column status set default 'spawning',
    alter column status set not null,
    alter column instance_type set default 'unknown',
    alter column metadata set default '{}',
    alter column created_at set default now(),
    add constraint workers_id_safe check (id ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$') not valid,
    add constraint workers_fleet_named
        check (fleet ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' and octet_length(fleet) <= 63) not valid,
    add constraint workers_pool_named
        check (pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' and octet_length(pool) <= 63) not valid,
    add constraint workers_reserved check (reserved_usd >= 0 and reserved_usd_per_hour >= 0) not valid,
    add constraint workers_status_known
        check (status in ('spawning', 'active', 'idle', 'terminating', 'terminated')) not valid,
    add constraint workers_stage_known
        check (stage in ('intent', 'pod_created', 'pod_running', 'ssh_details', 'tcp', 'ssh_auth', 'exec', 'identity',
                         'platform', 'gpu_inventory', 'gpu_health', 'gpu_fabric', 'deploy', 'process', 'heartbeat',
                         'promoted', 'draining', 'flushing', 'deleting', 'gone')) not valid,
    add constraint workers_waiting_on_known
        check (waiting_on in ('orchestrator', 'provider', 'worker', 'operator', 'capacity', 'budget')) not valid,
    add constraint workers_exit_cause_known
        check (exit_cause in ('idle_timeout', 'scale_down', 'manual', 'shutdown', 'max_lifetime', 'budget', 'superseded',
                              'spawn_failed', 'heartbeat_lost', 'task_stuck', 'gpu_fault', 'host_fault', 'pod_lost',
                              'stale_code', 'agent_crashed', 'worker_sick', 'release_bad')) not valid,
    -- Each live worker names who must act next, and by when.
    add constraint workers_live_waits
        check (status = 'terminated'
               or (stage is not null and waiting_on is not null and deadline_at is not null
                   and next_attempt_at is not null)) not valid,
    add constraint workers_exit_has_cause
        check (status not in ('terminating', 'terminated') or exit_cause is not null) not valid;
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

-- An enum for the status learns our states. A user's constraint of a text would refuse Cancelled.
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
    end if;
end
$$;

-- Projects may still name what a task needs in `dependant_on`. A row with NULL in depends_on, such as each existing one,
-- needs that; see orchestrator.needs().
do $$
begin
    if exists (select from pg_catalog.pg_attribute a where a.attrelid = 'public.tasks'::regclass
                  and a.attname = 'dependant_on' and not a.attisdropped) then
        alter table public.tasks add column if not exists depends_on uuid[];
        raise notice 'tasks.dependant_on is followed by depends_on' using errcode = 'OR100';
    end if;
end
$$;
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
    add column if not exists pool text,
    add column if not exists priority int not null default 0,
    add column if not exists max_attempts int,
    add column if not exists timeout_s numeric,
    add column if not exists run_after timestamptz,
    add column if not exists depends_on uuid[] not null default '{}',
    add column if not exists dedupe_key text,
    add column if not exists progress jsonb,
    add column if not exists cancel_requested_at timestamptz,
    add column if not exists failure_code text,
    add column if not exists failed_at_point text,
    add column if not exists output_object jsonb,
    add column if not exists tenant text,
    add column if not exists labels jsonb,
    add column if not exists webhook_url text,
    add column if not exists webhook_progress boolean,
    add column if not exists traceparent text,
    add column if not exists concurrency_key text,
    alter column status set default 'Queued',
    alter column attempts set default 0,
    alter column created_at set default now(),
    alter column updated_at set default now(),
    alter column depends_on set default '{}';
alter table public.tasks alter column pool drop default, alter column max_attempts drop default;  -- NULL: by task type
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
