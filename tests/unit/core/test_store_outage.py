"""While the object store is away no pod starts and waiting tasks are no demand; what was decided says since when."""

from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrator.core import store_outage
from orchestrator.core.actions import Create, Spawn
from orchestrator.core.blocked import BlockedReason, line
from orchestrator.core.model import StoreOutage
from orchestrator.core.plan import plan
from orchestrator.core.states import Stage
from tests.unit.core.build import NOW, ago, busy, idle, policy, said, snapshot, spawning

AWAY = StoreOutage(ago(90), "S3 does not answer (Unavailable: cut)")


@pytest.mark.parametrize("changes", [{}, {"min_active": 2}, {"keep_idle": 1}])
def test_no_pod_starts_and_the_reason_has_its_beginning(changes: dict[str, int]) -> None:
    """Not for tasks, and not to keep workers warm."""
    made = plan(snapshot(claimable=9, store_outage=AWAY), policy(pool=changes))
    assert not [a for a in made.actions if isinstance(a, Spawn)]
    [decision] = made.decisions
    assert any(f"since {AWAY.since:%H:%M:%S}" in why for why in said(made))
    assert {reason.kind for reason in decision.blocked} == {BlockedReason.STORE_AWAY}
    assert dict(decision.inputs)["blocked"] == {"store": 9}


def test_a_recorded_intent_waits_too() -> None:
    """Its pod was not asked for yet."""
    made = plan(snapshot(spawning("gpu-1", Stage.INTENT), claimable=9, store_outage=AWAY), policy())
    assert not [a for a in made.actions if isinstance(a, Create)]


def test_scaling_continues_when_the_store_is_back() -> None:
    """The same snapshot without the outage spawns."""
    assert [a for a in plan(snapshot(claimable=9), policy()).actions if isinstance(a, Spawn)]


def test_the_leaders_own_calls_decide() -> None:
    """And the beginning stays that of the first sign."""
    early = StoreOutage(AWAY.since - timedelta(seconds=30), "workers wait")
    assert store_outage.detect(AWAY, (), None, NOW) == AWAY
    assert store_outage.detect(AWAY, (), early, NOW) == StoreOutage(early.since, AWAY.why)
    refused = store_outage.detect(replace(AWAY, refused=True), (), early, NOW)
    assert refused is not None
    assert store_outage.reason(refused).kind is BlockedReason.STORE_REFUSES  # an operator must act
    assert store_outage.detect(None, (idle("gpu-1", 1),), AWAY, NOW) is None


EARLIEST = ago(3_600)
ODD: tuple[object, ...] = (5, None, "x" * 10_000, [1], True, "2026-13-01", "0001-01-01")


@pytest.mark.parametrize(
    ("health", "since"),
    [
        (None, None), ([], None), ({}, None), ({"store": None}, None), ({"store": {}}, None),
        ({"store": {"since": ago(60).isoformat()}}, ago(60)),
        ({"store": {"since": f"{ago(60):%Y-%m-%dT%H:%M:%SZ}"}}, ago(60)),
        ({"store": {"since": f"{ago(60):%Y-%m-%dT%H:%M:%S}"}}, ago(60)),
        ({"store": {"since": "1970-01-01T00:00:00Z"}}, EARLIEST),
        *(({"store": {"since": odd}}, EARLIEST) for odd in ODD),
        *(({"store": odd}, EARLIEST) for odd in ODD if odd),
    ],
)  # fmt: skip
def test_any_answer_of_a_pod_is_a_time_of_its_own(health: object, since: object) -> None:
    """What it may send instead of a time counts from the beginning of its state."""
    assert store_outage.waiting_since(health, EARLIEST) == since


def test_half_of_the_workers_prove_an_outage_and_one_does_not() -> None:
    """One alone may have lost its own way to the store."""
    waiting = [busy(f"gpu-{n}", store_wait_since=ago(5)) for n in range(2)]
    others = [busy(f"gpu-{n}") for n in range(2, 5)]
    assert store_outage.detect(None, waiting[:1], None, NOW) is None
    assert store_outage.detect(None, [*waiting, *others], None, NOW) is None
    found = store_outage.detect(None, [*waiting, *others[:2]], None, NOW)
    assert found is not None
    assert (found.since, store_outage.reason(found).detail["waiting"]) == (NOW, 2)
    assert "2 of 4 workers wait for it" in line(store_outage.reason(found))
