-- The schema's version is known too where `supabase db push` applied the migrations: from its history.

create or replace function public.fleet_describe() returns jsonb
language plpgsql stable security definer set search_path = '' as $$
declare
    v_version text := (select max(m.version) from public.schema_migrations m);
begin
    if v_version is null and to_regclass('supabase_migrations.schema_migrations') is not null then
        execute 'select max(version::text) from supabase_migrations.schema_migrations' into v_version;
    end if;
    return jsonb_build_object(
        'schema_version', v_version,
        'functions', (
            select jsonb_object_agg(p.proname, to_jsonb(coalesce(p.proargnames, '{}'::text[])))
              from pg_catalog.pg_proc p
             where p.pronamespace = 'public'::regnamespace and p.prosecdef
               and p.proname ~ '^(task|worker|fleet)_' and p.prorettype = 'jsonb'::regtype));
end
$$;

notify pgrst, 'reload schema';
