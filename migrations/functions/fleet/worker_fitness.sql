-- Workers that fail one task after the other.
--
-- Such a worker is held back, and its own tasks decide: a task that another worker of its release completes speaks
-- against the worker, unless first attempts fail on the others as well; a task that fails on another machine too says
-- nothing about either. A worker with WORKER_MAX_CONSECUTIVE_FAILURES failures of its own is `suspect`: it claims
-- nothing while other workers can try these tasks. If those that others have tried failed there too, the inputs or the
-- release are the cause, and it only pauses. It claims again from `until` on, and its next success ends the hold. Each
-- hold in a row doubles the pause.
--
-- Failures that the handler calls permanent hold a worker back only if another worker completes tasks of these types. A
-- task of a type for which the declared release has no handler says nothing about the worker. Tasks that a sick worker
-- failed get one attempt back, once. The controller of a cluster is not held back: its jobs run on other nodes too, no
-- other worker of the pool could try them, and its end would end all of Slurm's jobs.

-- The different tasks that this worker failed since its last success, and what became of them on other workers of its
-- release: `done` there; `own`: done there, or not failed on another machine; `waits`: another worker may still try it.
-- A person who queues a task again may have corrected it: what becomes of it afterwards says nothing about this worker.
create or replace function public.internal_failures(p_worker public.workers) returns table (
    task_id uuid, task_type text, codes text[], first_at timestamptz, last_at timestamptz, permanent boolean,
    done boolean, own boolean, waits boolean
) language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with newest as (  -- 200 attempts: two claims of the largest size
        select a.task_id, a.attempt, a.ended_at, a.outcome, a.failure_code, a.permanent from orchestrator.attempts a
         where a.worker_id = internal_failures.p_worker.id order by a.started_at desc limit 200
    ), failed as (
        select n.task_id, max(n.attempt) as attempt, array_agg(distinct n.failure_code) as codes,
               min(n.ended_at) as first_at, max(n.ended_at) as last_at,
               bool_and(coalesce(n.permanent, false)) as permanent,
               bool_and(n.failure_code is not distinct from 'NO_HANDLER') as unable
          from newest n
         where n.outcome = 'failed'
           and n.ended_at > coalesce((select max(d.ended_at) from newest d where d.outcome = 'complete'), '-infinity')
         group by n.task_id
    )
    select f.task_id, t.task_type, f.codes, f.first_at, f.last_at, f.permanent,
           coalesce(e.done, false),
           coalesce(e.done, false) or not coalesce(e.failed, false),
           coalesce(t.status in ('Queued', 'In Progress'), false)
      from failed f
      left join lateral (
           select d.task_type, d.status from public.tasks d where d.id = f.task_id offset 0) t on true
      left join lateral (
           select bool_or(a.outcome = 'complete' and f.attempt > a.uncounted) as done,
                  bool_or(a.outcome = 'failed' and (o.machine_id = internal_failures.p_worker.machine_id) is not true)
                      as failed
             from (select l.worker_id, l.outcome, l.uncounted from orchestrator.attempts l
                    where l.task_id = f.task_id order by l.attempt desc limit 20) a
             join public.workers o on o.id = a.worker_id
            where o.id <> internal_failures.p_worker.id
              and o.release is not distinct from internal_failures.p_worker.release) e on true
     where not (f.unable and t.task_type is not null and coalesce(
               (select s.value->'task_types' <> '[]' and not s.value->'task_types' ? t.task_type
                  from public.fleet_settings s
                 where s.fleet = internal_failures.p_worker.fleet and s.name = 'release'), false))
$$;

-- How many different tasks may fail in a row on this worker.
create or replace function public.internal_max_failures(p_worker public.workers) returns int
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select greatest(1, coalesce((internal_max_failures.p_worker.metadata->>'max_failures')::int, 5))
$$;

-- Whether a worker is suspected: enough failures are its own, and those that others have tried do not speak for it.
create or replace function public.internal_is_suspect(p_limit int, p_failures bigint, p_own bigint, p_done bigint)
returns boolean language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select s.own >= s.most and not (2 * (s.failures - s.own) >= s.most and s.failures - s.own > s.done)
      from (select internal_is_suspect.p_limit, internal_is_suspect.p_failures, internal_is_suspect.p_own,
                   internal_is_suspect.p_done) s (most, failures, own, done)
$$;

-- For how long a worker pauses after so many holds in a row: 20 s, doubled up to 5 minutes.
create or replace function public.internal_hold_pause(p_trials int) returns interval
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select least(20 * 2 ^ least(greatest(internal_hold_pause.p_trials, 0), 10), 300) * interval '1 second'
$$;

