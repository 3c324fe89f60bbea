-- Questions that only the orchestrator can answer: signed URLs, whether an object exists, the next token.
--
-- The gateway answers within the call. A pod that uses PostgREST leaves a row in worker_asks, gets 202 ("pending") and
-- asks again. The leader answers the rows (fleet_asks, fleet_answer).

-- Returns which of these keys the worker may read or write now; the gateway signs a URL for each. A worker writes below
-- the output_prefix of an attempt that it holds. It reads outputs of the dependencies of a task that it holds: those
-- below the prefix of the attempt that the dependency's output_location names. This prefix must lie below the prefix of
-- the dependency's own task: otherwise a worker could name any object as its output and get a signed URL for it.
-- The cost is linear in the items and in the dependencies of the held tasks.
create or replace function public.worker_grants(
    p_worker_id text, p_nonce text, p_items jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_asks boolean := coalesce(public.internal_is_pod() and current_setting('request.method', true) <> '', false);
    v_item record;
    v_answer jsonb;
    v_granted jsonb[] := '{}';
    v_refused text[] := '{}';
    v_pending text[] := '{}';
    v_replaced text[] := '{}';
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced', 'items', '[]'::jsonb, 'refused', '[]'::jsonb);
    end if;
    if p_items is null or jsonb_typeof(p_items) <> 'array' or jsonb_array_length(p_items) > 1000 then
        perform public.internal_refuse('OR007', 'p_items must be a list of at most 1000 {method, key}');
    end if;
    for v_item in
        select t.item->>'method' as method, t.item->>'key' as key, t.terms
          from public.internal_grant_terms(p_worker_id, p_nonce, p_items) t order by t.place
    loop
        v_answer := v_item.terms;
        if v_asks and v_answer is not null then
            v_answer := public.internal_ask(p_worker_id, v_item.method, v_item.key, v_item.terms, v_now);
        end if;
        if v_item.terms is null or v_answer ? 'refused' then
            v_refused := array_append(v_refused, v_item.key);
            if v_answer ? 'replaced' then
                v_replaced := array_append(v_replaced, v_item.key);
            end if;
        elsif v_answer is null then
            v_pending := array_append(v_pending, v_item.key);
        else
            v_granted := array_append(v_granted,
                                      v_answer || jsonb_build_object('method', v_item.method, 'key', v_item.key));
        end if;
    end loop;
    return jsonb_build_object('outcome', case when v_pending = '{}' then 'ok' else 'pending' end,
                              'items', to_jsonb(v_granted), 'refused', to_jsonb(v_refused),
                              'replaced', to_jsonb(v_replaced))
        || case when v_pending = '{}' then '{}' else jsonb_build_object('pending', to_jsonb(v_pending)) end;
end
$$;

-- The items with the terms of each: null for one that is refused. A key names its task, so each item needs one look at
-- the held tasks and at the dependencies of all of them.
create or replace function public.internal_grant_terms(p_worker_id text, p_nonce text, p_items jsonb)
returns table (place bigint, item jsonb, terms jsonb)
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off set enable_nestloop = off
set enable_mergejoin = off as $$
#variable_conflict use_variable
declare
    v_held uuid[];
    v_prefixes text[];  -- below which the worker may write, of each task: of its attempt, and as earlier agents name it
    v_earlier text[];
    v_needs uuid[];  -- what the held tasks depend on, and an item names
begin
    select array_agg(h.task_id), array_agg(h.output_prefix), array_agg(format('outputs/%s/%s/', h.task_id, h.attempt))
      into v_held, v_prefixes, v_earlier
      from orchestrator.held h where h.worker_id = p_worker_id and h.state = 'running' and h.nonce = p_nonce;
    v_needs := array(
        select n.id
          from (select distinct unnest(orchestrator.needs(t.*)) as id from public.tasks t where t.id = any (v_held)) n
          join (select distinct public.internal_key_task(e.value->>'key') as id
                  from jsonb_array_elements(p_items) e where e.value->>'method' = 'GET') k on k.id = n.id);
    return query
    with asked as materialized (
        select e.place, e.item, e.item->>'key' as key, e.item->>'method' as method,
               public.internal_key_task(e.item->>'key') as task_id
          from jsonb_array_elements(p_items) with ordinality e (item, place)
    ), written as (
        select a.place, public.internal_upload_terms(a.item) as terms
          from asked a join unnest(v_held, v_prefixes, v_earlier) h (id, prefix, earlier) on h.id = a.task_id
         where a.method = 'PUT' and (starts_with(a.key, h.prefix) or starts_with(a.key, h.earlier))
    ), stored as materialized (
        select n.id, d.output_location, d.output_object,
               substring(d.output_location from format('/(outputs/%s/[0-9]+(?:-[0-9a-f]+)?/)[^/]', n.id)) as folder
          from unnest(v_needs) n (id) cross join lateral orchestrator.result_of(n.id) d
    ), read as (
        select a.place,
               case when right(s.output_location, length(a.key) + 1) = '/' || a.key then coalesce(s.output_object, '{}')
                    else '{}' end as terms
          from asked a join stored s on s.id = a.task_id
         where a.method = 'GET' and starts_with(a.key, s.folder)
    )
    select a.place, a.item, coalesce(w.terms, r.terms)
      from asked a left join written w on w.place = a.place left join read r on r.place = a.place;
end
$$;

-- The task whose output a key names; null for a key that no worker gets.
create or replace function public.internal_key_task(p_key text) returns uuid
language sql immutable security definer set search_path = pg_catalog, pg_temp as $$
    select case when length(internal_key_task.p_key) <= 900
                 and internal_key_task.p_key
                     ~ '^outputs/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/[0-9]+(-[0-9a-f]+)?/[^/]'
                 and internal_key_task.p_key !~ E'(^|/)\\.{1,2}(/|$)|//|[[:cntrl:]]'
           then split_part(internal_key_task.p_key, '/', 2)::uuid end
$$;

-- Returns {outcome: ok|pending|fenced, sealed}. Over PostgREST, the leader's answer is the next token, encrypted for
-- the worker; the row is deleted when it is read. The jti stays the same: a renewal changes no row of workers, and a
-- revoked or terminated worker is refused before the leader is asked.
create or replace function public.worker_renew(p_worker_id text, p_nonce text, p_now timestamptz default null)
returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_answer jsonb;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced');
    end if;
    if not (public.internal_is_pod() and coalesce(current_setting('request.method', true), '') <> '') then
        return jsonb_build_object('outcome', 'ok');
    end if;
    v_answer := public.internal_ask(p_worker_id, 'RENEW', v_worker.token_jti, '{}', v_now);
    if v_answer is null then
        return jsonb_build_object('outcome', 'pending');
    end if;
    delete from public.worker_asks a where a.worker_id = p_worker_id and a.method = 'RENEW';
    return jsonb_build_object('outcome', 'ok') || v_answer;
end
$$;

-- Open questions, the oldest first, in turn for each worker: a worker whose questions cannot be answered does not delay
-- the others.
create or replace function public.fleet_asks(p_fleet text, p_limit int, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('asks', coalesce(jsonb_agg(to_jsonb(o.*)), '[]'))
      from (select a.id, a.worker_id, a.method, a.subject, a.terms
              from public.worker_asks a join public.workers w on w.id = a.worker_id
             where a.answered_at is null and w.fleet = fleet_asks.p_fleet and w.status <> 'terminated'
             order by row_number() over (partition by a.worker_id order by a.id), a.id
             limit least(fleet_asks.p_limit, 1000)) o
$$;

-- p_answers: [{id, answer}]. A question that was answered or asked again in the meantime stays as it is. Rows that are
-- no longer needed are deleted.
create or replace function public.fleet_answer(
    p_fleet text, p_term bigint, p_answers jsonb, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_answered int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_answer');
    update public.worker_asks a set answered_at = v_now, answer = n.value->'answer'
      from jsonb_array_elements(p_answers) n, public.workers w
     where a.id = (n.value->>'id')::bigint and a.answered_at is null and w.id = a.worker_id and w.fleet = p_fleet;
    get diagnostics v_answered = row_count;
    delete from public.worker_asks a using public.workers w
     where w.id = a.worker_id and w.fleet = p_fleet
       and (a.answered_at < v_now - interval '5 minutes' or a.asked_at < v_now - interval '1 hour');
    return jsonb_build_object('answered', v_answered);
end
$$;

-- The size and checksum that an upload is bound to, as its worker states them (worker/protocol.py, GRANTS). An earlier
-- agent states none and may write its key again.
create or replace function public.internal_upload_terms(p_item jsonb) returns jsonb
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_terms jsonb := case when p_item->'verify' = 'true' then '{"verify": true}' else '{}' end;
begin
    if p_item ? 'upload_id' then
        v_terms := v_terms || public.internal_part_terms(p_item);
    elsif p_item->'multipart' = 'true' then
        v_terms := v_terms || '{"multipart": true}';
    end if;
    if p_item->'once' is distinct from 'true' then
        return v_terms;
    elsif jsonb_typeof(p_item->'bytes') is distinct from 'number' or p_item->>'bytes' !~ '^[0-9]{1,15}$'
          or coalesce(p_item->>'sha256', '') !~ '^[0-9a-f]{64}$' then
        perform public.internal_refuse('OR007', 'an upload of one write names its bytes and its sha256');
    end if;
    return v_terms || jsonb_build_object('once', true, 'bytes', p_item->'bytes', 'sha256', p_item->'sha256');
end
$$;

-- The parts of multipart uploads to sign: at most 64 of {n, bytes, sha256}, each of at most 5 GiB. The bucket compares
-- the upload's id with the key.
create or replace function public.internal_part_terms(p_item jsonb) returns jsonb
language plpgsql immutable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_once boolean := coalesce(p_item->'once' = 'true', false);
    v_part jsonb;
    v_parts jsonb := '[]';
begin
    if coalesce(p_item->>'upload_id', '') !~ '^[[:graph:]]+$' or length(p_item->>'upload_id') > 1024
       or jsonb_typeof(p_item->'parts') is distinct from 'array' or jsonb_array_length(p_item->'parts') > 64 then
        perform public.internal_refuse('OR007', 'a multipart upload has an upload_id, and at most 64 parts at a time');
    end if;
    for v_part in select value from jsonb_array_elements(p_item->'parts') loop
        if jsonb_typeof(v_part->'n') is distinct from 'number' or v_part->>'n' !~ '^[1-9][0-9]{0,4}$'
           or jsonb_typeof(v_part->'bytes') is distinct from 'number' or v_part->>'bytes' !~ '^[0-9]{1,10}$'
           or (v_part->>'bytes')::bigint > 5368709120
           or (v_part->'sha256' is not null or v_once) and coalesce(v_part->>'sha256', '') !~ '^[0-9a-f]{64}$' then
            perform public.internal_refuse('OR007', 'a part has n, bytes and, in an upload of one write, sha256');
        end if;
        v_parts := v_parts || jsonb_build_array(jsonb_strip_nulls(
            jsonb_build_object('n', v_part->'n', 'bytes', v_part->'bytes', 'sha256', v_part->'sha256')));
    end loop;
    return jsonb_build_object('upload_id', p_item->'upload_id', 'parts', v_parts);
end
$$;
