-- How tasks that were there before the queue come into it. `migrate` begins it in the transaction that makes the triggers,
-- and then calls adopt() until nothing is left. From the triggers on, each task that a statement writes comes into the
-- queue by that statement.

-- Begins once: with the launches of agents, and with the attempts that they hold of the queue that lived in rows of `tasks`.
create or replace function orchestrator.begin_adoption() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    -- An earlier version has adopted them, or this one, and the queue's tables were dropped since.
    v_is_known constant boolean := exists (select from orchestrator.audits a where a.rel = 'public.tasks')
        or exists (select from public.schema_migrations m where m.version = 'triggers.sql') and not orchestrator.is_earlier();
begin
    perform orchestrator.keep_launch(w.*) from public.workers w
      where (w.status <> 'terminated' or w.nonce is not null)
        and not exists (select from orchestrator.launches l where l.worker_id = w.id);
    if exists (select from orchestrator.audits a where a.rel = 'adoption') then
        return;
    end if;
    insert into orchestrator.audits (rel, next_block, began_at, ended_at)
    values ('adoption', 0, now(), case when v_is_known then now() end);
    if orchestrator.is_earlier() then
        perform orchestrator.adopt_attempts();
    end if;
end
$$;

-- Whether `tasks` still has the columns of the queue that lived in its rows.
create or replace function orchestrator.is_earlier() returns boolean
language plpgsql stable security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    return exists (select from pg_catalog.pg_attribute a
                    where a.attrelid = 'public.tasks'::regclass and a.attname = 'queue_gate' and not a.attisdropped);
end
$$;

-- The attempts that agents hold, with their leases, found by the earlier queue's indexes: `tasks` is locked meanwhile. The
-- leader publishes their rows of `tasks` again.
create or replace function orchestrator.adopt_attempts() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off set jit = off as $$
#variable_conflict use_variable
declare
    v_held constant uuid[] := array(
        select t.id from public.tasks t join orchestrator.attempts a on a.task_id = t.id and a.attempt = t.attempts
         where t.status = 'In Progress' and a.ended_at is null and a.worker_id = t.worker_id);
begin
    perform orchestrator.insert_live(v_held);
    update orchestrator.live q
       set attempt = a.attempt, attempts_shown = t.attempts, uncounted = t.uncounted, nonce = a.nonce, claim_no = a.claim_no,
           claimed_at = a.started_at, lease_expires_at = t.lease_expires_at,
           progress_at = coalesce(t.progress_at, a.started_at), log_first = a.log_first
      from public.tasks t join orchestrator.attempts a on a.task_id = t.id and a.attempt = t.attempts
     where q.task_id = any (v_held) and t.id = q.task_id;
    insert into orchestrator.rechecks (kind, name) select 'show', h.id::text from unnest(v_held) h (id);
    update orchestrator.launches l set claim_no = greatest(w.claim_no - 1, (
               select max(a.claim_no) from orchestrator.attempts a where a.worker_id = w.id and a.nonce = w.nonce))
      from public.workers w
     where w.id = l.worker_id and w.nonce is not null and w.claim_no is not null and w.status <> 'terminated';
    delete from orchestrator.attempts a  -- those of no task, which nobody holds, go when the earlier queue's columns do
     using public.tasks t
     where t.id = any (v_held) and a.task_id = t.id and a.attempt = t.attempts and a.ended_at is null;
end
$$;

