-- pre-deploy
-- Slurm clusters on the workers of a pool: the clusters, their members, what is done with members, and what is done on
-- pods; see functions/clusters.sql. The legal changes of their states are rows, as those of workers.

do $$
begin
    if exists (select from pg_catalog.pg_attribute a
                where a.attrelid = 'public.workers'::regclass and a.attname = 'cluster' and not a.attisdropped) then
        raise exception 'the existing column workers.cluster is not of this system' using errcode = 'OR007',
            detail = 'This system stores there which cluster reserves a worker; a worker with any other value claims nothing.',
            hint = 'Rename your column.';
    end if;
end
$$;
alter table public.workers
    add column cluster text;
comment on column public.workers.cluster is 'The cluster that reserves it since its intent; NULL: it takes tasks of its pool';

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
