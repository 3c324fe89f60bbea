"""The peers of the queue's benchmark, in a virtual environment of their own under .bench/peers."""

import asyncio
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from testbed.stack import ROOT

REQUIREMENTS = (
    "procrastinate==3.10.0",
    "pgqueuer==1.6.0",
    "asyncpg==0.32.0",
    "uvloop==0.23.0",
    "psycopg[binary,pool]==3.3.9",
)
INSTALL_TIMEOUT_S = 300.0
RUN_TIMEOUT_S = 300.0


async def installed() -> Path:
    """The Python that has the peers; made on the first call."""
    folder = ROOT / ".bench" / "peers"
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(REQUIREMENTS)
    if not stamp.exists() or stamp.read_text() != wanted:
        print("installing the peers from PyPI into .bench/peers", file=sys.stderr)
        await asyncio.to_thread(venv.create, folder, with_pip=True, clear=True)
        await _run([str(python), "-m", "pip", "install", "--quiet", "--no-input", *REQUIREMENTS], INSTALL_TIMEOUT_S)
        stamp.write_text(wanted)
    return python


async def drive(python: Path, peer: str, url: str, *args: str | int) -> Any:
    """One step of a peer's script, in a process of its own; its JSON answer."""
    script = Path(__file__).with_name("peer_scripts") / f"{peer}_side.py"
    return json.loads(await _run([str(python), str(script), url, *map(str, args)], RUN_TIMEOUT_S))


async def _run(command: list[str], timeout_s: float) -> str:
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise RuntimeError(f"{command[1]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout
