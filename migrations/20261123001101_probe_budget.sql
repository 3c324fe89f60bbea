-- An offer that was never refused has no probe budget, after its second success neither: least() passes over a null.
create or replace function public.fleet_note_offer(p_fleet text, p_term bigint, p_key text, p_refused boolean, p_code text,
                                                   p_now timestamptz default null)
returns jsonb language plpgsql security definer set search_path = '' as $$
declare
    v_now timestamptz := public.internal_clock(p_now);
begin
    perform public.internal_check_term(p_fleet, p_term, 'fleet_note_offer');
    insert into public.offers as o (fleet, key, cooldown_until, refusals, last_refusal, last_code, last_success, probe_budget)
    values (p_fleet, p_key, case when p_refused then v_now + interval '30 seconds' end,
            case when p_refused then 1 else 0 end, case when p_refused then v_now end,
            case when p_refused then p_code end, case when not p_refused then v_now end, case when p_refused then 1 end)
    on conflict (fleet, key) do update
       set refusals = case when p_refused then o.refusals + 1 else 0 end,
           cooldown_until = case when p_refused
                                 then v_now + least(30 * 2 ^ least(o.refusals, 10), 600) * interval '1 second' end,
           probe_budget = case when p_refused then 1
                                when o.probe_budget is not null then least(o.probe_budget * 2, 1024) end,
           last_refusal = coalesce(excluded.last_refusal, o.last_refusal),
           last_code = coalesce(excluded.last_code, o.last_code),
           last_success = coalesce(excluded.last_success, o.last_success);
    return '{}';
end
$$;