"""Rules of the house that no linter knows."""

import ast
import functools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import bench.run
import orchestrator
from orchestrator.config.environment import load
from orchestrator.config.errors import SettingsError

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = (ROOT / ".env.example").read_text()
ASSIGNMENT = re.compile(r"^([A-Za-z_][\w, ]*?)\s*(?::[^=\n]*)?=(?!=)", re.MULTILINE)  # at the top level: its targets
CHAIN = re.compile(r"^\w+ = \w+ = ", re.MULTILINE)
LOCKS = ("requirements.txt", "requirements-demo.txt", "requirements-dev.txt")


def _names(text: str) -> list[str]:
    return re.findall(r"^([A-Z][A-Z0-9_]*)=", text, re.MULTILINE)


def test_the_example_environment_can_be_filled_in_and_read_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a shell, and by `docker run --env-file`, which takes the quotes for a part of the value."""
    filled = EXAMPLE.replace("DATABASE_URL=\n", "DATABASE_URL='postgresql://user@host/db'\n")
    show = 'set -eua; eval "$0"; exec env -0'
    bare = {"PATH": os.environ["PATH"]}
    said = subprocess.run(["sh", "-c", show, filled], env=bare, capture_output=True, check=True, text=True).stdout
    by_shell = dict(line.split("=", 1) for line in said.split("\0") if line)
    by_docker = dict(line.split("=", 1) for line in filled.splitlines() if line and not line.startswith("#"))
    read = []
    for given in (by_shell, by_docker):
        for name in _names(EXAMPLE):
            monkeypatch.setenv(name, given[name])
        read.append(load())
    assert read[0] == read[1]
    assert read[0].runpod_gpu_type == ("NVIDIA GeForce RTX 4090",)
    assert read[0].database_url is not None
    assert read[0].database_url.get_secret_value() == "postgresql://user@host/db"


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file. Several tests look at the same files."""
    return ast.parse(path.read_text())


def may_set_twice(text: str) -> bool:
    """Tell whether a file may assign a name twice at its top level: most need not be parsed, which takes long."""
    names = [name for targets in ASSIGNMENT.findall(text) for name in re.findall(r"\w+", targets)]
    return len(names) > len(set(names)) or CHAIN.search(text) is not None


def test_no_constant_is_set_twice() -> None:
    """The later one would hold for those, too, who meant the earlier; no linter tells."""
    for part in ("orchestrator", "worker", "scripts", "bench", "tests"):
        for path in (ROOT / part).rglob("*.py"):
            if not may_set_twice(path.read_text()):
                continue
            names = [
                name.id
                for statement in parsed(path).body
                if isinstance(statement, ast.Assign | ast.AnnAssign)
                for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
                for name in ast.walk(target)
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            ]
            assert sorted(names) == sorted(set(names)), path


@pytest.mark.parametrize("path", sorted((ROOT / "worker").glob("*.py")), ids=lambda path: path.name)
def test_the_agent_imports_nothing_but_the_standard_library(path: Path) -> None:
    """worker/ runs on whatever Python the pod has, with nothing installed."""
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            imported.add(node.module.partition(".")[0])
    assert imported - set(sys.stdlib_module_names) <= {"worker"}


@pytest.mark.parametrize("name", [*LOCKS, "requirements-lock.txt"])
def test_locked_requirements_are_hashed_and_name_no_place(name: str) -> None:
    """Every requirement is exact and hashed; no index, host or path stands in the file."""
    text = (ROOT / name).read_text()
    requirements = re.findall(r"^[A-Za-z0-9].*$", text, re.MULTILINE)
    assert requirements
    assert all("==" in line for line in requirements)
    assert text.count("--hash=sha256:") >= len(requirements)
    assert not re.search(r"://|--index|--find-links|--trusted|@ ", text)


def test_the_locks_agree_with_each_other() -> None:
    """A package has one version in all three files, so that one environment serves the demo and the tests."""
    pins = [dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE)) for name in LOCKS]
    runtime, demo, dev = pins
    assert runtime.items() <= demo.items() <= dev.items()


