-- The launches of agents: what their calls must know, kept by a trigger of `workers`.

-- `may`: whether it may claim. A worker that is held back may claim from `until` on. In a cluster only the controller
-- may claim, while it is ready and the cluster runs: it submits the tasks to Slurm.
create or replace function orchestrator.keep_launch(p_worker public.workers) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_wanted text := public.internal_wanted(p_worker);
    v_may boolean := v_wanted = 'run' and p_worker.status in ('active', 'idle')
        and (p_worker.held_back is null or public.internal_held_moment(p_worker.held_back, 'since') is not null
             and public.internal_held_moment(p_worker.held_back, 'until') <= public.internal_now())
        and (p_worker.cluster is null or exists (
             select from public.cluster_members m join public.cluster_apps c on c.id = m.cluster
              where m.cluster = p_worker.cluster and m.worker_id = p_worker.id and m.role = 'controller'
                and m.status = 'ready' and c.status in ('running', 'degraded')));
begin
    insert into orchestrator.launches as l (worker_id, nonce, jti, fleet, pool, status, wanted, may, cluster, lease,
                                            log_bytes)
    values (p_worker.id, p_worker.nonce, p_worker.token_jti, p_worker.fleet, p_worker.pool, p_worker.status, v_wanted,
            coalesce(v_may, false), p_worker.cluster, p_worker.lease_s * interval '1 second',
            (p_worker.log_bytes #>> array[p_worker.nonce, 'handler'])::bigint)
    on conflict (worker_id) do update
       set nonce = excluded.nonce, jti = excluded.jti, fleet = excluded.fleet, pool = excluded.pool,
           status = excluded.status, wanted = excluded.wanted, may = excluded.may, cluster = excluded.cluster,
           lease = excluded.lease, log_bytes = excluded.log_bytes,
           claim_no = case when l.nonce is distinct from excluded.nonce then 0 else l.claim_no end
     where (l.nonce, l.jti, l.fleet, l.pool, l.status, l.wanted, l.may, l.cluster, l.lease, l.log_bytes)
           is distinct from (excluded.nonce, excluded.jti, excluded.fleet, excluded.pool, excluded.status,
                             excluded.wanted, excluded.may, excluded.cluster, excluded.lease, excluded.log_bytes);
end
$$;

create or replace function orchestrator.workers_changed() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    perform orchestrator.keep_launch(new);
    return null;
end
$$;

create or replace function orchestrator.workers_removed() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
begin
    delete from orchestrator.launches l where not exists (select from public.workers w where w.id = l.worker_id);
    return null;
end
$$;
