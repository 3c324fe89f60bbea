-- The renewal of a worker's token. The gateway answers within the call. Over PostgREST the leader answers a row of
-- worker_asks with the next token, sealed for the worker: what lies there opens nothing. The row goes when it is read.

alter table public.worker_asks
    drop constraint worker_asks_method_check,
    add constraint worker_asks_method_check check (method in ('GET', 'PUT', 'HEAD', 'RENEW'));
comment on column public.worker_asks.method is 'GET and PUT: sign a URL; HEAD: is the object there?; RENEW: the next token';
comment on column public.worker_asks.subject is 'A granted key; with HEAD a location; with RENEW the jti of the token';
comment on column public.worker_asks.answer is '{url, location}, {found}, {sealed: [text]} or {refused: true}';

-- -> {outcome: ok|pending|fenced, sealed}. The jti stays: a renewal changes no row of workers, and a revoked or
-- terminated worker is refused before anything is asked for it.
create function public.worker_renew(p_worker_id text, p_nonce text, p_now timestamptz default null) returns jsonb
    language plpgsql security definer
    set search_path to ''
    set jit to off
as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_worker public.workers := public.internal_caller(p_worker_id, false);
    v_answer jsonb;
begin
    if v_worker.nonce is distinct from p_nonce then
        return jsonb_build_object('outcome', 'fenced');
    end if;
    if not (public.internal_is_pod() and public.internal_is_over_postgrest()) then
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

do $$
declare
    v_role name;
begin
    revoke all on function public.worker_renew(text, text, timestamptz) from public;
    for v_role in select rolname from pg_catalog.pg_roles where rolname in ('anon', 'authenticated', 'service_role') loop
        execute format('revoke all on function public.worker_renew(text, text, timestamptz) from %I', v_role);
    end loop;
    grant execute on function public.worker_renew(text, text, timestamptz) to gpu_worker;
    if exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
        grant execute on function public.worker_renew(text, text, timestamptz) to service_role;
    end if;
end
$$;
