"""What the provider charged, through the unmodified SDK against the emulator."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.ports import ApiAuth, Unavailable
from tests.process.emulator.build import Api, emulated


@pytest.fixture(scope="module")
async def account(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    """An account in which an hour of a GPU costs $3600."""
    async with emulated(tmp_path_factory.mktemp("bill")) as made:
        terms = {"offers": [{"price_usd_per_hour": 3600.0}], "balance_usd": 1e9}
        await made.emulator.control("POST", "/settings", terms)
        yield made


def cloud(account: Api, key: str | None = None) -> RunPodCloud:
    """The adapter."""
    return RunPodCloud(key or account.emulator.api_key, base_url=account.emulator.url, call_timeout_s=5)


def hours(count: float) -> datetime:
    """So many hours from now."""
    return datetime.now(UTC) + timedelta(hours=count)


async def test_each_pod_is_charged_by_the_hour_and_its_hours_add_up(account: Api) -> None:
    """Also where it ran over the end of an hour; and the sum is the ledger's."""
    pods = [await account.create(f"gpu-{n}") for n in range(2)]
    for pod in pods:
        await account.status(pod["id"], "RUNNING")
    world = account.emulator.core.world
    long = world.pods[pods[0]["id"]]
    assert long.assigned_at is not None
    long.assigned_at -= 2 * 3600
    await account.call("DELETE", f"/v2/pods/{pods[0]['id']}", status=204)
    bills = [bill for bill in await cloud(account).billing(hours(-5), hours(1)) if bill.pod_id == long.id]
    assert len(bills) >= 3
    assert all(bill.since.minute == bill.since.second == 0 for bill in bills)
    assert sum(bill.usd for bill in bills) == pytest.approx(long.billed_usd(time.time()), abs=0.001)
    assert max(bill.usd for bill in bills) == pytest.approx(3600)


async def test_only_the_requested_hours_are_returned(account: Api) -> None:
    """A window before there was a pod is free."""
    await account.create("gpu-9")
    assert await cloud(account).billing(hours(-50), hours(-40)) == ()


async def test_an_invalid_period_is_refused(account: Api) -> None:
    """The API says 400, and an unknown size of bucket too."""
    await account.call(
        "GET", "/v2/billing/pods?startTime=2026-11-21T12:00:00Z&endTime=2026-11-20T00:00:00Z", status=400
    )
    await account.call("GET", "/v2/billing/pods?bucketSize=minute", status=400)
    await account.call("GET", "/v2/billing/pods?startTime=yesterday", status=400)


async def test_a_bill_that_cannot_be_had_is_not_an_empty_one(account: Api) -> None:
    """It is unavailable, or the key is refused."""
    await account.emulator.control("POST", "/faults", {"kind": "truncated_json", "operation": "billing"})
    with pytest.raises(Unavailable):
        await cloud(account).billing(hours(-1), hours(1))
    await account.emulator.control("DELETE", "/faults")
    with pytest.raises(ApiAuth):
        await cloud(account, "wrong").billing(hours(-1), hours(1))
