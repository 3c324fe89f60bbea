"""The configuration in effect: a pool's value before the environment's, that before the default; one hash of all."""

from pathlib import Path

import pytest

from orchestrator.config.effective import Effective, digest, effective
from orchestrator.config.settings import Settings

POOLS = """
[pools.training]
gpu_count = 2
max_active_gpus = 4
[task_types.finetune]
timeout_s = 7200
"""


def test_each_value_names_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And no secret is shown."""
    (tmp_path / "pools.toml").write_text(POOLS)
    monkeypatch.setenv("POOLS_FILE", str(tmp_path / "pools.toml"))
    monkeypatch.setenv("MAX_ACTIVE_GPUS", "3")
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_secret")
    values = effective(Settings())
    assert {
        Effective("MAX_ACTIVE_GPUS", "3", "environment"),
        Effective("RUNPOD_API_KEY", "set", "environment"),
        Effective("S3_PREFIX", "", "default"),
        Effective("pools.training.max_active", "4", "POOLS_FILE"),
        Effective("pools.training.gpu_count", "2", "POOLS_FILE"),
        Effective("task_types.finetune.timeout_s", "7200.0", "POOLS_FILE"),
    } <= set(values)
    assert "rpa_secret" not in str(values)


def test_the_hash_tells_two_configurations_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same values give the same hash, whatever their source."""
    before = digest(effective(Settings()))
    monkeypatch.setenv("MAX_ACTIVE_GPUS", "3")
    changed = digest(effective(Settings()))
    assert changed != before
    assert digest(effective(Settings())) == changed
