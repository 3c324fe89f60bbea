"""`python -m orchestrator`."""

import os
import signal
import sys

if __name__ == "__main__":
    # A container's first process is not ended by a signal that it has no handler for. `run` has a better one later;
    # until it has, nothing has begun, and the end is a clean one.
    is_service = sys.argv[1:2] == ["run"]
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(0 if is_service else 128 + number))

    try:
        from orchestrator.cli.main import main
    except ModuleNotFoundError as error:  # a system's own Python, most often
        why = f"{sys.executable} has no {error.name}"
        fix = "./run --help makes .venv; then .venv/bin/python -m orchestrator, or ./run in its place"
        sys.stderr.write(f"error[E002]: a part of this program is not installed\nwhy: {why}\nfix: {fix}\n")
        sys.exit(4)

    main()
