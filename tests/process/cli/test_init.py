"""`init`: against a database, a bucket and a provider that are there, with and without a terminal."""

import asyncio
import os
import pty
import re
import select
import stat
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import psycopg
import pytest

from orchestrator.cli.init_files import write_new
from orchestrator.errors import MIGRATE, Failure
from testbed.runpod.server import Emulator
from testbed.services.postgrest import EmbeddedPostgrest
from testbed.services.supabase_roles import create_roles
from testbed.shared_services import Database
from tests.process.cli.builders import INHERITED, PROGRAM, Cli, Ran

ANSWER_TIMEOUT_S = 60.0
JWT_SECRET = "a-secret-of-the-project-of-forty-characters"
WRONG_SECRET = "the-secret-of-another-project-of-40-chars"
Answer = tuple[str, str | None]  # what the program says, and what the person types, if anything


@pytest.fixture(scope="session")
async def emulator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Emulator]:
    """A provider."""
    async with Emulator(tmp_path_factory.mktemp("init") / "pods", boot_s=(0.1, 0.2)) as emulator:
        yield emulator


@pytest.fixture
def given(postgres: Database, emulator: Emulator, s3_environment: Mapping[str, str]) -> dict[str, str]:
    """The four things that `init` asks for, and where the provider is."""
    provider = {"RUNPOD_API_BASE_URL": emulator.url, "RUNPOD_API_KEY": emulator.api_key}
    return {"DATABASE_URL": postgres.url, **s3_environment, **provider}


@pytest.fixture
async def database(postgres: Database) -> str:
    """The URL of a Supabase project's database without our tables."""
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as sql:
        await sql.execute("drop database if exists init_project with (force)")
        await sql.execute("create database init_project")
    url = postgres.server.url_of("init_project")
    await create_roles(url)
    return url


@pytest.fixture
async def project(database: str) -> AsyncIterator[EmbeddedPostgrest]:
    """Supabase's API to it."""
    async with EmbeddedPostgrest(database, JWT_SECRET) as project:
        yield project


async def program(folder: Path, *arguments: str, **environment: str) -> Ran:
    """`python -m orchestrator …` in a directory."""
    return await Cli(environment, folder)(*arguments)


async def test_without_a_terminal_it_takes_all_answers_from_the_environment(
    tmp_path: Path, given: dict[str, str]
) -> None:
    """It writes a private .env with which every command works; it replaces nothing without --force.

    Quotes and spaces around an answer that was pasted are not written.
    """
    bucket = given["S3_BUCKET"]
    given |= {"S3_BUCKET": f"\u00a0{bucket}\u00a0", "DATABASE_URL": f'"{given["DATABASE_URL"]}"'}
    made = await program(tmp_path, "init", "--no-input", "--worker-api-url", "https://pods.example.com", **given)
    assert made.code == 0, made.err
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    text = (tmp_path / ".env").read_text()
    assert re.search(r"^WORKER_JWT_SECRET=[0-9a-f]{64}$", text, re.MULTILINE)
    assert re.search(rf"^S3_BUCKET={bucket}$", text, re.MULTILINE)
    assert re.search(r"^DATABASE_URL=postgresql://", text, re.MULTILINE)
    assert re.search(r"^METRICS_TOKEN=[0-9a-f]{64}$", text, re.MULTILINE)
    assert "WORKER_API_URL=https://pods.example.com\n" in text
    secrets = [given["AWS_SECRET_ACCESS_KEY"], given["RUNPOD_API_KEY"], "PRIVATE KEY-----"]
    assert not [one for one in secrets if one in made.out + made.err]
    checked = await program(tmp_path, "doctor", "settings", "database", "runpod", "ssh", "s3")
    assert checked.code == 0, checked.out
    assert re.search(r"^ok   ssh +3 checks: ssh-ed25519 ", checked.out, re.MULTILINE)
    again = await program(tmp_path, "init", "--no-input", **given)
    assert again.code == 2
    assert ".env exists" in again.err
    assert (tmp_path / ".env").read_text() == text
    replaced = await program(tmp_path, "init", "--no-input", "--force")  # its own .env answers
    assert replaced.code == 0, replaced.err
    assert (tmp_path / ".env").read_text() == text


