"""`list` and `status`, as an operator and as a program read them."""

import asyncio
import re
import sys
from datetime import UTC, datetime
from typing import Any

import asyncssh
import pytest

from orchestrator.cli.worker_rows import flags, note
from orchestrator.core.states import State
from testbed.shared_services import Database
from tests.process.cli.builders import Cli, Fleet, run

ESCAPE = "\x1b"


async def test_an_empty_fleet_says_so(cli: Cli) -> None:
    """In the words that operators know."""
    ran = await cli("list")
    assert (ran.code, ran.out) == (0, "No active workers found.\n")
    assert ran.err.startswith("The orchestrator process is not running (none has led this fleet yet); ")


async def test_without_a_leader_status_says_since_when_and_what_to_do(cli: Cli, fleet: Fleet) -> None:
    """By `list` and by `status`; data stays on stdout, and a program reads it as `leader`."""
    worker_id = await fleet.worker(upto=State.ACTIVE)
    assert (await cli("list", "--json")).json()["leader"]["holder"] == "the test"
    await fleet.store.resign("the test", fleet.term)
    said = r"The orchestrator process is not running \(for \d+s, last leader: the test\); .* fix: Start it: .*\n"
    runs = await asyncio.gather(*(cli(*command) for command in (["list"], ["status", worker_id])))
    for ran in runs:
        assert ran.code == 0
        assert re.fullmatch(said, ran.err), ran.err
    assert (await cli("list", "--json")).json()["leader"] is None


@pytest.mark.parametrize("command", ["list", "health", "explain scaling"])
async def test_reading_commands_load_only_what_they_need(cli: Cli, command: str) -> None:
    """No SDK, no web server, no SSH, nothing of the loop: what is not loaded cannot make it slow to start."""
    look = (
        "import sys; from orchestrator.cli.main import main\n"
        f"try: main({command.split()!r})\n"
        "finally: print(*{name for name in sys.modules if 'orchestrator' in name or '.' not in name}, file=sys.stderr)"
    )
    key = asyncssh.generate_private_key("ssh-ed25519")
    pair = {"RUNPOD_SSH_PRIVATE_KEY": key.export_private_key().decode()}
    pair["RUNPOD_SSH_PUBLIC_KEY"] = key.export_public_key().decode()
    ran = await run(sys.executable, "-c", look, environment={**cli.environment, **pair})
    loaded = set(ran.err.split())
    sdks = {"boto3", "botocore", "runpod", "aiohttp", "httpx", "supabase", "asyncssh", "jwt"}
    services = {"starlette", "uvicorn", "apscheduler", "prometheus_client"}
    ours = {f"orchestrator.{name}" for name in ("service", "web", "worker_logs", "loop.daemon", "pods.bringup_stages")}
    assert {"psycopg", "orchestrator.adapters.store"} <= loaded
    assert not (sdks | services | ours) & loaded
    assert "structlog" not in loaded
    plans = {"orchestrator.loop", "orchestrator.pods", "cryptography"}  # what the next tick would decide
    assert command != "list" or not plans & loaded


async def test_the_list_has_a_line_for_each_live_worker(cli: Cli, fleet: Fleet) -> None:
    """Off a terminal: one line each, whole, without colours; ended ones only with --all."""
    bringing_up, active = await fleet.worker(), await fleet.worker(upto=State.ACTIVE)
    ended = await fleet.worker(upto=State.TERMINATED)
    ran = await cli("list")
    assert ran.code == 0
    assert ran.err == ""
    assert ESCAPE not in ran.out
    head, *rows, total, pool = ran.out.splitlines()
    for column in ("worker", "state", "GPU", "pod", "age", "heartbeat", "$/h", "spent", "waiting on / note"):
        assert column in head
    assert len(rows) == 2
    (line,) = ran.lines_with(bringing_up)
    assert all(part in line for part in ("spawning", "RTX 4090", "pod", "$0.44", "ssh_auth", "waits for operator"))
    (line,) = ran.lines_with(active)
    assert "active" in line
    assert total.startswith("2 workers")
    assert "$0.88" in total
    assert pool == "pool default: 1 spawning, 1 active"
    everyone = await cli("list", "--all")
    (line,) = everyone.lines_with(ended)
    assert "terminated" in line
    assert re.search(r"ended \d+s ago: spawn_failed AUTH_FAILED$", line)


