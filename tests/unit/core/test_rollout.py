"""Workers of an earlier release, and a task that only the present one has a handler for."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.actions import Plan, Spawn, Terminate
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.model import EVERY_POOL, Demand, Pause, ScaleLimit, Snapshot, Worker
from orchestrator.core.plan import plan
from orchestrator.core.states import State
from orchestrator.core.worker_metadata import WorkerMetadata
from tests.unit.core.build import NOW, ago, brought_up, busy, idle, policy, pool, snapshot, spawning, terminating

OLD, NEW = "image@old", "image@new"
LEADER = policy(code_sha="new", handled=("draw", "sing"))
MARK: dict[str, Any] = {"release": OLD, "metadata": WorkerMetadata(lacks="sing")}


def waiting(*workers: Worker, **changes: Any) -> Snapshot:
    """One task came back and waits until a worker can claim it; both releases are proven."""
    demand = Demand("default", 0, sum(w.tasks_running for w in workers), {"scheduled": 1}, None)
    base = snapshot(*workers, demand=(demand,), promoted_releases=frozenset({OLD, NEW}))
    return replace(base, **changes)


def spawned(made: Plan) -> list[Spawn]:
    return [a for a in made.actions if isinstance(a, Spawn)]


def superseded(made: Plan) -> list[str]:
    return [a.worker_id for a in made.actions if isinstance(a, Terminate) and a.cause is ExitCause.SUPERSEDED]


def test_one_worker_of_the_current_release_is_spawned_beyond_the_target() -> None:
    """Idle earlier workers serve their own types; still, exactly one worker that has the handler is spawned."""
    made = plan(waiting(idle("gpu-1", 5, **MARK), idle("gpu-2", 5, release=OLD)), LEADER)
    assert [s.reason for s in spawned(made)] == [f"tasks of type sing wait for release {NEW}"]
    assert superseded(made) == []
    assert "1 more, tasks of type sing wait" in made.decisions[0].rule
    made = plan(waiting(idle("gpu-1", 5, **MARK), spawning("gpu-3", release=NEW, created_at=ago(600))), LEADER)
    assert [type(a) for a in made.actions if isinstance(a, Spawn | Terminate)] == []  # nor is it one too many


@pytest.mark.parametrize(
    "changes",
    [
        {"metadata": WorkerMetadata()},  # nothing came back from it
        {"metadata": WorkerMetadata(lacks="hum")},  # the present release cannot do that either
        {"release": NEW},  # it is of the present release: an operator went back to it
    ],
)
def test_without_a_valid_release_mark_no_worker_starts_or_ends(changes: dict[str, Any]) -> None:
    """An earlier worker that can run the waiting tasks stays, and so does one whose mark is out of date."""
    one = idle("gpu-1", 5, **(MARK | changes))
    made = plan(waiting(one, idle("gpu-2", 5, release=NEW)), LEADER)
    assert not spawned(made)
    assert not superseded(made)
    made = plan(waiting(one), LEADER)
    assert not spawned(made)


def test_marked_workers_end_once_one_of_the_current_release_is_ready() -> None:
    """Those that handed such a task back are superseded and finish what they hold; who saw none goes on."""
    replacement, seen, unseen = idle("gpu-9", 1, release=NEW), busy("gpu-1", **MARK), busy("gpu-2", release=OLD)
    made = plan(waiting(replacement, seen, unseen), LEADER)
    assert superseded(made) == ["gpu-1"]
    why = next(a.reason for a in made.actions if isinstance(a, Terminate))
    assert why == "its release image@old has no handler for sing, image@new has one"


def test_a_worker_drained_at_once_ends_as_superseded_and_not_by_hand() -> None:
    """The database drains it in the call that hands the task back; a stop that an operator asked for stays manual."""
    drained = idle("gpu-1", 5, drain_requested_at=ago(1), **MARK)
    assert superseded(plan(waiting(drained), LEADER)) == ["gpu-1"]
    (end,) = [a for a in plan(waiting(replace(drained, stop_requested_at=ago(1))), LEADER).actions if
              isinstance(a, Terminate)]  # fmt: skip
    assert end.cause is ExitCause.MANUAL


def test_a_full_pool_ends_one_worker_for_the_replacement_and_no_second() -> None:
    """At MAX_ACTIVE_GPUS an idle worker ends first; then there is room, however often the canary fails."""
    full = [busy("gpu-1", **MARK), busy("gpu-2", release=OLD), idle("gpu-3", 5, release=OLD), busy("gpu-4", **MARK)]
    made = plan(waiting(*full), LEADER)
    assert superseded(made) == ["gpu-3"]
    assert not spawned(made)
    left = [w for w in full if w.id != "gpu-3"]
    gone = terminating("gpu-3", release=OLD, exit_cause=ExitCause.SUPERSEDED)
    made = plan(waiting(*left, gone), LEADER)
    assert (len(spawned(made)), superseded(made)) == (1, [])
    failed = brought_up(20, release=NEW)
    made = plan(waiting(*left, ended=(failed,), promoted_releases=frozenset({OLD})), LEADER)
    assert (len(spawned(made)), superseded(made)) == (1, [])


@pytest.mark.parametrize("all_busy", [True, False])
def test_no_worker_is_drained_for_a_spawn_that_is_not_possible(all_busy: bool) -> None:
    """While the pool is paused or the backoff delays the next canary, earlier workers are kept."""
    names = [f"gpu-{n}" for n in range(4)]
    full = [busy(name, **MARK) if all_busy else idle(name, 5, **MARK) for name in names]
    assert not superseded(plan(waiting(*full, paused={"*": Pause("a look", None)}), LEADER))
    ended = tuple(brought_up(5 + n, release=NEW) for n in (4, 3, 2, 1, 0))
    assert not superseded(plan(waiting(*full, ended=ended, promoted_releases=frozenset({OLD})), LEADER))


def test_the_marked_worker_of_a_pool_of_one_ends_and_its_replacement_follows() -> None:
    """MAX_ACTIVE_GPUS=1: it is drained, and the next one is spawned while it still drains."""
    single = replace(LEADER, pools=(pool(max_active=1),))
    one = busy("gpu-1", **MARK)
    assert superseded(plan(waiting(one), single)) == ["gpu-1"]
    going = terminating("gpu-1", tasks_running=1, exit_cause=ExitCause.SUPERSEDED, **MARK)
    assert len(spawned(plan(waiting(going), single))) == 1


@pytest.mark.parametrize("where", ["default", EVERY_POOL])
def test_a_limit_of_an_operator_that_earlier_workers_use_up_makes_one_end_too(where: str) -> None:
    """As MAX_ACTIVE_GPUS does: the next worker is of the present release."""
    limits = {where: ScaleLimit(where, 2, "a look", NOW)}
    made = plan(waiting(idle("gpu-1", 5, **MARK), idle("gpu-2", 5, **MARK), scale_limits=limits), LEADER)
    assert (spawned(made), superseded(made)) == ([], ["gpu-1"])
    made = plan(waiting(idle("gpu-1", 5, **MARK), scale_limits=limits), LEADER)
    assert (len(spawned(made)), superseded(made)) == (1, [])


def test_an_hourly_budget_that_earlier_workers_use_up_makes_them_end_too() -> None:
    """If only budget is missing, one of them ends; the next one ends only after that one is gone."""
    poor = replace(LEADER, hourly_budget_usd=0.8)
    rich: dict[str, Any] = {
        "spent": replace(snapshot().spent, hourly_usd=0.8),
        "prices": {"NVIDIA A40|SECURE": 0.4, "NVIDIA L4|SECURE": 0.4},
    }
    full = [busy("gpu-1", **MARK), busy("gpu-2", **MARK)]
    assert superseded(plan(waiting(*full, **rich), poor)) == ["gpu-1"]
    going = terminating("gpu-1", tasks_running=1, exit_cause=ExitCause.SUPERSEDED, **MARK)
    assert not superseded(plan(waiting(going, full[1], **rich), poor))


def test_idle_workers_of_an_earlier_release_end_first() -> None:
    """Of too many workers, the present release stays; otherwise the next such task would wait for it again."""
    made = plan(snapshot(idle("gpu-1", 700, release=OLD), idle("gpu-2", 40, release=NEW, created_at=NOW)), LEADER)
    assert [a.worker_id for a in made.actions if isinstance(a, Terminate)] == ["gpu-1"]


def test_earlier_idle_workers_end_while_their_replacement_cannot_start() -> None:
    """Missing capacity or a pause is no reason to keep a worker that no task needs."""
    old = idle("gpu-1", 601, **MARK)
    made = plan(waiting(old, paused={"*": Pause("a look", None)}), LEADER)
    assert [(a.worker_id, a.cause) for a in made.actions if isinstance(a, Terminate)] == [
        ("gpu-1", ExitCause.IDLE_TIMEOUT)
    ]
    assert old.state is State.IDLE
