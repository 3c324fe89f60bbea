"""`schedules`: added, shown with its due times and outcomes, paused, removed."""

import pytest

from orchestrator.adapters.schedule_store import ScheduleStore
from orchestrator.leader_jobs.schedules import Schedules
from tests.process.cli.builders import Cli, Fleet

NAME = "nightly-of-this-test"  # schedules belong to the database, which tests share
NIGHTLY = ("schedules", "add", NAME, "--cron", "0 2 * * *", "--timezone", "Europe/Berlin", "--type", "report")


async def test_a_schedule_from_its_beginning_to_its_end(fleet: Fleet, fleet_id: str, cli: Cli) -> None:
    """The leader's step works out the first due time."""
    added = await cli(*NIGHTLY, "--params", '{"days": 1}', "--label", "kind=report")
    assert added.out.startswith(f"added {NAME}: first due 20")
    assert added.out.rstrip().endswith("02:00:00 Europe/Berlin")
    assert (await cli(*NIGHTLY)).out.startswith(f"replaced {NAME}")
    await Schedules(ScheduleStore(fleet.db, fleet_id)).step(fleet.term)
    (row,) = [one for one in (await cli("schedules", "list", "--json")).json()["schedules"] if one["name"] == NAME]
    assert (row["task_type"], row["problem"], row["last_run"]) == ("report", None, None)
    assert row["next_at"]
    shown = (await cli("schedules", "next", NAME, "-n", "3")).out
    assert f"{NAME}: 0 2 * * * Europe/Berlin; next in " in shown
    assert shown.count("02:00:00 Europe/Berlin") == 3
    assert (await cli("schedules", "pause", NAME)).out == f"paused {NAME}\n"
    assert "paused" in (await cli("schedules", "list")).out
    assert (await cli("schedules", "resume", NAME)).out == f"resumed {NAME}\n"
    assert (await cli("schedules", "remove", NAME)).code == 2, "without a terminal it needs --force"
    assert (await cli("schedules", "remove", NAME, "--force")).out == f"removed {NAME}\n"
    assert NAME not in (await cli("schedules", "list")).out


@pytest.mark.parametrize(
    ("arguments", "why", "code"),
    [
        (("add", "x", "--type", "t"), "either --cron or --every", 2),
        (("add", "x", "--type", "t", "--cron", "61 * * * *"), "Bad minute", 2),
        (("add", "x", "--type", "t", "--cron", "0 2 * * *", "--timezone", "Berlin"), "no time zone", 2),
        (("add", "x", "--type", "t", "--every", "soon"), "neither a span", 2),
        (("add", "x", "--type", "t", "--every", "5s"), "every_s", 2),
        (("add", "No Name", "--type", "t", "--every", "1h"), "name", 2),
        (("next", "unknown"), "no schedule 'unknown'", 3),
        (("pause", "unknown"), "no schedule 'unknown'", 3),
    ],
)
async def test_what_cannot_be_is_refused(cli: Cli, arguments: tuple[str, ...], why: str, code: int) -> None:
    """With what is wrong with it."""
    ran = await cli("schedules", *arguments)
    assert (ran.code, why in ran.err) == (code, True), ran.err
