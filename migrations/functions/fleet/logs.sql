-- The ledger: which pieces of the workers' logs are stored.

-- Writes the ledger row of a piece of log before its upload. The ranges of a stream follow each other without gap or
-- overlap.
create or replace function public.fleet_log_begin(
    p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_seq int, p_first bigint,
    p_last bigint, p_sha256 text, p_key text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_piece public.log_objects;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_log_begin');
    perform from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for no key update;
    if not found then
        perform public.internal_refuse('OR005', format('no worker %s in fleet %s', p_worker_id, p_fleet));
    end if;
    select * into v_piece from public.log_objects o
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream and o.seq = p_seq;
    if found then
        if (v_piece.first_byte, v_piece.last_byte, v_piece.sha256, v_piece.key)
           is distinct from (p_first, p_last, p_sha256, p_key) then
            perform public.internal_refuse('OR002',
                                           format('piece %s of %s/%s is another one', p_seq, p_boot_id, p_stream),
                format('it is [%s, %s)', v_piece.first_byte, v_piece.last_byte), 'Read the ledger again.');
        end if;
        return '{}';
    end if;
    select * into v_piece from public.log_objects o
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream order by o.seq desc limit 1;
    if v_piece.seq is null and (p_first <> 0 or p_seq not in (0, 1))
       or v_piece.seq is not null and (p_seq <> v_piece.seq + 1 or p_first is distinct from v_piece.last_byte) then
        perform public.internal_refuse('OR002', format('piece %s of %s/%s does not follow the one before',
            p_seq, p_boot_id, p_stream),
            format('it starts at %s, the ledger ends with piece %s at %s', p_first, v_piece.seq, v_piece.last_byte),
            'Read the ledger again.');
    end if;
    insert into public.log_objects (worker_id, boot_id, stream, seq, first_byte, last_byte, sha256, key, begun_at)
    values (p_worker_id, p_boot_id, p_stream, p_seq, p_first, p_last, p_sha256, p_key, v_now);
    return '{}';
end
$$;

create or replace function public.fleet_log_shipped(
    p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_seq int, p_first bigint,
    p_last bigint, p_sha256 text, p_key text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_log_shipped');
    update public.log_objects o set shipped_at = coalesce(o.shipped_at, v_now)
     where o.worker_id = p_worker_id and o.boot_id = p_boot_id and o.stream = p_stream and o.seq = p_seq
       and o.first_byte = p_first and o.last_byte = p_last and o.sha256 = p_sha256 and o.key = p_key
       and not o.declared_lost;
    if not found then
        perform public.internal_refuse('OR002',
                                       format('piece %s of %s/%s was not begun like this', p_seq, p_boot_id, p_stream),
            '', 'Read the ledger again.');
    end if;
    return '{}';
end
$$;

-- Declares that bytes from p_first on were lost with their host, including pieces whose upload began and never
-- succeeded. p_last is null if the length is unknown.
create or replace function public.fleet_log_lost(
    p_fleet text, p_term bigint, p_worker_id text, p_boot_id text, p_stream text, p_first bigint, p_last bigint,
    p_reason text, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_shipped bigint;
    v_piece public.log_objects;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_log_lost');
    perform from public.workers w where w.id = p_worker_id and w.fleet = p_fleet for no key update;
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

create or replace function public.fleet_log_pieces(p_fleet text, p_worker_id text, p_now timestamptz default null)
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    select jsonb_build_object('pieces', coalesce(jsonb_agg(jsonb_build_object(
               'boot_id', o.boot_id, 'stream', o.stream, 'seq', o.seq, 'first', o.first_byte, 'last', o.last_byte,
               'sha256', o.sha256, 'key', o.key, 'begun_at', o.begun_at, 'shipped_at', o.shipped_at,
               'declared_lost', o.declared_lost, 'reason', o.reason) order by o.boot_id, o.stream, o.seq), '[]'))
      from public.log_objects o
     where o.worker_id = fleet_log_pieces.p_worker_id
       and exists (select from public.workers w where w.id = o.worker_id and w.fleet = fleet_log_pieces.p_fleet)
$$;

-- The part of a worker's ledger that shipping needs: the end of each stream, and the last stored piece. A worker may
-- have thousands of pieces a day, too many to read for each new leader.
create or replace function public.fleet_log_ends(p_fleet text, p_worker_id text, p_now timestamptz default null)
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
    with recursive streams (boot_id, stream) as (  -- from stream to stream in the index, however many pieces there are
        (select o.boot_id, o.stream from public.log_objects o
          where o.worker_id = fleet_log_ends.p_worker_id order by o.boot_id, o.stream limit 1)
        union all
        select n.boot_id, n.stream from streams s cross join lateral (
            select o.boot_id, o.stream from public.log_objects o
             where o.worker_id = fleet_log_ends.p_worker_id and (o.boot_id, o.stream) > (s.boot_id, s.stream)
             order by o.boot_id, o.stream limit 1) n
    ), ends as (
        select o.* from streams s cross join lateral (
            (select * from public.log_objects l
              where l.worker_id = fleet_log_ends.p_worker_id and l.boot_id = s.boot_id and l.stream = s.stream
              order by l.seq desc limit 1)
            union
            (select * from public.log_objects l
              where l.worker_id = fleet_log_ends.p_worker_id and l.boot_id = s.boot_id and l.stream = s.stream
                  and l.shipped_at is not null
              order by l.seq desc limit 1)) o
    )
    select jsonb_build_object('pieces', coalesce(jsonb_agg(jsonb_build_object(
               'boot_id', o.boot_id, 'stream', o.stream, 'seq', o.seq, 'first', o.first_byte, 'last', o.last_byte,
               'sha256', o.sha256, 'key', o.key, 'begun_at', o.begun_at, 'shipped_at', o.shipped_at,
               'declared_lost', o.declared_lost, 'reason', o.reason) order by o.boot_id, o.stream, o.seq), '[]'))
      from ends o
     where exists (select from public.workers w
                    where w.id = fleet_log_ends.p_worker_id and w.fleet = fleet_log_ends.p_fleet)
$$;
