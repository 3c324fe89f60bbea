"""What is pushed to a pod is the same bytes for the same input, and runs on a bare Python 3.9."""

import ast
import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import worker
from orchestrator.config import code_files
from orchestrator.config.code_files import BadCode
from orchestrator.pods.bundle import build_bundle
from tests.process.worker.scripted import Orchestrator, Pod

WORKER = Path(worker.__file__).resolve().parent
SOURCES = sorted(WORKER.glob("*.py"))


def write(root: Path, name: str, content: str = "x = 1\n") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_same_input_same_bytes(tmp_path: Path) -> None:
    """Order of creation, times and caches do not matter; content, names and the executable bit do."""
    for name in ("a/handler.py", "b/data.json", "run.sh"):
        write(tmp_path / "one", name)
    for name in ("run.sh", "b/data.json", "a/handler.py", "a/__pycache__/x.pyc", ".git/config", "stale.pyc"):
        write(tmp_path / "two", name)
    one, two = build_bundle(tmp_path / "one"), build_bundle(tmp_path / "two")
    assert one == two
    assert one.code is not None
    assert (one.agent_sha, one.code_sha) == tuple(hashlib.sha256(x).hexdigest() for x in (one.agent, one.code))
    (tmp_path / "two" / "run.sh").chmod(0o755)
    assert build_bundle(tmp_path / "two").code_sha != one.code_sha


def test_scripts_are_sent_with_unix_line_ends(tmp_path: Path) -> None:
    """A shell would take the CR of a Windows checkout for a part of each word; data stays as it is."""
    for name, content in (("run.sh", b"set -e\r\n"), ("tool", b"#!/bin/sh\r\ntrue\r\n"), ("data.csv", b"a\r\nb\r\n")):
        (tmp_path / name).write_bytes(content)
    code = build_bundle(tmp_path).code
    assert code is not None
    with zipfile.ZipFile(io.BytesIO(code)) as sent:
        assert sent.read("run.sh") == b"set -e\n"
        assert sent.read("tool") == b"#!/bin/sh\ntrue\n"
        assert sent.read("data.csv") == b"a\r\nb\r\n"


def test_without_user_code() -> None:
    """No code directory, no second file."""
    made = build_bundle(None)
    assert (made.code, made.code_sha) == (None, None)
    names = zipfile.ZipFile(io.BytesIO(made.agent)).namelist()
    assert names == ["__main__.py", *(f"orchestrator_worker/{path.name}" for path in SOURCES)]


def test_too_much_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in the code directory is refused with its name and a way out; so is a directory that is none."""
    monkeypatch.setattr(code_files, "MAX_CODE_BYTES", 1 << 20)
    write(tmp_path, "handler.py")
    write(tmp_path, "model.bin", "x" * (1 << 20))
    with pytest.raises(BadCode, match=r"larger than 1 MB .*model\.bin") as refused:
        build_bundle(tmp_path)
    assert refused.value.problems[0].fix.startswith("keep models and data out")
    with pytest.raises(BadCode, match="is not a directory"):
        build_bundle(tmp_path / "absent")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_standard_library_and_old_syntax(path: Path) -> None:
    """Each file of the agent parses as Python 3.9 and imports the standard library and its own package only."""
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names), names


def test_start_imports_little() -> None:
    """What `start` loads before it forks leaves out the modules that would double its time."""
    code = "import sys, worker.__main__, worker.launch; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=30, check=True, cwd=WORKER.parent
    )
    heavy = {"argparse", "asyncio", "email", "http", "logging", "pathlib", "ssl", "subprocess", "typing", "urllib"}
    assert not heavy & set(done.stdout.split())


def test_users_own_worker_module(orchestrator: Orchestrator, tmp_path: Path) -> None:
    """A user may have a module or a package called `worker`: the agent's has another name on the pod."""
    pod = Pod(tmp_path, orchestrator, {"worker/__init__.py": "", "worker/x.py": "def f(p, t): return {'mine': True}\n"})
    pod.start({"mine": "worker.x:f"})
    orchestrator.submit("one", "mine")
    try:
        assert orchestrator.completion("one")["p_result_data"] == {"mine": True}
    finally:
        pod.stop()
