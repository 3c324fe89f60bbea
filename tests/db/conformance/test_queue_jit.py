"""PostgreSQL's compiler of queries: it costs more than it saves in every statement here, so none of them uses it."""

from psycopg import AsyncConnection
from psycopg.rows import DictRow

COMPILING = """
select p.oid::regprocedure::text as name from pg_proc p
 where p.pronamespace = 'public'::regnamespace
   and (p.proname ~ '^(task|worker|fleet)_' and p.prorettype = 'jsonb'::regtype
        or p.proname ~ '^internal_' and p.prorettype = 'trigger'::regtype)
   and not coalesce('jit=off' = any (p.proconfig), false)
"""


async def test_no_function_that_others_call_compiles_its_statements(hand: AsyncConnection[DictRow]) -> None:
    """Nor a trigger, which runs in a user's statement. What they call inherits the setting."""
    assert await (await hand.execute(COMPILING.encode())).fetchall() == []
