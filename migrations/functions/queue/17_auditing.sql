-- Rows that were written while the triggers were off (a restore, a replica role, an apply worker) are found by reading
-- `tasks`, `live` and `edges` from end to end, a part at a time.

-- Reads the next so many pages of each table (null: so many that an hour of calls reads everything twice), and
-- reconciles what differs. Returns the ids.
create or replace function orchestrator.audit(p_blocks int) returns uuid[]
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
#variable_conflict use_variable
declare
    c_needs constant int := 10000;  -- in one call
    v_from tid;
    v_to tid;
    v_ids uuid[];
    v_gone uuid[];
    v_locked uuid[];
    v_needs uuid[];
begin
    select a.from_tid, a.to_tid into v_from, v_to from orchestrator.next_audit('public.tasks', p_blocks) a;
    v_ids := array(select t.id from public.tasks t where t.ctid >= v_from and t.ctid < v_to);
    perform orchestrator.remember_names(v_ids);
    v_ids := array(select d.id from orchestrator.differences d where d.id = any (v_ids));
    select a.from_tid, a.to_tid into v_from, v_to from orchestrator.next_audit('orchestrator.live', p_blocks) a;
    v_gone := array(select q.task_id from orchestrator.live q
                     where q.ctid >= v_from and q.ctid < v_to
                       and (select true from public.tasks t where t.id = q.task_id) is null);
    select a.from_tid, a.to_tid into v_from, v_to from orchestrator.next_audit('orchestrator.edges', p_blocks) a;
    v_gone := v_gone || array(select distinct e.task_id from orchestrator.edges e
                               where e.ctid >= v_from and e.ctid < v_to
                                 and (select true from public.tasks t where t.id = e.task_id) is null);
    v_ids := v_ids || v_gone;
    v_locked := array(select q.task_id from orchestrator.live q
                       where q.task_id = any (v_ids) order by q.task_id for update skip locked);
    -- What a transaction has locked is looked at in the next round: it may end a task that is not in the queue yet.
    v_ids := v_locked || array(select i.id from unnest(v_ids) i (id)
                                where (select true from orchestrator.live q where q.task_id = i.id) is null
                                  and (select true from public.tasks t where t.id = i.id) is null)
                      || array(select t.id from public.tasks t
                                where t.id = any (v_ids)
                                  and (select true from orchestrator.live q where q.task_id = t.id) is null
                                  for share of t skip locked);
    if v_ids <> '{}' then
        perform orchestrator.reconcile_each(orchestrator.with_few_needs(v_ids, c_needs));
    end if;
    v_needs := array(select distinct e.needs from orchestrator.edges e
                      where e.ctid >= v_from and e.ctid < v_to and e.is_met
                        and orchestrator.need_status(e.needs) not in ('Complete', 'Failed', 'Cancelled'));
    if v_needs <> '{}' then  -- a Complete task was deleted without its result being kept
        perform orchestrator.unmeet_again(v_needs);
        perform orchestrator.unmeet(
            array(select n.id from unnest(v_needs) n (id) where orchestrator.need_status(n.id) = 'absent'), true);
    end if;
    return v_ids || v_needs;
end
$$;

-- Remembers the pools and types that these tasks name, so that fleet_names() need not read all tasks.
create or replace function orchestrator.remember_names(p_ids uuid[]) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set jit = off as $$
#variable_conflict use_variable
begin
    insert into orchestrator.task_names (pool, task_type)
    select n.pool, n.task_type
      from (select coalesce(t.pool, d.pool, 'default') as pool, t.task_type
              from public.tasks t left join public.task_types d on d.task_type = t.task_type
             where t.id = any (p_ids) and t.task_type is not null group by 1, 2) n
     where not exists (select from orchestrator.task_names k where k.pool = n.pool and k.task_type = n.task_type)
    on conflict do nothing;
end
$$;

-- Open tasks that are missing in the queue: written while the triggers were off, or without their row of `live` or of
-- `edges`.
create or replace view orchestrator.missing as
select t.id, t.ctid as at from public.tasks t
 where t.status in ('Queued', 'In Progress')
   and (select q.has_needs  -- by its key, each
               and (select true from orchestrator.edges e where e.task_id = q.task_id limit 1) is null
          from orchestrator.live q where q.task_id = t.id) is not false
   and (select true from orchestrator.publications p where p.task_id = t.id) is null;

-- Brings those of the next pages from p_first on into the queue, at most p_most. `migrate` reads all pages so. An
-- attempt that `tasks` shows In Progress and that has not ended goes on, until its lease ends, if its agent lives.
-- blocks: pages that have been read, of all. locked: in open transactions of others, left to the leader. unfit: the
-- queue cannot hold them.
create or replace function orchestrator.enter_missing(
    p_first bigint, p_most int, out blocks bigint, out all_blocks bigint, out entered int, out locked int, out unfit int
)
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off
set lock_timeout = '500ms' set jit = off as $$
#variable_conflict use_variable
declare
    c_pages constant int := 32768;
    v_now timestamptz := public.internal_now();
    v_ids uuid[];
    v_free uuid[];
    v_new uuid[];
