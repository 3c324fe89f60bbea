"""`./run soak`: the demo again and again, each time with another seed, until one goes wrong or the rounds are over."""

import asyncio
import json
import sys
from pathlib import Path

import click

from orchestrator.demo.main import only_demo
from orchestrator.demo.play import Options, play
from orchestrator.demo.stack import ROOT


@click.command()
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(min=1))
@click.option("--tasks", default=60, show_default=True, type=click.IntRange(min=2), help="Tasks in each round.")
@click.option("--seed", default=1, show_default=True, help="Of the first round; it grows by one.")
def main(rounds: int, tasks: int, seed: int) -> None:
    """Repeat the demo; one JSON object per round on stdout, exit 1 at the first that is not well."""
    for number in range(seed, seed + rounds):
        directory: Path = ROOT / ".demo-soak"
        with only_demo(directory):
            summary = asyncio.run(play(Options(None, tasks, number, keep=False, directory=directory)))
        print(json.dumps(summary, sort_keys=True), flush=True)
        if not summary["ok"]:
            sys.exit(1)


if __name__ == "__main__":
    main()