async def test_the_list_can_be_filtered(cli: Cli, fleet: Fleet) -> None:
    """By pool, state, GPU type and the time of the end; a filter that matches nothing says so."""
    active, ended = await fleet.worker(upto=State.ACTIVE), await fleet.worker(upto=State.TERMINATED)
    for words, expected in (
        (["--pool", "default"], {active}),
        (["--state", "active", "--gpu", "rtx 4090"], {active}),
        (["--state", "terminated"], {ended}),
        (["--since", "5m"], {active, ended}),
        (["--state", "idle"], set()),
        (["--gpu", "H100"], set()),
    ):
        found = (await cli("list", *words, "--json")).json()
        assert {row["id"] for row in found["workers"]} == expected, words
        assert sum(one["workers"] for one in found["counts"]) == len(expected), words
    assert (await cli("list", "--gpu", "H100")).out == "No worker matches the filter.\n"


async def test_every_unique_part_of_a_workers_id_is_enough(cli: Cli, fleet: Fleet) -> None:
    """Its beginning or end, or the pod's id; a part of several names them."""
    one = await fleet.worker(worker_id="gpu-one-1234")
    await fleet.worker(worker_id="gpu-two-1234")
    pod = (await fleet.row(one))["pod_id"]
    for part in ("gpu-one", "one-1234", pod, pod[:9]):
        assert (await cli("status", part, "--json")).json()["worker"]["id"] == one, part
    ran = await cli("status", "1234")
    assert (ran.code, ran.out) == (3, "")
    assert "'1234' is a part of several workers' ids" in ran.err
    assert all(name in ran.err for name in ("gpu-one-1234 (spawning, pool default)", "gpu-two-1234"))


async def test_diagnose_finds_a_worker_as_other_commands_do(cli: Cli, fleet: Fleet) -> None:
    """By a unique part of its id or its pod's, also if it has ended."""
    one = await fleet.worker(worker_id="gpu-three-5678")
    ended = await fleet.worker(worker_id="gpu-four-5678", upto=State.TERMINATED)
    parts = {"three-5678": one, (await fleet.row(one))["pod_id"][:9]: one, "gpu-four": ended}
    nowhere = dict.fromkeys(("RUNPOD_API_BASE_URL", "S3_ENDPOINT_URL"), "http://127.0.0.1:1")
    asked = (cli("diagnose", part, "--json", **nowhere) for part in (*parts, "5678"))
    *runs, several = await asyncio.gather(*asked)
    assert [list(ran.json().get("workers", ())) for ran in runs] == [[name] for name in parts.values()]
    assert several.code == 3
    assert all(name in several.err for name in ("'5678' is a part of several workers' ids", one, ended))


async def test_diagnose_of_a_worker_is_about_that_worker(cli: Cli, fleet: Fleet) -> None:
    """Its explanation, its pod, SSH, its logs and its last changes; nothing of another worker."""
    one = await fleet.worker(worker_id="gpu-five-5678", upto=State.ACTIVE)
    await fleet.worker(worker_id="gpu-six-5678")
    ran = await cli(
        "diagnose", "gpu-five", **dict.fromkeys(("RUNPOD_API_BASE_URL", "S3_ENDPOINT_URL"), "http://127.0.0.1:1")
    )
    assert "gpu-six" not in ran.out
    for said in (f"{one}  active", "WAITING ON", "last changes", "logs in S3", "SSH ", "promoted"):
        assert said in ran.out, ran.out
    assert "Missing critical environment variables" not in ran.out


def test_the_list_notes_why_a_worker_claims_no_more() -> None:
    """Also while its row waits for something else."""
    now = datetime.fromtimestamp(1_795_168_800, UTC)
    row: dict[str, Any] = {"id": "gpu-1", "pool": "default", "status": "idle", "stage": "promoted"}
    row |= {"state_since": now.isoformat(), "last_heartbeat": now.isoformat()}
    held = {"failures": 5, "codes": ["HANDLER_ERROR"]}
    said = "claims no more tasks: 5 different tasks failed in a row (HANDLER_ERROR)"
    assert flags(row, now) == []
    assert note(row | {"held_back": held, "waiting_for": "tasks"}, now) == f"{said}; waits for tasks"
    assert flags(row | {"held_back": held}, now) == [said]
    assert flags(row | {"health": {"disk": "x"}}, now) == []
    unread = {"unknown": {"nvidia_smi": "no answer within 4 s", "kernel_log": "Operation not permitted"}}
    assert flags(row | {"health": unread}, now) == ["SIGNAL_LOST: nvidia_smi: no answer within 4 s"]


