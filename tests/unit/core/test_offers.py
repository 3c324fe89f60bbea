"""Which offer is asked for: order, cool-down, probe budget, avoided places, a volume's data centre."""

from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrator.core.actions import Create, Plan, Spawn, Terminate, Wait
from orchestrator.core.blocked import BlockedReason
from orchestrator.core.exit_causes import ExitCause
from orchestrator.core.failures import FailureCode
from orchestrator.core.model import EndedBringUp, Pause
from orchestrator.core.plan import plan
from orchestrator.core.provider import Offer, Volume, place_of
from orchestrator.core.states import Stage, WaitingOn
from orchestrator.core.worker_metadata import WorkerMetadata
from tests.unit.core.build import A40, L4, NOW, ago, brought_up, cooling, pod_of, policy, said, snapshot, spawning

ROMANIA, TEXAS = Offer("NVIDIA A40", "EU-RO-1", "SECURE"), Offer("NVIDIA A40", "US-TX-3", "SECURE")


def spawned(made: Plan) -> list[Spawn]:
    return [a for a in made.actions if isinstance(a, Spawn)]


def test_offers_are_used_in_order_and_refused_ones_skipped() -> None:
    """The operator's first choice wins unless it is cooling down."""
    assert spawned(plan(snapshot(claimable=1), policy()))[0].offer == A40
    made = plan(snapshot(claimable=1, offers={A40.key: cooling(A40, 20)}), policy())
    assert spawned(made)[0].offer == L4


def test_a_refused_offer_is_probed_with_one_create() -> None:
    """After a cool-down one create tests the offer, however many workers are wanted."""
    dry = {A40.key: cooling(A40, -1), L4.key: cooling(L4, -1)}
    made = plan(snapshot(claimable=300, offers=dry), policy())
    assert [s.offer for s in spawned(made)] == [A40, L4]
    assert made.decisions[0].blocked[-1].kind is BlockedReason.OFFERS_REFUSED


def test_no_spawn_while_every_offer_cools_down() -> None:
    """Without capacity the plan waits, and the decision says until when."""
    dry = {A40.key: cooling(A40, 20), L4.key: cooling(L4, 40)}
    made = plan(snapshot(claimable=1, offers=dry), policy())
    assert not made.actions
    assert said(made) == ["1 spawn blocked: No GPU to rent now. Next try at 12:00:20."]


@pytest.mark.parametrize(("budget", "creates"), [(1, 1), (2, 2), (4, 3), (None, 3)])
def test_each_success_doubles_how_many_may_ask_at_once(budget: int | None, creates: int) -> None:
    """When creates succeed again, more are sent, step by step."""
    thawing = cooling(A40, -1, probe_budget=budget, last_refusal=ago(60))
    made = plan(snapshot(claimable=9, offers={A40.key: thawing}), policy(pool={"offers": (A40,)}))
    assert len(spawned(made)) == creates


def test_calls_in_flight_use_up_the_probe_budget() -> None:
    """Those at pod_created, and intents whose call is about to be made."""
    asking = spawning("gpu-1", Stage.POD_CREATED, metadata=WorkerMetadata(offer=A40.key))
    about_to = spawning("gpu-2", Stage.INTENT, metadata=WorkerMetadata(offer=A40.key))
    thawing = {A40.key: cooling(A40, -1, probe_budget=3)}
    seen = snapshot(asking, about_to, claimable=12, offers=thawing, in_flight=frozenset({"gpu-2"}))
    assert len(spawned(plan(seen, policy(pool={"offers": (A40,)})))) == 1


def test_an_hour_without_refusal_resets_the_cool_down() -> None:
    """Then the offer is as good as one that was never refused."""
    old = cooling(A40, -1, last_refusal=ago(3600))
    made = plan(snapshot(claimable=9, offers={A40.key: old}), policy())
    assert [s.offer for s in spawned(made)] == [A40] * 3


