#!/usr/bin/env python3
"""Workers' logs, from S3, the pod or the database: `fetch_worker_logs.py [worker] [--lines N] [--follow] [--task ID]`.

A thin door to `python -m orchestrator logs`: the same options and exit codes. Importing it does nothing.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).resolve().with_name("_entry.py")))["enter"](__file__, "logs")