async def test_the_list_as_json(cli: Cli, fleet: Fleet) -> None:
    """Rows, what is computed from them, totals; nothing that a worker proves itself with."""
    worker_id = await fleet.worker(upto=State.ACTIVE)
    document = (await cli("list", "--json")).json()
    (row,) = document["workers"]
    assert (row["id"], row["status"], row["stage"]) == (worker_id, "active", "promoted")
    assert row["age_s"] >= 0
    assert row["heartbeat_age_s"] is None
    assert row["flags"] == []
    assert document["totals"]["usd_per_hour"] == 0.44
    assert "token_jti" not in row


async def test_a_sum_says_which_prices_it_lacks(cli: Cli, fleet: Fleet) -> None:
    """A pod whose price RunPod does not show costs money too."""
    await fleet.worker(upto=State.ACTIVE)
    assert "no known price" not in (await cli("list")).out
    await fleet.worker(upto=State.ACTIVE, price=None)
    totals = (await cli("list", "--json")).json()["totals"]
    assert (totals["usd_per_hour"], totals["unpriced_workers"]) == (0.44, 1)
    (line,) = (await cli("list")).lines_with("no known price")
    assert line == "1 worker has no known price: at least $0.44/h"


async def test_another_fleet_is_not_shown(cli: Cli, fleet: Fleet) -> None:
    """FLEET_ID separates environments on one database."""
    worker_id = await fleet.worker()
    listed, status = await asyncio.gather(
        cli("list", "--all", FLEET_ID="another"), cli("status", worker_id, FLEET_ID="another")
    )
    assert listed.out == "No active workers found.\n"
    assert status.code == 3


async def test_status_of_a_worker(cli: Cli, fleet: Fleet) -> None:
    """By any name that is unique: where it is, where it can be reached, what it did and cost."""
    worker_id = await fleet.worker(upto=State.ACTIVE)
    pod_id = (await fleet.row(worker_id))["pod_id"]
    runs = await asyncio.gather(*(cli("status", name) for name in (pod_id, worker_id[-8:])))
    for ran in runs:
        assert ran.code == 0, ran.err
        assert "SSH: 213.173.110.7:12086" in ran.out
        for part in (worker_id, pod_id, "active", "promoted", "RTX 4090 in EU-RO-1", "$0.44/h", "created", "heartbeat"):
            assert part in ran.out
        assert "0 done, 0 failed, 0 running" in ran.out
        assert "RunPod: not asked: RUNPOD_API_KEY is not set" in ran.out
        assert ran.lines_with("ssh_auth")


async def test_status_of_a_worker_that_failed(cli: Cli, fleet: Fleet) -> None:
    """Why it ended, at which stage, with what evidence."""
    worker_id = await fleet.worker(upto=State.TERMINATED)
    ran = await cli("status", worker_id)
    (line,) = ran.lines_with("last failure")
    assert "AUTH_FAILED (spawn_failed)" in line
    assert "PermissionDenied" in line
    assert "PAIR_MISMATCH" in ran.out
    document = (await cli("status", worker_id, "--json")).json()
    assert document["worker"]["exit_cause"] == "spawn_failed"
    assert [attempt["failure_code"] for attempt in document["attempts"]] == ["AUTH_FAILED"]
    assert document["provider"]["status"] is None
    assert {stage["stage"] for stage in document["stages"]} >= {"pod_running", "ssh_auth"}
    assert document["events"][-1]["to_state"] == "terminated"


