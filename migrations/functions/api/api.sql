-- The calls of the API about tasks. p_scope {pools, tenant} restricts the caller: a task outside of it looks absent.

-- The version of a task for its ETag: it changes with the state, not with each heartbeat.
create or replace function public.internal_task_version(p_task public.tasks) returns text
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select left(md5(concat_ws('|', internal_task_version.p_task.id, internal_task_version.p_task.status,
        internal_task_version.p_task.attempts, internal_task_version.p_task.published,
        internal_task_version.p_task.worker_id,
                              extract(epoch from internal_task_version.p_task.cancel_requested_at))), 16)
$$;

-- Submits tasks in the name of a token. A submission with a key is done once within 24 hours, even after changes to its
-- tasks: a repetition gets the first answer. {outcome: ok, repeated, key_reused, tasks}
create or replace function public.task_submit_for(
    p_fleet text, p_actor text, p_scope jsonb, p_key text, p_sha256 text, p_tasks jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_known public.api_submissions;
    v_tasks jsonb;
    v_created int;
begin
    if p_key is not null then
        insert into public.api_submissions (fleet, actor, key, sha256, at)
        values (p_fleet, p_actor, p_key, p_sha256, v_now)
        on conflict on constraint api_submissions_pkey do nothing;  -- waits for the transaction that has the key
        if not found then
            select * into v_known from public.api_submissions s
             where s.fleet = p_fleet and s.actor = p_actor and s.key = p_key for update;
            if v_known.at > v_now - interval '24 hours' then
                return case when v_known.sha256 = p_sha256
                    then jsonb_build_object('outcome', 'repeated', 'tasks', v_known.answer)
                    else jsonb_build_object('outcome', 'key_reused') end;
            end if;
        end if;
    end if;
    v_tasks := public.internal_submit_scoped(p_scope, p_tasks, v_now);
    if p_key is not null then
        update public.api_submissions s set sha256 = p_sha256, answer = v_tasks, at = v_now
         where s.fleet = p_fleet and s.actor = p_actor and s.key = p_key;
    end if;
    v_created := (select count(*) from jsonb_array_elements(v_tasks) e where (e.value->>'created')::boolean);
    if v_created > 0 then
        perform public.internal_audit(p_fleet, p_actor, 'task.submit', v_tasks->0->>'id',
            jsonb_build_object('tasks', v_created), v_now);
    end if;
    return jsonb_build_object('outcome', 'ok', 'tasks', v_tasks);
end
$$;

-- Submits tasks that depend on, and become, nothing but tasks within the scope. A tenant's dedupe keys are its own.
create or replace function public.internal_submit_scoped(p_scope jsonb, p_tasks jsonb, p_now timestamptz) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_tenant text := p_scope->>'tenant';
    v_restricted boolean := v_tenant is not null or jsonb_typeof(p_scope->'pools') = 'array';
    v_tasks jsonb := p_tasks;
    v_wrong text;
begin
    if v_tenant is not null then
        select jsonb_agg(e.task || jsonb_build_object('tenant', v_tenant) || case when e.task->>'dedupe_key' is not null
                   then jsonb_build_object('dedupe_key', jsonb_build_array(v_tenant, e.task->'dedupe_key')::text)
                   else '{}' end order by e.n)
          into v_tasks from jsonb_array_elements(p_tasks) with ordinality e (task, n);
    end if;
    if jsonb_typeof(p_scope->'pools') = 'array' then
        -- A key of a task outside the scope is replaced: the answer would reveal that such a task exists.
        select jsonb_agg(e.task || case when e.task->>'dedupe_key' is not null
                   then jsonb_build_object('dedupe_key', public.internal_scoped_key(p_scope, e.task->>'dedupe_key'))
                   else '{}' end order by e.n)
          into v_tasks from jsonb_array_elements(v_tasks) with ordinality e (task, n);
    end if;
    if v_restricted then
        select r.id into v_wrong
          from jsonb_array_elements(p_tasks) e
          cross join jsonb_array_elements_text(
              case jsonb_typeof(e->'depends_on') when 'array' then e->'depends_on' else '[]' end) r (id)
         where r.id ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
           and not exists (select from public.tasks t
                            where t.id = r.id::uuid and public.internal_in_scope(p_scope, t.pool, t.tenant)) limit 1;
        if v_wrong is not null then
            perform public.internal_refuse('OR007', format('a task depends on %L, which does not exist', v_wrong));
        end if;
    end if;
    v_tasks := public.task_submit(v_tasks, p_now)->'tasks';
    if v_restricted then
        select orchestrator.pool_of(t.*) into v_wrong
          from jsonb_array_elements(v_tasks) e join public.tasks t on t.id = (e.value->>'id')::uuid
         where not public.internal_in_scope(p_scope, orchestrator.pool_of(t.*), t.tenant) limit 1;
        if v_wrong is not null then
            perform public.internal_refuse('OR007', 'a task is outside of what this token may submit', '',
                'name one of the pools of the token');
        end if;
    end if;
    return v_tasks;
end
$$;

-- The dedupe key under which a token of pools submits: its own form of the key while a task outside the scope has the
-- key itself, or a task in the queue has that form.
create or replace function public.internal_scoped_key(p_scope jsonb, p_key text) returns text
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_own text := jsonb_build_array(p_scope->'pools', p_key)::text;
begin
    return case when exists (select from orchestrator.live q where q.dedupe_key = v_own
                              union all
                             select from orchestrator.live q
                              where q.dedupe_key = p_key and not public.internal_in_scope(p_scope, q.pool, q.tenant))
                then v_own else p_key end;
end
$$;

-- Cancels or retries a task in the name of a token, if its version is p_version (null: any version). The answer of
-- task_cancel or task_retry with the task after it (internal_task_shown), {outcome: not_found} or
-- {outcome: changed, version}.
create or replace function public.task_act_for(
    p_fleet text, p_actor text, p_scope jsonb, p_id uuid, p_action text, p_version text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_task public.tasks;
    v_answer jsonb;
begin
    if p_action not in ('cancel', 'retry') then
        perform public.internal_refuse('OR007', format('there is no action %L', left(p_action, 100)));
    end if;
    perform from public.tasks t where t.id = p_id for no key update;
    v_task := orchestrator.current_task(p_id);
    if v_task.id is null or not public.internal_in_scope(p_scope, v_task.pool, v_task.tenant) then
        return jsonb_build_object('outcome', 'not_found');
    elsif p_version <> public.internal_task_version(v_task) then
        return jsonb_build_object('outcome', 'changed', 'version', public.internal_task_version(v_task));
    end if;
    v_answer := case p_action when 'cancel' then public.task_cancel(p_id, v_now)
                              else public.task_retry(p_id, v_now) end;
    if v_answer->>'outcome' not in ('already', 'not_ended') then
        perform public.internal_audit(p_fleet, p_actor, 'task.' || p_action, p_id::text, null, v_now);
    end if;
    return v_answer || public.internal_task_shown(orchestrator.current_task(p_id));
end
$$;

-- A task as the API shows it, with its version, without params and result, and with texts of so many characters at
-- most. A user's own columns, and what SQL or a hostile pod writes, may be of any size.
create or replace function public.internal_task_line(p_task public.tasks, p_chars int) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object(
               'id', t.id, 'task_type', t.task_type, 'status', t.status, 'pool', t.pool, 'priority', t.priority,
               'tenant', t.tenant, 'labels', t.labels, 'attempts', t.attempts, 'max_attempts', t.max_attempts,
               'worker_id', t.worker_id, 'created_at', t.created_at, 'run_after', t.run_after,
               'generation_started_at', t.generation_started_at, 'generation_processed_at', t.generation_processed_at,
               'progress', public.internal_shown_progress(t.progress, internal_task_line.p_chars),
               'progress_at', (select q.progress_at from orchestrator.live q
                                where q.task_id = t.id and q.state = 'running'),
               'cancel_requested_at', t.cancel_requested_at,
               'failure_code', t.failure_code,
               'error_message', public.internal_shortened(t.error_message, internal_task_line.p_chars),
               'output_location', public.internal_shortened(t.output_location, internal_task_line.p_chars),
               'output_object', t.output_object, 'depends_on', t.depends_on, 'dedupe_key', t.dedupe_key,
               'traceparent', t.traceparent, 'timeout_s', t.timeout_s,
               'version', public.internal_task_version(internal_task_line.p_task))
      from (select (internal_task_line.p_task).*) t
$$;

create or replace function public.internal_shown_progress(p_progress jsonb, p_bytes int) returns jsonb
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select case when octet_length(internal_shown_progress.p_progress::text) > internal_shown_progress.p_bytes
                then jsonb_build_object('message', '(too large to be shown)')
                else internal_shown_progress.p_progress end
$$;

-- A text without its middle, if it is longer, as the agent cuts texts.
create or replace function public.internal_shortened(p_text text, p_chars int) returns text
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select case when length(s.p_text) <= s.p_chars then s.p_text else
               left(s.p_text, s.p_chars / 4)
               || format(E'\n[… %s characters left out …]\n', length(s.p_text) - s.p_chars / 4 * 4)
               || right(s.p_text, s.p_chars / 4 * 3) end
      from (select internal_shortened.p_text, internal_shortened.p_chars) s
$$;

-- {task, params, result_data}: one task. The values of users are JSON texts: to decode and encode them would hold up
-- the orchestrator's other calls.
create or replace function public.internal_task_shown(p_task public.tasks) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object(
        'task', public.internal_task_line(internal_task_shown.p_task, 65536),
        'params', public.internal_shown_text(to_jsonb(internal_task_shown.p_task.params)),
        'result_data', public.internal_shown_text(to_jsonb(internal_task_shown.p_task.result_data)))
$$;

-- A value as JSON text, or a remark in its place: a user may have written any value.
create or replace function public.internal_shown_text(p_value jsonb) returns text
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    c_bytes constant int := 8388608;
    v_text text := p_value::text;
begin
    return case when octet_length(v_text) > c_bytes
                    then to_jsonb(format('(too large to be shown: %s bytes)', octet_length(v_text)))::text
                when public.internal_is_unreadable(p_value)
                    then '"(nested too deeply, or with a number too long, to be shown)"'
                else v_text end;
end
$$;

-- One task with its attempts, as internal_task_shown has it; its "task" is null if there is none within the scope.
create or replace function public.task_get_for(p_scope jsonb, p_id uuid, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
    select case when t.id is null then jsonb_build_object('task', null)
                else public.internal_task_shown(orchestrator.current_task(t.id))
        || jsonb_build_object('attempts', coalesce((select jsonb_agg(to_jsonb(a.*) - 'detail' || jsonb_build_object(
               'message', public.internal_shortened(a.message, 8192)) order by a.attempt) from (
            select * from public.task_attempts a where a.task_id = t.id
             order by a.attempt desc limit 100) a), '[]')) end
      from (select task_get_for.p_id as id) p
      left join lateral orchestrator.current_task(p.id) t
             on t.id is not null and public.internal_in_scope(task_get_for.p_scope, t.pool, t.tenant)
$$;

-- What callers that wait for tasks see, of the tasks that exist: {id, pool, tenant, status, progress, progress_at,
-- attempt, version}.
create or replace function public.task_states(p_ids jsonb, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
    select jsonb_build_object('tasks', coalesce(jsonb_agg(jsonb_build_object(
               'id', (n.t).id, 'pool', (n.t).pool, 'tenant', (n.t).tenant, 'status', (n.t).status,
               'progress', public.internal_shown_progress((n.t).progress, 4096), 'progress_at', q.progress_at,
               'attempt', (n.t).attempts, 'version', public.internal_task_version(n.t)) order by (n.t).id), '[]'))
      from (select orchestrator.current_task(o.id) as t from public.tasks o
             where o.id = any (array(select jsonb_array_elements_text(task_states.p_ids)::uuid limit 2000)) offset 0) n
      left join orchestrator.live q on q.task_id = (n.t).id and q.state = 'running'
$$;

-- A page of tasks, the newest first, without params and results. Unlike task_find, it counts nothing, and its cost is
-- bounded for every filter, because programs outside choose the filter: a call looks at 2,000 tasks at most, so a page
-- may be short, and `next` says where to continue. p_filter: as in task_filters.sql; p_cursor: [time, id] of the last
-- task that was looked at.
create or replace function public.task_page(
    p_scope jsonb, p_filter jsonb, p_cursor jsonb, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
as $$
#variable_conflict use_variable
declare
    c_looked_at constant int := 2000;
    v_limit int := least(greatest(coalesce(p_limit, 100), 1), 1000);
    v_at timestamptz := (p_cursor->>0)::timestamptz;
    v_id uuid := (p_cursor->>1)::uuid;
    v_most int := v_limit + 1;  -- tasks that are read at once: often the first ones fit
    v_task record;
    v_found jsonb[] := '{}';
    v_read int;
    v_looked int := 0;
begin
    while v_looked < c_looked_at loop
        v_read := 0;
        for v_task in select * from orchestrator.tasks_after(p_filter, v_at, v_id, v_most) loop
            if cardinality(v_found) = v_limit then
                return jsonb_build_object('tasks', to_jsonb(v_found), 'next', jsonb_build_array(v_at, v_id));
            end if;
            v_read := v_read + 1;
            v_at := v_task.created_at;
            v_id := v_task.id;
            if public.internal_fits(p_scope, p_filter, v_task.status, v_task.task_type, v_task.pool, v_task.tenant,
                                    v_task.labels) then
                v_found := v_found || (
                    select public.internal_task_line(orchestrator.current_task(v_task.id), 4096));
            end if;
        end loop;
        if v_read < v_most then
            return jsonb_build_object('tasks', to_jsonb(v_found), 'next', null);
        end if;
        v_looked := v_looked + v_read;
        v_most := least(v_most * 4, greatest(c_looked_at - v_looked, 1));
    end loop;
    return jsonb_build_object('tasks', to_jsonb(v_found), 'next', jsonb_build_array(v_at, v_id));
end
$$;

-- The pauses in force: {pool: {reason, until}}; "*" means every pool.
create or replace function public.fleet_pauses(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    return jsonb_build_object('paused', public.internal_pauses(p_fleet, public.internal_clock(p_now)));
end
$$;

-- A page of workers, the newest first, of these pools (null: of all). p_cursor: [created_at, id] of the last one seen.
-- p_ended: false: without those that have ended; null: those alone.
create or replace function public.fleet_workers_page(
    p_fleet text, p_pools jsonb, p_ended boolean, p_cursor jsonb, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_at timestamptz := (p_cursor->>0)::timestamptz;
begin
    return jsonb_build_object('workers', coalesce((
        select jsonb_agg(public.internal_worker_report(w, v_now) order by w.created_at desc, w.id)
          from (select * from public.workers w
                 where w.fleet = p_fleet
                   and case when p_ended is null then w.status = 'terminated'
                            else p_ended or w.status <> 'terminated' end
                   and (jsonb_typeof(p_pools) is distinct from 'array' or p_pools ? w.pool)
                   and (v_at is null or w.created_at < v_at or w.created_at = v_at and w.id > p_cursor->>1)
                 order by w.created_at desc, w.id limit least(greatest(coalesce(p_limit, 100), 1), 1000)) w), '[]'));
end
$$;

-- A page of scaling decisions, the newest first, of these pools (null: of all), before the decision p_before.
create or replace function public.fleet_decisions_page(
    p_fleet text, p_pools jsonb, p_before bigint, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_limit int := least(greatest(coalesce(p_limit, 100), 1), 1000);
    v_before bigint := coalesce(p_before, 9223372036854775807);
begin
    if jsonb_typeof(p_pools) is distinct from 'array' then
        return jsonb_build_object('decisions', coalesce((
            select jsonb_agg(to_jsonb(d.*) order by d.id desc)
              from (select * from public.decisions d where d.fleet = p_fleet and d.id < v_before
                     order by d.id desc limit v_limit) d), '[]'));
    end if;
    return jsonb_build_object('decisions', coalesce((
        select jsonb_agg(to_jsonb(d.*) order by d.id desc)
          from (select d.* from jsonb_array_elements_text(p_pools) p (pool)
                 cross join lateral (select * from public.decisions n
                                      where n.fleet = p_fleet and n.pool = p.pool and n.id < v_before
                                      order by n.id desc limit v_limit) d
                 order by d.id desc limit v_limit) d), '[]'));
end
$$;

-- What happened to the workers of these pools (null: of all) after the event p_after, the oldest first; null: the
-- newest events. `next`: where to continue, `more`: whether there is more by now. A call looks at 2,000 events. An
-- event waits until no older transaction can commit one with a smaller id, 10 s at most: a reader that continues from
-- `next` misses none.
create or replace function public.fleet_events(
    p_fleet text, p_pools jsonb, p_after bigint, p_limit int, p_now timestamptz default null
) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_sort = on set jit = off as $$
#variable_conflict use_variable
declare
    c_looked_at constant int := 2000;
    c_xids constant bigint := 4294967296;  -- numbers of transactions, which are used again
    v_oldest constant bigint := pg_snapshot_xmin(pg_current_snapshot())::text::bigint % c_xids;
    v_limit int := least(greatest(coalesce(p_limit, 100), 1), 1000);
    v_event record;
    v_found jsonb[] := '{}';
    v_next bigint := coalesce(p_after, 0);
    v_count int := 0;
begin
    if p_after is null then
        select coalesce(min(n.id) - 1, 0) into v_next from (
            select e.id, e.worker_id, e.fleet from (
                select * from public.worker_events o order by o.id desc limit c_looked_at) e
              left join public.workers w on w.id = e.worker_id
             where e.fleet = p_fleet and (jsonb_typeof(p_pools) is distinct from 'array' or p_pools ? w.pool)
             order by e.id desc limit v_limit) n;
    end if;
    for v_event in
        select e.id, e.at, e.fleet, e.worker_id, w.pool, e.from_state, e.to_state, e.from_stage, e.to_stage,
               left(e.reason, 2000) as reason, e.actor,
               e.at > clock_timestamp() - interval '10 seconds'
               and (e.xmin::text::bigint - v_oldest + c_xids) % c_xids < c_xids / 2 as waits
          from (select o.*, o.xmin from public.worker_events o where o.id > v_next order by o.id limit c_looked_at) e
          left join public.workers w on w.id = e.worker_id
         order by e.id
    loop
        exit when v_event.waits;
        if cardinality(v_found) = v_limit then
            return jsonb_build_object('events', to_jsonb(v_found), 'next', v_next, 'more', true);
        end if;
        v_count := v_count + 1;
        v_next := v_event.id;
        if v_event.fleet = p_fleet
           and (jsonb_typeof(p_pools) is distinct from 'array' or coalesce(p_pools ? v_event.pool, false)) then
            v_found := v_found || (to_jsonb(v_event) - array['fleet', 'waits']);
        end if;
    end loop;
    return jsonb_build_object('events', to_jsonb(v_found), 'next', v_next, 'more', v_count = c_looked_at);
end
$$;
