"""Order, honesty about what cannot run here, and the stack that end-to-end tests share."""

import gc
import os
import shutil
from pathlib import Path

import pytest

from testbed.services.postgres import INSTALLATION, installed

# Cheap tests first: a failure should show early.
ORDER = (
    *("unit/house", "unit/core", "unit/diagnostics"),
    *("process/worker", "process/web", "process/cli", "process/emulator"),
    *("db/conformance", "db/diagnostics", "db/privilege"),
    *("proofs/storm", "proofs/model", "proofs/fuzz", "proofs/simulator", "proofs/crash"),
    *("process/bringup", "process/worker_logs", "process/secrets", "process/guide", "process/incidents"),
    *("process/e2e", "process/service", "proofs/fault_matrix", "proofs/chaos"),
)
TESTS = Path(__file__).parent
ROOT = TESTS.parent
gc.set_threshold(50_000, *gc.get_threshold()[1:])  # looking at each 700 is a twentieth of the time
NOT_RUN = pytest.StashKey[dict[str, int]]()
EXTRA_PATH = os.pathsep.join(("/usr/sbin", "/sbin", "/usr/local/sbin"))  # where sshd is, for people who are not root


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the whole of tests/process/e2e can be run over, and another PostgreSQL for tests of the database."""
    parser.addoption(
        "--transport", choices=["direct", "supabase"], help="run tests/process/e2e over this transport alone"
    )
    parser.addoption("--postgres", metavar="VERSION", help="use this version of Debian's, e.g. 15")


def pytest_configure(config: pytest.Config) -> None:
    """Select the installation in the environment, from which the processes that tests start inherit it."""
    if version := config.getoption("--postgres"):
        os.environ.update(debian_postgres(version))


def debian_postgres(version: str) -> dict[str, str]:
    """Return the environment that selects this version, installed or unpacked by .ci/postgres."""
    place = Path("usr/lib/postgresql") / version
    unpacked = ROOT / f".postgres-{version}"
    for root in (Path("/"), unpacked):
        if (root / place / "bin/postgres").exists():
            # Unpacked programs find their own files by relative paths, but not the libraries of other packages.
            libraries = sorted({str(file.parent) for file in unpacked.glob("usr/lib/*/*.so*")})
            return {INSTALLATION: str(root / place)} | (
                {"LD_LIBRARY_PATH": os.pathsep.join(libraries)} if root == unpacked else {}
            )
    raise pytest.UsageError(f"PostgreSQL {version} is not installed: run .ci/postgres {version} (Debian or Ubuntu)")


def pytest_report_header() -> str:
    """Name the server."""
    return f"PostgreSQL: {installed()}"


def program(name: str) -> str | None:
    """Where a program is, looking also where root's programs are."""
    return shutil.which(name) or shutil.which(name, path=EXTRA_PATH)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort by part; take out what needs a program that this machine lacks, and remember it."""
    missing: dict[str, int] = {}
    kept, dropped = [], []
    for item in items:
        marker = item.get_closest_marker("needs_program")
        if marker is not None and program(marker.args[0]) is None:
            name, package = marker.args
            reason = f"{name} is not installed (Debian: apt-get install {package})"
            missing[reason] = missing.get(reason, 0) + 1
            dropped.append(item)
        else:
            kept.append(item)
    kept.sort(key=_rank)  # stable: the order within a file stays
    items[:] = kept
    config.stash[NOT_RUN] = missing
    if dropped:
        config.hook.pytest_deselected(items=dropped)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name at the end what was not run and why."""
    missing = config.stash.get(NOT_RUN, {})
    if missing:
        terminalreporter.section("not run on this machine")
        for reason, count in sorted(missing.items()):
            terminalreporter.write_line(f"{count} test{'s' if count > 1 else ''}: {reason}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Where packages can be installed (CI), a gap is a failure."""
    if session.config.stash.get(NOT_RUN, {}) and os.environ.get("CI") == "true" and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _rank(item: pytest.Item) -> int:
    inside = item.path.is_relative_to(TESTS)
    part = "/".join(item.path.relative_to(TESTS).parts[:2]) if inside else ""
    return ORDER.index(part) if part in ORDER else len(ORDER)
