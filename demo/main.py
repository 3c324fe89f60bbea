"""`./run demo`: the command line, and one demo at a time per directory."""

import asyncio
import contextlib
import fcntl
import json
import shutil
import signal
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from demo.app import run_app
from demo.cluster_scenario import run_cluster_scenario
from demo.scenario import Options, run_scenario
from demo.summary import show
from testbed.services.processes import ChildFailed
from testbed.stack import ROOT, Transport

LOCK = "demo.lock"  # also marks a directory as a demo's, which may be emptied
INTERRUPTED = 130
Result = TypeVar("Result")
EXAMPLES = """\b
Examples:
  ./run demo
      a minute, no account needed
  ./run demo --keep --tasks 40
      stays up, to try commands on
  ./run demo --app
      a web app on it: upload pictures, watch, see the video
  ./run demo --cluster
      Slurm on three pods; needs .ci/debian slurm-wlm
"""


@click.command(name="demo", epilog=EXAMPLES)
@click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with two or more images; a small set is painted when none is given.",
)
@click.option("--tasks", type=click.IntRange(min=2), help="How many tasks in all, the joining one included.")
@click.option("--seed", default=1, show_default=True, help="For the pictures and for the emulator's dice.")
@click.option(
    "--transport",
    type=click.Choice(["direct", "supabase"]),
    default="direct",
    show_default=True,
    help="How the orchestrator and the pods reach the database: over DATABASE_URL, or Supabase's API.",
)
@click.option("--keep", is_flag=True, help="Stay up afterwards, and say how to use the command line against it.")
@click.option("--app", is_flag=True, help="Start a web app on the system instead of the prepared tasks.")
@click.option("--cluster", is_flag=True, help="Jobs of several nodes on a Slurm cluster instead of the film.")
@click.option("-v", "--verbose", is_flag=True, help="Also the formula of each decision, stages and ids.")
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON object on the last line of stdout.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=ROOT / ".demo",
    help="Where everything is kept; emptied at the start.",
)
def main(
    images: Path | None,
    tasks: int | None,
    seed: int,
    transport: Transport,
    keep: bool,
    app: bool,
    cluster: bool,
    verbose: bool,
    as_json: bool,
    directory: Path,
) -> None:
    """Run the main job on this machine, with real parts and an emulated RunPod."""
    if app and (images or tasks or keep or as_json or cluster):
        raise click.UsageError(
            "--app submits nothing by itself: it has no --images, --tasks, --keep, --cluster, --json"
        )
    if cluster and (images or tasks):
        raise click.UsageError("--cluster has jobs of its own: no --images and --tasks")
    options = Options(images, tasks, seed, keep, directory.absolute(), transport, verbose)
    try:
        with only_demo(options.directory):
            if app:  # until Ctrl-C
                asyncio.run(_interruptible(run_app(options.directory, seed, transport, verbose=verbose)))
            scenario = run_cluster_scenario if cluster else run_scenario
            summary = asyncio.run(_interruptible(scenario(options)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(INTERRUPTED)
    except (ChildFailed, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if not keep:  # otherwise it was shown before the hints
        show(summary, sys.stderr if as_json else sys.stdout)
    if as_json:
        print(json.dumps(summary, sort_keys=True))
    sys.exit(0 if summary["ok"] else 1)


@contextlib.contextmanager
def only_demo(directory: Path) -> Iterator[None]:
    """Lock the directory and remove an earlier demo's files.

    ValueError if another demo runs, or if it has other files.
    """
    lock = directory / LOCK
    if directory.is_dir() and any(directory.iterdir()) and not lock.exists():
        raise ValueError(f"{directory} is not empty and no demo's; give another --directory")
    directory.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another demo is running in {directory}") from None
        for path in directory.iterdir():
            if path.is_symlink():  # root's Postgres keeps its data where its unprivileged user can reach it
                shutil.rmtree(path.resolve(), ignore_errors=True)
                path.unlink()
            elif path.is_dir():
                shutil.rmtree(path)
            elif path != lock:
                path.unlink()
        yield


async def _interruptible(job: Coroutine[Any, Any, Result]) -> Result:
    """Make SIGTERM and a closed terminal end the job and its processes, like Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  we are in one
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await job
