-- What a pod that speaks to PostgREST asks the orchestrator.

-- Returns the answer to a worker's question. Without an answer it records the question and returns null. An answer is
-- valid for five minutes; later calls get a new one. One worker has at most a thousand open questions.
create or replace function public.internal_ask(
    p_worker_id text, p_method text, p_subject text, p_terms jsonb, p_now timestamptz
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_ask public.worker_asks;
begin
    select * into v_ask from public.worker_asks a
     where a.worker_id = p_worker_id and a.method = p_method and md5(a.subject) = md5(p_subject);
    if v_ask.terms = p_terms and v_ask.answered_at > p_now - interval '5 minutes' then
        return v_ask.answer;
    end if;
    if v_ask.id is null or v_ask.answered_at is not null or v_ask.terms <> p_terms then
        insert into public.worker_asks as a (worker_id, method, subject, terms, asked_at)
        select p_worker_id, p_method, p_subject, p_terms, p_now
         where (select count(*) from public.worker_asks o
                 where o.worker_id = p_worker_id and o.answered_at is null) < 1000
        on conflict (worker_id, method, md5(subject))
            do update set terms = excluded.terms, asked_at = excluded.asked_at, answered_at = null, answer = null;
        perform pg_notify('orchestrator_asks', p_worker_id);
    end if;
    perform set_config('response.status', '202', true);  -- PostgREST's status; for older agents it means "ask again"
    return null;
end
$$;
