"""`doctor`: every part asked, real faults named, nothing changed but an object of its own."""

import asyncio
import io
import re
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import asyncssh
import boto3
import psycopg
import pytest
from dotenv import dotenv_values

from orchestrator.adapters.postgres import PostgresDb
from orchestrator.adapters.runpod import RunPodCloud
from orchestrator.adapters.s3 import S3Blobs
from orchestrator.config.pools import PoolEntry
from orchestrator.diagnostics.doctor import SECTIONS, diagnose
from orchestrator.diagnostics.doctor.findings import Section, examine
from orchestrator.observability.health import Health
from orchestrator.web.wakeups import WakeupHub
from orchestrator.worker_tokens import verifier
from testbed.runpod.server import Emulator
from testbed.shared_services import Database
from tests.db.conformance.test_cloud import spec
from tests.process.cli.builders import Cli, Fleet, Ran
from tests.process.web.builders import serving
from tests.unit.diagnostics.reviews import REVIEW

KEY = asyncssh.generate_private_key("ssh-ed25519")
PEM, PUB = KEY.export_private_key().decode(), KEY.export_public_key().decode().strip()
SECRET = "0123456789abcdef0123456789abcdef-signs"

E2E = Path(__file__).parents[1] / "e2e"


@pytest.fixture(scope="session")
async def emulator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Emulator]:
    """A provider."""
    async with Emulator(tmp_path_factory.mktemp("doctor") / "pods", boot_s=(0.1, 0.2)) as emulator:
        yield emulator


@pytest.fixture
async def gateway(postgres: Database) -> AsyncIterator[str]:
    """The URL of a gateway for pods, which knows tokens by SECRET."""
    db = await PostgresDb.open(postgres.url, pool_size=2)
    bucket = S3Blobs("http://127.0.0.1:1", "no", "no", "no", "", "us-east-1")
    health = Health(started_at_s=time.monotonic())
    async with serving(db, bucket, WakeupHub(), health, check=verifier(SECRET)) as url:
        yield url
    await db.close()


@pytest.fixture
def healthy(cli: Cli, emulator: Emulator, s3_environment: Mapping[str, str], gateway: str) -> Cli:
    """A command line whose every part is there."""
    provider = {"RUNPOD_API_BASE_URL": emulator.url, "RUNPOD_API_KEY": emulator.api_key}
    keys = {"RUNPOD_SSH_PRIVATE_KEY": PEM, "RUNPOD_SSH_PUBLIC_KEY": PUB}
    gateway_settings = {"WORKER_JWT_SECRET": SECRET, "WORKER_API_URL": gateway}
    work = {"WORKER_HANDLERS": "work=cmd:true", "RUNPOD_WORKER_IMAGE": f"runpod/pytorch@sha256:{'0' * 64}"}
    return Cli({**cli.environment, **s3_environment, **provider, **keys, **gateway_settings, **work})


def failed(ran: Ran) -> dict[str, str]:
    """What failed: section -> its first failure's words."""
    found = [finding for finding in ran.json()["findings"] if finding["status"] == "fail"]
    return {one["section"]: f"{one['what']}: {one['why']} fix: {one['fix']}" for one in reversed(found)}


