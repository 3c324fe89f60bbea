"""What is held against machines and places, and for how long."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from orchestrator.ports import BadArgument, NotLeader
from tests.db.conformance.builders import FLEET, Fleet

PLACE = "place:EU-1|NVIDIA A40"


async def strike(
    fleet: Fleet, key: str = PLACE, *, code: str = "ECC", after: int = 2, **given: Any
) -> Mapping[str, Any]:
    """Half an hour, from the second strike within an hour on."""
    plain = {"p_key": key, "p_code": code, "p_evidence": {"worker": "w"}, "p_avoid_s": 1800, "p_after": after}
    answer: Mapping[str, Any] = await fleet.fleet("strike", **(plain | {"p_memory_s": 3600} | given))
    return answer


async def hosts(fleet: Fleet, *, avoided: bool = False) -> dict[str, Mapping[str, Any]]:
    """By key."""
    return {host["key"]: host for host in (await fleet.call("fleet_hosts", p_fleet=FLEET, p_avoided=avoided))["hosts"]}


async def test_a_machine_is_avoided_from_its_first_strike_until_its_time_is_over(fleet: Fleet) -> None:
    """And remembered after that."""
    await fleet.lead()
    answer = await strike(fleet, "machine:m1", after=1)
    assert (answer["strikes"], (datetime.fromisoformat(answer["avoid_until"]) - fleet.now).total_seconds()) == (1, 1800)
    assert (await hosts(fleet))["machine:m1"]["avoided"] is True
    fleet.wait(1801)
    host = (await hosts(fleet))["machine:m1"]
    assert await hosts(fleet, avoided=True) == {}
    assert (host["avoided"], host["evidence"][0]["code"]) == (False, "ECC")


async def test_a_place_is_avoided_from_the_second_strike_within_an_hour(fleet: Fleet) -> None:
    """Two that are further apart are two first ones."""
    await fleet.lead()
    assert (await strike(fleet))["avoid_until"] is None
    fleet.wait(3601)
    assert (await strike(fleet)) == {"strikes": 1, "avoid_until": None}
    fleet.wait(600)
    assert (await strike(fleet))["strikes"] == 2
    assert (await hosts(fleet))[PLACE]["avoided"] is True


async def test_the_newest_ten_failures_are_kept(fleet: Fleet) -> None:
    """Newest first, each with its code and its time."""
    await fleet.lead()
    for number in range(12):
        await strike(fleet, code=f"XID_{number + 1}")
    (host,) = (await hosts(fleet)).values()
    assert host["strikes"] == 12
    assert [failure["code"] for failure in host["evidence"]] == [f"XID_{n}" for n in range(12, 2, -1)]
    assert all(failure["worker"] == "w" and failure["at"] for failure in host["evidence"])


async def test_only_the_leader_strikes_and_only_machines_and_places(fleet: Fleet) -> None:
    """A stale term and another kind of key are refused; another fleet's strikes are its own."""
    await fleet.lead()
    await strike(fleet)
    with pytest.raises(NotLeader):
        await strike(fleet, p_term=7)
    for key in ("", "m1", "planet:earth"):
        with pytest.raises(BadArgument):
            await strike(fleet, key)
    assert (await fleet.call("fleet_hosts", p_fleet="another", p_avoided=False))["hosts"] == []