def test_the_locks_hold_what_the_project_asks_for() -> None:
    """Each dependency in pyproject.toml is pinned, in the file of its set."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    more = project["optional-dependencies"]
    for name, asked in zip(LOCKS, (project["dependencies"], more["demo"], more["dev"]), strict=True):
        pinned = set(re.findall(r"^([\w.-]+)(?:\[\w+\])?==", (ROOT / name).read_text(), re.MULTILINE))
        wanted = {re.split(r"[\[<>=!]", line)[0].lower() for line in asked}
        assert wanted - {project["name"]} <= pinned, name


def test_stages_may_be_given_other_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the ladder's own names; another name is refused with the list of them."""
    monkeypatch.setenv("BRINGUP_DEADLINES", "pod_running=900, tcp=30")
    assert dict(load().bringup_deadlines) == {"pod_running": 900, "tcp": 30}
    for wrong in ("tpc=30", "tcp", "tcp=0", "tcp=soon", "intent=5", "pod_created=6"):
        monkeypatch.setenv("BRINGUP_DEADLINES", wrong)
        with pytest.raises(SettingsError, match="BRINGUP_DEADLINES"):
            load()


def test_the_map_of_the_package_names_what_is_there() -> None:
    """Every file and directory in the docstring that says where to look first."""
    named = re.findall(r"\b(\w+(?:\.py\b|/))", orchestrator.__doc__ or "")
    assert len(named) >= 20
    there = {path.name for path in (ROOT / "orchestrator").rglob("*")}
    assert [name for name in named if name.rstrip("/") not in there] == []


def test_a_benchmark_that_there_is_not_is_answered_with_the_names_once() -> None:
    """Not in the usage line, the name of the argument and the error, one after the other."""
    answer = CliRunner().invoke(bench.run.main, ["nope"])
    assert answer.exit_code == 2
    assert all(answer.output.count(f"'{name}'") == 1 == answer.output.count(name) for name in ("pickup", "thousand"))


PRODUCT = ("orchestrator", "worker", "testbed", "demo")
PRIVATE_WORDS = {  # docs/glossary.md has the field's terms
    "ail", "ailment", "ails", "amiss", "anew", "ascend", "ascent", "beats", "bury", "climb", "deaf", "door", "doors",
    "errand", "fate", "farewell", "forsaken", "hearing", "heir", "knock", "knocked", "knocking", "ladder",
    "last_words", "leash", "market", "mend", "mended", "mischief", "presence", "purse", "reap", "reaped", "renter",
    "rung", "scene", "stranger", "strangers", "succession", "verdict", "whom",
}  # fmt: skip
VAGUE_WORDS = frozenset({"common", "do", "handle", "helper", "helpers", "manager", "process", "util", "utils"})
# Methods of asyncssh and http.server that a class overrides.
NOT_OURS = frozenset({"process_packet", "do_POST", "do_PUT", "do_HEAD"})


def definitions(part: str) -> list[tuple[Path, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every class and function of a package."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    trees = [(path, parsed(path)) for path in sorted((ROOT / part).rglob("*.py"))]
    return [
        (path.relative_to(ROOT), node) for path, tree in trees for node in ast.walk(tree) if isinstance(node, kinds)
    ]


def test_no_two_classes_share_a_name() -> None:
    """A reader who searches for a class finds one."""
    places: dict[str, list[str]] = {}
    for part in PRODUCT:
        for path, node in definitions(part):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_names_are_standard_terms() -> None:
    """Classes, functions and variables use the terms of docs/glossary.md; functions do not begin with a vague verb."""
    found = []
    for part in PRODUCT:
        for path in sorted((ROOT / part).rglob("*.py")):
            names = {name.id for name in ast.walk(parsed(path)) if isinstance(name, ast.Name)}
            words = {word for name in names for word in [name.lower().strip("_"), *name.lower().split("_")]}
            found += [f"{path.relative_to(ROOT)}: {word}" for word in sorted(words & PRIVATE_WORDS)]
        for path, node in definitions(part):
            words = set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.name).lower().strip("_").split("_"))
            first = node.name.lower().strip("_").partition("_")[0]
            vague = first in VAGUE_WORDS and "_" in node.name.strip("_") and node.name not in NOT_OURS
            if words & PRIVATE_WORDS or vague:
                found.append(f"{path}:{node.lineno}: {node.name}")
    assert found == []
