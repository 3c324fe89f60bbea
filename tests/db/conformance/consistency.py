"""What must hold of the queue after any statement of anybody and the leader's work, as queries for exceptions."""

from collections.abc import Mapping
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow

from tests.db.conformance.beside import LAWS

RULES: Mapping[str, str] = LAWS  # each finds rows only if something is wrong
MARKS = "a claim begins behind a ready task"


async def broken(hand: AsyncConnection[DictRow]) -> Mapping[str, list[Any]]:
    """The rules that do not hold, with the rows that show it."""
    found = {rule: await (await hand.execute(query.encode())).fetchall() for rule, query in RULES.items()}
    return {rule: rows for rule, rows in found.items() if rows}


async def consistent(hand: AsyncConnection[DictRow]) -> None:
    """No mark hides a ready task."""
    assert await (await hand.execute(RULES[MARKS].encode())).fetchall() == []
