-- pre-deploy
-- How tenants share a queue; see functions/fairness.sql.
create table public.tenants (
    tenant text primary key check (length(tenant) between 1 and 200),
    weight int not null default 1 check (weight between 1 and 1000),
    set_at timestamptz not null default now()
);
comment on table public.tenants is 'Shares of the tenants that do not have the weight 1';
comment on column public.tenants.weight is 'Tasks of this tenant that are claimed for each one of a tenant with the weight 1';
alter table public.tenants enable row level security;

do $$
begin
    if exists (select from pg_catalog.pg_attribute a
                where a.attrelid = 'public.tasks'::regclass and a.attname = 'queue_turn' and not a.attisdropped
                  and format_type(a.atttypid, null) <> 'bigint') then
        raise exception 'the existing column tasks.queue_turn is not a bigint'
            using errcode = 'OR007', detail = 'This system keeps the order of the queue in it.', hint = 'Rename your column.';
    end if;
end
$$;
alter table public.task_marks add column queue_turn bigint not null default 0;
alter table public.tasks add column if not exists queue_turn bigint not null default 9007199254740991;
comment on column public.tasks.queue_turn is 'Its turn among the tenants of its pool and priority; 9007199254740991 (the greatest exact number of JSON) for none. Kept by triggers';
