-- Tasks that wait for each other end also if one of them needs a Complete task that was deleted: its result is kept, so that
-- it is nothing that they still wait for.

create or replace function public.internal_stuck(p_ids uuid[]) returns uuid[]
language sql stable security definer set search_path = ''
set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off set jit = off as $$
    with recursive edges (id, needs) as materialized (
        select t.id, n.id from public.tasks t cross join unnest(t.depends_on) n (id)
         where t.id = any (p_ids) and t.blocked and t.status = 'Queued'
    ), open (id, needs) as materialized (  -- without those that are complete
        select e.id, e.needs from edges e
          left join public.tasks d on d.id = e.needs
          left join public.task_results r on r.id = e.needs
         where d.status is distinct from 'Complete' and (d.id is not null or r.id is null)
    ), free (id) as (
        select o.id from open o left join (select distinct w.id from open w) w on w.id = o.needs where w.id is null
        union
        select o.id from free f join open o on o.needs = f.id
    )
    select array(select o.id from open o except select f.id from free f)
$$;