-- Holds a worker back if its last tasks all failed, each a different one. Other workers then run the remaining tasks.
create or replace function public.internal_hold_back(p_worker public.workers, p_now timestamptz) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_before jsonb := p_worker.held_back;
    v_limit int := public.internal_max_failures(p_worker);
    v_until timestamptz;
    v_failures int;
    v_own int;
    v_done int;
    v_suspect boolean;
    v_recent int;
    v_types text[];
    v_codes text[];
    v_first timestamptz;
    v_permanent boolean;
    v_trials int := 0;
    v_task orchestrator.live;
    c_named constant int := 5;  -- types and codes that are recorded
begin
    if p_worker.own_program or p_worker.cluster is not null or p_worker.status not in ('active', 'idle') then
        return;
    end if;
    if v_before is not null then
        v_until := public.internal_held_moment(v_before, 'until');
        if v_until is null or v_until > p_now then
            return;
        end if;
        v_trials := coalesce((v_before->>'trials')::int, 0) + 1;
    end if;
    select count(*), count(*) filter (where f.own), count(*) filter (where f.done),
           count(*) filter (where f.last_at > coalesce(v_until, '-infinity')),
           (array_agg(distinct f.task_type) filter (where f.task_type is not null))[1:c_named],
           (select (array_agg(distinct c.code))[1:c_named]
              from public.internal_failures(p_worker) g, unnest(g.codes) c (code)
             where c.code is not null),
           min(f.first_at), bool_and(f.permanent)
      into v_failures, v_own, v_done, v_recent, v_types, v_codes, v_first, v_permanent
      from public.internal_failures(p_worker) f;
    if v_recent < v_limit then
        return;
    end if;
    v_suspect := public.internal_is_suspect(v_limit, v_failures, v_own, v_done);
    p_worker.held_back := jsonb_build_object(
        'since', p_now, 'first', v_first, 'failures', v_failures, 'types', to_jsonb(coalesce(v_types, '{}')),
        'codes', to_jsonb(coalesce(v_codes, '{}')), 'suspect', v_suspect, 'trials', v_trials,
        'until', case when not v_suspect then p_now + public.internal_hold_pause(v_trials) end);
    if v_permanent and public.internal_done_elsewhere(p_worker) is null then
        return;  -- the handler blames these tasks
    end if;
    p_worker.held_back := p_worker.held_back || jsonb_build_object(
        'worked', v_before->'worked' is not distinct from 'true' or public.internal_release_works(p_worker));
    update public.workers w
       set held_back = p_worker.held_back,
           waiting_on = 'orchestrator',
           waiting_for = format(case when v_suspect
               then 'another worker to try its tasks: it claims no more after %s different tasks failed in a row (%s)'
               else 'its pause to end: %s different tasks failed in a row, on other workers too (%s)' end,
               v_failures, array_to_string(v_codes, ', '))
     where w.id = p_worker.id;
    for v_task in
        select * from orchestrator.live q where q.worker_id = p_worker.id and q.state = 'running'
         order by q.task_id for update skip locked loop
        perform orchestrator.give_up(v_task, 'released', jsonb_build_object('code', 'RELEASED', 'message',
            format('Worker %s claims no more: its last %s tasks failed', p_worker.id, v_failures)),
            false, false, p_now);
    end loop;
    perform pg_notify('orchestrator_fleet', p_worker.id);
end
$$;

-- Decides again about a worker that is held back, by what became of its tasks elsewhere. It may claim from `until` on,
-- which its launch shows. The caller has locked its row.
create or replace function public.internal_review_hold(p_worker public.workers, p_now timestamptz) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_held jsonb := p_worker.held_back;
    v_limit int := public.internal_max_failures(p_worker);
    v_since timestamptz := public.internal_held_moment(v_held, 'since');
    v_until timestamptz := public.internal_held_moment(v_held, 'until');
    v_failures int;
    v_own int;
    v_done int;
    v_waits boolean;
    v_suspect boolean;
    v_trials int := coalesce((v_held->>'trials')::int, 0);
    c_wait constant interval := '15 minutes';  -- for another worker to try the tasks
