"""Every table and function in the catalog is closed to all roles but those that need it."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from tests.db.privilege.rig import ENDPOINTS, Actors, Endpoints

OUTSIDERS = ("anon", "authenticated", "gpu_worker")
CALLERS = ("nobody", "authenticated", "worker")  # who comes with the rights of these
CONCURRENT = 16
RELATIONS = """
    select c.relname, c.relkind from pg_class c
     where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S') order by 1
"""
FUNCTIONS = """
    select p.proname, p.proargnames[1:p.pronargs], p.prorettype = 'trigger'::regtype from pg_proc p
     where p.pronamespace = 'public'::regnamespace order by 1
"""
OPEN_TO_POD = "worker_"
WRITES = ("POST", "PATCH", "DELETE")
UNWRITABLE = 500  # PostgREST's status for 55000, "cannot delete from view"
COLUMN, SEQUENCE = "select, insert, update, references", "usage, select, update"
Owner = psycopg.AsyncConnection[Any]


async def _rows(owner: Owner, query: str, *values: Any) -> list[Any]:
    return list(await (await owner.execute(query.encode(), values)).fetchall())


# They read the queue's own tables, to which no other role has a right.
OF_THE_OWNER = ("orchestrator_status", "task_attempts", "task_queue_analysis")


async def test_every_table_has_row_level_security_and_no_policy(owner: Owner) -> None:
    """Tables are for their owner and service_role alone; a view reads with its caller's rights or not at all."""
    assert await _rows(owner, "select polname from pg_policy") == []
    query = """
        select relname from pg_class
         where relnamespace = 'public'::regnamespace
           and (relkind in ('r', 'p') and not relrowsecurity
                or relkind in ('v', 'm', 'f')
                   and not coalesce(reloptions, '{}') && array['security_invoker=true', 'security_invoker=on'])
    """
    assert sorted(await _rows(owner, query)) == [(name,) for name in OF_THE_OWNER]


@pytest.mark.parametrize("role", OUTSIDERS)
async def test_no_outsider_has_any_right_to_any_relation(owner: Owner, role: str) -> None:
    """Not to read, write, empty or refer to a table or one of its columns, not to a sequence, not to make anything."""
    relations = await _rows(owner, RELATIONS)
    assert len(relations) > 20
    for name, kind in relations:
        kinds = (
            "usage, select, update" if kind == "S" else "select, insert, update, delete, truncate, references, trigger"
        )
        test = "sequence" if kind == "S" else "table"
        query = f"select has_{test}_privilege(%s, format('public.%%I', %s::text), %s)"
        assert await _rows(owner, query, role, name, kinds) == [(False,)], name
        if kind != "S":
            query = "select has_any_column_privilege(%s, format('public.%%I', %s::text), %s)"
            assert await _rows(owner, query, role, name, COLUMN) == [(False,)], name
    assert await _rows(owner, "select has_schema_privilege(%s, 'public', 'create')", role) == [(False,)]


@pytest.mark.parametrize("role", OUTSIDERS)
async def test_only_a_pod_may_call_anything_and_only_its_own(owner: Owner, role: str) -> None:
    """By the catalog: worker_* for gpu_worker, nothing for the others; helpers for nobody."""
    query = """
        select proname from pg_proc
         where pronamespace = 'public'::regnamespace and has_function_privilege(%s, oid, 'execute')
    """
    callable_ = {name for (name,) in await _rows(owner, query, role)}
    own = {name for name, *_ in await _rows(owner, FUNCTIONS) if name.startswith(OPEN_TO_POD)}
    assert callable_ == (own if role == "gpu_worker" else set())
    assert own


async def test_every_function_has_a_search_path_of_its_own(owner: Owner) -> None:
    """What runs with the owner's rights must not find an outsider's table, type or operator.

    An empty path would look into the session's temporary schema first.
    """
    query = """
        select proname from pg_proc where pronamespace = 'public'::regnamespace and prosecdef
           and not coalesce(proconfig, '{}') @> array['search_path=pg_catalog, pg_temp']
           and proname <> 'internal_users_path'
    """  # that one says which path the users' own statements have
    assert await _rows(owner, query) == []


TRAPS = """
    create function pg_temp.spring(pg_catalog.text) returns pg_catalog.bool language plpgsql as $$
    begin
        if current_user <> session_user then
            raise exception 'sprung with the rights of %', current_user;
        end if;
        return true;
    end $$;
    do $$
    declare v_type text;
    begin
        foreach v_type in array array['uuid', 'text', 'int4', 'int8', 'bool', 'numeric', 'json', 'jsonb'] loop
            begin
                execute format('create domain pg_temp.%1$I as pg_catalog.%1$I'
                               ' check (pg_temp.spring(value::pg_catalog.text))', v_type);
            exception when others then null;
            end;
        end loop;
    end $$
"""


