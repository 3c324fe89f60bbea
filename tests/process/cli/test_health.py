"""`health` over real rows and a RunPod emulator: the true cause first, and exit 1 only if work or money is affected."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from psycopg import AsyncConnection

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.adapters.store import SqlStore
from orchestrator.core.model import StoreOutage
from orchestrator.core.states import Stage, State
from testbed.runpod import replies
from testbed.runpod.server import Emulator
from testbed.shared_services import SharedServices
from tests.db.conformance.test_cloud import spec
from tests.process.cli.builders import TIMEOUT_S, Cli, Fleet
from tests.process.cli.test_widths import shown

LAST_READ = (
    "select from pg_stat_activity where query like '%worker_claim%' and pid <> pg_backend_pid() and state = 'idle'"
)
FLEET, OFFER = "health", "NVIDIA GeForce RTX 4090|*|SECURE"
KEY = asyncssh.generate_private_key("ssh-ed25519")
SETTINGS = {
    "FLEET_ID": FLEET,
    "RUNPOD_GPU_TYPE": "NVIDIA GeForce RTX 4090",
    "RUNPOD_SSH_PRIVATE_KEY": KEY.export_private_key().decode(),
    "RUNPOD_SSH_PUBLIC_KEY": KEY.export_public_key().decode(),
    "MAX_ACTIVE_GPUS": "2",
    "TASKS_PER_GPU_THRESHOLD": "1",
    "WORKER_HANDLERS": "work=cmd:true",
}


@dataclass(frozen=True, slots=True)
class Patient:
    """A fleet that an operator asks about: its rows, its account, and the settings of the command."""

    fleet: Fleet
    emulator: Emulator
    settings: dict[str, str]

    async def submit(self, count: int = 5, **task: str) -> None:
        """Ready tasks."""
        await self.fleet.store.submit([{"task_type": "work", "params": {}, **task} for _ in range(count)])


@pytest.fixture
async def patient(shared: SharedServices, tmp_path: Path) -> AsyncIterator[Patient]:
    """A fleet that the test leads, in a database and an account of its own."""
    database = await shared.database()
    db = await PostgresDb.open(database.url, pool_size=2)
    store = SqlStore(db, FLEET)
    lease = await store.lead("the test", 3_600)
    async with Emulator(tmp_path, light=True) as emulator:
        account = {"RUNPOD_API_KEY": emulator.api_key, "RUNPOD_API_BASE_URL": emulator.url}
        settings = {**SETTINGS, **account, "DATABASE_URL": database.url}
        yield Patient(Fleet(store, db, None, lease.term), emulator, settings)
    await db.close()


async def ten_failed_bringups(patient: Patient) -> None:
    for _ in range(10):
        await patient.fleet.worker(upto=State.TERMINATED)
    await patient.submit(40)


async def no_money(patient: Patient) -> None:
    patient.emulator.core.world.balance_usd = 0
    await patient.submit()


async def budget_spent(patient: Patient) -> None:
    patient.settings["DAILY_BUDGET_USD"] = "0.01"
    await patient.submit()


async def store_away(patient: Patient) -> None:
    lease = await patient.fleet.store.lead("the test", 3_600)
    await patient.fleet.store.hold_claims(lease.term, StoreOutage(lease.since, "S3 does not answer (x)"), for_s=600)
    await patient.submit()


async def sold_out(patient: Patient) -> None:
    await patient.fleet.store.note_offer(patient.fleet.term, OFFER, refused=True, code="NO_CAPACITY")
    await patient.submit()


async def no_leader(patient: Patient) -> None:
    await patient.submit()
    await patient.fleet.store.resign("the test", patient.fleet.term)


async def unknown_pool(patient: Patient) -> None:
    await patient.submit(pool="nobody")


async def no_handler(patient: Patient) -> None:
    await patient.submit(task_type="stitch")


# What is wrong -> the first condition, words of its line, a condition that is found besides.
CAUSES: dict[Callable[[Patient], Awaitable[None]], tuple[str, str, str]] = {
    ten_failed_bringups: ("bringups_fail", "No worker comes up in pool default: the last 10 bring-ups failed (AUTH_F",
                          "breaker_open"),
    no_money: ("no_money", "The RunPod account has no money: $0.00", "backlog"),
    budget_spent: ("budget_spent", "The budget does not allow another worker of pool default", "backlog"),
    store_away: ("store_down", "S3 cannot be used", "backlog"),
    sold_out: ("sold_out", "Every offer of pool default is sold out", "backlog"),
    no_leader: ("no_leader", "The orchestrator process is not running", "backlog"),
    unknown_pool: ("pool_unknown", "5 tasks wait in pool nobody, which is not configured", "backlog"),
    no_handler: ("no_handler", "5 tasks of type stitch cannot run: WORKER_HANDLERS has no handler", "backlog"),
}  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.__name__)
async def test_tasks_wait_and_the_true_cause_is_named_first(
    patient: Patient, cause: Callable[[Patient], Awaitable[None]]
) -> None:
    """With exit 1, its evidence, and never with the advice to raise a limit that is not the cause."""
    kind, words, besides = CAUSES[cause]
    await cause(patient)
    ran = await Cli(patient.settings)("health", "--json")
    found = ran.json()["recommendations"]
    assert (ran.code, found[0]["kind"], found[0]["priority"]) == (1, kind, "HIGH"), found
    assert words in found[0]["issue"]
    assert besides in {one["kind"] for one in found}
    assert not [one for one in found if "raise MAX_ACTIVE_GPUS" in one["action"]]


async def test_a_locked_table_is_no_unreachable_database(patient: Patient) -> None:
    """The database can be reached; the fix is to find the holder of the lock."""
    async with await AsyncConnection.connect(patient.settings["DATABASE_URL"]) as holder:
        await holder.execute("lock table tasks in access exclusive mode")
        ran = await Cli(patient.settings)("health")
    assert ran.code == 1
    assert "1. [HIGH] Database: The database answers too late" in ran.out
    assert "see who holds locks" in ran.out


async def test_numbers_are_null_while_their_source_does_not_answer(patient: Patient) -> None:
    """For a program, each key is always there. For a person, an unknown number is not shown."""
    await patient.fleet.worker(upto=State.ACTIVE)
    known = (await Cli(patient.settings)("health", "--json")).json()["numbers"]
    nowhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
    numbers = (await Cli(patient.settings)("health", "--json", **nowhere)).json()["numbers"]
    assert numbers.keys() == known.keys()
    assert {name for name in numbers if numbers[name] is not None} == {"Pods", "Cost per hour"}
    ran = await Cli(patient.settings)("health", **nowhere)
    assert (ran.code, ran.lines_with("Tasks queued"), len(ran.lines_with("Cost per hour"))) == (1, [], 1)


async def test_what_affects_neither_work_nor_money_is_a_warning(patient: Patient) -> None:
    """Failed bring-ups and an empty account, while nothing waits and nothing runs: exit 0."""
    await patient.fleet.worker(upto=State.TERMINATED)
    patient.emulator.core.world.balance_usd = 0
    ran = await Cli(patient.settings)("health")
    assert ran.code == 0, ran.out
    assert ran.out.startswith("✅ HEALTHY, ")
    assert ran.lines_with("[MEDIUM] RunPod: The RunPod account has no money")


async def test_code_that_cannot_be_sent_costs_its_own_part_only(patient: Patient, tmp_path: Path) -> None:
    """The rest of the report is there."""
    (tmp_path / "code").mkdir()
    with (tmp_path / "code" / "model.bin").open("wb") as model:
        model.truncate(60 << 20)
    await patient.fleet.worker(upto=State.ACTIVE)
    ran = await Cli(patient.settings)("health", "--json", WORKER_CODE_DIR=str(tmp_path / "code"))
    assert ran.code == 0, ran.err
    assert ran.json()["numbers"]["Workers"] == {"active": 1}


async def test_a_pod_that_comes_while_health_asks_is_no_orphan(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RunPod's list takes its time. The worker is recorded while it is on its way."""
    recorded = asyncio.Event()

    async def after_the_record(content: bytes, _: float) -> AsyncIterator[bytes]:
        await recorded.wait()
        yield content

    monkeypatch.setattr(replies, "_drip", after_the_record)
    cloud = RunPodCloud(patient.emulator.api_key, base_url=patient.emulator.url)
    identity = (await patient.fleet.store.snapshot()).database_id
    pod = await cloud.create_pod(spec("gpu-1", fleet_id=FLEET, database_id=identity))
    await patient.emulator.control("POST", "/faults", {"kind": "slow_drip", "times": 1})
    asked = asyncio.create_task(Cli(patient.settings)("health", "--json"))
    async with (
        asyncio.timeout(TIMEOUT_S),
        await AsyncConnection.connect(patient.settings["DATABASE_URL"], autocommit=True) as db,
    ):
        while (await (await db.execute(LAST_READ)).fetchone()) is None:
            await asyncio.sleep(0.01)
    await patient.fleet.worker(worker_id="gpu-1")
    await patient.fleet.move("gpu-1", State.SPAWNING, stage=Stage.SSH_AUTH, pod_id=pod.id)
    recorded.set()
    ran = await asked
    assert ran.code == 0, ran.out
    assert "pods_without_rows" not in {one["kind"] for one in ran.json()["recommendations"]}


