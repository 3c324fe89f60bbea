"""`spawn` and `terminate`: rows that the leader acts on; and the loop's own commands."""

import asyncio
import re
import uuid
from datetime import timedelta
from pathlib import Path

import psycopg

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.store import SqlStore
from orchestrator.core.model import Pause
from orchestrator.core.states import Stage, State
from testbed.runpod.server import Emulator
from testbed.shared_services import Database
from tests.process.cli.builders import TIMEOUT_S, Cli, Fleet


async def test_spawn_records_an_intent_and_says_who_leads(cli: Cli, fleet: Fleet) -> None:
    """What is on stdout is the new worker's id; the pod is the leader's business."""
    ran = await cli("spawn")
    assert ran.code == 0, ran.err
    row = await fleet.row(ran.out.strip())
    assert (row["status"], row["stage"], row["pod_id"]) == ("spawning", "intent", None)
    assert "the test leads" in ran.err


async def test_spawn_says_that_there_is_no_leader(cli: Cli, postgres: Database, fleet_id: str) -> None:
    """And how to change that; the request stands, and the lead is still free."""
    ran = await cli("spawn", "--worker-id", f"gpu-{uuid.uuid4().hex[:8]}")
    assert ran.code == 0
    assert "The orchestrator process is not running (none has led this fleet yet)" in ran.err
    assert "python -m orchestrator run" in ran.err
    db = await PostgresDb.open(postgres.url, pool_size=1)
    assert (await SqlStore(db, fleet_id).lead("another", 1)).leader
    await db.close()


async def test_spawn_refuses_what_cannot_be(cli: Cli, fleet: Fleet) -> None:
    """An id that is taken, an id that is none, a pool that is not there."""
    taken = await fleet.worker()
    asked = (["--worker-id", taken], ["--worker-id", "a b"], ["--pool", "nowhere"])
    assert [ran.code for ran in await asyncio.gather(*(cli("spawn", *arguments) for arguments in asked))] == [1, 2, 2]
    assert len(await fleet.store.workers()) == 1


async def test_spawn_and_wait_follows_the_bringup(cli: Cli, fleet: Fleet) -> None:
    """Each stage is told on stderr; a failure is exit code 1 with its cause."""
    good, bad = f"gpu-{uuid.uuid4().hex[:8]}", f"gpu-{uuid.uuid4().hex[:8]}"
    waits = [asyncio.create_task(cli("spawn", "--worker-id", name, "--wait", "--json")) for name in (good, bad)]
    for name in (good, bad):
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                if await fleet.row(name):
                    break
                await asyncio.sleep(0.05)
    await fleet.move(good, State.SPAWNING, State.ACTIVE, stage=Stage.PROMOTED)
    why = {"exit_cause": "spawn_failed", "failure_code": "NO_RUNTIME"}
    await fleet.move(bad, State.SPAWNING, State.TERMINATING, stage=Stage.DELETING, **why)
    came, failed = await asyncio.gather(*waits)
    assert came.code == 0, came.err
    assert came.json()["status"] == "active"
    assert "active promoted" in came.err
    assert failed.code == 1
    assert "spawn_failed NO_RUNTIME" in failed.json()["errors"][0]["why"]


async def test_terminate_requests_an_end(cli: Cli, fleet: Fleet) -> None:
    """Of a worker named by any of its names; drained unless --now; asked for twice it says so."""
    workers = [await fleet.worker(upto=State.ACTIVE) for _ in range(3)]
    pod_id = (await fleet.row(workers[2]))["pod_id"]
    names = ([workers[0]], ["--worker-id", workers[1], "--now"], ["--pod-id", pod_id])
    runs = await asyncio.gather(*(cli("terminate", *name, "--force") for name in names))
    assert [ran.out for ran in runs] == [f"{worker_id}: its end is requested\n" for worker_id in workers]
    rows = [await fleet.row(worker_id) for worker_id in workers]
    assert all(row["drain_requested_at"] for row in rows)
    assert [row["stop_requested_at"] is not None for row in rows] == [False, True, False]
    assert (await cli("terminate", workers[0], "--force", "--json")).json()["outcome"] == "already"


async def test_terminate_off_a_terminal_needs_force(cli: Cli, fleet: Fleet) -> None:
    """And says what it would have done."""
    worker_id = await fleet.worker(upto=State.ACTIVE)
    ran = await cli("terminate", worker_id, stdin="y\n")
    assert (ran.code, ran.out) == (2, "")
    assert "error[E050]" in ran.err
    assert worker_id in ran.err
    assert (await fleet.row(worker_id))["drain_requested_at"] is None


async def test_terminate_names_exactly_one_worker_that_exists(cli: Cli) -> None:
    """Otherwise: usage, or not found."""
    asked: tuple[list[str], ...] = ([], ["a", "--pod-id", "b"], ["gpu-nobody"])
    runs = await asyncio.gather(*(cli("terminate", *arguments, "--force") for arguments in asked))
    assert [ran.code for ran in runs] == [2, 2, 3]