async def test_it_adds_the_credentials_for_a_private_image_once(tmp_path: Path, given: dict[str, str]) -> None:
    """Under a name, which .env has; the password goes to RunPod alone. Without a login, an unknown name is refused."""
    private = {"RUNPOD_WORKER_IMAGE": "ghcr.io/me/mine:1", "RUNPOD_REGISTRY_AUTH": "mine-at-ghcr"}
    words = ("init", "--no-input", "--force", "--worker-api-url", "https://pods.example.com")
    refused = await program(tmp_path, *words, **given, **private)
    assert refused.code == 4
    assert "0 registry credentials are named 'mine-at-ghcr'" in refused.err
    assert not (tmp_path / ".env").exists()
    login = {"REGISTRY_USERNAME": "me", "REGISTRY_PASSWORD": "ghp_of-this-test-0123456789"}
    for _ in range(2):  # the second time, they are there
        made = await program(tmp_path, *words, **given, **private, **login)
        assert made.code == 0, made.err
        text = (tmp_path / ".env").read_text()
        assert "RUNPOD_WORKER_IMAGE=ghcr.io/me/mine:1\nRUNPOD_REGISTRY_AUTH=mine-at-ghcr\n" in text
        assert login["REGISTRY_PASSWORD"] not in text + made.out + made.err
    checked = await program(tmp_path, "doctor", "runpod", "-v")
    assert "registry credentials mine-at-ghcr" in checked.out


@pytest.mark.parametrize("folder", ["handlers", "mine"])
async def test_handlers_are_found_in_the_directory_that_is_set(
    tmp_path: Path, given: dict[str, str], folder: str
) -> None:
    """WORKER_CODE_DIR alone starts no handler."""
    (tmp_path / folder).mkdir()
    assert (await program(tmp_path, "handlers", "new", "hello", WORKER_CODE_DIR=folder)).code == 0
    url = "https://pods.example.com"
    made = await program(tmp_path, "init", "--no-input", "--worker-api-url", url, **given, WORKER_CODE_DIR=folder)
    assert made.code == 0, made.err
    assert f"WORKER_CODE_DIR={folder}\nWORKER_HANDLERS=hello=hello:run\n" in (tmp_path / ".env").read_text()
    assert ".env names your handlers: hello=hello:run" in made.out + made.err


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DATABASE_URL", "postgresql://127.0.0.1:1/none", "no connection to it"),
        pytest.param("RUNPOD_API_KEY", "rpa_wrong", "RunPod refuses the API key", marks=pytest.mark.full),
        pytest.param("S3_BUCKET", "no-such-bucket", "no-such-bucket", marks=pytest.mark.full),
        ("AWS_ACCESS_KEY_ID", "", "AWS_ACCESS_KEY_ID is missing"),
    ],
)
async def test_what_fails_its_check_is_not_written(
    tmp_path: Path, given: dict[str, str], name: str, value: str, said: str
) -> None:
    """Exit 4 with what, why and fix."""
    ran = await program(tmp_path, "init", "--no-input", **(given | {name: value}))
    assert ran.code == 4, ran.err
    assert said in ran.err
    assert list(tmp_path.iterdir()) == []


async def test_without_a_terminal_all_missing_values_are_named(tmp_path: Path, given: dict[str, str]) -> None:
    """At once, each with its flag; nothing is checked before."""
    for names in (("DATABASE_URL", "RUNPOD_API_KEY"), ("S3_BUCKET", "AWS_SECRET_ACCESS_KEY")):
        ran = await program(tmp_path, "init", "--no-input", **(given | dict.fromkeys(names, "")))
        assert (ran.code, ran.out) == (4, "")
        assert re.findall(r"^error\[E001\]: (\w+) is missing$", ran.err, re.MULTILINE) == list(names)
        assert f"fix: set {names[1]} in the environment, or give --{names[1].lower().replace('_', '-')}" in ran.err
        assert "checks" not in ran.err


async def test_a_folder_in_the_place_of_a_file_is_named_before_the_questions(tmp_path: Path) -> None:
    """With --force, too: it would be an error at the end."""
    (tmp_path / ".env").mkdir()
    ran = await program(tmp_path, "init", "--no-input", "--force")
    assert ran.code == 2
    assert ran.err.endswith("why: .env exists and is not a file\nfix: rename or remove .env\n")


