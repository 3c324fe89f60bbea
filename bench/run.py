"""`./run bench [name…]`: a table on stdout, JSON under .bench/. No tests: a slow figure fails nothing."""

import asyncio
import importlib
import json
import os
import platform
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from orchestrator.demo.stack import ROOT

# The quick ones first.
BENCHES = (
    "agent_start",
    "startup",
    "pickup",
    "queue",
    "agent_rate",
    "depth",
    "held",
    "reaction",
    "bringup",
    "shipping",
    "thousand",
)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(BENCHES))
@click.option("--tries", type=click.IntRange(min=1), help="How often, or how many; each has its own default.")
def main(names: tuple[str, ...], tries: int | None) -> None:
    """Measure on this machine, with real parts and the emulated provider."""
    for name in names or BENCHES:
        module = importlib.import_module(f"bench.{name}")
        print(f"{name}: {(module.__doc__ or '').splitlines()[0]}", file=sys.stderr)
        work = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
        try:
            figures: dict[str, Any] = asyncio.run(module.measure(work, tries or module.TRIES))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        _show(name, figures)
        _keep(name, figures)


def _show(name: str, figures: dict[str, Any]) -> None:
    table = Table(title=name, title_justify="left", show_header=False)
    for figure, value in figures.items():
        table.add_row(figure.replace("_", " "), f"{value:,.3f}" if isinstance(value, float) else f"{value}")
    Console().print(table)


def _keep(name: str, figures: dict[str, Any]) -> None:
    folder = ROOT / ".bench"
    folder.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    record = {"bench": name, "at": datetime.now(UTC).isoformat(timespec="seconds"), **machine, "figures": figures}
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
