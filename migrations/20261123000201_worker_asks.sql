-- What a pod asks of the bucket when it speaks to PostgREST itself: only the orchestrator can sign a URL or see whether
-- an object is there. worker_grants and worker_complete write a row, answer 202 ("pending"), and are asked again; the
-- leader answers the rows (fleet_asks, fleet_answer). The workers' gateway does both itself and needs no row.

create table public.worker_asks (
    id bigint generated always as identity primary key,
    worker_id text not null references public.workers (id) on delete cascade,
    method text not null check (method in ('GET', 'PUT', 'HEAD')),  -- HEAD: is the object there?
    subject text not null check (octet_length(subject) <= 4096),    -- a granted key; with HEAD a location
    asked_at timestamptz not null,
    answered_at timestamptz,
    answer jsonb  -- {url, location}, {found: true|false}, or {refused: true}
);
create unique index worker_asks_once on public.worker_asks (worker_id, method, md5(subject));
create index worker_asks_open on public.worker_asks (worker_id) where answered_at is null;

-- Whether this call came through PostgREST, which says so in every transaction. A pod can neither say it through the
-- gateway nor leave it out here.
create function public.internal_is_over_postgrest() returns boolean
language sql stable security definer set search_path = '' as $$
    select nullif(current_setting('request.method', true), '') is not null
$$;

-- The answer to a question of a worker; null while there is none, and then it has been asked. An answer holds for five
-- minutes: who asks later gets a fresh one. Of one worker at most a thousand questions are open at a time.
create function public.internal_ask(p_worker_id text, p_method text, p_subject text, p_now timestamptz) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
    v_ask public.worker_asks;
begin
    select * into v_ask from public.worker_asks a
     where a.worker_id = p_worker_id and a.method = p_method and md5(a.subject) = md5(p_subject);
    if v_ask.answered_at > p_now - interval '5 minutes' then
        return v_ask.answer;
    end if;
    if v_ask.id is null or v_ask.answered_at is not null then
        insert into public.worker_asks as a (worker_id, method, subject, asked_at)
        select p_worker_id, p_method, p_subject, p_now
         where (select count(*) from public.worker_asks o where o.worker_id = p_worker_id and o.answered_at is null) < 1000
        on conflict (worker_id, method, md5(subject))
            do update set asked_at = excluded.asked_at, answered_at = null, answer = null;
        perform pg_notify('orchestrator_asks', p_worker_id);
    end if;
    perform set_config('response.status', '202', true);  -- PostgREST's answer; older agents take it for "ask again"
    return null;
end
$$;

create or replace function public.worker_grants(p_worker_id text, p_nonce text, p_items jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_asks boolean := public.internal_is_pod() and public.internal_is_over_postgrest();
    v_item jsonb;
    v_key text;
    v_answer jsonb := '{}';
    v_granted jsonb := '[]';
    v_refused jsonb := '[]';
    v_pending jsonb := '[]';
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'items', '[]'::jsonb, 'refused', '[]'::jsonb);
    end if;
    if p_items is null or jsonb_typeof(p_items) <> 'array' or jsonb_array_length(p_items) > 1000 then
        perform public.internal_refuse('OR007', 'p_items must be a list of at most 1000 {method, key}');
    end if;
    for v_item in select value from jsonb_array_elements(p_items) loop
        v_key := v_item->>'key';
        if v_key ~ '^outputs/[^/]+/[0-9]+/[^/]' and v_key !~ '(^|/)\.{1,2}(/|$)|//|[[:cntrl:]]' and length(v_key) <= 900
           and exists (
               select from public.tasks t
                where t.worker_id = p_worker_id and t.status = 'In Progress'
                  and case v_item->>'method'
                          when 'PUT' then starts_with(v_key, format('outputs/%s/%s/', t.id, t.attempts))
                          when 'GET' then exists (
                              select from public.tasks d
                               where d.id = any (t.depends_on) and starts_with(v_key, format('outputs/%s/', d.id))
                                 and right(d.output_location, length(v_key) + 1) = '/' || v_key)
                          else false
                      end) then
            if v_asks then
                v_answer := public.internal_ask(p_worker_id, v_item->>'method', v_key, v_now);
            end if;
            if v_answer is null then
                v_pending := v_pending || jsonb_build_array(v_key);
            elsif v_answer ? 'refused' then
                v_refused := v_refused || jsonb_build_array(v_key);
            else
                v_granted := v_granted || (jsonb_build_object('method', v_item->>'method', 'key', v_key) || v_answer);
            end if;
        else
            v_refused := v_refused || jsonb_build_array(v_key);
        end if;
    end loop;
    if v_pending <> '[]' then
        return jsonb_build_object('outcome', 'pending', 'items', v_granted, 'refused', v_refused, 'pending', v_pending);
    end if;
    return jsonb_build_object('outcome', 'ok', 'items', v_granted, 'refused', v_refused);
