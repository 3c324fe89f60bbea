-- Heartbeats of workers.

-- A heartbeat of a ready worker sets the times of its row: the next heartbeat is due at next_attempt_at, and the worker
-- owns its tasks until deadline_at. A spawning or terminating row keeps the times of its stage. The answer names the
-- stuck tasks: those without a sign of life for the time that the leader declared. The agent ends these attempts. The
-- answer also says whether an orchestrator leads the fleet: if none has led for DEADMAN_TIMEOUT_SEC, the agent ends its
-- tasks and has its pod stopped. `node_tasks`, if there are any: see functions/cluster_operations.sql.
create or replace function public.worker_heartbeat(
    p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_now timestamptz := public.internal_clock(p_now);  -- after the lock, for which it may have waited
    v_held uuid[];
    v_locked uuid[];  -- by another transaction, although the worker holds them
    v_cancel jsonb;
    v_stuck jsonb;
    v_fenced jsonb;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'cancel', '[]'::jsonb, 'fenced', '[]'::jsonb);
    end if;
    if jsonb_typeof(coalesce(p_tasks, '[]')) <> 'array' or jsonb_array_length(coalesce(p_tasks, '[]')) > 1000 then
        perform public.internal_refuse('OR007', 'p_tasks must be a list of at most 1000 {id, attempt, progress, still_s}');
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

    for v_look in 1..2 loop
        select array_agg(l.id) into v_held from (
            select t.id from jsonb_array_elements(coalesce(p_tasks, '[]')) n
              join public.tasks t on t.id = (n.value->>'id')::uuid and t.attempts = (n.value->>'attempt')::int
             where t.worker_id = p_worker_id and t.status = 'In Progress'
             order by t.id for no key update of t skip locked) l;
        v_locked := array(
            select t.id from jsonb_array_elements(coalesce(p_tasks, '[]')) n
              join public.tasks t on t.id = (n.value->>'id')::uuid and t.attempts = (n.value->>'attempt')::int
             where t.worker_id = p_worker_id and t.status = 'In Progress' and t.id <> all (coalesce(v_held, '{}')));
        exit when v_locked = '{}' or v_look = 2 or not public.internal_lock_briefly(v_locked, false);
    end loop;
    perform public.internal_note_locked(v_held, v_locked, v_worker.lease_s, v_now);
    if v_held is not null then
        perform public.internal_renew(public.internal_renewable(v_held, v_worker.lease_s, v_now), p_tasks, v_worker.lease_s, v_now);
    end if;
    select coalesce(jsonb_agg(t.id) filter (where t.cancel_requested_at is not null), '[]'),
           coalesce(jsonb_agg(t.id) filter (where t.progress_at <= v_now - (
               select (s.value->>'stuck_s')::numeric * interval '1 second' from public.fleet_settings s
                where s.fleet = v_worker.fleet and s.name = 'programs')), '[]')
      into v_cancel, v_stuck
      from public.tasks t where t.id = any (v_held);
    select coalesce(jsonb_agg(n.value->>'id'), '[]') into v_fenced
      from jsonb_array_elements(coalesce(p_tasks, '[]')) n
     where (n.value->>'id')::uuid <> all (coalesce(v_held, '{}') || v_locked);
    return jsonb_build_object('outcome', 'ok', 'wanted', public.internal_wanted(v_worker), 'cancel', v_cancel,
                              'stuck', v_stuck, 'fenced', v_fenced, 'heartbeat_s', v_worker.heartbeat_s,
                              'lease_s', v_worker.lease_s,
                              'led', exists (select from public.fleet_lease l
                                              where l.fleet = v_worker.fleet and l.expires_at > v_now))
        || case when v_worker.cluster is null then '{}' else public.internal_node_tasks(v_worker, v_now) end;
end
$$;

-- Postpones the rescue of tasks whose rows another transaction has locked, such as a forgotten one in a SQL editor. Their
-- leases cannot be renewed, but their worker is alive and has just named them. The heartbeat does not wait for the
-- transaction: the worker would count as silent.
create or replace function public.internal_note_locked(
    p_held uuid[], p_locked uuid[], p_lease_s numeric, p_now timestamptz
) returns void
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    if p_held is not null then
        delete from public.task_refusals r where r.task_id = any (p_held) and r.what = 'rescue';
    end if;
    if p_locked <> '{}' then
        insert into public.task_refusals as r (task_id, what, reason, refused_at, retry_at, since)
        select distinct n.id, 'rescue',
            'Another transaction has locked its row, its limit or what a trigger needs: its lease cannot be renewed. Its worker is alive.',
               p_now, p_now + p_lease_s * interval '1 second', p_now
          from unnest(p_locked) n (id) order by 1
        on conflict (task_id) do update set retry_at = excluded.retry_at, refused_at = excluded.refused_at
        where r.what = 'rescue';
    end if;
end
$$;

-- Renews the leases of these tasks, which the caller has locked, as far as users' triggers allow. An agent says for how
-- many seconds a task has shown no sign of life. Earlier agents report only progress; a change of it counts as a sign.
-- The clock is the database's. The word of an agent about an attempt counts for at most twice the task's timeout_s, so
-- an agent that does not enforce the timeout cannot keep its pod for longer. It counts during every outage of the object
-- store: the agent waits with a finished result. A user's trigger that waits for another transaction must not make the
-- worker silent: a transaction waits three times for such triggers.
create or replace function public.internal_renew(p_ids uuid[], p_tasks jsonb, p_lease_s numeric, p_now timestamptz)
returns void
language plpgsql security definer set search_path = '' set enable_seqscan = off set lock_timeout = '200ms' as $$
#variable_conflict use_variable
declare
    c_time constant interval := '2 seconds';
    v_id uuid;
    v_is_locked boolean;
    v_set text;
