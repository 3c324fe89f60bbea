"""The environment: everything that is wrong with it at once, each with what, why and fix, and no secret shown."""

import os
import traceback

import asyncssh
import pytest

from orchestrator.config.environment import load, usable
from orchestrator.config.errors import SettingsError
from orchestrator.config.validation import MISSING, lacks, require
from orchestrator.observability.redaction import Redactor, redact

KEY = asyncssh.generate_private_key("ssh-ed25519")
PEM, PUB = KEY.export_private_key().decode(), KEY.export_public_key().decode().strip()
SECRET = "canary-secret-0123456789"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("RUNPOD_", "WORKER_", "AWS_", "S3_", "SUPABASE_", "DATABASE_")):
            monkeypatch.delenv(name)


def test_all_errors_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Misspelt, unparsable, out of range, contradictory: four kinds, one answer; what can be used still is."""
    wrong = {
        "MAX_ACTIVE_GPU": "3",
        "TASKS_PER_GPU_THRESHOLD": "none",
        "MAX_WORKER_FAILURE_RATE": "80",
        "S3_ENDPOINT_URL": "s3.example",
        "WORKER_START_COMMAND": "./mine",
        "WORKER_HANDLERS": "a=b:c",
        "DEADMAN_TIMEOUT_SEC": "30",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load()
    said = [problem.what for problem in caught.value.problems]
    for name in ("MAX_ACTIVE_GPU ", "TASKS_PER_GPU", "MAX_WORKER_FAILURE", "S3_ENDPOINT", "two kinds", "DEADMAN"):
        assert sum(name in what for what in said) == 1, (name, said)
    assert all(why and fix for _, why, fix in caught.value.problems)
    settings, problems = usable()
    assert (settings.tasks_per_gpu_threshold, settings.aws_region) == (3, "eu-west-1")
    assert len(problems) == len(caught.value.problems)


@pytest.mark.parametrize("nothing", ["\r", " ", ",", " , "])
def test_a_list_of_gpu_types_that_names_none_is_refused(monkeypatch: pytest.MonkeyPatch, nothing: str) -> None:
    """A pool without offers would wait for capacity for ever."""
    monkeypatch.setenv("RUNPOD_GPU_TYPE", nothing)
    with pytest.raises(SettingsError, match="names no GPU type"):
        load()


@pytest.mark.parametrize("name", ["nonsense", "mysql://user@host/db", "://", "host"])
def test_an_invalid_database_url_is_a_setting_to_correct(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Not a database that does not answer. libpq's own form is taken too."""
    monkeypatch.setenv("DATABASE_URL", name)
    with pytest.raises(SettingsError, match="DATABASE_URL cannot be used"):
        load()
    monkeypatch.setenv("DATABASE_URL", "host=db dbname=x")
    load()


PASSWORD = "hunter2/hunter2 it's"
ENCODED = "hunter2%2Fhunter2%20it%27s"


@pytest.mark.parametrize(
    ("before", "written", "after"),
    [
        ("postgresql://me:", ENCODED, "@host/db"),
        ("postgresql://me:", "hunter2?hunter2 it's".replace(" ", "%20"), "@host/db"),
        ("postgresql://host/db?password=", ENCODED, ""),
        ("postgresql://host/db?sslpassword=", ENCODED, "&application_name=x"),
        ("host=db password='", r"hunter2/hunter2 it\'s", "' dbname=x"),
        ("host=db password=", r"hunter2/hunter2\ it\'s", " dbname=x"),
        ("host = db dbname = x sslpassword = '", r"hunter2/hunter2 it\'s", "'"),
    ],
)
def test_a_database_password_is_hidden_everywhere(
    monkeypatch: pytest.MonkeyPatch, before: str, written: str, after: str
) -> None:
    """As libpq reads it, and as it was written; the rest of the connection string is no secret."""
    monkeypatch.setenv("DATABASE_URL", f"{before}{written}{after}")
    hidden = Redactor(load().secrets())
    for said in (written, PASSWORD.replace("/", "?") if "?hunter2" in written else PASSWORD):
        assert "hunter2" not in hidden.redact(f"said {said} here")
    assert hidden.redact("the host db, application_name x") == "the host db, application_name x"
    monkeypatch.setenv("DATABASE_URL", "host=db user=postgres password=postgres")
    assert Redactor(load().secrets()).redact("user postgres") == "user postgres"


