"""`python -m orchestrator`."""

import os
import signal

if __name__ == "__main__":
    # A container's first process is not ended by a signal that it has no handler for; `run` has a better one later.
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))

    from orchestrator.cli import main

    main()
