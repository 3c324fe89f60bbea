"""Workflows, templates, navigation and changelog: what only a platform would notice otherwise."""

import json
import os
import re
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import orchestrator
from orchestrator.cli import init_files
from orchestrator.config.environment import load
from orchestrator.config.settings import Settings
from orchestrator.config.validation import TO_RUN, require

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SQL_FUNCTION = re.compile(r"^create or replace function ([\w.]+)\(.*?\bas \$\$\n(.*?)\$\$;", re.MULTILINE | re.DOTALL)
SQL_TOKEN = re.compile(r"E'(?:\\.|[^'\\]|'')*'|'(?:[^']|'')*'|--[^\n]*", re.DOTALL)


def workflow(path: Path) -> dict[str, Any]:
    """Read a workflow. YAML 1.1 takes its key `on` for true."""
    read: dict[Any, Any] = yaml.safe_load(path.read_text())
    return {"on" if key is True else key: value for key, value in read.items()}


def run_variable(name: str) -> list[str]:
    """The words of an array in `./run`."""
    found = re.search(rf"^{name}=\((.*?)\)", (ROOT / "run").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].split()


def test_there_are_workflows_for_tests_proofs_and_releases() -> None:
    """Each has a name, and starts on something."""
    assert {path.stem for path in WORKFLOWS} == {"test", "nightly", "release"}
    for path in WORKFLOWS:
        assert workflow(path)["name"] == path.stem
        assert workflow(path)["on"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_bounds_few_rights_and_pinned_actions(path: Path) -> None:
    """A time limit for each job, rights that are named, and actions by commit."""
    read = workflow(path)
    assert "permissions" in read
    for name, job in read["jobs"].items():
        assert job["timeout-minutes"] <= 360, name
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        assert [one for one in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", one)] == []
        assert "@sha256:" in job.get("container", "@sha256:")


def test_every_night_runs_every_proof() -> None:
    """The matrix has the parts of `./run proofs`."""
    job = workflow(ROOT / ".github" / "workflows" / "nightly.yml")["jobs"]["proofs"]
    assert sorted(job["strategy"]["matrix"]["part"]) == sorted(run_variable("PARTS"))


def test_a_release_reads_the_registry_from_a_variable() -> None:
    """No registry stands in a workflow; wheel and image come with provenance and a list of contents."""
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    assert not [line for line in lines if re.search(r"ghcr\.io|docker\.io|quay\.io", line.partition(" #")[0])]
    jobs = workflow(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    used = {name: [str(step.get("uses", "")).partition("@")[0] for step in job["steps"]] for name, job in jobs.items()}
    assert {"actions/attest-build-provenance", "anchore/sbom-action"} <= set(used["wheel"])
    (build,) = (step for step in jobs["image"]["steps"] if "build-push" in str(step.get("uses", "")))
    assert build["with"]["sbom"] is True
    assert build["with"]["provenance"] == "mode=max"
    assert build["with"]["tags"].startswith("${{ vars.IMAGE_REGISTRY }}/")


def test_templates_and_hooks_can_be_read() -> None:
    """YAML and JSON; hooks use the locked tools and download nothing."""
    for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")):
        form = yaml.safe_load(path.read_text())
        assert path.name == "config.yml" or {"name", "description", "body"} <= form.keys()
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert {repository["repo"] for repository in repositories} == {"local"}
    assert all(hook["entry"].startswith(".venv/bin/") for repository in repositories for hook in repository["hooks"])
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "./run check"


def test_the_compose_file_sets_known_settings() -> None:
    """The orchestrator gets settings that exist, and each service that it names is there."""
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    ours = services["orchestrator"]
    assert set(ours["environment"]) <= {name.upper() for name in Settings.model_fields}
    assert set(ours["depends_on"]) == services.keys() - {"orchestrator"}


def test_the_orchestrator_of_the_compose_file_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With what its comment wants in .env. It shares the S3 server's network: http:// elsewhere would be refused."""
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    ours = services["orchestrator"]
    private, public = init_files.key_pair()
    own = {"RUNPOD_API_KEY": "rpa_0123456789", "RUNPOD_SSH_PRIVATE_KEY": private, "RUNPOD_SSH_PUBLIC_KEY": public}
    for name in [one for one in os.environ if one.lower() in Settings.model_fields]:
        monkeypatch.delenv(name)
    for name, value in {**own, "WORKER_JWT_SECRET": init_files.secret(), **ours["environment"]}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    require(load(), *TO_RUN)
    assert ours["network_mode"] == "service:s3"
    assert "127.0.0.1:8080:8080" in services["s3"]["ports"]


@pytest.mark.parametrize(
    ("code", "mounts"),
    [(None, None), ("handlers", ["./handlers:/app/handlers:ro"]), ("/srv/a$b c", ["/srv/a$$b c:/srv/a$$b c:ro"])],
)
def test_the_compose_file_of_init_mounts_the_handlers(code: str | None, mounts: list[str] | None) -> None:
    """The image has none, and the orchestrator does not start without their directory."""
    made = yaml.safe_load(init_files.compose(Path("compose.production.yaml"), "8080", code))
    assert made["services"]["orchestrator"].get("volumes") == mounts
    assert made["services"]["orchestrator"]["ports"] == ["127.0.0.1:8080:8080"], "it speaks plain HTTP"


def test_the_navigation_of_the_docs_has_every_page_once() -> None:
    """A new page of docs/ also goes into zensical.toml."""
    sections = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    entries = [entry for section in sections for entry in section.values()]
    listed = [page for entry in entries for page in ([entry] if isinstance(entry, str) else entry)]
    top = ["index.md", "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
    assert sorted(listed) == sorted([*top, *(path.name for path in (ROOT / "docs").glob("*.md"))])


@pytest.mark.parametrize(("page", "lines"), [("README.md", 80), ("ARCHITECTURE.md", 150)])
def test_the_pages_for_newcomers_stay_short(page: str, lines: int) -> None:
    """A new subject gets a page in docs/ and one link here."""
    assert len((ROOT / page).read_text().splitlines()) <= lines


def test_the_changelog_has_the_version_with_a_date() -> None:
    """Its sections are Added, Changed and Fixed."""
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = dict(re.findall(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d{2}-\d{2})\)$", text, re.MULTILINE))
    assert date.fromisoformat(versions[orchestrator.__version__]) >= date(2026, 11, 23)
    sections = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert sections
    assert sections <= {"Added", "Changed", "Fixed"}


def test_the_map_of_the_sql_functions_has_every_file_once() -> None:
    """A new file of migrations/functions/ also goes into CONTRIBUTING.md."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Find a SQL function")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "migrations" / "functions").rglob("*.sql"))


def test_sql_fits_on_a_screen() -> None:
    """A function has 70 lines at most, and a line 120 characters. Files of tables/ stay as they were applied."""
    files = [*(ROOT / "migrations" / "functions").rglob("*.sql"), *(ROOT / "migrations").glob("*.sql")]
    found = [one for path in files for one in SQL_FUNCTION.findall(path.read_text())]
    assert len(found) > 300
    assert [name for name, body in found if body.count("\n") > 70] == []
    lines = [(path.name, line) for path in files for line in path.read_text().splitlines() if len(line) > 120]
    assert [line for line in lines if line[0] != "adopting.sql"] == []


def test_no_sql_depends_on_how_a_session_reads_backslashes() -> None:
    """With standard_conforming_strings off, they escape: functions run in the sessions of users, too."""
    files = [*(ROOT / "migrations" / "functions").rglob("*.sql"), *(ROOT / "migrations").glob("*.sql")]
    found = [(path.name, one) for path in files for one in SQL_TOKEN.findall(path.read_text())]
    assert [(name, one) for name, one in found if one.startswith("'") and "\\" in one] == []