async def test_pause_and_resume(cli: Cli, fleet: Fleet) -> None:
    """The reason is what the loop then sees, in every pool or in one, until it is resumed or over."""
    assert (await cli("pause", "--reason", "too dear today")).code == 0
    assert (await fleet.store.snapshot()).paused == {"*": Pause("too dear today", None)}
    await fleet.store.declare_release(fleet.term, {"default": "1", "training": "1"}, [])
    ran = await cli("pause", "--pool", "training", "--for", "5", "--json")
    assert set(ran.json()["pools"]) == {"*", "training"}
    seen = await fleet.store.snapshot()
    until = seen.paused["training"].until
    assert until is not None
    assert timedelta(minutes=4) < until - seen.now <= timedelta(minutes=5)
    assert (await cli("resume", "--json")).json() == {"schema_version": 1, "paused": None, "pools": {}}
    assert not (await fleet.store.snapshot()).paused


async def test_workers_are_limited_for_a_time(cli: Cli, fleet: Fleet) -> None:
    """In one pool or in the whole fleet, for a span or until an hour of the day."""
    ran = await cli("scale", "limit", "--max", "8", "--for", "2h", "--reason", "a demo")
    assert ran.code == 0, ran.err
    assert "The whole fleet may have 8 workers at most." in ran.out
    await fleet.store.declare_release(fleet.term, {"default": "1", "training": "1"}, [])
    ran = await cli("scale", "limit", "--pool", "training", "--max", "1", "--until", "18:00", "--json")
    assert set(ran.json()["limits"]) == {"*", "training"}
    seen = await fleet.store.snapshot()
    whole, training = seen.scale_limits["*"], seen.scale_limits["training"]
    assert (whole.most, whole.reason, training.most) == (8, "a demo", 1)
    assert timedelta(minutes=119) < whole.until - seen.now <= timedelta(hours=2)
    assert (training.until.hour, training.until.minute) == (18, 0)
    assert timedelta(0) < training.until - seen.now <= timedelta(days=1)
    assert "a demo" in (await cli("scale", "list")).out
    assert set((await cli("scale", "unlimit", "--pool", "training", "--json")).json()["limits"]) == {"*"}
    assert "No limit is in force." in (await cli("scale", "unlimit")).out
    assert (await cli("scale", "list", "--json")).json()["limits"] == {}


async def test_a_limit_of_workers_without_an_end_is_refused(cli: Cli) -> None:
    """Or with two, or with one that has passed, or for no worker: that is a pause."""
    for wrong in (
        ["--max", "8"], ["--max", "8", "--for", "1h", "--until", "18:00"], ["--max", "0", "--for", "1h"],
        ["--max", "8", "--for", "soon"], ["--max", "8", "--until", "2020-01-01T00:00Z"], ["--for", "1h"],
        ["--max", "8", "--until", "18:00+02:00"], ["--max", "8", "--until", "2026"],
    ):  # fmt: skip
        assert (await cli("scale", "limit", *wrong)).code == 2, wrong


async def test_an_operator_chooses_the_rule_of_scaling(cli: Cli, fleet: Fleet) -> None:
    """Of one pool or of all; the plan and the explanation follow at once."""
    await fleet.store.declare_release(fleet.term, {"default": "1", "training": "1"}, [])
    ran = await cli("scale", "policy", "learned")
    assert ran.code == 0, ran.err
    assert "Every pool without a choice of its own follows the rule learned, chosen by an operator." in ran.out
    ran = await cli("scale", "policy", "fixed", "--pool", "training", "--json")
    assert ran.json()["policies"] == {"*": "learned", "training": "fixed"}
    assert "Pool training follows the rule fixed, chosen by an operator." in (await cli("scale", "list")).out
    explained = (await cli("explain", "scaling", "--verbose")).out
    assert "an operator chose the rule learned" in explained
    assert (await cli("scale", "list", "--json")).json()["policies"] == {"*": "learned", "training": "fixed"}
    assert "The settings decide the rule of every pool." in (await cli("scale", "policy", "settings")).out
    assert (await cli("scale", "policy", "clever")).code == 2
    assert not (await fleet.store.snapshot()).scaling_policies


async def test_migrate_tells_what_it_did(cli: Cli, postgres: Database) -> None:
    """A second time there is nothing to do."""
    ran, same = await asyncio.gather(cli("migrate"), cli("migrate", "--json"))
    version = same.json()["version"]
    assert (ran.code, ran.out) == (0, f"The schema is up to date ({version}).\n"), ran.err
    assert same.json()["applied"] == []


