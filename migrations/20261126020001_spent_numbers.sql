-- A claim whose number was spent before is told so. An agent that did not hear the answer asks under the same number again,
-- and the gateway held that question open as any other: for its whole wait nothing could come of it, whatever was queued.
-- Now the agent hears at once that there is nothing, and asks under the next number.

create or replace function public.worker_claim(p_worker_id text, p_nonce text, p_claim_no bigint, p_batch int,
                                               p_wait_s numeric, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = ''
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_wanted text := public.internal_wanted(v_worker);
    v_tasks jsonb;
    v_status text := v_worker.status;
    v_claim_no bigint := v_worker.claim_no;
    v_spent boolean := false;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'tasks', '[]'::jsonb);
    end if;
    if p_claim_no is null or p_claim_no < 1 or p_batch is null or p_batch not between 1 and 100 then
        perform public.internal_refuse('OR007', 'p_claim_no counts from 1 and p_batch is from 1 to 100',
            format('got p_claim_no %s, p_batch %s', p_claim_no, p_batch));
    end if;
    if v_wanted <> 'run' or v_worker.status not in ('spawning', 'active', 'idle') then
        v_tasks := public.internal_claimed(p_worker_id, p_nonce, p_claim_no);
    elsif p_claim_no < v_claim_no
       or p_claim_no <= (select max(a.claim_no) from public.task_attempts a
                          where a.worker_id = p_worker_id and a.nonce = p_nonce) then
        v_tasks := public.internal_claimed(p_worker_id, p_nonce, p_claim_no);
        v_spent := v_tasks = '[]';
    else
        if v_worker.status <> 'spawning' then
            v_tasks := public.internal_take(v_worker, p_claim_no, p_batch, v_now);
            if v_tasks is not null then
                v_status := 'active';
            elsif v_worker.status = 'active' and not exists (
                    select from public.tasks t where t.worker_id = p_worker_id and t.status = 'In Progress') then
                v_status := 'idle';
            end if;
        end if;
        if v_tasks is null then
            v_claim_no := p_claim_no;
            if coalesce(p_wait_s, 0) <= 0 or public.internal_is_pod() and public.internal_is_over_postgrest() then
                v_claim_no := p_claim_no + 1;
            end if;
        end if;
        if v_status <> v_worker.status then
            perform public.internal_because('worker', null, case v_status
                when 'active' then format('claimed %s of pool %s', jsonb_array_length(v_tasks), v_worker.pool)
                else format('asked for work of pool %s and there was none', v_worker.pool) end);
            update public.workers w set status = v_status, claim_no = v_claim_no where w.id = p_worker_id;
        elsif v_claim_no <> v_worker.claim_no then
            update public.workers w set claim_no = v_claim_no where w.id = p_worker_id;
        end if;
    end if;
    return jsonb_build_object('outcome', 'ok', 'wanted', v_wanted, 'pool', v_worker.pool, 'state', v_status,
                              'tasks', coalesce(v_tasks, '[]'), 'spent', v_spent);
end
$$;
