-- What one orchestrator must find when another has gone.

create table public.fleet_lease (
    fleet text primary key,
    holder text not null,
    term bigint not null,  -- the fencing epoch: grows by one with each change of leader
    expires_at timestamptz not null,
    since timestamptz not null  -- when this term began
);

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

create table public.offers (
    fleet text not null,
    key text not null,  -- GPU type|data centre|cloud
    cooldown_until timestamptz,
    refusals int not null default 0,  -- in a row
    last_refusal timestamptz,
    last_code text,
    last_success timestamptz,
    primary key (fleet, key)
);

create table public.log_objects (
    worker_id text not null,
    boot_id text not null,  -- the launch that wrote the stream
    stream text not null,
    seq int not null,
    first_byte bigint not null,
    last_byte bigint,  -- exclusive; null: lost bytes whose end was never known
    sha256 text,  -- of the raw bytes
    key text,  -- where the object lies; null: there is none
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

create table public.fleet_settings (
    fleet text not null,
    name text not null,
    value jsonb not null,
    reason text not null,
    set_at timestamptz not null,
    expires_at timestamptz,
    primary key (fleet, name)
);
