#!/usr/bin/env python3
"""End every worker, and see that nothing is left: `shutdown_all_workers.py [--status] [--dry-run] [--force]`.

A thin door to `python -m orchestrator shutdown`: the same options and exit codes. Importing it does nothing.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).resolve().with_name("_entry.py")))["enter"](__file__, "shutdown")
