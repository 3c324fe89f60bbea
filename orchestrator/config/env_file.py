"""The file `.env`: settings for every command. The environment takes precedence.

It is the one of the working directory; the scripts of the repository also find the one there.

This module imports no setting, so `--help` stays fast.
"""

import os
import re
from pathlib import Path

ENV_FILE = Path(".env")
MAX_BYTES = 64 << 10
MAX_LINE_CHARS = 8 << 10  # python-dotenv's time grows with the square of a line's length
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
# Names by which a file could change how this process and its children start. They are ignored.
IGNORED = re.compile(r"PATH|BASH_ENV|ENV|IFS|(LD|DYLD)_.*|PYTHON.*")
PATHS = frozenset({"WORKER_CODE_DIR", "POOLS_FILE"})
NO_FILES = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class BadEnvFile(Exception):
    """The file exists and cannot be used. The text never contains a value."""


def read_env_file(path: Path = ENV_FILE) -> None:
    """Add the variables of the file to the environment, without those that are set. Raises BadEnvFile.

    A path in a file of another directory is relative to that directory.
    """
    try:
        if not path.is_file():  # a directory or a pipe of this name is not ours
            return
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except NO_FILES:
        return
    except UnicodeDecodeError:
        raise BadEnvFile(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise BadEnvFile(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise BadEnvFile(f"{path} has more than {MAX_BYTES >> 10} KiB")
    if any(len(line) > MAX_LINE_CHARS for line in text.splitlines()):
        raise BadEnvFile(f"{path} has a line of more than {MAX_LINE_CHARS} characters")
    if "\0" in text:
        raise BadEnvFile(f"{path} has a NUL character")
    values, unread = _values(text)
    if unread:
        raise BadEnvFile(f"line {unread} of {path} is neither NAME=VALUE nor a comment; is a quote left open?")
    for name, value in values.items():
        if value is not None and NAME.fullmatch(name) and not IGNORED.fullmatch(name):
            os.environ.setdefault(name, str(path.parent / value) if value and name in PATHS else value)


def _values(text: str) -> tuple[dict[str, str | None], int | None]:
    """Return the variables, and the first line that cannot be read."""
    import io  # noqa: PLC0415  most commands are called without such a file

    from dotenv.parser import parse_stream  # noqa: PLC0415

    found = list(parse_stream(io.StringIO(text)))
    unread = next((one.original.line for one in found if one.error), None)
    return {one.key: one.value for one in found if one.key is not None}, unread
