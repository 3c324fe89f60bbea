-- The current triggers. CREATE OR REPLACE takes a lock that blocks writers of the table but no readers, until the
-- transaction that reapplies the functions ends. A removed trigger needs a `drop trigger if exists` here.

-- The first and the last trigger of each statement, by their names; see functions/base/users_path.sql.
create or replace trigger "!enter_users_path" before insert or update or delete or truncate on public.workers
    for each statement execute function public.internal_enter_path();
create or replace trigger "~leave_users_path" after insert or update or delete or truncate on public.workers
    for each statement execute function public.internal_leave_path();
create or replace trigger workers_changing before insert or update on public.workers
    for each row execute function public.internal_worker_changing();
create or replace trigger workers_added after insert on public.workers
    for each row execute function public.internal_worker_changed();
create or replace trigger workers_changed after update on public.workers
    for each row when (old.status is distinct from new.status or old.stage is distinct from new.stage
                       or old.drain_requested_at is distinct from new.drain_requested_at
                       or old.stop_requested_at is distinct from new.stop_requested_at
                       or old.ssh_host is distinct from new.ssh_host or old.ssh_port is distinct from new.ssh_port)
    execute function public.internal_worker_changed();
create or replace trigger workers_ended_bringup before update on public.workers
    for each row when (old.status = 'spawning' and new.status <> 'spawning')
    execute function public.internal_bringup_ended();
create or replace trigger workers_billing before update of status on public.workers
    for each row execute function public.internal_worker_billing();
create or replace trigger workers_sick after update of exit_cause on public.workers
    for each row when (new.exit_cause in ('worker_sick', 'gpu_fault', 'host_fault')
                       and old.exit_cause is distinct from new.exit_cause)
    execute function public.internal_worker_sick();
create or replace trigger worker_events_final before update on public.worker_events
    for each statement execute function public.internal_events_are_final();
create or replace trigger cluster_events_final before update on public.cluster_events
    for each statement execute function public.internal_events_are_final();
create or replace trigger costs_booking before insert on public.costs
    for each row execute function public.internal_cost_booking();

create or replace trigger schedules_changed
    before update of cron, every_s, timezone, paused_at, created_at, next_at on public.schedules
    for each row when ((old.cron, old.every_s, old.timezone, old.paused_at, old.created_at)
                       is distinct from (new.cron, new.every_s, new.timezone, new.paused_at, new.created_at)
                       or old.problem is not null and old.next_at is distinct from new.next_at)
    execute function public.internal_schedule_changed();

create or replace trigger workers_launched after insert or update on public.workers
    for each row execute function orchestrator.workers_changed();
create or replace trigger workers_removed after delete or truncate on public.workers
    for each statement execute function orchestrator.workers_removed();

create or replace trigger cluster_apps_new before insert on public.cluster_apps
    for each row execute function public.internal_cluster_changing('cluster');
create or replace trigger cluster_apps_added after insert on public.cluster_apps
    for each row execute function public.internal_cluster_changed('cluster');
create or replace trigger cluster_apps_changing before update on public.cluster_apps
    for each row when (old.status is distinct from new.status)
    execute function public.internal_cluster_changing('cluster');
create or replace trigger cluster_apps_changed after update on public.cluster_apps
    for each row when (old.status is distinct from new.status)
    execute function public.internal_cluster_changed('cluster');
create or replace trigger cluster_members_new before insert on public.cluster_members
    for each row execute function public.internal_cluster_changing('member');
create or replace trigger cluster_members_added after insert on public.cluster_members
    for each row execute function public.internal_cluster_changed('member');
create or replace trigger cluster_members_changing before update on public.cluster_members
    for each row when (old.status is distinct from new.status)
    execute function public.internal_cluster_changing('member');
create or replace trigger cluster_members_changed after update on public.cluster_members
    for each row when (old.status is distinct from new.status)
    execute function public.internal_cluster_changed('member');
create or replace trigger member_operations_new before insert on public.member_operations
    for each row execute function public.internal_cluster_changing('operation');
create or replace trigger member_operations_added after insert on public.member_operations
    for each row execute function public.internal_cluster_changed('operation');
create or replace trigger member_operations_changing before update on public.member_operations
    for each row when (old.status is distinct from new.status)
    execute function public.internal_cluster_changing('operation');
