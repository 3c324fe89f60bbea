"""What `handlers test` shows of a handler's log and failure: the user's own files and frames, and a fix."""

import re
from pathlib import Path

TRACEBACK = "Traceback (most recent call last):"
FRAME = re.compile(r'  File "([^"]*)"')
CODE = re.compile(r"(?<![^\s'\"])[^\s'\"]*/user-[0-9a-f]{64}/")  # where the agent has unpacked the user's code
NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^'.]+)")
NO_ATTRIBUTE = re.compile(r"AttributeError: module '([^']+)' has no attribute '([^']+)'")
NOT_EXECUTABLE = re.compile(r"PermissionError: \[Errno 13\] [^']{0,99}'([^']+)'")
NO_PROGRAM = re.compile(r"FileNotFoundError: \[Errno 2\] [^']{0,99}'([^'/]+)'$")
BAD_FORMAT = re.compile(r"OSError: \[Errno 8\] [^']{0,99}'([^']+)'")


class HandlerLines:
    """The lines of a log. The agent's frames at the beginning of a traceback are left out."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._hides = folder, False

    def shown(self, line: str) -> str | None:
        """Return a line as it is shown; None if it is not."""
        if line == TRACEBACK:
            self._hides = True
            return line
        frame = FRAME.match(line)
        if not line.startswith("  ") or (frame and CODE.search(frame[1])):
            self._hides = False
        return None if self._hides else self.named(line)

    def named(self, text: str) -> str:
        """Return a text with the paths of the user's files as the user knows them."""
        return CODE.sub(lambda _: f"{self._folder}/", text)


def fix_of(message: str, handler: str, python: str) -> str | None:
    """Return what to do about a failure that most handlers have once; None for any other."""
    if found := NO_MODULE.search(message):
        name = found[1]
        return f"{python} -m pip install {name}; and for the pods WORKER_SETUP_COMMAND='pip install {name}'"
    if found := NO_ATTRIBUTE.search(message):
        return f"define {found[2]} in {found[1].replace('.', '/')}.py, or correct WORKER_HANDLERS={handler}"
    if found := NOT_EXECUTABLE.search(message):
        return f"chmod +x {found[1]}"
    if found := BAD_FORMAT.search(message):
        return f"begin {found[1]} with a line such as #!/bin/sh"
    if found := NO_PROGRAM.search(message):
        return f"write cmd:./{found[1]} for a file of WORKER_CODE_DIR, or install the program {found[1]}"
    return None
