"""Build the docs site: docs/ and the pages of the top folder, with links between them. Exit status 1 on a broken link.

`python .ci/docs_site.py [DIRECTORY]` writes DIRECTORY/html (default: .site/html). README.md becomes the first page. A
link to a file that is no page, such as .env.example, becomes its text.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
BUILD_TIMEOUT_S = 300.0
TOP = {
    "README.md": "index.md",
    **{name: name for name in ("ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")},
}
LINK = re.compile(r"\[([^\]]*)\]\((?!#|[a-z]+:)([^)#\s]+)(#[^)\s]*)?\)")


def build(directory: Path) -> int:
    """Write the site; the exit status of the build, which is not 0 if a page or an anchor is missing."""
    shutil.rmtree(directory, ignore_errors=True)
    pages = directory / "docs"
    pages.mkdir(parents=True)
    for source in (*sorted((ROOT / "docs").glob("*.md")), *(ROOT / name for name in TOP)):
        name = TOP.get(source.name, source.name) if source.parent == ROOT else source.name
        (pages / name).write_text(linked(source.read_text(), source.parent))
    shutil.copytree(PICTURES, pages / PICTURES.name)
    shutil.copy(ROOT / "zensical.toml", directory)
    command = (sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(directory / "zensical.toml"))
    return subprocess.run(command, cwd=directory, check=False, timeout=BUILD_TIMEOUT_S).returncode


def linked(markdown: str, directory: Path) -> str:
    """Turn links between files of the repository, relative to `directory`, into links between pages of the site."""

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found[1], (directory / found[2]).resolve(), found[3] or ""
        if not target.exists() or not target.is_relative_to(ROOT):
            return found[0]  # the build reports it
        if target.parent in (ROOT / "docs", PICTURES):
            return f"[{text}]({target.relative_to(ROOT / 'docs')}{anchor})"
        name = TOP.get(target.name) if target.parent == ROOT else None
        return f"[{text}]({name}{anchor})" if name else text

    return LINK.sub(link, markdown)


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".site").resolve()))
