-- Schedules: tasks that are submitted again and again. The leader works out due times; here each of them gets exactly
-- one row in schedule_runs, in the transaction that submits its task and moves the schedule on to the next due time.

-- Adds or replaces a schedule: {name, cron or every_s, timezone, task, overlap, catch_up}. Answers with the row as it
-- is then: a schedule that existed keeps its created_at and its pause.
create or replace function public.task_schedule(p_schedule jsonb, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_created boolean;
    v_row jsonb;
begin
    perform public.internal_check_keys(p_schedule, array['name', 'cron', 'every_s', 'timezone', 'task', 'overlap',
        'catch_up'], 'schedule');
    perform public.internal_check_task(p_schedule->'task', 0);
    if p_schedule->'task' ?| array['id', 'depends_on', 'run_after'] then
        perform public.internal_refuse('OR007',
                                       'the task of a schedule must be one that can be submitted again and again',
            'it has id, depends_on or run_after', 'leave them out');
    end if;
    insert into public.schedules as s (name, cron, every_s, timezone, task, overlap, catch_up, created_at)
    values (p_schedule->>'name', p_schedule->>'cron', (p_schedule->>'every_s')::int,
            coalesce(p_schedule->>'timezone', 'UTC'), p_schedule->'task', coalesce(p_schedule->>'overlap', 'skip'),
            coalesce(p_schedule->>'catch_up', 'none'), v_now)
    on conflict (name) do update
       set cron = excluded.cron, every_s = excluded.every_s, timezone = excluded.timezone, task = excluded.task,
           overlap = excluded.overlap, catch_up = excluded.catch_up
    returning s.xmax = 0, to_jsonb(s.*) - 'task' into v_created, v_row;
    return jsonb_build_object('created', v_created, 'now', v_now, 'schedule', v_row);
end
$$;

-- All schedules, each with its last run, and how many of its last runs have each outcome.
create or replace function public.task_schedules(p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('now', public.internal_clock(task_schedules.p_now), 'schedules', coalesce((
        select jsonb_agg(to_jsonb(s.*) - 'task' || jsonb_build_object(
                   'task_type', s.task->>'task_type', 'last_run', r.runs->0, 'recent', coalesce((
                       select jsonb_object_agg(o.outcome, o.n)
                         from (select x.run->>'outcome' as outcome, count(*) as n
                                 from jsonb_array_elements(r.runs) x (run) group by 1) o), '{}')) order by s.name)
          from (select * from public.schedules order by name limit 1000) s
          left join lateral (
              select jsonb_agg(to_jsonb(n.*) - 'schedule' order by n.due_at desc) as runs
                from (select * from public.schedule_runs n
                       where n.schedule = s.name order by n.due_at desc limit 100) n) r on true), '[]'))
$$;

-- Stops or resumes a schedule. A due time that passes while it is paused gets no row.
create or replace function public.task_schedule_pause(p_name text, p_paused boolean, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    update public.schedules s
       set paused_at = case when p_paused then coalesce(s.paused_at, public.internal_clock(p_now)) end
     where s.name = p_name;
    return jsonb_build_object('found', found);
end
$$;

-- Removes a schedule with its runs. The tasks stay.
create or replace function public.task_schedule_remove(p_name text, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    delete from public.schedules s where s.name = p_name;
    return jsonb_build_object('found', found);
end
$$;

-- What the leader must look at: schedules that are due, and those without a next due time.
create or replace function public.fleet_schedules_due(p_fleet text, p_limit int, p_now timestamptz default null)
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('now', public.internal_clock(fleet_schedules_due.p_now), 'schedules', coalesce((
        select jsonb_agg(jsonb_build_object('name', s.name, 'cron', s.cron, 'every_s', s.every_s,
                                            'timezone', s.timezone,
                   'catch_up', s.catch_up, 'created_at', s.created_at, 'next_at', s.next_at))
          from (select * from public.schedules d
                 where d.paused_at is null and d.problem is null
                   and (d.next_at is null or d.next_at <= public.internal_clock(fleet_schedules_due.p_now))
                 order by d.next_at nulls first limit least(fleet_schedules_due.p_limit, 1000)) s), '[]'))
$$;

-- Closes due times and moves on to the next one. p_seen: next_at as the leader read it; if it is another one by now,
-- the schedule was changed or another leader was here, and nothing is done. p_missed get that outcome. At p_due_at the
-- task is submitted, unless the last one has not ended and the schedule says to skip then; null: no task is due. A
-- submission that creates no task, because there is one with the same id or dedupe_key, is skipped too.
create or replace function public.fleet_schedule_run(
    p_fleet text, p_term bigint, p_name text, p_seen timestamptz, p_missed jsonb, p_due_at timestamptz,
    p_next_at timestamptz, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_schedule public.schedules;
    v_outcome text := 'moved';
    v_submitted jsonb;
    v_task_id uuid;
    v_reason text;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_schedule_run');
    select * into v_schedule from public.schedules s where s.name = p_name for update;
    if not found or v_schedule.paused_at is not null or v_schedule.next_at is distinct from p_seen then
        return jsonb_build_object('outcome', 'stale');
    end if;
    insert into public.schedule_runs (schedule, due_at, outcome, reason, at)
    select p_name, m.value::timestamptz, 'missed', 'no orchestrator was running at this time', v_now
      from jsonb_array_elements_text(p_missed) m on conflict do nothing;
    if p_due_at is not null and not exists (
        select from public.schedule_runs r where r.schedule = p_name and r.due_at = p_due_at) then
        select r.task_id into v_task_id from public.schedule_runs r
         where r.schedule = p_name and r.outcome = 'fired' order by r.due_at desc limit 1;
        if v_schedule.overlap = 'skip' and exists (
            select from orchestrator.live q where q.task_id = v_task_id) then
            v_outcome := 'skipped';
            v_reason := format('the previous task %s has not ended', v_task_id);
            v_task_id := null;
        else
            begin
                v_submitted := public.task_submit(jsonb_build_array(v_schedule.task), p_now)->'tasks'->0;
                v_task_id := (v_submitted->>'id')::uuid;
                v_outcome := 'fired';
                if not (v_submitted->>'created')::boolean then
                    v_outcome := 'skipped';
                    v_reason := format(case when v_task_id = (v_schedule.task->>'id')::uuid
                        then 'the task could not be submitted: its id %s is taken'
                        else 'task %s with the same dedupe_key has not ended' end, v_task_id);
                    v_task_id := null;
                end if;
            exception when others or assert_failure then  -- the task itself, a user's trigger or a constraint
                if public.internal_is_transient(sqlstate) then
                    raise;  -- the leader tries this due time again
                end if;
                v_outcome := 'skipped';
                v_reason := left(format('the task could not be submitted: %s', sqlerrm), 500);
                v_task_id := null;
            end;
        end if;
        insert into public.schedule_runs (schedule, due_at, outcome, task_id, reason, at)
        values (p_name, p_due_at, v_outcome, v_task_id, v_reason, v_now);
    end if;
    update public.schedules s set next_at = p_next_at where s.name = p_name;
    return jsonb_build_object('outcome', v_outcome, 'task_id', v_task_id, 'reason', v_reason);
end
$$;

-- Disables a schedule whose due times cannot be computed, until it is changed.
create or replace function public.fleet_schedule_problem(
    p_fleet text, p_term bigint, p_name text, p_problem text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_schedule_problem');
    update public.schedules s set problem = left(p_problem, 500) where s.name = p_name;
    return jsonb_build_object('found', found);
end
$$;

-- Schedules that submit no task, and why: their due times cannot be worked out, or their last task was refused within a
-- day. It looks at 10,000 schedules at most.
create or replace function public.internal_schedule_troubles(p_now timestamptz, p_limit int) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
    select coalesce(jsonb_agg(jsonb_build_object('name', f.name, 'why', f.why) order by f.name), '[]')
      from (select s.name, coalesce(s.problem, r.reason) as why
              from (select * from public.schedules d order by d.name limit 10000) s
              left join lateral (
                  select n.outcome, n.reason, n.at from public.schedule_runs n
                   where n.schedule = s.name order by n.due_at desc limit 1) r on true
             where s.paused_at is null
               and (s.problem is not null
                    or r.outcome = 'skipped' and r.reason like 'the task could not be submitted: %'
                       and r.at > internal_schedule_troubles.p_now - interval '1 day')
             order by s.name limit internal_schedule_troubles.p_limit) f
$$;

-- A schedule that was changed or resumed needs a new next due time.
create or replace function public.internal_schedule_changed() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    new.next_at := null;
    new.problem := null;
    return new;
end
$$;