async def test_migrate_shows_first_what_it_would_apply(cli: Cli, postgres: Database) -> None:
    """Nothing is changed; the last line of a migration says how many files, and the version."""
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
        await sql.execute("create database planned")
    here = {"DATABASE_URL": postgres.server.url_of("planned")}
    first = await cli("migrate", "--plan", **here)
    again = await cli("migrate", "--plan", "--json", **here)
    assert (first.code, again.code) == (2, 2), first.err
    number = len(again.json()["would_apply"])
    assert number > 20
    assert first.out.endswith(f"migrate would apply {number} files. The schema is now none.\n")
    each = await cli("migrate", "--plan", "-v", **here)
    assert each.out.count("would apply ") == number + 1
    done = await cli("migrate", **here)
    summary, last = done.out.splitlines()
    tables, functions = r"\d+ files of tables \(0001 to \d+\)", r"\d+ files of functions"
    assert re.fullmatch(rf"applied {tables}, {functions}, .*; -v names each", summary)
    assert last.startswith(f"Applied {number} files. The schema is now ")
    after = await cli("migrate", "--plan", **here)
    assert (after.code, after.out.partition(".")[0]) == (0, "migrate would change nothing")


async def test_plan_tells_a_refused_key_from_a_provider_that_does_not_answer(
    cli: Cli, fleet: Fleet, tmp_path: Path
) -> None:
    """The first needs another key, the second needs patience."""
    async with Emulator(tmp_path) as emulator:
        refused = await cli("plan", RUNPOD_API_KEY="rpa_wrongwrongwrong", RUNPOD_API_BASE_URL=emulator.url)
    assert (refused.code, refused.err.partition(":")[0]) == (4, "error[E020]"), refused.err
    away = await cli("plan", RUNPOD_API_KEY="rpa_wrongwrongwrong", RUNPOD_API_BASE_URL="http://127.0.0.1:1")
    assert (away.code, away.err.partition(":")[0]) == (1, "error[E021]"), away.err


async def test_plan_knows_what_a_leader_has_seen(cli: Cli, fleet: Fleet, postgres: Database, tmp_path: Path) -> None:
    """Who has been silent since the lead began is to be asked, then to end; a pod that is not listed is only named."""
    async with Emulator(tmp_path) as emulator:
        cloud = {"RUNPOD_API_KEY": emulator.api_key, "RUNPOD_API_BASE_URL": emulator.url}
        worker_id = await fleet.worker(upto=State.ACTIVE)
        row = await fleet.row(worker_id)
        fresh = await cli("plan", "--json", **cloud)
        async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
            hour = "update fleet_lease set since = since - interval '1 hour' where fleet = %s"
            await sql.execute(hour, (row["fleet"],))
            silent = (
                "update workers set created_at = created_at - interval '1 hour', ssh_host = '127.0.0.1', ssh_port = 1, "
                "last_heartbeat = now() - %s * interval '1 min' where id = %s"
            )
            await sql.execute(silent, (10, worker_id))
            soon = await cli("plan", "--json", **cloud)
            await sql.execute(silent, (20, worker_id))
        later = await cli("plan", "--json", **cloud)
    assert [action["worker_id"] for action in soon.json()["actions"] if action["kind"] == "ask_pod"] == [worker_id]
    assert later.json()["observed"]["pods_missing"] == [row["pod_id"]]
    assert [action["kind"] for action in fresh.json()["actions"] if action["kind"] == "terminate"] == []
    (end,) = [action for action in later.json()["actions"] if action["kind"] == "terminate"]
    assert (end["worker_id"], end["cause"]) == (worker_id, "heartbeat_lost")


async def test_plan_shows_the_next_tick_and_writes_nothing(cli: Cli, fleet: Fleet, tmp_path: Path) -> None:
    """Exit 2 while it would act, 0 when it would not, 1 when the provider does not answer."""
    async with Emulator(tmp_path) as emulator:
        cloud = {"RUNPOD_API_KEY": emulator.api_key, "RUNPOD_API_BASE_URL": emulator.url}
        worker_id = await fleet.worker(upto=State.ACTIVE)
        still, acting, planned, status = await asyncio.gather(
            cli("plan", **cloud, MAX_ACTIVE_GPUS="0", FLEET_ID="empty"),
            cli("plan", **cloud, MIN_ACTIVE_GPUS="1", FLEET_ID="empty"),
            cli("plan", "--json", **cloud, MIN_ACTIVE_GPUS="1", FLEET_ID="empty"),
            cli("status", worker_id, **cloud),
        )
    assert still.code == 0, still.err
    assert "would change nothing" in still.err
    assert acting.code == 2, acting.err
    assert acting.lines_with("spawn")
    assert planned.code == 2
    assert planned.json()["would_act"] is True
    assert planned.json()["actions"][0]["kind"] == "spawn"
    assert planned.json()["decisions"][0]["target"] >= 1
    assert "RunPod: ABSENT" in status.out
    assert await SqlStore(fleet.db, "empty").workers(all=True) == []
    away = await cli("plan", **cloud)
    assert away.code == 1
    assert "error[E021]" in away.err
