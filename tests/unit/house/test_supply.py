"""What the product is built from is pinned, and what it keeps secret does not enter the repository."""

import re
import subprocess
import tomllib
from collections import deque
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
PINNED = re.compile(r"[a-z0-9./-]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}")


def test_every_base_image_is_pinned_by_digest() -> None:
    """A tag can name another image tomorrow; a digest cannot."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    images = [line.split()[1] for line in lines if line.startswith("FROM ")]
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values()
    images += [service["image"] for service in services if "image" in service]
    assert len(images) == 3
    assert [image for image in images if not PINNED.fullmatch(image)] == []


def test_what_is_installed_is_what_the_lock_names() -> None:
    """Each `pip install`, that of the tools of `./run lock` included, accepts known files only and looks for no others.

    Without --no-deps, pip before 23.3 chose the newest pydantic for a package that asks for "pydantic[email]", and the
    installation failed on the day of pydantic's next release.
    """
    for name in ("run", "Dockerfile"):
        script = (ROOT / name).read_text().replace("\\\n", " ")
        installs = [line.strip() for line in script.splitlines() if "pip install" in line]
        assert installs, name
        for flag in ("--no-deps", "--require-hashes"):
            assert [line for line in installs if flag not in line] == [], f"{name}: {flag}"


@pytest.mark.parametrize(
    ("file", "extras"),
    [("requirements.txt", ()), ("requirements-demo.txt", ("demo",)), ("requirements-dev.txt", ("dev",))],
)
def test_a_lock_names_everything_that_is_needed(file: str, extras: tuple[str, ...]) -> None:
    """Pip resolves nothing (--no-deps), so the file must be complete: from pyproject.toml through every dependency."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", (ROOT / file).read_text(), re.MULTILINE))
    locked = {canonicalize_name(name): version for name, version in locked.items()}
    wanted = deque(map(Requirement, project["dependencies"]))
    wanted.extend(Requirement(line) for extra in extras for line in project["optional-dependencies"][extra])
    seen: set[str] = set()
    while wanted:
        requirement = wanted.popleft()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        if canonicalize_name(requirement.name) == project["name"]:  # an extra that names other extras
            wanted.extend(
                Requirement(line) for extra in requirement.extras for line in project["optional-dependencies"][extra]
            )
            continue
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), f"{requirement} is locked as {version}"
        for line in metadata.requires(requirement.name) or []:
            further = Requirement(line)
            if further.marker is None or any(
                further.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
            ):
                wanted.append(further)
    assert len(seen) > len(project["dependencies"])


def test_every_locked_requirement_has_hashes() -> None:
    """The tools of `./run lock` too: `requirements-lock.txt`."""
    files = sorted(ROOT.glob("requirements*.txt"))
    assert ROOT / "requirements-lock.txt" in files
    for file in files:
        text = file.read_text().replace("\\\n", " ")
        packages = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        assert packages
        assert [line for line in packages if "==" not in line or "--hash=sha256:" not in line] == [], file.name


def test_git_ignores_every_key_that_the_docs_create() -> None:
    """A private key that follows the README must not be one `git add .` away from being published."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    made = {name for page in pages for name in re.findall(r"ssh-keygen[^`\n]* -f ([\w./-]+)", page.read_text())}
    assert "key" in made
    for name in sorted(made | {f"{name}.pub" for name in made}):
        done = subprocess.run(["git", "check-ignore", "--quiet", name], cwd=ROOT, check=False)
        assert done.returncode == 0, f"{name} is not ignored"


def test_the_threat_model_is_written_down() -> None:
    """Who attacks, what is protected, what is not, and how to report."""
    headings = re.findall(r"^## (.+)$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    for wanted in ("Assets", "Actors", "What is protected", "What is not protected", "Report a vulnerability"):
        assert wanted in headings
