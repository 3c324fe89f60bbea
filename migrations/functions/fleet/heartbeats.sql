-- Heartbeats of workers.

-- Renews the leases of the tasks that an agent names and its launch holds, and says what became of the others. An agent
-- says for how many seconds a task has shown no sign of life. Earlier agents report only progress; a change of it
-- counts as a sign. The clock is the database's. The word of an agent about an attempt counts for at most twice the
-- task's timeout_s, so an agent that does not enforce the timeout cannot keep its pod for longer; but during an outage
-- of the object store it waits with a finished result. A task that a user's open transaction has changed keeps its
-- lease as it is; the launch shows that its agent named it.
create or replace function orchestrator.renew(
    p_launch orchestrator.launches, p_tasks jsonb, p_now timestamptz, out held uuid[], out fenced uuid[]
)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_is_away boolean := exists (
        select from orchestrator.store_outages o where o.fleet = p_launch.fleet and o.expires_at > p_now);
    v_ids uuid[] := array(select (n.value->>'id')::uuid from jsonb_array_elements(p_tasks) n);
    v_attempts int[] := array(select (n.value->>'attempt')::int from jsonb_array_elements(p_tasks) n);
    v_skipped uuid[];
    c_seconds constant text := '^[0-9]{1,7}([.][0-9]{1,9})?$';
    v_before jsonb;  -- the progress that was shown, for earlier agents
begin
    if exists (select from jsonb_array_elements(p_tasks) n
                where n.value->'progress' <> 'null' and (n.value->>'still_s' ~ c_seconds) is not true) then
        v_before := (select jsonb_object_agg(t.id, t.progress) from public.tasks t where t.id = any (v_ids));
    end if;
    with named as (
        select (n.value->>'id')::uuid as id, (n.value->>'attempt')::int as attempt,
               case when n.value->>'still_s' ~ c_seconds
                    then p_now - (n.value->>'still_s')::numeric * interval '1 second'
                    when n.value->'progress' <> 'null'
                         and n.value->'progress' is distinct from v_before->(n.value->>'id')
                    then p_now end as lived_at
          from jsonb_array_elements(p_tasks) n
    ), renewed as (
        update orchestrator.live q
           set lease_expires_at = p_now + p_launch.lease,
               progress_at = greatest(q.progress_at, (
                   select max(least(n.lived_at, case when v_is_away then p_now
                                        else q.claimed_at + 2 * coalesce(q.timeout_s, 3600) * interval '1 second' end))
                     from named n where n.id = q.task_id and n.attempt = q.attempt and n.lived_at is not null))
         where q.ctid = any (array(
                   select l.ctid from orchestrator.live l
                    where l.task_id = any (v_ids) and (l.task_id, l.attempt) in (select n.id, n.attempt from named n)
                      and l.state = 'running' and l.worker_id = p_launch.worker_id and l.nonce = p_launch.nonce
                    order by l.task_id for update skip locked))
        returning q.task_id
    )
    select array_agg(r.task_id) into held from renewed r;
    v_skipped := array(
        select n.id from unnest(v_ids, v_attempts) n (id, attempt)
         where (n.id = any (held)) is not true and orchestrator.state_of(p_launch, n.id, n.attempt, '{}') = 'held');
    if v_skipped <> p_launch.skipped then
        update orchestrator.launches l set skipped = v_skipped where l.worker_id = p_launch.worker_id;
    end if;
    fenced := array(select n.id from unnest(v_ids, v_attempts) n (id, attempt)
                     where orchestrator.state_of(p_launch, n.id, n.attempt, '{}') = 'fenced');
end
$$;

-- Publishes the progress of held tasks. What cannot be written now is written with a later heartbeat.
create or replace function orchestrator.write_progress(p_ids uuid[], p_tasks jsonb, p_now timestamptz) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10ms'
set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_ids uuid[];
begin
    v_ids := array(
        select t.id from jsonb_array_elements(p_tasks) n join public.tasks t on t.id = (n.value->>'id')::uuid
         where t.id = any (p_ids) and n.value->'progress' <> 'null' and t.progress is distinct from n.value->'progress'
           and t.status = 'In Progress'
           for no key update of t skip locked);
    if v_ids = '{}' then
        return;
    end if;
    perform orchestrator.begin_publishing();
    update public.tasks t set progress = n.value->'progress', updated_at = p_now
      from jsonb_array_elements(p_tasks) n
     where t.id = any (v_ids) and t.id = (n.value->>'id')::uuid;
    set constraints all immediate;
    perform set_config('search_path', 'pg_catalog, pg_temp', true), set_config('orchestrator.publishing', '', true);
