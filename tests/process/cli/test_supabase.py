"""The command line with SUPABASE_URL and a key, and no DATABASE_URL."""

import os
import sys
import tomllib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import psycopg
import pytest

from orchestrator.core.states import State
from orchestrator.migrate import migrate, sql_files
from testbed.services.postgrest import EmbeddedPostgrest
from testbed.shared_services import Database
from tests.process.cli.builders import ROOT, Cli, Fleet, Ran, run

JWT_SECRET = "a-secret-of-the-project-of-forty-characters"
FIRST_ON_PATH = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # the `python` that a shell finds


@pytest.fixture(scope="session")
async def project(postgres: Database) -> AsyncIterator[EmbeddedPostgrest]:
    """The same database behind Supabase's API."""
    async with EmbeddedPostgrest(postgres.url, JWT_SECRET) as postgrest:
        yield postgrest


@pytest.fixture
def remote(project: EmbeddedPostgrest, fleet_id: str) -> Cli:
    """The command line that knows nothing but the project."""
    key = project.secret_key
    return Cli({"SUPABASE_URL": project.project_url, "SUPABASE_SERVICE_ROLE_KEY": key, "FLEET_ID": fleet_id})


async def test_commands_answer_the_same_over_both_transports(remote: Cli, cli: Cli, fleet: Fleet) -> None:
    """Word for word, but for what passes."""
    worker_id = await fleet.worker(upto=State.ACTIVE)
    for command in (("tasks", "list"), ("explain", worker_id), ("status", worker_id, "--json")):
        there, here = await remote(*command), await cli(*command)
        assert (there.code, here.code) == (0, 0), there.err + here.err
    listed = await remote("list", "--json")
    assert worker_id in listed.out


async def test_a_key_that_does_not_open_is_an_error_of_authentication(remote: Cli) -> None:
    """Exit 4, with the variable to correct, and without the key."""
    ran = await remote("list", SUPABASE_SERVICE_ROLE_KEY="sb_secret_of_another_project")
    assert ran.code == 4
    assert "error[E012]" in ran.err
    assert "SUPABASE_SERVICE_ROLE_KEY" in ran.err
    assert "of_another_project" not in ran.err


@pytest.fixture
async def bare(postgres: Database) -> AsyncIterator[tuple[str, Cli]]:
    """A database of its own without any schema, and a service that has nothing but Supabase's API to it."""
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
        await sql.execute("drop database if exists pushed with (force)")
        await sql.execute("create database pushed")
    url = postgres.server.url_of("pushed")
    async with EmbeddedPostgrest(url, JWT_SECRET) as project:
        key = project.secret_key
        yield url, Cli({"SUPABASE_URL": project.project_url, "SUPABASE_SERVICE_ROLE_KEY": key, **FIRST_ON_PATH})


async def pre_deploy(service: Cli) -> Ran:
    """What Railway runs before it starts a new version, word for word."""
    (command,) = tomllib.loads((ROOT / "railway.toml").read_text())["deploy"]["preDeployCommand"]
    return await run("sh", "-c", command, environment=service.environment)


async def test_a_deploy_over_supabase_continues_only_with_a_fitting_schema(bare: tuple[str, Cli]) -> None:
    """Missing or older: exit 4 with both fixes. Current or newer: exit 0, and it says that it only looked."""
    url, service = bare
    missing = await service("migrate")
    await migrate(url)
    current = await pre_deploy(service)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as sql:
        await sql.execute("insert into schema_migrations (version, name, checksum) values ('9999', 'x', 'x')")
        newer = await service("migrate")
        await sql.execute("delete from schema_migrations where version in ('9999', 'functions/fleet/leading.sql')")
        older = await service("migrate")
    for ran in (missing, older):
        assert ran.code == 4, ran.err
        assert ran.err.startswith("error[E011]: the database's schema is not this version's\nwhy: ")
        fix = " ".join(ran.err.partition("fix: ")[2].split())
        assert "`supabase db push`" in fix
        assert "DATABASE_URL" in fix
    assert str(sql_files().version) in older.err
    for ran in (current, newer):
        assert (ran.code, ran.out.partition(" (")[0]) == (0, "The schema is up to date"), ran.err
        assert "SUPABASE_URL" in ran.err
    assert "newer" not in current.err
    assert "9999-" in newer.err


async def test_a_key_that_does_not_open_stops_a_deploy_as_such(bare: tuple[str, Cli]) -> None:
    """And is not taken for a schema that is missing."""
    ran = await pre_deploy(Cli({**bare[1].environment, "SUPABASE_SERVICE_ROLE_KEY": "sb_secret_of_another_project"}))
    assert ran.code == 4
    assert "error[E012]" in ran.err


@pytest.mark.parametrize(
    ("changes", "status", "says", "fix"),
    [
        ({}, "ok", "OR005", ""),
        ({"WORKER_JWT_SECRET": "another-secret-of-forty-characters-or-so"}, "fail", "PGRST301", "project's JWT secret"),
        ({"SUPABASE_PUBLISHABLE_KEY": "sb_publishable_x"}, "fail", "Invalid API key", "SUPABASE_PUBLISHABLE_KEY"),
    ],
)
async def test_doctor_tries_a_token_where_pods_will(
    remote: Cli, project: EmbeddedPostgrest, changes: Mapping[str, str], status: str, says: str, fix: str
) -> None:
    """With the project's key: only the database's own refusal of a worker that does not exist is good."""
    pods = {"SUPABASE_PUBLISHABLE_KEY": project.publishable_key, "WORKER_JWT_SECRET": JWT_SECRET}
    near = {"RUNPOD_API_BASE_URL": "http://127.0.0.1:1"}  # a provider on this machine, whose pods reach it
    ran = await remote("doctor", "gateway", "--json", **{**pods, **near, **changes})
    found = ran.json()["findings"][-1]
    assert (found["status"], ran.code) == (status, 1 if status == "fail" else 0), found
    assert says in found["why"]
    assert fix in found["fix"]
    assert "SUPABASE_URL" in found["what"]


async def test_migrations_without_any_database_say_what_to_set() -> None:
    """Both ways of naming one."""
    ran = await Cli({})("migrate")
    assert ran.code == 4
    assert "error[E001]" in ran.err
    assert "DATABASE_URL" in ran.err
    assert "SUPABASE_URL" in ran.err
