"""Prices and volumes, as the planner gets to know them, from the emulator through the unmodified SDK."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.core.policy import Policy
from orchestrator.core.provider import Volume
from orchestrator.pods.provider_cache import Catalog
from orchestrator.ports import ApiAuth, BadSpec, Unavailable
from tests.process.emulator.build import GPU, Api, emulated
from tests.unit.core.build import policy

BUDGETED = policy(daily_budget_usd=10)


@pytest.fixture(scope="module")
async def account(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """One emulator for all of these tests."""
    async with emulated(tmp_path_factory.mktemp("account")) as made:
        yield made


@pytest.fixture
async def api(account: Api) -> AsyncIterator[Api]:
    """The account without faults."""
    yield account
    await account.emulator.control("DELETE", "/faults")


@pytest.fixture
def cloud(api: Api) -> RunPodCloud:
    """The adapter."""
    return RunPodCloud(api.emulator.api_key, base_url=api.emulator.url, call_timeout_s=10)


def mounting(name: str) -> Policy:
    """A policy whose pool mounts this volume."""
    return policy(pool={"volume_name": name})


async def test_prices_are_of_one_gpu_in_one_cloud(cloud: RunPodCloud) -> None:
    """What the catalogue lists."""
    prices = await cloud.prices()
    assert (prices[f"{GPU}|SECURE"], prices[f"{GPU}|COMMUNITY"]) == (0.69, 0.34)


@pytest.mark.parametrize(("kind", "error"), [("odd_reply", Unavailable), ("forbidden", ApiAuth)])
async def test_prices_that_cannot_be_read_are_not_guessed(
    api: Api, cloud: RunPodCloud, kind: str, error: type[Exception]
) -> None:
    """The call fails as a whole."""
    await api.emulator.control("POST", "/faults", {"kind": kind, "operation": "catalog"})
    with pytest.raises(error):
        await cloud.prices()


async def test_nothing_is_asked_that_the_policy_does_not_need(api: Api, cloud: RunPodCloud) -> None:
    """Without a budget no prices, without a volume no volumes."""
    before = dict(api.emulator.core.calls)
    catalog = Catalog(cloud, policy())
    assert not await catalog.refresh()
    assert dict(api.emulator.core.calls) == before


async def test_answers_are_kept_and_asked_for_again_only_when_one_is_missing(api: Api, cloud: RunPodCloud) -> None:
    """One call while it is fresh; after a failure the next look asks again."""
    catalog = Catalog(cloud, BUDGETED)
    await api.emulator.control("POST", "/faults", {"kind": "forbidden", "operation": "catalog", "times": 1})
    assert not await catalog.refresh()
    assert await catalog.refresh()
    assert catalog.prices[f"{GPU}|SECURE"] == 0.69
    before = api.emulator.core.calls["GET /v2/catalog/gpus"]
    assert not await catalog.refresh()
    assert api.emulator.core.calls["GET /v2/catalog/gpus"] == before


async def test_a_volume_is_known_with_its_data_centre(api: Api, cloud: RunPodCloud) -> None:
    """Asked for once, however many pods mount it."""
    catalog = Catalog(cloud, mounting("models"))
    assert await catalog.refresh()
    assert catalog.volumes == {"models": Volume("EU-RO-1", None)}
    before = api.emulator.core.calls["GET /v2/network-volumes"]
    assert await catalog.volume("models") == ("vol1emulated", "EU-RO-1")
    assert api.emulator.core.calls["GET /v2/network-volumes"] == before


async def test_registry_credentials_are_looked_up_once_and_a_problem_ends_with_its_cause(
    api: Api, cloud: RunPodCloud
) -> None:
    """Two pools: the credentials of one are missing, until somebody adds them."""
    one = BUDGETED.pools[0]
    both = (replace(one, registry_auth="dockerhub"), replace(one, name="b", registry_auth="absent"))
    catalog = Catalog(cloud, replace(BUDGETED, pools=both))
    assert await catalog.refresh()
    assert list(catalog.registry_problems) == ["absent"]
    before = api.emulator.core.calls["GET /v2/registries"]
    assert await catalog.registry("dockerhub") == "reg1emulated"
    assert api.emulator.core.calls["GET /v2/registries"] == before
    with pytest.raises(BadSpec, match="the account has: dockerhub"):
        await catalog.registry("absent")
    there = [{"id": "reg1emulated", "name": "dockerhub"}, {"id": "reg2", "name": "absent"}]
    await api.emulator.control("POST", "/settings", {"registries": there})
    assert await catalog.refresh()
    assert catalog.registry_problems == {}
    assert await catalog.registry("absent") == "reg2"


async def test_a_volume_that_is_not_there_is_said_and_does_not_hide_the_rest(cloud: RunPodCloud) -> None:
    """The planner spawns nothing for that pool, and its reason names the volumes that there are."""
    there = mounting("models").pools[0]
    both = replace(BUDGETED, pools=(replace(there, name="b"), replace(there, volume_name="absent")))
    catalog = Catalog(cloud, both)
    assert await catalog.refresh()
    problem = catalog.volumes["absent"].problem
    assert problem is not None
    assert "'absent'; the account has: models" in problem
    assert catalog.volumes["models"] == Volume("EU-RO-1", None)
    with pytest.raises(BadSpec):
        await catalog.volume("absent")
