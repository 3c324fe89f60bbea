#!/usr/bin/env python3
"""List, inspect, spawn and terminate GPU workers: `spawn_gpu.py list|status|spawn|terminate`.

A thin door to the same commands of `python -m orchestrator`: their options and exit codes. Importing it does nothing.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).resolve().with_name("_entry.py")))["enter"](
        __file__, "list", "status", "spawn", "terminate"
    )
