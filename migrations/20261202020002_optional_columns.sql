-- pool and max_attempts may be left out, so they are nullable for the clients that are generated from the catalogue.
-- NULL means "by task type": a trigger fills both at an insert and at an update, and a constraint sees to it that it did.

alter table public.tasks
    add constraint tasks_filled check (pool is not null and max_attempts is not null) not valid,
    alter column pool drop not null,
    alter column max_attempts drop not null;
alter table public.tasks validate constraint tasks_filled;

comment on column public.tasks.pool is 'NULL in a write: by task type';
comment on column public.tasks.max_attempts is 'NULL in a write: by task type';

create or replace function public.internal_task_changing() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    if new.updated_at is not distinct from old.updated_at then
        new.updated_at := public.internal_now();
    end if;
    if new.attempts < new.uncounted then  -- a user starts them again
        new.uncounted := greatest(new.attempts, 0);
    end if;
    if new.pool is null then
        new.pool_by_type := true;
    end if;
    if new.pool is null or new.status = 'Queued' and old.status <> 'Queued' and new.pool_by_type then
        new.pool := coalesce((select d.pool from public.task_types d where d.task_type = new.task_type), 'default');
    end if;
    if new.max_attempts is null then
        new.max_attempts := coalesce((select d.max_attempts from public.task_types d where d.task_type = new.task_type), 3);
    end if;
    return new;
end
$$;
