"""`./run soak crash`: kills at every call of every process, before and after; cuts around COMMIT and of migrations."""

import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from orchestrator.migrate import migrate
from testbed.services.postgres import EmbeddedPostgres
from tests.db.conformance.builders import START
from tests.proofs.crash.cuts import cut_often
from tests.proofs.crash.points import killed_at, walk
from tests.proofs.crash.upgrades import cut_migrations


@click.command()
@click.option("--cuts", default=1_000, show_default=True, help="Before COMMIT, and as many after it.")
@click.option("--kills/--no-kills", default=True, help="Whether processes are killed at all of their calls.")
@click.option("--upgrades/--no-upgrades", default=True, help="Whether every migration is cut at all of its messages.")
def main(cuts: int, kills: bool, upgrades: bool) -> None:
    """Print the coverage by operation. Exit 1 if a law was broken."""
    if kills and not _kill_everywhere():
        sys.exit(1)
    began = time.monotonic()
    for name, number in asyncio.run(_cut(cuts)).items():
        sys.stdout.write(f"{name:<12} {number:>4} cuts around COMMIT resolved right\n")
    sys.stdout.write(f"{cuts} cuts before and {cuts} after COMMIT in {time.monotonic() - began:.0f} s\n")
    if upgrades:
        began, made = time.monotonic(), asyncio.run(cut_migrations())
        sys.stdout.write(
            f"{made} cuts of migrations, each finished by the next one, in {time.monotonic() - began:.0f} s\n"
        )


def _kill_everywhere() -> bool:
    began, points = time.monotonic(), walk()
    passed: Counter[str] = Counter()
    for point in points:
        for after in (False, True):
            violation = killed_at(point, after=after)
            passed[point.operation] += violation is None
            if violation:
                sys.stdout.write(f"{point} {'after' if after else 'before'}: {violation}\n")
    made = Counter(point.operation for point in points)
    for operation, number in sorted(made.items()):
        sys.stdout.write(f"{operation:<12} {number:>4} points, {passed[operation]:>4} of {2 * number} kills passed\n")
    took_s = time.monotonic() - began
    sys.stdout.write(f"{len(points)} points, {passed.total()} of {2 * len(points)} kills passed in {took_s:.0f} s\n")
    return passed.total() == 2 * len(points)


async def _cut(cuts: int) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as directory:
        async with EmbeddedPostgres(Path(directory) / "data", durable=False, keep=False) as postgres:
            await migrate(postgres.url)
            return await cut_often(postgres.url, cuts, START)


if __name__ == "__main__":
    main()