def test_a_file_that_cannot_be_written_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    """With the cause that the operating system gave."""
    with pytest.raises(Failure, match=r"\.env cannot be written: No such file or directory"):
        write_new(tmp_path / "gone" / ".env", "", mode=0o600, force=False)


async def test_the_environment_has_precedence_over_the_file(tmp_path: Path, given: dict[str, str]) -> None:
    """A value of the file counts only if the environment has none; a file that cannot be used is named."""
    (tmp_path / ".env").write_text("DATABASE_URL='postgresql://127.0.0.1:1/none'\nLOG_LEVEL=chatty # no level\n")
    refused = await program(tmp_path, "list", LOG_LEVEL="INFO")
    assert "port 1 failed" in refused.err
    works = await program(tmp_path, "list", DATABASE_URL=given["DATABASE_URL"], LOG_LEVEL="INFO")
    assert works.code == 0, works.err
    (tmp_path / ".env").write_bytes(b"\xff\xfe")
    unusable = await program(tmp_path, "list", DATABASE_URL=given["DATABASE_URL"])
    assert unusable.code == 4
    assert ".env is not UTF-8 text" in unusable.err


async def test_with_supabase_it_checks_the_keys_and_creates_the_tables(
    tmp_path: Path, given: dict[str, str], project: EmbeddedPostgrest, database: str
) -> None:
    """A JWT secret of another project is asked again. The URL of the database serves `migrate` and is not kept."""
    keys = (("Its secret key", project.secret_key), ("Its publishable key", project.publishable_key))
    answers: list[Answer] = [
        ("Database: a URL, or one of", "supabase"),
        ("Supabase project", project.project_url),
        *keys,
        ("Its JWT secret", WRONG_SECRET),
        ("SUPABASE_URL refuses worker tokens", None),
        ("Supabase project", project.project_url),
        *keys,
        ("Its JWT secret", JWT_SECRET),
        ("RunPod API key", given["RUNPOD_API_KEY"]),
        ("GPU types in order of preference", ""),
        ("Name of the bucket", given["S3_BUCKET"]),
        ("URL of the S3 service", given["S3_ENDPOINT_URL"]),
        ("Region of the bucket", ""),
        ("Access key id", given["AWS_ACCESS_KEY_ID"]),
        ("Secret access key", given["AWS_SECRET_ACCESS_KEY"]),
        ("Create the tables now", "y"),
        ("URL of the session pooler", "postgresql://127.0.0.1:1/none"),
        ("error[E010]", None),
        ("URL of the session pooler", database),
        ("The schema is now", None),
        ("Check every part now", "n"),
    ]
    environment = {"RUNPOD_API_BASE_URL": given["RUNPOD_API_BASE_URL"], "TERM": "xterm"}
    code, shown = await asyncio.to_thread(_typed, tmp_path, environment, answers)
    assert code == 0, shown
    text = (tmp_path / ".env").read_text()
    assert f"SUPABASE_URL={project.project_url}\n" in text
    assert "DATABASE_URL" not in text
    assert not [one for one in (project.secret_key, JWT_SECRET, database) if one in shown]
    checked = await program(tmp_path, "doctor", "database", "gateway")
    assert checked.code == 0, checked.out


async def test_with_supabase_and_without_a_terminal_it_names_the_way_to_the_tables(
    tmp_path: Path, given: dict[str, str], project: EmbeddedPostgrest
) -> None:
    """Supabase's API cannot create them. `doctor` and other commands name the same way."""
    flags = ("--supabase-url", project.project_url, "--supabase-publishable-key", project.publishable_key)
    secrets = {"SUPABASE_SERVICE_ROLE_KEY": project.secret_key, "WORKER_JWT_SECRET": JWT_SECRET}
    environment = {**{name: value for name, value in given.items() if name != "DATABASE_URL"}, **secrets}
    wrong = await program(tmp_path, "init", "--no-input", *flags, **(environment | {"WORKER_JWT_SECRET": WRONG_SECRET}))
    assert (wrong.code, "error[E001]: gateway: SUPABASE_URL refuses worker tokens" in wrong.err) == (4, True), wrong.err
    assert list(tmp_path.iterdir()) == []
    made = await program(tmp_path, "init", "--no-input", *flags, **environment)
    assert made.code == 0, made.err
    assert "\nNext: DATABASE_URL=<session pooler" in made.err
    checked = await program(tmp_path, "doctor", "database", "gateway")
    assert re.findall(r"fix: (.*)", checked.out) == [MIGRATE["SUPABASE_URL"]]
    assert (await program(tmp_path, "list")).err.endswith(f"fix: {MIGRATE['SUPABASE_URL']}\n")


