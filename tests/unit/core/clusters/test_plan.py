"""The plan of a cluster in single situations; test_life.py has whole lives."""

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.core.cluster_states import ClusterStatus, MemberStatus
from orchestrator.core.clusters import actions as act
from orchestrator.core.clusters.details import not_ready_since
from orchestrator.core.clusters.plan import backoff_s, is_moving, plan
from orchestrator.core.clusters.readings import (
    UNREACHED,
    Observed,
    Reading,
    is_busy,
    is_drained,
    is_silent,
    is_up,
    observe,
)
from orchestrator.core.clusters.view import ClusterView
from orchestrator.core.states import State
from tests.unit.core import build
from tests.unit.core.build import NOW
from tests.unit.core.clusters.rows import member
from tests.unit.core.clusters.world import World, member_worker, tasks


@pytest.fixture(scope="module")
def world() -> World:
    made = World(3)
    made.change(demand=tasks(3))
    made.until(ClusterStatus.RUNNING)
    made.run(30)
    return made


def changed(view: ClusterView, **changes: Any) -> ClusterView:
    return replace(view, row=replace(view.row, **changes))


def told(view: ClusterView, number: int, **changes: Any) -> ClusterView:
    """The view with another reading of one member."""
    name = view.row.members[number].worker_id
    seen = view.observed[name]
    return replace(view, observed={**view.observed, name: replace(seen, reading=replace(seen.reading, **changes))})


def test_a_healthy_running_cluster_needs_nothing(world: World) -> None:
    assert plan(world.view(), world.policy) == ()
    assert not is_moving(world.view())


def test_another_leader_that_has_seen_nothing_does_nothing(world: World) -> None:
    assert plan(replace(world.view(), observed={}), world.policy) == ()


def test_an_old_reading_says_nothing(world: World) -> None:
    view = told(world.view(), 1, slurmd_state="down")
    assert plan(replace(view, now=view.now + timedelta(minutes=1)), world.policy) == ()


def test_a_reading_of_a_member_with_a_running_action_says_nothing(world: World) -> None:
    view = told(world.view(), 1, conf_sha="")
    name = view.row.members[1].worker_id
    assert [type(one) for one in plan(view, world.policy)] == [act.MoveMember]
    assert plan(replace(view, in_flight=frozenset({name})), world.policy) == ()
    assert plan(replace(view, retry_at={name: view.now + timedelta(seconds=5)}), world.policy) == ()


def test_another_munge_key_is_recorded_and_then_replaced_in_place(world: World) -> None:
    """People see the cause, although the repair takes a moment only."""
    view = told(world.view(), 1, munge_matches=False)
    (action,) = plan(view, world.policy)
    assert isinstance(action, act.MoveMember)
    assert (action.to_status, action.fields["adapter_detail"]["munge_matches"]) == (MemberStatus.RECONCILING, False)
    back = [replace(m, status=action.to_status) if m.worker_id == action.worker_id else m for m in view.row.members]
    again = changed(view, members=tuple(back))
    assert any(isinstance(one, act.Configure) for one in plan(again, world.policy))


def test_people_are_told_once_that_ssh_does_not_reach_a_member(world: World) -> None:
    """After the second failed probe in a row: one that fails may be an accident."""
    view = world.view()
    name = view.row.members[1].worker_id
    first = replace(view, observed={**view.observed, name: Observed(UNREACHED, view.now, view.now)})
    assert plan(first, world.policy) == ()
    since = view.now - timedelta(seconds=3)
    unread = replace(view, observed={**view.observed, name: Observed(UNREACHED, view.now, since)})
    (action,) = plan(unread, world.policy)
    assert isinstance(action, act.UpdateMember)
    assert action.fields["adapter_detail"]["error"] == f"SSH has not reached it since {since:%H:%M:%S}"
    assert action.fields["adapter_detail"]["unreached_since"] == since.isoformat()
    again = replace(view.row.members[1], adapter_detail=action.fields["adapter_detail"])
    assert plan(changed(unread, members=(view.row.members[0], again, *view.row.members[2:])), world.policy) == ()


def test_a_moved_address_is_recorded_before_anything_else(world: World) -> None:
    view = world.view()
    worker = view.row.members[0].worker
    assert worker is not None
    first = replace(view.row.members[0], worker=replace(worker, ssh_port=4_022))
    (action,) = plan(changed(view, members=(first, *view.row.members[1:])), world.policy)
    assert isinstance(action, act.UpdateMember)
    assert action.fields["ssh_port"] == 4_022