async def test_the_calls_to_the_database_do_not_grow_with_the_fleet(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One explains all workers; the ledgers of their logs are read by `diagnose` alone."""
    asked: list[str] = []
    call = PostgresDb.call

    async def counted(db: PostgresDb, function: str, /, **args: Any) -> Any:
        asked.append(function)
        return await call(db, function, **args)

    for name, value in patient.settings.items():
        monkeypatch.setenv(name, value)
    for _ in range(3):
        await patient.fleet.worker(upto=State.ACTIVE)
    monkeypatch.setattr(PostgresDb, "call", counted)
    await shown(80, "health")
    assert asked.count("fleet_explain_workers") == 1
    assert not {"fleet_explain", "fleet_log_pieces"} & set(asked)


async def test_a_database_before_its_migration_is_reported_and_breaks_nothing(patient: Patient) -> None:
    """Its snapshot lacks what this version reads: `health` says so, and `explain scaling` is an error with its fix."""
    async with await AsyncConnection.connect(patient.settings["DATABASE_URL"], autocommit=True) as db:
        await db.execute("alter function fleet_observe(text, timestamptz) rename to later_snapshot")
        await db.execute(
            "create function fleet_observe(p_fleet text, p_now timestamptz default null) returns jsonb language sql "
            "as $$ select later_snapshot(p_fleet, p_now) - 'promoted_releases' $$"
        )
    health, scaling = await asyncio.gather(*(Cli(patient.settings)(*line) for line in (
        ("health",), ("explain", "scaling"),
    )))  # fmt: skip
    assert (health.code, "The database's schema is not this version's" in health.out) == (1, True), health.err
    assert scaling.code == 4
    assert scaling.err.splitlines() == [
        "error[E011]: the database's schema is not this version's",
        "why: fleet_observe() of this database answers without 'promoted_releases'",
        "fix: python -m orchestrator migrate",
    ]
