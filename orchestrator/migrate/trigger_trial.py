"""A trial of the user's triggers, before the migration or after it, in a transaction that is rolled back."""

import psycopg

from orchestrator.migrate.files import SqlFiles
from orchestrator.migrate.ledger import Connection
from orchestrator.migrate.run import of_function

FILE = "functions/base/users_triggers.sql"
# A database with our triggers gives the user's search path to the writes; before, the path is the login's own.
TRY = """
select public.internal_try_triggers(case when to_regproc('public.internal_enter_path') is null then s.reset_val end)
  from pg_catalog.pg_settings s where s.name = 'search_path'"""
# The functions are made as a migration makes them.
SETTINGS = "set local lock_timeout = '1s'; set local statement_timeout = '20s'; set local search_path = ''"


async def failing_triggers(connection: Connection, files: SqlFiles) -> tuple[str, ...]:
    """Return a note for each trigger of the user's that makes a write of the orchestrator fail, with its fix."""
    (file,) = (file for file in files.current if file.path == FILE)
    try:
        async with connection.transaction(force_rollback=True):
            await connection.execute(SETTINGS)
            await connection.execute(file.sql.encode())
            row = await (await connection.execute(TRY)).fetchone()
    except psycopg.Error as error:
        why = f"{error.diag.message_primary or error}{of_function(error)}"
        return (f"the triggers on tasks and workers could not be tried: {why}",)
    return tuple(f"{one['what']}: {one['why']}; fix: {one['fix']}" for one in (row[0] if row else ()))
