-- The number of a claim, and tasks that cannot be claimed.
--
-- (task id, attempt number) is the fencing token of a claim, and part of the keys of its outputs. It never repeats,
-- whatever users write to `tasks` and `task_attempts`: a claim takes the number after the highest of
--   * tasks.attempts,
--   * the numbers of the task's rows in task_attempts, which outlive a deleted task and a reset of its attempts, and
--   * the floor: the highest number in a row of task_attempts that was deleted, truncated or renumbered while the launch
--     that made the claim could still use it. It is the value of a sequence, which no INSERT, UPDATE or DELETE changes.
-- Where that skips numbers, tasks.uncounted grows by as many, so that attempts - uncounted is compared with max_attempts
-- as before.

alter table public.task_counts replica identity full;
alter table public.task_marks add constraint task_marks_pkey primary key (no);

create sequence public.task_attempts_floor as integer minvalue 0 start 0;

create function public.internal_raise_floor(p_attempt int) returns void
language plpgsql security definer set search_path = '' as $$
begin
    -- Without the lock the lower of two values could be written last.
    perform pg_advisory_xact_lock(hashtextextended('orchestrator attempts floor', 0));
    perform setval('public.task_attempts_floor', p_attempt)
       from public.task_attempts_floor f where p_attempt > f.last_value;
end
$$;

create function public.internal_attempts_removed() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    v_highest int;
begin
    if tg_op = 'DELETE' then
        select max(r.attempt) into v_highest
          from removed r join public.workers w on w.id = r.worker_id and w.nonce = r.nonce where w.status <> 'terminated';
    elsif tg_op = 'TRUNCATE' then
        select max(r.attempt) into v_highest
          from public.task_attempts r join public.workers w on w.id = r.worker_id and w.nonce = r.nonce
         where w.status <> 'terminated';
    else
        v_highest := old.attempt;
    end if;
    if v_highest is not null then
        perform public.internal_raise_floor(v_highest);
    end if;
    return null;
end
$$;

create trigger task_attempts_removed after delete on public.task_attempts referencing old table as removed
    for each statement execute function public.internal_attempts_removed();
create trigger task_attempts_truncated before truncate on public.task_attempts
    for each statement execute function public.internal_attempts_removed();
create trigger task_attempts_renumbered after update of task_id, attempt, worker_id, nonce on public.task_attempts
    for each row when ((old.task_id, old.attempt, old.worker_id, old.nonce)
                       is distinct from (new.task_id, new.attempt, new.worker_id, new.nonce))
    execute function public.internal_attempts_removed();

create or replace function public.internal_task_changing() returns trigger
language plpgsql security definer set search_path = '' as $$
begin
    if new.updated_at is not distinct from old.updated_at then
        new.updated_at := public.internal_now();
    end if;
    if new.attempts < new.uncounted then  -- a user starts them again
        new.uncounted := greatest(new.attempts, 0);
    end if;
    if new.status = 'Queued' and old.status <> 'Queued' and new.pool_by_type then
        new.pool := coalesce((select d.pool from public.task_types d where d.task_type = new.task_type), 'default');
    end if;
    return new;
end
$$;

-- Whether an error says something about the statement's moment (connection, deadlock, read-only, resources, cancelled,
-- shutting down, input or output) and nothing about the task.
create function public.internal_is_passing(p_sqlstate text) returns boolean
language sql immutable security definer set search_path = '' as $$
    select left(p_sqlstate, 2) in ('08', '25', '40', '53', '55', '57', '58')
$$;

-- Whether a value could not be read by an agent or a generated client: levels within levels, or a number with more digits
-- than Python converts. The depth of the search is bounded, and so is its stack.
create function public.internal_is_unreadable(p_value jsonb) returns boolean
language plpgsql immutable security definer set search_path = '' as $$
declare
    c_digits constant int := 4000;  -- Python refuses 4,301 of them
