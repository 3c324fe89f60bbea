"""docs/clusters.md and docs/slurm-runbook.md: their commands, their example of a pool, and what the commands print."""

import re
import shlex
from pathlib import Path

import click
import pytest

from orchestrator.cli.main import Commands
from orchestrator.cli.output import Output
from orchestrator.config.environment import load
from orchestrator.core.policy import PoolKind
from orchestrator.web.api.routes import OPERATIONS
from testbed.shared_services import SharedServices
from tests.process.cli import cluster_page
from tests.process.cli.builders import ROOT
from tests.process.cli.screens import compared

CLUSTERS, RUNBOOK = ((ROOT / "docs" / name).read_text() for name in ("clusters.md", "slurm-runbook.md"))
COMMAND = re.compile(r"(?:^(?: {4}\$ )?|`)orchestrator ((?:[a-z]).*?)(?:`|\s+#.*|$)", re.MULTILINE)
PLACES = {"<name>": "train", "<worker>": "18865e9b", "<member>": "18865e9b", "<host of WORKER_API_URL>": "host"}


def commands(page: str) -> list[str]:
    """Each command of a page, with a name in each place for one."""
    for place, name in PLACES.items():
        page = page.replace(place, name)
    return COMMAND.findall(page)


async def test_the_runbook_shows_what_the_commands_print(shared: SharedServices) -> None:
    """Except for times, amounts and ids."""
    made, there = compared(await cluster_page.page(shared, RUNBOOK)), compared(RUNBOOK)
    assert made == there, "regenerate: .venv/bin/python -m tests.process.cli.cluster_page"


@pytest.mark.parametrize("page", [CLUSTERS, RUNBOOK], ids=["clusters", "runbook"])
def test_every_command_of_a_page_can_be_typed(page: str) -> None:
    """With the options that it has there."""
    assert len(commands(page)) > 5
    for line in commands(page):
        words = shlex.split(line)
        command: click.Command = Commands()
        while words and isinstance(command, click.Group):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None, line
            command = found
        if words:  # a bare name stands for the command, and is no call
            command.make_context("orchestrator", words, obj=Output())


def test_the_pool_of_the_page_is_one_of_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its settings are accepted as they stand there."""
    (pool,) = re.findall(r"```toml\n(.*?)```", CLUSTERS, re.DOTALL)
    (handlers,) = re.findall(r"^WORKER_HANDLERS=(\S+)", CLUSTERS, re.MULTILINE)
    (tmp_path / "pools.toml").write_text(pool)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POOLS_FILE", "pools.toml")
    monkeypatch.setenv("WORKER_HANDLERS", handlers)
    settings = load()
    (made,) = [one for one in settings.policy().pools if one.kind is PoolKind.CLUSTER]
    assert (made.name, made.gpu_count, made.max_active) == ("train", 8, 8)
    assert settings.worker_handlers == (("train", "slurm"),)


def test_the_addresses_of_the_runbook_are_those_of_the_api() -> None:
    """All but the one that hands out tokens, which does not exist."""
    known = {(one.method, re.sub(r"{\w+}", "{}", one.path)) for one in OPERATIONS}
    instance = "/projects/{}/app-instances/{}"
    named = {
        (method, re.sub(r"{\w+}", "{}", path.replace("…", instance)))
        for method, path in re.findall(r"`(GET|POST) ((?:/|…)[\w/{}-]*)", RUNBOOK)
    }
    named = {(method, path.removeprefix("/api/v1")) for method, path in named}
    assert named - known == {("POST", "/admin/nodes/{}/enrollment-token")}
    assert {("GET", instance), ("GET", f"{instance}/members"), ("POST", f"{instance}/reconcile")} <= named
