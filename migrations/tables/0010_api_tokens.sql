-- pre-deploy
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
