"""`tenants`: the tenants that share the queue, and their weights (docs/fairness.md)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.session import runs, settings_for
from orchestrator.cli.tables import table

if TYPE_CHECKING:
    from orchestrator.adapters.sharing_store import SharingStore

MAX_WEIGHT = 1_000


@asynccontextmanager
async def opened_sharing() -> "AsyncIterator[SharingStore]":
    """Open the rows that define how tasks share the fleet."""
    settings = settings_for("database")
    from orchestrator import wiring

    async with wiring.open_sharing(settings) as store:
        yield store


@click.group()
def tenants() -> None:
    """Share each pool between tenants by weight."""


@tenants.command("list")
@json_option
@click.pass_obj
@runs
async def listed(output: Output) -> None:
    """List the tenants that have a weight or live tasks."""
    async with opened_sharing() as store:
        found = await store.tenants()
    if output.json:
        output.document(tenants=found)
        return
    shown = table("tenant", "weight", "ready", "waiting", "running")
    for one in found:
        name = "(without a tenant)" if one["tenant"] is None else one_line(one["tenant"])
        shown.add_row(name, *(str(one[key]) for key in ("weight", "ready", "waiting", "running")))
    output.show(shown if found else "No tenants found.")


@tenants.command("set")
@click.argument("tenant")
@click.option(
    "--weight", type=click.IntRange(1, MAX_WEIGHT), required=True, help="Its tasks for each task of another tenant."
)
@click.pass_obj
@runs
async def put(output: Output, tenant: str, weight: int) -> None:
    """Set the weight of TENANT. Every other tenant has the weight 1."""
    async with opened_sharing() as store:
        await store.set_weight(tenant, weight)
    output.show(f"{one_line(tenant)}: weight {weight}")
