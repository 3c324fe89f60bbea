"""The schema of a database as text, so that two databases can be compared."""

import asyncio
import re

from testbed.services.postgres import installed

# What differs between servers, versions and runs, and says nothing about the schema.
NOISE = re.compile(r"^(--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*)\n", re.MULTILINE)
TIMEOUT_S = 60


async def dump(url: str) -> str:
    """Everything in `public` and `orchestrator`, as pg_dump shows it."""
    command = [str(installed() / "bin" / "pg_dump"), "--schema-only", "--no-owner"]
    command += ["--schema=public", "--schema=orchestrator", url]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(TIMEOUT_S):
        stdout, stderr = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"pg_dump: {stderr.decode()}")
    return re.sub(r"\n{3,}", "\n\n", NOISE.sub("", stdout.decode())).strip() + "\n"
