"""The name of a release tells every version of what a pod gets apart: of the agent, and of the user's own code."""

import os
from pathlib import Path

import pytest

from orchestrator.config.environment import load
from orchestrator.pods.bundle import bundle_of
from orchestrator.wiring import policy_of


def test_each_change_of_the_users_code_is_a_release_although_the_agent_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a canary tries it, and that an open breaker closes for it; the first version again is the first one."""
    for name in os.environ:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WORKER_CODE_DIR", str(tmp_path))

    def release(**given: str) -> str:
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        settings = load()
        return policy_of(settings, bundle_of(settings)).code_sha

    def written(text: str) -> str:
        (tmp_path / "job.py").write_text(text)
        return release(WORKER_HANDLERS="a=job:f")

    first, second, third = (written(f"def f(p, t): return {n}\n") for n in range(3))
    assert written("def f(p, t): return 0\n") == first
    others = [
        release(WORKER_HANDLERS="a=job:g"),
        release(WORKER_SETUP_COMMAND="./a.sh"),
        release(WORKER_SETUP_COMMAND="./b.sh"),
    ]
    assert len({first, second, third, *others}) == 6