async def test_on_a_terminal_it_asks_and_checks_each_answer(tmp_path: Path, given: dict[str, str]) -> None:
    """A URL answers the first question. A wrong answer is asked again. Lines to paste are not wrapped."""
    assert (await program(tmp_path, "handlers", "new", "say-hello")).code == 0
    answers: list[Answer] = [
        ("Database: a URL, or one of", "' postgresql://127.0.0.1:1/none'"),
        ("Database (postgresql://", given["DATABASE_URL"]),
        ("RunPod API key", given["RUNPOD_API_KEY"]),
        ("GPU types in order of preference", "99"),
        ("choose from 1 to ", None),
        ("GPU types in order of preference", "2,1"),
        ("Name of the bucket", given["S3_BUCKET"]),
        ("URL of the S3 service", given["S3_ENDPOINT_URL"]),
        ("Region of the bucket", ""),
        ("Access key id", given["AWS_ACCESS_KEY_ID"]),
        ("Secret access key", given["AWS_SECRET_ACCESS_KEY"]),
        ("Public URL", "pods.example.com"),
        ("must begin with http:// or https://", None),
        ("Public URL", "https://pods.example.com"),
        ("Create the tables now", "n"),
        ("Check every part now", "n"),
    ]
    environment = {"RUNPOD_API_BASE_URL": given["RUNPOD_API_BASE_URL"], "TERM": "xterm"}
    code, shown = await asyncio.to_thread(_typed, tmp_path, environment, answers)
    assert code == 0, shown
    assert "no connection to it" in shown
    assert re.search(r"RTX 4090 +\$0\.\d\d +(HIGH|MEDIUM|LOW|NONE)", shown), shown
    assert given["AWS_SECRET_ACCESS_KEY"] not in shown
    text = (tmp_path / ".env").read_text()
    assert re.search(r"^RUNPOD_GPU_TYPE='NVIDIA [^,]+,NVIDIA [^,]+'$", text, re.MULTILINE), text
    assert "WORKER_CODE_DIR=handlers\nWORKER_HANDLERS=say-hello=say_hello:run\n" in text
    pasted = 'railway variables --set "RUNPOD_SSH_PRIVATE_KEY=$RUNPOD_SSH_PRIVATE_KEY" --skip-deploys'
    assert pasted in shown.replace("\r", "").splitlines()
    assert "Next: python -m orchestrator run starts the orchestrator" in shown


def _typed(folder: Path, environment: Mapping[str, str], answers: list[Answer]) -> tuple[int, str]:
    """Run `init` on a terminal and answer its questions in order; its exit code and what the terminal showed."""
    env = {**{name: os.environ[name] for name in INHERITED if name in os.environ}, **environment}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(sys.executable, [*PROGRAM, "init"], env)  # noqa: S606  the child of a fork
    shown, seen, read = "", 0, _reader(terminal)
    for question, answer in answers:
        while question not in shown[seen:]:
            more = read()
            assert more, f"never asked: {question}\n{shown}"
            shown += more
        seen = shown.index(question, seen) + len(question)
        if answer is not None:
            os.write(terminal, answer.encode() + b"\n")
    while more := read():
        shown += more
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


def _reader(terminal: int) -> Callable[[], str]:
    def read() -> str:
        ready, _, _ = select.select([terminal], [], [], ANSWER_TIMEOUT_S)
        try:
            return os.read(terminal, 1 << 16).decode(errors="replace") if ready else ""
        except OSError:  # Linux: the program has ended
            return ""

    return read
