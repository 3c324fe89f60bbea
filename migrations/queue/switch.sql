-- Takes the triggers, checks and indexes of today's queue away, before the files of this directory are applied.
do $$
declare
    r record;
begin
    for r in select g.tgname from pg_trigger g where g.tgrelid = 'public.tasks'::regclass and not g.tgisinternal loop
        execute format('drop trigger %I on public.tasks', r.tgname);
    end loop;
    for r in select c.conname from pg_constraint c where c.conrelid = 'public.tasks'::regclass and c.contype = 'c' loop
        execute format('alter table public.tasks drop constraint %I', r.conname);
    end loop;
    for r in select i.indexrelid::regclass as name from pg_index i
              where i.indrelid = 'public.tasks'::regclass and not i.indisprimary
                and i.indexrelid <> 'public.tasks_recent'::regclass loop
        execute format('drop index %s', r.name);
    end loop;
    for r in select p.oid::regprocedure as name from pg_proc p
              where p.pronamespace = 'public'::regnamespace
                and p.proname in ('worker_claim', 'worker_complete', 'worker_complete_output', 'worker_complete_many',
                                  'worker_complete_and_claim', 'worker_fail', 'worker_release', 'worker_heartbeat') loop
        execute format('drop function %s', r.name);
    end loop;
end
$$;
alter table public.tasks alter column pool drop not null, alter column max_attempts drop not null;
drop table public.task_attempts cascade;
