"""A setting is declared once; every other place that names it is made from the declaration or compared with it."""

import re
import runpy
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from orchestrator.cli.main import Commands
from orchestrator.config.pools import PoolEntry, PoolKeys
from orchestrator.config.setting import Setting, settings_of
from orchestrator.config.settings import SECTIONS, Settings
from orchestrator.core.model import Pool

ROOT = Path(__file__).resolve().parents[3]
PAGES = runpy.run_path(str(ROOT / ".ci" / "settings_pages.py"))["PAGES"]
DECLARED = [one for section in SECTIONS for one in settings_of(section)]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_the_one_that_the_declaration_gives(name: str) -> None:
    """A changed declaration also changes the example environment and the page of the docs."""
    assert (ROOT / name).read_text() == PAGES[name](), "regenerate: .venv/bin/python .ci/settings_pages.py"


@pytest.mark.parametrize("one", DECLARED, ids=lambda one: one.name)
def test_a_setting_says_what_it_means(one: Setting) -> None:
    """In sentences; a name that ends in a unit declares this unit."""
    assert re.match(r"[A-Z].{8,}", one.field.description or "")
    units = {"_sec": "seconds", "_minutes": "minutes", "_gb": "GB", "_usd": "US dollars"}
    assert all(one.unit and one.unit.startswith(unit) for end, unit in units.items() if one.name.endswith(end))


def test_every_setting_is_in_a_section() -> None:
    """The sections together are the settings."""
    assert sorted(one.name for one in DECLARED) == sorted(Settings.model_fields)


def test_what_a_pool_overrides_is_what_the_declarations_say() -> None:
    """A key of POOLS_FILE is declared with its setting, unless only a pool has it; each fills a field of Pool."""
    declared = {one.pool_key for one in DECLARED if one.pool_key}
    assert set(PoolEntry.model_fields) - declared == {"task_types", "gpu_count"} <= set(PoolKeys.model_fields)
    assert declared <= set(PoolEntry.model_fields)
    assert {one.pool_field for one in DECLARED if one.pool_field} < {field.name for field in fields(Pool)}


def help_texts(command: click.Command) -> Iterator[str]:
    """The help texts of a command, its options and its subcommands."""
    yield command.help or ""
    yield from (option.help or "" for option in command.params if isinstance(option, click.Option))
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            yield from help_texts(found) if found else ()


def test_help_names_only_settings_that_there_are() -> None:
    """A renamed setting is renamed in the help of commands too."""
    text = " ".join(help_texts(Commands((), None)))
    assert len(text) > 2_000
    known = {variable for one in DECLARED for variable in one.variables}
    named = set(re.findall(r"\b(?:RUNPOD|WORKER|MAX|MIN|GPU|S3|SUPABASE|DATABASE|FLEET|POOLS)_[A-Z_]+\b", text))
    assert named <= known
