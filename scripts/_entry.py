"""The way from a script under the name that operators know to the command line.

It runs from anywhere, with any Python: where that one lacks the packages, the repository's own `.venv` takes over. The
settings are those of `.env` in the current directory, or in the repository if there is none.
"""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST = (3, 11)
PACKAGES = ("click", "psycopg", "pydantic_settings", "rich")  # without one of them nothing works
TAKEN_OVER = "ORCHESTRATOR_SCRIPT_REEXEC"  # set for the second try, so that a broken .venv cannot make a loop


def enter(program: str, *commands: str) -> None:
    """Run one of these commands of the orchestrator as `program`; a single one needs no name."""
    script = Path(program).resolve()
    if sys.version_info < OLDEST or any(importlib.util.find_spec(name) is None for name in PACKAGES):
        _take_over(script)
    sys.path.insert(0, str(ROOT))
    from orchestrator.cli.main import main  # noqa: PLC0415  only once the interpreter is the right one

    main(prog_name=script.name, only=commands, home=ROOT)


def _take_over(script: Path) -> None:
    """Start again with the repository's own interpreter."""
    python = ROOT / ".venv" / "bin" / "python"
    if python.exists() and not os.environ.get(TAKEN_OVER):
        os.environ[TAKEN_OVER] = "1"
        os.execv(str(python), [str(python), str(script), *sys.argv[1:]])  # noqa: S606
    sys.stderr.write(
        "error[E002]: a part of this program is not installed\n"
        f"why: {sys.executable} lacks the packages, and {python} does not exist or lacks them too\n"
        f"fix: {ROOT / 'run'} --help    (makes .venv the first time)\n"
    )
    sys.exit(4)
