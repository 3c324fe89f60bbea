"""How ended bring-ups hold back the next ones: breaker, canary, new releases, halts, pace."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import breaker
from orchestrator.core.actions import Spawn, Terminate
from orchestrator.core.blocked import BlockedReason
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.findings import findings_of
from orchestrator.core.model import EndedBringUp, Snapshot
from orchestrator.core.plan import plan
from orchestrator.core.provider import OfferState, PodStatus
from tests.unit.core.build import A40, ago, brought_up, pod_of, policy, pool, said, snapshot, spawning, worker


def wanting(*ended: EndedBringUp, on_their_way: int = 0, **changes: Any) -> Snapshot:
    """A pool of which all four workers are wanted."""
    newest_last = tuple(sorted(ended, key=lambda bring_up: bring_up.at))
    workers = [spawning(f"gpu-{number}") for number in range(on_their_way)]
    return snapshot(*workers, claimable=12, ended=newest_last, **changes)


def spawns(seen: Snapshot, **changes: Any) -> int:
    return sum(isinstance(a, Spawn) for a in plan(seen, policy(**changes)).actions)


def failures(count: int, newest_s: float = 60, apart_s: float = 10) -> list[EndedBringUp]:
    return [brought_up(newest_s + apart_s * number) for number in range(count)]


@pytest.mark.parametrize(
    ("ended", "count"),
    [
        ([], 4),
        (failures(4), 1),  # too few to judge: only paced
        (failures(5), 1),
        ([*failures(8, 70), brought_up(65, promoted=True), brought_up(60, promoted=True)], 4),  # it closed
        ([*failures(4), *(brought_up(s, promoted=True) for s in (200, 210))], 1),  # 4 of 6 is below 0.8: paced only
    ],
)
def test_too_many_failures_leave_one_at_a_time(ended: Sequence[EndedBringUp], count: int) -> None:
    """MAX_WORKER_FAILURE_RATE over the window, once MIN_WORKERS_FOR_RATE_CHECK bring-ups have ended."""
    assert spawns(wanting(*ended)) == count


@pytest.mark.parametrize(("on_their_way", "count"), [(0, 1), (1, 0), (2, 0)])
def test_an_open_breaker_has_one_canary(on_their_way: int, count: int) -> None:
    """What is on its way already is the canary."""
    assert spawns(wanting(*failures(5), on_their_way=on_their_way)) == count


def test_an_open_breaker_says_so() -> None:
    """With the numbers it opened by, and when the next canary may go."""
    made = plan(wanting(*failures(5, newest_s=4)), policy())
    opened = "Starting workers fails: 5 of 5 failed in 5 min."
    last = "Last: The pod did not start: it had no runtime at the deadline (NO_RUNTIME)."
    assert said(made) == [
        f"4 spawns blocked: {opened} {last} One worker is tried at a time. Next try at 12:00:06.",
    ]
    assert made.decisions[0].retry_at == ago(-6)


@pytest.mark.parametrize(
    ("open_s", "newest_s", "pause_s", "of_now"),
    [
        (0, 1, 10, True),
        (20, 1, 10, True),
        (100, 1, 50, True),
        (100, 49, 50, True),
        (590, 1, 295, True),
        (5_000, 1, 300, True),
        (5_000, 299, 300, True),
        (5_000, 1, 10, False),  # the last canary was of another release: what is there now may be the cure
    ],
)
def test_the_pause_before_a_canary_grows_with_the_time_without_a_promotion(
    open_s: float, newest_s: float, pause_s: float, of_now: bool
) -> None:
    """Half of the time since the breaker opened, in bounds: each canary of a night is rented for nothing."""
    newest = brought_up(newest_s, release="image@" if of_now else "image@old")
    seen = wanting(*failures(5, newest_s=newest_s + open_s), newest)
    (decision,) = plan(seen, policy()).decisions
    assert decision.retry_at == ago(newest_s - pause_s)
    assert spawns(seen) == 0
    assert spawns(replace(seen, now=ago(newest_s - pause_s))) == 1


def test_the_pause_starts_again_with_each_release() -> None:
    """Several fixes in a row do not wait as long as the outage before them lasted."""
    earlier = [replace(bring_up, release="image@old") for bring_up in failures(5, newest_s=5_000)]
    first, second = brought_up(30, release="image@"), brought_up(1, release="image@")
    assert plan(wanting(*earlier, replace(first, at=ago(1))), policy()).decisions[0].retry_at == ago(1 - 10)
    assert plan(wanting(*earlier, first, second), policy()).decisions[0].retry_at == ago(1 - 14.5)


def test_a_changed_release_closes_the_breaker_for_one_canary_at_once() -> None:
    """It may be the fix: neither the pause of the earlier release nor its canary in bring-up holds it up."""
    earlier = [
        replace(one, release="image@old", failure_code=FailureCode.SETUP_FAILED) for one in failures(9, newest_s=1)
    ]
    seen = wanting(*earlier)
    assert spawns(seen) == 1
    canary = spawning("gpu-old", release="image@old")
    made = plan(replace(seen, workers=(canary,)), policy())
    assert [(one.worker_id, one.cause) for one in made.actions if isinstance(one, Terminate)] == [
        ("gpu-old", ExitCause.SUPERSEDED)
    ]
    assert sum(isinstance(one, Spawn) for one in made.actions) == 1
    mine = spawning("gpu-new", release="image@")
    assert not [one for one in plan(replace(seen, workers=(mine,)), policy()).actions if isinstance(one, Spawn)]
    well = wanting(*earlier, brought_up(0.5, release="image@old", promoted=True))
    assert not [one for one in plan(replace(well, workers=(canary,)), policy()).actions if isinstance(one, Terminate)]


def test_a_corrected_image_is_tried_at_once_and_an_empty_account_is_not() -> None:
    """What RunPod refused of an earlier release says nothing about this one."""
    refused = [brought_up(n, release="image@old", failure_code=FailureCode.BAD_SPEC) for n in (90, 60, 30, 1)]
    assert spawns(wanting(*refused, promoted_releases=frozenset({"image@old"}))) == 1
    assert spawns(wanting(*[replace(one, failure_code=FailureCode.BALANCE) for one in refused])) == 0
    assert spawns(wanting(*[replace(one, release="image@") for one in refused])) == 0


def test_time_does_not_close_the_breaker_but_a_success_does() -> None:
    """Failures that left the window still count until a success disproves them."""
    long_ago = failures(5, newest_s=3000)
    assert spawns(wanting(*long_ago)) == 1
    assert spawns(wanting(*long_ago, brought_up(20, promoted=True))) == 4


def test_failures_far_apart_do_not_open_it() -> None:
    """Five in an hour are not five in the window."""
    assert spawns(wanting(*failures(5, newest_s=310, apart_s=301))) == 4


@pytest.mark.parametrize(
    "ended",
    [
        [brought_up(60 + n, code="NO_CAPACITY") for n in range(9)],  # the market
        [brought_up(60 + n, code=None, exit_cause=ExitCause.SCALE_DOWN) for n in range(9)],  # our own wish
        [brought_up(60 + n, pool="other") for n in range(9)],
    ],
)
def test_ends_unrelated_to_a_pools_bring_up_do_not_count(ended: Sequence[EndedBringUp]) -> None:
    """Refused creates, planned ends and other pools do not open it."""
    assert spawns(wanting(*ended)) == 4


@pytest.mark.parametrize(
    ("promoted_releases", "on_their_way", "count"),
    [
        (frozenset(), 0, 1),  # the first release ever may be as bad as any
        (frozenset(), 1, 0),
        (frozenset({"image@"}), 0, 4),
        (frozenset({"image@old"}), 0, 1),
        (frozenset({"image@old"}), 1, 0),
    ],
)
def test_a_new_release_sends_a_canary_first(promoted_releases: frozenset[str], on_their_way: int, count: int) -> None:
    """Until a worker was promoted with this image and this code."""
    assert spawns(wanting(promoted_releases=promoted_releases, on_their_way=on_their_way)) == count


def test_a_release_is_image_and_code() -> None:
    """A change of either is a new one."""
    seen = wanting(promoted_releases=frozenset({"image@1"}))
    assert spawns(seen, code_sha="1") == 4
    assert spawns(seen, code_sha="2") == 1
    assert spawns(seen, code_sha="1", pool={"image": "other"}) == 1


@pytest.mark.parametrize(
    ("ended_s", "spawned_s", "count"),
    [(5, 5, 0), (5, 9.9, 0), (5, 10, 1), (5, 400, 1), (301, 5, 4)],
)
def test_respawns_after_a_failure_are_paced(ended_s: float, spawned_s: float, count: int) -> None:
    """One in ten seconds, so that a pool that cannot come up is no storm; five minutes later that is forgotten."""
    assert spawns(wanting(brought_up(ended_s), last_spawn_at={"default": ago(spawned_s)})) == count


def test_a_minimum_that_keeps_failing_is_paced_and_looked_at_again() -> None:
    """MIN_ACTIVE_GPUS with bring-ups that end at once: the loop comes back when the next may go."""
    seen = snapshot(ended=(brought_up(1),), last_spawn_at={"default": ago(4)})
    made = plan(seen, policy(pool={"min_active": 2}))
    paced = "The last start of a worker failed (NO_RUNTIME). One worker is started in 10 s."
    assert said(made) == [f"2 spawns blocked: {paced} Next try at 12:00:06."]
    assert made.decisions[0].retry_at == ago(-6)


@pytest.mark.parametrize(
    ("refusals", "newest_s", "count"),
    [(1, 29, 0), (1, 30, 1), (2, 59, 0), (2, 60, 1), (9, 599, 0), (9, 600, 1)],
)
@pytest.mark.parametrize("code", ["BALANCE", "QUOTA", "API_AUTH", "BAD_SPEC"])
def test_a_refusal_that_an_operator_must_correct_halts_spawning(
    code: str, refusals: int, newest_s: float, count: int
) -> None:
    """Longer with each refusal in a row, up to ten minutes; then one tries."""
    assert spawns(wanting(*(brought_up(newest_s + n, code=code) for n in range(refusals)))) == count


def test_a_bringup_that_ends_in_this_tick_counts_in_this_tick() -> None:
    """Otherwise all workers would be replaced once before the cause is known."""
    dead = tuple(spawning(f"gpu-{n}") for n in range(4))
    pods = tuple(pod_of(one, status=PodStatus.ERROR) for one in dead)
    made = plan(
        snapshot(*dead, pods=pods, claimable=12, last_spawn_at={"default": ago(5)}), policy(failure_min_bringups=4)
    )
    assert not [a for a in made.actions if isinstance(a, Spawn)]
    assert "Starting workers fails: 4 of 4 failed in 5 min." in said(made)[0]


def test_a_halt_of_the_account_holds_for_every_pool_and_a_bad_request_for_its_own() -> None:
    """Money and keys are shared; an image is not."""
    assert spawns(wanting(brought_up(5, code="BALANCE", pool="other"))) == 0
    assert spawns(wanting(brought_up(5, code="BAD_SPEC", pool="other"))) == 4


def test_a_granted_pod_ends_the_halt() -> None:
    """Its bring-up need not be over."""
    granted = {A40.key: OfferState(A40.key, None, 0, ago(90), ago(3))}
    assert spawns(wanting(brought_up(5, code="BALANCE"), offers=granted)) == 4


def test_a_rejected_machine_delays_the_next_spawn_but_opens_no_breaker() -> None:
    """It says nothing of image or code, and costs a little each time."""
    returned = [brought_up(5 + n, code="HOST_AVOIDED", exit_cause=ExitCause.HOST_FAULT) for n in range(9)]
    assert spawns(wanting(*returned)) == 1
    assert spawns(wanting(*returned, last_spawn_at={"default": ago(5)})) == 0
    assert plan(wanting(*returned), policy()).decisions[0].blocked[0].kind is BlockedReason.PACED


def fell(promoted_s: float, lived_s: float, **changes: Any) -> EndedBringUp:
    """A worker that was promoted so long ago and failed at this age."""
    ending_since = ago(promoted_s - lived_s)
    fallen = brought_up(promoted_s, promoted=True, exit_cause=ExitCause.HEARTBEAT_LOST, ending_since=ending_since)
    return replace(fallen, **changes)


def falls(count: int, promoted_s: float = 100, **changes: Any) -> list[EndedBringUp]:
    return [fell(promoted_s + number, 40, **changes) for number in range(count)]


def kind(*ended: EndedBringUp) -> BlockedReason | None:
    """What holds the pool back."""
    limit = breaker.spawn_limit(pool(), wanting(*ended), policy(), 0)
    return limit.reason.kind if limit else None


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (falls(5), BlockedReason.BREAKER_OPEN),
        (falls(3), BlockedReason.PACED),  # a task that kills its pods
        ([*falls(3), brought_up(20, promoted=True), *(brought_up(120 + n, promoted=True) for n in range(8))], None),
        (falls(5, worked=True), None),  # image and code have shown that they work
        (falls(5, exit_cause=ExitCause.SCALE_DOWN), None),  # our own wish
        (falls(5, exit_cause=ExitCause.TASK_STUCK), None),  # it says something about the task
        ([fell(400 + n, 320) for n in range(5)], None),  # lived longer than FAILURE_WINDOW_MINUTES
        ([fell(538 - 60 * n, 72 * n) for n in range(5)], BlockedReason.PACED),  # it counts from when it fell
    ],
)
def test_a_worker_that_fails_on_probation_counts_as_a_failed_bring_up(
    ended: Sequence[EndedBringUp], expected: BlockedReason | None
) -> None:
    """Promoted, and failed before it completed a task or passed the window: rented for nothing."""
    assert kind(*ended) is expected


@pytest.mark.parametrize(
    ("canary", "count"),
    [
        (brought_up(30, promoted=True), 0),  # on probation: it is the canary
        (brought_up(30, promoted=True, worked=True), 4),
        (brought_up(301, promoted=True), 4),  # there was no task for it: it has lived
        (fell(230, 30), 1),  # the next one
        (fell(230, 30, exit_cause=ExitCause.MANUAL), 1),  # that says nothing
        (fell(230, 30, exit_cause=ExitCause.TASK_STUCK), 1),  # nor does that
    ],
)
def test_a_worker_that_lasts_disproves_failures_after_promotion(canary: EndedBringUp, count: int) -> None:
    """A canary that is promoted and fails at once does not close the breaker."""
    assert spawns(wanting(*falls(5, promoted_s=400), canary)) == count


def test_a_promotion_alone_disproves_failed_bringups() -> None:
    """It came up, which is what the others did not."""
    assert spawns(wanting(*failures(5), brought_up(20, promoted=True))) == 4
    assert spawns(wanting(*falls(1, 200), *failures(5), brought_up(20, promoted=True))) == 0, "one of them had fallen"


def test_a_canary_that_does_not_come_up_does_not_hide_what_opened_the_breaker() -> None:
    """The next one that is promoted is on probation all the same."""
    later = [brought_up(60 + n) for n in range(5)]
    assert spawns(wanting(*falls(5, promoted_s=900), *later, brought_up(20, promoted=True))) == 0


def test_a_breaker_waiting_for_a_canarys_probation_says_so() -> None:
    """Whom, for what and until when."""
    canary = brought_up(30, promoted=True, worker_id="gpu-canary")
    made = plan(wanting(*falls(5, promoted_s=200), canary), policy())
    assert said(made)[0].startswith("4 spawns blocked: Starting workers fails: 5 of 5 failed in 5 min. 5 of them")
    assert "(heartbeat_lost). Worker gpu-canary must complete a task or live long enough." in said(made)[0]
    assert said(made)[0].endswith("Next try at 12:04:30.")
    assert made.decisions[0].retry_at == ago(-270)


def test_a_promoted_worker_that_fails_in_this_tick_counts_in_this_tick() -> None:
    """Otherwise it would be replaced before the cause is known."""
    dead = worker("gpu-1", pod_id="pod-1", last_heartbeat=None)
    seen = snapshot(dead, pods=(pod_of(dead, status=PodStatus.EXITED),), claimable=12)
    bringups = (*falls(4, promoted_s=200), brought_up(20, promoted=True, worker_id="gpu-1"))
    made = plan(replace(seen, ended=bringups), policy())
    assert "5 of 5 failed" in said(made)[0]
    assert [a for a in made.actions if isinstance(a, Spawn)] == []


def test_a_canary_that_claims_nothing_closes_no_breaker() -> None:
    """Its machine's findings keep it from tasks, for longer than the window: the next ones would do no better."""
    bad = brought_up(900, promoted=True, exit_cause=ExitCause.RELEASE_BAD, ending_since=ago(700), code="TORCH_ARCH")
    canary = brought_up(400, promoted=True, worker_id="gpu-1")
    torch = findings_of({"findings": [{"code": "TORCH_ARCH", "severity": "H", "since": ago(390).timestamp()}]})
    for found, count in ((torch, 0), ((), 3)):
        live = replace(worker("gpu-1"), findings=found)
        seen = snapshot(live, claimable=12, ended=(bad, canary))
        assert spawns(seen) == count, found
    blocked = plan(replace(seen, workers=(replace(live, findings=torch),)), policy()).decisions[0].blocked
    assert BlockedReason.BREAKER_OPEN in {one.kind for one in blocked}
