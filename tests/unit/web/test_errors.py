"""Which errors of the database refuse one call of an agent, and which are about the server."""

import psycopg
import pytest

from orchestrator.adapters.functions import refusal
from orchestrator.web.errors import from_port_error
from worker.rpc import REFUSALS


def status(sqlstate: str) -> int:
    """The status that an agent gets."""
    error = refusal(sqlstate, "worker_fail")
    error.__cause__ = psycopg.errors.lookup(sqlstate)("no")
    return from_port_error(error, "worker_fail").status


@pytest.mark.parametrize(
    "sqlstate",
    ["55P03", "55006", "40001", "40P01", "54001", "57014", "57P01", "53300", "58030", "25006", "26000", "42P01"],
)
def test_an_error_of_the_server_is_repeated(sqlstate: str) -> None:
    """A refusal would destroy the result: behind a user's lock, a failure was forgotten after 3 s."""
    assert status(sqlstate) not in REFUSALS


@pytest.mark.parametrize(("sqlstate", "expected"), [("22P02", 400), ("23505", 409), ("42501", 403), ("P0001", 400)])
def test_an_error_of_the_call_is_a_refusal(sqlstate: str, expected: int) -> None:
    """It would be the same the next time."""
    assert status(sqlstate) == expected
