"""RunPod: whether the key opens, what money and stock there is, and pods and rows that have lost each other."""

from collections.abc import Mapping
from typing import Any

import httpx

from orchestrator import wiring
from orchestrator.config.settings import Settings
from orchestrator.config.validation import require
from orchestrator.core.model import Offer
from orchestrator.diagnostics.doctor.findings import Section
from orchestrator.diagnostics.foreign_pods import strangers
from orchestrator.ports import ApiAuth, PortError, Unavailable

TIMEOUT_S = 10.0
FUNDS = "add funds in the RunPod console, Billing"
KEY_FIX = "set RUNPOD_API_KEY to a key that may read and write pods (RunPod console, Settings, API keys)"
RESERVE_H = 1.0  # hours of what is running, below which the balance is a warning
BALANCE = "query { myself { clientBalance currentSpendPerHr } }"


async def runpod(settings: Settings, section: Section) -> None:
    """The key, the balance, the stock of what the pools would rent."""
    key = require(settings, "cloud").runpod_api_key
    assert key is not None  # noqa: S101  require() has seen to it
    headers = {"Authorization": f"Bearer {key.get_secret_value()}"}
    cloud = wiring.open_cloud(settings)
    try:
        pods = await cloud.list_pods()
    except ApiAuth as error:
        section.fail("RunPod refuses the API key", str(error), KEY_FIX)
        section.skip("balance and stock", "the key does not open")
        return
    except PortError as error:
        fix = 'curl -i "${RUNPOD_API_BASE_URL:-https://api.runpod.io}"'
        section.fail("RunPod gives no list of pods", str(error), fix)
        section.skip("balance and stock", "RunPod does not answer")
        return
    finally:
        await cloud.close()
    section.ok("the API key opens", f"{len(pods)} pod(s) in the account")
    async with httpx.AsyncClient(base_url=settings.runpod_api_base_url, headers=headers, timeout=TIMEOUT_S) as client:
        await _balance(client, section)
        await _stock(client, settings, section)


async def pods(settings: Settings, section: Section) -> None:
    """Pods of this fleet that no live row stands for, and live rows whose pod is not listed."""
    require(settings, "cloud", "database")
    cloud = wiring.open_cloud(settings)
    try:
        listed = await cloud.list_pods()
        async with wiring.open_store(settings) as store:
            seen = await store.snapshot()
    except PortError as error:
        section.skip("pods against rows", f"{type(error).__name__}: {error}")
        return
    finally:
        await cloud.close()
    fleet_id, rows = settings.fleet_id, seen.workers
    names, ids = {row.id for row in rows}, {pod.id for pod in listed}
    own = [pod for pod in listed if pod.is_of(fleet_id, seen.database_id)]
    orphans = [pod for pod in own if pod.name not in names]
    lost = [row.id for row in rows if row.pod_id is not None and row.pod_id not in ids]
    if orphans:
        burning = sum(pod.price_usd_per_hour or 0.0 for pod in orphans)
        named = ", ".join(pod.id for pod in orphans[:5])
        why = f"{named}: ${burning:.2f}/h; a running orchestrator deletes them after a grace"
        section.fail(f"{len(orphans)} pod(s) of this fleet have no live row", why, "python -m orchestrator once")
    if lost:
        why = f"{', '.join(lost[:5])}; a running orchestrator ends them once they are surely gone"
        section.warn(
            f"{len(lost)} live row(s) name a pod that is not listed", why, f"python -m orchestrator explain {lost[0]}"
        )
    for theirs in strangers(listed, fleet_id, seen.database_id):
        section.warn(theirs.what, theirs.why, theirs.fix)
    if not orphans and not lost:
        others = f"{len(own)} of this fleet, {len(listed) - len(own)} of others"
        section.ok("every pod has its row and every row its pod", others)


async def _balance(client: httpx.AsyncClient, section: Section) -> None:
    """Only GraphQL tells it, and not to every key: never more than a warning, unless it is gone."""
    try:
        myself = (await _json(client.post("/graphql", json={"query": BALANCE})))["data"]["myself"]
        balance, burning = float(myself["clientBalance"]), float(myself["currentSpendPerHr"] or 0)
    except (Unavailable, KeyError, TypeError, ValueError) as error:
        section.skip("the balance", f"this key is not told: {error}")
        return
    said = f"${balance:.2f}, ${burning:.2f}/h being spent"
    if balance <= 0:
        section.fail("the account has no money", said, FUNDS)
    elif balance < burning * RESERVE_H:
        section.warn("the money lasts less than an hour", said, FUNDS)
    else:
        section.ok("there is money", said)


async def _stock(client: httpx.AsyncClient, settings: Settings, section: Section) -> None:
    clouds = sorted({offer.cloud for pool in settings.policy().pools for offer in pool.offers})
    stock: dict[str, dict[tuple[str, str], str]] = {}
    try:
        for cloud in clouds:
            query = {"include": "AVAILABILITY", "product": "POD", "count": "1", "cloud": cloud}
            for gpu in (await _json(client.get("/v2/catalog/gpus", params=query)))["gpus"]:
                stock.setdefault(str(gpu["id"]), {}).update(_places(gpu, cloud))
    except (Unavailable, KeyError, TypeError) as error:
        section.skip("the stock", f"the catalogue cannot be read: {error}")
        return
    for pool in settings.policy().pools:
        unknown = sorted({offer.gpu_type for offer in pool.offers} - set(stock))
        if unknown:
            known = ", ".join(sorted(stock)[:6])
            section.fail(
                f"pool {pool.name}: no such GPU type: {', '.join(unknown)}",
                f"RunPod has {known}, …",
                "set RUNPOD_GPU_TYPE",
            )
            continue
        there = {offer.key: _of(stock[offer.gpu_type], offer) for offer in pool.offers}
        said = ", ".join(f"{key} {level}" for key, level in there.items())
        if set(there.values()) <= {"NONE"}:
            fix = "add GPU types to RUNPOD_GPU_TYPE or places to RUNPOD_DATA_CENTERS"
            section.warn(f"pool {pool.name}: nothing of it is in stock now", said, fix)
        else:
            section.ok(f"pool {pool.name}: stock", said)


def _places(gpu: Mapping[str, Any], cloud: str) -> dict[tuple[str, str], str]:
    """Return the stock of each data centre; where none is listed, the level of the whole cloud for any place."""
    centers = {(cloud, str(at["id"])): str(at["availability"]) for at in gpu.get("dataCenters") or ()}
    return centers or {(cloud, ""): str(gpu.get("availability") or "unknown")}


def _of(places: Mapping[tuple[str, str], str], offer: Offer) -> str:
    """The best that is there for an offer."""
    levels = [
        level
        for (cloud, center), level in places.items()
        if cloud == offer.cloud and offer.data_center in {None, center}
    ]
    return next((level for level in ("HIGH", "MEDIUM", "LOW", "NONE") if level in levels), "unknown")


async def _json(request: Any) -> Any:
    try:
        reply = await request
        reply.raise_for_status()
        return reply.json()
    except (httpx.HTTPError, ValueError) as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error