def test_a_place_where_hosts_failed_is_the_last_choice() -> None:
    """The offer is skipped while another one is left, the plan says so, and it is used when there is no other."""
    avoid = {"place:EU-RO-1|NVIDIA A40": NOW + timedelta(seconds=600)}
    made = plan(snapshot(claimable=1, avoid=avoid), policy(pool={"offers": (ROMANIA, TEXAS)}))
    assert spawned(made)[0].offer == TEXAS
    assert said(made) == [f"Tried last, because hosts failed there: {place_of(ROMANIA.key)}. Next try at 12:10:00."]
    assert made.decisions[0].retry_at is None  # it is a remark: nothing waits for it
    assert spawned(plan(snapshot(claimable=1, avoid=avoid), policy(pool={"offers": (ROMANIA,)})))
    over = {"place:EU-RO-1|NVIDIA A40": ago(1)}
    assert (
        spawned(plan(snapshot(claimable=1, avoid=over), policy(pool={"offers": (ROMANIA, TEXAS)})))[0].offer == ROMANIA
    )


def test_a_pod_on_an_avoided_machine_is_deleted() -> None:
    """Before anything is spent on proving it; a worker that has proved itself stays."""
    one = spawning("gpu-1", stage=Stage.POD_RUNNING)
    avoid = {"machine:m1": NOW + timedelta(seconds=60)}
    seen = snapshot(one, claimable=1, avoid=avoid, pods=(pod_of(one, machine_id="m1"),))
    (end,) = [a for a in plan(seen, policy()).actions if isinstance(a, Terminate)]
    assert (end.cause, end.code) == (ExitCause.HOST_FAULT, FailureCode.HOST_AVOIDED)
    assert "m1" in end.reason
    elsewhere = snapshot(one, claimable=1, avoid=avoid, pods=(pod_of(one, machine_id="m2"),))
    assert not [a for a in plan(elsewhere, policy()).actions if isinstance(a, Terminate)]


def test_nothing_is_spawned_without_the_credentials_for_a_private_image() -> None:
    """The plan says why, before a pod is paid for. Another pool with a public image is not affected."""
    problem = "0 registry credentials are named 'absent'; the account has: dockerhub"
    seen = snapshot(claimable=1, registry_problems={"absent": problem})
    refused = plan(seen, policy(pool={"registry_auth": "absent"}))
    assert not spawned(refused)
    assert said(refused) == [f"1 spawn blocked: The registry credentials cannot be used: {problem}."]
    for registry in (None, "dockerhub"):
        assert spawned(plan(seen, policy(pool={"registry_auth": registry})))


def test_a_volume_pins_the_data_centre() -> None:
    """Offers anywhere become offers there; offers of other centres are dropped, and the plan says so."""
    volumes = {"models": Volume("EU-RO-1", None)}
    pinned = {"volume_name": "models", "offers": (TEXAS, A40)}
    made = plan(snapshot(claimable=1, volumes=volumes), policy(pool=pinned))
    assert spawned(made)[0].offer == ROMANIA
    assert said(made) == [f"Not used, because network volume models is in EU-RO-1: {place_of(TEXAS.key)}."]
    nowhere = plan(snapshot(claimable=1, volumes=volumes), policy(pool=pinned | {"offers": (TEXAS,)}))
    assert not spawned(nowhere)
    assert said(nowhere)[-1] == "1 spawn blocked: No offer is in EU-RO-1, where network volume models is."


def test_a_missing_volume_stops_spawning() -> None:
    """Every create would be refused."""
    volumes = {"models": Volume(None, "0 network volumes are named 'models'")}
    made = plan(snapshot(claimable=1, volumes=volumes), policy(pool={"volume_name": "models"}))
    assert not made.actions
    assert said(made) == ["1 spawn blocked: The network volume cannot be used: 0 network volumes are named 'models'."]


def test_an_intent_is_created_or_says_what_it_waits_for() -> None:
    """A free offer gets a create; without one, what is missing is written down once."""
    one = spawning("gpu-1", Stage.INTENT, waiting_on=WaitingOn.ORCHESTRATOR)
    made = plan(snapshot(one, claimable=1), policy())
    assert [type(a) for a in made.actions] == [Create]
    dry = {A40.key: cooling(A40, 20), L4.key: cooling(L4, 40)}
    (wait,) = plan(snapshot(one, claimable=1, offers=dry), policy()).actions
    assert isinstance(wait, Wait)
    assert (wait.waiting_on, wait.until_s) == (WaitingOn.CAPACITY, 20)
    told = spawning("gpu-1", Stage.INTENT, waiting_on=WaitingOn.CAPACITY, waiting_for=wait.waiting_for)
    assert not plan(snapshot(told, claimable=1, offers=dry), policy()).actions