-- Of tasks that were queued in the earlier queue: the numbers go on, and as many attempts count as before.
create or replace function orchestrator.adopt_numbers(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
begin
    update orchestrator.live q
       set attempt = n.attempt, uncounted = least(n.attempt, greatest(0, n.attempt - t.attempts + t.uncounted))
      from public.tasks t
     cross join lateral (
           select greatest(l.attempt, t.attempts, (select f.attempt from public.task_floors f where f.task_id = t.id)) as attempt
             from orchestrator.live l where l.task_id = t.id) n
     where q.task_id = any (p_ids) and t.id = q.task_id and q.state <> 'running'
       and (q.attempt, q.uncounted) is distinct from (n.attempt, greatest(0, n.attempt - t.attempts + t.uncounted));
end
$$;

-- Adopts the next open tasks, at most p_most, in a transaction of its own. It waits for no transaction of a user's: what one
-- has locked is left to the leader. A write of a user's to one of these tasks waits until it ends, and no other. Its place is
-- kept, so an interrupted adoption goes on there. blocks: pages that it has read, of all. leased: tasks In Progress, which a
-- program of the project's runs; stale: those of them that have not changed for a day, which no rescue ends.
-- unknown: tasks with a status that is none of ours, which are never claimed.
create or replace function orchestrator.adopt(
    p_most int, out blocks bigint, out all_blocks bigint, out adopted int, out leased int, out stale int, out locked int,
    out unknown int
)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set lock_timeout = '500ms' set jit = off as $$
#variable_conflict use_variable
declare
    c_pages constant int := 32768;
    v_first bigint;
    v_is_earlier constant boolean := orchestrator.is_earlier();
    v_ids uuid[];
    v_free uuid[];
begin
    all_blocks := pg_relation_size('public.tasks') / current_setting('block_size')::bigint;
    adopted := 0;
    leased := 0;
    stale := 0;
    locked := 0;
    unknown := 0;
    select a.next_block into v_first from orchestrator.audits a where a.rel = 'adoption' and a.ended_at is null for update;
    blocks := coalesce(least(v_first + c_pages, all_blocks), all_blocks);
    if v_first is null then
        return;
    end if;
    -- Without a join: in the order of the pages.
    select array_agg(f.id) filter (where f.is_open), case when count(*) = p_most then max(f.last) else blocks end,
           count(*) filter (where not f.is_open and (f.block < f.last or f.n < p_most))
      into v_ids, blocks, unknown
      from (select r.id, r.is_open, r.block, max(r.block) over () as last, count(*) over () as n
              from (select t.id, t.status in ('Queued', 'In Progress') as is_open, (t.ctid::text::point)[0]::bigint as block
                      from public.tasks t
                     where t.ctid >= format('(%s,0)', v_first)::tid and t.ctid < format('(%s,0)', blocks)::tid
                       and t.status::text not in ('Complete', 'Failed', 'Cancelled') limit p_most) r) f;
    v_ids := array(select i.id from unnest(v_ids) i (id)
                    where not exists (select from orchestrator.live q where q.task_id = i.id));
    -- Under the locks: a transaction that changes one of them has not seen it in the queue.
    v_free := array(select t.id from public.tasks t
                     where t.id = any (v_ids) and t.status in ('Queued', 'In Progress') for share skip locked);
    insert into orchestrator.rechecks (kind, name)
    select 'enter', i.id::text from unnest(v_ids) i (id) where (i.id in (select unnest(v_free))) is not true;
    get diagnostics locked = row_count;
    if v_free <> '{}' then
        perform orchestrator.insert_live(v_free);
        with led as (
            update orchestrator.live q
               set progress_at = coalesce(t.updated_at, q.progress_at),
                   lease_expires_at = case
                       when v_is_earlier then nullif((to_jsonb(t)->>'lease_expires_at')::timestamptz, 'infinity')
                       when greatest(t.created_at, t.updated_at, t.generation_started_at) < now() - interval '1 day'
                       then '-infinity' else now() + interval '1 hour' end
              from public.tasks t where t.id = q.task_id and q.task_id = any (v_free) and q.state = 'running'
            returning q.lease_expires_at as ends_at
        )
        select count(*) filter (where l.ends_at > now()), count(*) filter (where l.ends_at < now())
          into leased, stale from led l where not v_is_earlier;
        if v_is_earlier then
            perform orchestrator.adopt_numbers(v_free);
        end if;
        adopted := cardinality(v_free);
    end if;
    update orchestrator.audits a set next_block = blocks, ended_at = case when blocks >= all_blocks then now() end
     where a.rel = 'adoption';
end
$$;
