"""The process that replays a week of one pool: a question on stdin, the review on stdout (review_json.py in core).

It is a process and not a thread, because a replay is seconds of pure Python: a thread would take the interpreter from
the ticks, turn by turn. It runs at a low priority, and gets none of the orchestrator's secrets.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.core.economics.review_json import answer

TIMEOUT_S = 120.0  # of one pool; a busy machine may need several times as long as a free one
NICE = 10
ERROR_CHARS = 300
KEPT = ("PATH", "LANG", "SYSTEMROOT", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE")


class ReviewFailed(Exception):
    """The process ended without a review."""


async def replayed(question: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ask a process of its own. Raises ReviewFailed, also after TIMEOUT_S; the process does not outlive the call."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment["PYTHONPATH"] = str(Path(orchestrator.__file__).resolve().parents[1])
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __spec__.name, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, err = await process.communicate(json.dumps(question).encode())
    except TimeoutError:
        raise ReviewFailed(f"no answer within {TIMEOUT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ReviewFailed(
            " ".join(err.decode(errors="replace").split())[-ERROR_CHARS:] or f"exit {process.returncode}"
        )
    found: Mapping[str, Any] = json.loads(out)
    return found


def main() -> None:
    """Answer one question."""
    os.nice(NICE)
    json.dump(answer(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
