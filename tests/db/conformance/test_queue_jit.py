"""PostgreSQL's compiler of queries: it costs more than it saves in every statement here, so none of them uses it."""

from psycopg import AsyncConnection
from psycopg.rows import DictRow

# What others call, and triggers, which run in users' statements. What they call inherits the setting.
COMPILING = """
select p.oid::regprocedure::text as name from pg_proc p
 where (p.pronamespace = 'public'::regnamespace and p.proname ~ '^(task|worker|fleet)_'
        or p.pronamespace in ('public'::regnamespace, 'orchestrator'::regnamespace)
           and p.prorettype = 'trigger'::regtype)
   and not coalesce('jit=off' = any (p.proconfig), false)
 order by 1
"""


async def test_no_function_that_others_call_compiles_its_statements(hand: AsyncConnection[DictRow]) -> None:
    """With JIT on and statistics that make a plan look dear, a claim would take a second."""
    assert await (await hand.execute(COMPILING.encode())).fetchall() == []