end
$$;

create or replace function public.worker_complete(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt int,
                                       p_output_location text, p_result_data jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_outcome text;
    v_answer jsonb;
begin
    perform public.internal_check_size(p_result_data, 1048576, 'p_result_data');
    perform public.internal_check_size(to_jsonb(p_output_location), 4096, 'p_output_location');
    v_outcome := public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']);
    if v_outcome = 'held' and p_output_location like 's3://%'
       and public.internal_is_pod() and public.internal_is_over_postgrest() then
        v_answer := public.internal_ask(p_worker_id, 'HEAD', p_output_location, v_now);
        if v_answer is null then
            return jsonb_build_object('outcome', 'pending');
        elsif v_answer->'found' = 'false' then
            return jsonb_build_object('outcome', 'unverified', 'code', 'OUTPUT_MISSING');
        end if;
    end if;
    if v_outcome = 'held' then
        update public.tasks t
           set status = 'Complete', output_location = p_output_location, result_data = p_result_data,
               generation_processed_at = v_now, lease_expires_at = null, error_message = null, failure_code = null
         where t.id = p_task_id;
        update public.task_attempts a
           set ended_at = v_now, outcome = 'complete',
               log_last = (v_worker.log_bytes #>> array[v_worker.nonce, 'handler'])::bigint
         where a.task_id = p_task_id and a.attempt = p_attempt;
        v_outcome := 'ok';
    end if;
    return jsonb_build_object('outcome', v_outcome);
end
$$;

-- What is not answered yet, the oldest first, each worker in its turn: one that asks what cannot be answered must not
-- keep the others waiting.
create function public.fleet_asks(p_fleet text, p_limit int, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = '' as $$
    select jsonb_build_object('asks', coalesce(jsonb_agg(to_jsonb(o)), '[]'))
      from (select a.id, a.worker_id, a.method, a.subject
              from public.worker_asks a join public.workers w on w.id = a.worker_id
             where a.answered_at is null and w.fleet = p_fleet and w.status <> 'terminated'
             order by row_number() over (partition by a.worker_id order by a.id), a.id limit least(p_limit, 1000)) o
$$;

-- p_answers: [{id, answer}]; one that was answered or asked anew meanwhile stays as it is. Rows that nobody needs go.
create function public.fleet_answer(p_fleet text, p_term bigint, p_answers jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_answered int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_answer');
    update public.worker_asks a set answered_at = v_now, answer = n->'answer'
      from jsonb_array_elements(p_answers) n, public.workers w
     where a.id = (n->>'id')::bigint and a.answered_at is null and w.id = a.worker_id and w.fleet = p_fleet;
    get diagnostics v_answered = row_count;
    delete from public.worker_asks a using public.workers w
     where w.id = a.worker_id and w.fleet = p_fleet
       and (a.answered_at < v_now - interval '5 minutes' or a.asked_at < v_now - interval '1 hour');
    return jsonb_build_object('answered', v_answered);
end
$$;
