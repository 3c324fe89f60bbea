-- The version of this schema and its functions. A program compares them with what it needs.

-- `schema_version` is '<last table file>-<release that installed the functions>-<digest of all files>'.
-- orchestrator/migrate compares it with the files of the program.
create or replace function public.fleet_describe() returns jsonb
language plpgsql stable security definer set search_path = pg_catalog, pg_temp set jit = off as $$
#variable_conflict use_variable
declare
    v_version text := (
        select max(m.version) filter (where m.version ~ E'^\\d{4}$') || '-' ||
               (array_agg(m.release order by m.applied_at desc) filter (where m.release is not null))[1] || '-' ||
               left(encode(sha256(convert_to(string_agg(m.version || ' ' || m.checksum, E'\n'
                                                        order by m.version collate "C"), 'UTF8')), 'hex'), 8)
          from public.schema_migrations m where m.version !~ E'^\\d{14}$');
begin
    return jsonb_build_object(
        'schema_version', v_version,
        'functions', (
            select jsonb_object_agg(p.proname, to_jsonb(coalesce(p.proargnames, '{}'::text[])))
              from pg_catalog.pg_proc p
             where p.pronamespace = 'public'::regnamespace and p.prosecdef
               and p.proname ~ '^(task|worker|fleet)_' and p.prorettype in ('jsonb'::regtype, 'json'::regtype)));
end
$$;
