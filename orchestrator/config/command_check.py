"""Whether WORKER_SETUP_COMMAND and WORKER_START_COMMAND can run, as far as this machine can tell. Nothing is run.

The shell's own parser reads the command, and each script of WORKER_CODE_DIR that it calls. The first program is looked
for among the files that are sent; what comes after it may create files, so their absence is no fault.
"""

import os
import posixpath
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.config.code_files import BadCode, Code, code_files
from orchestrator.config.errors import SettingProblem

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings

PARSE_S = 5.0  # for a shell to read one script
MAX_SCRIPT_BYTES = 1 << 20
WHY_CHARS = 200
SHELLS = ("sh", "bash", "dash")
READERS = frozenset({*SHELLS, "python", "python3", "."})  # programs whose first argument is a file
LISTS = {"-r": "requirement", "--requirement": "requirement", "-c": "constraint", "--constraint": "constraint"}  # pip
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
PLAIN = re.compile(r"[\w./+@:=-]+")  # a word that no expansion changes
ENDS = frozenset({"&&", "||", ";", "|", "&", ";;", "(", ")", "\n"})


def command_problems(settings: "Settings") -> list[SettingProblem]:
    """Return what would keep the commands from running on a pod, at most one entry for each."""
    commands = {
        "WORKER_SETUP_COMMAND": settings.worker_setup_command,
        "WORKER_START_COMMAND": settings.worker_start_command,
    }
    if not any(commands.values()):
        return []
    try:
        folder = settings.worker_code_dir
        code = code_files(folder, settings.secrets()) if folder is not None and os.path.isdir(folder) else None  # noqa: PTH112  Path raises for long names
    except BadCode:  # the check of the handlers reports it
        return []
    return [problem for name, text in commands.items() if text for problem in _of(name, text, folder, code)][:2]


def _of(name: str, command: str, folder: Path | None, code: Code | None) -> Iterator[SettingProblem]:
    fix = f"correct {name}, or the file; it runs in WORKER_CODE_DIR on the pod, with /bin/sh"
    why = _unparsable("sh", command.encode()) or next(_missing(command, folder, code), None)
    if why is not None:
        yield SettingProblem(f"{name} cannot run", why, fix)


def _missing(command: str, folder: Path | None, code: Code | None) -> Iterator[str]:
    """Yield why the first program of the command cannot run."""
    words = _first(command)
    program, arguments = (words[0], words[1:]) if words else ("", [])
    if not PLAIN.fullmatch(program):
        return
    if program == "source":
        yield f"source is a word of bash, which /bin/sh of most images does not know: write . {' '.join(arguments[:1])}"
    named = [program] if program.startswith("./") or ("/" in program and not program.startswith("/")) else []
    is_called = bool(named)
    if program in READERS and arguments and not arguments[0].startswith("-"):
        named = arguments[:1]
    if posixpath.basename(program) in {"pip", "pip3", "uv"} or arguments[:2] == ["-m", "pip"]:
        named += [value for option, value in pairwise(arguments) if option in LISTS]
    for word in named:
        if not PLAIN.fullmatch(word) or word.startswith("/"):
            continue
        path = posixpath.normpath(word)
        if code is None:
            yield f"WORKER_CODE_DIR is not set, so no pod has {word}"
        elif path not in code.files:
            yield code.why_not(path) or f"{folder} has no file {word} that is sent"
        else:
            yield from _unusable(word, code, path, is_called=is_called, shell=program)


def _unusable(word: str, code: Code, path: str, *, is_called: bool, shell: str) -> Iterator[str]:
    file = code.files[path]
    first = file.content[:WHY_CHARS].splitlines()[:1]
    shebang = first[0].decode(errors="replace") if first and first[0].startswith(b"#!") else ""
    if is_called and os.name == "posix" and not file.is_executable:
        yield f"{word} is not executable: chmod +x {path}"
    interpreter = posixpath.basename(shebang.split()[-1]) if shebang.split() else ""
    reader = interpreter if is_called and interpreter in SHELLS else shell if shell in SHELLS else ""
    if reader and (why := _unparsable(reader, file.content.replace(b"\r\n", b"\n"))):  # it is sent with LF
        yield f"{word}: {why}"


def _first(command: str) -> list[str]:
    """Return the words of the first simple command, without assignments; [] if it cannot be split."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if word in ENDS or set(word) <= set("();<>|&"):
                break
            if words or not ASSIGNMENT.match(word):
                words.append(word)
    except ValueError:
        return []
    return words


def _unparsable(shell: str, script: bytes) -> str | None:
    """Return the shell's complaint about the syntax; None if it has none, or is not here."""
    program = shutil.which(shell)
    if program is None or len(script) > MAX_SCRIPT_BYTES:
        return None
    try:
        done = subprocess.run([program, "-n"], input=script, capture_output=True, timeout=PARSE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode == 0:
        return None
    said = done.stderr.decode(errors="replace").strip().partition("\n")[0]  # the next line may quote a secret
    return f"its shell syntax is wrong: {said.removeprefix(f'{program}: ')[:WHY_CHARS]}"
