"""What a tick sees, on a real database and the emulator's API: a provider that hangs holds nothing up."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.adapters.store import SqlStore
from orchestrator.core.actions import Rescue
from orchestrator.core.blocked import BlockedReason
from orchestrator.core.plan import plan
from orchestrator.diagnostics.condition_kinds import ConditionKind
from orchestrator.diagnostics.fact_sources import of_tick
from orchestrator.diagnostics.rules import conditions
from orchestrator.loop.observe import Observer
from orchestrator.pods.provider_cache import Catalog
from tests.db.conformance.builders import FLEET, Fleet
from tests.process.emulator.build import Api, emulated
from tests.unit.core import build

CALL_S = 60.0  # what the provider is given for a list
TICK_S = 20.0  # far less than that, and far more than a tick takes
POLICY = build.policy(fleet_id=FLEET, heartbeat_timeout_s=0)  # it need not have listened for long


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """An account without pods."""
    async with emulated(tmp_path / "account") as made:
        yield made
        await made.emulator.control("DELETE", "/faults")


@pytest.fixture
def observer(api: Api, fleet: Fleet) -> Observer:
    """A process that has just begun to look."""
    cloud = RunPodCloud(api.emulator.api_key, base_url=api.emulator.url, call_timeout_s=CALL_S)
    return Observer(SqlStore(fleet.db, FLEET), cloud, FLEET, Catalog(cloud, POLICY))


async def hang(api: Api) -> None:
    """A call for the list waits."""
    await api.emulator.control("POST", "/faults", {"kind": "hang_before_commit", "operation": "list"})


async def listed(observer: Observer, within_s: float = CALL_S) -> None:
    """Look until there is a list: on a busy machine the first look may not wait for it."""
    async with asyncio.timeout(within_s):
        while (seen := await observer.observe(frozenset(), frozenset())).pods is None:
            await asyncio.sleep(0.05)
    assert seen.pods == ()


async def test_a_first_list_that_hangs_holds_up_neither_a_tick_nor_a_rescue(
    api: Api, observer: Observer, fleet: Fleet
) -> None:
    """Nothing is known about pods, and the task whose lease is over goes back to the queue."""
    fleet.wait(-86_400)
    await fleet.submit()
    await (await fleet.agent()).claim()  # yesterday
    await hang(api)
    async with asyncio.timeout(TICK_S):
        seen = await observer.observe(frozenset(), frozenset())
    assert seen.pods is None
    assert any(isinstance(action, Rescue) for action in plan(seen, POLICY).actions)
    observer.gap()  # hangs up


async def test_a_hanging_list_is_reported_and_not_awaited(
    api: Api, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pods of the last list stand; each pool's decision says for how long there has been none since."""
    monkeypatch.setattr("orchestrator.loop.observe.LIST_EVERY_S", 0.0)
    monkeypatch.setattr("orchestrator.loop.observe.LATE_S", 0.0)
    monkeypatch.setattr(RunPodCloud, "list_pause_s", lambda _: 0.0)  # whatever is left of the account's limits
    await listed(observer)
    await hang(api)
    async with asyncio.timeout(TICK_S):
        seen = await observer.observe(frozenset(), frozenset())
    assert seen.pods == ()
    [decision] = plan(seen, POLICY).decisions
    assert BlockedReason.OLD_POD_LIST in {reason.kind for reason in decision.blocked}
    observer.gap()


async def test_a_key_that_is_refused_is_told_from_an_outage(api: Api, observer: Observer) -> None:
    """By the leader too: the condition that it records is the one that `health` finds."""
    await api.emulator.control("POST", "/faults", {"kind": "unauthorized", "operation": "list", "times": 99})
    async with asyncio.timeout(CALL_S):
        while (seen := await observer.observe(frozenset(), frozenset())).unlisted is None:
            await asyncio.sleep(0.05)
    kinds = [one.kind for one in conditions(of_tick(seen, plan(seen, POLICY)))]
    assert ConditionKind.API_KEY_REFUSED in kinds
    assert ConditionKind.PROVIDER_DOWN not in kinds


async def test_a_list_that_was_asked_for_before_a_gap_does_not_count(api: Api, observer: Observer) -> None:
    """Its answer may be as old as the gap is long: another one is asked for."""
    await hang(api)
    assert (await observer.observe(frozenset(), frozenset())).pods is None
    observer.gap()
    await api.emulator.control("DELETE", "/faults")
    await listed(observer, within_s=TICK_S)  # the list of before would hang for longer
    assert api.emulator.core.calls["GET /v2/pods"] == 2


async def test_a_list_of_before_an_outage_of_the_database_is_forgotten(api: Api, observer: Observer) -> None:
    """It is as old as the outage is long, or another orchestrator has led since then."""
    await listed(observer)
    await hang(api)
    observer.gap()
    async with asyncio.timeout(TICK_S):
        seen = await observer.observe(frozenset(), frozenset())
    assert seen.pods is None
    observer.gap()  # hangs up
