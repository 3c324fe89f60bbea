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
from orchestrator.core.model import Demand, HeldBack, Snapshot, Spent, StoreOutage, Worker
from orchestrator.core.plan import plan
from orchestrator.core.states import State
from tests.unit.core.build import ago, busy, idle, policy, said, snapshot, spawning, terminating

ONE = frozenset({"travel"})


def held(name: str = "gpu-1", seconds: float = 10, **changes: Any) -> Worker:
    back = HeldBack(ago(seconds), 5, ONE, ("HANDLER_ERROR",))
    names = {
        "failures",
        "suspect",
        "until",
        "trials",
        "done_elsewhere",
        "failed_elsewhere",
        "meanwhile",
        "alike",
        "unlike",
        "release_works",
    }
    back = replace(back, **{key: changes.pop(key) for key in names & set(changes)})
    return idle(name, seconds, held_back=back, **{"release": "image@"} | changes)


def paused(name: str = "gpu-1", **changes: Any) -> Worker:
    """Its tasks fail on other machines too."""
    elsewhere: dict[str, Any] = {"suspect": False, "until": ago(-20), "failed_elsewhere": 5}
    return held(name, **elsewhere | changes)


def ends(made: Plan) -> list[tuple[str, ExitCause, FailureCode | None]]:
    return [(a.worker_id, a.cause, a.code) for a in made.actions if isinstance(a, Terminate)]


def spawns(seen: Snapshot, **changes: Any) -> int:
    return sum(isinstance(a, Spawn) for a in plan(seen, policy(**changes)).actions)


def test_a_worker_is_sick_if_others_complete_most_of_its_tasks() -> None:
    """It is replaced, and its host gets a strike."""
    sick = held(done_elsewhere=3, meanwhile=True, machine_id="m1")
    made = plan(snapshot(sick, busy("gpu-2"), claimable=1, running=1), policy())
    assert ends(made) == [("gpu-1", ExitCause.WORKER_SICK, FailureCode.TASKS_FAIL_HERE)]
    assert [strike.key for strike in strikes(sick, FailureCode.TASKS_FAIL_HERE)] == ["machine:m1"]


@pytest.mark.parametrize(
    "changes",
    [
        {"done_elsewhere": 2},
        {"done_elsewhere": 3, "failed_elsewhere": 3},
        {"done_elsewhere": 5, "meanwhile": False},  # the world was at fault, perhaps: it claims one more task first
        {"suspect": False, "until": ago(-20), "failed_elsewhere": 5},
    ],
    ids=str,
)
def test_a_few_tasks_that_succeed_elsewhere_end_no_worker(changes: dict[str, Any]) -> None:
    """Nor do tasks that failed before others could complete them, while there is another one to try."""
    sick = held(**{"meanwhile": True} | changes)
    assert ends(plan(snapshot(sick, busy("gpu-2"), claimable=1, running=1), policy())) == []


def test_the_last_tasks_decide_if_there_is_none_to_try() -> None:
    """Otherwise the next tasks would come to a sick worker."""
    sick = held(done_elsewhere=5)
    assert ends(plan(snapshot(sick, busy("gpu-2"), running=1), policy())) == [
        ("gpu-1", ExitCause.WORKER_SICK, FailureCode.TASKS_FAIL_HERE)
    ]
    first = held(done_elsewhere=5, alike=True)  # first attempts fail on the others too, and later ones do not
    assert ends(plan(snapshot(first, busy("gpu-2"), running=1), policy())) == []


def test_so_many_failures_that_chance_does_not_explain_them_end_a_worker() -> None:
    """Although tasks fail on the others at first, and some of its own failed there too. It claims once more before."""
    many: dict[str, Any] = {"done_elsewhere": 6, "failed_elsewhere": 7, "alike": True, "unlike": True, "trials": 1}
    for suspect in (True, False):
        sick = held(**many, suspect=suspect, until=ago(-20))
        assert ends(plan(snapshot(sick, busy("gpu-2"), claimable=1, running=1), policy())) == [
            ("gpu-1", ExitCause.WORKER_SICK, FailureCode.TASKS_FAIL_HERE)
        ]
    fewer: list[dict[str, Any]] = [{"trials": 0}, {"unlike": False}, {"done_elsewhere": 2}]
    for less in fewer:
        well = held(**many | less, until=ago(-20))
        assert ends(plan(snapshot(well, busy("gpu-2"), claimable=1, running=1), policy())) == []


