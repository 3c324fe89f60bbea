"""Workers whose tasks fail one after the other, or whose disk is full."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import fitness
from orchestrator.core.actions import Plan, Spawn, Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.fitness import UNCLAIMED_S
from orchestrator.core.host_strikes import strikes
from orchestrator.core.liveness import ObservationWindow
from orchestrator.core.model import Demand, HeldBack, Snapshot, StoreOutage, Worker
from orchestrator.core.plan import plan
from orchestrator.core.states import State
from tests.unit.core.build import ago, brought_up, busy, idle, policy, said, snapshot, spawning, terminating

ONE = frozenset({"travel"})


def held(name: str = "gpu-1", seconds: float = 10, **changes: Any) -> Worker:
    back = HeldBack(ago(seconds), 5, changes.pop("types", ONE), ("HANDLER_ERROR",), changes.pop("elsewhere", None))
    return idle(name, seconds, held_back=back, release="image@", **changes)


def ends(made: Plan) -> list[tuple[str, ExitCause, FailureCode | None]]:
    return [(a.worker_id, a.cause, a.code) for a in made.actions if isinstance(a, Terminate)]


def spawns(seen: Snapshot, **changes: Any) -> int:
    return sum(isinstance(a, Spawn) for a in plan(seen, policy(**changes)).actions)


def test_a_worker_is_sick_if_another_one_completes_such_tasks() -> None:
    """It is replaced, and its host gets a strike."""
    sick = held(elsewhere=ago(3), machine_id="m1")
    made = plan(snapshot(sick, busy("gpu-2"), claimable=1, running=1), policy())
    assert ends(made) == [("gpu-1", ExitCause.WORKER_SICK, FailureCode.TASKS_FAIL_HERE)]
    assert [strike.key for strike in strikes(sick, FailureCode.TASKS_FAIL_HERE)] == ["machine:m1"]


def test_a_held_back_worker_is_no_capacity_and_another_one_gives_the_second_opinion() -> None:
    """It does not count for the target, but for MAX_ACTIVE_GPUS. It ends only once the cause is known."""
    seen = snapshot(held(), claimable=3)
    assert ends(plan(seen, policy())) == []
    assert spawns(seen) == 1
    full = snapshot(held(), busy("gpu-2"), claimable=300, running=1)
    assert spawns(full, pool={"max_active": 3}) == 1
    assert spawns(snapshot(held(), claimable=0)) == 0


def test_a_release_is_bad_if_all_its_workers_fail() -> None:
    """Both go, no host gets a strike, and the breaker lets one canary at a time try."""
    seen = snapshot(held("gpu-1", machine_id="m1"), held("gpu-2", machine_id="m2"), claimable=300)
    bringups = tuple(brought_up(200, promoted=True, worker_id=name, worked=True) for name in ("gpu-1", "gpu-2"))
    made = plan(replace(seen, ended=bringups), policy())
    bad = (ExitCause.RELEASE_BAD, FailureCode.TASKS_FAIL_EVERYWHERE)
    assert ends(made) == [("gpu-1", *bad), ("gpu-2", *bad)]
    assert strikes(seen.workers[0], bad[1]) == ()
    fallen = tuple(replace(c, exit_cause=bad[0], failure_code=bad[1], ending_since=ago(60)) for c in bringups)
    later = replace(snapshot(claimable=300), ended=fallen)
    assert spawns(later) == 1
    assert "fails its tasks on every worker" in said(plan(later, policy()))[-1]
    cured = brought_up(20, promoted=True, worker_id="gpu-3", worked=True)
    assert spawns(replace(later, ended=(*fallen, cured))) == 4
    assert spawns(later, code_sha="next") == 1, "a new release has its own canary"


@pytest.mark.parametrize("changes", [{"types": frozenset({"other"})}, {"machine_id": "m1"}], ids=str)
def test_two_that_fail_other_tasks_or_on_one_machine_are_no_second_opinion(changes: dict[str, Any]) -> None:
    """They may both be sick."""
    assert ends(plan(snapshot(held("gpu-1", machine_id="m1"), held("gpu-2", **changes), claimable=1), policy())) == []


def test_without_room_for_a_second_opinion_the_successor_gives_it() -> None:
    """The worker is replaced at once. If its successor fails too, the release is bad."""
    alone = snapshot(held(), claimable=3)
    (first,) = ends(plan(alone, policy(pool={"max_active": 1})))
    assert first == ("gpu-1", ExitCause.WORKER_SICK, FailureCode.TASKS_FAIL_UNJUDGED)
    assert strikes(held(machine_id="m1"), first[2]) == ()
    gone = brought_up(300, promoted=True, worker_id="gpu-1", exit_cause=first[1], failure_code=first[2])
    again = replace(snapshot(held("gpu-2"), claimable=3), ended=(replace(gone, ending_since=ago(200)),))
    (second,) = ends(plan(again, policy(pool={"max_active": 1})))
    assert second == ("gpu-2", ExitCause.RELEASE_BAD, FailureCode.TASKS_FAIL_EVERYWHERE)
    long_ago = replace(again, ended=(replace(gone, ending_since=ago(3700)),))
    assert ends(plan(long_ago, policy(pool={"max_active": 1}))) == [("gpu-2", *first[1:])]


def test_a_successor_beyond_the_limit_does_not_keep_the_worker_that_it_replaces() -> None:
    """Where only the successor's row was written, and not the worker's end, the next tick still ends the worker."""
    seen = snapshot(held(), spawning("gpu-2"), claimable=3)
    assert ends(plan(seen, policy(pool={"max_active": 1}))) == [
        ("gpu-1", ExitCause.WORKER_SICK, FailureCode.TASKS_FAIL_UNJUDGED)
    ]
    assert ends(plan(seen, policy(pool={"max_active": 2}))) == []


def test_the_wait_for_a_second_opinion_has_an_end() -> None:
    """A worker whose state stays unknown costs money for no longer than a bring-up may take."""
    assert ends(plan(snapshot(held(seconds=899)), policy())) == []
    assert ends(plan(snapshot(held(seconds=901)), policy())) == [
        ("gpu-1", ExitCause.WORKER_SICK, FailureCode.TASKS_FAIL_UNJUDGED)
    ]


def waiting(*workers: Worker, seconds: float = UNCLAIMED_S, **changes: Any) -> Snapshot:
    """Tasks wait, and no idle worker has claimed, for so long."""
    demand = (Demand("default", 6, 0, {}, ago(seconds)),)
    seen_at = {one.id: ago(seconds) for one in workers if one.state is State.IDLE}
    return snapshot(*workers, **{"demand": demand, "claim_seen_at": seen_at} | changes)


def test_a_worker_that_asks_for_none_of_the_waiting_tasks_is_replaced() -> None:
    """Its agent's claims hang, and its heartbeats do not. With its place, another one is started."""
    hung = idle("gpu-1", 500)
    assert ends(plan(waiting(hung), policy())) == [("gpu-1", ExitCause.WORKER_SICK, FailureCode.NOT_CLAIMING)]
    one_at_a_time = waiting(hung, idle("gpu-2", 500))
    assert [name for name, _, _ in ends(plan(one_at_a_time, policy()))] == ["gpu-1"]
    for other in (spawning("gpu-0"), terminating("gpu-0")):
        assert not ends(plan(waiting(hung, other), policy()))


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": UNCLAIMED_S - 1},
        {"claim_seen_at": {"gpu-1": ago(5)}},  # it asks, and gets none: somebody has locked them
        {"claim_seen_at": {}},
        {"unanswered_at": {"gpu-1": ago(5)}},
        {"heard_again_at": {"gpu-1": ago(5)}},  # its heartbeats reach a gateway again, and its claims in a moment
        {"demand": (Demand("default", 0, 0, {}, None),)},
        {"demand": (Demand("default", 3, 0, {}, ago(UNCLAIMED_S - 1)),)},
        {"window": ObservationWindow(ago(UNCLAIMED_S - 1))},
        {"store_outage": StoreOutage(ago(900), "S3 does not answer")},
    ],
    ids=str,
)
def test_a_worker_that_had_no_chance_to_claim_stays(changes: dict[str, Any]) -> None:
    """Or asked for a task: whatever kept it from getting one would keep the next worker too."""
    assert not ends(plan(waiting(idle("gpu-1", 500), **changes), policy()))


