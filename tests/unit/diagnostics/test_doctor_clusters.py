"""doctor's checks of cluster pools: the data centre's private network, and Slurm in the image."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.config.environment import load
from orchestrator.config.settings import Settings
from orchestrator.diagnostics.doctor.clusters import clusters
from orchestrator.diagnostics.doctor.findings import Section

CENTERS = [{"id": "EU-RO-1", "globalNetwork": True}, {"id": "US-KS-2", "globalNetwork": False}]
POOL = "[pools.slurm]\nkind = 'cluster'\ndata_centers = ['{center}']\nimage = '{image}'\n"


def settings(monkeypatch: pytest.MonkeyPatch, path: Path, text: str) -> Settings:
    (path / "pools.toml").write_text(text)
    monkeypatch.setenv("POOLS_FILE", str(path / "pools.toml"))
    return load()


async def said(settings: Settings, reply: Any) -> list[tuple[str, str, str]]:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v2/catalog/datacenters"
        return httpx.Response(200, json=reply)

    section = Section("runpod")
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="https://rest.test") as client:
        await clusters(client, settings, section)
    return [(one.status, one.what, one.fix) for one in section.findings]


async def test_without_a_cluster_pool_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert await said(settings(monkeypatch, tmp_path, "[pools.a]\n"), None) == []


async def test_a_pool_in_a_place_with_a_private_network_is_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = settings(monkeypatch, tmp_path, POOL.format(center="EU-RO-1", image="mine/slurm:1"))
    assert [status for status, _, _ in await said(made, {"dataCenters": CENTERS})] == ["ok", "ok"]


@pytest.mark.parametrize("center", ["US-KS-2", "MOON-1"])
async def test_a_place_without_a_private_network_is_a_fault_that_names_places_with_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, center: str
) -> None:
    made = settings(monkeypatch, tmp_path, POOL.format(center=center, image="mine/slurm:1"))
    _, (status, what, fix) = await said(made, {"dataCenters": CENTERS})
    assert (status, what) == ("fail", f"pool slurm: data centre {center} cannot hold a cluster")
    assert fix == "set data_centers of the pool to one of EU-RO-1"


async def test_an_image_that_is_known_to_have_no_slurm_needs_the_permission_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = POOL.format(center="EU-RO-1", image="runpod/pytorch:2.4.0")
    (status, what, fix), _ = await said(settings(monkeypatch, tmp_path, text), {"dataCenters": CENTERS})
    assert (status, what) == ("fail", "pool slurm: its image cannot run a cluster")
    assert "install_slurm = true" in fix
    allowed = settings(monkeypatch, tmp_path, text + "install_slurm = true\n")
    assert [one[0] for one in await said(allowed, {"dataCenters": CENTERS})] == ["ok", "ok"]


@pytest.mark.parametrize("reply", [None, [], {}, {"dataCenters": 7}, {"dataCenters": [{"name": "x"}]}])
async def test_an_unreadable_catalogue_leaves_the_result_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reply: Any
) -> None:
    made = settings(monkeypatch, tmp_path, POOL.format(center="EU-RO-1", image="mine/slurm:1"))
    assert [status for status, _, _ in await said(made, reply)] == ["ok", "skip"]