def test_a_suspect_is_no_capacity_and_another_worker_tries_its_tasks() -> None:
    """It does not count for the target, but for MAX_ACTIVE_GPUS. One more is started, however many tasks wait."""
    seen = snapshot(held(), claimable=300)
    assert ends(plan(seen, policy())) == []
    assert spawns(seen) == 1
    assert spawns(snapshot(held(), spawning("gpu-2"), claimable=300)) == 0
    full = snapshot(held(), busy("gpu-2"), claimable=300, running=1)
    assert spawns(full, pool={"max_active": 3}) == 1
    assert spawns(snapshot(held(), claimable=0)) == 0


def test_a_worker_whose_tasks_fail_elsewhere_too_pauses_and_none_is_started() -> None:
    """The inputs are bad, or the release. Another worker would only fail them too."""
    for works, words in ((True, "The last tasks failed on every worker"), (False, "Release image@ fails its tasks")):
        seen = snapshot(paused("gpu-1", release_works=works), paused("gpu-2", release_works=works), claimable=300)
        made = plan(seen, policy())
        assert ends(made) == []
        assert not any(isinstance(action, Spawn) for action in made.actions)
        assert words in said(made)[-1]
        assert spawns(seen, code_sha="next") == 1, "a new release has its own canary, at once"
    well = snapshot(paused("gpu-1"), busy("gpu-2", release="image@"), claimable=300, running=1)
    assert spawns(well) > 0


