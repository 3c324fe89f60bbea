"""Pods at PostgREST, the orchestrator at the database: what only the bucket's owner can do goes through rows."""

import pytest
from psycopg import AsyncConnection

from demo.scenario import submit
from testbed.stack import Stack
from tests.process.e2e.conftest import Until

FILES = 3
SOON_S = 30.0  # every answer; of the first, most of a second is the S3 client's, and more on a busy machine
AT_ONCE_S = 0.9  # the quickest, where a notification says that a pod asks, and nobody waits for the next look
WAITED = """
    select min(s) as least_s, max(s) as most_s, count(*) as n
      from (select extract(epoch from answered_at - asked_at)::float as s from worker_asks) a
"""


@pytest.mark.parametrize(("transport", "leader"), [("supabase", "direct"), ("supabase", "supabase")])
async def test_files_are_handed_over_and_looked_for(
    sql: AsyncConnection[dict[str, object]], stack: Stack, until: Until, leader: str
) -> None:
    """Signed, uploaded, seen by the leader, complete; and how long a pod waited for an answer."""
    more = {"DATABASE_URL": stack.database_url} if leader == "direct" else {}
    await stack.start_orchestrator({**more, "WORKER_HANDLERS": "leave=plain:leave", "MAX_ACTIVE_GPUS": "1"})
    await submit(stack, [{"task_type": "leave", "params": {"text": f"file {number}"}} for number in range(FILES)])
    await until("select 1 from tasks where status = 'Complete' offset %s", FILES - 1)
    rows = await (await sql.execute("select output_location, params ->> 'text' as text from tasks")).fetchall()
    blobs = stack.blobs()
    for row in rows:
        assert await blobs.get(blobs.key_of(str(row["output_location"])) or "") == str(row["text"]).encode()
    (asked,) = await until(WAITED)
    assert asked["n"] == 2 * FILES  # a URL for each, and a look
    assert asked["most_s"] < SOON_S, asked
    assert leader == "supabase" or asked["least_s"] < AT_ONCE_S, asked