@pytest.mark.parametrize(
    "given",
    [
        "host=db password=my hunter2hunter2",
        "host=db password='hunter2hunter2",
        "host=db password=a hunter2hunter2=b",
        "host=db port=hunter2hunter2",
        "postgresql://me:my hunter2hunter2@host/db",
        "postgresql://me:hunter2%zzhunter2@host/db",
        "postgresql://me:hunter2/hunter2@host/db",
        "postgresql://me:2/hunter2hunter2@host/db",
        "postgresql://me:my@hunter2hunter2@host/db",
        "postgresql://me:my?a@hunter2hunter2@host/db",
        "postgresql://me:2/a?hunter2hunter2@host/db",
        "postgresql://host?password=hunter2hunter2@b",
    ],
)
def test_a_connection_string_that_libpq_would_quote_is_refused_unquoted(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """What of it is the password nobody can tell; libpq's complaint has shown it."""
    monkeypatch.setenv("DATABASE_URL", given)
    with pytest.raises(SettingsError) as caught:
        load()
    (problem,) = caught.value.problems
    assert problem.what == "DATABASE_URL cannot be used"
    assert problem.fix
    assert "hunter2" not in str(problem)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_handlers_are_given_the_variables_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are here; what is not set is missed, what is ours is refused, what is secret by name is hidden."""
    monkeypatch.setenv("WORKER_ENV", "HF_TOKEN, HF_HOME,DATABASE_URL,NOT_THERE")
    monkeypatch.setenv("HF_TOKEN", f"hf_{SECRET}")
    monkeypatch.setenv("HF_HOME", "/workspace/huggingface")
    monkeypatch.delenv("NOT_THERE", raising=False)
    settings = load()
    assert settings.handler_env == {"HF_TOKEN": f"hf_{SECRET}", "HF_HOME": "/workspace/huggingface"}
    assert redact(f"hf_{SECRET} in /workspace/huggingface") == "[redacted] in /workspace/huggingface"
    missed = lacks(settings, "gateway")
    assert missed is not None
    assert {"WORKER_ENV cannot name DATABASE_URL", "NOT_THERE is missing"} <= set(missed.split("; "))


def test_no_fix_is_hidden_as_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be typed can be read: a made-up password in it would not be."""
    for name in ("DATABASE_URL", "SUPABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for what, why, fix in (problem for part in MISSING.values() for problem in part(load())):
        assert redact(f"{what} {why} {fix}") == f"{what} {why} {fix}"


def test_a_secret_is_shown_by_no_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its value nor a part of it; and once read it is hidden everywhere else."""
    monkeypatch.setenv("RUNPOD_SSH_PRIVATE_KEY", PEM[:200])
    monkeypatch.setenv("RUNPOD_SSH_PUBLIC_KEY", PUB)
    monkeypatch.setenv("DATABASE_URL", f"postgresql://user:{SECRET}@host/db")
    monkeypatch.setenv("WORKER_SETUP_COMMAND", f"pip install --index-url https://u:{SECRET}2@host x")
    monkeypatch.setenv("WORKER_API_URL", f"ftp://u:{SECRET}3@host")
    with pytest.raises(SettingsError) as caught:
        load()
    assert SECRET not in str(caught.value)
    monkeypatch.delenv("WORKER_API_URL")
    with pytest.raises(SettingsError, match="cut off") as caught:
        require(load(), "shell")
    assert PEM.split("\n")[1] not in str(caught.value)
    assert "canary" not in redact(f"said {SECRET} and {SECRET}2")


@pytest.mark.parametrize(
    ("private", "public", "says"),
    [
        (PEM.replace("\n", "\\n"), f'"{PUB}"', None),
        (PEM, PEM, "RUNPOD_SSH_PUBLIC_KEY cannot be used: it is a private key"),
        (PUB, PUB, "RUNPOD_SSH_PRIVATE_KEY cannot be used: it is a public key"),
        (PEM, asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode(), "SHA256"),
    ],
    ids=["mangled", "two private keys", "two public keys", "two pairs"],
)
def test_a_pair_that_cannot_work_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, private: str, public: str, says: str | None
) -> None:
    """Before a pod is rented for it; a mangled pair that lost nothing is what it was."""
    monkeypatch.setenv("RUNPOD_SSH_PRIVATE_KEY", private)
    monkeypatch.setenv("RUNPOD_SSH_PUBLIC_KEY", public)
    if says is None:
        pair = require(load(), "shell").login_pair()
        assert (pair.private.text, pair.public.text) == (PEM, PUB)
        return
    with pytest.raises(SettingsError, match=says):
        require(load(), "shell")
