"""`./run soak storm`: users' SQL on a busy queue, for a chosen time, each round with its own seed."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import click

from orchestrator.migrate import migrate
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.supabase_roles import create_roles
from tests.proofs.storm.storm import storm, wrong

ROUND_S = 60.0


@click.command()
@click.option("--seconds", default=600.0, show_default=True, type=click.FloatRange(min=1), help="In all, at least.")
@click.option("--seed", default=1, show_default=True, help="Of the first round; it grows by one.")
def main(seconds: float, seed: int) -> None:
    """Stop at the first round that breaks a promise, and print its seed."""
    asyncio.run(_log_schedule(seconds, seed))


async def _log_schedule(seconds: float, seed: int) -> None:
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0:
        with tempfile.TemporaryDirectory() as directory:
            async with EmbeddedPostgres(Path(directory) / "data", durable=False, keep=False) as server:
                await create_roles(server.url)
                await migrate(server.url)
                outcome = await storm(server.url, seed=seed, seconds=min(ROUND_S, left_s))
        sys.stdout.write(f"seed {seed}: {outcome.summary()}\n")
        if found := wrong(outcome):
            sys.exit("\n".join(found))
        seed += 1


if __name__ == "__main__":
    main()
