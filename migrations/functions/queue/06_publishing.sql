-- How `tasks` comes to show what has happened in the queue.
--
-- A publication is one UPDATE of `tasks` in a block of its own, which waits 10 ms for locks. A user's trigger or
-- constraint may refuse, suppress or rewrite it: then the row is in `publications`, which is the truth until the
-- leader, or the next call of any agent, publishes it. `tasks.published` only grows (2 * attempt for In Progress, 2 *
-- attempt + 1 for an end), so an old publication never overwrites a newer one.
--
-- What a user adds to `tasks` runs under the search path of the database's users, as in their own statements, and not
-- under ours. A setting names the depth of triggers at which we publish: our trigger skips that statement, and
-- not one of a user's trigger within it, which runs deeper.

-- A task as it will be shown: with its end or its present attempt, if that is not published yet, and with the defaults
-- of its type. An end that is older than what `tasks` shows waits only for its removal.
create or replace function orchestrator.current_task(p_id uuid) returns public.tasks
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_task public.tasks;
    v_end orchestrator.publications;
    v_run record;
    v_values jsonb;
begin
    select * into v_task from public.tasks t where t.id = p_id;
    if not found then
        return null;
    end if;
    v_task.created_at := public.internal_readable_time(v_task.created_at);
    v_task.attempts := coalesce(v_task.attempts, 0);
    v_task.depends_on := orchestrator.needs(v_task);
    v_task.run_after := public.internal_readable_time(v_task.run_after);
    v_task.traceparent := case when public.internal_traceparent_problem(v_task.traceparent) is null
                               then v_task.traceparent end;
    select jsonb_build_object('pool', coalesce(v_task.pool, d.pool, 'default'),
                              'max_attempts', coalesce(v_task.max_attempts, d.max_attempts, 3),
                              'timeout_s', coalesce(v_task.timeout_s, d.timeout_s))
      into v_values
      from (values (1)) o (one) left join public.task_types d on d.task_type = v_task.task_type;
    select * into v_end from orchestrator.publications p where p.task_id = p_id and p.no > v_task.published;
    if found then
        v_values := v_values || orchestrator.as_shown(v_end, v_task);
    end if;
    if coalesce(v_values->>'status', v_task.status::text) = 'Queued' then
        select q.attempt, q.worker_id, q.claimed_at into v_run from orchestrator.live q
         where q.task_id = p_id and q.state = 'running' and 2 * q.attempt > v_task.published and q.nonce is not null;
        if found then
            v_values := v_values || jsonb_build_object(
                'status', 'In Progress', 'worker_id', v_run.worker_id, 'attempts', v_run.attempt,
                'generation_started_at', v_run.claimed_at, 'run_after', null);
        end if;
    end if;
    return orchestrator.with_values(v_task, v_values);
end
$$;

-- A task with these values of its columns. What does not fit a column of the user's, such as a varchar(20) or a domain,
-- stays as it is: a task must end all the same, and one must not end every list of tasks.
create or replace function orchestrator.with_values(p_task public.tasks, p_values jsonb) returns public.tasks
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_value record;
begin
    return jsonb_populate_record(p_task, p_values);
exception when others or assert_failure then
    for v_value in select * from jsonb_each(p_values) loop
        begin
            p_task := jsonb_populate_record(p_task, jsonb_build_object(v_value.key, v_value.value));
        exception when others or assert_failure then
            null;
        end;
    end loop;
    return p_task;
end
$$;

