#!/usr/bin/env python3
"""RunPod against the database: `sync_runpod_database.py [analyze|terminate_orphaned|update_database]`.

A thin door to `python -m orchestrator sync`: the same options and exit codes. Importing it does nothing.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).resolve().with_name("_entry.py")))["enter"](__file__, "sync")
