-- Outputs: a key that never repeats, one write of it, and what was seen of the object.
--
-- The prefix of a claim holds the attempt number, which no live launch gets twice for a task, and eleven characters of the
-- launch, so that a task that was deleted and inserted again, or a database that was restored from a backup, finds no
-- object of an earlier life under its keys. Keys of the earlier form stay open to claims that were made before.
--
-- tasks.output_object is what the bucket showed when the task was completed: {location, bytes, etag, version, sha256}. It
-- holds as long as its location is the task's output_location; users may write another one.

alter table public.tasks add column output_object jsonb;
alter table public.task_results add column output_object jsonb;
alter table public.worker_asks add column terms jsonb not null default '{}';  -- of the upload; or the object to be found

create function public.internal_output_prefix(p_task_id uuid, p_attempt int, p_nonce text) returns text
language sql immutable security definer set search_path = '' as $$
    select 'outputs/' || p_task_id || '/' || p_attempt || '-' || left(md5(p_nonce), 11) || '/'
$$;

create or replace function public.internal_claimed(p_worker_id text, p_nonce text, p_claim_no bigint) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select coalesce(jsonb_agg(jsonb_build_object(
               'id', t.id, 'task_type', t.task_type, 'params', t.params, 'attempt', t.attempts,
               'max_attempts', t.max_attempts, 'timeout_s', t.timeout_s,
               'output_prefix', public.internal_output_prefix(t.id, t.attempts, a.nonce),
               'dependencies', coalesce((
                    select jsonb_agg(jsonb_build_object('id', d.id, 'task_type', d.task_type,
                                                        'output_location', d.output_location,
                                                        'result_data', d.result_data) order by n.place)
                      from unnest(t.depends_on) with ordinality n (id, place) join public.internal_results(t.depends_on) d on d.id = n.id), '[]')
           ) order by t.priority desc, t.created_at, t.id), '[]')
      from public.task_attempts a
      join public.tasks t on t.id = a.task_id and t.attempts = a.attempt
     where a.worker_id = p_worker_id and a.nonce = p_nonce and a.claim_no = p_claim_no and a.ended_at is null
       and t.status = 'In Progress' and t.worker_id = p_worker_id
$$;