def test_no_smoke_job_is_run_while_one_node_does_not_reach_another(world: World) -> None:
    view = changed(world.view(), status=ClusterStatus.DEGRADED, smoke_evidence=None)
    assert any(isinstance(one, act.Smoke) for one in plan(view, world.policy))
    cut = told(view, 0, peers={view.row.members[1].node_name: False})
    assert not any(isinstance(one, act.Smoke) for one in plan(cut, world.policy))
    strange = told(view, 0, peers={"a-node-of-yesterday": False})
    assert any(isinstance(one, act.Smoke) for one in plan(strange, world.policy))


def test_what_the_row_says_of_a_smoke_job_goes_if_a_node_is_lost_again(world: World) -> None:
    said = {"status": ClusterStatus.DEGRADED, "smoke_evidence": None, "waiting_for": "the smoke job, which waits"}
    view = changed(world.view(), **said)
    assert not any(isinstance(one, act.Remark) for one in plan(view, world.policy))
    back = replace(view.row.members[1], status=MemberStatus.RECONCILING)
    lost = changed(view, members=(view.row.members[0], back, view.row.members[2]))
    assert act.Remark(None, None) in plan(lost, world.policy)


def test_an_ended_cluster_ends_its_members_and_nothing_else(world: World) -> None:
    view = changed(world.view(), status=ClusterStatus.FAILED)
    moves = plan(view, world.policy)
    assert [(type(one), getattr(one, "to_status", None)) for one in moves] == [
        (act.MoveMember, MemberStatus.FAILED)
    ] * 3
    ended = tuple(replace(one, status=MemberStatus.FAILED) for one in view.row.members)
    assert plan(changed(view, members=ended), world.policy) == ()
    assert not is_moving(changed(view, members=ended))


def test_only_ready_workers_join_and_only_as_many_as_are_wanted() -> None:
    world = World(2, min_nodes=2)
    world.until(ClusterStatus.ALLOCATING)
    view = world.view()
    worker = member_worker(build.worker("gpu-1", cluster="train"))
    boots, leaves = (
        replace(worker, id="gpu-0", status=State.SPAWNING),
        replace(worker, id="gpu-00", drain_requested_at=NOW),  # before the others, by its id
    )
    others = tuple(replace(worker, id=f"gpu-{n}") for n in (3, 2, 1))
    joins = plan(changed(view, unjoined=(boots, leaves, *others)), world.policy)
    assert [(one.worker_id, one.index) for one in joins if isinstance(one, act.Join)] == [("gpu-1", 0), ("gpu-2", 1)]


def test_a_pause_after_failures_doubles_up_to_a_bound() -> None:
    assert [backoff_s(n) for n in (1, 2, 3, 6, 1_000)] == [5, 10, 20, 120, 120]


def test_only_failed_probes_in_a_row_count_as_unreached() -> None:
    seen: Observed | None = None
    for second, reached in enumerate([True, False, None, False]):
        seen = observe(seen, Reading(reached=reached), NOW + timedelta(seconds=second))
    assert seen is not None
    assert seen.unreached_since == NOW + timedelta(seconds=1)
    assert observe(seen, Reading(reached=True), NOW).unreached_since is None


@pytest.mark.parametrize("state", ["unknown", "UNKNOWN", "idle", None])
def test_a_node_that_has_not_registered_yet_is_not_called_silent(state: str | None) -> None:
    """Slurm calls it so for a moment after each start of slurmctld; later it is `down*`."""
    assert not is_silent(state)
    assert is_silent("down*")


@pytest.mark.parametrize(
    ("state", "up", "busy", "drained"),
    [
        ("idle", True, False, False),
        ("allocated", True, True, False),
        ("MIXED", True, True, False),
        ("IDLE+DRAIN", True, False, True),
        ("drained", True, False, True),
        ("draining", True, True, False),
        ("MIXED+DRAIN", True, True, False),
        ("idle*", False, False, False),
        ("down*", False, False, False),
        ("DOWN+DRAIN", False, False, True),
        ("unknown", False, False, False),
        ("", False, False, False),
        ("a new word of Slurm", False, False, False),
        (None, False, False, False),
    ],
)
def test_the_words_of_slurm_mean_what_they_say(state: str | None, up: bool, busy: bool, drained: bool) -> None:
    assert (is_up(state), is_busy(state), is_drained(state)) == (up, busy, drained)


@pytest.mark.parametrize(
    ("since", "relapses"),
    [
        ("2026-01-01T00:00:00+00:00", math.inf),
        ("2026-01-01T00:00:00+00:00", math.nan),
        ("2026-01-01T00:00:00+00:00", [9]),
        ("2026-01-01T00:00:00", 9),
        ("yesterday", 9),
        (7, 9),
        (None, None),
    ],
)
def test_what_a_user_wrote_about_troubles_raises_nothing(since: object, relapses: object) -> None:
    """A number in JSON may be too large for a float. A time without its zone is unknown."""
    odd = member(1, adapter_detail={"trouble_since": since, "relapses": relapses})
    assert not_ready_since(odd) == odd.status_since
