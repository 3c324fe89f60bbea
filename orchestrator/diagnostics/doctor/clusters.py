"""Cluster pools: the private network of their data centre, and Slurm in their image."""

import httpx

from orchestrator.config.settings import Settings
from orchestrator.core.policy import Pool, PoolKind
from orchestrator.diagnostics.account import answer
from orchestrator.diagnostics.doctor.findings import Section
from orchestrator.ports import Unavailable

WITHOUT_SLURM = ("runpod/", "nvidia/cuda", "pytorch/")  # images that are known to have no Slurm
NAMED = 8  # data centres in a fix


async def clusters(client: httpx.AsyncClient, settings: Settings, section: Section) -> None:
    """Check each cluster pool. Nothing is asked without one."""
    pools = [pool for pool in settings.policy().pools if pool.kind is PoolKind.CLUSTER]
    if not pools:
        return
    for pool in pools:
        _image(pool, section)
    try:
        networks = await networks_of(client)
    except Unavailable as error:
        section.skip("the private network of cluster pools", f"the catalogue cannot be read: {error}")
        return
    for pool in pools:
        _network(pool, networks, section)


async def networks_of(client: httpx.AsyncClient) -> dict[str, bool]:
    """Return for each data centre whether its pods can have a private network. Raises Unavailable."""
    try:
        centers = (await answer(client.get("/v2/catalog/datacenters")))["dataCenters"]
        return {str(center["id"]): center.get("globalNetwork") is True for center in centers}
    except (KeyError, TypeError, AttributeError) as error:
        raise Unavailable(f"the answer has no {error}") from error


def _network(pool: Pool, networks: dict[str, bool], section: Section) -> None:
    center = pool.offers[0].data_center or ""  # POOLS_FILE is refused unless there is exactly one
    if networks.get(center):
        section.ok(f"pool {pool.name}: data centre {center} has a private network for its nodes")
        return
    able = [name for name, has in sorted(networks.items()) if has]
    why = "RunPod's catalogue does not flag it with globalNetwork" if center in networks else "RunPod has no such one"
    fix = f"set data_centers of the pool to one of {', '.join(able[:NAMED])}" if able else "ask RunPod: none has one"
    section.fail(f"pool {pool.name}: data centre {center} cannot hold a cluster", why, fix)


def _image(pool: Pool, section: Section) -> None:
    if pool.install_slurm:
        section.ok(f"pool {pool.name}: Slurm is installed on pods whose image has none", pool.image)
        return
    known = pool.image.startswith(WITHOUT_SLURM)
    why = f"{pool.image} has no Slurm, and install_slurm is not set" if known else pool.image
    if known:
        fix = "set install_slurm = true for the pool, or image to one with slurmctld, slurmd and munged"
        section.fail(f"pool {pool.name}: its image cannot run a cluster", why, fix)
    else:
        section.ok(f"pool {pool.name}: its image must have Slurm", why)
