"""`tokens create|list|revoke`."""

import pytest

from orchestrator.core.api_tokens import TOKEN_PATTERN, hash_of
from tests.process.cli.builders import Cli, Fleet


async def test_a_token_from_its_creation_to_its_end(cli: Cli, fleet: Fleet) -> None:
    """It is shown once. The list has its name, what it may do, and when it was used."""
    ran = await cli("tokens", "create", "webapp", "--pool", "big", "--tenant", "acme", "--days", "30")
    token = ran.out.strip()
    assert ran.code == 0, ran.err
    assert TOKEN_PATTERN.fullmatch(token)
    assert (await fleet.store.api.use_token(hash_of(token)))["token"]["scopes"] == ["read", "submit"]

    listed = await cli("tokens", "list")
    (line,) = listed.lines_with("webapp")
    assert all(part in line for part in ("read, submit", "big", "acme", "ago", "expires in 29d23h"))
    assert token not in listed.out
    assert hash_of(token) not in (await cli("tokens", "list", "--json")).out

    revoked = await cli("tokens", "revoke", "webapp", "--force")
    assert (revoked.code, revoked.out) == (0, "webapp: revoked\n")
    assert (await fleet.store.api.use_token(hash_of(token)))["token"] is None
    assert "revoked" in (await cli("tokens", "list")).lines_with("webapp")[0]
    actors = {entry["actor"] for entry in await fleet.store.api.audit()}
    assert len(actors) == 1
    assert actors.pop().startswith("cli")


async def test_a_new_token_as_json(cli: Cli, fleet: Fleet) -> None:
    """A program that sets a service up reads it."""
    made = (await cli("tokens", "create", "ci", "--scope", "admin", "--json")).json()
    assert (made["scopes"], made["tenant"], made["expires_at"]) == (["admin"], None, None)
    assert (await fleet.store.api.use_token(hash_of(made["token"])))["token"]["name"] == "ci"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("create", "env:admin"), 2),
        (("create", "a", "--pool", "b c"), 2),
        (("create", "a", "--tenant", "x" * 201), 2),
        (("create", "a", "--days", "0"), 2),
        (("revoke", "nobody", "--force"), 3),
        (("revoke", "nobody"), 2),
    ],
    ids=str,
)
async def test_what_cannot_be_done_is_said(cli: Cli, arguments: tuple[str, ...], code: int) -> None:
    """With a fix; nothing is stored."""
    ran = await cli("tokens", *arguments)
    assert ran.code == code, ran.err
    assert "fix:" in ran.err
    assert "No tokens found" in (await cli("tokens", "list")).out
