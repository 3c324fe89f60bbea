-- A failure code is shown on terminals and compared with known codes. A pod may send any text as its code: an escape
-- sequence, a whole traceback. Such a code is stored as INVALID_CODE and the call succeeds, because an agent that is
-- refused would report the same failure for ever.

create or replace function public.internal_code_checked() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    new.failure_code := 'INVALID_CODE';
    return new;
end
$$;

do $$
declare
    v_role name;
begin
    revoke all on function public.internal_code_checked() from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function public.internal_code_checked() from %I', v_role);
    end loop;
end
$$;

create trigger failure_code_checked before insert or update of failure_code on public.tasks
    for each row when (new.failure_code !~ '^[A-Z0-9_]{1,64}$') execute function public.internal_code_checked();
create trigger failure_code_checked before insert or update of failure_code on public.task_attempts
    for each row when (new.failure_code !~ '^[A-Z0-9_]{1,64}$') execute function public.internal_code_checked();
