"""Which errors of the database refuse one call of an agent, and which are about the server."""

import re

import psycopg
import pytest

from orchestrator.adapters.functions import refusal
from orchestrator.errors import KINDS, ErrorKind
from orchestrator.web.api.problems import Problem
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


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.id)
def test_no_answer_has_advice_for_the_command_line(kind: ErrorKind) -> None:
    """A caller of the API has neither a shell beside the orchestrator nor its settings."""
    fix = str(Problem(400, kind, "why").document()["fix"])
    assert fix
    assert not re.search(r"python -m|\./run|psql|curl|--|[A-Z0-9]+_[A-Z_]+", fix), fix
