"""`gpus`: what RunPod offers now, and what the configured pools would take."""

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click
from rich.console import RenderableType
from rich.text import Text

from orchestrator.cli.output import Output, json_option, one_line
from orchestrator.cli.session import runs, settings_for
from orchestrator.cli.tables import fit, stack, usd_column
from orchestrator.diagnostics.amounts import gpu_name
from orchestrator.errors import NO_PROVIDER, PROVIDER_AUTH, Failure
from orchestrator.ports import ApiAuth, PortError

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings
    from orchestrator.diagnostics.gpu_offers import GpuOffer, Stock

TIMEOUT_S = 20.0
FEW = 5  # offers whose data centres are all shown on a narrow terminal
PLACES = "data centres"
CLOUDS = ("SECURE", "COMMUNITY")
STYLES = {"HIGH": "green", "MEDIUM": "green", "LOW": "yellow", "NONE": "dim"}


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also types that are not in stock.")
@click.option("--gpu", help="Only types with this in their name.")
@json_option
@click.pass_obj
@runs
async def gpus(output: Output, everything: bool, gpu: str | None) -> None:
    """Show GPU types with price, stock and data centres, those of the configured pools first.

    The price is that of one GPU. A pool takes its types in its own order (#1, #2, …); `next` is the first one in stock.
    `explain scaling` shows what RunPod has refused.
    """
    settings = settings_for("cloud")
    with output.waiting("asking RunPod for its catalogue"):
        prices, stock = await _catalogue(settings)
    from orchestrator.diagnostics.gpu_offers import offers

    found = [
        one
        for one in offers(prices, stock, settings.policy().pools)
        if (everything or one.in_stock or one.pools) and (gpu is None or gpu.lower() in one.gpu_type.lower())
    ]
    if output.json:
        output.document(gpus=[dataclasses.asdict(one) for one in found])
        return
    if not found:
        output.show("No GPU type matches.")
        return
    output.show(listing(found, output))
    nothing = _without(found, [pool.name for pool in settings.policy().pools])
    if nothing and gpu is None:
        output.say(f"nothing of pool {', '.join(nothing)} is in stock", "yellow")


def listing(found: "Sequence[GpuOffer]", output: Output) -> RenderableType:
    """Return one line per offer. On a narrow terminal, the data centres are cut; --gpu shows all of a few types."""
    cells: dict[str, list[str | Text]] = {
        "GPU type": [gpu_name(one.gpu_type) for one in found],
        "cloud": [one.cloud for one in found],
        "$/h": [*usd_column([one.usd_per_hour for one in found])],
        "stock": [Text(one.stock, style=STYLES.get(one.stock, "")) for one in found],
        "pools": [_pools(one) for one in found],
    }
    places = [Text(one_line(_places(one), 400)) for one in found]
    lines = 1 if len(found) > FEW else None
    made = fit(cells, places, output, layouts=[tuple(cells)], title=PLACES, note_lines=lines)
    return made or stack(cells, places, output, below=(), title=PLACES)


async def _catalogue(settings: "Settings") -> "tuple[dict[str, float], Stock]":
    """Return prices and stock. Raises Failure."""
    from orchestrator import wiring
    from orchestrator.diagnostics.account import account
    from orchestrator.diagnostics.doctor import provider

    key = settings.runpod_api_key
    assert key is not None  # noqa: S101  settings_for() has checked it
    cloud = wiring.open_cloud(settings)
    try:
        async with asyncio.timeout(TIMEOUT_S), account(settings.runpod_api_base_url, key.get_secret_value()) as client:
            prices = await cloud.prices()  # first: it distinguishes a rejected key from a provider that does not answer
            stock = await provider.stock(client, CLOUDS)
    except TimeoutError:
        raise Failure(NO_PROVIDER, why=f"no answer within {TIMEOUT_S:.0f} s") from None
    except ApiAuth as error:
        raise Failure(PROVIDER_AUTH, why=one_line(str(error), 400)) from None
    except PortError as error:
        raise Failure(NO_PROVIDER, why=one_line(str(error), 400)) from None
    finally:
        await cloud.close()
    return dict(prices), stock


def _pools(offer: "GpuOffer") -> str:
    return ", ".join(f"{use.pool} #{use.place}{' (next)' if use.is_next else ''}" for use in offer.pools) or "–"


def _places(offer: "GpuOffer") -> str:
    """Return the data centres, those of another level than the best one under its name."""
    by_level: dict[str, list[str]] = {}
    for center, level in sorted(offer.data_centers.items()):
        by_level.setdefault(level, []).append(center)
    order = sorted(by_level, key=lambda level: level != offer.stock)
    named = [("" if level == offer.stock else f"{level}: ") + ", ".join(by_level[level]) for level in order]
    return "; ".join(named) or "–"


def _without(found: "Iterable[GpuOffer]", pools: Iterable[str]) -> list[str]:
    served = {use.pool for one in found for use in one.pools if use.is_next}
    return [name for name in pools if name not in served]
