-- pre-deploy
-- What the leader has found wrong for how long, and messages to addresses outside; see functions/alerting.sql.
create table public.alerts (
    fleet text not null,
    kind text not null,
    subject text not null,
    state jsonb not null check (octet_length(state::text) <= 16384),
    primary key (fleet, kind, subject)
);
comment on table public.alerts is 'Conditions that lead or led to a message, as the leader keeps them from one check to the next';
alter table public.alerts enable row level security;

create table public.outbox (
    id uuid primary key default gen_random_uuid(),
    fleet text not null,
    kind text not null,
    dedup_key text not null,
    url_name text not null,
    body jsonb not null check (octet_length(body::text) <= 65536),
    created_at timestamptz not null,
    attempts int not null default 0,
    next_at timestamptz,
    sent_at timestamptz,
    failure text check (octet_length(failure) <= 2000),
    unique (fleet, kind, dedup_key)
);
comment on column public.outbox.url_name is 'The setting with the URL; the URL itself is a secret and is not stored';
comment on column public.outbox.next_at is 'The next attempt; null once it was sent or given up';
create index outbox_due on public.outbox (fleet, next_at) where next_at is not null;
create index outbox_by_age on public.outbox (fleet, kind, created_at);
alter table public.outbox enable row level security;
