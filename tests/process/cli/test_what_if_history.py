"""`what-if` over the database: the user's own queue, with the settings in force and with others."""

import asyncio
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.process.cli.builders import Cli, Fleet
from tests.process.cli.screens import shown

WORKER = """
    insert into workers (id, fleet, pool, status, stage, waiting_on, deadline_at, next_attempt_at, exit_cause, pod_id,
                         created_at, promoted_at, bringup_ended_at, billing_since, ending_since, billing_until,
                         terminated_at, price_usd_per_hour)
    select %(id)s, %(fleet)s, %(pool)s, 'terminated', 'gone', 'provider', now(), now(), 'idle_timeout', 'pod',
           d, d + interval '90 s', d + interval '90 s', d + interval '10 s', d + interval '2 h',
           d + interval '2 h 5 s', d + interval '2 h 5 s', 0.5
      from (select now() - interval '1 day') t (d)"""
COST = """
    insert into costs (worker_id, fleet, kind, from_at, to_at, usd)
    select w.id, w.fleet, 'busy', w.billing_since, w.billing_until,
           0.5 * extract(epoch from w.billing_until - w.billing_since) / 3600 from workers w where w.id = %(id)s"""
ATTEMPTS = """
    insert into orchestrator.attempts (task_id, attempt, worker_id, nonce, claim_no, started_at, ended_at, outcome)
    select gen_random_uuid(), 1, %(id)s, 'launch', i, d, d + interval '30 s', 'complete'
      from generate_series(1, %(tasks)s::int) i,
           lateral (select now() - interval '1 day' + interval '90 s' + i * interval '60 s' as d) t"""


@pytest.fixture
async def past(fleet: Fleet, fleet_id: str) -> str:
    """A worker that ran a task each minute for an hour, a day ago."""
    await recorded(fleet, fleet_id, "default", tasks=60)
    return fleet_id


async def recorded(fleet: Fleet, fleet_id: str, pool: str, *, tasks: int) -> None:
    values = {"id": f"gpu-{uuid4().hex[:12]}", "fleet": fleet_id, "pool": pool, "tasks": tasks}
    async with fleet.db._pool.connection() as connection, connection.transaction():
        await connection.execute("set local session_replication_role = replica")
        for statement in (WORKER, COST, ATTEMPTS):
            await connection.execute(statement.encode(), values)


async def test_the_first_line_compares_a_replay_with_the_records(cli: Cli, past: str) -> None:
    """Then a column for the records, the settings in force, and the other policy."""
    ran = await cli("what-if")
    assert ran.code == 0, ran.err
    first, _, head, *rest = ran.out.splitlines()
    assert first.startswith("A replay of your settings gives $")
    assert first.endswith("so trust the rest as far as that.")
    assert " where $0.9993 was recorded (" in first
    assert head.split() == ["recorded", "your", "settings", "learned", "change"]
    names = ("cost", "most expensive day", "boots", "wait p50", "wait p95", "wait max", "waited more than 5m00s")
    assert [name for name in names if not any(line.startswith(name) for line in rest)] == []
    assert "60 tasks from " in ran.out
    assert "pool default: a boot takes 1m30s, a worker costs $0.50/h" in ran.out


async def test_other_settings_are_one_column_together(cli: Cli, past: str) -> None:
    changes = ("--set", "TASKS_PER_GPU_THRESHOLD=1", "--set", "GPU_IDLE_TIMEOUT_SEC=5")
    answer = (await cli("what-if", *changes, "--json")).json()
    assert answer["changes"] == {"TASKS_PER_GPU_THRESHOLD": "1", "GPU_IDLE_TIMEOUT_SEC": "5"}
    recorded_row, present, other = answer["rows"]
    assert (recorded_row["settings"], recorded_row["boots"]) == (None, 1)
    assert recorded_row["usd"] == pytest.approx(0.5 * 7_195 / 3_600, abs=1e-5)
    assert present["settings"]["default"]["GPU_IDLE_TIMEOUT_SEC"] == 600
    assert other["settings"]["default"]["GPU_IDLE_TIMEOUT_SEC"] == 5
    assert (present["boots"], other["boots"]) == (1, 30)  # the next task comes while a worker boots
    assert answer["error"]["usd_share"] == pytest.approx(present["usd"] / recorded_row["usd"] - 1)
    ran = await cli("what-if", *changes)
    assert "with --set: TASKS_PER_GPU_THRESHOLD=1, GPU_IDLE_TIMEOUT_SEC=5" in ran.out


