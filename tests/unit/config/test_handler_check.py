"""Mistakes in the settings that would cost money: found without importing the user's code, before a pod is rented."""

import os
from pathlib import Path

import pytest

from orchestrator.config.doubtful import doubtful, is_floating
from orchestrator.config.environment import load
from orchestrator.config.errors import SettingsError
from orchestrator.config.validation import require

CODE = """
from helpers import imported
raise SystemExit("nothing may run this")
def hello(params, task): ...
async def later(params, task): ...
class Job:
    def run(self, params, task): ...
if True:
    def conditional(params, task): ...
alias = hello
called()
"""  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with handlers, and nothing else set."""
    for name in os.environ:
        monkeypatch.delenv(name)
    files = {
        "mine.py": CODE, "broken.py": "def f(:\n", "stars.py": "from mine import *\n", "package/__init__.py": "",
        "package/deep.py": CODE, "count.sh": "#!/bin/sh\n",
    }  # fmt: skip
    for name, text in files.items():
        path = tmp_path / "code" / name
        path.parent.mkdir(exist_ok=True)
        path.parent.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "code" / "count.sh").chmod(0o755)
    monkeypatch.setenv("WORKER_CODE_DIR", str(tmp_path / "code"))
    return tmp_path / "code"


@pytest.mark.parametrize(
    "target",
    [
        "mine:hello", "mine:later", "mine:Job.run", "mine:conditional", "mine:alias", "mine:imported", "stars:anything",
        "package.deep:hello", "json:loads", "cmd:./count.sh --fast", "cmd:ffmpeg -version",
    ],
)  # fmt: skip
def test_a_handler_that_is_there_is_accepted(folder: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """However its module defines it. Nothing is imported."""
    monkeypatch.setenv("WORKER_HANDLERS", f"a={target}")
    assert list(doubtful(require(load(), "handlers"))) == []


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nosuch:fn", "has no nosuch.py"),
        ("mine:gone", "mine.py has no gone; it has hello"),
        ("mine:called", "mine.py has no called"),
        ("package:hello", "has no hello; it has no function"),
        ("package.gone:hello", "has no package/gone.py"),
        ("cmd:./gone.sh", "has no file ./gone.sh"),
        ("cmd:'", "cannot be split into words"),
        ("mine.py:hello ", "has no mine/py.py"),
        ("a/b:hello", "not module:function"),
    ],
)
def test_a_handler_that_does_not_exist_stops_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, says: str
) -> None:
    """With what is missing, and how to try it."""
    monkeypatch.setenv("WORKER_HANDLERS", f"a={target}")
    with pytest.raises(SettingsError) as caught:
        require(load(), "handlers")
    (problem,) = caught.value.problems
    assert says in problem.why
    assert "handlers test a" in problem.fix


@pytest.mark.parametrize(
    ("target", "more"),
    [
        ("nosuch:fn", {"WORKER_SETUP_COMMAND": "pip install nosuch"}),
        ("nosuch:fn", {"RUNPOD_WORKER_IMAGE": "registry.example/mine:1"}),
        ("nosuch:fn", {"WORKER_CODE_DIR": "", "RUNPOD_WORKER_IMAGE": "registry.example/mine:1"}),
        ("broken:f", {"WORKER_SETUP_COMMAND": "true"}),
    ],
)
def test_what_the_pod_itself_may_have_is_a_doubt(
    folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, more: dict[str, str]
) -> None:
    """The start is not refused: a package may be installed there, or its Python may be newer."""
    for name, value in {"WORKER_HANDLERS": f"a={target}", **more}.items():
        monkeypatch.setenv(name, value)
    (doubt,) = doubtful(require(load(), "handlers"))
    assert "does not exist" in doubt.what
    assert "may bring it" in doubt.why


def test_an_empty_folder_stops_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One problem, not one for each handler. Compiled files are not sent, so they do not count."""
    empty = folder.parent / "empty"
    (empty / "__pycache__").mkdir(parents=True)
    (empty / "__pycache__" / "a.pyc").write_bytes(b"")
    monkeypatch.setenv("WORKER_CODE_DIR", str(empty))
    monkeypatch.setenv("WORKER_HANDLERS", "a=a:f,b=b:f")
    with pytest.raises(SettingsError, match="WORKER_CODE_DIR has no file"):
        require(load(), "handlers")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"WORKER_HANDLERS": ""}, "WORKER_HANDLERS is not set"),
        ({"RUNPOD_WORKER_IMAGE": "runpod/pytorch"}, "runpod/pytorch has no fixed tag"),
        ({"MAX_ACTIVE_GPUS": "0"}, "MAX_ACTIVE_GPUS is 0"),
    ],
)
def test_what_is_probably_not_meant_is_a_doubt(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], says: str
) -> None:
    """Each with a reason and a fix."""
    for name, value in {"WORKER_HANDLERS": "a=mine:hello", **given}.items():
        monkeypatch.setenv(name, value)
    (doubt,) = doubtful(require(load(), "handlers"))
    assert says in doubt.what
    assert all(doubt)


@pytest.mark.parametrize(
    ("image", "floats"),
    [("a/b", True), ("host:5000/a", True), ("a:latest", True), ("host:5000/a:1", False), ("a@sha256:0", False)],
)
def test_a_tag_or_a_digest_fixes_an_image(image: str, floats: bool) -> None:
    """A port is no tag."""
    assert is_floating(image) is floats
