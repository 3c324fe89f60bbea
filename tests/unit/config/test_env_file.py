"""The file `.env` gives settings and nothing else, and no file holds up a command."""

import os
from pathlib import Path

import pytest

from orchestrator.config.env_file import MAX_BYTES, MAX_LINE_CHARS, BadEnvFile, read_env_file


def read(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what the file adds to an environment with PATH and FLEET_ID."""
    path.write_text(text)
    environment = {"PATH": "/bin", "FLEET_ID": "set before"}
    monkeypatch.setattr(os, "environ", environment)
    read_env_file(path)
    return {name: value for name, value in environment.items() if name != "PATH" or value != "/bin"}


def test_the_environment_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quotes, comments and `export` are read as a shell reads them."""
    text = "FLEET_ID=mine\nexport S3_BUCKET='a b' # comment\nPATH=/tmp\n"
    assert read(tmp_path / ".env", text, monkeypatch) == {"FLEET_ID": "set before", "S3_BUCKET": "a b"}


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "DYLD_INSERT_LIBRARIES"])
def test_no_name_that_changes_how_programs_start_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The commands start others, which inherit the environment."""
    assert name not in read(tmp_path / ".env", f"{name}=/tmp/x\n", monkeypatch)


@pytest.mark.parametrize(
    ("text", "why"),
    [("A=x" + " " * MAX_LINE_CHARS + "y\n", "a line of more than"), ("A=x\n" * MAX_BYTES, "has more than")],
)
def test_a_file_that_would_take_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    """The parser's time grows with the square of a line's length."""
    with pytest.raises(BadEnvFile, match=why):
        read(tmp_path / ".env", text, monkeypatch)
