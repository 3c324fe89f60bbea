"""The other direction of the drift test: what the migrations have, the model has too, or coverage.py says why not."""

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from orchestrator.adapters.functions import FUNCTIONS
from tests.proofs.simulator import coverage
from tests.proofs.simulator.drift import only_real
from tests.proofs.simulator.sql.records import Records


@pytest.fixture
async def connection(url: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(url) as one:
        yield one


def test_every_function_and_argument_is_modelled_or_named() -> None:
    """A part that is named has the reason why the simulation does not need it."""
    assert list(coverage.functions_missing()) == []


async def test_every_column_code_and_transition_is_modelled_or_named(connection: psycopg.AsyncConnection[Any]) -> None:
    """The catalogue of a real server and the source of its functions show what there is."""
    assert await coverage.tables_missing(connection) == []
    assert await coverage.codes_missing(connection) == []
    assert await coverage.transitions_missing(connection) == []


async def test_an_addition_to_the_migrations_alone_is_reported(connection: psycopg.AsyncConnection[Any]) -> None:
    """The test adds a column, a code and a transition in a transaction that is rolled back."""
    await connection.execute("alter table workers add column mood text")
    await connection.execute("insert into worker_transitions values ('idle', 'spawning')")
    await connection.execute(
        "create function public.odd() returns text language plpgsql as $$begin return 'NEVER_HEARD_OF'; end$$"
    )
    assert await coverage.tables_missing(connection) == ["workers.mood"]
    assert await coverage.codes_missing(connection) == ["NEVER_HEARD_OF"]
    assert await coverage.transitions_missing(connection) == ["idle > spawning"]
    await connection.rollback()


def test_a_key_that_only_the_real_answer_has_is_reported() -> None:
    """At any depth."""
    real = {"now": 1, "tasks": [{"id": 1, "hold": 2}], "worker": {"id": 1}}
    model = {"tasks": [{"id": 1}], "worker": {"id": 1}}
    assert set(only_real(real, model, "f")) == {"f.now", "f.tasks[].hold"}


async def test_nothing_is_named_that_is_not_there(connection: psycopg.AsyncConnection[Any]) -> None:
    """A reason for something that is gone, or that is modelled now, would hide the next."""
    assert set(FUNCTIONS) >= coverage.FUNCTIONS_ONLY_REAL.keys()
    assert not [name for name in coverage.FUNCTIONS_ONLY_REAL if hasattr(Records, name)]
    rows = await connection.execute("select table_name from information_schema.tables where table_schema = 'public'")
    assert {row[0] for row in await rows.fetchall()} >= coverage.TABLES_ONLY_REAL.keys()