@pytest.mark.parametrize(("waited_s", "waiting_for"), [(1, "No GPU to rent now. Next try at 11:59:59."), (30, None)])
def test_a_wait_whose_time_has_passed_is_recorded_again(waited_s: float, waiting_for: str | None) -> None:
    """With when the next try is now; and after half a minute in any case."""
    dry = {A40.key: cooling(A40, 20), L4.key: cooling(L4, 40)}
    words = waiting_for or "No GPU to rent now. Next try at 12:00:20."
    one = spawning(
        "gpu-1", Stage.INTENT, waiting_on=WaitingOn.CAPACITY, waiting_for=words, next_attempt_at=ago(waited_s)
    )
    (wait,) = plan(snapshot(one, claimable=1, offers=dry), policy()).actions
    assert isinstance(wait, Wait)
    assert (wait.waiting_for, wait.until_s) == ("No GPU to rent now. Next try at 12:00:20.", 20)


def test_a_wait_ends_with_its_bringup() -> None:
    """In every snapshot: what remains of SPAWNING_TIMEOUT_SEC, not all of it."""
    one = spawning("gpu-1", Stage.INTENT, created_at=ago(870))
    dry = {A40.key: cooling(A40, 20), L4.key: cooling(L4, 40)}
    (wait,) = plan(snapshot(one, claimable=1, offers=dry), policy(spawning_timeout_s=900)).actions
    assert isinstance(wait, Wait)
    assert wait.deadline_s == 30


def test_a_pause_holds_recorded_intents_too() -> None:
    """Nothing is rented meanwhile, and both the worker and the decision say why; but what an operator asks for is."""
    seen = snapshot(spawning("gpu-1", Stage.INTENT), claimable=1, paused={"*": Pause("stock-taking", None)})
    made = plan(seen, policy())
    (wait,) = made.actions
    assert isinstance(wait, Wait)
    assert (wait.waiting_on, wait.waiting_for) == (WaitingOn.OPERATOR, "Paused: stock-taking.")
    assert said(made) == ["1 recorded worker blocked: Paused: stock-taking."]
    wanted = spawning("gpu-9", Stage.INTENT, metadata=WorkerMetadata(asked_for="operator"))
    made = plan(replace(seen, workers=(wanted,)), policy())
    assert ([type(a) for a in made.actions], made.decisions[0].blocked) == ([Create], ())


@pytest.mark.parametrize(
    ("ended", "waiting_on", "asked"),
    [
        ([brought_up(2, code="BALANCE")], WaitingOn.OPERATOR, 0),
        ([brought_up(60, code="BALANCE")], None, 1),  # one tries it
        ([brought_up(20 + s) for s in range(6)], WaitingOn.ORCHESTRATOR, 1),  # the canary
        ([], None, 4),
    ],
)
def test_what_halts_spawns_holds_recorded_intents_too(
    ended: list[EndedBringUp], waiting_on: WaitingOn | None, asked: int
) -> None:
    """The one canary of an open breaker may be any of them; an operator's own request waits for none."""
    intents = [spawning(f"gpu-{n}", Stage.INTENT) for n in range(4)]
    newest_last = tuple(sorted(ended, key=lambda bring_up: bring_up.at))
    made = plan(snapshot(*intents, claimable=12, ended=newest_last), policy())
    assert sum(isinstance(a, Create) for a in made.actions) == asked
    if waiting_on:
        assert {a.waiting_on for a in made.actions if isinstance(a, Wait)} == {waiting_on}
    wanted = spawning("gpu-9", Stage.INTENT, metadata=WorkerMetadata(asked_for="operator"))
    made = plan(snapshot(wanted, claimable=1, ended=newest_last), policy())
    assert [type(a) for a in made.actions] == [Create]
