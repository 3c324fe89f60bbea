"""`schedules`: added, shown with its due times and outcomes, paused, removed."""

from datetime import datetime

import psycopg
import pytest

from orchestrator.adapters.schedule_store import ScheduleStore
from orchestrator.leader_jobs.schedules import Schedules
from testbed.shared_services import Database
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


async def test_add_tells_the_next_due_time_of_a_schedule_that_exists(
    fleet: Fleet, fleet_id: str, cli: Cli, postgres: Database
) -> None:
    """An interval goes on counting from the moment when the schedule was added, and what is paused stays paused."""
    hourly = ("schedules", "add", "hourly-of-this-test", "--type", "report", "--every")
    await cli(*hourly, "1h")
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
        await sql.execute("update schedules set created_at = now() - interval '50 min' where name = %s", [hourly[2]])
    again = (await cli(*hourly, "2h")).out
    steps = Schedules(ScheduleStore(fleet.db, fleet_id))
    await steps.step(fleet.term)
    (row,) = [one for one in (await cli("schedules", "list", "--json")).json()["schedules"] if one["name"] == hourly[2]]
    due = f"{datetime.fromisoformat(row['next_at']):%Y-%m-%d %H:%M:%S} UTC"
    assert again == f"replaced {hourly[2]}: next due {due}\n"
    assert (await cli(*hourly, "2h")).out == again, "the leader has worked it out already"
    await cli("schedules", "pause", hourly[2])
    assert (await cli(*hourly, "1h")).out == f"replaced {hourly[2]}: paused\n"
    assert (await cli(*hourly, "1h", "--json")).json()["next_at"] is None
    await cli("schedules", "remove", hourly[2], "--force")


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
