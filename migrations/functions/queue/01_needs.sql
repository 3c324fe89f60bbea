-- What a task needs, for every reader of depends_on.
--
-- A project's own column `dependant_on` names one earlier task, or several. Its rows from before this schema have NULL
-- in depends_on, and none of them is updated. The function has no settings and not the rights of its owner, so that it
-- costs nothing in a query.
do $$
declare
    v_type constant text := (
        select format_type(a.atttypid, null) from pg_catalog.pg_attribute a
         where a.attrelid = 'public.tasks'::regclass and a.attname = 'dependant_on' and not a.attisdropped);
begin
    execute format(
        'create or replace function orchestrator.needs(p_task public.tasks) returns uuid[] language sql stable as $f$
             select coalesce((needs.p_task).depends_on, %s) $f$',
        case v_type when 'uuid' then 'array_remove(array[(needs.p_task).dependant_on], null)'
                    when 'uuid[]' then '(needs.p_task).dependant_on, ''{}''' else '''{}''' end);
end
$$;
