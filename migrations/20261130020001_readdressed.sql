-- A pod that was restarted may have its SSH at another public port. That a row's address changed is an event of its own:
-- who reads why logs were late, or went on, needs to know where they were fetched from since when.

create or replace function public.internal_worker_changed() returns trigger
language plpgsql security definer set search_path = '' as $$
declare
    v_from_state text;
    v_from_stage text;
    v_from timestamptz;
    v_moved_to text;
begin
    if tg_op = 'UPDATE' then
        v_from_state := old.status;
        v_from_stage := old.stage;
        v_from := greatest(old.state_since, new.billing_since);
        if old.ssh_host is not null and (old.ssh_host, old.ssh_port) is distinct from (new.ssh_host, new.ssh_port) then
            v_moved_to := concat_ws(':', new.ssh_host, new.ssh_port);
        end if;
        if new.status <> old.status and new.billing_since is not null and v_from < new.state_since then
            insert into public.costs (worker_id, fleet, kind, from_at, to_at, usd)
            values (old.id, old.fleet,
                    case old.status when 'spawning' then 'booting' when 'active' then 'busy' when 'idle' then 'idle'
                                    else 'draining' end,
                    v_from, new.state_since,
                    coalesce(new.price_usd_per_hour, 0) * extract(epoch from new.state_since - v_from) / 3600);
        end if;
    end if;
    if v_from_state is distinct from new.status or v_from_stage is distinct from new.stage or v_moved_to is not null then
        insert into public.worker_events
            (worker_id, fleet, from_state, to_state, from_stage, to_stage, reason, term, actor, at, detail)
        values (new.id, new.fleet, v_from_state, new.status, v_from_stage, new.stage,
                coalesce(nullif(current_setting('orchestrator.reason', true), ''), 'changed by hand'),
                nullif(current_setting('orchestrator.term', true), '')::bigint,
                coalesce(nullif(current_setting('orchestrator.actor', true), ''), session_user),
                public.internal_now(),
                jsonb_strip_nulls(jsonb_build_object('exit_cause', new.exit_cause, 'failure_code', new.failure_code,
                                                     'pod_id', new.pod_id, 'waiting_for', new.waiting_for,
                                                     'ssh', v_moved_to)));
    end if;
    perform pg_notify('orchestrator_fleet', new.id);
    return null;
end
$$;

drop trigger workers_changed on public.workers;
create trigger workers_changed after update on public.workers
    for each row when (old.status is distinct from new.status or old.stage is distinct from new.stage
                       or old.drain_requested_at is distinct from new.drain_requested_at
                       or old.stop_requested_at is distinct from new.stop_requested_at
                       or old.ssh_host is distinct from new.ssh_host or old.ssh_port is distinct from new.ssh_port)
    execute function public.internal_worker_changed();
