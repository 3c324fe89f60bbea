"""An orchestrator and pods for each test; whatever a test starts on its pods is gone when it ends."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.worker.scripted import Orchestrator, Pod
from worker.podstop import NAMES

PodMaker = Callable[..., Pod]


@pytest.fixture(autouse=True)
def _nobodys_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests may run on a pod: no agent of theirs may ask for its end."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def orchestrator() -> Iterator[Orchestrator]:
    with Orchestrator() as one:
        yield one


@pytest.fixture
def make_pod(orchestrator: Orchestrator, tmp_path: Path) -> Iterator[PodMaker]:
    """Pods with the given files as user code."""
    pods: list[Pod] = []

    def make(code: dict[str, str] | None = None, nonce: str = "launch-1") -> Pod:
        pods.append(Pod(tmp_path / f"pod-{len(pods)}", orchestrator, code or {}, nonce))
        return pods[-1]

    yield make
    for pod in pods:
        assert pod.stop(grace_s=0)["stopped"]