async def test_an_unknown_worker_is_exit_code_3(cli: Cli) -> None:
    """Three lines on stderr, and the same as JSON on stdout where that was asked for."""
    ran = await cli("status", "gpu-nobody", "--json")
    assert ran.code == 3
    assert ran.json()["errors"][0]["id"] == "E040"
    what, why, fix = ran.err.splitlines()
    assert what == "error[E040]: no worker 'gpu-nobody'"
    assert why.startswith("why: ")
    assert fix == "fix: python -m orchestrator list --all"


async def test_a_name_that_is_no_id_never_reaches_the_database(cli: Cli) -> None:
    """Ids are validated at every entry."""
    ran = await cli("status", "../../etc/passwd")
    assert (ran.code, ran.out) == (2, "")


async def test_two_workers_with_the_same_end_are_not_guessed_between(cli: Cli, fleet: Fleet) -> None:
    """It says which they are."""
    workers = [await fleet.worker(worker_id=f"gpu-{number}-0a1b2c3d") for number in range(2)]
    ran = await cli("status", "0a1b2c3d")
    assert ran.code == 3
    assert all(worker_id in ran.err for worker_id in workers)


async def test_a_database_that_does_not_answer(cli: Cli) -> None:
    """Exit 1 at once, with what the connection said, and never an empty list; no pool fills the screen."""
    away = "postgresql://nobody@127.0.0.1:9/none"
    commands = (["list"], ["plan"], ["doctor", "leader"])
    *rest, doctor = await asyncio.gather(*(cli(*c, DATABASE_URL=away, RUNPOD_API_KEY="rpa_x") for c in commands))
    for ran in rest:
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith("error[E010]: the database does not answer\nwhy: connection")
        assert len(ran.err.splitlines()) == 3
    assert rest[0].err.endswith('fix: psql "$DATABASE_URL" -c "select 1"\n')
    assert (doctor.code, doctor.err) == (0, "")
    assert "Unavailable: connection" in doctor.out
    api = {"SUPABASE_URL": "http://127.0.0.1:9", "SUPABASE_SERVICE_ROLE_KEY": "sb_secret_x"}
    ran = await cli("list", DATABASE_URL=None, **api)
    assert ran.err.startswith("error[E010]: the database does not answer\n")
    assert '\nfix: curl -i "$SUPABASE_URL/rest/v1/" -H "apikey: ' in ran.err
    assert "psql" not in ran.err


async def test_a_database_that_refuses_us(cli: Cli, postgres: Database) -> None:
    """Exit 4: waiting would not help."""
    ran = await cli("list", DATABASE_URL=postgres.server.url_of("no_such_database"))
    assert (ran.code, ran.out) == (4, "")
    assert "error[E012]" in ran.err
    assert "no_such_database" in ran.err


async def test_a_database_url_that_libpq_cannot_read_is_not_quoted(cli: Cli) -> None:
    """Exit 4: libpq's own complaint shows what stands after the space in the password."""
    given = "host=127.0.0.1 password=my hunter2hunter2"
    listed, doctor = await asyncio.gather(*(cli(*c, DATABASE_URL=given) for c in (["list"], ["doctor", "database"])))
    assert listed.code == 4
    assert len(listed.err.splitlines()) == 3
    for ran in (listed, doctor):
        assert "DATABASE_URL cannot be used" in ran.out + ran.err
        assert "hunter2" not in ran.out + ran.err


async def test_a_database_without_the_schema(cli: Cli, postgres: Database) -> None:
    """Exit 4, and the command that corrects it."""
    ran = await cli("list", DATABASE_URL=postgres.server.url_of("postgres"))
    assert ran.code == 4, ran.err
    assert "error[E011]" in ran.err
    assert ran.err.count("fix: ") == 1
    assert "fix: python -m orchestrator migrate" in ran.err


async def test_wrong_settings_are_all_named_at_once(cli: Cli) -> None:
    """Exit 4; three lines for each."""
    ran = await cli("list", DATABASE_URL=None, MAX_ACTIVE_GPUS="many")
    assert ran.code == 4
    assert "MAX_ACTIVE_GPUS cannot be used" in ran.err
    ran = await cli("run", DATABASE_URL=None)
    assert ran.code == 4
    problems = [line for line in ran.err.splitlines() if line.startswith("error[E001]")]
    assert len(problems) >= 5
    assert len(ran.err.splitlines()) == 3 * len(problems)
