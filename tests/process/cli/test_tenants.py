"""`tenants`: who shares the queue."""

from tests.process.cli.builders import Cli

NAME = "tenant-of-this-test"  # tenants belong to the database, which tests share


async def test_a_tenant_gets_a_weight_and_is_listed(cli: Cli) -> None:
    """With its tasks; tasks of other tests may be there too."""
    assert (await cli("tasks", "submit", "--type", "t", "--tenant", NAME, "--pool", "nobody")).code == 0
    assert (await cli("tenants", "set", NAME, "--weight", "3")).out == f"{NAME}: weight 3\n"
    (row,) = [one for one in (await cli("tenants", "list", "--json")).json()["tenants"] if one["tenant"] == NAME]
    assert row == {"tenant": NAME, "weight": 3, "ready": 1, "waiting": 0, "running": 0}
    assert NAME in (await cli("tenants", "list")).out
    assert (await cli("tenants", "set", NAME, "--weight", "1001")).code == 2
    refused = await cli("tenants", "set", "a\u001b[1m", "--weight", "2")
    assert (refused.code, "\u001b" in refused.err) == (2, False), refused.err
