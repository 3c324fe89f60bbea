"""Scheduling of the test run, another PostgreSQL on request, and a list of what this machine cannot run."""

import asyncio
import gc
import inspect
import os
import signal
import threading
from collections.abc import AsyncIterator, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from testbed.services import debian
from testbed.services.postgres import INSTALLATION, installed
from testbed.tasks import places
from tests.bounds import alarm, bound_s, bounded

if TYPE_CHECKING:
    from testbed.shared_services import SharedServices

TESTS = Path(__file__).parent
# The first part of a path that matches names the tests' place in the queue. Tests that mostly wait start first, so that
# the others fill the processor meanwhile.
ORDER = (
    *(
        "proofs/chaos",
        "process/e2e",
        "process/clusters",
        "proofs/fault_matrix",
        "process/packaging",
        "process/guide",
        "process/incidents",
    ),
    *("process/secrets", "process/service", "process/worker_logs", "process/cli", "process/emulator", "proofs/crash"),
    *("proofs/storm", "proofs/simulator", "proofs/fuzz", "process/web", "process/worker"),
    *("process/bringup", "db", "unit"),
)
# Directories whose files go to different worker processes. In every other directory the tests stay in one worker
# process, because their session fixtures (servers, whole stacks) cost more than the distribution gains.
BY_FILE = (
    *("unit", "db/conformance", "process/cli", "process/e2e", "process/bringup", "process/clusters", "process/worker"),
)
# Long tests, each with its own processes.
BY_TEST = ("process/e2e/test_demo.py", "proofs/simulator/test_sim.py", "proofs/fault_matrix/test_clusters.py")
GC_THRESHOLD = 50_000  # allocations; the default of 700 costs a twentieth of the run
STUCK_S = 870.0  # then a test says where its tasks wait; at faulthandler_timeout its process is ended
NOT_RUN = pytest.StashKey[dict[str, int]]()
STDERR = pytest.StashKey[int]()
ASYNCHRONOUS = pytest.StashKey[bool]()

gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the transport of tests/process/e2e and the version of PostgreSQL."""
    parser.addoption(
        "--transport", choices=["direct", "supabase"], help="run tests/process/e2e over this transport alone"
    )
    parser.addoption("--postgres", metavar="VERSION", help="use this version of Debian's PostgreSQL, for example 15")


def pytest_configure(config: pytest.Config) -> None:
    """Select what the processes that tests start inherit: the PostgreSQL in the environment, and that Ctrl-C counts."""
    config.stash[NOT_RUN] = {}
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has started this run in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[STDERR] = os.dup(2)  # while tests run, pytest has a file in its place
    if version := config.getoption("--postgres"):
        try:
            found = debian.postgres(version)
        except debian.NotInstalled as error:
            raise pytest.UsageError(str(error)) from error
        os.environ.update(found.environment | {INSTALLATION: str(found.path)})


@pytest.fixture(scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator["SharedServices"]:
    """The servers of this worker process, for all tests that do not harm them."""
    from testbed.shared_services import SharedServices  # noqa: PLC0415  tests without servers start sooner

    async with SharedServices(tmp_path_factory.mktemp("shared")) as services:
        yield services


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Name what a test that hangs waits for: faulthandler shows its threads, which say no more than `select`."""
    if threading.current_thread() is not threading.main_thread():
        return (yield)
    signal.signal(signal.SIGALRM, lambda *_: _say_where_tasks_wait(item.config.stash[STDERR]))
    signal.setitimer(signal.ITIMER_REAL, STUCK_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """End a test that hangs, unless it is asynchronous: such a test has its bound since its collection."""
    seconds = bound_s(_place(pyfuncitem.nodeid))
    if seconds is None or pyfuncitem.stash.get(ASYNCHRONOUS, False):
        return (yield)
    with alarm(seconds):
        return (yield)


def _say_where_tasks_wait(stderr: int) -> None:
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no event loop runs: the threads say it
        return
    for task in tasks:
        os.write(stderr, "\n    ".join([f"{task.get_name()} waits:", *places(task), ""]).encode())


def pytest_report_header() -> str:
    """Name the server."""
    return f"PostgreSQL: {installed()}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute groups of tests to the worker processes, in the order of the queue."""
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415  only where pytest-xdist is at work

    class Groups(LoadScopeScheduling):  # type: ignore[misc]  # it carries no types
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return Groups(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests, give each a bound, and leave out those whose program this machine lacks."""
    kept, dropped = [], []
    for item in items:
        needs = (debian.lacking(*marker.args) for marker in item.iter_markers("needs_program"))
        if reason := next(filter(None, needs), None):
            config.stash[NOT_RUN][reason] = config.stash[NOT_RUN].get(reason, 0) + 1
            dropped.append(item)
        else:
            kept.append(item)
    for item in kept:
        seconds = bound_s(_place(item.nodeid))
        if seconds is not None and isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.stash[ASYNCHRONOUS], item.obj = True, bounded(item.obj, seconds)
    kept.sort(key=_rank)  # stable: the order within a file stays
    items[:] = kept
    if dropped:
        config.hook.pytest_deselected(items=dropped)


def pytest_collection_finish() -> None:
    """Take what collection made out of the garbage collector's sight: each full collection would look through it."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Take over what a worker process of pytest-xdist could not run; each of them collects all tests."""
    output: Mapping[str, Mapping[str, int]] = getattr(node, "workeroutput", {})
    config: pytest.Config = node.config  # type: ignore[attr-defined]  # WorkerController, known to pytest-xdist alone
    config.stash[NOT_RUN].update(output.get("not_run", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name at the end what was not run and why."""
    missing = config.stash[NOT_RUN]
    if missing:
        terminalreporter.section("not run on this machine")
        for reason, count in sorted(missing.items()):
            terminalreporter.write_line(f"{count} test{'s' if count > 1 else ''}: {reason}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Report what a worker process could not run; in CI, where packages can be installed, a gap is a failure."""
    missing = session.config.stash[NOT_RUN]
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["not_run"] = missing
    elif missing and os.environ.get("CI") == "true" and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def group(nodeid: str) -> str:
    """Return the name of the tests that share a worker process with this one."""
    place = _place(nodeid)
    if place in BY_TEST:
        return nodeid
    return place if place.startswith(BY_FILE) else "/".join(place.split("/")[:2])


def _place(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix(f"{TESTS.name}/")


def _rank(item: pytest.Item) -> int:
    place = _place(item.nodeid)
    return next((rank for rank, prefix in enumerate(ORDER) if place.startswith(prefix)), len(ORDER))