begin
    if p_value @? 'strict $.**{65}' then
        return true;
    end if;
    return octet_length(p_value::text) > c_digits
       and p_value @? 'strict $.** ? (@.type() == "number" && (@ >= 1e4000 || @ <= -1e4000))';
end
$$;

-- Ends a queued task that no worker can get. False where not even that is possible (a user's trigger refuses it).
create function public.internal_end_unclaimed(p_task_id uuid, p_code text, p_message text, p_now timestamptz) returns boolean
language plpgsql security definer set search_path = '' as $$
begin
    update public.tasks t
       set status = 'Failed', run_after = null, generation_processed_at = p_now, failed_at_point = 'Claiming',
           failure_code = p_code, error_message = left(p_message, 4000)
     where t.id = p_task_id;
    return true;
exception when others then  -- a user's trigger or constraint may raise anything
    if public.internal_is_passing(sqlstate) then
        raise;
    end if;
    return false;
end
$$;

-- What keeps a task's inputs from a worker (code and sentence), and how many bytes they are in a claim's answer.
create function public.internal_inputs(p_task_id uuid, p_limit_bytes int, out bytes bigint, out code text, out message text)
language plpgsql stable security definer set search_path = '' as $$
declare
    v_needs int;
begin
    bytes := 0;
    select cardinality(t.depends_on), octet_length(t.params::text)
           + coalesce((select sum(octet_length(d.result_data::text)) from public.tasks d where d.id = any (t.depends_on)), 0)
      into v_needs, bytes from public.tasks t where t.id = p_task_id;
    if bytes > p_limit_bytes then
        code := 'INPUTS_TOO_LARGE';
        message := format('Its params and the results of the %s tasks that it depends on are more than %s MiB',
                          v_needs, p_limit_bytes / 1048576);
    elsif exists (select from public.tasks t where t.id = p_task_id and public.internal_is_unreadable(t.params))
       or exists (select from public.tasks t join public.tasks d on d.id = any (t.depends_on)
                   where t.id = p_task_id and public.internal_is_unreadable(d.result_data)) then
        code := 'INPUTS_UNREADABLE';
        message := 'Its params or the results of the tasks that it depends on are nested deeper than 64 levels, '
                   'or have a number of more than 4000 digits';
    end if;
exception when program_limit_exceeded or statement_too_complex or numeric_value_out_of_range then
    code := 'INPUTS_TOO_LARGE';
    message := format('Its params or the results of the tasks that it depends on cannot be written as text: %s', sqlerrm);
end
$$;

-- Of these rows, locked and in their order: those that one answer can carry. Those that none can carry are ended; if that
-- is impossible, they are added to p_passed.
create function public.internal_sift(p_rows tid[], p_limit_bytes int, p_now timestamptz, inout p_passed uuid[],
                                     out fit tid[], out plain int)
language plpgsql security definer set search_path = '' set enable_sort = off as $$
declare
    v_task record;
    v_inputs record;
    v_bytes bigint := 0;
begin
    plain := 0;
    for v_task in select t.ctid as place, t.id, t.run_after from public.tasks t where t.ctid = any (p_rows)
                   order by ~t.priority, t.created_at, t.id loop
        select * into v_inputs from public.internal_inputs(v_task.id, p_limit_bytes);
        if v_inputs.code is null then
            v_bytes := v_bytes + v_inputs.bytes;
            exit when v_bytes > p_limit_bytes;
            fit := fit || v_task.place;
            plain := plain + (v_task.run_after is null)::int;
        elsif not public.internal_end_unclaimed(v_task.id, v_inputs.code, v_inputs.message, p_now) then
            p_passed := p_passed || v_task.id;
        end if;
    end loop;
end
$$;

-- These rows, locked and claimable, become the worker's: all of them or, with an error, none.
create function public.internal_hand_over(p_worker public.workers, p_claim_no bigint, p_rows tid[], p_plain int,
                                          p_now timestamptz) returns jsonb
language plpgsql security definer set search_path = '' set enable_sort = off as $$
declare
    v_tasks jsonb;
    v_set text;
    v_log_first bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    v_floor int := (select f.last_value from public.task_attempts_floor f);
begin
    v_set := set_config('orchestrator.minded', 'on', true);  -- counted here; nothing waits for a start, nobody is told of one
    with taken as (
        update public.tasks t
           set status = 'In Progress', worker_id = p_worker.id, updated_at = p_now,
               (attempts, uncounted) = (
                   select n.attempt, t.uncounted + n.attempt - t.attempts - 1
                     from (select 1 + greatest(t.attempts, v_floor, (select max(a.attempt) from public.task_attempts a
                                                                      where a.task_id = t.id)) as attempt) n),
               lease_expires_at = p_now + p_worker.lease_s * interval '1 second',
               progress = null, progress_at = p_now, run_after = null, error_message = null, failure_code = null,
               failed_at_point = null, generation_started_at = p_now, generation_processed_at = null
         where t.ctid = any (p_rows)
        returning t.id, t.task_type, t.params, t.attempts, t.max_attempts, t.timeout_s, t.depends_on, t.priority, t.created_at
    ), noted as (
        insert into public.task_attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, log_first)
        select k.id, k.attempts, p_worker.id, p_worker.nonce, p_claim_no, p_now, v_log_first from taken k
    ), counted as (
        insert into public.task_counts (pool, kind, n)
        select p_worker.pool, c.kind, -c.n
          from (values ('plain', p_plain), ('timed', cardinality(p_rows) - p_plain)) c (kind, n) where c.n > 0
    )
    select jsonb_agg(jsonb_build_object(
               'id', k.id, 'task_type', k.task_type, 'params', k.params, 'attempt', k.attempts,
               'max_attempts', k.max_attempts, 'timeout_s', k.timeout_s,
               'output_prefix', 'outputs/' || k.id || '/' || k.attempts || '/',
               'dependencies', case when k.depends_on = '{}' then '[]' else coalesce((
                   select jsonb_agg(jsonb_build_object('id', d.id, 'task_type', d.task_type,
                                                       'output_location', d.output_location,
                                                       'result_data', d.result_data) order by n.place)
                     from unnest(k.depends_on) with ordinality n (id, place)
                     join public.tasks d on d.id = n.id), '[]') end)
               order by k.priority desc, k.created_at, k.id)
      into v_tasks from taken k;
    v_set := set_config('orchestrator.minded', '', true);
    return v_tasks;
