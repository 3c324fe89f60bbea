-- What scaling remembers: how climbs ended and which release they proved, what a worker may still cost, how an offer has
-- answered, and what is declared of the types of tasks.

alter table public.workers
    add column release text,
    add column reserved_usd_per_hour numeric not null default 0,
    add column climb_ended_at timestamptz,
    add column promoted_at timestamptz,
    add constraint workers_reserved check (reserved_usd >= 0 and reserved_usd_per_hour >= 0);

comment on column public.workers.release is 'image@code that it runs';
comment on column public.workers.reserved_usd is 'What ending it in good order may still cost: part of the committed budget';
comment on column public.workers.reserved_usd_per_hour is 'Its price, before the provider has told it';
comment on column public.workers.climb_ended_at is 'When it left spawning, promoted or not';

create index workers_climbs on public.workers (fleet, climb_ended_at) where climb_ended_at is not null;

-- What a fleet has seen work.
create table public.releases (
    fleet text not null,
    release text not null,
    promoted_at timestamptz not null,  -- the last time
    primary key (fleet, release)
);

create function public.internal_worker_climbed() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    new.climb_ended_at := public.internal_now();
    if new.status = 'active' then
        new.promoted_at := new.climb_ended_at;
        if new.release is not null then
            insert into public.releases as r (fleet, release, promoted_at)
            values (new.fleet, new.release, new.promoted_at)
            on conflict (fleet, release) do update set promoted_at = excluded.promoted_at
             where r.promoted_at < excluded.promoted_at - interval '1 minute';  -- many are promoted at once
        end if;
    end if;
    return new;
end
$$;
create trigger workers_climbed before update on public.workers
    for each row when (old.status = 'spawning' and new.status <> 'spawning')
    execute function public.internal_worker_climbed();

-- The sum of a day, at every look.
create index costs_spent on public.costs (fleet, to_at) include (from_at, usd);

alter table public.offers add column probe_budget int check (probe_budget > 0);
comment on column public.offers.probe_budget is 'Create calls that may be under way at once: 1 after a refusal, doubled by a success';

-- What POOLS_FILE says of a type; the leader declares it.
create table public.task_types (
    task_type text primary key,
    fleet text not null,
    pool text check (pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$'),
    timeout_s numeric check (timeout_s > 0),
    max_attempts int check (max_attempts between 1 and 100),
    declared_at timestamptz not null
);

-- A task that names no pool, limit or number of attempts gets what is declared of its type, whoever inserts it.
create function public.internal_task_routed() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    v_type public.task_types;
begin
    if new.pool is null or new.max_attempts is null or new.timeout_s is null then
        select * into v_type from public.task_types d where d.task_type = new.task_type;
        new.pool := coalesce(new.pool, v_type.pool, 'default');
        new.max_attempts := coalesce(new.max_attempts, v_type.max_attempts, 3);
        new.timeout_s := coalesce(new.timeout_s, v_type.timeout_s);
    end if;
    return new;
end
$$;
create trigger tasks_routed before insert on public.tasks
    for each row execute function public.internal_task_routed();
alter table public.tasks alter column pool drop default, alter column max_attempts drop default;
