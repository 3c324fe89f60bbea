-- The queue. `tasks` is what existing projects have: it is only ever added to, and no row is lost.

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
    add column if not exists pool text not null default 'default',
    add column if not exists priority int not null default 0,
    add column if not exists max_attempts int not null default 3,
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
    add column if not exists failed_at_point text;

update public.tasks set attempts = 0 where attempts is null;
update public.tasks set created_at = now() where created_at is null;
update public.tasks set updated_at = created_at where updated_at is null;
alter table public.tasks
    alter column status set default 'Queued',
    alter column attempts set default 0,
    alter column attempts set not null,
    alter column created_at set default now(),
    alter column created_at set not null,
    alter column updated_at set default now(),
    alter column updated_at set not null;

comment on column public.tasks.attempts is 'How often it was claimed: the fencing token of the claim that holds it';
comment on column public.tasks.uncounted is 'Attempts that do not count against max_attempts: given back unstarted, or before a retry';
comment on column public.tasks.blocked is 'Queued, but a task in depends_on is not Complete; kept by triggers';
comment on column public.tasks.priority is 'Higher first, then age';
comment on column public.tasks.dedupe_key is 'Unique while the task is Queued or In Progress';
comment on column public.tasks.lease_expires_at is 'Renewed by heartbeats; past it the task is rescued';
comment on column public.tasks.progress_at is 'When progress last changed; the stuck clock';
comment on column public.tasks.failed_at_point is 'Claiming, Processing or Completion';

do $$
declare
    v_constraint name;
    v_rows bigint;
    v_is_text boolean;
begin
    select t.typcategory = 'S' into v_is_text
      from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid
     where a.attrelid = 'public.tasks'::regclass and a.attname = 'status';
    if v_is_text then
        -- A check of the project's own would refuse Cancelled.
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
        select count(*) into v_rows from public.tasks
         where status not in ('Queued', 'In Progress', 'Complete', 'Failed', 'Cancelled');
        if v_rows = 0 then
            alter table public.tasks validate constraint tasks_status_known;
        else
            raise notice '% tasks keep a status that this system does not know; they are never claimed', v_rows
                using errcode = 'OR100';
        end if;
    end if;

    update public.tasks set lease_expires_at = now() + interval '1 hour'
     where status = 'In Progress' and lease_expires_at is null;
    get diagnostics v_rows = row_count;
    if v_rows > 0 then
        raise notice '% tasks In Progress got a lease of one hour; whoever runs them has until then to finish', v_rows
            using errcode = 'OR100';
    end if;
end
$$;

alter table public.tasks
    add constraint tasks_pool_named check (pool ~ '^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$'),
    add constraint tasks_attempts_counted check (attempts >= 0 and uncounted between 0 and attempts and max_attempts > 0);

-- Projects that name one earlier task in `dependant_on` go on doing so; depends_on follows it.
do $$
declare
    v_type text;
    v_source text;
begin
    select format_type(a.atttypid, null) into v_type from pg_catalog.pg_attribute a
     where a.attrelid = 'public.tasks'::regclass and a.attname = 'dependant_on' and not a.attisdropped;
    if v_type in ('uuid', 'uuid[]') then
        v_source := case v_type when 'uuid' then 'array[%s.dependant_on]' else '%s.dependant_on' end;
        execute format('update public.tasks t set depends_on = %s where t.dependant_on is not null and t.depends_on = ''{}''',
                       format(v_source, 't'));
        execute format(
            'create function public.internal_dependant_on() returns trigger
             language plpgsql security definer set search_path = '''' as $f$
             begin
                 if tg_op = ''INSERT'' then
                     if new.depends_on = ''{}'' and new.dependant_on is not null then
                         new.depends_on := %s;
                     end if;
                 elsif new.dependant_on is distinct from old.dependant_on and new.depends_on = old.depends_on then
                     new.depends_on := coalesce(%s, ''{}'');
                 end if;
                 return new;
             end $f$',
            format(v_source, 'new'),
            case v_type when 'uuid' then 'array_remove(array[new.dependant_on], null)' else 'new.dependant_on' end);
        create trigger tasks_dependant_on before insert or update on public.tasks
            for each row execute function public.internal_dependant_on();
        raise notice 'tasks.dependant_on is followed by depends_on' using errcode = 'OR100';
    end if;
    update public.tasks t set blocked = true
     where t.status = 'Queued' and t.depends_on <> '{}'
       and exists (select from unnest(t.depends_on) n (id) left join public.tasks d on d.id = n.id
                    where d.status is distinct from 'Complete');
end
$$;

-- What a claim looks for, in the order in which it takes it; blocked tasks are not in it.
create index tasks_claim on public.tasks (pool, priority desc, created_at, id) include (run_after)
    where status = 'Queued' and not blocked;
create index tasks_running on public.tasks (worker_id) where status = 'In Progress';
create index tasks_dependants on public.tasks using gin (depends_on) where blocked;
create unique index tasks_dedupe on public.tasks (dedupe_key)
    where dedupe_key is not null and status in ('Queued', 'In Progress');
create index tasks_recent on public.tasks (created_at desc);
alter table public.tasks set (
    fillfactor = 85,
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

create table public.task_attempts (
    task_id uuid not null,
    attempt int not null,  -- the fencing token
    worker_id text not null,
    nonce text not null,  -- the launch of the agent that claimed it
    claim_no bigint not null,  -- the agent's number of the claim; a repeated one gets the same tasks
    started_at timestamptz not null,
    ended_at timestamptz,
    outcome text check (outcome in ('complete', 'failed', 'cancelled', 'released', 'lost')),
    failure_code text,
    exit_class text,  -- exception, oom, vram_oom, signal, timeout, cancelled, lost
    failed_at_point text,
    message text,
    detail jsonb,
    log_first bigint,  -- where the handler log stood, by the last heartbeat, at the start and at the end
    log_last bigint,
    primary key (task_id, attempt),
    check ((ended_at is null) = (outcome is null))
);
create index task_attempts_claim on public.task_attempts (worker_id, nonce, claim_no);
create index task_attempts_worker on public.task_attempts (worker_id, started_at desc);
