"""The docs site builds, and every link on it leads somewhere."""

import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.process.packaging.conftest import ROOT

BUILD_TIMEOUT_S = 240.0


class Page(HTMLParser):
    """The links of a page and the places in it that links can name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect `href`, `src` and `id`."""
        named = dict(attrs)
        self.links += [link for name in ("href", "src") if (link := named.get(name)) and tag != "base"]
        self.anchors |= {place for name in ("id", "name") if (place := named.get(name))}


def build(directory: Path, *, script: Path = ROOT / ".ci" / "docs_site.py") -> subprocess.CompletedProcess[str]:
    """`python .ci/docs_site.py`, in a process of its own."""
    command = (sys.executable, str(script), str(directory))
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; the build itself refuses links to pages and anchors that do not exist."""
    directory = tmp_path_factory.mktemp("site")
    done = build(directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory / "html"


def test_every_page_of_the_repository_is_on_the_site(site: Path) -> None:
    """Those of docs/, and those of the top folder that are for users."""
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    pages |= {"index", "ARCHITECTURE", "SECURITY", "CONTRIBUTING", "CHANGELOG"}
    assert {path.stem for path in site.glob("*.html")} == pages | {"404"}


def test_the_navigation_follows_the_order_of_the_readme() -> None:
    """A person needs the pages in this order."""
    listed = (ROOT / "README.md").read_text().partition("## Documentation")[2]
    wanted = [link for link in re.findall(r"\]\((?:docs/)?(\w[\w-]*\.md)\)", listed) if link != "CONTRIBUTING.md"]
    sections = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    found = [value for section in sections for value in section.values()]
    pages = [page for value in found for page in ([value] if isinstance(value, str) else value)]
    assert [page for page in pages if page not in {"index.md", "CONTRIBUTING.md", "CHANGELOG.md"}] == wanted


def test_every_link_leads_somewhere(site: Path) -> None:
    """In the finished pages, the navigation included."""
    pages = {path: Page(path) for path in site.glob("*.html") if path.stem != "404"}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            known = pages.get(target)
            if not target.exists() or (parts.fragment and known and parts.fragment not in known.anchors):
                broken.append(f"{path.name}: {link}")
    assert broken == []


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    """A page and an anchor that do not exist."""
    copy = tmp_path / "checkout"
    for path in (ROOT / ".ci" / "docs_site.py", ROOT / "zensical.toml", *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.*")):
        place = copy / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    (copy / "docs" / "tasks.md").write_text("# Tasks\n\n[a page](missing.md), [a place](#nowhere)\n")
    done = build(tmp_path / "site", script=copy / ".ci" / "docs_site.py")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "page does not exist" in said
    assert "anchor does not exist" in said
