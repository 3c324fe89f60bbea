-- fleet_*: what the orchestrator writes down as it goes.

-- One climb has one open attempt at a time: what is still open was left behind by an orchestrator that died.
create function public.fleet_attempt_open(p_fleet text, p_term bigint, p_worker_id text, p_stage text,
                                          p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_id bigint;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_attempt_open');
    perform from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for update;
    if not found then
        perform public.internal_refuse('OR005', format('no worker %s in fleet %s', p_worker_id, p_fleet));
    end if;
    update public.worker_attempts a set ended_at = v_now, outcome = 'lost'
     where a.worker_id = p_worker_id and a.ended_at is null;
    insert into public.worker_attempts (worker_id, stage, attempt, term, started_at)
    select p_worker_id, p_stage, count(*) + 1, p_term, v_now
      from public.worker_attempts a where a.worker_id = p_worker_id and a.stage = p_stage
    returning id into v_id;
    return jsonb_build_object('id', v_id);
end
$$;

create function public.fleet_attempt_close(p_fleet text, p_term bigint, p_id bigint, p_outcome text, p_failure_code text,
                                           p_exception_type text, p_evidence jsonb, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_attempt_close');
    perform public.internal_check_size(p_evidence, 1048576, 'p_evidence');
    update public.worker_attempts a
       set ended_at = v_now, outcome = p_outcome, failure_code = p_failure_code, exception_type = p_exception_type,
           evidence = p_evidence
     where a.id = p_id and a.ended_at is null;
    if not found and not exists (select from public.worker_attempts a where a.id = p_id) then
        perform public.internal_refuse('OR007', format('there is no attempt %s', p_id));
    end if;
    return '{}';
end
$$;

-- 30 s of cool-down after a refusal, doubling up to 600 s; a success clears it.
create function public.fleet_note_offer(p_fleet text, p_term bigint, p_key text, p_refused boolean, p_code text,
                                        p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_note_offer');
    insert into public.offers as o (fleet, key, cooldown_until, refusals, last_refusal, last_code, last_success)
    values (p_fleet, p_key, case when p_refused then v_now + interval '30 seconds' end,
            case when p_refused then 1 else 0 end, case when p_refused then v_now end,
            case when p_refused then p_code end, case when not p_refused then v_now end)
    on conflict (fleet, key) do update
       set refusals = case when p_refused then o.refusals + 1 else 0 end,
           cooldown_until = case when p_refused
                                 then v_now + least(30 * 2 ^ least(o.refusals, 10), 600) * interval '1 second' end,
           last_refusal = coalesce(excluded.last_refusal, o.last_refusal),
           last_code = coalesce(excluded.last_code, o.last_code),
           last_success = coalesce(excluded.last_success, o.last_success);
    return '{}';
end
$$;

create function public.fleet_record_decision(p_fleet text, p_term bigint, p_decision jsonb,
                                             p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_last public.decisions;
    v_id bigint;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_record_decision');
    perform public.internal_check_keys(p_decision, array['pool', 'rule', 'target', 'inputs', 'actions', 'blocked'],
                                       'p_decision');
    select * into v_last from public.decisions d
     where d.fleet = p_fleet and d.pool = p_decision->>'pool' order by d.id desc limit 1;
    if v_last.id is null or v_last.rule is distinct from p_decision->>'rule'
       or v_last.target is distinct from (p_decision->>'target')::int
       or v_last.actions is distinct from coalesce(p_decision->'actions', '[]')
       or v_last.blocked is distinct from coalesce(p_decision->'blocked', '[]') then
        insert into public.decisions (fleet, pool, term, at, rule, target, inputs, actions, blocked)
        values (p_fleet, p_decision->>'pool', p_term, v_now, p_decision->>'rule', (p_decision->>'target')::int,
                coalesce(p_decision->'inputs', '{}'), coalesce(p_decision->'actions', '[]'),
                coalesce(p_decision->'blocked', '[]'))
        returning id into v_id;
    end if;
    return jsonb_build_object('id', v_id);
end
$$;

-- The ledger row of a piece of log, before its upload. Ranges of a stream follow each other without gap or overlap.
create function public.fleet_log_begin(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text,
                                       p_seq int, p_first bigint, p_last bigint, p_sha256 text, p_key text,
                                       p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_piece public.log_objects;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_log_begin');
    perform from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for update;
    if not found then
        perform public.internal_refuse('OR005', format('no worker %s in fleet %s', p_worker_id, p_fleet));
    end if;
    select * into v_piece from public.log_objects o
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream and o.seq = p_seq;
    if found then
        if (v_piece.first_byte, v_piece.last_byte, v_piece.sha256, v_piece.key)
           is distinct from (p_first, p_last, p_sha256, p_key) then
            perform public.internal_refuse('OR002', format('piece %s of %s/%s is another one', p_seq, p_boot_id, p_stream),
                format('it is [%s, %s)', v_piece.first_byte, v_piece.last_byte), 'Read the ledger again.');
        end if;
        return '{}';
    end if;
    select * into v_piece from public.log_objects o
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream order by o.seq desc limit 1;
    if v_piece.seq is null and (p_first <> 0 or p_seq not in (0, 1))
       or v_piece.seq is not null and (p_seq <> v_piece.seq + 1 or p_first is distinct from v_piece.last_byte) then
        perform public.internal_refuse('OR002', format('piece %s of %s/%s does not follow the one before', p_seq, p_boot_id, p_stream),
            format('it starts at %s, the ledger ends with piece %s at %s', p_first, v_piece.seq, v_piece.last_byte),
            'Read the ledger again.');
    end if;
    insert into public.log_objects (worker_id, boot_id, stream, seq, first_byte, last_byte, sha256, key, begun_at)
    values (p_worker_id, p_boot_id, p_stream, p_seq, p_first, p_last, p_sha256, p_key, v_now);
    return '{}';
end
$$;

create function public.fleet_log_shipped(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text,
                                         p_seq int, p_first bigint, p_last bigint, p_sha256 text, p_key text,
                                         p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_log_shipped');
    update public.log_objects o set shipped_at = coalesce(o.shipped_at, v_now)
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream and o.seq = p_seq
       and o.first_byte = p_first and o.last_byte = p_last and o.sha256 = p_sha256 and o.key = p_key
       and not o.declared_lost;
    if not found then
        perform public.internal_refuse('OR002', format('piece %s of %s/%s was not begun like this', p_seq, p_boot_id, p_stream),
            '', 'Read the ledger again.');
    end if;
    return '{}';
end
$$;

create function public.fleet_log_pieces(p_fleet text, p_worker_id text, p_now timestamptz default null) returns jsonb
language sql stable security definer set search_path = '' as $$
    select jsonb_build_object('pieces', coalesce(jsonb_agg(jsonb_build_object(
               'boot_id', o.boot_id, 'stream', o.stream, 'seq', o.seq, 'first', o.first_byte, 'last', o.last_byte,
               'sha256', o.sha256, 'key', o.key, 'begun_at', o.begun_at, 'shipped_at', o.shipped_at,
               'declared_lost', o.declared_lost, 'reason', o.reason) order by o.boot_id, o.stream, o.seq), '[]'))
      from public.log_objects o
     where o.worker_id = p_worker_id
       and exists (select from public.workers w where w.id = o.worker_id and w.fleet = p_fleet)
$$;

-- Bytes from p_first on went with their host. Begun pieces that never arrived are part of that; p_last is null where
-- nobody knows how much there was.
create function public.fleet_log_lost(p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text,
                                      p_first bigint, p_last bigint, p_reason text, p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_shipped bigint;
    v_piece public.log_objects;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_log_lost');
    perform from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for update;
    if not found then
        perform public.internal_refuse('OR005', format('no worker %s in fleet %s', p_worker_id, p_fleet));
    end if;
    select coalesce(max(o.last_byte), 0) into v_shipped from public.log_objects o
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream and o.shipped_at is not null;
    if p_first is distinct from v_shipped then
        perform public.internal_refuse('OR002', format('%s/%s has arrived up to byte %s, not %s', p_boot_id, p_stream,
            v_shipped, p_first), '', 'Read the ledger again.');
    end if;
    update public.log_objects o set declared_lost = true, reason = coalesce(p_reason, 'no reason given')
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream and o.shipped_at is null
       and not o.declared_lost;
    select * into v_piece from public.log_objects o
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream order by o.seq desc limit 1;
    if v_piece.seq is null or v_piece.last_byte is not null and coalesce(p_last > v_piece.last_byte, true) then
        if p_last is null or p_last > coalesce(v_piece.last_byte, 0) then
            insert into public.log_objects (worker_id, boot_id, stream, seq, first_byte, last_byte, begun_at,
                                            declared_lost, reason)
            values (p_worker_id, p_boot_id, p_stream, coalesce(v_piece.seq + 1, 0), coalesce(v_piece.last_byte, 0),
                    p_last, v_now, true, coalesce(p_reason, 'no reason given'));
        end if;
    end if;
    return '{}';
end
$$;

create function public.fleet_pause(p_fleet text, p_reason text, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    if p_reason is null then
        delete from public.fleet_settings s where s.fleet = p_fleet and s.name = 'paused';
    else
        insert into public.fleet_settings (fleet, name, value, reason, set_at)
        values (p_fleet, 'paused', 'true', p_reason, v_now)
        on conflict (fleet, name) do update
           set value = excluded.value, reason = excluded.reason, set_at = excluded.set_at, expires_at = null;
    end if;
    perform pg_notify('orchestrator_fleet', '');
    return jsonb_build_object('paused', p_reason);
end
$$;

-- Old rows go, in bounded bites; tasks, workers, costs and the log ledger stay.
create function public.fleet_retention(p_fleet text, p_term bigint, p_now timestamptz default null) returns jsonb
language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
    c_bite constant int := 10000;  -- rows per table and call
    v_decisions int;
    v_events int;
    v_attempts int;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_retention');
    delete from public.decisions d where d.id in (
        select o.id from public.decisions o
         where o.fleet = p_fleet and o.at < v_now - interval '30 days'
           and exists (select from public.decisions n where n.fleet = o.fleet and n.pool = o.pool and n.id > o.id)
         limit c_bite);
    get diagnostics v_decisions = row_count;
    delete from public.worker_events e where e.id in (
        select o.id from public.worker_events o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet and w.terminated_at < v_now - interval '90 days' limit c_bite);
    get diagnostics v_events = row_count;
    delete from public.worker_attempts a where a.id in (
        select o.id from public.worker_attempts o join public.workers w on w.id = o.worker_id
         where w.fleet = p_fleet and w.terminated_at < v_now - interval '90 days' limit c_bite);
    get diagnostics v_attempts = row_count;
    return jsonb_build_object('decisions', v_decisions, 'worker_events', v_events, 'worker_attempts', v_attempts);
end
$$;
