"""RunPod: the API key, the balance, the stock, network volumes, pods without a row and rows without a pod."""

from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from orchestrator import wiring
from orchestrator.config.settings import Settings
from orchestrator.config.validation import lacks, require
from orchestrator.core.plurals import dollars
from orchestrator.core.provider import Offer, place_of
from orchestrator.diagnostics.account import account, answer, money
from orchestrator.diagnostics.doctor.clusters import clusters
from orchestrator.diagnostics.doctor.findings import Section
from orchestrator.diagnostics.drift import drift
from orchestrator.diagnostics.facts import Facts
from orchestrator.diagnostics.gpu_offers import level_of
from orchestrator.diagnostics.rules import conditions
from orchestrator.ports import ApiAuth, BadSpec, Cloud, PortError, Unavailable

FUNDS = "add funds in the RunPod console, Billing"
KEY_FIX = "set RUNPOD_API_KEY to a key that may read and write pods (RunPod console, Settings, API keys)"
RESERVE_H = 1.0  # hours of the present spending, below which the balance is a warning


async def runpod(settings: Settings, section: Section) -> None:
    """Check the key, the balance, and the stock, the volumes and the registry credentials of the pools."""
    key = require(settings, "cloud").runpod_api_key
    assert key is not None  # noqa: S101  require() has checked it
    cloud = wiring.open_cloud(settings)
    try:
        pods = await cloud.list_pods()
        section.ok("RunPod accepts the API key", f"pods in the account: {len(pods)}")
        await _volumes(cloud, settings, section)
        await _registries(cloud, settings, section)
    except ApiAuth as error:
        section.fail("RunPod refuses the API key", str(error), KEY_FIX)
        section.skip("balance, stock and volumes", "RunPod refuses the API key")
        return
    except PortError as error:
        fix = 'curl -i "${RUNPOD_API_BASE_URL:-https://api.runpod.io}"'
        section.fail("RunPod gives no list of pods", str(error), fix)
        section.skip("balance, stock and volumes", "RunPod does not answer")
        return
    finally:
        await cloud.close()
    async with account(settings.runpod_api_base_url, key.get_secret_value()) as client:
        await _balance(client, section)
        await _stock(client, settings, section)
        await clusters(client, settings, section)


async def pods(settings: Settings, section: Section) -> None:
    """Compare the pods of this fleet with the live rows."""
    if missing := lacks(settings, "cloud", "database"):
        section.skip("pods against rows", missing)
        return
    cloud = wiring.open_cloud(settings)
    try:
        listed = await cloud.list_pods()
        async with wiring.open_store(settings) as store:
            seen, rows = await store.snapshot(), await store.workers()
    except PortError as error:
        section.skip("pods against rows", f"{type(error).__name__}: {error}")
        return
    finally:
        await cloud.close()
    differs = drift(listed, rows, settings.fleet_id, seen.database_id, seen.now)
    section.conditions(conditions(Facts(seen.now, is_led=True, drift=differs)))
    if not differs:
        others = f"{differs.pods} of this fleet, {len(listed) - differs.pods} of others"
        section.ok("every pod has its row and every row its pod", others)


async def _volumes(cloud: Cloud, settings: Settings, section: Section) -> None:
    for pool in settings.policy().pools:
        if pool.volume_name is None:
            continue
        try:
            volume_id, center = await cloud.volume_id(pool.volume_name)
        except BadSpec as error:
            fix = "set RUNPOD_STORAGE_NAME (or storage_name in POOLS_FILE) to the name of one network volume"
            section.fail(f"pool {pool.name}: the network volume cannot be used", str(error), fix)
        else:
            section.ok(f"pool {pool.name}: network volume {pool.volume_name}", f"{volume_id} in {center}")


