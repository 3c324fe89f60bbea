-- A cascade ends where none of the tasks that it comes to has ended. Such a task was tried again without end if it came after
-- tasks that failed together: a user's trigger may keep it as it is.

create or replace function public.internal_settle(p_ids uuid[], p_gone uuid[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_ids uuid[] := p_ids;
    v_gone uuid[] := p_gone;
    v_lock record;
    v_waits int := 3;
    v_ended uuid[];
    v_behind uuid[] := '{}';  -- null: level by level
begin
    while cardinality(v_ids) > 0 loop
        select * into v_lock from public.internal_lock_queued(v_ids, v_waits);
        v_waits := v_lock.p_waits;
        if v_lock.missed <> '{}' then
            insert into public.tasks_unsettled (task_ids) values (v_lock.missed);
        end if;
        exit when v_lock.locked is null;
        v_ended := public.internal_settle_locked(v_lock.locked, v_gone);
        v_gone := '{}';
        exit when v_ended = '{}';
        if v_behind is not null then
            v_behind := public.internal_fail_behind(v_ended);
        end if;
        v_ids := public.internal_dependants(v_ended || v_behind);
    end loop;
end
$$;
