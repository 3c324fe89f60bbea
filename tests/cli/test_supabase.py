"""The command line with SUPABASE_URL and a key, and no DATABASE_URL."""

from collections.abc import AsyncIterator

import pytest

from orchestrator.core.states import State
from orchestrator.emulator.postgres import EmbeddedPostgres
from orchestrator.emulator.postgrest import EmbeddedPostgrest
from tests.cli.builders import Cli, Fleet

JWT_SECRET = "a-secret-of-the-project-of-forty-characters"


@pytest.fixture(scope="session")
async def project(postgres: EmbeddedPostgres) -> AsyncIterator[EmbeddedPostgrest]:
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
    """Exit 4, with the variable to mend, and without the key."""
    ran = await remote("list", SUPABASE_SERVICE_ROLE_KEY="sb_secret_of_another_project")
    assert ran.code == 4
    assert "error[E012]" in ran.err
    assert "SUPABASE_SERVICE_ROLE_KEY" in ran.err
    assert "of_another_project" not in ran.err


async def test_migrations_say_that_they_need_a_connection(remote: Cli) -> None:
    """What, why, and both ways to do it."""
    ran = await remote("migrate")
    assert ran.code == 4
    assert "DATABASE_URL" in ran.err
    assert "supabase db push" in ran.err
