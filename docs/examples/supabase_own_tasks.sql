-- Users of a Supabase project submit tasks and see their own, and nothing else. docs/supabase.md explains it.
--
-- A template: copy it into your own migrations, after those of the orchestrator, and change the constants. The
-- functions and the policy are yours: `orchestrator migrate` changes rights of its own tables and functions only.

begin;

-- What a user sees: own rows, these columns. `select=*` is refused; name the columns.
revoke all on public.tasks from anon, authenticated;
grant select (id, task_type, params, status, labels, created_at, attempts, progress, generation_started_at,
              generation_processed_at, result_data, failure_code, error_message, output_location, tenant)
    on public.tasks to authenticated;
alter table public.tasks enable row level security;
drop policy if exists own_tasks on public.tasks;
create policy own_tasks on public.tasks for select to authenticated using (tenant = (select auth.uid())::text);
create index if not exists tasks_own on public.tasks (tenant, created_at desc);
create index if not exists tasks_own_open on public.tasks (tenant) where status in ('Queued', 'In Progress');

-- Submit a task for the user who calls; its id. A second call with the same key, while the first task is open, returns
-- the first one. A user cannot choose pool, priority, webhook or id: those of others could be meant.
create or replace function public.task_submit_own(
    p_task_type text, p_params jsonb default '{}', p_labels jsonb default null, p_key text default null,
    p_depends_on uuid[] default '{}'
) returns uuid
language plpgsql security definer set search_path = '' as $$
declare
    c_types constant text[] := array['travel_segment', 'travel_stitch'];  -- that users may submit
    c_open constant int := 20;  -- tasks of one user that wait or run
    c_day constant int := 200;  -- tasks that one user creates in 24 hours: those that are cancelled count too
    c_params_bytes constant int := 65536;
    c_key_chars constant int := 200;
    v_user constant text := auth.uid()::text;
    v_key constant text := v_user || ' ' || p_key;  -- the keys of two users never meet
begin
    if v_user is null then
        raise exception 'nobody is signed in' using errcode = 'PT401', hint = 'sign in first';
    elsif p_task_type is null or p_task_type <> all (c_types) then
        raise exception 'this task type is not open to users'
            using errcode = 'PT403', hint = array_to_string(c_types, ', ');
    elsif octet_length(p_params::text) > c_params_bytes then
        raise exception 'the params are too large'
            using errcode = 'PT413', hint = format('at most %s bytes', c_params_bytes);
    elsif length(p_key) not between 1 and c_key_chars then
        raise exception 'the key is not valid'
            using errcode = 'PT400', hint = format('1 to %s characters', c_key_chars);
    elsif cardinality(p_depends_on) > c_open then
        raise exception 'too many dependencies' using errcode = 'PT400', hint = format('at most %s', c_open);
    end if;

    -- One submission of a user at a time: several at once could pass the limit together.
    perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('task_submit_own ' || v_user, 0));
    if exists (select from unnest(p_depends_on) d
                where not exists (select from public.tasks t where t.id = d and t.tenant = v_user)) then
        -- A task gets the results of those that it depends on.
        raise exception 'a task depends on one that is not yours' using errcode = 'PT404', hint = 'name own tasks';
    elsif (select count(*) from public.tasks t
            where t.tenant = v_user and t.status in ('Queued', 'In Progress')) >= c_open
          and not exists (select from public.tasks t
                           where t.tenant = v_user and t.dedupe_key = v_key
                             and t.status in ('Queued', 'In Progress')) then
        raise exception 'too many open tasks'
            using errcode = 'PT429', hint = format('wait until one of your %s tasks ends', c_open);
    elsif (select count(*) from (select from public.tasks t
                                  where t.tenant = v_user and t.created_at > now() - interval '24 hours'
                                  limit c_day) recent) >= c_day
          and not exists (select from public.tasks t
                           where t.tenant = v_user and t.dedupe_key = v_key
                             and t.status in ('Queued', 'In Progress')) then
        raise exception 'too many tasks in 24 hours'
            using errcode = 'PT429', hint = format('you may create %s', c_day);
    end if;
    return (public.task_submit(jsonb_build_array(jsonb_build_object(
        'task_type', p_task_type, 'params', p_params, 'labels', p_labels, 'depends_on', to_jsonb(p_depends_on),
        'tenant', v_user, 'dedupe_key', v_key)))->'tasks'->0->>'id')::uuid;
end
$$;

-- Cancel an own task: 'cancelled', 'cancelling' (its worker is told), 'already' (it has ended), or 'not_found'.
create or replace function public.task_cancel_own(p_id uuid) returns text
language plpgsql security definer set search_path = '' as $$
begin
    if not exists (select from public.tasks t where t.id = p_id and t.tenant = auth.uid()::text) then
        return 'not_found';
    end if;
    return public.task_cancel(p_id)->>'outcome';
end
$$;

revoke all on function public.task_submit_own(text, jsonb, jsonb, text, uuid[]) from public, anon;
revoke all on function public.task_cancel_own(uuid) from public, anon;
grant execute on function public.task_submit_own(text, jsonb, jsonb, text, uuid[]) to authenticated;
grant execute on function public.task_cancel_own(uuid) to authenticated;

-- Progress over Realtime, which applies the policy to each subscriber (not tested by the orchestrator's tests):
-- alter publication supabase_realtime add table public.tasks;

commit;
