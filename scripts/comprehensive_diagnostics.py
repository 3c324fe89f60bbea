#!/usr/bin/env python3
"""The whole report on the fleet: `comprehensive_diagnostics.py [worker] [--save-report]`.

A thin door to `python -m orchestrator diagnose`: the same options and exit codes. Importing it does nothing.
"""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).resolve().with_name("_entry.py")))["enter"](__file__, "diagnose")
