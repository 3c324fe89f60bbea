"""The schema as `migrations/schema.sql` keeps it; `python -m tests.db.conformance.schema_dump` writes it anew."""

import asyncio
import re
import tempfile
from pathlib import Path

from orchestrator.migrate import DIRECTORY, migrate
from testbed.services.postgres import EmbeddedPostgres, installed
from testbed.services.supabase_roles import create_roles

SCHEMA = DIRECTORY / "schema.sql"
HEAD = """-- What the migrations make, as pg_dump shows it: for reading and review, applied by nothing.
-- A test compares it with a migrated database. Written by: python -m tests.db.conformance.schema_dump

"""
# What differs between servers, versions and runs, and says nothing about the schema.
NOISE = re.compile(r"^(--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*)\n", re.MULTILINE)
TIMEOUT_S = 60


async def dump(server: EmbeddedPostgres) -> str:
    """The migrated database of this server."""
    command = [str(installed() / "bin" / "pg_dump"), "--schema-only", "--no-owner", "--schema=public", server.url]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(TIMEOUT_S):
        stdout, stderr = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"pg_dump: {stderr.decode()}")
    return HEAD + re.sub(r"\n{3,}", "\n\n", NOISE.sub("", stdout.decode())).strip() + "\n"


async def _write() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedPostgres(Path(directory) / "data", durable=False, keep=False) as server:
            await create_roles(server.url)  # as the tests' database has them: the grants are part of the schema
            await migrate(server.url)
            SCHEMA.write_text(await dump(server))


if __name__ == "__main__":
    asyncio.run(_write())