begin
    all_blocks := pg_relation_size('public.tasks') / current_setting('block_size')::bigint;
    blocks := least(p_first + c_pages, all_blocks);
    -- Without a join: in the order of the pages.
    select array_agg(f.id), case when count(*) = p_most then max((f.at::text::point)[0]::bigint) else blocks end
      into v_ids, blocks
      from (select m.id, m.at from orchestrator.missing m
             where m.at >= format('(%s,0)', p_first)::tid and m.at < format('(%s,0)', blocks)::tid limit p_most) f;
    v_free := array(select t.id from public.tasks t
                     where t.id = any (v_ids) and t.status in ('Queued', 'In Progress') for share skip locked);
    insert into orchestrator.rechecks (kind, name)
    select 'enter', i.id::text from unnest(v_ids) i (id) where (i.id in (select unnest(v_free))) is not true;
    get diagnostics locked = row_count;
    entered := 0;
    unfit := 0;
    if v_free <> '{}' then
        v_new := array(select i.id from unnest(v_free) i (id)
                        where (select true from orchestrator.live q where q.task_id = i.id) is null);
        perform orchestrator.reconcile_each(v_free);
        update orchestrator.live q
           set attempt = t.published / 2, shown = t.published, nonce = l.nonce, claim_no = 0,
               claimed_at = coalesce(public.internal_readable_time(t.generation_started_at), v_now),
               lease_expires_at = v_now + l.lease
          from public.tasks t join orchestrator.launches l on l.worker_id = t.worker_id and l.nonce is not null
         where q.task_id = any (v_new) and t.id = q.task_id and q.state = 'running' and q.nonce is null
           and t.published > 0 and t.published % 2 = 0 and q.attempt = t.published / 2 + 1
           and (select true from orchestrator.attempts a
                 where a.task_id = t.id and a.attempt = t.published / 2) is null;
        unfit := (select count(*) from unnest(v_new) i (id)
                   where (select true from orchestrator.live q where q.task_id = i.id) is null
                     and (select true from orchestrator.publications p where p.task_id = i.id) is null);
        entered := cardinality(v_free) - unfit;
    end if;
end
$$;

-- The next pages of a table that an audit reads. From the end it goes on at the beginning.
create or replace function orchestrator.next_audit(p_rel text, p_blocks int, out from_tid tid, out to_tid tid)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    v_now timestamptz := public.internal_now();
    v_blocks bigint := pg_relation_size(p_rel::regclass) / current_setting('block_size')::bigint;
    v_audit orchestrator.audits;
    c_least constant int := 16;
    c_calls constant int := 1800;
begin
    insert into orchestrator.audits (rel, next_block, began_at) values (p_rel, 0, v_now) on conflict do nothing;
    select * into v_audit from orchestrator.audits a where a.rel = p_rel for update;
    p_blocks := coalesce(p_blocks, greatest(c_least, v_blocks / c_calls));
    from_tid := format('(%s,0)', v_audit.next_block)::tid;
    to_tid := format('(%s,0)', v_audit.next_block + p_blocks)::tid;
    if v_audit.next_block + p_blocks >= v_blocks then
        update orchestrator.audits a set next_block = 0, began_at = v_now, ended_at = v_now where a.rel = p_rel;
    else
        update orchestrator.audits a set next_block = v_audit.next_block + p_blocks where a.rel = p_rel;
    end if;
end
$$;

-- Looks at the next so many limits that tasks wait for, and admits tasks where slots are free. Two open transactions
-- may not see each other: one frees the last slot and sees no waiting task, and in the other a task begins to wait.
create or replace function orchestrator.audit_limits(p_scope text, p_most int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set enable_seqscan = off set enable_sort = off
set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    v_rel constant text := 'limits of a ' || p_scope;
    v_after text;
    v_names text[];
begin
    insert into orchestrator.audits (rel, next_block, began_at) values (v_rel, 0, public.internal_now())
    on conflict do nothing;
    select coalesce(a.next_name, '') into v_after from orchestrator.audits a where a.rel = v_rel for update;
    for v_n in 1..p_most loop
        if p_scope = 'key' then
            v_after := (select q.concurrency_key from orchestrator.live q
                         where q.state = 'waits_for_key' and q.concurrency_key > v_after
                         order by q.concurrency_key limit 1);
        else
            v_after := (select q.task_type from orchestrator.live q
                         where q.state = 'waits_for_type' and q.task_type > v_after order by q.task_type limit 1);
        end if;
        exit when v_after is null;
        v_names := v_names || v_after;
    end loop;
    update orchestrator.audits a set next_name = v_after where a.rel = v_rel and a.next_name is distinct from v_after;
    select array_agg(n.name) into v_names
      from unnest(v_names, orchestrator.free_slots(p_scope, v_names)) n (name, room) where n.room > 0 or n.room is null;
    if v_names is not null then
        perform orchestrator.admit(p_scope, v_names, null);
    end if;
end
$$;