-- The same as JSON, with its state in the queue. uncounted: the attempts that do not count against max_attempts.
create or replace function orchestrator.task_json(p_id uuid) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select to_jsonb(t.*) - 'published' || jsonb_build_object(
               'error_message', public.internal_message(t.error_message),
               'pool', coalesce(q.pool, t.pool), 'max_attempts', coalesce(q.max_attempts, t.max_attempts),
               'state', case when q.state = 'waits_for_time' and q.run_after <= now() then 'ready'
                             else q.state::text end,
               'blocked', coalesce(q.state in ('waits_for_tasks', 'waits_for_key', 'waits_for_type'), false),
               'uncounted', greatest(0, t.attempts - coalesce(q.attempt - q.uncounted, a.counted, t.attempts)),
               'progress_at', q.progress_at, 'lease_expires_at', q.lease_expires_at)
      from orchestrator.current_task(task_json.p_id) t
      left join orchestrator.live q on q.task_id = t.id
      left join lateral (select l.attempt - l.uncounted as counted from orchestrator.attempts l where l.task_id = t.id
                          order by l.attempt desc limit 1) a on q.task_id is null
     where t.id is not null
$$;

-- The pool of a task.
create or replace function orchestrator.pool_of(p_task public.tasks) returns text
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(pool_of.p_task.pool,
                    (select d.pool from public.task_types d where d.task_type = pool_of.p_task.task_type), 'default')
$$;

-- The columns of `tasks` that an end changes.
create or replace function orchestrator.as_shown(p_end orchestrator.publications, p_task public.tasks) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object(
               'status', as_shown.p_end.status, 'published', as_shown.p_end.no, 'updated_at', as_shown.p_end.at,
               'run_after', as_shown.p_end.run_after,
               'attempts', coalesce(as_shown.p_end.attempts, as_shown.p_task.attempts),
               'worker_id', case when as_shown.p_end.status <> 'Queued'
                                 then coalesce(as_shown.p_end.worker_id, as_shown.p_task.worker_id) end,
               'generation_started_at', coalesce(as_shown.p_end.started_at, as_shown.p_task.generation_started_at),
               'generation_processed_at', case when as_shown.p_end.status <> 'Queued' then as_shown.p_end.at end,
               'error_message', as_shown.p_end.error_message, 'failure_code', as_shown.p_end.failure_code,
               'failed_at_point', as_shown.p_end.failed_at_point)
        || case when as_shown.p_end.status <> 'Complete' then '{}' else jsonb_build_object(
               'progress', null, 'result_data', as_shown.p_end.result_data,
               'output_location', as_shown.p_end.output_location, 'output_object', as_shown.p_end.output_object) end
$$;

-- The end of a task that no worker ran. It takes a number, so that each publication of a task has its own.
create or replace function orchestrator.end_without_run(
    p_task orchestrator.live, p_status text, p_code text, p_message text, p_point text default null
) returns orchestrator.publications
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_end orchestrator.publications;
begin
    v_end.task_id := p_task.task_id;
    v_end.no := 2 * p_task.attempt + 3;
    v_end.status := p_status;
    v_end.shown := case when p_task.shown > 0 then 'In Progress' else 'Queued' end;
    v_end.at := public.internal_now();
    v_end.failure_code := p_code;
    v_end.error_message := public.internal_message(p_message);
    v_end.failed_at_point := p_point;
    v_end.times := 0;
    return v_end;
end
$$;

-- Why a publication was refused: a user's trigger or constraint may raise anything, also what the server itself raises.
-- After a call was cancelled while a user's trigger ran, it publishes nothing more, because nothing would end the next
-- trigger that sleeps.
create or replace function orchestrator.refusal(p_state text, p_message text) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if p_state = '57014' then
        perform set_config('orchestrator.is_cancelled', 'yes', true);
        return 'A trigger of the database took too long: the call was cancelled';
    end if;
    return format('%s (%s)', left(p_message, 4000), p_state);
end
$$;

-- Pools whose users' triggers take long: three calls of agents within a minute did. For a minute, calls leave the
-- publications of such a pool to maintenance.
create or replace view orchestrator.slow_pools as
select c.pool, c.at + interval '1 minute' as until
  from (select s.pool, s.at, count(*) over (
                   partition by s.pool order by s.at range between interval '1 minute' preceding and current row) as n
          from orchestrator.slow_calls s) c
 where c.n >= 3;

