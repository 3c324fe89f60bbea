"""The commands of the agent on a pod: `agent.pyz start|stop|probe|handler-host --run-dir DIR`.

Up to fifty `start` and `stop` calls arrive over SSH at once, so this module imports only what they need.
"""

from __future__ import annotations

import json
import sys

USAGE = "usage: start --run-dir DIR | stop --run-dir DIR [--grace-s S] | probe --run-dir DIR"


def main() -> int:
    """Run one command. It answers with one line of JSON on stdout and an exit status."""
    if sys.version_info < (3, 9):
        print(json.dumps({"error": f"Python {sys.version.split()[0]} is older than 3.9", "code": "EXEC_FAILED"}))
        return 1
    command, options = (sys.argv[1] if len(sys.argv) > 1 else ""), _options(sys.argv[2:])
    if command == "handler-host" and "fd" in options:
        from .host import serve  # noqa: PLC0415 only the child that runs handlers needs it

        return serve(options)
    run_dir = options.get("run-dir")
    if command not in {"start", "stop", "probe"} or not run_dir:
        print(json.dumps({"error": USAGE, "code": "BAD_USAGE"}))
        return 2
    if command == "start":
        from .launch import start  # noqa: PLC0415 `stop` and `probe` do not need it

        return start(run_dir)
    from .teardown import probe, stop  # noqa: PLC0415

    return probe(run_dir) if command == "probe" else stop(run_dir, float(options.get("grace-s", "10")))


def _options(words: list[str]) -> dict[str, str]:
    """Parse `--name value` pairs. Importing argparse would take longer than everything else here."""
    return {name[2:]: value for name, value in zip(words[::2], words[1::2]) if name.startswith("--")}


if __name__ == "__main__":
    sys.exit(main())