begin
    if v_since is null then  -- a person wrote it
        return;
    end if;
    select count(*), count(*) filter (where f.own), count(*) filter (where f.done),
           coalesce(bool_or(f.own and f.waits and not f.done), false)
      into v_failures, v_own, v_done, v_waits
      from public.internal_failures(p_worker) f;
    if v_failures < v_limit then  -- it has completed a task
        update public.workers w set held_back = null, waiting_on = 'worker', waiting_for = 'tasks'
         where w.id = p_worker.id;
        perform pg_notify('orchestrator_fleet', p_worker.id);
        return;
    end if;
    v_suspect := public.internal_is_suspect(v_limit, v_failures, v_own, v_done);
    if not v_suspect and v_held->'suspect' is distinct from 'false' then
        v_until := least(v_until, p_now);
    elsif v_suspect and v_until is null and v_done * 2 >= v_limit
          and not (select c.meanwhile from public.internal_compared(p_worker) c) then
        v_until := p_now;  -- the cause may have been outside, and may be gone
    elsif v_suspect and v_until is null and p_now >= v_since + public.internal_hold_pause(v_trials) then
        v_waits := v_waits and exists (  -- by workers that exist or are being started
            select from public.workers o
             where o.fleet = p_worker.fleet and o.pool = p_worker.pool and o.id <> p_worker.id
               and o.status in ('spawning', 'active', 'idle')
               and o.held_back->'suspect' is distinct from 'true');
        if p_now >= v_since + c_wait or (not v_waits and v_done * 2 < v_limit) then
            v_until := p_now;
        end if;
    elsif not v_suspect and v_until > p_now and public.internal_done_elsewhere(p_worker) is not null then
        v_until := p_now;
    end if;
    v_held := v_held || jsonb_build_object('suspect', v_suspect, 'until', v_until);
    if v_held <> p_worker.held_back then
        update public.workers w set held_back = v_held where w.id = p_worker.id;
        perform pg_notify('orchestrator_fleet', p_worker.id);
    elsif v_until <= p_now and not (select l.may from orchestrator.launches l where l.worker_id = p_worker.id) then
        perform orchestrator.keep_launch(p_worker);
        perform pg_notify('orchestrator_fleet', p_worker.id);
    end if;
end
$$;

-- Looks at all workers that are held back, without waiting for one that another transaction has locked.
create or replace function orchestrator.review_holds(p_now timestamptz) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
declare
    v_worker public.workers;
begin
    for v_worker in select * from public.workers w
                     where w.status in ('active', 'idle') and w.held_back is not null
                     order by w.id for no key update skip locked loop
        perform public.internal_review_hold(v_worker, p_now);
    end loop;
end
$$;

-- Ended attempts of other workers of the release at tasks of the types that this worker failed. They began after these
-- failures. `first`: the task had not failed before; `may_succeed`: it is complete, or another attempt follows.
create or replace function public.internal_tried_elsewhere(p_worker public.workers) returns table (
    outcome text, ended_at timestamptz, first boolean, may_succeed boolean
) language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select a.outcome, a.ended_at,
           not exists (select from orchestrator.attempts e
                        where e.task_id = a.task_id and e.attempt < a.attempt and e.outcome = 'failed'),
           t.status in ('Queued', 'In Progress', 'Complete')
      from public.workers o
     cross join lateral (
           select n.task_id, n.attempt, n.outcome, n.started_at, n.ended_at from orchestrator.attempts n
            where n.worker_id = o.id order by n.started_at desc limit 20) a
     cross join lateral (  -- each by its key
           select d.task_type, d.status from public.tasks d where d.id = a.task_id offset 0) t
     where o.fleet = internal_tried_elsewhere.p_worker.fleet and o.status <> 'terminated'
       and o.pool = internal_tried_elsewhere.p_worker.pool and o.id <> internal_tried_elsewhere.p_worker.id
       and o.release is not distinct from internal_tried_elsewhere.p_worker.release
       and a.outcome in ('complete', 'failed')
       and a.started_at >= public.internal_held_moment(internal_tried_elsewhere.p_worker.held_back, 'first')
       and internal_tried_elsewhere.p_worker.held_back->'types' ? t.task_type
$$;

create or replace function public.internal_done_elsewhere(p_worker public.workers) returns timestamptz
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select max(o.ended_at) filter (where o.outcome = 'complete')
      from public.internal_tried_elsewhere(internal_done_elsewhere.p_worker) o
$$;