def test_tasks_that_fail_on_every_worker_are_named_also_where_no_worker_is_missing() -> None:
    """All places are taken, or few tasks wait: no spawn is blocked, but the tasks are."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"suspect": True}, "The last tasks failed on every worker (HANDLER_ERROR)"),
        ({"suspect": False}, "Release image@ fails its tasks on every worker"),
    ]
    for state, words in cases:
        failing = [held(f"gpu-{n}", machine_id=f"m{n}", release_works=False, **state) for n in (1, 2)]
        full = plan(snapshot(*failing, claimable=14), policy(pool={"max_active": 2}))
        assert not any(isinstance(action, Spawn) for action in full.actions)
        assert [text for text in said(full) if words in text and text.startswith("14 tasks blocked")], said(full)
        assert not any(words in text for text in said(plan(snapshot(*failing), policy(pool={"max_active": 2}))))
    few = plan(snapshot(paused("gpu-1", release_works=False), claimable=1), policy())
    assert any("1 task blocked: Release image@ fails its tasks" in text for text in said(few)), said(few)


def test_of_a_bad_release_one_worker_stays_and_tries() -> None:
    """The others end once that is certain. No host gets a strike."""
    sure = {"failures": 16, "trials": 3, "release_works": False}
    seen = snapshot(*(paused(f"gpu-{n}", machine_id=f"m{n}", **sure) for n in (1, 2)), claimable=300)
    bad = (ExitCause.RELEASE_BAD, FailureCode.TASKS_FAIL_EVERYWHERE)
    assert ends(plan(seen, policy())) == [("gpu-2", *bad)]
    assert strikes(seen.workers[1], bad[1]) == ()
    for less in ({"failures": 15}, {"trials": 2}, {"release_works": True}):
        other = snapshot(*(paused(f"gpu-{n}", **sure | less) for n in (1, 2)), claimable=300)
        assert ends(plan(other, policy())) == []
    alone = snapshot(paused("gpu-1", **sure), busy("gpu-2", release="image@"), claimable=300, running=1)
    assert ends(plan(alone, policy())) == []


def test_a_worker_of_an_earlier_release_is_superseded() -> None:
    """What a corrected release completes says nothing about the host of the earlier one."""
    old, new = paused("gpu-1", release="image@old"), busy("gpu-2", release="image@")
    assert ends(plan(snapshot(old, new, claimable=3, running=1), policy())) == [("gpu-1", ExitCause.SUPERSEDED, None)]
    assert ends(plan(snapshot(old, claimable=3), policy())) == []


def test_a_changed_release_gets_a_place_although_failing_workers_hold_all() -> None:
    """One of them ends for it. Without a change, none does."""
    failing = [paused(f"gpu-{n}", release="image@old") for n in (1, 2)]
    made = plan(snapshot(*failing, claimable=9), policy(pool={"max_active": 2}))
    assert [cause for _, cause, _ in ends(made)] == [ExitCause.SUPERSEDED]
    assert spawns(snapshot(*failing, claimable=9), pool={"max_active": 3}) == 1
    same = snapshot(*(paused(f"gpu-{n}") for n in (1, 2)), claimable=9)
    assert ends(plan(same, policy(pool={"max_active": 2}))) == []


def test_two_suspects_without_room_for_a_third_try_each_others_tasks() -> None:
    """They may be well. On one machine, they are no second opinion."""
    two = [held(f"gpu-{n}", trials=1, machine_id=f"m{n}") for n in (1, 2)]
    assert ends(plan(snapshot(*two, claimable=9), policy(pool={"max_active": 2}))) == []
    one = [held(f"gpu-{n}", trials=1, machine_id="m1") for n in (1, 2)]
    assert len(ends(plan(snapshot(*one, claimable=9), policy(pool={"max_active": 2})))) > 0


def test_without_room_for_a_second_worker_a_successor_tries_the_tasks() -> None:
    """After the suspect has claimed once more in vain. No host gets a strike."""
    one = {"max_active": 1}
    assert ends(plan(snapshot(held(), claimable=3), policy(pool=one))) == []
    again = held(trials=1, machine_id="m1")
    (end,) = ends(plan(snapshot(again, claimable=3), policy(pool=one)))
    assert end == ("gpu-1", ExitCause.WORKER_SICK, FailureCode.TASKS_FAIL_UNJUDGED)
    assert strikes(again, end[2]) == ()
    assert ends(plan(snapshot(again, claimable=3), policy(pool={"max_active": 2}))) == []
    assert ends(plan(snapshot(paused(trials=1), claimable=3), policy(pool=one))) == []


def test_without_money_for_a_second_worker_a_successor_tries_the_tasks() -> None:
    """The only worker that the budget pays for would else stay. It does not end for one that is not affordable."""
    prices = {"NVIDIA A40|SECURE": 0.39, "NVIDIA L4|SECURE": 0.43}
    again = held(trials=1, price_usd_per_hour=0.39, reserved_usd_per_hour=0.39)
    for usd, limit, ended in ((0.39, 0.5, 1), (0.39, 0.78, 0), (0.78, 0.5, 0)):
        seen = snapshot(again, claimable=3, prices=prices, spent=Spent(0, 0, usd))
        found = [one[2] for one in ends(plan(seen, policy(hourly_budget_usd=limit))) if one[1] is ExitCause.WORKER_SICK]
        assert found == [FailureCode.TASKS_FAIL_UNJUDGED] * ended, (usd, limit)
    first = snapshot(replace(again, held_back=held().held_back), claimable=3, prices=prices, spent=Spent(0, 0, 0.39))
    assert ends(plan(first, policy(hourly_budget_usd=0.5))) == []


def test_a_successor_beyond_the_limit_does_not_keep_the_worker_that_it_replaces() -> None:
    """Where only the successor's row was written, and not the worker's end, the next tick still ends the worker."""
    seen = snapshot(held(trials=1), spawning("gpu-2"), claimable=3)
    assert ends(plan(seen, policy(pool={"max_active": 1}))) == [
        ("gpu-1", ExitCause.WORKER_SICK, FailureCode.TASKS_FAIL_UNJUDGED)
    ]
    assert ends(plan(seen, policy(pool={"max_active": 2}))) == []


def test_a_suspect_whose_tasks_nobody_can_try_is_replaced_in_the_end() -> None:
    """Many tasks failed, each at its last attempt, while others completed such tasks. No host gets a strike."""
    many: dict[str, Any] = {"failures": 16, "trials": 3, "meanwhile": True}
    assert ends(plan(snapshot(held(**many), busy("gpu-2"), claimable=3, running=1), policy())) == [
        ("gpu-1", ExitCause.WORKER_SICK, FailureCode.TASKS_FAIL_UNJUDGED)
    ]
    fewer: list[dict[str, Any]] = [{"failures": 15}, {"trials": 2}, {"meanwhile": False}, {"failed_elsewhere": 1}]
    for less in fewer:
        assert ends(plan(snapshot(held(**many | less), busy("gpu-2"), claimable=3, running=1), policy())) == []


def test_an_idle_suspect_ends_like_any_idle_worker() -> None:
    """It is no capacity, so no scale-down would end it."""
    assert ends(plan(snapshot(held(seconds=599)), policy())) == []
    assert ends(plan(snapshot(held(seconds=601)), policy())) == [("gpu-1", ExitCause.IDLE_TIMEOUT, None)]
    assert ends(plan(snapshot(held(seconds=601), claimable=1), policy())) == []
    retries = (Demand("default", 0, 0, {"scheduled": 5}, None),)  # others may still try its tasks
    assert ends(plan(snapshot(held(seconds=601), demand=retries), policy())) == []
    assert len(ends(plan(snapshot(held(seconds=901), demand=retries), policy()))) == 1


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


WARM = [{"min_active": 1}, {"min_active": 1, "max_active": 1}, {"keep_idle": 1}]


@pytest.mark.parametrize("pool", WARM, ids=str)
@pytest.mark.parametrize("until", [None, ago(670)], ids=["waits", "may claim"])
def test_a_warm_worker_whose_last_inputs_were_bad_stays_while_no_task_comes(pool: Any, until: Any) -> None:
    """No second one is rented for nothing, and the idle timeout does not end it."""
    for seconds in (30, 700):
        made = plan(snapshot(held(seconds=seconds, until=until)), policy(pool=pool))
        assert made.actions == ()
        assert "1 fewer, because as many suspects stay warm" in made.decisions[0].rule


def test_a_suspect_is_no_warm_worker_where_another_is_or_tasks_wait_or_a_fault_blocks_it() -> None:
    suspect, rules = held(seconds=700, until=ago(670)), policy(pool={"min_active": 1})
    for other in (idle("gpu-2", 50, release="image@"), spawning("gpu-2", release="image@")):
        assert ends(plan(snapshot(suspect, other), rules)) == [("gpu-1", ExitCause.IDLE_TIMEOUT, None)]
    second = held("gpu-2", seconds=700, until=ago(670))
    assert ends(plan(snapshot(suspect, second), rules)) == [("gpu-2", ExitCause.IDLE_TIMEOUT, None)]
    for seen in (
        snapshot(suspect, claimable=1),
        snapshot(replace(suspect, release="image@earlier")),
        snapshot(replace(suspect, disk_full_since=ago(10))),
    ):
        assert spawns(seen, pool={"min_active": 1}) == 1


def test_the_correction_of_a_release_takes_the_place_of_a_worker_that_is_held_back() -> None:
    """A full pool stays within its limit, although a worker that claims nothing is no capacity."""
    here = [held(f"gpu-{n}", machine_id=f"m{n}", release="old@") for n in (1, 2)]
    seen = snapshot(*here, busy("gpu-3", release="old@"), claimable=9, running=1)
    made = plan(seen, policy(pool={"max_active": 3}))
    assert [a for a in made.actions if isinstance(a, Spawn)] == []
    assert [(one[0], one[1]) for one in ends(made)] == [("gpu-1", ExitCause.SUPERSEDED)]
    assert spawns(seen, pool={"max_active": 4}) == 1