-- Users' triggers of `tasks`. Without one, no call is counted as slow.
create or replace view orchestrator.users_triggers as
select g.tgname from pg_catalog.pg_trigger g join pg_catalog.pg_proc p on p.oid = g.tgfoid
 where g.tgrelid = 'public.tasks'::regclass and not g.tgisinternal and g.tgenabled <> 'D'
   and p.pronamespace <> 'orchestrator'::regnamespace;

-- Publishes ends. What cannot be published now is published later; if p_is_slow, all of them. p_pool: of a call of an
-- agent.
create or replace function orchestrator.publish(
    p_ends orchestrator.publications[], p_pool text default null, p_is_slow boolean default false
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
set lock_timeout = '10ms' as $$
#variable_conflict use_variable
declare
    v_left orchestrator.publications[];
    v_end orchestrator.publications;
    v_why text;
    c_slow constant interval := '100 milliseconds';
    v_began constant timestamptz := clock_timestamp();
begin
    if p_is_slow then
        perform orchestrator.publish_later(p_ends,
                                           'Triggers of the database take long: the leader publishes this pool');
        return;
    end if;
    begin
        v_left := orchestrator.write_ends(p_ends);
    exception when others or assert_failure or query_canceled then
        v_why := orchestrator.refusal(sqlstate, sqlerrm);
        v_left := p_ends;
    end;
    foreach v_end in array coalesce(v_left, '{}') loop
        v_why := 'A trigger of the database suppressed it';
        begin
            perform from public.tasks t where t.id = v_end.task_id for no key update skip locked;
            if found or not exists (select from public.tasks t where t.id = v_end.task_id) then
                continue when orchestrator.write_ends(array[v_end]) is null;
            else
                v_why := 'Another transaction has locked its row';
            end if;
        exception when others or assert_failure or query_canceled then
            v_why := orchestrator.refusal(sqlstate, sqlerrm);
        end;
        perform orchestrator.publish_later(array[v_end], v_why);
    end loop;
    if p_pool is not null and clock_timestamp() > v_began + c_slow then
        perform set_config('lock_timeout', '900ms', true);  -- for a row of ours
        insert into orchestrator.slow_calls (pool, at)
        select p_pool, (p_ends[1]).at where exists (select from orchestrator.users_triggers);
    end if;
end
$$;

-- Writes ends into `tasks`; returns those that it does not show yet. A row that is gone or newer needs nothing.
create or replace function orchestrator.write_ends(p_ends orchestrator.publications[])
returns orchestrator.publications[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    -- The ids as a list, too: a plan from when the table was empty would read all of it for a join.
    v_ids uuid[] := array(select e.task_id from unnest(p_ends) e);
    v_status public.tasks.status%type;
    v_shown uuid[];
    v_wishes uuid[];
    v_left orchestrator.publications[];
begin
    for v_status in select distinct e.status from unnest(p_ends) e loop
        perform orchestrator.begin_publishing();
        with written as (
            update public.tasks t
               set status = v_status, published = e.no, updated_at = e.at, run_after = e.run_after,
                   worker_id = case when e.status = 'Queued' then null else coalesce(e.worker_id, t.worker_id) end,
                   attempts = coalesce(e.attempts, t.attempts),
                   generation_started_at = coalesce(e.started_at, t.generation_started_at),
                   generation_processed_at = case when e.status = 'Queued' then null else e.at end,
                   error_message = e.error_message, failure_code = e.failure_code, failed_at_point = e.failed_at_point,
                   progress = case when e.status = 'Complete' then null else t.progress end,
                   result_data = case when e.status = 'Complete' then e.result_data else t.result_data end,
                   output_location = case when e.status = 'Complete' then e.output_location else t.output_location end,
                   output_object = case when e.status = 'Complete' then e.output_object else t.output_object end
              from unnest(p_ends) e
             where t.id = any (v_ids) and t.id = e.task_id and t.published < e.no and e.status = v_status::text
            returning t.id, t.published = e.no as is_new, t.status = v_status as is_so
        )
        select v_shown || array_agg(w.id) filter (where w.is_new),
               v_wishes || array_agg(w.id) filter (where w.is_new and not w.is_so)
          into v_shown, v_wishes from written w;
        set constraints all immediate;
        perform set_config('search_path', 'pg_catalog, pg_temp', true), set_config('orchestrator.publishing', '', true);
        if v_status = 'Queued' then
            update orchestrator.live q set shown = 0, attempts_shown = coalesce(e.attempts, q.attempts_shown)
              from unnest(p_ends) e
             where q.task_id = e.task_id and q.task_id = any (v_shown)
               and (q.state <> 'running' or q.shown < 2 * q.attempt);
        end if;
    end loop;
    if cardinality(v_shown) < cardinality(p_ends) or v_shown is null then
        select array_agg(e) into v_left from unnest(p_ends) e
         where (e.task_id = any (v_shown)) is not true
           and (select t.published < e.no from public.tasks t where t.id = e.task_id);
    end if;
    insert into orchestrator.rechecks (kind, name)  -- a user's trigger has put another status there
    select 'edit', w.id::text from unnest(v_wishes) w (id);
    return v_left;
end
$$;

-- What a user adds to `tasks` runs as in their own statements from here until the search path is '' again. It has no
-- search path of its own, because one that it set would end with it.
create or replace function orchestrator.enter_users_path() returns void
language plpgsql as $$
begin
    perform pg_catalog.set_config('search_path', 'pg_catalog, ' || public.internal_users_path() || ', pg_temp', true);
end
$$;

-- From here on, statements on `tasks` are publications, until the caller sets both settings to '' again. A caller has a
-- lock_timeout of 10 ms, and makes deferred constraints raise before the end.
create or replace function orchestrator.begin_publishing() returns void
language plpgsql as $$
begin
    if pg_catalog.current_setting('orchestrator.is_cancelled', true) operator(pg_catalog.=) 'yes' then
        raise exception using errcode = '57014', message = 'this call was cancelled';
    end if;
    perform pg_catalog.set_config('orchestrator.publishing', pg_catalog.pg_trigger_depth()::pg_catalog.text, true),
            pg_catalog.set_config('search_path', 'pg_catalog, ' || public.internal_users_path() || ', pg_temp', true);
end
$$;

-- Leaves ends to a later call. A newer end takes the place of an older one.
create or replace function orchestrator.publish_later(p_ends orchestrator.publications[], p_reason text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '900ms' as $$
#variable_conflict use_variable
declare
    c_first constant interval := '1 second';
    c_longest constant interval := '10 minutes';
begin
    insert into orchestrator.publications as p
    select e.task_id, e.no, e.status, e.shown, e.at, e.started_at, e.worker_id, e.attempts, e.result_data,
           e.output_location, e.output_object, e.error_message, e.failure_code, e.failed_at_point, e.run_after,
           p_reason, 1,
           case when p_reason is null then '-infinity' else public.internal_now() + c_first end
      from unnest(p_ends) e
    on conflict (task_id) do update
       set no = excluded.no, status = excluded.status, at = excluded.at, started_at = excluded.started_at,
           worker_id = excluded.worker_id, attempts = excluded.attempts, result_data = excluded.result_data,
           output_location = excluded.output_location, output_object = excluded.output_object,
           error_message = excluded.error_message, failure_code = excluded.failure_code,
           failed_at_point = excluded.failed_at_point, run_after = excluded.run_after, reason = excluded.reason,
           times = case when p.no = excluded.no then p.times + 1 else 1 end,
           retry_at = public.internal_now() + least(c_longest, c_first * 2 ^ least(p.times, 10))
     where p.no <= excluded.no;
    if p_reason is null then  -- they have no attempt
        insert into orchestrator.unrun_failures (task_id, no, at)
        select e.task_id, e.no, e.at from unnest(p_ends) e where e.status = 'Failed' and e.worker_id is null
        on conflict do nothing;
    end if;
end
$$;

-- Publishes what is due, at most so many; returns how many it found. What was refused before is tried by itself.
create or replace function orchestrator.publish_due(p_most int) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set jit = off as $$
#variable_conflict use_variable
declare
    c_time constant interval := '1 second';  -- for those that were refused
    v_now timestamptz := public.internal_now();
    v_ends orchestrator.publications[];
    v_refused orchestrator.publications[];
    v_end orchestrator.publications;
    v_began constant timestamptz := clock_timestamp();
begin
    select array_agg(p) filter (where p.reason is null), array_agg(p) filter (where p.reason is not null)
      into v_ends, v_refused from (
        select * from orchestrator.publications d where d.retry_at <= v_now
         order by d.retry_at limit p_most for update skip locked) p;
    if v_ends is not null then
        perform orchestrator.publish(v_ends);
    end if;
    foreach v_end in array coalesce(v_refused, '{}') loop
        exit when current_setting('orchestrator.is_cancelled', true) = 'yes' or clock_timestamp() > v_began + c_time;
        perform orchestrator.publish(array[v_end]);
    end loop;
    v_ends := coalesce(v_ends, '{}') || coalesce(v_refused, '{}');
    delete from orchestrator.publications p
     where p.task_id in (select e.task_id from unnest(v_ends) e)
       and (select t.published < p.no from public.tasks t where t.id = p.task_id) is not true;
    return cardinality(v_ends);
end
$$;

-- Writes to tasks as a user would, one at a time: one that a trigger or a lock of the user's refuses stays as it is.
-- p_change: 'due' (they need not wait any more) or 'back' (they failed, and are queued again with one attempt more).
create or replace function orchestrator.write_each(p_change text, p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' set jit = off as $$
#variable_conflict use_variable
declare
    c_time constant interval := '2 seconds';
    v_id uuid;
begin
    foreach v_id in array p_ids loop
        exit when clock_timestamp() > statement_timestamp() + c_time;
        begin
            perform orchestrator.enter_users_path();
            if p_change = 'due' then
                update public.tasks t set run_after = null where t.id = v_id and t.status = 'Queued';
            elsif (orchestrator.current_task(v_id)).status = 'Failed' then
                delete from orchestrator.publications p where p.task_id = v_id;  -- of its failure
                update public.tasks t
                   set status = 'Queued', run_after = null, worker_id = null, error_message = null, failure_code = null,
                       failed_at_point = null, progress = null, generation_processed_at = null
                 where t.id = v_id and t.status in ('Queued', 'Failed');
            end if;
            perform set_config('search_path', 'pg_catalog, pg_temp', true);
        exception when others or assert_failure or query_canceled then
            raise warning 'task % could not be changed (%): %', v_id, p_change, orchestrator.refusal(sqlstate, sqlerrm);
            exit when current_setting('orchestrator.is_cancelled', true) = 'yes';
        end;
    end loop;
end
$$;

-- Writes the messages about tasks that have just ended; it refuses nothing.
create or replace function public.internal_webhooks_write(p_ids uuid[], p_now timestamptz) returns void
language sql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
    insert into public.webhook_messages (event, task_id, webhook, url, owner, host, body, created_at, give_up_at,
                                         next_at)
    select e.event, t.id, u.webhook, u.url, public.internal_message_owner(u.webhook, t.tenant),
           public.internal_webhook_host(u.url),
           public.internal_webhook_body(t.*, e.event, internal_webhooks_write.p_now), internal_webhooks_write.p_now,
               internal_webhooks_write.p_now + interval '1 day', internal_webhooks_write.p_now
      from unnest(internal_webhooks_write.p_ids) i (id)
     cross join lateral orchestrator.current_task(i.id) t
     cross join lateral (select case t.status when 'Complete' then 'task.completed' when 'Failed' then 'task.failed'
                                              when 'Cancelled' then 'task.cancelled' end as event) e
     cross join lateral (select null::text as webhook, t.webhook_url as url
                          union all
                         select w.name, w.url from public.webhooks w
                          where w.task_type is null or w.task_type = t.task_type) u
     where t.id is not null and e.event is not null and public.internal_webhook_host(u.url) is not null
$$;
