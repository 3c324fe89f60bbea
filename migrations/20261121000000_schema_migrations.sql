-- Which migrations were applied. `orchestrator migrate` makes this table itself and writes it; here it is for those who
-- apply these files with `supabase db push`, which keeps a history of its own.

create table if not exists public.schema_migrations (
    version text primary key,
    name text not null,
    checksum text not null,
    applied_at timestamptz not null default now()
);
