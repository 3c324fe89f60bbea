"""`explain scaling`: for each thing that is blocked who must act, since when, until when, what then, and the fix."""

from dataclasses import replace
from datetime import timedelta

from orchestrator.cli import explain_view
from orchestrator.core.actions import PoolDecision
from orchestrator.core.blocked import WORKERS, Blocked, BlockedReason, text
from orchestrator.diagnostics import scaling
from tests.db.conformance.builders import FLEET, Fleet
from tests.db.diagnostics.build import lines, policy

DRY = Blocked(BlockedReason.OFFERS_REFUSED, 2)
LATER = Blocked(BlockedReason.OFFERS_REFUSED, 1)
LIMIT = Blocked(BlockedReason.MAX_ACTIVE, 2, WORKERS, {"limit": 2})
FAILED = {"failed": 5, "ended": 5, "window_min": 5, "code": "NO_RUNTIME"}
OPEN = Blocked(BlockedReason.BREAKER_OPEN, 4, detail=FAILED)
CANARY = Blocked(BlockedReason.BREAKER_OPEN, 3, detail=FAILED | {"failed": 6, "ended": 6, "canary": "gpu-1"})


async def decided(fleet: Fleet, *blocked: Blocked | str, pool: str = "default") -> str:
    """A decision row, and when it was made."""
    decision = {
        "pool": pool,
        "rule": "…",
        "target": 2,
        "inputs": {},
        "actions": [],
        "blocked": [b if isinstance(b, str) else b.as_json() for b in blocked],
    }
    await fleet.fleet("record_decision", p_decision=decision)
    fleet.wait(60)
    return (fleet.now - timedelta(seconds=60)).isoformat()


async def blocked(fleet: Fleet, decided_now: PoolDecision) -> list[scaling.Reason]:
    """What is said of what is blocked now."""
    found = await fleet.call("fleet_scaling_explain", p_fleet=FLEET)
    (told,) = scaling.explained(found, [decided_now], policy())
    return list(told.blocked)


def now(*reasons: Blocked) -> PoolDecision:
    return PoolDecision("default", "…", 2, {}, reasons)


async def test_since_when_something_is_blocked_is_when_decisions_began_to_say_so(fleet: Fleet) -> None:
    """Without a gap, however the numbers and times in it change; another pool's decisions are its own."""
    await decided(fleet, LIMIT)
    await decided(fleet)
    first = await decided(fleet, LIMIT)
    second = await decided(fleet, DRY, LIMIT)
    await decided(fleet, pool="other")
    await decided(fleet, replace(LIMIT, count=3), LATER)
    said = await blocked(fleet, now(LATER, LIMIT, OPEN))
    assert [one.since for one in said] == [second, first, None]


async def test_one_open_breaker_stands_from_canary_to_canary(fleet: Fleet) -> None:
    """What it waits for just now is told in other words each time."""
    began = await decided(fleet, OPEN)
    await decided(fleet, CANARY)
    (said,) = await blocked(fleet, now(OPEN))
    assert said.since == began


async def test_the_wait_is_shown_with_its_start_its_deadline_and_what_follows(fleet: Fleet) -> None:
    """The clocks that are known, then what happens, then the fix."""
    began = await decided(fleet, DRY)
    found = await fleet.call("fleet_scaling_explain", p_fleet=FLEET)
    until = fleet.now + timedelta(seconds=90)
    (told,) = scaling.explained(found, [now(replace(DRY, until=until), LIMIT)], policy())
    shown = lines(*explain_view.scaling([told], found, fleet.now))
    at = shown.index(f"BLOCKED, WAITING ON capacity: {text(DRY)}")
    assert shown[at + 1].startswith(f"  since {began[11:19]}   until {until:%H:%M:%S} (in 1m30s)   then: it is asked ")
    assert shown[at + 1].endswith("   fix: add to RUNPOD_GPU_TYPE or RUNPOD_DATA_CENTERS")
    assert shown[at + 3] == "  then: nothing more is started until it is raised   fix: raise MAX_ACTIVE_GPUS"


async def test_a_sentence_that_an_earlier_release_stored_is_shown_as_it_is(fleet: Fleet) -> None:
    """It is shown with the present reasons, and does not extend their times."""
    await decided(fleet, "2 spawn(s): every offer was refused lately", DRY)
    found = await fleet.call("fleet_scaling_explain", p_fleet=FLEET)
    (told,) = scaling.explained(found, [now(LIMIT)], policy())
    shown = lines(*explain_view.scaling([told], found, fleet.now))
    assert "  blocked then: 2 spawn(s): every offer was refused lately" in shown
    assert f"  blocked then: {text(DRY)}" in shown
    assert told.blocked[0].since is None
