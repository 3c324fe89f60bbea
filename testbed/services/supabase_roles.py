"""What a new Supabase project has in its Postgres before anything of ours: roles, their limits, default privileges.

Source: the initial schema and the later migrations of Supabase's Postgres image.
"""

import psycopg
from psycopg import sql

ROLES = """
do $$
declare
    v_role text;
begin
    foreach v_role in array array['anon nologin noinherit', 'authenticated nologin noinherit',
                                  'service_role nologin noinherit bypassrls', 'authenticator login noinherit'] loop
        -- Roles belong to the whole server. Before version 16 only a superuser may even try to make one with bypassrls.
        continue when exists (select from pg_catalog.pg_roles where rolname = split_part(v_role, ' ', 1));
        begin
            execute 'create role ' || v_role;
        exception when duplicate_object or unique_violation then
            null;  -- another session has just made it
        end;
    end loop;
end
$$;
grant anon, authenticated, service_role to authenticator;
alter role anon set statement_timeout = '3s';
alter role authenticated set statement_timeout = '8s';
alter role authenticator set statement_timeout = '8s';
alter role authenticator set lock_timeout = '8s';
"""
# Every table and function that the owner makes in `public` is open to these roles unless a migration closes it.
PRIVILEGES = """
grant usage on schema public to {owner}, anon, authenticated, service_role;
alter default privileges for role {owner} in schema public grant all on tables to anon, authenticated, service_role;
alter default privileges for role {owner} in schema public grant all on functions to anon, authenticated, service_role;
alter default privileges for role {owner} in schema public grant all on sequences to anon, authenticated, service_role;
"""
DEMOTE = """
alter role {owner} rename to {bootstrap};
create role {owner} login createdb createrole replication bypassrls;
grant anon, authenticated, service_role, authenticator to {owner} with admin option;
alter database {database} owner to {owner};
"""
# What Supabase's auth service has in every project's database, as far as policies use it.
AUTH = """
create schema if not exists auth;
grant usage on schema auth to anon, authenticated, service_role;
create or replace function auth.uid() returns uuid language sql stable as $$
    select nullif(current_setting('request.jwt.claims', true)::jsonb ->> 'sub', '')::uuid
$$;
"""
ADMIN = "supabase_admin"
BOOTSTRAP = "bootstrap"  # the role that initdb made: it can neither be dropped nor lose its power


async def create_roles(url: str) -> None:
    """Give the server the roles of a Supabase project, and the database its default privileges. `url`: a superuser's.

    Migrations grant to these roles if they exist: call this first.
    """
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(ROLES.encode())
        await connection.execute(sql.SQL(PRIVILEGES).format(owner=sql.Identifier(connection.info.user)))


async def become_project(url: str) -> None:
    """Turn a new server into a project's: as `create_roles`, and the URL's superuser is one no more.

    On Supabase `postgres` may create roles and databases, and is no superuser; `supabase_admin` is.
    """
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(ROLES.encode())
        await connection.execute(sql.SQL("create role {} login superuser").format(sql.Identifier(ADMIN)))
        owner, database = sql.Identifier(connection.info.user), sql.Identifier(connection.info.dbname)
    async with await psycopg.AsyncConnection.connect(url, user=ADMIN, autocommit=True) as connection:
        statement = sql.SQL(DEMOTE).format(owner=owner, bootstrap=sql.Identifier(BOOTSTRAP), database=database)
        await connection.execute(statement)
        await connection.execute(sql.SQL(PRIVILEGES).format(owner=owner))
