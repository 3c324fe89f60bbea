-- How a worker releases a task.

-- Returns a task to the queue; the attempt does not count. The task can be claimed again at once. If workers that
-- continue return it again and again, it waits from the third time on: 30 s, which double up to an hour.
create or replace function public.worker_release(
    p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int, p_reason text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off
set lock_timeout = '900ms' as $$
#variable_conflict use_variable
declare
    c_free constant int := 2;  -- times in a row after which a task can be claimed at once
    v_now timestamptz := public.internal_clock(p_now);
    v_launch orchestrator.launches := orchestrator.caller(p_worker_id);
    v_held record;
    v_times int;
    v_pause_s int;
begin
    v_held := orchestrator.hold(v_launch, p_nonce, p_task_id, p_attempt, array['released', 'cancelled']);
    if v_held.outcome = 'held' then
        v_times := 1 + public.internal_returns(p_task_id, p_attempt);
        if v_times > c_free and v_launch.wanted = 'run' then
            v_pause_s := least(30 * 2 ^ least(v_times - c_free - 1, 10), 3600);
            p_reason := format('returned %s times in a row: %s', v_times, p_reason);
        end if;
        perform orchestrator.give_up(v_held.task, 'released',
                                     jsonb_build_object('code', 'RELEASED', 'message', p_reason),
                                     false, false, v_now, v_pause_s);
    end if;
    return jsonb_build_object('outcome', case v_held.outcome when 'held' then 'ok' else v_held.outcome end);
end
$$;

-- Locks the caller's attempt. outcome: held, pending (another transaction is changing the task), already (it ended with
-- one of these outcomes) or fenced.
create or replace function orchestrator.hold(
    p_launch orchestrator.launches, p_nonce text, p_task_id uuid, p_attempt int, p_outcomes text[],
    out outcome text, out task orchestrator.live
)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if p_launch.nonce is distinct from p_nonce then
        outcome := 'fenced';
        return;
    end if;
    select * into task from orchestrator.live q
     where q.task_id = p_task_id and q.attempt = p_attempt and q.state = 'running' and q.worker_id = p_launch.worker_id
       and q.nonce = p_launch.nonce for update skip locked;
    if not found and orchestrator.wait_for_rows(array[p_task_id]) then
        select * into task from orchestrator.live q
         where q.task_id = p_task_id and q.attempt = p_attempt and q.state = 'running'
           and q.worker_id = p_launch.worker_id
           and q.nonce = p_launch.nonce;
    end if;
    outcome := case when task.task_id is not null then 'held'
                    else orchestrator.state_of(p_launch, p_task_id, p_attempt, p_outcomes) end;
    if outcome = 'held' and task.task_id is null then
        outcome := 'pending';
        perform set_config('response.status', '202', true);
    end if;
end
$$;

-- How many times in a row a task was returned before this attempt by workers that then took other tasks, or this one
-- again. A worker that ends returns each task once, and is not counted. The row starts again after a claim with a task
-- that was run: of a large claim, an agent returns the tasks that did not begin soon enough.
create or replace function public.internal_returns(p_task_id uuid, p_attempt int) returns int
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select count(*)::int
      from (select l.*, bool_and(not exists (
                       select from orchestrator.attempts o
                        where o.worker_id = l.worker_id and o.nonce = l.nonce and o.claim_no = l.claim_no
                          and o.outcome is distinct from 'released')) over (order by l.attempt desc) as is_returned
              from (select a.attempt, a.worker_id, a.nonce, a.claim_no, a.failure_code from orchestrator.attempts a
                     where a.task_id = internal_returns.p_task_id and a.attempt < internal_returns.p_attempt
                     order by a.attempt desc limit 20) l) r
     where r.is_returned and r.failure_code = 'RELEASED'
       and exists (select from public.task_attempts n
                    where n.worker_id = r.worker_id and n.nonce = r.nonce and n.claim_no > r.claim_no)
$$;