create or replace trigger member_operations_changed after update on public.member_operations
    for each row when (old.status is distinct from new.status)
    execute function public.internal_cluster_changed('operation');
create or replace trigger node_tasks_new before insert on public.node_tasks
    for each row execute function public.internal_cluster_changing('node_task');
create or replace trigger node_tasks_added after insert on public.node_tasks
    for each row execute function public.internal_cluster_changed('node_task');
create or replace trigger node_tasks_changing before update on public.node_tasks
    for each row when (old.status is distinct from new.status)
    execute function public.internal_cluster_changing('node_task');
create or replace trigger node_tasks_changed after update on public.node_tasks
    for each row when (old.status is distinct from new.status)
    execute function public.internal_cluster_changed('node_task');

-- A project may have a table `tasks` with another type of a column, such as json. With the triggers, each of its inserts
-- would fail.
do $$
declare
    v_problem record;
begin
    select * into v_problem from public.internal_column_problems(false) order by 1 limit 1;
    if found then
        raise exception '%', v_problem.what using errcode = 'OR007', detail = v_problem.why, hint = v_problem.fix;
    end if;
end
$$;

-- The table that users write to comes last, so that it is locked for the shortest time. First the triggers and constraints of
-- the queue that lived in its rows go.
do $$
declare
    v_name name;
begin
    if not exists (select from pg_catalog.pg_trigger g
                    where g.tgrelid = 'public.tasks'::regclass and g.tgname = 'tasks_changing') then
        return;
    end if;
    foreach v_name in array array[
        '!enter_users_path', '~leave_users_path', 'failure_code_checked', 'tasks_routed', 'tasks_bounded', 'tasks_sized',
        'tasks_changing', 'tasks_added', 'tasks_changed', 'tasks_removed', 'tasks_removed_all', 'tasks_counted_added',
        'tasks_counted_removed', 'tasks_counted_truncated']
    loop
        execute format('drop trigger if exists %I on public.tasks', v_name);
    end loop;
    alter table public.tasks
        drop constraint if exists tasks_filled,
        drop constraint if exists tasks_pool_named,
        drop constraint if exists tasks_attempts_counted;
    drop trigger if exists tasks_unsettled_at_commit on public.tasks_unsettled;
end
$$;

-- Projects may still name what a task needs in `dependant_on`: depends_on follows it.
do $$
declare
    v_type constant text := (
        select format_type(a.atttypid, null) from pg_catalog.pg_attribute a
         where a.attrelid = 'public.tasks'::regclass and a.attname = 'dependant_on' and not a.attisdropped);
begin
    if v_type in ('uuid', 'uuid[]') then
        execute format(
            'create or replace function public.internal_dependant_on() returns trigger
             language plpgsql security definer set search_path = pg_catalog, pg_temp set jit = off as $f$
             begin
                 if tg_op = ''INSERT'' then
                     if new.depends_on = ''{}'' and new.dependant_on is not null then
                         new.depends_on := %s;
                     end if;
                 elsif new.dependant_on is distinct from old.dependant_on
                       and new.depends_on is not distinct from old.depends_on then
                     new.depends_on := coalesce(%s, ''{}'');
                 end if;
                 return new;
             end $f$',
            case v_type when 'uuid' then 'array[new.dependant_on]' else 'new.dependant_on' end,
            case v_type when 'uuid' then 'array_remove(array[new.dependant_on], null)' else 'new.dependant_on' end);
        create or replace trigger tasks_dependant_on before insert or update on public.tasks
            for each row execute function public.internal_dependant_on();
    end if;
end
$$;
create or replace trigger tasks_inserted after insert on public.tasks referencing new table as added
    for each statement execute function orchestrator.tasks_inserted();
create or replace trigger tasks_updated after update on public.tasks referencing old table as was new table as changed
    for each statement execute function orchestrator.tasks_updated();
create or replace trigger tasks_deleted after delete on public.tasks referencing old table as removed
    for each statement execute function orchestrator.tasks_deleted();
create or replace trigger tasks_truncated after truncate on public.tasks
    for each statement execute function orchestrator.tasks_truncated();

select orchestrator.begin_adoption();
