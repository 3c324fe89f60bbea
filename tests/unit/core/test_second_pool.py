"""What goes wrong in one pool changes nothing in another, also with the same code, release and offers."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.core.actions import Spawn, Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.model import Demand, HeldBack, Snapshot
from orchestrator.core.plan import plan
from orchestrator.core.policy import Policy
from orchestrator.core.provider import OfferState
from orchestrator.core.worker_metadata import WorkerMetadata
from tests.unit.core.build import A40, L4, NOW, ago, brought_up, busy, policy, pool, snapshot, spawning, terminating

FLEET: Policy = policy(code_sha="c", handled=("new",))
TWO = replace(FLEET, pools=(*FLEET.pools, pool(name="second")))
THREE = replace(TWO, pools=(*TWO.pools, pool(name="third", offers=(L4,))))
OLD, LACKS = "image@old", WorkerMetadata(lacks="new")
RELEASE = TWO.release(TWO.pools[0])
HELD = HeldBack(ago(60), 5, frozenset({"t"}), ("OOM",), suspect=False, until=NOW + timedelta(seconds=60))


def failures(code: str, count: int = 9, **changes: Any) -> Snapshot:
    """These bring-ups of the first pool have failed."""
    return snapshot(ended=tuple(brought_up(60 - n, code=code, release=RELEASE, **changes) for n in range(count)))


# Troubles of the first pool.
TROUBLES = {
    "an open breaker": failures("NO_PROCESS"),
    "one failure": failures("NO_PROCESS", 1),
    "workers that fail after promotion": failures(
        "DISK_FULL", promoted=True, exit_cause=ExitCause.WORKER_SICK, failure_code="DISK_FULL", ending_since=ago(30)
    ),
    "a request that RunPod refuses": failures("BAD_SPEC"),
    "tasks that fail on every worker": snapshot(*(busy(f"gpu-{n}", release=RELEASE, held_back=HELD) for n in (1, 2))),
    "workers that lack a handler": snapshot(*(busy(f"gpu-{n}", release=OLD, metadata=LACKS) for n in (1, 2))),
    "a replacement that ends": snapshot(terminating("gpu-1", release=OLD, exit_cause=ExitCause.SUPERSEDED)),
    "bring-ups of its own": snapshot(*(spawning(f"gpu-{n}", release=RELEASE) for n in (1, 2, 3))),
}


def with_second(first: Snapshot, rules: Policy = TWO, **changes: Any) -> Snapshot:
    """The same fleet, in which tasks wait in the other pools too."""
    others = [Demand(one.name, 9, 0, {}, None) for one in rules.pools[1:]]
    return replace(first, demand=(*first.demand, *others), promoted_releases=frozenset({RELEASE}), **changes)


def decided(fleet: Snapshot, rules: Policy = TWO) -> tuple[object, ...]:
    """What was decided about the second pool."""
    made = plan(fleet, rules)
    (decision,) = [one for one in made.decisions if one.pool == "second"]
    spawns = sum(isinstance(one, Spawn) and one.pool == "second" for one in made.actions)
    return spawns, decision.target, decision.blocked


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_trouble_of_one_pool_blocks_no_other(trouble: str) -> None:
    """The other pool is decided as in a fleet without it."""
    assert decided(with_second(TROUBLES[trouble])) == decided(with_second(snapshot()))
    assert decided(with_second(TROUBLES[trouble]))[0]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_second_pool_with_the_same_trouble_is_decided_as_the_first(trouble: str) -> None:
    """It is neither hidden behind the first one nor merged with it."""
    first = replace(TROUBLES[trouble], demand=(Demand("default", 9, 0, {}, None),))
    moved = replace(
        first,
        workers=tuple(replace(one, id=f"{one.id}-2", pod_id=f"{one.pod_id}-2", pool="second") for one in first.workers),
        ended=tuple(replace(one, worker_id=f"{one.worker_id}-2", pool="second") for one in first.ended),
    )
    both = replace(
        with_second(first), workers=(*first.workers, *moved.workers), ended=(*first.ended, *moved.ended), pods=None
    )
    alone = replace(with_second(moved), pods=None)
    assert decided(both) == decided(alone)


def test_a_halt_for_one_pools_request_is_not_ended_by_an_offer_of_another() -> None:
    """Only an offer of its own shows that RunPod takes its request now; money is shared by all."""
    granted = {L4.key: OfferState(L4.key, None, 0, ago(90), ago(3))}
    rules = replace(THREE, pools=(pool(offers=(L4,)), pool(name="second", offers=(A40,)), THREE.pools[2]))
    for code, goes_on in (("BAD_SPEC", False), ("BALANCE", True)):
        refused = brought_up(5, code=code, pool="second", release=RELEASE)
        fleet = with_second(snapshot(ended=(refused,)), rules, offers=granted)
        assert bool(decided(fleet, rules)[0]) is goes_on


def test_each_pool_replaces_its_workers_of_an_earlier_release_by_itself() -> None:
    """A new worker of one pool runs no task of another, and one that makes room there makes none here."""
    new, going = busy("gpu-1", release=RELEASE), terminating("gpu-2", release=OLD, exit_cause=ExitCause.SUPERSEDED)
    earlier = busy("gpu-3", pool="second", release=OLD, metadata=LACKS)
    roomy = plan(with_second(snapshot(new, going, earlier)), TWO)
    assert not [one for one in roomy.actions if isinstance(one, Terminate)]
    full = replace(TWO, pools=(TWO.pools[0], pool(name="second", max_active=1)))
    (end,) = [
        one for one in plan(with_second(snapshot(new, going, earlier)), full).actions if isinstance(one, Terminate)
    ]
    assert (end.worker_id, end.cause) == ("gpu-3", ExitCause.SUPERSEDED)


def test_what_starts_in_another_pool_counts_in_no_canary() -> None:
    """The second pool has one on its way already; the first pool's workers of an earlier release say nothing of it."""
    earlier = [spawning(f"gpu-{n}", release=OLD) for n in (1, 2, 3)]
    canary = spawning("gpu-4", pool="second", release=RELEASE)
    fleet = replace(with_second(snapshot(*earlier, canary)), promoted_releases=frozenset({OLD}))
    assert decided(fleet)[0] == 0


def test_a_pool_is_paced_by_its_own_spawns() -> None:
    """Its newest bring-up failed, and the last spawn of the other pool was a moment ago."""
    fleet = snapshot(ended=(brought_up(60, pool="second", release=RELEASE),), last_spawn_at={"default": ago(1)})
    assert decided(with_second(fleet))[0] == 1


def test_a_starting_worker_is_judged_by_its_own_pools_failures() -> None:
    """The earlier release fails in one pool; it starts in the other one, where it may work."""
    starting = spawning("gpu-1", pool="second", release=OLD)
    made = plan(with_second(snapshot(starting, ended=(brought_up(5, release=OLD),))), TWO)
    assert not [one for one in made.actions if isinstance(one, Terminate)]
