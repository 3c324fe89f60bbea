-- A user's trigger or constraint that keeps one task from changing harms that task alone.
--
-- * Each claim, rescue and heartbeat changes a task in a block of its own if changing all of them at once fails. A deferred
--   constraint trigger fires within that block, and not at the end of the transaction, where it would take back everything.
-- * A task that can be neither claimed nor ended gets a row in task_refusals, which no trigger of a user can suppress. Claims
--   pass over it, and the planner starts no worker for it. A snapshot tries a claim from time to time and takes it back; if
--   that works, the row goes.
-- * A task that cannot be rescued gets such a row too, and is tried again after a pause.

create table public.task_refusals (
    task_id uuid primary key,
    what text not null,
    reason text not null,
    times int not null default 1,
    refused_at timestamptz not null,
    retry_at timestamptz not null,
    constraint task_refusals_what_known check (what in ('claim', 'rescue', 'settle'))
);
create index task_refusals_due on public.task_refusals (retry_at);
comment on table public.task_refusals is 'Tasks that a trigger or a constraint of a user keeps from being claimed, rescued or settled';

-- Record a refusal. The next try comes after 30 s, and each further one after twice the time, up to ten minutes.
create function public.internal_refused(p_ids uuid[], p_what text, p_reason text) returns void
language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_now();
begin
    insert into public.task_refusals as r (task_id, what, reason, refused_at, retry_at)
    select distinct n.id, p_what, left(p_reason, 4000), v_now, v_now + interval '30 seconds'
      from unnest(p_ids) n (id) where n.id is not null order by 1
    on conflict (task_id) do update
       set what = excluded.what, reason = excluded.reason, refused_at = excluded.refused_at,
           times = case when r.what = excluded.what then least(r.times, 1000) + 1 else 1 end,
           retry_at = v_now + least(30 * 2 ^ case when r.what = excluded.what then least(r.times, 10) else 0 end, 600)
                              * interval '1 second';
end
$$;

-- How many ready tasks of each pool no claim takes for now.
create function public.internal_refused_ready(p_now timestamptz) returns table (pool text, n bigint)
language sql stable security definer set search_path = '' as $$
    select t.pool, count(*) from public.task_refusals r join public.tasks t on t.id = r.task_id
     where r.what = 'claim' and t.status = 'Queued' and not t.blocked and (t.run_after is null or t.run_after <= p_now)
     group by t.pool
$$;

-- Fire the deferred constraint triggers of what was done so far, if the transaction consists of one call of a worker_* or
-- fleet_* function: then the caller's exception block gets their errors. In a transaction of a user they fire at its end.
create function public.internal_fire_deferred() returns void
language plpgsql security definer set search_path = '' as $$
begin
    if current_setting('orchestrator.alone', true) = statement_timestamp()::text then
        set constraints all immediate;
    end if;
end
$$;

create or replace function public.internal_caller(p_worker_id text, p_lock boolean) RETURNS public.workers
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_claims jsonb;
    v_worker public.workers;
    v_set text;
begin
    v_set := set_config('orchestrator.alone', statement_timestamp()::text, true);
    if public.internal_is_pod() then
        v_claims := nullif(current_setting('request.jwt.claims', true), '')::jsonb;
        if v_claims->>'sub' is null or v_claims->>'sub' is distinct from p_worker_id then
            perform public.internal_refuse('OR006', 'the token is not of this worker');
        end if;
    end if;
    if p_lock then
        select * into v_worker from public.workers w where w.id = p_worker_id for update;
    else
        select * into v_worker from public.workers w where w.id = p_worker_id;
    end if;
    if v_worker.id is null or v_worker.status = 'terminated' then
        perform public.internal_refuse('OR005', 'no such worker, or it has terminated', '', 'stop');
    end if;
    if v_claims is not null and (v_worker.token_jti is null or v_claims->>'jti' is distinct from v_worker.token_jti) then
        perform public.internal_refuse('OR006', 'the token was revoked');
    end if;
    return v_worker;
end
$$;

