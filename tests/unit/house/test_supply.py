"""What the product is built from is pinned, and what it keeps secret does not enter the repository."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PINNED = re.compile(r"[a-z0-9./-]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}")


def test_every_base_image_is_pinned_by_digest() -> None:
    """A tag can name another image tomorrow; a digest cannot."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    images = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert images
    assert [image for image in images if not PINNED.fullmatch(image)] == []


def test_run_installs_nothing_without_hashes() -> None:
    """Each `pip install` in `./run`, that of the tools of `./run lock` included, accepts known files only."""
    script = (ROOT / "run").read_text().replace("\\\n", " ")
    installs = [line for line in script.splitlines() if "pip install" in line]
    assert installs
    assert [line.strip() for line in installs if "--require-hashes" not in line] == []


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
