"""A set-up command that cannot run costs a pod each time: it is tried here as far as it can be, and nothing is run."""

from pathlib import Path

import pytest

from orchestrator.config.command_check import command_problems
from orchestrator.config.doubtful import doubtful
from orchestrator.config.environment import load
from tests.unit.config.test_handler_check import folder

__all__ = ["folder"]


@pytest.fixture(autouse=True)
def scripts(folder: Path) -> Path:
    files = {
        "setup.sh": "#!/bin/bash\npip install -r requirements.txt\n", "plain.sh": "#!/bin/sh\ntrue\n",
        "wrong.sh": "#!/bin/sh\nif true; then\n", "windows.sh": "#!/usr/bin/env bash\r\ntrue\r\n",
        "requirements.txt": "numpy\n", ".env": "A=1\n", "deep/run.sh": "#!/bin/sh\n",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, newline="")
    for name in ("setup.sh", "wrong.sh", "windows.sh", "deep/run.sh"):
        (folder / name).chmod(0o755)
    return folder


def said(monkeypatch: pytest.MonkeyPatch, command: str, name: str = "WORKER_SETUP_COMMAND") -> list[str]:
    monkeypatch.setenv(name, command)
    return [". ".join(one) for one in command_problems(load())]


@pytest.mark.parametrize(
    "command",
    [
        "./setup.sh", "bash setup.sh", "sh plain.sh", ". ./plain.sh", "deep/run.sh --fast", "./windows.sh",
        "pip install -r requirements.txt", "python3 -m pip install -r requirements.txt -q",
        "apt-get update && ./made.sh",
        "git clone x y; bash y/setup.sh", "A=1 ./setup.sh", "cd deep && ./run.sh", "$HOME/setup.sh", "/opt/setup.sh",
        "touch /tmp/marker && false", "python -c 'print(1)'", "bash -lc 'x'", "(./setup.sh)", "./setup.sh | tee log",
    ],
)  # fmt: skip
def test_a_command_that_may_run_is_accepted(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Also one of which this machine cannot tell."""
    assert said(monkeypatch, command) == []


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("./missing.sh", "has no file ./missing.sh that is sent"),
        ("bash missing.sh && true", "has no file missing.sh that is sent"),
        ("A=1 B=2 ./missing.sh", "has no file ./missing.sh"),
        ("pip install -q -r requirement.txt", "has no file requirement.txt"),
        ("python setup.py", "has no file setup.py"),
        ("./plain.sh", "./plain.sh is not executable: chmod +x plain.sh"),
        ("./wrong.sh", "./wrong.sh: its shell syntax is wrong"),
        ("bash wrong.sh", "wrong.sh: its shell syntax is wrong"),
        ("if true; then ./setup.sh", "its shell syntax is wrong"),
        ("./setup.sh 'a", "its shell syntax is wrong"),
        (". .env", ".env is not sent"),
        ("source ./plain.sh && ./setup.sh", "source is a word of bash, which /bin/sh of most images does not know"),
    ],
)
def test_a_command_that_cannot_run_is_named(monkeypatch: pytest.MonkeyPatch, command: str, says: str) -> None:
    for name in ("WORKER_SETUP_COMMAND", "WORKER_START_COMMAND"):
        (one,) = said(monkeypatch, command, name)
        assert one.startswith(f"{name} cannot run. ")
        assert says in one
        monkeypatch.delenv(name)


def test_doctor_and_the_start_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_HANDLERS", "a=mine:hello")
    monkeypatch.setenv("WORKER_SETUP_COMMAND", "./missing.sh")
    assert [one.what for one in doubtful(load())] == ["WORKER_SETUP_COMMAND cannot run"]


def test_a_command_without_a_directory_has_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKER_CODE_DIR")
    (one,) = said(monkeypatch, "./setup.sh")
    assert "WORKER_CODE_DIR is not set, so no pod has ./setup.sh" in one
    assert said(monkeypatch, "pip install numpy") == []