-- What attempts at such tasks on other workers say about the failures here. `alike`: tasks that had not failed before
-- failed there too, and may succeed in a later attempt. `meanwhile`: some were completed while tasks failed here, so
-- the cause was not outside. If they fail alike, only first attempts count, and so many must have failed here in a row
-- that chance explains it in less than one case of ten thousand: the others' share to the power of the failures. The
-- share follows the rule of succession, because a few attempts prove little. If others completed none of the tasks that
-- failed here, their last attempts count too: this worker's may have had such inputs. `unlike`: so many of those that
-- others completed.
create or replace function public.internal_compared(p_worker public.workers) returns table (
    meanwhile boolean, alike boolean, unlike boolean
) language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(case when r.failed = 0 then o.done_at <= f.last_at
                         else o.first_at <= f.last_at and f.own * r.odds > ln(10000) end, false),
           o.failed > 0,
           coalesce(o.first_at <= f.last_at and f.done * r.odds > ln(10000), false)
      from (select min(e.ended_at) filter (where e.outcome = 'complete') as done_at,
                   min(e.ended_at) filter (where e.outcome = 'complete' and e.first) as first_at,
                   count(*) filter (where e.outcome = 'complete' and e.first) as done,
                   count(*) filter (where e.outcome = 'failed' and e.first and e.may_succeed) as failed,
                   count(*) filter (where e.outcome = 'failed' and e.first) as refused
              from public.internal_tried_elsewhere(internal_compared.p_worker) e) o,
           (select max(i.last_at) as last_at, count(*) filter (where i.done) as done,
                   count(*) filter (where i.done or (i.own and not i.waits)) as own
              from public.internal_failures(internal_compared.p_worker) i) f,
           lateral (select case when f.done > 0 then o.failed else o.refused end as failed) c,
           lateral (select c.failed, ln((o.done + c.failed + 2)::double precision / (c.failed + 1)) as odds) r
$$;

-- Whether this worker's release has completed a task of the types that it failed: in the last attempts of its workers,
-- or when one of them was held back for such tasks. More failures since then do not change that.
create or replace function public.internal_release_works(p_worker public.workers) returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with release as (
        select r.id, r.held_back from public.workers r
         where r.fleet = internal_release_works.p_worker.fleet and r.pool = internal_release_works.p_worker.pool
           and r.release is not distinct from internal_release_works.p_worker.release
         order by r.created_at desc limit 20)
    select exists (select from release o
                    where o.held_back->'worked' = 'true'
                      and exists (select from jsonb_array_elements(o.held_back->'types') k (name)
                                   where internal_release_works.p_worker.held_back->'types' @> k.name))
        or exists (select from release o
                    cross join lateral (
                          select n.task_id, n.outcome from orchestrator.attempts n
                           where n.worker_id = o.id order by n.started_at desc limit 200) a
                    cross join lateral (select d.task_type from public.tasks d where d.id = a.task_id offset 0) t
                    where a.outcome = 'complete' and internal_release_works.p_worker.held_back->'types' ? t.task_type)
$$;

-- What the planner knows of a worker that is held back: its failures that other workers completed, those that failed on
-- other machines too, what others did with such tasks meanwhile, and whether this release ever completed one.
create or replace function public.internal_second_opinion(p_worker public.workers) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select (select to_jsonb(c.*) from public.internal_compared(internal_second_opinion.p_worker) c)
           || jsonb_build_object(
        'done', (select count(*) from public.internal_failures(internal_second_opinion.p_worker) f where f.done),
        'shared', (select count(*) from public.internal_failures(internal_second_opinion.p_worker) f where not f.own),
        'works', public.internal_release_works(internal_second_opinion.p_worker))
$$;

-- When a worker ends because it is sick or its machine failed, each task that it failed since its last success gets one
-- attempt back, once in the task's life.
create or replace function public.internal_worker_sick() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_ids uuid[];
    c_look constant int := 200;
begin
    with newest as (
        select a.task_id, a.attempt, a.ended_at, a.outcome from orchestrator.attempts a
         where a.worker_id = new.id order by a.started_at desc limit c_look
    ), failed as (
        select distinct on (n.task_id) n.task_id, n.attempt from newest n
         where n.outcome = 'failed'
           and n.ended_at > coalesce((select max(d.ended_at) from newest d where d.outcome = 'complete'), '-infinity')
           and not exists (select from orchestrator.attempts g where g.task_id = n.task_id and g.given_back)
         order by n.task_id, n.attempt desc
    ), given as (
        update orchestrator.attempts a set given_back = true from failed f
         where a.task_id = f.task_id and a.attempt = f.attempt
        returning a.task_id
    )
    select array_agg(g.task_id) into v_ids from given g;
    perform orchestrator.give_back(v_ids);
    return null;
end
$$;