async def test_the_settings_in_force_are_those_of_the_environment(cli: Cli, past: str) -> None:
    """And those of a pool that POOLS_FILE changes."""
    answer = (await cli("what-if", "--json", GPU_IDLE_TIMEOUT_SEC="77")).json()
    assert answer["rows"][1]["settings"]["default"]["GPU_IDLE_TIMEOUT_SEC"] == 77


async def test_one_pool_alone_can_be_replayed(cli: Cli, fleet: Fleet, past: str, tmp_path: Path) -> None:
    """A pool that the settings do not have is left out, and named."""
    await recorded(fleet, past, "big", tasks=7)
    assert "Pool big is no queue pool of these settings: 7 tasks left out." in (await cli("what-if")).out
    pools = tmp_path / "pools.toml"
    pools.write_text("[pools.big]\n")
    changes = {"POOLS_FILE": str(pools)}
    assert (await cli("what-if", "--json", **changes)).json()["tasks"] == 67
    assert (await cli("what-if", "--pool", "big", "--json", **changes)).json()["tasks"] == 7


async def test_without_tasks_there_is_nothing_to_replay(cli: Cli) -> None:
    ran = await cli("what-if", "--since", "1h")
    assert ran.code == 0
    assert "there is nothing to replay" in ran.out
    assert (await cli("what-if", "--json")).json()["rows"] == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set", "TASKS_PER_GPU=2"),
         ("a replay knows no setting 'TASKS_PER_GPU'. Did you mean \"TASKS_PER_GPU_THRESHOLD\"?", "fix: set one of ")),
        (("--set", "GPU_IDLE_TIMEOUT_SEC=soon"), ("why: 'soon': ", "valid number", "fix: see docs/settings.md")),
        (("--set", "GPU_IDLE_TIMEOUT_SEC=nan"), ("why: 'nan': ",)),
        (("--set", "MAX_ACTIVE_GPUS=-1"), ("why: '-1': ", "greater than or equal to 0")),
        (("--set", "MAX_ACTIVE_GPUS"), ("--set 'MAX_ACTIVE_GPUS' is not KEY=VALUE",)),
        (("--pool", "nope"), ("there is no pool 'nope'",)),
        (("--boot", "5"), ("--boot is for a replay with --trace", "fix: leave --boot out")),
        (("--since", "soon"), ("--since 'soon' is neither a span",)),
        (("--trace", "x.csv", "--set", "MAX_ACTIVE_GPUS=1"), ("--set is for a replay without --trace",)),
    ],
)  # fmt: skip
async def test_what_cannot_be_used_is_refused_with_what_can(
    cli: Cli, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    ran = await cli("what-if", *options)
    assert (ran.code, "error[E052]: " in ran.err) == (2, True), ran.err
    assert [word for word in words if word not in ran.err] == []


class Seen(HTMLParser):
    """The tags of a page, and the addresses that they name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in {"href", "src"} or name.startswith("on")]


async def test_the_page_is_complete_in_one_file(cli: Cli, past: str, tmp_path: Path) -> None:
    """No script, no other file, and no style of an element; pods over time, and a curve over the price of waiting."""
    file = tmp_path / "page.html"
    ran = await cli("what-if", "--set", "TASKS_PER_GPU_THRESHOLD=1", "--html", str(file))
    assert ran.code == 0, ran.err
    text = file.read_text()
    seen = Seen(text)
    assert seen.addresses == []
    assert "script" not in seen.tags
    assert "default-src 'none'" in text
    assert text.count('class="bar-busy"') == text.count('class="bar-idle"') == 2
    assert text.count("<circle") == 9 + 2
    assert "prefers-color-scheme: dark" in text
    refused = await cli("what-if", "--html", str(tmp_path / "no" / "page.html"))
    assert "the page cannot be written" in refused.err


@pytest.mark.parametrize("width", [80, 200])
async def test_the_table_fits_the_terminal(cli: Cli, past: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    environment: Mapping[str, str | None] = cli.environment
    for name, value in environment.items():
        monkeypatch.setenv(name, str(value))
    text = await shown(width, "what-if", "--set", "GPU_OVERCAPACITY_IDLE_TIMEOUT_SEC=31")
    await asyncio.sleep(0)
    assert [line for line in text.splitlines() if len(line.rstrip()) > width] == []
    assert "…" not in text
