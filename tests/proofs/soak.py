"""`./run soak demo`: the demo again and again, each time with another seed, until one fails.

`./run soak shutdown`: the orchestrator ended again and again. `./run soak docker_image`: the Dockerfile's steps.
`./run soak rolling_upgrade`: an earlier version and this one on one database. `./run soak chaos`: real processes,
killed, frozen and cut off. A part that this machine cannot offer ends with exit status 3 and says why.
"""

import asyncio
import json
import sys
from pathlib import Path

import click

from demo.main import only_demo
from demo.scenario import Options, run_scenario
from testbed.stack import ROOT
from tests.proofs import docker_image, rolling_upgrade
from tests.proofs import shutdown as ends
from tests.proofs.chaos import restart
from tests.proofs.chaos import run as chaos
from tests.proofs.chaos.assertions import show

NOT_AVAILABLE = 3  # exit status of a part that this machine cannot offer


@click.group
def main() -> None:
    """Long runs of real processes, each with a figure for everything that must be zero."""


@main.command(name="demo")
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(min=1))
@click.option("--tasks", default=60, show_default=True, type=click.IntRange(min=2), help="Tasks in each round.")
@click.option("--seed", default=1, show_default=True, help="Of the first round; it grows by one.")
def demo(rounds: int, tasks: int, seed: int) -> None:
    """Repeat the demo. Print one JSON object per round; exit 1 at the first failure."""
    for number in range(seed, seed + rounds):
        directory: Path = ROOT / ".demo-soak"
        with only_demo(directory):
            summary = asyncio.run(run_scenario(Options(None, tasks, number, keep=False, directory=directory)))
        print(json.dumps(summary, sort_keys=True), flush=True)
        if not summary["ok"]:
            sys.exit(1)


@main.command(name="shutdown")
@click.option("--terms", default=200, show_default=True, type=click.IntRange(min=0), help="Rounds with SIGTERM.")
@click.option("--kills", default=200, show_default=True, type=click.IntRange(min=0), help="Rounds with SIGKILL.")
@click.option("--seed", default=1, show_default=True)
def shutdown(terms: int, kills: int, seed: int) -> None:
    """End the orchestrator under load, so often; one JSON object, exit 1 unless nothing was lost, doubled or leaked."""
    directory: Path = ROOT / ".demo-soak"
    with only_demo(directory):
        summary = asyncio.run(ends.run(directory, terms, kills, seed))
    print(json.dumps(summary, sort_keys=True), flush=True)
    sys.exit(0 if summary["ok"] else 1)


@main.command(name="rolling_upgrade")
@click.option("--seed", default=1, show_default=True)
def versions_(seed: int) -> None:
    """Run an earlier version and this one side by side for a minute; one JSON object, exit 1 if anything broke."""
    directory: Path = ROOT / ".demo-soak"
    with only_demo(directory):
        try:
            summary = asyncio.run(rolling_upgrade.run(directory, seed))
        except rolling_upgrade.NoHistory as error:
            print(error, file=sys.stderr)
            sys.exit(NOT_AVAILABLE)
    print(json.dumps(summary, sort_keys=True), flush=True)
    sys.exit(0 if summary["ok"] else 1)


@main.command(name="chaos")
@click.option("--minutes", default=16.0, show_default=True, type=click.FloatRange(min=0.1), help="With faults.")
@click.option(
    "--tasks", default=10_000, show_default=True, type=click.IntRange(min=1), help="Submitted during these minutes."
)
@click.option("--seed", default=1, show_default=True, help="Of the faults, the tasks and the provider.")
@click.option("--every", "every_s", default=2.0, show_default=True, help="Seconds between two faults, on average.")
@click.option("--pods", default=200, show_default=True, help="Light ones, which a restarted orchestrator finds.")
@click.option(
    "--directory", type=click.Path(file_okay=False, path_type=Path), default=ROOT / ".demo-soak", help="Emptied first."
)
def chaos_(minutes: float, tasks: int, seed: int, every_s: float, pods: int, directory: Path) -> None:
    """Kill, freeze, restart and cut off everything under load; a table, chaos.json, exit 1 on any violation."""
    with only_demo(directory):
        summary = asyncio.run(chaos.run(chaos.Options(minutes, tasks, seed, every_s, directory / "chaos")))
        if pods:
            summary["restart"] = asyncio.run(restart.measure(directory / "restart", pods, seed))
            summary["wrong"] += summary["restart"].pop("wrong")
            summary["ok"] = not summary["wrong"] and not summary["late"]
        (directory / "chaos.json").write_text(json.dumps(summary, indent=1))
    show(summary, sys.stderr)
    print(
        json.dumps({name: value for name, value in summary.items() if name not in {"injections", "lost_workers"}}),
        flush=True,
    )
    sys.exit(0 if summary["ok"] else 1)


@main.command(name="docker_image")
def image_() -> None:
    """Perform the Dockerfile's steps in a clean root, start what it starts, stop it; exit 1 if anything is wrong."""
    if not docker_image.has_index():
        print("pip cannot reach a package index, which the image's requirements come from", file=sys.stderr)
        sys.exit(NOT_AVAILABLE)
    directory: Path = ROOT / ".demo-soak"
    with only_demo(directory):
        summary = asyncio.run(docker_image.run(directory))
    print(json.dumps(summary, sort_keys=True), flush=True)
    sys.exit(0 if summary["ok"] else 1)


if __name__ == "__main__":
    main()
