"""The answer of a command as `--json` prints it, without a process of its own."""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from orchestrator.cli.main import Commands, exit_code
from orchestrator.cli.output import Output, document_text
from orchestrator.errors import NOT_IN_TIME, TOO_FAST, Failure

AT_ONCE = 2
MAX_WAITING = 8
TIMEOUT_S = 60.0


class CapturedOutput(Output):
    """Keeps the document, and prints nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.json = True
        self.content: dict[str, Any] = {}

    def document(self, **content: Any) -> None:
        """Keep what a command would print."""
        self.content = json.loads(document_text(content))

    def say(self, text: str, style: str = "") -> None:
        """Drop the message: an assistant gets only the document."""


class CommandRunner:
    """Runs reading commands on threads: each has an event loop and connections of its own, as in a process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="command")
        self._waiting = 0

    async def json(self, *words: str) -> dict[str, Any]:
        """The document of a command, or its errors. Raises Failure if it does not end in time."""
        if self._waiting >= MAX_WAITING:
            raise Failure(TOO_FAST, why=f"{MAX_WAITING} commands are running or wait already", fix="ask again later")
        self._waiting += 1
        running = asyncio.get_running_loop().run_in_executor(self._threads, _document, words)
        running.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await asyncio.shield(running)
        except TimeoutError:
            raise Failure(NOT_IN_TIME, why=f"{words[0]} took longer than {TIMEOUT_S:.0f} s", fix="try again") from None

    def close(self) -> None:
        """Start nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, _: Any) -> None:
        self._waiting -= 1


def _document(words: Sequence[str]) -> dict[str, Any]:
    output = CapturedOutput()
    code = exit_code(Commands(), list(words), None, output)
    return output.content or {"errors": [{"what": f"{words[0]} ended with exit code {code}"}]}
