-- The lease that decides which orchestrator leads a fleet.

-- Gives the lease to this holder if it is free, or renews it. A renewal waits for no write of its term; a new term
-- begins when all writes of the old one, which have locked the key of the row (internal_check_term), have ended.
create or replace function public.fleet_lead(
    p_fleet text, p_holder text, p_ttl_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz;
    v_lease public.fleet_lease;
begin
    perform public.internal_check_id(p_fleet, 'p_fleet');
    if coalesce(p_holder, '') = '' or p_ttl_s is null or p_ttl_s <= 0 or p_ttl_s > 3600 then
        perform public.internal_refuse('OR007', 'p_holder must be named and p_ttl_s be from 0 to 3600 seconds');
    end if;
    perform public.internal_check_original();
    insert into public.fleet_lease (fleet, holder, term, expires_at, since)
    values (p_fleet, '', 0, 'epoch', 'epoch') on conflict do nothing;
    select * into v_lease from public.fleet_lease l where l.fleet = p_fleet for no key update;
    v_now := public.internal_clock(p_now);  -- after the wait for the lock, not before it
    if v_lease.expires_at <= v_now then
        perform from public.fleet_lease l where l.fleet = p_fleet for update;
        v_now := public.internal_clock(p_now);
        update public.fleet_lease l
           set holder = p_holder, term = l.term + 1, since = v_now,
               unled_from = case when l.term > 0 then l.expires_at end,
               expires_at = v_now + p_ttl_s * interval '1 second'
         where l.fleet = p_fleet returning * into v_lease;
        perform public.internal_raise_sequences();
    elsif v_lease.holder = p_holder then
        update public.fleet_lease l set expires_at = v_now + p_ttl_s * interval '1 second'
         where l.fleet = p_fleet returning * into v_lease;
    end if;
    return jsonb_build_object('leader', v_lease.holder = p_holder, 'term', v_lease.term, 'holder', v_lease.holder,
                              'expires_at', v_lease.expires_at, 'since', v_lease.since);
end
$$;

-- A leader of a copy would end the pods of the original, because it does not see their heartbeats.
create or replace function public.internal_check_original() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    update public.database_identity i set led_in = public.internal_place()
     where i.led_in is null and public.internal_place() is not null;
    if public.internal_is_copy() then
        perform public.internal_refuse('OR007', 'this database is a copy of the one in which the fleet was led',
            'the orchestrator of the original may still use its pods', public.internal_copy_fix());
    end if;
end
$$;

-- What an operator declares about a copy: it takes the place of the original and of its pods, or it is another
-- database, whose orchestrator leaves these pods alone. fleet_act calls it. Outcome: confirmed, or already if it is no
-- copy.
create or replace function public.internal_confirm_database(p_is_copy boolean) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    if not public.internal_is_copy() then
        return jsonb_build_object('outcome', 'already');
    end if;
    update public.database_identity i
       set led_in = public.internal_place(), id = case when p_is_copy then gen_random_uuid() else i.id end;
    return jsonb_build_object('outcome', 'confirmed');
end
$$;

create or replace function public.fleet_resign(
    p_fleet text, p_holder text, p_term bigint, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    update public.fleet_lease l set expires_at = v_now
     where l.fleet = p_fleet and l.holder = p_holder and l.term = p_term and l.expires_at > v_now;
    if found then  -- a standby that listens takes over at once
        perform pg_notify('orchestrator_fleet', '');
        return jsonb_build_object('resigned', true);
    end if;
    return jsonb_build_object('resigned', false);
end
$$;

-- The leader of a fleet or, if there is none, the last leader and when its lease ended; whether the database
-- allows no writes; and the recorded conditions.
create or replace function public.fleet_leadership(p_fleet text, p_now timestamptz default null) returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    return jsonb_build_object(
        'now', v_now,
        'leader', public.internal_leader(p_fleet, v_now),
        'read_only', public.internal_is_read_only(),
        'conditions', public.internal_conditions(p_fleet, v_now),
        'last', (select jsonb_build_object('holder', l.holder, 'until', l.expires_at)
                   from public.fleet_lease l where l.fleet = p_fleet and l.expires_at <= v_now));
end
$$;

-- Records for p_for_s that the leader's ticks fail. If p_error is null: a tick has succeeded again.
create or replace function public.fleet_note_tick(
    p_fleet text, p_term bigint, p_error text, p_for_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_note_tick');
    if p_error is null then
        delete from public.fleet_settings s where s.fleet = p_fleet and s.name = 'tick_failed';
    else
        insert into public.fleet_settings as s (fleet, name, value, reason, set_at, expires_at)
        values (p_fleet, 'tick_failed', 'true', left(p_error, 1000), v_now, v_now + p_for_s * interval '1 second')
        on conflict (fleet, name) do update
           set reason = excluded.reason, expires_at = excluded.expires_at,
               set_at = case when s.expires_at > v_now then s.set_at else excluded.set_at end;
    end if;
    return jsonb_build_object('noted', p_error is not null);
end
$$;

-- Records for p_for_s what the leader finds wrong with the fleet: a list, in the order in which it is shown. A row that
-- has `dated_only` is not shown, only its date is kept; with the kind *, so are the dates of all others.
create or replace function public.fleet_note_conditions(
    p_fleet text, p_term bigint, p_conditions jsonb, p_for_s numeric, p_now timestamptz default null
) returns jsonb
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_clock(p_now);
    v_dated jsonb;
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_note_conditions');
    if jsonb_typeof(p_conditions) is distinct from 'array' then
        perform public.internal_refuse('OR007', 'p_conditions must be a list');
    end if;
    v_dated := public.internal_dated(p_fleet, p_conditions, v_now);
    insert into public.fleet_settings (fleet, name, value, reason, set_at, expires_at)
    select p_fleet, n.name, n.value, '', v_now, v_now + p_for_s * interval '1 second'
      from (values ('conditions', jsonb_path_query_array(v_dated, '$[*] ? (!exists(@.dated_only))')),
                   ('condition_dates', public.internal_condition_dates(p_fleet, v_dated, v_now))) n (name, value)
    on conflict (fleet, name) do update
       set value = excluded.value, set_at = excluded.set_at, expires_at = excluded.expires_at;
    return jsonb_build_object('noted', jsonb_array_length(p_conditions));
end
$$;

-- Conditions with a time since when each is there: its own, or when it was first recorded. Without a leader
-- for a quarter of an hour, nothing is known of the time before.
create or replace function public.internal_dated(p_fleet text, p_conditions jsonb, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(jsonb_agg(
               case when jsonb_typeof(c.row) = 'object' and c.row ->> 'since' is null
                    then c.row || jsonb_build_object('since', coalesce(b.since, to_jsonb(internal_dated.p_now)))
                    else c.row end order by c.no), '[]')
      from jsonb_array_elements(internal_dated.p_conditions) with ordinality c (row, no)
      left join lateral (
            select nullif(e -> 'since', 'null') as since
              from public.fleet_settings s cross join lateral jsonb_array_elements(s.value) e
             where s.fleet = internal_dated.p_fleet and s.name in ('condition_dates', 'conditions')
               and s.expires_at > internal_dated.p_now - interval '15 minutes'
               and e ->> 'kind' = c.row ->> 'kind' and e ->> 'subject' = c.row ->> 'subject'
             order by s.name limit 1) b on true
$$;

-- Since when each condition is there, the unshown ones too: {kind, subject, since}.
create or replace function public.internal_condition_dates(p_fleet text, p_dated jsonb, p_now timestamptz)
returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with dated as (
        select c.row ->> 'kind' as kind, c.row ->> 'subject' as subject, c.row -> 'since' as since
          from jsonb_array_elements(internal_condition_dates.p_dated) c (row) where jsonb_typeof(c.row) = 'object'
    )
    select coalesce(jsonb_agg(to_jsonb(d.*)), '[]') from (
        select * from dated where kind <> '*'
        union all
        select e ->> 'kind', e ->> 'subject', e -> 'since'
          from public.fleet_settings s cross join lateral jsonb_array_elements(s.value) e
         where s.fleet = internal_condition_dates.p_fleet and s.name = 'condition_dates'
           and s.expires_at > internal_condition_dates.p_now - interval '15 minutes'
           and exists (select from dated where kind = '*')
           and not exists (select from dated k where k.kind = e ->> 'kind' and k.subject = e ->> 'subject')) d
$$;

-- The conditions that the leader has recorded; null if there is no recent record.
create or replace function public.internal_conditions(p_fleet text, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select s.value from public.fleet_settings s
     where s.fleet = internal_conditions.p_fleet and s.name = 'conditions' and s.expires_at > internal_conditions.p_now
$$;

-- Whether the database allows no writes: no orchestrator can lead then. PostgREST runs a stable function in a
-- transaction that allows none, so the default counts.
create or replace function public.internal_is_read_only() returns boolean
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select pg_is_in_recovery() or current_setting('default_transaction_read_only')::boolean
$$;

-- What the leader has recorded about itself under a name, and since when, if it is still valid.
create or replace function public.internal_leader_record(p_fleet text, p_name text, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('reason', s.reason, 'since', s.set_at) from public.fleet_settings s
     where s.fleet = internal_leader_record.p_fleet and s.name = internal_leader_record.p_name
       and s.expires_at > internal_leader_record.p_now
$$;

-- The leader and the end of its lease, from which follows how long it has been silent.
create or replace function public.internal_leader(p_fleet text, p_now timestamptz) returns jsonb
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select jsonb_build_object('holder', l.holder, 'since', l.since, 'term', l.term, 'expires_at', l.expires_at)
      from public.fleet_lease l where l.fleet = internal_leader.p_fleet and l.expires_at > internal_leader.p_now
$$;
