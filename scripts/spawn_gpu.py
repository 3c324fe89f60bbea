#!/usr/bin/env python3
"""List, inspect, spawn and terminate GPU workers: `spawn_gpu.py list|status|spawn|terminate`.

A thin door to `python -m orchestrator`: the same commands, options and exit codes. It runs from anywhere, with any
Python: where that one lacks the packages, the repository's own `.venv` takes over. Importing it does nothing.
"""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST = (3, 11)
PACKAGES = ("click", "psycopg", "pydantic_settings", "rich")  # without one of them nothing works
COMMANDS = ("list", "status", "spawn", "terminate")
TAKEN_OVER = "ORCHESTRATOR_SCRIPT_REEXEC"  # set for the second try, so that a broken .venv cannot make a loop


def main() -> None:
    """Run one of COMMANDS."""
    if sys.version_info < OLDEST or any(importlib.util.find_spec(name) is None for name in PACKAGES):
        _take_over()
    sys.path.insert(0, str(ROOT))
    from orchestrator.cli import main as run  # noqa: PLC0415  only once the interpreter is the right one

    run(prog_name=Path(__file__).name, only=COMMANDS)


def _take_over() -> None:
    """Start again with the repository's own interpreter."""
    python = ROOT / ".venv" / "bin" / "python"
    if python.exists() and not os.environ.get(TAKEN_OVER):
        os.environ[TAKEN_OVER] = "1"
        os.execv(python, [str(python), str(Path(__file__).resolve()), *sys.argv[1:]])  # noqa: S606
    sys.stderr.write(
        "error[E002]: a part of this program is not installed\n"
        f"why: {sys.executable} lacks the packages, and {python} does not exist or lacks them too\n"
        f"fix: {ROOT / 'run'} --help    (makes .venv the first time)\n"
    )
    sys.exit(4)


if __name__ == "__main__":
    main()
