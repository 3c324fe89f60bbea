"""A setting is declared once; every other place that names it is made from the declaration or compared with it."""

import re
import runpy
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import SecretStr, ValidationError

from orchestrator.cli.main import Commands
from orchestrator.config.code_files import MAX_CODE_BYTES
from orchestrator.config.names import Key
from orchestrator.config.pools import PoolEntry, PoolKeys
from orchestrator.config.setting import Setting, settings_of
from orchestrator.config.settings import SECTIONS, Settings
from orchestrator.config.types import is_number
from orchestrator.config.validation import lacks
from orchestrator.core.policy import Pool

ROOT = Path(__file__).resolve().parents[3]
PAGES = runpy.run_path(str(ROOT / ".ci" / "settings_pages.py"))["PAGES"]
DECLARED = [one for section in SECTIONS for one in settings_of(section)]
RANGE = re.compile(r"(more than )?(\d+)(?: to |, at most )(\d+)")
RANDOM = "0123456789abcdefghijklmnopqrstuv"
SHORT = {"at least 32 bytes": (RANDOM, RANDOM[:31]), "at least 16 bytes": (RANDOM[:16], RANDOM[:15])}
ENCRYPTED = {"https://, or http:// on this machine": ("http://127.0.0.1:1", "http://example.com")}
NAMES = {"letters, digits, - and _, at most 63": ("a" * 63, "a" * 64)}


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


def refused(one: Setting, value: str) -> bool:
    """Whether the orchestrator refuses to start with this value."""
    try:
        given: dict[str, Any] = {one.variables[0] if one.field.validation_alias else one.name: value}
        settings = Settings(**given)
    except ValidationError:
        return True
    about = (f"{one.name.upper()} is too weak", f"{one.name.upper()} is not encrypted")
    return any(text in (lacks(settings, "gateway") or "") for text in about)


@pytest.mark.parametrize(
    "one", [one for one in DECLARED if is_number(one.field.annotation) or "deadlines" in one.name], ids=lambda o: o.name
)
def test_a_number_states_the_range_that_is_accepted(one: Setting) -> None:
    """Its ends are accepted, and what is beyond them is not."""
    found = RANGE.fullmatch(one.limits or "")
    assert found, one.limits
    least, most = int(found[2]), int(found[3])
    name = "tcp=" if "deadlines" in one.name else ""
    assert refused(one, f"{name}{least}") is bool(found[1])
    assert not refused(one, f"{name}{most}")
    assert refused(one, f"{name}{most + 1}")
    assert refused(one, f"{name}{least - 1}")


def test_a_text_states_the_limits_that_are_enforced() -> None:
    """Secrets their length, addresses that they are encrypted, and others what they must be like."""
    limited = [one for one in DECLARED if one.limits and not RANGE.fullmatch(one.limits)]
    cases = SHORT | ENCRYPTED | NAMES
    for one in limited:
        if one.name == "worker_code_dir":
            assert one.limits == f"at most {MAX_CODE_BYTES >> 20} MiB"
            continue
        accepted, wrong = cases[str(one.limits)]
        assert not refused(one, accepted), one.name
        assert refused(one, wrong), one.name
    secret = (one for one in DECLARED if one.field.annotation in {SecretStr | None, Key | None})
    short = {one.name for one in secret if refused(one, RANDOM[:15])}
    http, https = "http://example.com", "https://example.com"
    readable = {one.name for one in DECLARED if refused(one, http) and not refused(one, https)}
    assert short | readable | {"fleet_id", "worker_code_dir"} == {one.name for one in limited}


def test_every_setting_is_in_a_section() -> None:
    """The sections together are the settings."""
    assert sorted(one.name for one in DECLARED) == sorted(Settings.model_fields)


def test_what_a_pool_overrides_is_what_the_declarations_say() -> None:
    """A key of POOLS_FILE is declared with its setting, unless only a pool has it; each fills a field of Pool."""
    declared = {one.pool_key for one in DECLARED if one.pool_key}
    of_pools = {"task_types", "gpu_count", "kind", "install_slurm", "scheduled_sizes"}
    assert set(PoolEntry.model_fields) - declared == of_pools <= set(PoolKeys.model_fields)
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