create or replace function public.internal_hand_over(p_worker public.workers, p_claim_no bigint, p_rows tid[], p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_sort TO 'off'
    AS $$
declare
    v_tasks jsonb;
    v_log_first bigint := (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint;
    v_floor int := (select f.last_value from public.task_attempts_floor f);
begin
    with taken as (
        update public.tasks t
           set status = 'In Progress', worker_id = p_worker.id, updated_at = p_now,
               (attempts, uncounted) = (
                   select n.attempt, t.uncounted + n.attempt - t.attempts - 1
                     from (select 1 + greatest(t.attempts, v_floor, (select max(a.attempt) from public.task_attempts a
                                                                      where a.task_id = t.id)) as attempt) n),
               lease_expires_at = p_now + p_worker.lease_s * interval '1 second',
               progress = null, progress_at = p_now, run_after = null, error_message = null, failure_code = null,
               failed_at_point = null, generation_started_at = p_now, generation_processed_at = null
         where t.ctid = any (p_rows)
        returning t.id, t.task_type, t.params, t.attempts, t.max_attempts, t.timeout_s, t.depends_on, t.priority, t.created_at, t.status
    ), noted as (
        insert into public.task_attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, log_first)
        select k.id, k.attempts, p_worker.id, p_worker.nonce, p_claim_no, p_now, v_log_first
          from taken k where k.status = 'In Progress'  -- as a user's trigger left it
    )
    select jsonb_agg(jsonb_build_object(
               'id', k.id, 'task_type', k.task_type, 'params', k.params, 'attempt', k.attempts,
               'max_attempts', k.max_attempts, 'timeout_s', k.timeout_s,
               'output_prefix', public.internal_output_prefix(k.id, k.attempts, p_worker.nonce),
               'dependencies', case when k.depends_on = '{}' then '[]' else coalesce((
                   select jsonb_agg(jsonb_build_object('id', d.id, 'task_type', d.task_type,
                                                       'output_location', d.output_location,
                                                       'result_data', d.result_data) order by n.place)
                     from unnest(k.depends_on) with ordinality n (id, place)
                     join public.internal_results(k.depends_on) d on d.id = n.id), '[]') end)
               order by k.priority desc, k.created_at, k.id)
      into v_tasks from taken k where k.status = 'In Progress';
    return v_tasks;
end
$$;

-- The earlier form of the row has one column less.
drop function public.internal_results(uuid[]);

create function public.internal_results(p_ids uuid[]) RETURNS TABLE(id uuid, task_type text, output_location text, result_data jsonb, output_object jsonb)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    AS $$
    select t.id, t.task_type, t.output_location, t.result_data,
           case when t.output_object->>'location' = t.output_location then t.output_object end
      from public.tasks t where t.id = any (p_ids)
    union all
    select r.id, r.task_type, r.output_location, r.result_data,
           case when r.output_object->>'location' = r.output_location then r.output_object end
      from public.task_results r
     where r.id = any (p_ids) and not exists (select from public.tasks t where t.id = r.id)
$$;

create or replace function public.internal_tasks_removed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
declare
    v_held uuid[];
    v_lost uuid[];
begin
    if tg_op = 'TRUNCATE' then
        delete from public.task_results;
        delete from public.tasks_unsettled;
        perform public.internal_close_attempts(
            array(select a.task_id from public.task_attempts a where a.ended_at is null), true);
        return null;
    end if;
    insert into public.task_results (id, task_type, output_location, result_data, output_object, deleted_at)
    select r.id, r.task_type, r.output_location, r.result_data, r.output_object, public.internal_now()
      from removed r
     where r.status = 'Complete'
       and exists (select from public.tasks t
                    where t.status <> 'Complete' and t.depends_on <> '{}' and t.depends_on @> array[r.id])
    on conflict (id) do update
       set output_location = excluded.output_location, result_data = excluded.result_data,
           output_object = excluded.output_object, deleted_at = excluded.deleted_at;
    select array_agg(r.id) filter (where r.status = 'In Progress'), array_agg(r.id) filter (where r.status <> 'Complete')
      into v_held, v_lost from removed r;
    if v_held is not null then
        perform public.internal_close_attempts(v_held, true);
    end if;
    if v_lost is not null then
        perform public.internal_settle(public.internal_dependants(v_lost), v_lost);
    end if;
    return null;
end
$$;

drop function public.internal_ask(text, text, text, timestamptz);

create function public.internal_ask(p_worker_id text, p_method text, p_subject text, p_terms jsonb, p_now timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    AS $$
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
         where (select count(*) from public.worker_asks o where o.worker_id = p_worker_id and o.answered_at is null) < 1000
        on conflict (worker_id, method, md5(subject))
            do update set terms = excluded.terms, asked_at = excluded.asked_at, answered_at = null, answer = null;
        perform pg_notify('orchestrator_asks', p_worker_id);
    end if;
    perform set_config('response.status', '202', true);  -- PostgREST's answer; older agents take it for "ask again"
    return null;
end
$$;

-- p_output: what the bucket shows of the output; false while nobody has looked: then a task that is held is answered with
-- `look`. A pod that speaks to PostgREST may call it too; what it says of the object does not count.
create function public.worker_complete_output(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_output jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_log_last bigint := (v_worker.log_bytes #>> array[v_worker.nonce, 'handler'])::bigint;
    v_held uuid;
    v_answer jsonb;
    v_over_postgrest boolean := public.internal_is_pod() and public.internal_is_over_postgrest();
    v_object jsonb := case when not v_over_postgrest then p_output end;  -- a pod may not say what the bucket shows
begin
    if p_result_data is not null then
        perform public.internal_check_size(p_result_data, 1048576, 'p_result_data');
    end if;
    if p_output_location is not null then
        perform public.internal_check_size(to_jsonb(p_output_location), 4096, 'p_output_location');
        if p_output_location like 's3://%' and v_over_postgrest
           and public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']) = 'held' then
            v_answer := public.internal_ask(p_worker_id, 'HEAD', p_output_location, '{}', v_now);
            if v_answer is null then
                return jsonb_build_object('outcome', 'pending');
            elsif v_answer->'found' = 'false' then
                return jsonb_build_object('outcome', 'unverified', 'code', 'OUTPUT_MISSING');
            end if;
            v_object := v_answer->'object';
        elsif v_object = 'false' then
            v_answer := to_jsonb(public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']));
            return jsonb_build_object('outcome', case v_answer #>> '{}' when 'held' then 'look' else v_answer #>> '{}' end);
        end if;
    end if;
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced');
    end if;
    with done as (
        update public.tasks t
           set status = 'Complete', output_location = p_output_location,
               output_object = v_object || jsonb_build_object('location', p_output_location), result_data = p_result_data,
               generation_processed_at = v_now, lease_expires_at = null, error_message = null, failure_code = null,
               updated_at = v_now
         where t.id = p_task_id and t.attempts = p_attempt
           and case when t.status = 'In Progress' then t.worker_id end = p_worker_id
        returning t.id, t.attempts
    ), ended as (
        update public.task_attempts a set ended_at = v_now, outcome = 'complete', log_last = v_log_last
          from done d where a.task_id = d.id and a.attempt = d.attempts
    )
    select d.id into v_held from done d;
    if v_held is null then
        return jsonb_build_object('outcome', public.internal_hold(v_worker, p_nonce, p_task_id, p_attempt, array['complete']));
    end if;
    return jsonb_build_object('outcome', 'ok');
end
$$;

create or replace function public.worker_complete(p_worker_id text, p_nonce text, p_task_id uuid, p_attempt integer, p_output_location text, p_result_data jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET enable_seqscan TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
begin
    return public.worker_complete_output(
        p_worker_id, p_nonce, p_task_id, p_attempt, p_output_location, p_result_data, null, p_now);
end
$$;

-- What an upload is bound to, as its worker says it: an earlier agent says nothing, and may write its key again.
create function public.internal_upload_terms(p_item jsonb) returns jsonb
language plpgsql immutable security definer set search_path = '' as $$
begin
    if p_item->'once' is distinct from 'true' then
        return '{}';
    elsif jsonb_typeof(p_item->'bytes') is distinct from 'number' or p_item->>'bytes' !~ '^[0-9]{1,15}$'
          or coalesce(p_item->>'sha256', '') !~ '^[0-9a-f]{64}$' then
        perform public.internal_refuse('OR007', 'an upload of one write names its bytes and its sha256');
    end if;
    return jsonb_build_object('once', true, 'bytes', p_item->'bytes', 'sha256', p_item->'sha256');
end
$$;

create or replace function public.worker_grants(p_worker_id text, p_nonce text, p_items jsonb, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $_$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_asks boolean := public.internal_is_pod() and public.internal_is_over_postgrest();
    v_item jsonb;
    v_key text;
    v_answer jsonb;
    v_granted jsonb := '[]';
    v_refused jsonb := '[]';
    v_pending jsonb := '[]';
    v_replaced jsonb := '[]';
    v_terms jsonb;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'items', '[]'::jsonb, 'refused', '[]'::jsonb);
    end if;
    if p_items is null or jsonb_typeof(p_items) <> 'array' or jsonb_array_length(p_items) > 1000 then
        perform public.internal_refuse('OR007', 'p_items must be a list of at most 1000 {method, key}');
    end if;
    for v_item in select value from jsonb_array_elements(p_items) loop
        v_key := v_item->>'key';
        v_terms := null;
        if v_key ~ '^outputs/[^/]+/[0-9]+(-[0-9a-f]+)?/[^/]' and v_key !~ '(^|/)\.{1,2}(/|$)|//|[[:cntrl:]]'
           and length(v_key) <= 900 then
            select case v_item->>'method'
                       when 'PUT' then public.internal_upload_terms(v_item)
                       else coalesce(h.object, '{}') end
              into v_terms
              from public.tasks t
              left join lateral (
                   select coalesce(d.output_object, '{}') as object from public.internal_results(t.depends_on) d
                    where v_item->>'method' = 'GET' and starts_with(v_key, format('outputs/%s/', d.id))
                      and right(d.output_location, length(v_key) + 1) = '/' || v_key
                      order by d.output_object is null limit 1) h on true
             where t.worker_id = p_worker_id and t.status = 'In Progress'
               and case v_item->>'method'
                       when 'PUT' then starts_with(v_key, public.internal_output_prefix(t.id, t.attempts, p_nonce))
                                       or starts_with(v_key, format('outputs/%s/%s/', t.id, t.attempts))
                       when 'GET' then h.object is not null
                       else false
                   end
             limit 1;
        end if;
        if v_terms is not null then
            v_answer := v_terms;
            if v_asks then
                v_answer := public.internal_ask(p_worker_id, v_item->>'method', v_key, v_terms, v_now);
            end if;
            if v_answer is null then
                v_pending := v_pending || jsonb_build_array(v_key);
            elsif v_answer ? 'refused' then
                v_refused := v_refused || jsonb_build_array(v_key);
                if v_answer ? 'replaced' then
                    v_replaced := v_replaced || jsonb_build_array(v_key);
                end if;
            else
                v_granted := v_granted || (v_answer || jsonb_build_object('method', v_item->>'method', 'key', v_key));
            end if;
        else
            v_refused := v_refused || jsonb_build_array(v_key);
        end if;
    end loop;
    if v_pending <> '[]' then
        return jsonb_build_object('outcome', 'pending', 'items', v_granted, 'refused', v_refused, 'replaced', v_replaced,
                                  'pending', v_pending);
    end if;
    return jsonb_build_object('outcome', 'ok', 'items', v_granted, 'refused', v_refused, 'replaced', v_replaced);
end
$_$;

create or replace function public.fleet_asks(p_fleet text, p_limit integer, p_now timestamp with time zone DEFAULT NULL::timestamp with time zone) RETURNS jsonb
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO ''
    SET jit TO 'off'
    AS $$
    select jsonb_build_object('asks', coalesce(jsonb_agg(to_jsonb(o)), '[]'))
      from (select a.id, a.worker_id, a.method, a.subject, a.terms
              from public.worker_asks a join public.workers w on w.id = a.worker_id
             where a.answered_at is null and w.fleet = p_fleet and w.status <> 'terminated'
             order by row_number() over (partition by a.worker_id order by a.id), a.id limit least(p_limit, 1000)) o
$$;

do $$
declare
    v_function text;
    v_role name;
begin
    foreach v_function in array array['internal_output_prefix', 'internal_results', 'internal_ask', 'internal_upload_terms',
                                      'worker_complete_output'] loop
        execute format('revoke all on function public.%I from public', v_function);
        for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
            execute format('revoke all on function public.%I from %I', v_function, v_role);
        end loop;
    end loop;
    grant execute on function public.worker_complete_output to gpu_worker;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        grant execute on function public.worker_complete_output to service_role;
    end if;
end
$$;
