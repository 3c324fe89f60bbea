"""The dead-man's switch on a pod: nobody answers, so the agent ends and the provider is asked to stop the pod."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from tests.process.emulator.build import emulated, ssh
from tests.process.worker.scripted import Orchestrator, Pod, live, wait_for
from worker import podstop
from worker.agent_state import AgentState
from worker.config import RunDir
from worker.journal import Journal

WORK = """
import pathlib, os, time
def quick(params, task):
    return {}
def gated(params, task):
    pathlib.Path(params["begun"]).touch()
    while not os.path.exists(params["gate"]):
        time.sleep(0.01)
    return {"through": True}
def endless(params, task):
    pathlib.Path(params["begun"]).write_text(f"{os.getpid()}\\n")
    while True:
        time.sleep(0.1)
"""


class Provider:
    """Answers with these statuses, the last one for ever; remembers what it was asked."""

    def __init__(self, *statuses: int) -> None:
        self.asked: list[dict[str, Any]] = []
        given = list(statuses)
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                names = ("Authorization", "User-Agent", "Content-Type")
                said = {"path": self.path, "body": json.loads(body), **{name: self.headers[name] for name in names}}
                provider.asked.append(said)
                self.send_response(given.pop(0) if len(given) > 1 else given[0])
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class's name
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pod's file system, whose provider left its note for logins; nothing is in the environment."""
    for name in podstop.NAMES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/rp_environment").write_text(
        'export RUNPOD_POD_ID="pod1"\nexport RUNPOD_API_KEY="key of pod1"\nexport PUBLIC_KEY="ssh-ed25519 A "x" B"\n'
    )
    return tmp_path


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path / "agent.log"), [])


def events(folder: Path) -> list[dict[str, Any]]:
    """What the journal has."""
    return [json.loads(line) for line in (folder / "agent.log").read_text().splitlines()]


