"""`./run faults`: every fault under load, side by side, and the table of results."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from demo.main import INTERRUPTED, only_demo
from testbed.shared_services import SharedServices
from testbed.stack import ROOT
from tests.proofs.fault_matrix.clusters import CLUSTERS
from tests.proofs.fault_matrix.failure_codes import CODES
from tests.proofs.fault_matrix.infrastructure import INFRASTRUCTURE
from tests.proofs.fault_matrix.provider import KINDS
from tests.proofs.fault_matrix.report import document, show
from tests.proofs.fault_matrix.runner import Case, Result, run
from tests.proofs.fault_matrix.sick_machines import SICK_MACHINES
from tests.proofs.fault_matrix.sick_workers import SICK_WORKERS

SIDE_BY_SIDE = 4  # most of a case is waiting
CASES = (*INFRASTRUCTURE, *KINDS, *CODES, *SICK_WORKERS, *SICK_MACHINES, *CLUSTERS)
DOCUMENT = ROOT / "docs" / "faults.md"


@click.command(name="faults")
@click.option("--only", multiple=True, metavar="NAME", help="This case alone; may be given several times.")
@click.option("--quick", is_flag=True, help="Those that ./run test has.")
@click.option("--at-once", default=SIDE_BY_SIDE, show_default=True, type=click.IntRange(min=1), help="Side by side.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per case on stdout, the table on stderr.")
@click.option("--write", is_flag=True, help="Write docs/faults.md.")
@click.option(
    "--pictures", type=click.Path(path_type=Path), help="Keep pictures of the dashboard here, as it names incidents."
)
@click.option("--list", "listing", is_flag=True, help="Name the cases, and run none.")
def main(
    only: tuple[str, ...], quick: bool, at_once: int, as_json: bool, write: bool, pictures: Path | None, listing: bool
) -> None:
    """Inject every fault into a running stack and check the result. Exit with 1 if anything is wrong."""
    unknown = sorted(set(only) - {case.name for case in CASES})
    if unknown:
        raise click.ClickException(f"no such case: {', '.join(unknown)}; see --list")
    chosen = [t for t in CASES if (t.name in only if only else t.quick or not quick)]
    if listing:
        for case in chosen:
            print(f"{case.name:24} {case.description}")
        return
    lacking = {case.name: lacks for case in chosen if (lacks := case.lacks)}
    if lacking and (only or write):
        raise click.ClickException(_not_run(lacking))
    chosen = [case for case in chosen if case.name not in lacking]
    directory = ROOT / ".demo-faults"
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    try:
        with only_demo(directory):
            results = asyncio.run(run_all(chosen, directory, at_once, pictures))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    show(results, sys.stderr if as_json else sys.stdout)
    if as_json:
        for result in results:
            print(json.dumps(dataclasses.asdict(result), sort_keys=True))
    if lacking:
        print(_not_run(lacking), file=sys.stderr)
    if write:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(document(results))
    sys.exit(0 if all(result.ok for result in results) else 1)


def _not_run(lacking: Mapping[str, str]) -> str:
    """Say which cases (name -> what is missing) this machine cannot run."""
    lines = (f"{reason}: {', '.join(n for n, r in lacking.items() if r == reason)}" for reason in set(lacking.values()))
    return "not run on this machine\n" + "\n".join(sorted(lines))


async def run_all(cases: Sequence[Case], directory: Path, at_once: int, pictures: Path | None = None) -> list[Result]:
    """Run cases side by side on common servers, the long ones first; results in the order given."""
    gate = asyncio.Semaphore(at_once)
    results: dict[str, Result] = {}

    async def one(case: Case) -> None:
        async with gate:
            results[case.name] = result = await run(case, shared, directory / case.name, pictures=pictures)
        print(f"{'ok  ' if result.ok else 'BAD '} {case.name:24} {result.seconds:6.1f} s", file=sys.stderr, flush=True)

    async with SharedServices(directory / "ground") as shared, asyncio.TaskGroup() as group:
        for case in sorted(cases, key=lambda case: -case.limit_s):
            group.create_task(one(case))
    return [results[case.name] for case in cases]


if __name__ == "__main__":
    main()
