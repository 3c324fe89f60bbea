"""What the pods of a pool get of the handlers and variables of the fleet."""

import json
from pathlib import Path

import pytest

from orchestrator.config.environment import load
from orchestrator.config.errors import SettingsError
from orchestrator.config.settings import Settings
from orchestrator.pods.agent_commands import LaunchConfig, configuration
from orchestrator.service.control_loop import launch_config
from tests.unit.core.build import worker

POOLS = """
[pools.training]
worker_handlers = ["finetune"]
worker_env = ["HF_TOKEN"]

[pools.open]
worker_env = []
"""


def _config(settings: Settings) -> LaunchConfig:
    return launch_config(settings, settings.policy())


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two handlers, two variables, and a file of pools."""
    path = tmp_path / "pools.toml"
    path.write_text(POOLS)
    given = {
        "POOLS_FILE": str(path),
        "WORKER_HANDLERS": "finetune=train:run,draw=art:draw",
        "WORKER_ENV": "HF_TOKEN,WANDB_API_KEY",
        "HF_TOKEN": "hf_0123456789",
        "WANDB_API_KEY": "wb_0123456789",
        "WORKER_JWT_SECRET": "a secret for tests, of more than 32 bytes",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return path


@pytest.mark.parametrize(
    ("pool", "handlers", "env"),
    [
        ("default", {"finetune", "draw"}, {"HF_TOKEN", "WANDB_API_KEY"}),
        ("training", {"finetune"}, {"HF_TOKEN"}),
        ("open", {"finetune", "draw"}, set()),
    ],
)
@pytest.mark.usefixtures("environment")
def test_a_pod_gets_the_settings_of_its_pool(pool: str, handlers: set[str], env: set[str]) -> None:
    """A variable reaches only the pods that need it."""
    sent = json.loads(configuration(_config(load()), worker(pool=pool, nonce="n"), "token", None))
    assert (set(sent["handlers"]), set(sent["env"])) == (handlers, env)


def test_a_pool_cannot_exceed_what_the_fleet_has(environment: Path) -> None:
    """A misspelt name stops the start, with a fix."""
    environment.write_text('[pools.a]\nworker_env = ["HF_TOKN"]\nworker_handlers = ["drow"]\n')
    with pytest.raises(SettingsError) as refused:
        load()
    assert {problem.fix for problem in refused.value.problems} == {
        "add it to WORKER_ENV, or remove it from the pool",
        "add it to WORKER_HANDLERS, or remove it from the pool",
    }