async def _registries(cloud: Cloud, settings: Settings, section: Section) -> None:
    for pool in settings.policy().pools:
        if pool.registry_auth is None:
            continue
        try:
            registry_id = await cloud.registry_id(pool.registry_auth)
        except BadSpec as error:
            fix = "add them in the RunPod console (Settings, Container registry auth), or correct RUNPOD_REGISTRY_AUTH"
            section.fail(f"pool {pool.name}: the registry credentials cannot be used", str(error), fix)
        else:
            section.ok(
                f"pool {pool.name}: registry credentials {pool.registry_auth}", f"{registry_id} for {pool.image}"
            )


async def _balance(client: httpx.AsyncClient, section: Section) -> None:
    """Warn if the balance does not last, fail if there is none."""
    try:
        balance, burning = await money(client)
    except Unavailable as error:
        section.skip(
            "the balance", f"{error}; budgets and RunPod's refusals to rent do not need it; see RunPod's console"
        )
        return
    amount = f"{dollars(balance)}, {dollars(burning)}/h being spent"
    if balance <= 0:
        section.fail("the account has no money", amount, FUNDS)
    elif balance < burning * RESERVE_H:
        section.warn("the money lasts less than an hour", amount, FUNDS)
    else:
        section.ok("there is money", amount)


async def _stock(client: httpx.AsyncClient, settings: Settings, section: Section) -> None:
    clouds = sorted({offer.cloud for pool in settings.policy().pools for offer in pool.offers})
    try:
        there_is = await stock(client, clouds)
    except Unavailable as error:
        section.skip("the stock", f"the catalogue cannot be read: {error}")
        return
    for pool in settings.policy().pools:
        unknown = sorted({offer.gpu_type for offer in pool.offers} - set(there_is))
        if unknown:
            known = ", ".join(sorted(there_is)[:6])
            section.fail(
                f"pool {pool.name}: no such GPU type: {', '.join(unknown)}",
                f"RunPod has {known}, …",
                "set RUNPOD_GPU_TYPE",
            )
            continue
        there = {offer.key: level_of(there_is[offer.gpu_type], offer) for offer in pool.offers}
        shown = "; ".join(f"{place_of(key)}: {level}" for key, level in there.items())
        if set(there.values()) <= {"NONE"}:
            fix = "add GPU types to RUNPOD_GPU_TYPE or places to RUNPOD_DATA_CENTERS"
            section.warn(f"pool {pool.name}: nothing of it is in stock now", shown, fix)
        else:
            section.ok(f"pool {pool.name}: stock", shown)


async def stock(client: httpx.AsyncClient, clouds: Iterable[str]) -> dict[str, dict[tuple[str, str], str]]:
    """Return the stock by GPU type and place (cloud, data centre). Raises Unavailable."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for cloud in clouds:
        for gpu, places in (await _catalogue(client, cloud)).items():
            found.setdefault(gpu, {}).update(places)
    return found


async def levels(client: httpx.AsyncClient, cloud: str) -> dict[str, str]:
    """Return the best stock level of each GPU type in any data centre. Raises Unavailable."""
    return {gpu: level_of(places, Offer(gpu, None, cloud)) for gpu, places in (await _catalogue(client, cloud)).items()}


async def _catalogue(client: httpx.AsyncClient, cloud: str) -> dict[str, dict[tuple[str, str], str]]:
    """Return the stock by GPU type and place. Raises Unavailable."""
    query = {"include": "AVAILABILITY", "product": "POD", "count": "1", "cloud": cloud}
    try:
        gpus = (await answer(client.get("/v2/catalog/gpus", params=query)))["gpus"]
        return {str(gpu["id"]): _places(gpu, cloud) for gpu in gpus}
    except (KeyError, TypeError) as error:
        raise Unavailable(f"the answer has no {error}") from error


def _places(gpu: Mapping[str, Any], cloud: str) -> dict[tuple[str, str], str]:
    """Return the stock of each data centre; if none is listed, the level of the whole cloud for any place."""
    centers = {(cloud, str(at["id"])): str(at["availability"]) for at in gpu.get("dataCenters") or ()}
    return centers or {(cloud, ""): str(gpu.get("availability") or "unknown")}
