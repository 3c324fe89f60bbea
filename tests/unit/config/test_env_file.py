"""The file `.env` gives settings and nothing else, and no file holds up a command."""

import os
from pathlib import Path

import pytest

from orchestrator.config.env_file import MAX_BYTES, MAX_LINE_CHARS, BadEnvFile, read_env_file
from orchestrator.config.errors import SettingsError
from orchestrator.config.settings import Settings
from orchestrator.config.validation import require


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


@pytest.mark.parametrize("line", ['DATABASE_URL="postgresql://a', "DATABASE_URL: postgresql://a", "S3 BUCKET=b"])
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    """Otherwise a setting seems to be missing, which the user sees in the file."""
    with pytest.raises(BadEnvFile, match=r"^line 2 of .*\.env is neither NAME=VALUE nor a comment"):
        read(tmp_path / ".env", f"# ours\n{line}\nFLEET_ID=mine\n", monkeypatch)


def test_a_path_is_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts of the repository read its file from any directory; an absolute path stays as it is."""
    text = "WORKER_CODE_DIR=handlers\nPOOLS_FILE=/etc/pools.toml\nS3_PREFIX=handlers\n"
    given = read(tmp_path / ".env", text, monkeypatch)
    assert given["WORKER_CODE_DIR"] == str(tmp_path / "handlers")
    assert (given["POOLS_FILE"], given["S3_PREFIX"]) == ("/etc/pools.toml", "handlers")


def test_an_empty_directory_is_told_of_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first command that somebody types is often `list`."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "SUPABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for made, why in ((False, "this directory has no .env"), (True, "in the environment or in .env")):
        if made:
            (tmp_path / ".env").write_text("")
        with pytest.raises(SettingsError) as missing:
            require(Settings(), "database")
        (problem,) = missing.value.problems
        assert problem.why.endswith(why)
        assert problem.fix.startswith("python -m orchestrator init;")
