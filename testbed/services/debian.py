"""Programs of Debian packages: installed on this machine, or unpacked by .ci/debian into .debian/<package>."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

UNPACKED = Path(__file__).resolve().parents[2] / ".debian"
LIBRARIES = ("lib/*/*.so*", "usr/lib/*/*.so*", "usr/lib/*/slurm-wlm/libslurm*.so")
NODE = UNPACKED.parent / "clients" / "typescript" / "node_modules" / ".bin"  # .ci/typescript fills it
SLURM = "slurm-wlm"  # with munge
SYSTEM_PLACES = ("/usr/sbin", "/sbin", "/usr/local/sbin")  # not on PATH for users other than root


class NotInstalled(Exception):
    """Neither installed nor unpacked; the text says how to get it."""


@dataclass(frozen=True, slots=True)
class Program:
    """The path of a program, and the environment that it needs to find its libraries."""

    path: Path
    environment: dict[str, str]


def find(name: str, package: str) -> Program | None:
    """Return a program, the installed one first, or None."""
    for place in (os.environ.get("PATH", os.defpath), os.pathsep.join(SYSTEM_PLACES), str(NODE)):
        if found := shutil.which(name, path=place):
            return Program(Path(found), {})
    # Unpacked, the script /usr/bin/chromium would look for its program on the machine: usr/lib comes first.
    own = ("usr/lib/" + package, "usr/bin", "usr/sbin")
    places = os.pathsep.join(str(UNPACKED / package / place) for place in own)
    found = shutil.which(name, path=places)
    return Program(Path(found).absolute(), _libraries(package)) if found else None


def lacking(name: str, package: str, fix: str = "") -> str | None:
    """Say that this machine lacks a program, and how to get it; None if it has it."""
    fix = fix or f"Debian: apt-get install {package}"
    return None if find(name, package) else f"{name} is not installed ({fix})"


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What a shell needs to run the programs of a package that is unpacked, not installed: nothing by default."""

    places: tuple[str, ...] = ()  # for PATH
    environment: Mapping[str, str] = field(default_factory=dict)


def unpacked(package: str, program: str) -> Unpacked:
    """Where a package is unpacked, if its program is found there and not installed."""
    root, found = UNPACKED / package, find(program, package)
    if found is None or not found.path.is_relative_to(root):
        return Unpacked()
    places = tuple(str(root / place) for place in ("usr/bin", "usr/sbin") if (root / place).is_dir())
    return Unpacked(places, found.environment)


def faketime() -> Path | None:
    """The library that gives a program another clock, or None; `.ci/debian faketime` brings it."""
    for root in (Path("/"), UNPACKED / "faketime"):
        for found in sorted(root.glob("usr/lib/*/faketime/libfaketime.so.1")):
            return found
    return None


def postgres(version: str) -> Program:
    """Return the directory of an installation of PostgreSQL (with bin, lib and share). Raises NotInstalled."""
    place = Path("usr/lib/postgresql") / version
    package = f"postgresql-{version}"
    if (Path("/") / place / "bin/postgres").exists():
        return Program(Path("/") / place, {})
    if (UNPACKED / package / place / "bin/postgres").exists():
        return Program(UNPACKED / package / place, _libraries(package))
    raise NotInstalled(f"PostgreSQL {version} is not installed; fix: .ci/debian {package} (Debian or Ubuntu)")


def _libraries(package: str) -> dict[str, str]:
    """Unpacked programs find their own files by relative paths, but not the libraries of other packages."""
    root = UNPACKED / package
    places = sorted({str(file.parent) for pattern in LIBRARIES for file in root.glob(pattern)})
    return {"LD_LIBRARY_PATH": os.pathsep.join(places)} if places else {}
