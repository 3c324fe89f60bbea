"""`./run bench [name…]`: tables and a summary on stdout, JSON under .bench/. No tests: a slow figure fails nothing."""

import asyncio
import importlib
import json
import operator
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from testbed.stack import ROOT

QUICK = (
    "agent_start",
    "monitor",
    "startup",
    "pickup",
    "queue",
    "agent_rate",
    "depth",
    "economics",
    "held",
    "reaction",
    "bringup",
    "shipping",
    "outputs",
    "tick",
    "commands",
    "idle",
)
LONG = ("week", "thousand", "adopt", "reads", "page")  # minutes each: by name only
TIMEOUT_S = 600.0  # of one benchmark without a bound of its own
RELATIONS: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}


@click.command(
    epilog=f"NAME: {', '.join(QUICK)}; without one all of these. {', '.join(LONG)}: minutes each, by name only."
)
@click.argument("names", nargs=-1, type=click.Choice(QUICK + LONG), metavar="[NAME]...")
@click.option("--tries", type=click.IntRange(min=1), help="How often, or how many; each has its own default.")
def main(names: tuple[str, ...], tries: int | None) -> None:
    """Measure on this machine, with real parts and the emulated provider.

    A benchmark that fails is named at the end with its error, and the exit status is 1; the others run all the same.
    """
    summary = ["| Benchmark | Figure | Measured | Goal | |", "|---|---|---|---|---|"]
    failed = {}
    for name in names or QUICK:
        module = importlib.import_module(f"bench.{name}")
        print(f"{name}: {(module.__doc__ or '').splitlines()[0]}", file=sys.stderr)
        began_s = time.monotonic()
        try:
            figures = _measured(name, module, tries)
        except Exception as error:  # noqa: BLE001  whatever it is, the others have nothing to do with it
            failed[name] = f"{type(error).__name__}: {error}"
            summary.append(f"| {name} | | failed: {type(error).__name__} | | |")
            continue
        _show(f"{name}, in {time.monotonic() - began_s:.0f} s", figures)
        _keep(name, figures)
        summary += _rows(name, figures, getattr(module, "GOALS", {}), getattr(module, "TOLD", ()))
    print("\n".join(["", *summary]))
    for name, why in failed.items():
        print(f"failed: {name}: {why}", file=sys.stderr)
    sys.exit(bool(failed))


def _measured(name: str, module: ModuleType, tries: int | None) -> dict[str, Any]:
    work = Path(tempfile.mkdtemp(prefix=f"bench-{name}-"))
    try:
        bound_s = getattr(module, "TIMEOUT_S", TIMEOUT_S)
        return asyncio.run(_bounded(module.measure(work, tries or module.TRIES), bound_s))
    finally:
        shutil.rmtree(work, ignore_errors=True)


async def _bounded(work: Awaitable[dict[str, Any]], seconds: float) -> dict[str, Any]:
    async with asyncio.timeout(seconds):
        return await work


def _rows(
    name: str, figures: dict[str, Any], goals: Mapping[str, tuple[str, float]], told: Sequence[str]
) -> Iterator[str]:
    """What goes into the summary: the figures with a goal and those to be told; of a benchmark without goals all."""
    for figure in [figure for figure in (*goals, *told) if figure in figures] or figures:
        goal = result = ""
        if figure in goals:
            relation, bar = goals[figure]
            goal, result = f"{relation} {bar:g}", "met" if RELATIONS[relation](figures[figure], bar) else "missed"
        yield f"| {name} | {figure.replace('_', ' ')} | {_said(figures[figure])} | {goal} | {result} |"


def _show(title: str, figures: dict[str, Any]) -> None:
    table = Table(title=title, title_justify="left", show_header=False)
    for figure, value in figures.items():
        table.add_row(figure.replace("_", " "), _said(value))
    Console().print(table)


def _said(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value}"


def _keep(name: str, figures: dict[str, Any]) -> None:
    folder = ROOT / ".bench"
    folder.mkdir(exist_ok=True)
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    record = {"bench": name, "at": datetime.now(UTC).isoformat(timespec="seconds"), **machine, "figures": figures}
    with (folder / f"{name}.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
