"""`./run soak secrets`: canaries through every case of `./run faults`, and through a set-up that fails."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import click

from testbed.shared_services import SharedServices
from tests.process.secrets.canaries import SECRETS, SETUP_FAILS, over_supabase, searched
from tests.proofs.fault_matrix.__main__ import CASES, SIDE_BY_SIDE
from tests.proofs.fault_matrix.runner import Case

OVER_SUPABASE = ("agent_killed", "unauthorized", "ssh_refused")
AGAIN = (over_supabase(case) for case in CASES if case.name in OVER_SUPABASE)
EVERY = {case.name: case for case in (SETUP_FAILS, *CASES, *AGAIN)}


@click.command()
@click.option("--only", multiple=True, type=click.Choice(sorted(EVERY)), help="This case alone; repeatable.")
@click.option("--at-once", default=SIDE_BY_SIDE, show_default=True, type=click.IntRange(min=1), help="Side by side.")
def main(only: tuple[str, ...], at_once: int) -> None:
    """Secrets that are looked for in everything that a case leaves; exit 1 if one is found anywhere."""
    began = time.monotonic()
    wrong = asyncio.run(_all([EVERY[name] for name in only or EVERY], at_once))
    took_s = time.monotonic() - began
    bad = sum(1 for found in wrong.values() if found)
    sys.stdout.write(f"{len(wrong)} cases with {SECRETS} secrets each: {bad} leaked or unsearched, {took_s:.0f} s\n")
    sys.exit(1 if bad else 0)


async def _all(cases: list[Case], at_once: int) -> dict[str, list[str]]:
    gate, wrong = asyncio.Semaphore(at_once), dict[str, list[str]]()

    async def one(case: Case) -> None:
        async with gate:
            try:
                found = await searched(case, shared, Path(directory) / case.name)
            except Exception as error:  # noqa: BLE001  whatever it is, the other cases have nothing to do with it
                found = [f"{type(error).__name__}: {error}"]
            wrong[case.name] = found
        sys.stdout.write(f"{'BAD ' if found else 'ok  '} {case.name:24} {'; '.join(found)}\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory() as directory:
        async with SharedServices(Path(directory) / "ground") as shared, asyncio.TaskGroup() as group:
            for case in cases:
                group.create_task(one(case))
    return wrong


if __name__ == "__main__":
    main()