exception when others or assert_failure or query_canceled then
    perform orchestrator.refusal(sqlstate, sqlerrm);
end
$$;

-- A heartbeat of a ready worker sets the times of its row: the next heartbeat is due at next_attempt_at, and the worker
-- owns its tasks until deadline_at. A spawning or terminating row keeps the times of its stage. The answer names the
-- stuck tasks: those without a sign of life for the time that the leader declared. The agent ends these attempts. The
-- answer also says whether an orchestrator leads the fleet: if none has led for DEADMAN_TIMEOUT_SEC, the agent ends its
-- tasks and has its pod stopped. Without a leader, the heartbeats maintain the queue. `node_tasks`: those of a
-- cluster, if there are any.
create or replace function public.worker_heartbeat(
    p_worker_id text, p_nonce text, p_tasks jsonb, p_health jsonb, p_logs jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
set lock_timeout = '900ms' as $$
#variable_conflict use_variable
declare
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_now timestamptz := public.internal_clock(p_now);  -- after the lock, for which it may have waited
    v_tasks jsonb := coalesce(nullif(p_tasks, 'null'), '[]');
    v_launch orchestrator.launches;
    v_renewed record;
    v_cancel jsonb;
    v_stuck jsonb;
    v_is_led boolean;
    c_maintaining constant bigint := 1951812;  -- an advisory lock: one heartbeat at a time
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'cancel', '[]'::jsonb, 'fenced', '[]'::jsonb);
    end if;
    perform orchestrator.check_heartbeat(v_tasks, p_health, p_logs);
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
    select * into v_launch from orchestrator.launches l where l.worker_id = p_worker_id;
    v_renewed := orchestrator.renew(v_launch, v_tasks, v_now);
    if v_renewed.held is not null then
        perform orchestrator.write_progress(v_renewed.held, v_tasks, v_now);
    end if;
    select jsonb_agg(q.task_id) filter (where q.cancel_requested_at is not null),
           jsonb_agg(q.task_id) filter (where q.progress_at <= v_now - (
               select (s.value->>'stuck_s')::numeric * interval '1 second' from public.fleet_settings s
                where s.fleet = v_worker.fleet and s.name = 'programs'))
      into v_cancel, v_stuck
      from orchestrator.live q where q.task_id = any (v_renewed.held);
    v_is_led := exists (select from public.fleet_lease l where l.fleet = v_worker.fleet and l.expires_at > v_now);
    if not v_is_led and pg_try_advisory_xact_lock(c_maintaining) then
        begin
            perform orchestrator.maintain(v_now);
        exception when lock_not_available or deadlock_detected then  -- the lease of this worker is renewed all the same
            null;
        end;
    end if;
    return jsonb_build_object(
               'outcome', 'ok', 'wanted', v_launch.wanted, 'cancel', coalesce(v_cancel, '[]'),
               'stuck', coalesce(v_stuck, '[]'), 'fenced', to_jsonb(v_renewed.fenced),
               'heartbeat_s', v_worker.heartbeat_s, 'lease_s', v_worker.lease_s,
               'led', v_is_led)
        || case when v_worker.cluster is null then '{}' else public.internal_node_tasks(v_worker, v_now) end;
end
$$;

create or replace function orchestrator.check_heartbeat(p_tasks jsonb, p_health jsonb, p_logs jsonb) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if jsonb_typeof(p_tasks) <> 'array' or jsonb_array_length(p_tasks) > 1000 then
        perform public.internal_refuse('OR007',
                                       'p_tasks must be a list of at most 1000 {id, attempt, progress, still_s}');
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
end
$$;

-- The node tasks for the agent of a worker, as a part of the answer to a heartbeat; {} if there are none. They are
-- repeated with each heartbeat until their end is reported.
create or replace function public.internal_node_tasks(p_worker public.workers, p_now timestamptz) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    c_tasks constant int := 10;
    v_ids bigint[];
begin
    v_ids := array(
        select n.id from public.node_tasks n
         where n.worker_id = p_worker.id and n.via = 'agent' and n.status in ('queued', 'dispatched')
           and n.deadline_at > p_now and not public.internal_is_unreadable(n.payload)  -- by hand; it expires
         order by n.id limit c_tasks for no key update skip locked);
    if v_ids = '{}' then
        return '{}';
    end if;
    perform public.internal_because('worker', null, 'sent to the agent');
    update public.node_tasks n set status = 'dispatched' where n.id = any (v_ids) and n.status = 'queued';
    return jsonb_build_object('node_tasks', (
        select jsonb_agg(jsonb_build_object('id', n.id, 'kind', n.kind, 'payload', n.payload) order by n.id)
          from public.node_tasks n where n.id = any (v_ids)));
end
$$;
