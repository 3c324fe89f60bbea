"""Retention is due by the database's own record, so that processes that live for minutes do it too."""

import pytest

from orchestrator.ports import NotLeader
from tests.db.conformance.builders import Fleet

HOUR_S = 3600


async def test_retention_is_due_once_an_hour_for_all_leaders_together(fleet: Fleet) -> None:
    """A new process asks at once: it is due an hour after it was last done, by any leader, and not before."""

    async def retained() -> bool:
        return (await fleet.fleet("retain", p_every_s=HOUR_S))["deleted"] is not None

    assert await retained()
    fleet.wait(HOUR_S - 1)
    fleet.term = (await fleet.lead())["term"]  # a deploy
    assert not await retained()
    fleet.wait(1)
    assert await retained()
    assert not await retained()


async def test_each_fleet_has_its_own_hour(fleet: Fleet) -> None:
    """Two environments in one database."""
    assert (await fleet.fleet("retain", p_every_s=HOUR_S))["deleted"] is not None
    other = await fleet.call("fleet_lead", p_fleet="another", p_holder="b", p_ttl_s=15)
    answer = await fleet.call("fleet_retain", p_fleet="another", p_term=other["term"], p_every_s=HOUR_S)
    assert answer["deleted"] is not None


async def test_an_earlier_leader_is_refused_and_leaves_no_record(fleet: Fleet) -> None:
    """It is due for the leader then."""
    leading, fleet.term = fleet.term, fleet.term - 1
    with pytest.raises(NotLeader):
        await fleet.fleet("retain", p_every_s=HOUR_S)
    fleet.term = leading
    assert (await fleet.fleet("retain", p_every_s=HOUR_S))["deleted"] is not None
