"""`explain scaling`: for each thing that is blocked who must act, since when, until when, what then, and the fix."""

from datetime import timedelta

from orchestrator.cli import explain_view
from orchestrator.core.actions import Verdict
from orchestrator.diagnostics import scaling
from tests.db.conformance.builders import FLEET, Fleet
from tests.db.diagnostics.build import lines, policy

DRY = "2 spawn(s): every offer was refused lately, next try 12:00:30"
LATER = "1 spawn(s): every offer was refused lately, next try 12:07:30"
LIMIT = "2 more wanted, MAX_ACTIVE_GPUS=2"
OPEN = "4 spawn(s): breaker open, 5 of 5 bring-ups failed within 5 min (NO_RUNTIME), one canary at a time"
CANARY = "3 spawn(s): breaker open, 6 of 6 bring-ups failed within 5 min (NO_RUNTIME), next canary 12:00:06"


async def decided(fleet: Fleet, *blocked: str, pool: str = "default") -> str:
    """A decision row, and when it was made."""
    decision = {"pool": pool, "rule": "…", "target": 2, "inputs": {}, "actions": [], "blocked": list(blocked)}
    await fleet.fleet("record_decision", p_decision=decision)
    fleet.wait(60)
    return (fleet.now - timedelta(seconds=60)).isoformat()


async def blocked(fleet: Fleet, verdict: Verdict) -> list[scaling.Blocked]:
    """What is said of what is blocked now."""
    found = await fleet.call("fleet_scaling_explain", p_fleet=FLEET)
    (told,) = scaling.explained(found, [verdict], policy())
    return list(told.blocked)


def now(*texts: str) -> Verdict:
    return Verdict("default", "…", 2, {}, texts)


async def test_since_when_something_is_blocked_is_when_decisions_began_to_say_so(fleet: Fleet) -> None:
    """Without a gap, however the numbers and times in it change; another pool's decisions are its own."""
    await decided(fleet, LIMIT)
    await decided(fleet)
    first = await decided(fleet, LIMIT)
    second = await decided(fleet, DRY, LIMIT)
    await decided(fleet, pool="other")
    await decided(fleet, LIMIT.replace("2", "3"), LATER)
    said = await blocked(fleet, now(LATER, LIMIT, OPEN))
    assert [one.since for one in said] == [second, first, None]


async def test_one_open_breaker_stands_from_canary_to_canary(fleet: Fleet) -> None:
    """What it waits for just now is told in other words each time."""
    began = await decided(fleet, OPEN)
    await decided(fleet, CANARY)
    (said,) = await blocked(fleet, now(OPEN))
    assert said.since == began


async def test_it_is_shown_since_when_until_when_and_what_then(fleet: Fleet) -> None:
    """The clocks that are known, then what happens, then the fix."""
    began = await decided(fleet, DRY)
    found = await fleet.call("fleet_scaling_explain", p_fleet=FLEET)
    until = fleet.now + timedelta(seconds=90)
    (told,) = scaling.explained(found, [Verdict("default", "…", 2, {}, (DRY, LIMIT), {DRY: until})], policy())
    shown = lines(*explain_view.scaling([told], found, fleet.now))
    at = shown.index(f"BLOCKED, WAITING ON capacity: {DRY}")
    assert shown[at + 1].startswith(f"  since {began[11:19]}   until {until:%H:%M:%S} (in 1m30s)   then: it is asked ")
    assert shown[at + 1].endswith("   fix: add to RUNPOD_GPU_TYPE or RUNPOD_DATA_CENTERS")
    assert shown[at + 3] == "  then: nothing more is started until it is raised   fix: raise MAX_ACTIVE_GPUS"
