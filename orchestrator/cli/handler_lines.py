"""What `handlers test` shows of a handler's log and failure: the user's own files and frames, and a fix."""

import re
from pathlib import Path

TRACEBACK = "Traceback (most recent call last):"
FRAME = re.compile(r'  File "([^"]*)"')
CODE = re.compile(r"(?<![^\s'\"(])[^\s'\"(]*/user-[0-9a-f]{64}/")  # where the agent has unpacked the user's code
AGENT = re.compile(r"/agent-[0-9a-f]{64}\.pyz/")
NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^'.]+)")
NO_ATTRIBUTE = re.compile(r"AttributeError: module '([^']+)' has no attribute '([^']+)'")
NOT_EXECUTABLE = re.compile(r"PermissionError: \[Errno 13\] [^']{0,99}'([^']+)'")
NO_PROGRAM = re.compile(r"FileNotFoundError: \[Errno 2\] [^']{0,99}'([^'/]+)'$")
NO_FILE = re.compile(r"FileNotFoundError: \[Errno 2\] [^']{0,99}'([^']+)'$")
ARGUMENTS = re.compile(r"TypeError: (?:\w+\.)*(\w+)\(\) (?:takes|missing) ")
BAD_FORMAT = re.compile(r"OSError: \[Errno 8\] [^']{0,99}'([^']+)'")


class HandlerLines:
    """The lines of a log. Of a traceback, the agent's frames are left out, and all before the user's first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._within = self._begins = self._hides = False  # a traceback; before the user's first frame

    def shown(self, line: str) -> str | None:
        """Return a line as it is shown; None if it is not."""
        if line.endswith(TRACEBACK):  # what the handler printed last may have no line end
            self._begins = self._hides = self._within = True
            return line
        frame = FRAME.match(line)
        if not line.startswith("  "):
            self._begins = self._hides = self._within = False
        elif frame and self._within:
            self._begins = self._begins and not CODE.search(frame[1])
            self._hides = self._begins or bool(AGENT.search(frame[1]))
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
    return _fix_of_call(message, handler)


def _fix_of_call(message: str, handler: str) -> str | None:
    if (found := NO_FILE.search(message)) and handler.startswith("cmd:"):
        if Path(found[1]).is_file():
            return f"correct the first line of {found[1]}: it names a program that is not on this machine"
        if found[1].startswith("./"):
            return f"write {found[1][2:]} into WORKER_CODE_DIR, or correct WORKER_HANDLERS={handler}"
    if (found := ARGUMENTS.search(message)) and handler.endswith(f":{found[1]}"):
        return f"def {found[1]}(params, task): the agent calls it with these two"
    return None
