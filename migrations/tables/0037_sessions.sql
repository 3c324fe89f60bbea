-- pre-deploy
-- Sessions of the dashboard, and one-time links to it. Each is known by the SHA-256 of a random number of 256 bits.
create table if not exists orchestrator.sessions (
    hash text primary key check (hash ~ '^[0-9a-f]{64}$'),
    fleet text not null,
    token_hash text check (token_hash ~ '^[0-9a-f]{64}$'),
    is_link boolean not null,
    expires_at timestamptz not null
);
comment on column orchestrator.sessions.token_hash is
    'SHA-256 of the token with which somebody signed in: the session ends with it; NULL for a one-time link: it may read';
create index if not exists sessions_expired on orchestrator.sessions (expires_at);