async def test_a_healthy_deployment_is_reported_as_healthy(
    healthy: Cli, fleet: Fleet, s3_environment: Mapping[str, str]
) -> None:
    """Each part in one line, and counts. With -v each check. The bucket is as it was before."""
    ran = await healthy("doctor")
    assert ran.code == 0, ran.out + ran.err
    shown = re.findall(r"^ok   (\w+) +\d checks?: \S", ran.out, re.MULTILINE)
    assert shown == list(SECTIONS)
    assert len(ran.out.splitlines()) == len(SECTIONS) + 2
    verbose = await healthy("doctor", "-v")
    assert verbose.out.count("  ok   ") == 24
    assert re.search(r"^24 ok, 0 note, 0 warn, 0 fail, 0 skip$", ran.out, re.MULTILINE), ran.out
    e = s3_environment
    client = boto3.client(
        "s3", endpoint_url=e["S3_ENDPOINT_URL"], aws_access_key_id=e["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=e["AWS_SECRET_ACCESS_KEY"], region_name="us-east-1",
    )  # fmt: skip
    listed = await asyncio.to_thread(client.list_objects_v2, Bucket=e["S3_BUCKET"], Prefix="tests/doctor/")
    assert listed["KeyCount"] == 0


async def test_a_balance_that_runpod_does_not_show_is_no_fault(healthy: Cli, emulator: Emulator) -> None:
    """Its old API ends; what checks money otherwise is named."""
    fault = emulator.core.faults.inject({"kind": "not_found", "operation": "graphql"})
    try:
        ran = await healthy("doctor", "runpod", "--json")
    finally:
        emulator.core.faults.faults.remove(fault)
    assert ran.code == 0, ran.out + ran.err
    (skipped,) = [one for one in ran.json()["findings"] if one["status"] == "skip"]
    assert (skipped["what"], "(404)" in skipped["why"], "budgets" in skipped["why"]) == ("the balance", True, True)


async def test_an_image_with_a_tag_is_a_note_of_one_line(healthy: Cli) -> None:
    """It is no fault. With -v the note has its reason and its fix."""
    tagged = {"RUNPOD_WORKER_IMAGE": "runpod/pytorch:2.4.0"}
    ran = await healthy("doctor", "settings", **tagged)
    assert ran.code == 0
    note, _, counted = ran.out.splitlines()
    tag = "its image is named by a tag; name it by digest: image@sha256:…"
    assert note == f"note settings 3 checks: pool default: {tag}"
    assert counted == "2 ok, 1 note, 0 warn, 0 fail, 0 skip"
    assert "may name another image tomorrow" in (await healthy("doctor", "settings", "-v", **tagged)).out


async def test_what_another_rule_of_scaling_would_have_cost_is_a_note(healthy: Cli, fleet: Fleet) -> None:
    """Once the leader has reviewed a week, and only if the other rule would have been better."""
    await fleet.store.economics.record_review(fleet.term, "default", REVIEW)
    ran = await healthy("doctor", "leader")
    assert ran.code == 0
    words = "In the last week, learned would have cost $41.00 instead of $63.00, p95 wait 38s instead of 1m11s; "
    assert f"note leader   2 checks: {words}" in ran.out
    assert "what-if" in ran.out
    candidates = {"fixed": REVIEW["candidates"]["learned"], "learned": REVIEW["candidates"]["fixed"]}
    await fleet.store.economics.record_review(fleet.term, "default", REVIEW | {"candidates": candidates})
    ran = await healthy("doctor", "leader", "-v")
    assert "ok   In the last week, learned would have cost $63.00 instead of $41.00" in ran.out


async def test_every_fault_is_found_at_once(healthy: Cli, fleet: Fleet) -> None:
    """A wrong key, bucket key, pair, secret and setting do not hide one another; exit 1, and no secret is shown."""
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    wrong = {
        "RUNPOD_API_KEY": "rpa_wrongwrongwrongwrong",
        "AWS_SECRET_ACCESS_KEY": "wrong-secret-of-no-use",
        "RUNPOD_SSH_PUBLIC_KEY": other,
        "WORKER_JWT_SECRET": "tooshort",
        "MAX_ACTIVE_GPUS": "many",
        "RUNPOD_GPU_TIPE": "x",
        "DAILY_BUDGET": "3",
    }
    ran = await healthy("doctor", "--json", **wrong)
    said = failed(ran)
    assert ran.code == 1
    assert set(said) == {"settings", "runpod", "ssh", "s3", "gateway"}
    assert "RUNPOD_GPU_TIPE" in said["settings"]
    assert "refuses the API key" in said["runpod"]
    assert "do not belong together" in said["ssh"]
    assert "AWS_ACCESS_KEY_ID" in said["s3"]
    assert "shorter than 32 bytes" in said["gateway"]
    assert any("MAX_ACTIVE_GPUS" in finding["what"] for finding in ran.json()["findings"])
    warned = [finding["fix"] for finding in ran.json()["findings"] if finding["status"] == "warn"]
    assert any("DAILY_BUDGET_USD" in fix for fix in warned)
    assert ran.json()["counts"]["ok"] >= 4  # the database, the leader, each half of the pair, a clock
    assert "rpa_wrong" not in ran.out + ran.err


@pytest.mark.parametrize(
    ("changes", "section", "says"),
    [
        ({"DATABASE_URL": "postgresql://postgres@127.0.0.1:1/postgres"}, "database", "no connection to it"),
        ({"DATABASE_URL": None}, "database", "no database is given"),
        ({"RUNPOD_API_BASE_URL": "http://127.0.0.1:1"}, "runpod", "no list of pods"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong-secret-of-no-use"}, "s3", "does not do what is needed"),
        ({"S3_ENDPOINT_URL": "http://127.0.0.1:1"}, "s3", "does not do what is needed"),
        ({"RUNPOD_SSH_PRIVATE_KEY": PEM[:120]}, "ssh", "cut off"),
        ({"RUNPOD_SSH_PRIVATE_KEY": None}, "ssh", "RUNPOD_SSH_PRIVATE_KEY is missing"),
        ({"RUNPOD_SSH_PUBLIC_KEY": PEM}, "ssh", "must never be here"),
        ({"RUNPOD_GPU_TYPE": "NVIDIA RTX 9999"}, "runpod", "no such GPU type"),
        ({"RUNPOD_STORAGE_NAME": "nosuch"}, "runpod", "0 network volumes are named 'nosuch'"),
        ({"WORKER_HANDLERS": "work=nosuch:fn", "WORKER_CODE_DIR": str(E2E / "handlers")}, "settings", "nosuch.py"),
        ({"RUNPOD_SSH_PRIVATE_KEY": PEM[:120]}, "settings", "cut off"),
        ({"ADMIN_TOKEN": "too-short"}, "settings", "shorter than 32 bytes"),
        ({"S3_ENDPOINT_URL": "http://minio:9000"}, "settings", "not encrypted"),
        ({"WORKER_JWT_SIGNING_KEY": "{}"}, "settings", "not a private key"),
        ({"WORKER_ENV": "NO_SUCH_VARIABLE"}, "settings", "NO_SUCH_VARIABLE is missing"),
        ({"RUNPOD_REGISTRY_AUTH": "absent"}, "runpod", "0 registry credentials are named 'absent'"),
        ({"WORKER_CODE_DIR": str(Path(__file__).parent)}, "code", "contains the value of a secret"),
        ({"WORKER_API_URL": None}, "gateway", "WORKER_API_URL is missing"),
    ],
)
async def test_a_fault_is_named_with_its_fix(
    healthy: Cli, changes: Mapping[str, str | None], section: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One real fault, one failure in its own section, with something to do about it."""
    for name, value in {**healthy.environment, **changes}.items():
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, raising=False)
    found = [finding for finding in await diagnose([section]) if finding.status == "fail"]
    assert {finding.section for finding in found} == {section}
    assert re.search(says, " ".join(f"{finding.what} {finding.why}" for finding in found))
    assert all(finding.fix for finding in found)
    keys = {key for finding in found for key in re.findall(r"(\w+) in POOLS_FILE", finding.fix)}
    assert keys <= PoolEntry.model_fields.keys()


@pytest.mark.parametrize(
    ("ahead_s", "status", "says"), [(10, "warn", r"([5-9]|1\d) s behind"), (-600, "fail", r"(59[5-9]|60\d) s ahead")]
)
async def test_a_provider_whose_clock_differs_is_reported(
    healthy: Cli, emulator: Emulator, ahead_s: float, status: str, says: str
) -> None:
    """By how much, and against whom: the others agree."""
    await emulator.control("POST", "/settings", {"clock_s": ahead_s})
    try:
        ran = await healthy("doctor", "clock", "--json")
    finally:
        await emulator.control("POST", "/settings", {"clock_s": 0})
    odd = [finding for finding in ran.json()["findings"] if finding["status"] != "ok"]
    assert [(one["what"], one["status"]) for one in odd] == [("differs from RunPod", status)]
    assert re.search(says, odd[0]["why"])


async def test_a_missing_bucket_is_reported(healthy: Cli) -> None:
    """The key opens, and nothing can be stored: no bucket is made of a misspelt name."""
    ran = await healthy("doctor", "s3", "--json", S3_BUCKET="nobodys-bucket")
    assert "does not exist" in failed(ran)["s3"]
    assert "S3_BUCKET" in failed(ran)["s3"]


@pytest.mark.parametrize(
    ("changes", "status", "says", "fix"),
    [
        ({}, "ok", "OR005", ""),
        ({"WORKER_JWT_SECRET": "another-secret-of-forty-characters-or-so"}, "fail", "PGRST301", "WORKER_JWT_SECRET"),
        ({"WORKER_API_URL": "http://127.0.0.1:1"}, "warn", "ConnectError", "python -m orchestrator run"),
    ],
)
async def test_a_token_is_tried_at_our_gateway(
    healthy: Cli, changes: Mapping[str, str], status: str, says: str, fix: str
) -> None:
    """As a pod would; only the database's own refusal of a worker that does not exist is good."""
    ran = await healthy("doctor", "gateway", "--json", **changes)
    found = ran.json()["findings"][-1]
    assert (found["status"], ran.code) == (status, 1 if status == "fail" else 0), found
    assert says in found["why"]
    assert fix in found["fix"]
    assert all(value not in ran.out for value in (SECRET, *changes.values()) if not value.startswith("http"))


async def test_what_answers_something_else_at_the_gateways_address_is_no_gateway(
    healthy: Cli, emulator: Emulator
) -> None:
    """Not yet at least: a platform answers for a service that is not up."""
    ran = await healthy("doctor", "gateway", "--json", WORKER_API_URL=emulator.url)
    found = ran.json()["findings"][-1]
    assert (found["status"], ran.code) == ("warn", 0), found
    assert "HTTP 40" in found["why"]


async def test_an_old_schema_and_an_empty_database_are_reported(healthy: Cli, postgres: Database) -> None:
    """The fix is the command. A deployment whose last migration is missing gets it too."""
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
        await sql.execute("create database doctor_empty")
    ran = await healthy("doctor", "database", "--json", DATABASE_URL=postgres.server.url_of("doctor_empty"))
    assert "python -m orchestrator migrate" in failed(ran)["database"]
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
        await sql.execute("create table gone as select * from schema_migrations order by version desc limit 1")
        await sql.execute("delete from schema_migrations where version = (select max(version) from schema_migrations)")
        try:
            ran = await healthy("doctor", "database", "--json")
        finally:
            await sql.execute("insert into schema_migrations select * from gone")
            await sql.execute("drop table gone")
    assert "older than this program" in failed(ran)["database"]


async def test_a_role_without_rights_and_a_changed_table_are_reported(healthy: Cli, postgres: Database) -> None:
    """With the right that is missing and how to grant it, and with the column and how to repair it."""
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
        await sql.execute("create role onlooker login; grant select on all tables in schema public to onlooker")
        url = postgres.url.replace("postgres@", "onlooker@")
        try:
            ran = await healthy("doctor", "database", "--json", DATABASE_URL=url)
        finally:
            await sql.execute("drop owned by onlooker; drop role onlooker")
        said = failed(ran)["database"]
        assert "the role onlooker has no EXECUTE on" in said
        assert "grant service_role, gpu_worker to onlooker" in said
        assert "schema is" not in said
        await sql.execute("alter table tasks rename progress to done")
        try:
            ran = await healthy("doctor", "database", "--json")
        finally:
            await sql.execute("alter table tasks rename done to progress")
    assert failed(ran)["database"].startswith("the column tasks.progress is missing")


async def test_a_pod_without_a_row_is_reported_with_its_cost(healthy: Cli, emulator: Emulator, fleet_id: str) -> None:
    """A leak is somebody's money."""
    cloud = RunPodCloud(emulator.api_key, base_url=emulator.url)
    pod = await cloud.create_pod(spec(fleet_id=fleet_id))
    try:
        ran = await healthy("doctor", "pods", "--json")
        assert pod.id in failed(ran)["pods"]
        assert "$0." in failed(ran)["pods"]
        assert await cloud.list_pods()
    finally:
        await cloud.delete_pod(pod.id)


async def test_a_mangled_pair_is_a_warning_and_is_repaired(healthy: Cli) -> None:
    """`--repair` prints both halves for pasting, which then pass without a word."""
    mangled = {"RUNPOD_SSH_PRIVATE_KEY": PEM.replace("\n", "\r\n"), "RUNPOD_SSH_PUBLIC_KEY": f"\ufeff{PUB}"}
    ran = await healthy("doctor", "ssh", **mangled)
    assert ran.code == 0
    assert "CR LF" in ran.out
    assert "a byte order mark" in ran.out
    assert PEM.splitlines()[1] not in ran.out + ran.err
    ran = await healthy("doctor", "ssh", "--repair", **mangled)
    assert (ran.code, PEM.replace("\n", "\\n") in ran.out) == (0, True)
    assert "nowhere else" in ran.err
    assert PEM.splitlines()[1] not in ran.err
    ran_out = ran.out
    pasted = dict(re.findall(r"^(RUNPOD_\w+)=(.*)$", ran.out, re.MULTILINE))
    for again in (
        pasted,
        {name: value.strip("\"'") for name, value in pasted.items()},
        {"RUNPOD_SSH_PRIVATE_KEY": PEM},
        dict(dotenv_values(stream=io.StringIO(ran.out))),
    ):
        ran = await healthy("doctor", "ssh", "--json", **again)
        assert {finding["status"] for finding in ran.json()["findings"]} == {"ok"}, ran.out
    lines = {name: f"{name}={value}" for name, value in pasted.items()}  # a whole line in the field for a value
    assert (await healthy("doctor", "ssh", "--repair", **lines)).out == ran_out
    ran = await healthy("doctor", "ssh", "--repair", "--json", **mangled)
    assert ran.json()["private_key"] == PEM


async def test_repair_derives_the_public_half_and_refuses_what_is_lost(healthy: Cli) -> None:
    """The private half holds the other; nothing brings back a private half."""
    ran = await healthy("doctor", "ssh", "--repair", RUNPOD_SSH_PUBLIC_KEY="ssh-ed25519 AAAAgone")
    assert PUB.split()[1] in ran.out
    ran = await healthy("doctor", "ssh", "--repair", RUNPOD_SSH_PRIVATE_KEY=PEM[:150])
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith("error[E001]")


async def test_without_any_environment_each_missing_value_is_named_once() -> None:
    """A section that needs what another one has already named is skipped."""
    nowhere = {"RUNPOD_API_BASE_URL": "http://127.0.0.1:1", "S3_ENDPOINT_URL": "http://127.0.0.1:1"}
    ran = await Cli(nowhere)("doctor", "--json")
    missing = [finding["what"] for finding in ran.json()["findings"] if finding["status"] == "fail"]
    assert sorted(missing) == sorted(
        [
            "no database is given", "RUNPOD_API_KEY is missing", "RUNPOD_SSH_PRIVATE_KEY is missing",
            "RUNPOD_SSH_PUBLIC_KEY is missing", "S3_BUCKET is missing", "AWS_ACCESS_KEY_ID is missing",
            "AWS_SECRET_ACCESS_KEY is missing", "WORKER_JWT_SECRET is missing", "WORKER_API_URL is missing",
        ]
    )  # fmt: skip
    shown = (await Cli(nowhere)("doctor")).out.splitlines()
    assert [line for line in shown if line.startswith("skip leader   who leads: no database is given")]
    assert shown[-1] == "python -m orchestrator init asks for what is missing, checks it and writes .env."


async def test_a_section_that_does_not_exist_is_refused(healthy: Cli) -> None:
    """With the list of them."""
    ran = await healthy("doctor", "databse")
    assert ran.code == 2
    assert "sections are settings, code, database" in ran.err


async def test_the_answer_is_readable_without_colour_in_80_columns(healthy: Cli) -> None:
    """A pipe gets no escape codes; words show the result."""
    ran = await healthy("doctor", "ssh", "clock", "-v", COLUMNS="80", NO_COLOR="1")
    assert "\x1b" not in ran.out
    assert re.search(r"^ {2}ok {3}they belong together$", ran.out, re.MULTILINE)


async def test_one_check_that_hangs_or_breaks_does_not_stop_the_others() -> None:
    """Each has its own deadline; what one raises is a finding of its section."""

    async def hangs(_: Section) -> None:
        await asyncio.Event().wait()

    async def breaks(_: Section) -> None:
        raise KeyError("x")

    async def works(section: Section) -> None:
        section.ok("fine")

    async with asyncio.timeout(60):
        found = await examine({"ssh": hangs, "s3": breaks, "clock": works}, deadline_s=0.1)
    assert [(one.section, one.status) for one in found] == [("ssh", "fail"), ("s3", "fail"), ("clock", "ok")]


def test_every_section_is_explained() -> None:
    """The page that operators read has each, and shows real output."""
    page = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()
    assert all(f"`{name}`" in page for name in SECTIONS)
