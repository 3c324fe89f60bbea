"""The rights that a migration needs, checked before its first change; the call of a pod, tried after its last one."""

import psycopg
from psycopg import sql

from orchestrator.migrate.ledger import Connection
from orchestrator.ports import MissingRight

POD = "gpu_worker"
DOCTOR = "python -m orchestrator doctor database"
AGAIN = "then: python -m orchestrator migrate"
# A pod's call for a worker that does not exist: this answer shows that the function has run.
NO_SUCH_WORKER = "OR005"
PODS_CALL = """select set_config('request.jwt.claims', '{"sub": "none"}', true),
    public.worker_heartbeat('none', 'none', '[]', null, null)"""
# What this login may not do, and what an administrator runs: for the schema, for the user's tables and the type of
# their status, and for everything that an earlier migration made.
LACKING = """
select 'may not create tables and functions in the schema public',
       format('grant create on schema public to %I', current_user)
 where not has_schema_privilege('public', 'create')
union all
select 'may not write: default_transaction_read_only is on for it',
       format('alter role %I in database %I set default_transaction_read_only = off', current_user, current_database())
 where current_setting('default_transaction_read_only')::boolean
union all
select format('fires no triggers: session_replication_role is %s for it', current_setting('session_replication_role')),
       format('alter role %I in database %I set session_replication_role = origin', current_user, current_database())
 where current_setting('session_replication_role') = 'replica'
union all
select format('may not change the table %s: it belongs to %s', c.relname, pg_get_userbyid(c.relowner)),
       format('alter table public.%I owner to %I', c.relname, current_user)
  from pg_catalog.pg_class c
 where c.relnamespace = 'public'::regnamespace and c.relname = any (array['tasks', 'workers', 'schema_migrations'])
   and not pg_has_role(c.relowner, 'usage')
union all
select format('may not change the type %s of tasks.status: it belongs to %s', t.typname, pg_get_userbyid(t.typowner)),
       format('alter type %s owner to %I', t.oid::regtype, current_user)
  from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid and t.typtype = 'e'
 where a.attrelid = to_regclass('public.tasks') and a.attname = 'status' and not pg_has_role(t.typowner, 'usage')
"""
MAKER = """select pg_get_userbyid(c.relowner) from pg_catalog.pg_class c
 where c.oid = to_regclass('public.schema_migrations') and not pg_has_role(c.relowner, 'usage')"""
ROLE = """select to_regrole(%s) is not null, r.rolcreaterole or r.rolsuper
  from pg_catalog.pg_roles r where r.rolname = current_user"""
# Who else calls in the role of a pod: PostgREST's login, on Supabase.
LOGINS = """select r.rolname from pg_catalog.pg_roles r
 where (r.rolname = current_user or r.rolname = 'authenticator') and to_regrole(%s) is not null
   and not pg_has_role(r.rolname, to_regrole(%s), 'member') order by r.rolname"""


async def check_rights(connection: Connection) -> None:
    """Raise MissingRight if this login may not make the changes of a migration. Nothing has been changed then."""
    lacking = await (await connection.execute(LACKING)).fetchall()
    if not lacking:
        return
    made_by = await (await connection.execute(MAKER)).fetchone()
    other = f"use the login {made_by[0]}, which has migrated it, in DATABASE_URL; or " if made_by else ""
    why = "; ".join(f"it {what}" for what, _ in lacking)
    raise MissingRight(
        f"{why}; the database stays as it was; fix: {other}an administrator of the database runs: "
        f"{'; '.join(statement for _, statement in lacking)}; {AGAIN}"
    )


async def pods_lack(connection: Connection) -> str:
    """Return what an administrator must run, in SQL, so that pods can call; empty if nothing is known to be lacking."""
    exists, may_create = await (await connection.execute(ROLE, (POD,))).fetchone() or (False, False)
    if not exists:
        user = sql.Identifier(connection.info.user).as_string(connection)
        return "" if may_create else f"create role {POD} nologin; grant {POD} to {user}"
    rows = await (await connection.execute(LOGINS, (POD, POD))).fetchall()
    return "; ".join(f"grant {POD} to {sql.Identifier(name).as_string(connection)}" for (name,) in rows)


async def pods_can_call(connection: Connection) -> str:
    """Call a function as a pod does, in a transaction that is rolled back. Return the error, or an empty text."""
    try:
        async with connection.transaction():
            await connection.execute(sql.SQL("set local role {}").format(sql.Identifier(POD)))
            await connection.execute(PODS_CALL)
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        return "" if error.sqlstate == NO_SUCH_WORKER else error.diag.message_primary or str(error)
    return "the function accepted a worker that does not exist"


async def check_pods(connection: Connection) -> tuple[str, ...]:
    """Return a note if only the gateway can call for pods. MissingRight if nobody can."""
    if not (error := await pods_can_call(connection)):
        return ()
    if not (lacking := await pods_lack(connection)):
        raise MissingRight(f"the schema is complete, but pods cannot call its functions: {error}; fix: {DOCTOR}")
    return (without_role(lacking),)


def without_role(lacking: str) -> str:
    """Return what does not work without the role of pods, and the SQL for an administrator."""
    return (
        f"pods call through the orchestrator's gateway only, without the role {POD}; before they use Supabase's API, "
        f"an administrator of the database runs: {lacking}; {AGAIN}"
    )
