"""`limits`: set, shown with what waits for them, removed."""

import pytest

from tests.process.cli.builders import Cli, Fleet

KEY = "key-of-this-test"  # limits belong to the database, which tests share
SUBMIT = ("tasks", "submit", "--type", "t", "--concurrency-key", KEY, "--pool", "nobody")


async def test_a_limit_from_its_beginning_to_its_end(fleet: Fleet, cli: Cli) -> None:
    """And the tasks that wait for it say so."""
    ids = [(await cli(*SUBMIT)).out.split()[0] for _ in range(3)]
    assert (await cli("limits", "set", "--key", KEY, "2")).out == f"key {KEY}: at most 2 at once\n"
    (row,) = [one for one in (await cli("limits", "list", "--json")).json()["limits"] if one["name"] == KEY]
    assert row == {
        "scope": "key", "name": KEY, "most": 2, "is_set": True, "running": 0, "ready": 2, "waiting": 1,
    }  # fmt: skip
    assert KEY in (await cli("limits", "list")).out
    listed = (await cli("tasks", "list", "--pool", "nobody")).out
    assert f"waits for the key {KEY}: 0 of 2 run" in listed
    assert f"the key '{KEY}': 0 of at most 2 tasks run" in (await cli("explain", ids[2])).out
    assert (await cli("limits", "remove", "--key", KEY)).out == f"key {KEY}: at most 1 at once\n"
    assert (await cli("limits", "remove", "--key", KEY)).code == 2


@pytest.mark.parametrize(
    "arguments", [("3",), ("--key", "a", "--type", "b", "3"), ("--key", "a", "-1"), ("--key", "a\u001b[1m", "3")]
)
async def test_what_cannot_be_is_refused(cli: Cli, arguments: tuple[str, ...]) -> None:
    """With what is wrong with it, and without control characters."""
    ran = await cli("limits", "set", *arguments)
    assert (ran.code, "\u001b" in ran.err) == (2, False), ran.err
