"""What a handler host starts with: its environment, and the code that was sent."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from testbed.services.free_port import free_port
from tests.process.worker.scripted import Orchestrator, Pod, live, wait_for

CODE = """
import os, sys

def env(params, task):
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {name: os.environ.get(name) for name in (*threads, "PYTORCH_CUDA_ALLOC_CONF", "PYTHONUNBUFFERED")}

def leave(params, task):
    os._exit(1)
"""
BIRTH = {
    "proc/sys/kernel/random/boot_id": "a0000000-0000-4000-8000-000000000000\n",
    "sys/fs/cgroup/memory.events": "oom_kill 2\n",
}  # fmt: skip
SETS = {"cpu.max": "1200000 100000\n"}
LEGACY = {"cpu/cpu.cfs_quota_us": "1200000\n", "cpu/cpu.cfs_period_us": "100000\n"}


def start(pod: Pod, root: Path, **config: object) -> None:
    pod.start({"env": "code:env", "leave": "code:leave"}, system_root=str(root), **config)


@pytest.mark.parametrize(
    ("files", "threads"), [(SETS, "12"), (LEGACY, "12"), ({"cpu.max": "50000 100000\n"}, "1"), ({}, None)]
)
def test_a_handler_starts_with_the_threads_of_its_slice(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], tmp_path: Path, files: dict[str, str], threads: str | None
) -> None:
    """Cgroup v2 or v1; without a quota the libraries decide. WORKER_ENV goes before the defaults."""
    for name, text in files.items():
        path = tmp_path / "root" / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    pod = make_pod({"code.py": CODE})
    orchestrator.submit("one", "env")
    start(pod, tmp_path / "root", env={"MKL_NUM_THREADS": "3"})
    assert orchestrator.completion("one")["p_result_data"] == {
        "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": threads,
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    assert orchestrator.calls_of("worker_register")[0]["p_agent"]["prefix"] == sys.prefix


@pytest.mark.parametrize("what", ["the user's code", "the agent"])
def test_code_that_was_changed_runs_no_task(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], tmp_path: Path, what: str
) -> None:
    """One byte is enough. The next host is not started, its task is released, and the agent claims no more."""
    pod = make_pod({"code.py": CODE})
    orchestrator.submit("one", "leave")
    start(pod, tmp_path)
    orchestrator.failure("one")
    code = pod.home / ".orchestrator/code"
    path = code / f"user-{pod.bundle.code_sha}/code.py"
    if what == "the agent":
        path = code / f"agent-{pod.bundle.agent_sha}.pyz"
    text = bytearray(path.read_bytes())
    text[-1] ^= 1
    path.write_bytes(text)
    orchestrator.submit("two", "env")
    why = orchestrator.until(lambda: orchestrator.released.get("two"))
    assert why.startswith("CODE_CHANGED: ")
    assert path.name in why
    beat = orchestrator.until(lambda: next((b for b in orchestrator.calls_of("worker_heartbeat") if _code(b)), None))
    assert (_code(beat)["u"], _code(beat)["severity"]) == (42, "H")
    orchestrator.submit("three", "env")
    orchestrator.until(lambda: orchestrator.count("worker_heartbeat") > 20)
    assert "three" not in orchestrator.running


def test_files_that_handlers_and_the_setup_command_write_are_no_change(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], tmp_path: Path
) -> None:
    """Caches and results next to the code; the setup command may change files that were sent."""
    pod = make_pod({"code.py": CODE})
    orchestrator.submit("one", "leave")
    start(pod, tmp_path, setup_command="echo '# built' >> code.py; touch other.py")
    orchestrator.failure("one")
    orchestrator.submit("two", "env")
    assert orchestrator.completion("two")


@pytest.mark.parametrize(
    ("changes", "how"),
    [
        ({"proc/sys/kernel/random/boot_id": "f0000000-0000-4000-8000-000000000000\n"}, "REBOOT"),
        ({"sys/fs/cgroup/memory.events": "oom_kill 3\n"}, "OOM"),
        ({"stopped": ""}, "MANUAL"),
        ({}, "UNKNOWN"),
    ],
)
def test_a_stop_reports_how_an_agent_ended_without_a_record(
    make_pod: Callable[..., Pod], tmp_path: Path, changes: dict[str, str], how: str
) -> None:
    """The first that fits: another boot id, the OOM killer, an earlier stop of ours."""
    root = tmp_path / "root"
    for name, text in BIRTH.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    pod = make_pod({"code.py": CODE})
    start(pod, root)
    pid = int((pod.run / "agent.pid").read_text())
    wait_for((pod.run / "birth.json").exists)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not live([pid]))
    for name, text in changes.items():
        (pod.run / name if name == "stopped" else root / name).write_text(text)
    assert [pod.stop(), pod.stop()] == [{"stopped": True, "exit": how}] * 2


def test_a_stop_of_a_living_agent_tells_of_no_other_end(make_pod: Callable[..., Pod], tmp_path: Path) -> None:
    """Nor does one of an agent that has told how it ended."""
    pod = make_pod({"code.py": CODE})
    start(pod, tmp_path)
    wait_for(lambda: (pod.run / "logs/agent.log").exists() and pod.events("agent_started"))  # it handles signals now
    assert [pod.stop(), pod.stop()] == [{"stopped": True}] * 2


def _code(beat: dict[str, object]) -> dict[str, object]:
    health = beat["p_health"]
    findings = health.get("findings", ()) if isinstance(health, dict) else ()
    return next((one for one in findings if one["code"] == "CODE_CHANGED"), {})


def test_a_torch_without_code_for_the_gpu_claims_nothing(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], tmp_path: Path
) -> None:
    """Asked of the handlers' interpreter before the first claim; a lock file that is not followed is told too."""
    root, packages = tmp_path / "root", tmp_path / "packages"
    (root / "dev").mkdir(parents=True)
    (root / "dev/nvidia0").touch()
    packages.mkdir()
    (packages / "torch.py").write_text(
        "class cuda:\n"
        "    is_available = staticmethod(lambda: True)\n    get_arch_list = staticmethod(lambda: ['sm_80'])\n"
        "    device_count = staticmethod(lambda: 1)\n    get_device_capability = staticmethod(lambda n: (12, 0))\n"
        "__version__ = '2.0.1'\n"
    )
    pod = make_pod({"code.py": CODE, "requirements.lock": "nowhere==1.0\n"})
    orchestrator.submit("one", "env")
    start(pod, root, env={"PYTHONPATH": str(packages)})
    codes = orchestrator.until(
        lambda: next((c for b in orchestrator.calls_of("worker_heartbeat") if (c := _codes(b))), None)
    )
    assert codes == {"TORCH_ARCH": "H", "LOCK_DRIFT": "M"}
    assert not orchestrator.count("worker_claim")