end
$$;

-- The same one by one, after an error with all of them: a task that cannot be handed over ends alone.
create function public.internal_hand_over_singly(p_worker public.workers, p_claim_no bigint, p_rows tid[], p_now timestamptz,
                                                 inout p_passed uuid[], out tasks jsonb)
language plpgsql security definer set search_path = '' set enable_sort = off as $$
declare
    v_task record;
    v_message text;
begin
    for v_task in select t.ctid as place, t.id, t.run_after from public.tasks t where t.ctid = any (p_rows)
                   order by ~t.priority, t.created_at, t.id loop
        begin
            tasks := coalesce(tasks, '[]') || public.internal_hand_over(
                p_worker, p_claim_no, array[v_task.place], (v_task.run_after is null)::int, p_now);
            continue;
        exception when others then  -- whatever a user's row, trigger or constraint makes of it
            if public.internal_is_passing(sqlstate) then
                raise;
            end if;
            v_message := format('The database refused to hand it to a worker: %s (%s)', sqlerrm, sqlstate);
        end;
        if not public.internal_end_unclaimed(v_task.id, 'TASK_UNCLAIMABLE', v_message, p_now) then
            p_passed := p_passed || v_task.id;
        end if;
    end loop;
end
$$;

create or replace function public.internal_take(p_worker public.workers, p_claim_no bigint, p_batch integer,
                                                p_now timestamptz) returns jsonb