begin
    if not public.internal_may_wait() then
        v_set := set_config('lock_timeout', '1ms', true);
    end if;
    update public.tasks t
       set lease_expires_at = p_now + p_lease_s * interval '1 second',
           progress = coalesce(nullif(n.value->'progress', 'null'), t.progress),
           progress_at = greatest(t.progress_at, least(
               case when (select public.internal_is_store_away(w.fleet, p_now) from public.workers w where w.id = t.worker_id)
                    then p_now
                    else t.generation_started_at + 2 * coalesce(t.timeout_s, 3600) * interval '1 second' end,
               case when n.value->>'still_s' ~ E'^[0-9]{1,7}(\\.[0-9]{1,9})?$'
                    then p_now - (n.value->>'still_s')::numeric * interval '1 second'
                    when coalesce(nullif(n.value->'progress', 'null'), t.progress) is distinct from t.progress then p_now
                    else coalesce(t.progress_at, t.generation_started_at) end))
      from jsonb_array_elements(p_tasks) n
     where t.id = any (p_ids) and t.id = (n.value->>'id')::uuid and t.attempts = (n.value->>'attempt')::int;
    perform public.internal_fire_deferred();
exception when others or assert_failure then  -- a user's trigger or constraint may raise anything
    v_is_locked := sqlstate = '55P03';
    if public.internal_is_transient(sqlstate) and not v_is_locked then
        raise;
    elsif v_is_locked then
        perform public.internal_count_wait();
    end if;
    if cardinality(p_ids) > 1 and clock_timestamp() < statement_timestamp() + c_time then
        foreach v_id in array p_ids loop
            perform public.internal_renew(array[v_id], p_tasks, p_lease_s, p_now);
        end loop;
    elsif v_is_locked then
        perform public.internal_note_locked(null, p_ids, p_lease_s, p_now);
    end if;  -- otherwise its lease expires
end
$$;

-- Renews the leases of a worker's running tasks. The worker sends no heartbeat, but SSH has shown that its agent calls
-- and gets no answer. A task of a program of the user's own has no lease. Returns the number of tasks; those that another
-- transaction has locked are not rescued meanwhile, as after a heartbeat.
create or replace function public.fleet_keep_tasks(
    p_fleet text, p_term bigint, p_worker_id text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_lease_s numeric;
    v_ids uuid[];
    v_tasks jsonb;
    v_locked uuid[];
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_keep_tasks');
    select w.lease_s into v_lease_s from public.workers w
     where w.id = p_worker_id and w.fleet = p_fleet and w.status <> 'terminated';
    if v_lease_s is not null then
        select array_agg(l.id), jsonb_agg(jsonb_build_object('id', l.id, 'attempt', l.attempts)) into v_ids, v_tasks
          from (select t.id, t.attempts from public.tasks t
                 where t.worker_id = p_worker_id and t.status = 'In Progress' and t.lease_expires_at < 'infinity'
                 order by t.id for no key update skip locked) l;
        v_locked := array(
            select t.id from public.tasks t
             where t.worker_id = p_worker_id and t.status = 'In Progress' and t.lease_expires_at < 'infinity'
               and t.id <> all (coalesce(v_ids, '{}')));
        perform public.internal_note_locked(v_ids, v_locked, v_lease_s, v_now);
    end if;
    if v_ids is not null then
        perform public.internal_renew(public.internal_renewable(v_ids, v_lease_s, v_now), v_tasks, v_lease_s, v_now);
    end if;
    return jsonb_build_object('tasks', coalesce(cardinality(v_ids), 0));
end
$$;

-- Heartbeats of many workers in one statement. The gateway collects them from agents that hold no task. Each counts
-- only under the current launch and token of its worker. A worker that is missing in the answer must call alone: then
-- it learns the reason. A locked row is also left out, so that it does not delay the others.
create or replace function public.fleet_heartbeats(p_beats jsonb, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = '' set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_beat record;
    v_answers jsonb;
begin
    for v_try in 1..2 loop  -- all at once; if one is invalid, again, each in a block of its own
        begin
            v_answers := '{}';
            for v_beat in
                select w.id, w.nonce, b.health, b.logs
                  from jsonb_to_recordset(p_beats) b (worker_id text, nonce text, jti text, health jsonb, logs jsonb)
                  join public.workers w on w.id = b.worker_id and w.nonce = b.nonce and w.token_jti = b.jti
                 where w.status <> 'terminated'
                   for no key update of w skip locked loop
                v_answers := v_answers || public.internal_heartbeat(
                    v_beat.id, v_beat.nonce, v_beat.health, v_beat.logs, p_now, v_try = 2);
            end loop;
            return v_answers;
        exception when others or assert_failure then
            if v_try = 2 or public.internal_is_transient(sqlstate) then
                raise;
            end if;
        end;
    end loop;
end
$$;

-- Returns {worker: answer} of one heartbeat without tasks, or {} for an invalid one if `p_alone`.
create or replace function public.internal_heartbeat(
    p_worker_id text, p_nonce text, p_health jsonb, p_logs jsonb, p_now timestamptz, p_alone boolean
) returns jsonb
language plpgsql security definer set search_path = '' as $$
#variable_conflict use_variable
begin
    if not p_alone then
        return jsonb_build_object(p_worker_id, public.worker_heartbeat(p_worker_id, p_nonce, '[]', p_health, p_logs, p_now));
    end if;
    return public.internal_heartbeat(p_worker_id, p_nonce, p_health, p_logs, p_now, false);
exception when others or assert_failure then
    if not p_alone or public.internal_is_transient(sqlstate) then
        raise;
    end if;
    return '{}';
end
$$;