class Store(BaseHTTPRequestHandler):
    """A bucket that may refuse writes."""

    refuses = True

    def do_PUT(self) -> None:
        """Take an object, or refuse it."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(403, b"<Code>AccessDenied</Code>") if Store.refuses else self._answer(200, b"")

    def do_GET(self) -> None:
        """Return it."""
        self._answer(200, b"x")

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.parametrize(("answers", "why"), [(False, "ConnectionRefusedError"), (True, "PUT: HTTP 403")])
def test_a_pod_that_cannot_use_the_store_claims_nothing_until_it_can(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], tmp_path: Path, answers: bool, why: str
) -> None:
    """Otherwise a task would work for hours, and keep its result."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/bucket/probes/pod"
    probe = {"put": url, "headers": {"Content-Length": "1"}, "content": "x", "get": url}

    with contextlib.ExitStack() as serving:

        def serve() -> None:
            store = serving.enter_context(ThreadingHTTPServer(("127.0.0.1", port), Store))
            threading.Thread(target=store.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            serving.callback(store.shutdown)

        Store.refuses = True
        if answers:
            serve()
        orchestrator.submit("one", "env")
        start(make_pod({"code.py": CODE}), tmp_path, store_probe=probe, monitor_s=0.2)
        beats = orchestrator.until(lambda: [b for b in orchestrator.calls_of("worker_heartbeat") if _codes(b)] or None)
        assert _codes(beats[0]) == {"STORE_UNREACHED": "H"}
        assert why in str(beats[0])
        assert not orchestrator.count("worker_claim")
        Store.refuses = False
        if not answers:
            serve()
        orchestrator.until(lambda: orchestrator.count("worker_claim"))


def _codes(beat: dict[str, object]) -> dict[str, object]:
    health = beat["p_health"]
    return {one["code"]: one["severity"] for one in health.get("findings", ())} if isinstance(health, dict) else {}