def test_a_program_of_ones_own_claims_in_its_own_way() -> None:
    """Nothing is known of its claims."""
    assert not ends(plan(waiting(idle("gpu-1", 500, own_program=True)), policy()))


def test_a_full_disk_is_the_workers_own_check() -> None:
    """It is no capacity at once, and it is replaced if the disk stays full; what it runs may end first."""
    full = idle("gpu-1", 5, disk_full_since=ago(10))
    assert spawns(snapshot(full, claimable=1)) == 1
    assert ends(plan(snapshot(full, claimable=1), policy())) == []
    later = replace(full, disk_full_since=ago(31))
    assert ends(plan(snapshot(later, claimable=1), policy())) == [
        ("gpu-1", ExitCause.WORKER_SICK, FailureCode.DISK_FULL)
    ]
    assert ends(plan(snapshot(replace(later, tasks_running=1), running=1), policy())) == []
    ahead = replace(later, disk_full_since=ago(-31_536_000), state_since=ago(31))  # its clock is a year ahead
    assert len(ends(plan(snapshot(ahead, claimable=1), policy()))) == 1
    failing = replace(held(), disk_full_since=ago(1))
    assert ends(plan(snapshot(failing), policy()))[0][2] is FailureCode.DISK_FULL


def test_each_worker_of_a_large_fleet_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at all others for each of 1,000 busy workers took seconds of each tick."""
    looks, claims_nothing = 0, fitness._claims_nothing

    def counted(worker: Worker, snapshot: Snapshot) -> bool:
        nonlocal looks
        looks += 1
        return claims_nothing(worker, snapshot)

    monkeypatch.setattr(fitness, "_claims_nothing", counted)
    plan(snapshot(*(busy(f"gpu-{number}") for number in range(300)), claimable=50), policy())
    assert looks == 300
