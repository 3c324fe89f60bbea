-- A claim that was answered with nothing is spent: a copy of it that the network kept must not take a task, of which its
-- agent, which has heard the answer and asks under the next number, would never know. Only the gateway holds a question
-- open and asks again under its number, and p_wait_s tells how long it still will.
create or replace function public.worker_claim(
    p_worker_id text, p_nonce text, p_claim_no bigint, p_batch int, p_wait_s numeric, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, true);
    v_wanted text := public.internal_wanted(v_worker);
    v_taken int := 0;
    v_status text := v_worker.status;
    v_claim_no bigint := v_worker.claim_no;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'wanted', 'stop', 'tasks', '[]'::jsonb);
    end if;
    if p_claim_no is null or p_claim_no < 1 or p_batch is null or p_batch not between 1 and 100 then
        perform public.internal_refuse('OR007', 'p_claim_no counts from 1 and p_batch is from 1 to 100',
            format('got p_claim_no %s, p_batch %s', p_claim_no, p_batch));
    end if;
    if v_wanted = 'run' and v_worker.status in ('spawning', 'active', 'idle')
       and (p_claim_no > v_claim_no
            or p_claim_no = v_claim_no
               and not exists (select from public.task_attempts a where a.worker_id = p_worker_id
                                  and a.nonce = p_nonce and a.claim_no = p_claim_no)) then
        if v_worker.status <> 'spawning' then
            v_taken := public.internal_take(v_worker, p_claim_no, p_batch, v_now);
            if v_taken > 0 then
                v_status := 'active';
            elsif v_worker.status = 'active' and not exists (
                    select from public.tasks t where t.worker_id = p_worker_id and t.status = 'In Progress') then
                v_status := 'idle';
            end if;
        end if;
        v_claim_no := p_claim_no;
        if v_taken = 0 and (coalesce(p_wait_s, 0) <= 0
                            or public.internal_is_pod() and public.internal_is_over_postgrest()) then
            v_claim_no := p_claim_no + 1;
        end if;
        if v_status <> v_worker.status or v_claim_no <> v_worker.claim_no then
            perform public.internal_because('worker', null, case v_status
                when 'active' then format('claimed %s of pool %s', v_taken, v_worker.pool)
                else format('asked for work of pool %s and there was none', v_worker.pool) end);
            update public.workers w set status = v_status, claim_no = v_claim_no where w.id = p_worker_id;
        end if;
    end if;
    return jsonb_build_object('outcome', 'ok', 'wanted', v_wanted, 'pool', v_worker.pool, 'state', v_status,
                              'tasks', public.internal_claimed(p_worker_id, p_nonce, p_claim_no));
end
$$;
