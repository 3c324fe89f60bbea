-- A task whose dependency had failed before is failed when it is submitted, and so is one that waits for it in the same
-- batch: whoever waits is marked as blocked first, because the failure of a dependency looks for the blocked only. Before,
-- such a task waited for ever.
create or replace function public.internal_settle(p_ids uuid[]) returns void
language plpgsql security definer set search_path = '' as $$
begin
    update public.tasks t
       set blocked = not t.blocked
     where t.id = any (p_ids) and t.status = 'Queued'
       and t.blocked is distinct from exists (
               select from unnest(t.depends_on) n (id) left join public.tasks d on d.id = n.id
                where d.status is distinct from 'Complete');
    update public.tasks t
       set status = 'Failed', blocked = false, failure_code = 'DEPENDENCY_FAILED',
           error_message = (
               select left(concat_ws(': ',
                          format('Dependency %s (%s) ended as %s', d.id, d.task_type, d.status),
                          nullif(d.failure_code, 'DEPENDENCY_FAILED'),
                          case when d.failure_code = 'DEPENDENCY_FAILED'
                               then regexp_replace(d.error_message,
                                                   '^.*(Dependency [0-9a-f-]{36} \([^)]*\) ended as )', '\1')
                               else d.error_message end), 4000)
                 from public.tasks d
                where d.id = any (t.depends_on) and d.status in ('Failed', 'Cancelled')
                order by array_position(t.depends_on, d.id) limit 1)
     where t.id = any (p_ids) and t.status = 'Queued'
       and exists (select from public.tasks d where d.id = any (t.depends_on) and d.status in ('Failed', 'Cancelled'));
end
$$;