async def test_the_types_of_a_session_are_not_those_of_our_functions(owner: Owner) -> None:
    """A role that may insert tasks makes types of the names that our triggers use; none of them is used."""
    await owner.execute("create role mallory login; grant usage on schema public to mallory")
    await owner.execute("grant select, insert, update, delete on tasks to mallory")
    await owner.execute("create policy mallory on tasks to mallory using (true) with check (true)")
    try:
        async with await psycopg.AsyncConnection.connect(
            host=owner.info.host, port=owner.info.port, dbname=owner.info.dbname, user="mallory", autocommit=True
        ) as mallory:
            await mallory.execute(TRAPS)
            await mallory.execute(
                "insert into public.tasks (task_type, depends_on) values ('t', array[gen_random_uuid()])"
            )
            await mallory.execute("update public.tasks set priority = 3")
            await mallory.execute("update public.tasks set status = 'Failed'")
            await mallory.execute("delete from public.tasks")
    finally:
        await owner.execute("drop policy mallory on tasks; drop owned by mallory; drop role mallory")


async def test_a_pod_cannot_become_anybody_else(owner: Owner) -> None:
    """gpu_worker is a member of no role, owns nothing, cannot log in, and has no attribute."""
    query = """
        select rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication, rolbypassrls
          from pg_roles where rolname = 'gpu_worker'
    """
    assert await _rows(owner, query) == [(False, True, False, False, False, False, False)]
    assert await _rows(owner, "select from pg_auth_members where member = 'gpu_worker'::regrole") == []
    assert await _rows(owner, "select from pg_class where relowner = 'gpu_worker'::regrole") == []
    query = """
        select r.rolname from pg_auth_members m join pg_roles r on r.oid = m.member
         where m.roleid = 'gpu_worker'::regrole and r.rolname in ('anon', 'authenticated', 'gpu_worker')
    """
    assert await _rows(owner, query) == []


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("who", CALLERS)
async def test_no_function_but_a_pods_own_answers(
    owner: Owner, endpoints: Endpoints, actors: Actors, who: str, endpoint: str
) -> None:
    """Each tried with all its arguments, so that nothing but the permission can refuse; the gateway knows none."""
    calls = [
        (f"/rest/v1/rpc/{name}", dict.fromkeys(args or ()))
        for name, args, _ in await _rows(owner, FUNCTIONS)
        if not (who == "worker" and name.startswith(OPEN_TO_POD))
    ]
    assert len(calls) > 50
    # PostgREST does not show trigger functions.
    allowed = {401, 404} if endpoint == "gateway" else {401, 404} if who == "nobody" else {403, 404}
    replies = await _all(endpoints, actors, endpoint, who, [("POST", path, args) for path, args in calls])
    assert {path: status for path, status in replies if status not in allowed} == {}
    if endpoint == "postgrest":
        assert sum(status != 404 for _, status in replies) > 40


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("who", CALLERS)
async def test_no_table_answers(owner: Owner, endpoints: Endpoints, actors: Actors, who: str, endpoint: str) -> None:
    """Read, insert, change, delete: each of every table. That a view cannot be written comes before who may."""
    relations = {name: kind for name, kind in await _rows(owner, RELATIONS) if kind != "S"}
    calls: list[tuple[str, str, Any]] = []
    for name in relations:
        path = f"/rest/v1/{name}"
        calls += [("GET", path, None), ("POST", path, {}), ("PATCH", path, {}), ("DELETE", path, None)]
    refused = {404} if endpoint == "gateway" else {401} if who == "nobody" else {403}
    views = {f"{verb} /rest/v1/{name}" for name, kind in relations.items() if kind == "v" for verb in WRITES}
    replies = await _all(endpoints, actors, endpoint, who, calls)
    unwritable = {path for path, status in replies if path in views and status == UNWRITABLE}
    assert {path: status for path, status in replies if status not in refused and path not in unwritable} == {}


async def _all(
    endpoints: Endpoints, actors: Actors, endpoint: str, who: str, calls: Sequence[tuple[str, str, Any]]
) -> list[tuple[str, int]]:
    gate, numbers = asyncio.Semaphore(CONCURRENT), itertools.count()

    async def one(method: str, path: str, body: Any) -> tuple[str, int]:
        headers = {**actors.credentials(who), "X-Forwarded-For": f"192.0.2.{next(numbers) % 256}"}
        async with gate:
            reply = await endpoints.clients[endpoint].request(method, path, json=body, headers=headers)
        assert actors.secret not in reply.text
        return f"{method} {path}", reply.status_code

    return await asyncio.gather(*(one(*call) for call in calls))