create or replace function public.internal_check_term(p_fleet text, p_term bigint, p_what text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_term bigint;
    v_set text;
begin
    v_set := set_config('orchestrator.alone', statement_timestamp()::text, true);
    select l.term into v_term from public.fleet_lease l where l.fleet = p_fleet for share;
    if v_term is distinct from p_term or p_term is null then
        perform public.internal_refuse('OR001', format('%s refused: term %s does not lead fleet %s', p_what, p_term, p_fleet),
            format('the present term is %s', v_term), 'Another orchestrator leads; call fleet_lead and observe again.');
    end if;
end
$$;

-- End a queued task that no worker can get. False if that is impossible: a user's trigger refuses or suppresses it.
create or replace function public.internal_end_unclaimed(p_task_id uuid, p_code text, p_message text, p_now timestamptz)
returns boolean
language plpgsql security definer set search_path = '' as $$
begin
    update public.tasks t
       set status = 'Failed', run_after = null, generation_processed_at = p_now, failed_at_point = 'Claiming',
           failure_code = p_code, error_message = left(p_message, 4000)
     where t.id = p_task_id;
    perform public.internal_fire_deferred();
    if exists (select from public.tasks t where t.id = p_task_id and t.status = 'Queued' and not t.blocked
                                            and (t.run_after is null or t.run_after <= p_now)) then
        perform public.internal_refused(array[p_task_id], 'claim', p_message);
        return false;
    end if;
    return true;
exception when others then  -- a user's trigger or constraint may raise anything
    if public.internal_is_passing(sqlstate) then
        raise;
    end if;
    perform public.internal_refused(array[p_task_id], 'claim', p_message);
    return false;
end
$$;

-- Claim a task that no claim takes for now, as far as the database lets it, and take that back. If it works, claims take it.
create function public.internal_try_refused(p_task_id uuid) returns void
language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_now();
    v_message text;
    v_is_ready boolean;
begin
    select t.status = 'Queued' and not t.blocked into v_is_ready
      from public.tasks t where t.id = p_task_id for no key update skip locked;
    if v_is_ready is null and exists (select from public.tasks t where t.id = p_task_id) then
        perform public.internal_refused(array[p_task_id], 'claim', 'Another transaction was changing it');
        return;
    elsif v_is_ready is not true then  -- if nobody can claim it then either, the next claim finds out
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
        raise exception using errcode = 'OR008';  -- known only here: it takes back the claim
    exception
        when sqlstate 'OR008' then null;
        when others then v_message := format('The database refused to hand it to a worker: %s (%s)', sqlerrm, sqlstate);
    end;
    if v_message is null then
        delete from public.task_refusals r where r.task_id = p_task_id and r.what = 'claim';
    else
        perform public.internal_refused(array[p_task_id], 'claim', v_message);
    end if;
end
$$;

create or replace function public.internal_hand_over_singly(p_worker public.workers, p_claim_no bigint, p_rows tid[], p_now timestamp with time zone, INOUT p_passed uuid[], OUT tasks jsonb) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_sort TO 'off'
    AS $$
declare
    v_task record;
    v_message text;
    v_one jsonb;
begin
    for v_task in select t.ctid as place, t.id from public.tasks t where t.ctid = any (p_rows)
                   order by ~t.priority, t.created_at, t.id loop
        begin
            v_one := public.internal_hand_over(p_worker, p_claim_no, array[v_task.place], p_now);
            perform public.internal_fire_deferred();
            if v_one is not null then
                tasks := coalesce(tasks, '[]') || v_one;
                continue;
            end if;
            continue when not exists (select from public.tasks t where t.id = v_task.id and t.status = 'Queued' and not t.blocked);
            v_message := 'A trigger of the database suppressed its claim';
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

create or replace function public.internal_take(p_worker public.workers, p_claim_no bigint, p_batch integer, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_sort TO 'off'
    AS $$
declare
    v_from record;
    v_rows tid[];
    v_heavy boolean;
    v_tasks jsonb;
    v_rest jsonb;
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
        select array_agg(l.ctid), bool_or(l.heavy)
          into v_rows, v_heavy from (
            select q.ctid,
                   case when q.depends_on <> '{}' or pg_column_size(q.params) > c_light_bytes then true
                        else octet_length(q.params::text) > c_light_bytes or public.internal_is_unreadable(q.params) end as heavy
              from public.tasks q
             where q.pool = p_worker.pool and q.status = 'Queued' and not q.blocked
               and (q.run_after is null or q.run_after <= p_now)
               and (~q.priority, q.created_at, q.id) >= (v_from.place, v_from.created_at, v_from.id)
               and q.id <> all (v_passed)
               and coalesce((select r.what <> 'claim' from public.task_refusals r where r.task_id = q.id), true)
             order by ~q.priority, q.created_at, q.id
             limit p_batch for no key update skip locked) l;
        if v_heavy then
            select s.p_passed, s.fit into v_passed, v_rows
              from public.internal_sift(v_rows, c_bytes, p_now, v_passed) s;
            continue when v_rows is null;
        elsif v_rows is null then
            -- Nothing, where the counts say that there is something: others are taking it now, or a mark is wrong. No task
            -- waits for ever for that: it is looked everywhere before a worker is sent away.
            if v_from.place = c_least
               or coalesce((select sum(c.n) from public.task_counts c where c.pool = p_worker.pool and c.kind = 'plain'), 0)
                  <= coalesce((select r.n from public.internal_refused_ready(p_now) r where r.pool = p_worker.pool), 0) then
                return null;
            end if;
            perform public.internal_raise_mark(p_worker.pool, p_now, true);
            v_from.place := c_least;
            v_from.created_at := '-infinity';
            continue;
        end if;
        begin
            v_tasks := public.internal_hand_over(p_worker, p_claim_no, v_rows, p_now);
            perform public.internal_fire_deferred();
        exception when others then  -- one of them is the cause, and it is found without the others
            if public.internal_is_passing(sqlstate) then
                raise;
            end if;
            v_tasks := null;
        end;
        if v_tasks is null or jsonb_array_length(v_tasks) < cardinality(v_rows) then
            -- A row that was handed over has another place now. The others are suppressed by a user's trigger.
            v_rest := v_tasks;
            select s.p_passed, s.tasks into v_passed, v_tasks
              from public.internal_hand_over_singly(p_worker, p_claim_no, v_rows, p_now, v_passed) s;
            v_tasks := coalesce(v_rest || v_tasks, v_rest, v_tasks);
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

create or replace function public.internal_give_up(p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean, p_backoff boolean, p_now timestamp with time zone) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_task public.tasks;
    v_outcome text := 'requeued';
    v_status public.tasks.status%type := 'Queued';
    v_used int;
    v_jitter numeric;
    v_run_after timestamptz;
    v_planned text;  -- why its worker is being ended, if that was meant
    v_backoff boolean := p_backoff;
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
    if p_outcome = 'lost' then
        select w.exit_cause into v_planned from public.workers w
         where w.id = v_task.worker_id and w.status in ('terminating', 'terminated')
           and w.exit_cause in ('idle_timeout', 'scale_down', 'manual', 'shutdown', 'max_lifetime', 'budget',
                                'superseded');
    end if;
    if v_planned is not null then
        p_outcome := 'released';
        p_counted := false;
        p_failure := jsonb_build_object(
            'code', 'RELEASED', 'message', format('Worker %s was ended: %s', v_task.worker_id, v_planned));
    end if;
    v_used := v_task.attempts - v_task.uncounted;
    if p_outcome = 'lost' and v_used > 1 then
        v_backoff := exists (select from public.task_attempts a where a.task_id = p_task_id
                                and a.attempt < v_task.attempts and a.outcome = 'lost');
    end if;
    if v_task.cancel_requested_at is not null then
        v_outcome := 'cancelled';
        v_status := 'Cancelled';
    elsif p_counted and (v_used >= v_task.max_attempts or p_failure->'retryable' = 'false') then
        v_outcome := 'failed';
        v_status := 'Failed';
    elsif v_backoff then
        -- 30 s, doubling up to an hour after each failure; +-20 % from the id, so that a crowd does not come back at once.
        v_jitter := 0.8 + 0.4 * ('x' || substr(md5(p_task_id::text || v_task.attempts), 1, 7))::bit(28)::int / 268435455.0;
        v_run_after := p_now + v_jitter * interval '1 second'
            * case when p_outcome = 'lost' then 30 else least(30 * 2 ^ least(v_used - 1, 20), 3600) end;
    end if;
    -- The attempt first: the task's own triggers close what is still open.
    update public.task_attempts a
       set ended_at = p_now,
           outcome = case when v_outcome = 'cancelled' then 'cancelled' else p_outcome end,
           failure_code = left(p_failure->>'code', 100), exit_class = left(p_failure->>'exit_class', 100),
           failed_at_point = left(p_failure->>'point', 100), message = left(p_failure->>'message', 4000),
           detail = p_failure->'detail',
           log_last = (select (w.log_bytes #>> array[a.nonce, 'handler'])::bigint
                         from public.workers w where w.id = a.worker_id)
     where a.task_id = p_task_id and a.attempt = v_task.attempts and a.ended_at is null;
    update public.tasks t
       set status = v_status, run_after = v_run_after, lease_expires_at = null,
           uncounted = t.uncounted + case when p_counted then 0 else 1 end,
           worker_id = case when v_outcome = 'requeued' then null else t.worker_id end,
           generation_processed_at = case when v_outcome = 'requeued' then null else p_now end,
           error_message = left(p_failure->>'message', 4000), failure_code = left(p_failure->>'code', 100),
           failed_at_point = case when p_failure->>'point' in ('Claiming', 'Processing', 'Completion')
                                  then p_failure->>'point' end
     where t.id = p_task_id;
    if not found then
        raise exception 'a trigger of the database suppressed the end of attempt % at task %', v_task.attempts, p_task_id;
    end if;
    return v_outcome;
end
$$;

create or replace function public.internal_rescue(p_worker_id text, p_now timestamp with time zone, p_over_s numeric DEFAULT 0, p_fleet text DEFAULT NULL::text) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_task record;
    v_tasks jsonb := '[]';
    v_ids uuid[];
    v_failure jsonb;
begin
    if p_worker_id is not null then
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t
             where t.worker_id = p_worker_id and t.status = 'In Progress' and not public.internal_is_unrescuable(t.id, p_now)
             order by t.id for no key update) l;
    else
        select array_agg(l.id) into v_ids from (
            select t.id from public.tasks t
             where t.status = 'In Progress'
               and (coalesce(t.lease_expires_at, 'infinity') = 'infinity' or t.lease_expires_at <= p_now)
               and public.internal_is_lost(t, p_now, p_over_s)
               and not public.internal_is_unrescuable(t.id, p_now)
               and (p_fleet is null or not public.internal_is_anothers(p_fleet, t.worker_id, p_now))
             order by t.id for no key update skip locked) l;
    end if;
    for v_task in
        select t.id, t.worker_id, t.lease_expires_at, t.updated_at,
               t.lease_expires_at < 'infinity' is true or w.status is not distinct from 'terminated' as leased,
               case when w.exit_cause = 'task_stuck' then
                   extract(epoch from p_now - coalesce(t.progress_at, t.generation_started_at)) end as still_s,
               coalesce((w.metadata->>'stuck_s')::numeric, 0) as stuck_s,
               public.internal_is_outage(w.fleet, w.lease_s, t.lease_expires_at) as outage
          from public.tasks t left join public.workers w on w.id = t.worker_id
         where t.id = any (v_ids) and t.status = 'In Progress' order by t.id loop
        if v_task.outage and v_task.still_s is null then
            v_tasks := v_tasks || jsonb_build_object(
                'id', v_task.id, 'worker_id', v_task.worker_id,
                'outcome', public.internal_rescue_one(v_task.id, 'released', jsonb_build_object(
                    'code', 'RELEASED', 'message', format(
                        'Worker %s could not renew its lease, which ended %s: the database or the orchestrator was away',
                        v_task.worker_id, v_task.lease_expires_at)), false, p_now));
            continue;
        end if;
        v_failure := case
            when v_task.still_s >= v_task.stuck_s then jsonb_build_object(
                'code', 'TASK_STUCK', 'exit_class', 'timeout',
                'message', format('No progress for %s s; worker %s was ended for that', floor(v_task.still_s),
                                  v_task.worker_id))
            when p_worker_id is not null then jsonb_build_object(
                'code', 'WORKER_LOST', 'exit_class', 'lost', 'message', format('Worker %s is gone', v_task.worker_id))
            when not v_task.leased then jsonb_build_object(
                'code', 'NO_HOLDER', 'exit_class', 'lost',
                'message', format('It was In Progress without a lease, and it did not change since %s', v_task.updated_at))
            else jsonb_build_object(
                'code', 'LEASE_EXPIRED', 'exit_class', 'lost',
                'message', format('Worker %s did not renew its lease, which ended %s', v_task.worker_id,
                                  v_task.lease_expires_at)) end;
        v_tasks := v_tasks || jsonb_build_object(
            'id', v_task.id, 'worker_id', v_task.worker_id,
            'outcome', public.internal_rescue_one(v_task.id, 'lost', v_failure || '{"point": "Processing"}', true, p_now));
    end loop;
    return v_tasks;
end
$$;

-- Whether a user's trigger kept this task from being rescued, and it is not to be tried again yet.
create function public.internal_is_unrescuable(p_task_id uuid, p_now timestamptz) returns boolean
language sql stable security definer set search_path = '' as $$
    select exists (select from public.task_refusals r
                    where r.task_id = p_task_id and r.what = 'rescue' and r.retry_at > p_now)
$$;

-- Give up an attempt whose worker is lost; 'refused' if the database does not let it.
create function public.internal_rescue_one(p_task_id uuid, p_outcome text, p_failure jsonb, p_counted boolean, p_now timestamptz)
returns text
language plpgsql security definer set search_path = '' as $$
declare
    v_outcome text;
begin
    v_outcome := public.internal_give_up(p_task_id, p_outcome, p_failure, p_counted, false, p_now);
    perform public.internal_fire_deferred();
    delete from public.task_refusals r where r.task_id = p_task_id;
    return v_outcome;
exception when others then  -- a user's trigger or constraint may raise anything
    if public.internal_is_passing(sqlstate) then
        raise;
    end if;
    perform public.internal_refused(array[p_task_id], 'rescue',
        format('The database refused to take it back from its worker: %s (%s)', sqlerrm, sqlstate));
    return 'refused';
end
$$;

-- Renew the leases of these tasks, which the caller has locked: of each that the database lets change.
create function public.internal_renew(p_ids uuid[], p_tasks jsonb, p_lease_s numeric, p_now timestamptz) returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off as $$
declare
    v_id uuid;
begin
    update public.tasks t
       set lease_expires_at = p_now + p_lease_s * interval '1 second',
           progress = coalesce(nullif(n->'progress', 'null'), t.progress),
           progress_at = case when coalesce(nullif(n->'progress', 'null'), t.progress) is distinct from t.progress
                              then p_now else t.progress_at end
      from jsonb_array_elements(p_tasks) n
     where t.id = any (p_ids) and t.id = (n->>'id')::uuid and t.attempts = (n->>'attempt')::int;
    perform public.internal_fire_deferred();
exception when others then  -- a user's trigger or constraint may raise anything
    if public.internal_is_passing(sqlstate) then
        raise;
    end if;
    if cardinality(p_ids) > 1 then
        foreach v_id in array p_ids loop
            perform public.internal_renew(array[v_id], p_tasks, p_lease_s, p_now);
        end loop;
    end if;  -- otherwise its lease runs out
end
$$;

create or replace function public.worker_heartbeat(p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $_$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_held uuid[];
    v_cancel jsonb;
    v_fenced jsonb;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'cancel', '[]'::jsonb, 'fenced', '[]'::jsonb);
    end if;
    if jsonb_typeof(coalesce(p_tasks, '[]')) <> 'array' or jsonb_array_length(coalesce(p_tasks, '[]')) > 1000 then
        perform public.internal_refuse('OR007', 'p_tasks must be a list of at most 1000 {id, attempt, progress}');
    end if;
    perform public.internal_check_size(p_tasks, 1048576, 'p_tasks');
    perform public.internal_check_size(p_health, 65536, 'p_health');
    perform public.internal_check_size(p_logs, 4096, 'p_logs');
    if p_logs is not null and p_logs <> 'null' and (
           jsonb_typeof(p_logs) <> 'object'
           or exists (select from jsonb_each(p_logs) l
                       where jsonb_typeof(l.value) <> 'number' or l.value::text !~ '^[0-9]{1,15}$')) then
        perform public.internal_refuse('OR007', 'p_logs must be {stream: bytes}', left(p_logs::text, 200));
    end if;

    update public.workers w
       set last_heartbeat = v_now, health = coalesce(p_health, w.health),
           log_bytes = case when jsonb_typeof(p_logs) = 'object'
                            then w.log_bytes || jsonb_build_object(p_nonce, p_logs) else w.log_bytes end,
           agent = case when w.agent->>'nonce' = p_nonce then w.agent
                        else coalesce(w.agent, '{}') || jsonb_build_object('nonce', p_nonce) end,
           deadline_at = case when w.status in ('active', 'idle') then v_now + w.lease_s * interval '1 second'
                              else w.deadline_at end,
           next_attempt_at = case when w.status in ('active', 'idle') then v_now + w.heartbeat_s * interval '1 second'
                                  else w.next_attempt_at end
     where w.id = p_worker_id;
    if v_worker.last_heartbeat is null then
        perform pg_notify('orchestrator_fleet', p_worker_id);
    end if;

    select array_agg(l.id) into v_held from (
        select t.id from jsonb_array_elements(coalesce(p_tasks, '[]')) n
          join public.tasks t on t.id = (n->>'id')::uuid and t.attempts = (n->>'attempt')::int
         where t.worker_id = p_worker_id and t.status = 'In Progress'
         order by t.id for no key update of t) l;
    if v_held is not null then
        perform public.internal_renew(v_held, p_tasks, v_worker.lease_s, v_now);
    end if;
    select coalesce(jsonb_agg(t.id), '[]') into v_cancel
      from public.tasks t where t.id = any (v_held) and t.cancel_requested_at is not null;
    select coalesce(jsonb_agg(n->>'id'), '[]') into v_fenced
      from jsonb_array_elements(coalesce(p_tasks, '[]')) n where (n->>'id')::uuid <> all (coalesce(v_held, '{}'));
    return jsonb_build_object('outcome', 'ok', 'wanted', public.internal_wanted(v_worker), 'cancel', v_cancel,
                              'fenced', v_fenced, 'heartbeat_s', v_worker.heartbeat_s, 'lease_s', v_worker.lease_s,
                              'led', exists (select from public.fleet_lease l
                                              where l.fleet = v_worker.fleet and l.expires_at > v_now));
end
$_$;

create or replace function public.worker_complete_output(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_output jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_log_last bigint := (v_worker.log_bytes #>> array[v_worker.nonce, 'handler'])::bigint;
    v_held uuid;
    v_answer jsonb;
    v_over_postgrest boolean := public.internal_is_pod() and public.internal_is_over_postgrest();
    v_object jsonb := case when not v_over_postgrest then p_output end;  -- a pod may not say what the bucket shows
begin
    if p_result_data is not null then
        perform public.internal_check_size(p_result_data, 1048576, 'p_result_data');
    end if;
    if p_output_location is not null then
        perform public.internal_check_size(to_jsonb(p_output_location), 4096, 'p_output_location');
        if p_output_location like 's3://%' and v_over_postgrest
           and public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']) = 'held' then
            v_answer := public.internal_ask(p_worker_id, 'HEAD', p_output_location, '{}', v_now);
            if v_answer is null then
                return jsonb_build_object('outcome', 'pending');
            elsif v_answer->'found' = 'false' then
                return jsonb_build_object('outcome', 'unverified', 'code', 'OUTPUT_MISSING');
            end if;
            v_object := v_answer->'object';
        elsif v_object = 'false' then
            v_answer := to_jsonb(public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']));
            return jsonb_build_object('outcome', case v_answer #>> '{}' when 'held' then 'look' else v_answer #>> '{}' end);
        end if;
    end if;
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced');
    end if;
    with done as (
        update public.tasks t
           set status = 'Complete', output_location = p_output_location,
               output_object = v_object || jsonb_build_object('location', p_output_location), result_data = p_result_data,
               generation_processed_at = v_now, lease_expires_at = null, error_message = null, failure_code = null,
               updated_at = v_now
         where t.id = p_task_id and t.attempts = p_attempt
           and case when t.status = 'In Progress' then t.worker_id end = p_worker_id
        returning t.id, t.attempts
    ), ended as (
        update public.task_attempts a set ended_at = v_now, outcome = 'complete', log_last = v_log_last
          from done d where a.task_id = d.id and a.attempt = d.attempts
    )
    select d.id into v_held from done d;
    if v_held is null then
        v_answer := to_jsonb(public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']));
        if v_answer = '"held"' then
            perform public.internal_refuse('OR007', 'a trigger of the database suppressed the completion');
        end if;
        return jsonb_build_object('outcome', v_answer);
    end if;
    return jsonb_build_object('outcome', 'ok');
end
$$;

create or replace function public.internal_complete_many(p_worker public.workers, p_nonce text, p_results jsonb, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
declare
    v_log_last bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    v_ids uuid[];
    v_attempts int[];
    v_data jsonb[];
    v_fine boolean;
    v_held uuid[];
begin
    perform public.internal_check_size(p_results, 1048576, 'p_results');
    begin
        select array_agg((e->>'task_id')::uuid), array_agg((e->>'attempt')::int), array_agg(nullif(e->'result_data', 'null')),
               bool_and(jsonb_typeof(e) = 'object' and e->>'task_id' is not null and (e->>'attempt')::int is not null
                        and e - array['task_id', 'attempt', 'result_data'] = '{}')
          into v_ids, v_attempts, v_data, v_fine
          from jsonb_array_elements(p_results) e;
    exception when data_exception then  -- no list, or something in it is no id or number
        v_fine := false;
    end;
    if v_fine is not true or cardinality(v_ids) > 100 then
        perform public.internal_refuse('OR007', 'p_results is a list of 1 to 100 {task_id, attempt, result_data}');
    end if;
    if p_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'outcomes', (select jsonb_agg('fenced'::text) from jsonb_array_elements(p_results)));
    end if;
    with done as (
        -- In the order in which a heartbeat locks them. The case keeps the index of what runs out of it, which is full of
        -- what has just ended.
        update public.tasks t
           set status = 'Complete', output_location = null, result_data = r.result_data,
               generation_processed_at = p_now, lease_expires_at = null, error_message = null, failure_code = null,
               updated_at = p_now
          from (select * from unnest(v_ids, v_attempts, v_data) u (id, attempt, result_data) order by 1) r
         where t.id = r.id and t.attempts = r.attempt
           and case when t.status = 'In Progress' then t.worker_id end = p_worker.id
        returning t.id, t.attempts
    ), ended as (
        update public.task_attempts a set ended_at = p_now, outcome = 'complete', log_last = v_log_last
          from done d where a.task_id = d.id and a.attempt = d.attempts
    )
    select array_agg(d.id) into v_held from done d;
    if cardinality(v_held) = cardinality(v_ids) then
        return jsonb_build_object('outcome', 'ok', 'outcomes', array_fill('ok'::text, array[cardinality(v_ids)]));
    end if;
    if exists (select from unnest(v_ids, v_attempts) u (id, attempt) join public.tasks t on t.id = u.id and t.attempts = u.attempt
                where t.status = 'In Progress' and t.worker_id = p_worker.id) then  -- one by one, the others are taken
        perform public.internal_refuse('OR007', 'a trigger of the database suppressed a completion');
    end if;
    return jsonb_build_object('outcome', 'ok', 'outcomes', (
        select jsonb_agg(case
                   when (r->>'task_id')::uuid = any (v_held) and t.attempts = (r->>'attempt')::int then 'ok'
                   when exists (select from public.task_attempts a
                                 where a.task_id = (r->>'task_id')::uuid and a.attempt = (r->>'attempt')::int
                                   and a.worker_id = p_worker.id and a.outcome = 'complete') then 'already'
                   else 'fenced' end order by n)
          from jsonb_array_elements(p_results) with ordinality e (r, n)
          left join public.tasks t on t.id = (r->>'task_id')::uuid));
end
$$;

create or replace function public.fleet_task_explain(p_fleet text, p_task_id uuid, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
    c_workers constant int := 25;  -- the newest of its pool, and …
    c_attempts constant int := 200;  -- … the newest of each: what is usual for its type
begin
    select * into v_task from public.tasks t where t.id = p_task_id;
    return (select jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'paused', public.internal_pauses(p_fleet, v_now),
        'task', case when v_task.id is not null then to_jsonb(v_task) end,
        'usual', (
            select jsonb_build_object('task_type', v_task.task_type, 'n', count(*),
                       'p50_s', round(percentile_cont(0.5) within group (order by x.seconds)::numeric, 3),
                       'p95_s', round(percentile_cont(0.95) within group (order by x.seconds)::numeric, 3))
              from (select w.id from public.workers w where w.fleet = p_fleet and w.pool = v_task.pool
                     order by w.created_at desc limit c_workers) w
              cross join lateral (select * from public.task_attempts b where b.worker_id = w.id
                                   order by b.started_at desc limit c_attempts) a
              join public.tasks t on t.id = a.task_id
              cross join lateral (select extract(epoch from a.ended_at - greatest(a.started_at, (
                       select max(b.ended_at) from public.task_attempts b  -- the one before, of the same claim
                        where b.worker_id = a.worker_id and b.nonce = a.nonce and b.claim_no = a.claim_no
                          and b.ended_at < a.ended_at))) as seconds) x
             where a.outcome = 'complete' and t.task_type = v_task.task_type),
        'holder', case when v_task.status = 'In Progress' then (select to_jsonb(h) from public.internal_holder(v_task, v_now) h) end,
        'refusal', (select to_jsonb(r) - 'task_id' from public.task_refusals r where r.task_id = p_task_id),
        'decision', public.internal_pool_decision(p_fleet, v_task.pool),
        'ahead', (select count(*) from public.tasks t
                   where t.pool = v_task.pool and t.status = 'Queued' and not t.blocked
                     and coalesce(t.run_after <= v_now, true)
                     and (~t.priority, t.created_at, t.id) < (~v_task.priority, v_task.created_at, v_task.id)),
        'workers', coalesce((
            select jsonb_object_agg(s.status, s.n)
              from (select w.status, count(*) as n from public.workers w
                     where w.fleet = p_fleet and w.pool = v_task.pool and w.status <> 'terminated'
                     group by w.status) s), '{}'),
        'worker', (select jsonb_build_object('id', w.id, 'status', w.status, 'last_heartbeat', w.last_heartbeat,
                                             'exit_cause', w.exit_cause, 'failure_code', w.failure_code)
                     from public.workers w where w.id = v_task.worker_id),
        'dependencies', coalesce((
            select jsonb_agg(jsonb_build_object(
                       'id', n.id, 'task_type', coalesce(d.task_type, r.task_type),
                       'status', coalesce(d.status::text, case when r.id is not null then 'Complete' end), 'worker_id', d.worker_id,
                       'run_after', d.run_after, 'failure_code', d.failure_code, 'error_message', d.error_message)
                       order by n.place)
              from unnest(v_task.depends_on) with ordinality n (id, place)
              left join public.tasks d on d.id = n.id
              left join public.task_results r on r.id = n.id), '[]'),
        'dependants', (select count(*) from public.tasks t
                        where t.blocked and t.status = 'Queued' and t.depends_on && array[p_task_id]),
        'attempts', coalesce((
            select jsonb_agg(to_jsonb(a) || jsonb_build_object(
                       'price_usd_per_hour', w.price_usd_per_hour, 'worker_status', w.status,
                       'worker_exit_cause', w.exit_cause, 'worker_failure_code', w.failure_code,
                       'usd', case when w.price_usd_per_hour is not null then round(coalesce(s.usd, 0), 6) end)
                       order by a.attempt)
              from public.task_attempts a left join public.workers w on w.id = a.worker_id
              left join public.internal_shares('-infinity', v_now, v_now, p_task_id) s
                     on s.task_id = a.task_id and s.attempt = a.attempt
             where a.task_id = p_task_id), '[]')));
end
$$;

create or replace function public.fleet_snapshot(p_fleet text, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_paused jsonb := public.internal_pauses(p_fleet, v_now);
    v_avoid jsonb := '{}';
    c_climbs constant int := 100;  -- of each pool: what the breaker looks back on
    c_batch constant int := 100;  -- tasks of one claim
    c_differences constant int := 1000;  -- more rows than that are rolled up first
    v_set text;
begin
    v_set := set_config('orchestrator.alone', statement_timestamp()::text, true);
    perform public.internal_settle_late();
    if (select count(*) from (select from public.task_counts limit c_differences + 1) c) > c_differences then
        perform public.internal_roll_up(false);
    end if;
    if to_regclass('public.hosts') is not null then  -- it comes with a later migration
        select coalesce(jsonb_object_agg(h.key, h.avoid_until), '{}') into v_avoid
          from public.hosts h where h.fleet = p_fleet and h.avoid_until > v_now;
    end if;
    return (
        with recursive spawned(pool) as (  -- from one to the next in the index, however many workers each has had
            (select w.pool from public.workers w where w.fleet = p_fleet order by w.pool limit 1)
            union all
            select (select w.pool from public.workers w where w.fleet = p_fleet and w.pool > s.pool order by w.pool limit 1)
              from spawned s where s.pool is not null
        ), running as (
            select t.worker_id, t.pool, count(*) as n,
                   count(*) filter (where case
                       when t.lease_expires_at > v_now and t.lease_expires_at < 'infinity' then true
                       else (select h.held_by <> 'nobody' from public.internal_holder(t, v_now) h) end) as counted,
                   min(coalesce(t.progress_at, t.generation_started_at)) as progress_at,
                   max(coalesce(t.progress_at, t.generation_started_at)) as moved_at,
                   (array_agg(t.id order by coalesce(t.progress_at, t.generation_started_at), t.id))[1] as slowest
              from public.tasks t where t.status = 'In Progress' group by t.worker_id, t.pool
        ), held as (
            select r.worker_id, sum(r.n) as n, min(r.progress_at) as progress_at, max(r.moved_at) as moved_at,
                   (array_agg(r.slowest order by r.progress_at))[1] as slowest
              from running r where r.worker_id is not null group by r.worker_id
        ), counts as (
            select c.pool, c.kind, sum(c.n) as n from public.task_counts c group by c.pool, c.kind
        ), due as (  -- what has come due since it was put off
            select c.pool, count(t.run_after) as n, min(t.created_at) as oldest
              from counts c
              left join public.tasks t on t.pool = c.pool and t.status = 'Queued' and not t.blocked
                                      and t.run_after is not null and t.run_after <= v_now
             where c.kind = 'timed' and c.n > 0 group by c.pool
        ), refused as (  -- they wait for the next try, which needs no worker
            select r.pool, r.n from public.internal_refused_ready(v_now) r
        ), queued as (
            select c.pool, c.total, c.dependencies, c.timed - coalesce(d.n, 0) + coalesce(f.n, 0) as scheduled,
                   c.plain + coalesce(d.n, 0) - coalesce(f.n, 0) as ready,
                   least(d.oldest, case when c.plain > 0 then (
                       select min(t.created_at) from public.tasks t
                        where t.pool = c.pool and t.status = 'Queued' and not t.blocked and t.run_after is null
                          and coalesce((select r.what <> 'claim' from public.task_refusals r where r.task_id = t.id), true))
                   end) as oldest
              from (select pool, sum(n) as total, coalesce(sum(n) filter (where kind = 'blocked'), 0) as dependencies,
                           coalesce(sum(n) filter (where kind = 'timed'), 0) as timed,
                           coalesce(sum(n) filter (where kind = 'plain'), 0) as plain
                      from counts group by pool having sum(n) <> 0) c
              left join due d on d.pool = c.pool
              left join refused f on f.pool = c.pool
        ), demand as (
            select p.pool, v_paused ?| array['*', p.pool] as paused, coalesce(q.ready, 0) as ready,
                   coalesce(r.n, 0) as running, coalesce(q.dependencies, 0) as dependencies,
                   coalesce(q.scheduled, 0) as scheduled, q.oldest
              from (select pool from queued union select pool from running) p
              left join queued q on q.pool = p.pool
              left join (select pool, sum(counted) as n from running group by pool) r on r.pool = p.pool
        ), climbs as (
            select w.id, w.pool, w.created_at, w.climb_ended_at, w.promoted_at is not null as promoted, w.exit_cause, w.failure_code,
                   w.release, w.ending_since,
                   row_number() over (partition by w.pool order by w.climb_ended_at desc, w.id) as place
              from public.workers w where w.fleet = p_fleet and w.climb_ended_at > v_now - interval '1 day'
        )
        select jsonb_build_object(
            'now', v_now,
            'workers', coalesce((
                select jsonb_agg(to_jsonb(w) || jsonb_build_object('tasks_running', coalesce(h.n, 0),
                           'progress_at', case when w.own_program then h.progress_at else h.moved_at end,
                           'slowest_task', h.slowest,
                           'done_elsewhere_at', case when w.held_back is not null then public.internal_done_elsewhere(w) end,
                           'empty_since', case when w.status = 'active' and h.n is null then greatest(w.state_since, (
                               select max(a.ended_at) from (select a.ended_at from public.task_attempts a
                                where a.worker_id = w.id order by a.started_at desc limit c_batch) a)) end) order by w.id)
                  from public.workers w left join held h on h.worker_id = w.id
                 where w.fleet = p_fleet and w.status <> 'terminated'), '[]'),
            'demand', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'pool', d.pool, 'claimable', case when d.paused then 0 else d.ready end, 'running', d.running,
                           'blocked', jsonb_build_object('dependencies', d.dependencies, 'scheduled', d.scheduled,
                                                         'paused', case when d.paused then d.ready else 0 end),
                           'oldest_claimable_at', d.oldest) order by d.pool) from demand d), '[]'),
            'expired_leases', (
                select count(*) from public.tasks t
                 where t.status = 'In Progress'
                   and (coalesce(t.lease_expires_at, 'infinity') = 'infinity' or t.lease_expires_at <= v_now)
                   and public.internal_is_lost(t, v_now, 0)
                   and not public.internal_is_unrescuable(t.id, v_now)
                   and not public.internal_is_anothers(p_fleet, t.worker_id, v_now)),
            'offers', coalesce((
                select jsonb_agg(to_jsonb(o) - 'fleet' order by o.key) from public.offers o
                 where o.fleet = p_fleet), '[]'),
            'last_spawn_at', coalesce((
                select jsonb_object_agg(s.pool, n.created_at) from spawned s
                 cross join lateral (
                       select w.created_at from public.workers w
                        where w.fleet = p_fleet and w.pool = s.pool and w.stage is not null
                        order by w.created_at desc limit 1) n), '{}'),
            'ended', coalesce((
                select jsonb_agg(jsonb_build_object(
                           'worker_id', c.id, 'pool', c.pool, 'at', c.climb_ended_at, 'promoted', c.promoted,
                           'exit_cause', c.exit_cause, 'failure_code', c.failure_code, 'release', c.release,
                           'boot_s', case when c.promoted then extract(epoch from c.climb_ended_at - c.created_at) end,
                           'ending_since', case when c.promoted then c.ending_since end,
                           'worked', c.promoted and exists (  -- bounded, where a handler fails a thousand tasks
                               select from (select a.outcome from public.task_attempts a where a.worker_id = c.id
                                             order by a.started_at limit c_batch) a where a.outcome = 'complete'))
                       order by c.climb_ended_at, c.id)
                  from climbs c where c.place <= c_climbs), '[]'),
            'proven', coalesce((
                select jsonb_agg(r.release order by r.release) from public.releases r
                 where r.fleet = p_fleet and r.promoted_at > v_now - interval '30 days'), '[]'),
            'spent', (select to_jsonb(s) from public.internal_spent(p_fleet, null, v_now) s),
            'avoid', v_avoid,
            'paused', v_paused,
            'database_id', (select i.id from public.database_identity i where i.is_this),
            'queued_total', (select coalesce(sum(q.total), 0) from queued q))
    );
end
$$;

-- Settling.
--
-- * What a user's trigger refuses for one dependant is left undone for that one, recorded in task_refusals, and tried again
--   by a snapshot after a pause. The end of the dependency, its other dependants and the snapshot go on.
-- * The plans do not depend on statistics: the state of each dependency is looked up by its key, and each join is of arrays.
-- * Rows of tasks_unsettled are bounded, and a snapshot looks at those first that wait longest for a look: for a tenth of a
--   second. A transaction waits at most three times for locks of others, and not at all while an older row shows that
--   somebody's transaction stays open.

alter table public.tasks_unsettled add column tried_at timestamptz not null default '-infinity';
create index tasks_unsettled_next on public.tasks_unsettled (tried_at, no);

-- Leave these tasks to a later look.
create function public.internal_unsettled(p_ids uuid[]) returns void
language sql security definer set search_path = '' as $$
    insert into public.tasks_unsettled (task_ids)
    select array_agg(n.id) from unnest(p_ids) with ordinality n (id, place) group by (n.place - 1) / 500
$$;

create or replace function public.internal_lock_briefly(p_ids uuid[], p_share boolean) returns boolean
language plpgsql security definer set search_path = '' set enable_seqscan = off set lock_timeout = '100ms' as $$
declare
    c_waits constant int := 3;  -- in vain, in one transaction
    v_waits int := coalesce(nullif(current_setting('orchestrator.waits', true), '')::int, 0);
    v_set text;
begin
    if v_waits >= c_waits
       or exists (select from public.tasks_unsettled u where u.noted_at < clock_timestamp() - interval '1 second') then
        return false;
    end if;
    begin
        if p_share then
            perform from public.tasks t where t.id = any (p_ids) order by t.id for share;
        else
            perform from public.tasks t where t.id = any (p_ids) order by t.id for no key update;
        end if;
        return true;
    exception when lock_not_available or deadlock_detected then
        v_set := set_config('orchestrator.waits', (v_waits + 1)::text, true);
    end;
    return false;
end
$$;
create index tasks_unsettled_noted on public.tasks_unsettled (noted_at);

-- Queued tasks, locked by the caller: work out whether they wait, and end those that can never run. `p_gone` are
-- dependencies that no longer exist; any other that does not exist may still be inserted. Returns the ended ones. A change
-- that a user's trigger suppresses is recorded.
create or replace function public.internal_settle_locked(p_ids uuid[], p_gone uuid[]) returns uuid[]
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    v_before text := coalesce(current_setting('orchestrator.settling', true), '');
    v_set text;
    v_gone jsonb := (select jsonb_object_agg(g.id, true) from unnest(p_gone) g (id) where g.id is not null);
    v_flips uuid[];
    v_failed jsonb;  -- of each task that fails: the dependency that failed before it …
    v_lost jsonb;  -- … or does not exist
    v_some uuid[];
    v_done uuid[] := '{}';
    v_kept uuid[];
begin
    -- At this depth of triggers, and no other, a cascade is followed by the loop in internal_settle.
    v_set := set_config('orchestrator.settling', pg_trigger_depth()::text, true);
    select coalesce(array_agg(l.id) filter (where l.failed is null and not l.is_lost and l.blocked is distinct from l.waits), '{}'),
           coalesce(jsonb_object_agg(l.id, l.failed) filter (where l.failed is not null), '{}'),
           coalesce(jsonb_object_agg(l.id, l.lost) filter (where l.failed is null and l.is_lost), '{}')
      into v_flips, v_failed, v_lost
      from (select t.id, t.blocked, n.waits, n.failed, n.lost, n.is_lost
              from public.tasks t
             cross join lateral (
                   select coalesce(bool_or(s.status <> 'Complete'), false) as waits,
                          (array_agg(s.id) filter (where s.status in ('Failed', 'Cancelled')))[1] as failed,
                          (array_agg(s.id) filter (where s.status = 'gone'))[1] as lost,
                          coalesce(bool_or(s.status = 'gone'), false) as is_lost
                     from (select n.id,  -- each by its key: a join could read all of the table for each task
                                  coalesce((select d.status::text from public.tasks d where d.id = n.id),
                                           (select 'Complete' from public.task_results r where r.id = n.id),
                                           case when n.id is null or v_gone ? n.id::text then 'gone' else 'absent' end) as status
                             from unnest(t.depends_on) n (id) offset 0) s) n
             where t.id = any (p_ids) and t.status = 'Queued') l;
    if v_flips <> '{}' then
        with done as (
            update public.tasks t set blocked = not t.blocked
             where t.id = any (v_flips) and t.status = 'Queued' returning t.id
        )
        select v_done || array_agg(d.id) into v_done from done d;
    end if;
    if v_failed <> '{}' then
        v_some := array(select k::uuid from jsonb_object_keys(v_failed) k);
        with done as (
            update public.tasks t
               set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_FAILED',
                   error_message = (
                       select left(concat_ws(': ',
                                  format('Dependency %s (%s) ended as %s', d.id, d.task_type, d.status),
                                  nullif(d.failure_code, 'DEPENDENCY_FAILED'),
                                  case when d.failure_code = 'DEPENDENCY_FAILED'
                                       then regexp_replace(d.error_message,
                                                           '^.*(Dependency [0-9a-f-]{36} \([^)]*\) ended as )', '\1')
                                       else d.error_message end), 4000)
                         from public.tasks d where d.id = (v_failed->>t.id::text)::uuid)
             where t.id = any (v_some) and t.status = 'Queued' returning t.id
        )
        select v_done || array_agg(d.id) into v_done from done d;
        v_flips := v_flips || v_some;
    end if;
    if v_lost <> '{}' then
        v_some := array(select k::uuid from jsonb_object_keys(v_lost) k);
        with done as (
            update public.tasks t
               set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_DELETED',
                   error_message = coalesce(format('Dependency %s does not exist: it was deleted before it was complete',
                                                   (v_lost->>t.id::text)::uuid), 'depends_on contains NULL')
             where t.id = any (v_some) and t.status = 'Queued' returning t.id
        )
        select v_done || array_agg(d.id) into v_done from done d;
        v_flips := v_flips || v_some;
    end if;
    v_set := set_config('orchestrator.settling', v_before, true);
    if cardinality(v_done) < cardinality(v_flips) then
        v_kept := array(select unnest(v_flips) except select unnest(v_done));
        perform public.internal_refused(v_kept, 'settle', 'A trigger of the database suppressed the change');
    end if;
    return array(select t.id from public.tasks t
                  where t.id = any (p_ids) and t.status in ('Complete', 'Failed', 'Cancelled'));
end
$$;

-- End tasks that wait for each other. The caller has locked them.
create function public.internal_end_cycle(p_ids uuid[]) returns void
language sql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
    update public.tasks t
       set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_CYCLE',
           error_message = format('It waits for task %s, and these tasks wait for each other: none can ever run', t.depends_on[1])
     where t.id = any (p_ids) and t.status = 'Queued' and t.blocked
$$;

-- Settle these tasks, or end them as a cycle, as far as users' triggers let it: all at once, or if that fails each half, and
-- so on. Returns the ended ones. What cannot be tried in time is left to a later look.
create function public.internal_settle_each(p_is_cycle boolean, p_ids uuid[], p_gone uuid[]) returns uuid[]
language plpgsql security definer set search_path = '' set jit = off as $$
declare
    c_time constant interval := '200 milliseconds';  -- for what fails
    v_until timestamptz;
    v_first int[] := '{1}';
    v_last int[] := array[cardinality(p_ids)];
    v_low int;
    v_high int;
    v_some uuid[];
    v_ended uuid[] := '{}';
    v_message text;
begin
    while cardinality(v_first) > 0 loop
        v_low := v_first[cardinality(v_first)];
        v_high := v_last[cardinality(v_last)];
        v_first := trim_array(v_first, 1);
        v_last := trim_array(v_last, 1);
        begin
            if p_is_cycle then
                perform public.internal_end_cycle(p_ids[v_low:v_high]);
            else
                v_some := public.internal_settle_locked(p_ids[v_low:v_high], p_gone);
            end if;
            perform public.internal_fire_deferred();
            v_ended := v_ended || v_some;
            continue;
        exception when others then  -- a user's trigger or constraint may raise anything
            if public.internal_is_passing(sqlstate) then
                raise;
            end if;
            v_message := format('The database refused to settle it: %s (%s)', sqlerrm, sqlstate);
        end;
        v_until := coalesce(v_until, clock_timestamp() + c_time);
        if v_low = v_high then
            perform public.internal_refused(p_ids[v_low:v_low], 'settle', v_message);
        elsif clock_timestamp() > v_until then
            perform public.internal_unsettled(p_ids[v_low:v_high]);
        else
            v_first := v_first || array[(v_low + v_high) / 2 + 1, v_low];
            v_last := v_last || array[v_high, (v_low + v_high) / 2];
        end if;
    end loop;
    return v_ended;
end
$$;

drop function public.internal_fail_behind(uuid[]);

-- Fail what waits for these tasks, as far as nobody else holds it, at most so many; those that failed. Null if a user's trigger
-- kept one of them from it: then nothing is done.
create function public.internal_fail_behind(p_ended uuid[], p_most integer) RETURNS uuid[]
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    c_letters constant int := 4000;
    v_before text := coalesce(current_setting('orchestrator.settling', true), '');
    v_set text;
    v_all uuid[] := public.internal_waiting_behind(p_ended, p_most);
    v_places jsonb;  -- of each of v_all. A value of such an object is found without a join, whatever the planner expects
    v_locked uuid[];
    v_task record;
    v_cause int;
    v_message text;
    v_ids uuid[] := '{}';
    v_messages text[] := '{}';
    v_ends text[] := '{}';  -- by place: how the task ended, as a dependant says it; null: it did not end
    v_whys text[] := '{}';  -- why it ended
    v_roots boolean[] := '{}';  -- whether that is why the first task of all ended
begin
    select array_agg(l.id) into v_locked from (
        select t.id from public.tasks t where t.id = any (v_all) and t.status = 'Queued' and t.blocked
         order by t.id for no key update skip locked) l;
    if v_locked is null then
        return '{}';
    end if;
    select jsonb_object_agg(p.id, p.n) into v_places from unnest(v_all) with ordinality p (id, n);
    for v_task in
        select (v_places->t.id::text)::int as n, t.id, t.task_type, t.status, t.failure_code, t.error_message,
               array(select (v_places->d.id::text)::int from unnest(t.depends_on) with ordinality d (id, place)
                      where v_places ? d.id::text order by d.place) as needs
          from public.tasks t where t.id = any (p_ended || v_locked) and v_places ? t.id::text order by 1
    loop
        v_cause := null;
        if v_task.status in ('Failed', 'Cancelled') then
            v_roots[v_task.n] := v_task.failure_code is not distinct from 'DEPENDENCY_FAILED';
            v_whys[v_task.n] := case
                when v_roots[v_task.n] then regexp_replace(
                    v_task.error_message, '^.*(Dependency [0-9a-f-]{36} \([^)]*\) ended as )', '\1')
                else concat_ws(': ', v_task.failure_code, v_task.error_message) end;
            v_ends[v_task.n] := format('Dependency %s (%s) ended as %s', v_task.id, v_task.task_type, v_task.status);
            continue;
        end if;
        foreach v_cause in array v_task.needs loop
            exit when v_ends[v_cause] is not null;
            v_cause := null;
        end loop;
        continue when v_cause is null;
        v_message := left(concat_ws(': ', v_ends[v_cause], nullif(v_whys[v_cause], '')), c_letters);
        v_ids := v_ids || v_task.id;
        v_messages := v_messages || v_message;
        v_ends[v_task.n] := format('Dependency %s (%s) ended as Failed', v_task.id, v_task.task_type);
        v_whys[v_task.n] := case when v_roots[v_cause] then v_whys[v_cause] else v_message end;
        v_roots[v_task.n] := true;
    end loop;
    begin
        v_set := set_config('orchestrator.settling', pg_trigger_depth()::text, true);
        v_places := jsonb_object(v_ids::text[], v_messages);
        update public.tasks t
           set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_FAILED', error_message = v_places->>t.id::text
         where t.id = any (v_ids) and t.status = 'Queued';
        if (select count(*) from public.tasks t where t.id = any (v_ids) and t.status = 'Failed') < cardinality(v_ids) then
            raise exception using errcode = 'OR008';  -- known only here
        end if;
        v_set := set_config('orchestrator.settling', v_before, true);
        perform public.internal_fire_deferred();
    exception when others then  -- OR008, or a user's trigger
        if public.internal_is_passing(sqlstate) then
            raise;
        end if;
        return null;
    end;
    return v_ids;
end
$$;

create or replace function public.internal_settle(p_ids uuid[], p_gone uuid[]) returns void
language plpgsql security definer set search_path = '' as $$
declare
    c_most constant int := 2000;  -- that fail in one statement; fewer while a user's trigger keeps one of them from it
    v_ids uuid[] := p_ids;
    v_gone uuid[] := p_gone;
    v_lock record;
    v_waits int := 3;
    v_ended uuid[];
    v_behind uuid[];
    v_most int := c_most;
begin
    while cardinality(v_ids) > 0 loop
        select * into v_lock from public.internal_lock_queued(v_ids, v_waits);
        v_waits := v_lock.p_waits;
        if v_lock.missed <> '{}' then
            perform public.internal_unsettled(v_lock.missed);
        end if;
        exit when v_lock.locked is null;
        v_ended := public.internal_settle_each(false, v_lock.locked, v_gone);
        v_gone := '{}';
        v_behind := '{}';
        if v_ended <> '{}' then
            v_most := least(2 * v_most, c_most);
            loop
                v_behind := public.internal_fail_behind(v_ended, v_most);
                exit when v_behind is not null or v_most = 1;
                v_most := v_most / 2;
            end loop;
        end if;
        v_ids := public.internal_dependants(v_ended || v_behind);
    end loop;
end
$$;

create or replace function public.internal_settle_cycles(p_ids uuid[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    c_most constant int := 10000;
    v_ids uuid[];
    v_lock record;
begin
    if p_ids is null then
        v_ids := array(select t.id from public.tasks t where t.blocked and t.status = 'Queued');
    elsif public.internal_dependants(p_ids) is null then
        return;  -- nobody waits for them
    else
        with recursive needed (id) as (
            select unnest(p_ids)
            union
            select n.id
              from needed d cross join lateral (  -- limited: one row by its key each, whatever the planner expects
                  select t.depends_on from public.tasks t where t.id = d.id and t.blocked and t.status = 'Queued' limit 1) t
              cross join unnest(t.depends_on) n (id)
        )
        select array_agg(l.id) into v_ids from (select d.id from needed d limit c_most + 1) l;
        if cardinality(v_ids) > c_most then
            return;
        end if;
    end if;
    v_ids := public.internal_stuck(v_ids);
    if v_ids <> '{}' then
        select * into v_lock from public.internal_lock_queued(v_ids, 1);
        if v_lock.locked <> '{}' then
            perform public.internal_settle_each(true, v_lock.locked, '{}');
        end if;
    end if;
end
$$;

create or replace function public.internal_settle_new(p_ids uuid[]) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_waiting uuid[];
    v_ready uuid[];
    v_needed uuid[];
    v_kept int;
begin
    perform public.internal_settle(p_ids, '{}');
    v_waiting := array(select t.id from public.tasks t where t.id = any (p_ids) and t.blocked and t.status = 'Queued');
    if v_waiting <> '{}' then
        perform public.internal_settle_cycles(v_waiting);
        perform public.internal_unsettled(v_waiting);
    end if;
    v_ready := array(select t.id from public.tasks t
                      where t.id = any (p_ids) and not t.blocked and t.status = 'Queued' and t.depends_on <> '{}');
    v_needed := array(select d.id from public.tasks d where d.id = any (array(
                          select distinct unnest(t.depends_on) from public.tasks t where t.id = any (v_ready))));
    select count(*) into v_kept from (
        select from public.tasks d where d.id = any (v_needed) and d.status = 'Complete'
         order by d.id for share skip locked) k;
    if v_kept < cardinality(v_needed) then
        perform public.internal_unsettled(v_ready);
    end if;
end
$$;

drop function public.internal_settle_again(bigint, boolean);
-- Look again at the tasks of these rows. A row goes once nobody else was changing its tasks, or what they wait for: who
-- changes a dependency later sees them. Returns how many rows it looked at: others are being looked at by somebody else.
create function public.internal_settle_again(p_nos bigint[], p_waits boolean) returns int
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
declare
    v_nos bigint[];
    v_ids uuid[];
    v_needed uuid[];
    v_kept uuid[];
    v_open uuid[];
    v_busy jsonb;
    v_lock record;
begin
    select array_agg(l.no) into v_nos from (
        select u.no from public.tasks_unsettled u where u.no = any (p_nos) order by u.no for update skip locked) l;
    if v_nos is null then
        return 0;
    end if;
    v_ids := array(select distinct unnest(u.task_ids) from public.tasks_unsettled u where u.no = any (v_nos));
    select * into v_lock from public.internal_lock_queued(v_ids, 0);
    v_needed := array(
        select d.id from public.tasks d
         where d.status in ('Queued', 'In Progress', 'Complete')
           and d.id = any (array(select distinct unnest(t.depends_on) from public.tasks t where t.id = any (v_lock.locked))));
    v_kept := array(select s.id from (
        select d.id from public.tasks d where d.id = any (v_needed) and d.status in ('Queued', 'In Progress', 'Complete')
         order by d.id for share skip locked) s);
    if cardinality(v_kept) < cardinality(v_needed) and p_waits and public.internal_lock_briefly(v_needed, true) then
        v_kept := v_needed;
    end if;
    perform public.internal_settle(v_lock.locked, '{}');
    v_open := v_lock.missed;
    if cardinality(v_kept) < cardinality(v_needed) then
        select jsonb_object_agg(b.id, true) into v_busy from (select unnest(v_needed) as id except select unnest(v_kept)) b;
        v_open := v_open || array(select t.id from public.tasks t
                                   where t.id = any (v_lock.locked)
                                     and exists (select from unnest(t.depends_on) n (id) where v_busy ? n.id::text));
    end if;
    select coalesce(jsonb_object_agg(o.id, true), '{}') into v_busy from unnest(v_open) o (id);
    delete from public.tasks_unsettled u
     where u.no = any (v_nos) and not exists (select from unnest(u.task_ids) n (id) where v_busy ? n.id::text);
    if not p_waits and v_open <> '{}' then
        update public.tasks_unsettled u
           set tried_at = clock_timestamp(), task_ids = array(select n.id from unnest(u.task_ids) n (id) where v_busy ? n.id::text)
         where u.no = any (v_nos);
    end if;
    return cardinality(v_nos);
end
$$;

create or replace function public.internal_settle_at_commit() returns trigger
language plpgsql security definer set search_path = '' set jit = off as $$
begin
    perform public.internal_settle_again(array[new.no], true);
    return null;
end
$$;

-- At each snapshot, and for about a tenth of a second: the tasks that were left to a later look, and those that a user's
-- trigger kept from being settled or claimed. Nothing of it stops the snapshot.
create or replace function public.internal_settle_late() returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set lock_timeout = '100ms' set jit = off as $$
declare
    c_time constant interval := '100 milliseconds';
    c_rows constant int := 500;  -- of one look, …
    c_tasks constant int := 1000;  -- … in which no row begins after so many tasks
    v_began timestamptz := clock_timestamp();
    v_nos bigint[];
    v_no bigint;
    v_refusal public.task_refusals;
begin
    while clock_timestamp() < v_began + c_time loop
        select array_agg(b.no) into v_nos from (
            select u.no, sum(cardinality(u.task_ids)) over (order by u.tried_at, u.no) - cardinality(u.task_ids) as before
              from (select * from public.tasks_unsettled u where u.tried_at < v_began
                     order by u.tried_at, u.no limit c_rows) u) b
         where b.before < c_tasks;
        exit when v_nos is null;
        begin
            exit when public.internal_settle_again(v_nos, false) = 0;
        exception when others then  -- an error that passes: each alone, the next time after the others
            foreach v_no in array v_nos loop
                begin
                    if clock_timestamp() < v_began + c_time then
                        perform public.internal_settle_again(array[v_no], false);
                    end if;
                exception when others then
                    update public.tasks_unsettled u set tried_at = clock_timestamp() where u.no = v_no;
                end;
            end loop;
            exit;
        end;
    end loop;
    for v_refusal in
        select * from public.task_refusals r where r.retry_at <= public.internal_now() and r.what <> 'rescue'
         order by r.retry_at limit c_rows
    loop
        exit when clock_timestamp() > v_began + 2 * c_time;
        begin
            if v_refusal.what = 'claim' then
                perform public.internal_try_refused(v_refusal.task_id);
            else
                perform public.internal_settle(array[v_refusal.task_id], '{}');
                delete from public.task_refusals r
                 where r.task_id = v_refusal.task_id and r.what = 'settle' and r.retry_at <= public.internal_now();
            end if;
        exception when others then
            perform public.internal_refused(array[v_refusal.task_id], v_refusal.what, format('%s (%s)', sqlerrm, sqlstate));
        end;
    end loop;
end
$$;

-- Everything that waits, once an hour: rows that were written without triggers, and tasks that have waited in vain for a
-- task that does not exist. An error of one slice stops no other, and not the retention.
create or replace function public.internal_settle_all(p_now timestamptz) returns void
language plpgsql security definer set search_path = '' set jit = off as $$
declare
    c_slice constant int := 1000;
    c_absent constant interval := '1 hour';  -- after that nobody will insert it
    v_ids uuid[];
    v_gone uuid[];
begin
    perform public.internal_settle_late();
    for v_ids in
        select array_agg(q.id) from (
            select t.id, row_number() over () as n from public.tasks t
             where t.status = 'Queued' and (t.blocked or t.depends_on <> '{}')) q
         group by q.n / c_slice
    loop
        begin
            v_gone := array(
                select distinct n.id from public.tasks t cross join unnest(t.depends_on) n (id)
                 where t.id = any (v_ids) and t.updated_at < p_now - c_absent
                   and not exists (select from public.tasks d where d.id = n.id)
                   and not exists (select from public.task_results r where r.id = n.id));
            perform public.internal_settle(v_ids, v_gone);
        exception when others then
            raise warning 'tasks could not be settled: % (%)', sqlerrm, sqlstate;
        end;
    end loop;
    begin
        perform public.internal_settle_cycles(null);
    exception when others then
        raise warning 'cycles could not be ended: % (%)', sqlerrm, sqlstate;
    end;
    delete from public.task_results r
     where not exists (select from public.tasks t
                        where t.status <> 'Complete' and t.depends_on <> '{}' and t.depends_on @> array[r.id]);
    delete from public.task_refusals r
     where not exists (select from public.tasks t where t.id = r.task_id and t.status in ('Queued', 'In Progress'));
end
$$;

create or replace function public.internal_tasks_added() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_waiting uuid[];
    v_ended uuid[];
    v_again uuid[];
begin
    select array_agg(a.id) filter (where a.depends_on <> '{}' and a.status = 'Queued'),
           array_agg(a.id) filter (where a.status in ('Complete', 'Failed', 'Cancelled'))
      into v_waiting, v_ended from added a;
    if v_waiting is not null then
        -- Who deletes a dependency waits until it is known who needs it. Heartbeats and completions do not wait.
        perform from public.tasks d
          where d.id = any (array(select distinct unnest(t.depends_on) from public.tasks t where t.id = any (v_waiting)))
          order by d.id for key share;
        perform public.internal_settle_new(v_waiting);
    end if;
    if v_ended is not null then
        perform public.internal_settle(public.internal_dependants(v_ended), '{}');
    end if;
    -- Of a task with this id that was Complete when it was deleted, the result is kept.
    v_again := array(select r.id from added a join public.task_results r on r.id = a.id where a.status <> 'Complete');
    if v_again <> '{}' then
        perform public.internal_settle(public.internal_needing(v_again), '{}');
    end if;
    perform pg_notify('orchestrator_tasks', p.pool)
       from (select distinct a.pool from added a
              where a.status = 'Queued'
                and (a.depends_on = '{}'
                     or (select t.status = 'Queued' and not t.blocked from public.tasks t where t.id = a.id))) p;
    return null;
end
$$;

create or replace function public.internal_tasks_removed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_held uuid[];
    v_lost uuid[];
begin
    if tg_op = 'TRUNCATE' then
        delete from public.task_results;
        delete from public.tasks_unsettled;
        delete from public.task_refusals;
        perform public.internal_close_attempts(
            array(select a.task_id from public.task_attempts a where a.ended_at is null), true);
        return null;
    end if;
    insert into public.task_results (id, task_type, output_location, result_data, output_object, deleted_at)
    select r.id, r.task_type, r.output_location, r.result_data, r.output_object, public.internal_now()
      from removed r
     where r.status = 'Complete'
       and exists (select from public.tasks t
                    where t.status <> 'Complete' and t.depends_on <> '{}' and t.depends_on @> array[r.id])
    on conflict (id) do update
       set output_location = excluded.output_location, result_data = excluded.result_data,
           output_object = excluded.output_object, deleted_at = excluded.deleted_at;
    select array_agg(r.id) filter (where r.status = 'In Progress'), array_agg(r.id) filter (where r.status <> 'Complete')
      into v_held, v_lost from removed r;
    if v_held is not null then
        perform public.internal_close_attempts(v_held, true);
    end if;
    if v_lost is not null then
        perform public.internal_settle(public.internal_dependants(v_lost), v_lost);
    end if;
    return null;
end
$$;

do $$
declare
    v_function regprocedure;
    v_role name;
begin
    alter table public.task_refusals enable row level security;
    revoke all on public.task_refusals from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated') loop
        execute format('revoke all on public.task_refusals from %I', v_role);
    end loop;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        grant all on public.task_refusals to service_role;
    end if;
    for v_function in
        select p.oid::regprocedure from pg_catalog.pg_proc p
         where p.pronamespace = 'public'::regnamespace
           and p.proname in ('internal_refused', 'internal_refused_ready', 'internal_fire_deferred',
                             'internal_try_refused', 'internal_is_unrescuable', 'internal_rescue_one', 'internal_renew',
                             'internal_unsettled', 'internal_end_cycle', 'internal_settle_each', 'internal_fail_behind',
                             'internal_settle_again')
    loop
        execute format('revoke all on function %s from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function %s from %I', v_function, v_role);
        end loop;
    end loop;
end
$$;
