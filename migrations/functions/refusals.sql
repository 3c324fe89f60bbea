-- Changes of a task that the database refuses, mostly a trigger or a constraint of a user: what follows, and what an error
-- says about the task. Every snapshot tries those that are due (settling.sql).

-- Records a refusal. The next try comes after 30 s, or after 1 s if another transaction held a lock, and each further one
-- after twice the time, up to ten minutes. The worker of a refused result waits for it, so the pause is 1 to 30 s then. If
-- another transaction is recording one and the caller does not wait for it any longer, nothing is recorded: the caller must
-- not fail for that.
create or replace function public.internal_refused(
    p_ids uuid[], p_what text, p_reason text, p_sqlstate text default null
) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_now();
    v_first_s numeric := case when p_what = 'complete' or p_sqlstate in ('55P03', '40P01') then 1 else 30 end;
    v_most_s numeric := case when p_what = 'complete' then 30 else 600 end;
begin
    insert into public.task_refusals as r (task_id, what, reason, refused_at, retry_at, since)
    select distinct n.id, p_what, left(p_reason, 4000), v_now, v_now + v_first_s * interval '1 second', v_now
      from unnest(p_ids) n (id) where n.id is not null order by 1
    on conflict (task_id) do update
       set what = excluded.what, reason = excluded.reason, refused_at = excluded.refused_at,
           since = case when r.what = excluded.what then coalesce(r.since, r.refused_at) else v_now end,
           times = case when r.what = excluded.what then least(r.times, 1000) + 1 else 1 end,
           retry_at = v_now + interval '1 second' * least(v_most_s,
               v_first_s * 2 ^ case when r.what = excluded.what then least(r.times, 10) else 0 end);
exception when lock_not_available or deadlock_detected then
    null;
end
$$;

-- Claims a task that claims skip for now, and takes that back. If it works, claims take the task again.
create or replace function public.internal_try_refused(p_task_id uuid) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_now();
    v_message text;
    v_sqlstate text;
    v_is_ready boolean;
begin
    select t.status = 'Queued' and not t.blocked into v_is_ready
      from public.tasks t where t.id = p_task_id for no key update skip locked;
    if v_is_ready is null and exists (select from public.tasks t where t.id = p_task_id) then
        perform public.internal_refused(array[p_task_id], 'claim', 'Another transaction was changing it', '55P03');
        return;
    elsif v_is_ready is not true then  -- if it cannot be claimed then either, the next claim finds out
        delete from public.task_refusals r where r.task_id = p_task_id and r.what = 'claim';
        return;
    end if;
    begin
        update public.tasks t
           set status = 'In Progress', updated_at = v_now, attempts = t.attempts + 1, lease_expires_at = v_now,
               progress = null, progress_at = v_now, run_after = null, error_message = null, failure_code = null,
               failed_at_point = null, generation_started_at = v_now, generation_processed_at = null
         where t.id = p_task_id;
        perform public.internal_fire_deferred();
        if exists (select from public.tasks t where t.id = p_task_id and t.status = 'Queued' and not t.blocked) then
            v_message := 'A trigger of the database suppressed its claim';
        end if;
        raise exception using errcode = 'OR008';  -- caught below: it undoes the claim
    exception
        when sqlstate 'OR008' then null;
        when query_canceled then
            v_message := 'A claim of it takes too long and is cancelled (57014)';
            v_sqlstate := sqlstate;
        when others or assert_failure then
            v_message := format('The database refused to hand it to a worker: %s (%s)', sqlerrm, sqlstate);
            v_sqlstate := sqlstate;
    end;
    if v_message is null then
        delete from public.task_refusals r where r.task_id = p_task_id and r.what = 'claim';
    else
        perform public.internal_refused(array[p_task_id], 'claim', v_message, v_sqlstate);
    end if;
end
$$;

-- The pause after a refusal is over: the limit that the task waits for is filled at this snapshot. A task that could not
-- begin to wait is tried at once. The refusal is forgotten if the task waits for no limit any more.
create or replace function public.internal_try_let_in(p_task_id uuid) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off as $$
#variable_conflict use_variable
declare
    v_row tid;
begin
    insert into public.concurrency_notes (scope, name)
    select case t.queue_gate when 1 then 'key' else 'type' end,
           case t.queue_gate when 1 then t.concurrency_key else t.task_type end
      from public.tasks t where t.id = p_task_id and t.status = 'Queued' and t.queue_gate in (1, 2);
    if found then
        return;
    end if;
    select t.ctid into v_row from public.tasks t
     where t.id = p_task_id and t.status = 'Queued' and not t.blocked and t.queue_gate = 0 for no key update skip locked;
    if v_row is null or public.internal_begin_waiting(array[v_row]) = '{}' then
        delete from public.task_refusals r where r.task_id = p_task_id and r.what = 'let_in';
    end if;
end
$$;

-- Whether an error is about the present state of this server (deadlock, resources, cancellation, shutdown, locks, input or
-- output) and not about the task. A lost connection is of another server, which a user's trigger calls: nobody catches the
-- loss of our own. So is a conflict between transactions that are READ COMMITTED, and a refused write in one that writes.
create or replace function public.internal_is_transient(p_sqlstate text) returns boolean
language plpgsql stable security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    return left(p_sqlstate, 2) in ('53', '57') or p_sqlstate in ('40P01', '55P03', '58030')
        or p_sqlstate = '40001' and current_setting('transaction_isolation') <> 'read committed'
        or p_sqlstate = '25006' and current_setting('transaction_read_only')::boolean;
end
$$;

-- Whether an error is about the schema, or about a state that a user's trigger needs, and not about one task: an
-- unsupported rule, a text longer than its column, a missing column or function, a lack of rights, a foreign server (also a
-- conflict there), a sequence or a file that is not ready.
create or replace function public.internal_is_of_schema(p_sqlstate text) returns boolean
language sql immutable security definer set search_path = '' as $$
    select left(internal_is_of_schema.p_sqlstate, 2) in ('08', '0A', '25', '40', '42', '55', '58', 'HV')
        or internal_is_of_schema.p_sqlstate = '22001'
$$;