def test_the_provider_is_asked_in_its_own_words(root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The action, the pod's own key, and a User-Agent; trouble of the server's is tried again."""
    monkeypatch.setattr(podstop, "pause_s", lambda _: 0.001)
    with Provider(503, 429, 200) as provider:
        monkeypatch.setenv("RUNPOD_API_BASE_URL", f"{provider.url}/")
        assert podstop.stop_pod(str(root), journal)
    assert provider.asked == [
        {
            "path": "/v2/pods/pod1/action", "body": {"action": "stop"}, "Authorization": "Bearer key of pod1",
            "User-Agent": "orchestrator-worker", "Content-Type": "application/json",
        }
    ] * 3  # fmt: skip
    assert [(one["event"], one.get("why")) for one in events(root)] == [
        ("pod_not_stopped", "HTTP 503"),
        ("pod_not_stopped", "HTTP 429"),
        ("pod_stop_asked", None),
    ]
    assert "key of pod1" not in (root / "agent.log").read_text()


@pytest.mark.parametrize(("status", "tries"), [(403, 1), (404, 1), (500, podstop.TRIES)])
def test_a_provider_that_will_not_is_not_asked_for_ever(
    root: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch, status: int, tries: int
) -> None:
    """Once when it has said no, for half a day when it is in trouble, or cannot be reached."""
    assert 10 * 3_600 < sum(podstop.pause_s(n) for n in range(1, podstop.TRIES)) < 14 * 3_600
    monkeypatch.setattr(podstop, "pause_s", lambda _: 0.001)
    with Provider(status) as provider:
        monkeypatch.setenv("RUNPOD_API_BASE_URL", provider.url)
        assert not podstop.stop_pod(str(root), journal)
    assert len(provider.asked) == tries


@pytest.mark.parametrize("text", ["", 'export RUNPOD_API_KEY="k"\nexport RUNPOD_POD_ID="../x"\n', "RUNPOD_POD_ID='"])
def test_a_pod_without_its_own_key_calls_no_provider(root: Path, journal: Journal, text: str) -> None:
    """It says so in its log, and that is all it can do."""
    (root / "etc/rp_environment").write_text(text)
    assert not podstop.stop_pod(str(root), journal)
    assert [one["event"] for one in events(root)] == ["pod_not_stopped"]


async def test_a_deserted_pod_is_stopped(orchestrator: Orchestrator, tmp_path: Path) -> None:
    """On an emulated pod, with the key that the provider gave it: handlers gone, pod EXITED, and the log says why."""
    async with emulated(tmp_path / "emulator") as api:
        pod, port = await api.reachable()
        home = api.emulator.state_dir / "pods" / pod["id"] / "home"
        made = await asyncio.to_thread(Pod, home, orchestrator, {"work.py": WORK})
        config = json.dumps(made.config({"endless": "work:endless"}, deadman_s=0.8))
        command = f"python3 -I .orchestrator/code/agent-{made.bundle.agent_sha}.pyz start --run-dir {made.run}"
        async with ssh(port) as connection:
            line = json.loads((await connection.run(command, input=config, check=True)).stdout)
        begun = tmp_path / "begun"
        orchestrator.submit("endless", "endless", {"begun": str(begun)})
        await asyncio.to_thread(orchestrator.until, lambda: begun.exists() and begun.read_text().endswith("\n"))
        (made.run / "done.json.tmp").mkdir()  # a disk that takes nothing any more
        await asyncio.to_thread(orchestrator.down)
        await api.status(pod["id"], "EXITED")
        assert live([line["pid"], int(begun.read_text())]) == []
        (ended,) = made.events("agent_ended")
        assert ended["reason"].startswith("dead-man's switch")
        assert api.emulator.core.calls["POST /v2/pods/{id}/action"] == 1


def test_without_a_leader_running_tasks_finish_and_the_pod_is_stopped(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgREST answers as long as the project lives: its answers alone must not keep a pod that nobody will end."""
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    with Provider(200) as provider:
        given = {"RUNPOD_POD_ID": "pod1", "RUNPOD_API_KEY": "key of pod1", "RUNPOD_API_BASE_URL": provider.url}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        pod = make_pod({"work.py": WORK})
        pod.start({"gated": "work:gated"}, deadman_s=0.5, heartbeat_s=0.1)
        orchestrator.submit("first", "gated", {"begun": str(begun), "gate": str(gate)})
        orchestrator.until(begun.exists)
        orchestrator.tell(led=False)
        wait_for(lambda: pod.events("fleet_unled"))
        orchestrator.submit("second", "gated", {})
        claims = orchestrator.count("worker_claim")
        gate.touch()
        assert orchestrator.completion("first")["p_result_data"] == {"through": True}
        assert pod.ended() == "drained"
        assert orchestrator.count("worker_claim") == claims
        wait_for(lambda: provider.asked)
    assert len(pod.events("fleet_unled")) == 1


def test_a_moment_without_a_leader_is_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor is a hand-over, nor what an agent hears first when its pod has stood still."""
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    state = AgentState(900, RunDir(str(tmp_path)))
    for now_s, is_led in ((880.0, False), (890.0, False), (895.0, True), (1_900.0, False), (1_920.0, False)):  # noqa: B007
        assert not state.note_leader(is_led)
    assert not state.is_leaving()
    now_s = 1_940.0
    assert state.note_leader(False)
    assert state.is_leaving()
    assert state.ending is None


def test_what_waits_for_a_leader_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A result whose output only a leader could look for; a task that runs is not touched, however long it takes."""
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    state = AgentState(900, RunDir(str(tmp_path)))
    state.running = state.hold({"id": "long", "attempt": 1})
    for now_s in (899.0, 900.0, 901.0, 5_000.0):  # noqa: B007
        state.note_leader(False)
    assert (state.draining, state.must_stop_pod, state.ending) == (True, True, None)
    state.running = None
    state.note_leader(False)
    assert str(state.ending).startswith("dead-man's switch: the fleet has had no leader for 5000 s")


async def test_an_agent_that_was_asked_to_end_does_not_stop_its_pod(orchestrator: Orchestrator, tmp_path: Path) -> None:
    """Somebody answered, so somebody sees to the pod."""
    async with emulated(tmp_path / "emulator") as api:
        pod, port = await api.reachable()
        home = api.emulator.state_dir / "pods" / pod["id"] / "home"
        made = await asyncio.to_thread(Pod, home, orchestrator)
        command = f"python3 -I .orchestrator/code/agent-{made.bundle.agent_sha}.pyz start --run-dir {made.run}"
        async with ssh(port) as connection:
            await connection.run(command, input=json.dumps(made.config()), check=True)
        orchestrator.tell(refusal=(400, "OR006"))
        assert (await asyncio.to_thread(made.ended)).startswith("refused by the orchestrator")
        assert (await api.pod(pod["id"]))["status"] == "RUNNING"
        assert api.emulator.core.calls["POST /v2/pods/{id}/action"] == 0


def test_handlers_do_not_leak_the_pods_key(
    orchestrator: Orchestrator, make_pod: Callable[..., Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in their environment; what they say of it in a failure is blotted out."""
    monkeypatch.setitem(os.environ, "RUNPOD_API_KEY", "rpa_of_this_pod")
    leaky = "import os\ndef tell(params, task):\n    raise ValueError(os.environ['RUNPOD_API_KEY'])\n"
    make_pod({"work.py": leaky}).start({"tell": "work:tell"})
    orchestrator.submit("told", "tell")
    assert "rpa_of_this_pod" not in json.dumps(orchestrator.failure("told"))