language plpgsql security definer set search_path = '' set enable_sort = off as $$
declare
    v_from record;
    v_rows tid[];
    v_plain int;
    v_heavy boolean;
    v_tasks jsonb;
    v_passed uuid[] := '{}';  -- tasks that can neither be claimed nor ended
    c_least constant int := -2147483648;
    -- Single claims between two tries to raise the mark; of n at once, by the root of n fewer: a try costs what reading past
    -- the tasks of that many claims does.
    c_raise_every constant int := 32;
    c_lowered constant int := 64;  -- marks; more than that are not read again and again
    c_light_bytes constant int := 2000;  -- of params, as stored and as text: a hundred times that is a small answer
    c_bytes constant int := 33554432;  -- of an answer: what an agent reads, and what is made well within a call's deadline
    c_looks constant int := 20;  -- a claim that found only tasks to end comes to nothing; the next one goes on
begin
    select m.place, m.created_at, m.id, m.lowered into v_from from public.internal_mark(p_worker.pool, p_now) m;
    for v_look in 1..c_looks loop
        select array_agg(l.ctid), count(*) filter (where l.run_after is null), bool_or(l.heavy)
          into v_rows, v_plain, v_heavy from (
            select q.ctid, q.run_after,
                   case when q.depends_on <> '{}' or pg_column_size(q.params) > c_light_bytes then true
                        else octet_length(q.params::text) > c_light_bytes or public.internal_is_unreadable(q.params) end as heavy
              from public.tasks q
             where q.pool = p_worker.pool and q.status = 'Queued' and not q.blocked
               and (q.run_after is null or q.run_after <= p_now)
               and (~q.priority, q.created_at, q.id) >= (v_from.place, v_from.created_at, v_from.id)
               and q.id <> all (v_passed)
             order by ~q.priority, q.created_at, q.id
             limit p_batch for update skip locked) l;
        if v_heavy then
            select s.p_passed, s.fit, s.plain into v_passed, v_rows, v_plain
              from public.internal_sift(v_rows, c_bytes, p_now, v_passed) s;
            continue when v_rows is null;
        elsif v_rows is null then
            -- Nothing, where the counts say that there is something: others are taking it now, or a mark is wrong. No task
            -- waits for ever for that: it is looked everywhere before a worker is sent away.
            if v_from.place = c_least
               or coalesce((select sum(c.n) from public.task_counts c where c.pool = p_worker.pool and c.kind = 'plain'), 0) <= 0 then
                return null;
            end if;
            perform public.internal_raise_mark(p_worker.pool, p_now, true);
            v_from.place := c_least;
            v_from.created_at := '-infinity';
            continue;
        end if;
        begin
            v_tasks := public.internal_hand_over(p_worker, p_claim_no, v_rows, v_plain, p_now);
        exception when others then  -- one of them is the cause, and it is found without the others
            if public.internal_is_passing(sqlstate) then
                raise;
            end if;
            v_tasks := null;
        end;
        if v_tasks is null then
            select s.p_passed, s.tasks into v_passed, v_tasks
              from public.internal_hand_over_singly(p_worker, p_claim_no, v_rows, p_now, v_passed) s;
        end if;
        exit when v_tasks is not null;
    end loop;
    if v_tasks is not null
       and (p_claim_no % ceil(c_raise_every / sqrt(p_batch))::int = 0 or v_from.lowered > c_lowered) then
        perform public.internal_raise_mark(p_worker.pool, p_now, false);
    end if;
    return v_tasks;
end
$$;

do $$
declare
    v_function text;
    v_role name;
begin
    revoke all on sequence public.task_attempts_floor from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on sequence public.task_attempts_floor from %I', v_role);
    end loop;
    foreach v_function in array array['internal_raise_floor', 'internal_attempts_removed', 'internal_is_passing',
            'internal_is_unreadable', 'internal_end_unclaimed', 'internal_inputs', 'internal_sift', 'internal_hand_over',
            'internal_hand_over_singly'] loop
        execute format('revoke all on function public.%I from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function public.%I from %I', v_function, v_role);
        end loop;
    end loop;
end
$$;
