"""`init`: ask for what only the user knows, check each answer, make the rest, and write `.env`."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from orchestrator.cli import init_files
from orchestrator.cli.commands.handlers import CODE_DIR, FUNCTION
from orchestrator.cli.fixes import whole
from orchestrator.cli.init_questions import (
    BUCKET,
    POSTGRES,
    PUBLIC,
    REGISTRY,
    RUNPOD,
    SUPABASE,
    Question,
    Questions,
    flag,
)
from orchestrator.cli.output import Output
from orchestrator.config.env_file import ENV_FILE
from orchestrator.config.settings import KEY_TEXTS
from orchestrator.config.types import unquoted
from orchestrator.errors import BAD_ARGUMENT, Failure

COMPOSE_FILE = Path("compose.production.yaml")


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, question, secret in reversed([*POSTGRES, *SUPABASE, *RUNPOD, *BUCKET]):
        text = f"{question}; better in the environment: {name}" if secret else question
        command = click.option(flag(name), name.lower(), help=f"{text}.")(command)
    return command


@click.command()
@_options
@click.option("--runpod-gpu-type", help="GPU types in order of preference, comma-separated.")
@click.option("--worker-api-url", help="The public URL by which pods reach the orchestrator.")
@click.option("--no-input", is_flag=True, help="Ask nothing: take the answers from options and the environment.")
@click.option("--force", "--yes", "force", is_flag=True, help="Replace an existing .env and Compose file.")
@click.pass_obj
def init(output: Output, /, *, no_input: bool, force: bool, **given: str | None) -> int:
    """Ask for database, RunPod key and bucket, check them, generate keys and secrets, and write .env.

    Each answer is checked at once, as `doctor` does. Nothing is written before all checks pass. Options and the
    environment answer questions in advance.
    """
    for path in (ENV_FILE, COMPOSE_FILE):
        if path.exists() and not path.is_file():
            raise Failure(BAD_ARGUMENT, why=f"{path} exists and is not a file", fix=f"rename or remove {path}")
        if path.exists() and not force:
            raise Failure(BAD_ARGUMENT, why=f"{path} exists", fix="repeat it with --force to replace the file")
    os.environ.update({name.upper(): value for name, value in given.items() if value is not None})
    ask = Questions(output, is_asking=output.interactive and not no_input)
    database = SUPABASE if ask.prefers_supabase() else POSTGRES
    ask.need([*database, *RUNPOD, *BUCKET])
    ask.section("database" if database is POSTGRES else "database gateway", database)  # gateway: the JWT secret, a key
    ask.title("2. RunPod")
    registry = os.environ.pop(REGISTRY, "")  # the account may not have it yet
    ask.section("runpod", RUNPOD)
    ask.registry(registry)
    ask.gpu()
    ask.title("3. Bucket for logs and outputs")
    ask.section("s3", BUCKET)
    _generate()
    ask.title("4. Address of the orchestrator, and the key pair of the pods")
    ask.section("ssh", () if os.environ.get("SUPABASE_URL") else PUBLIC)  # with Supabase, pods call that
    _write(output, database, force=force)
    ask.offer()
    return 0


def _generate() -> None:
    """Generate what is not given: the key pair, the secret that signs tokens, the token of /metrics."""
    if not (os.environ.get("RUNPOD_SSH_PRIVATE_KEY") and os.environ.get("RUNPOD_SSH_PUBLIC_KEY")):
        private, public = init_files.key_pair()
        os.environ |= {"RUNPOD_SSH_PRIVATE_KEY": private, "RUNPOD_SSH_PUBLIC_KEY": public}
    for name in ("WORKER_JWT_SECRET", "METRICS_TOKEN"):
        if not os.environ.get(name):
            os.environ[name] = init_files.secret()


def _as_read(name: str) -> str:
    """Return an answer as the settings read it: without quotes and spaces around it."""
    return str(unquoted(os.environ[name], strips=name.lower() not in KEY_TEXTS))


def _write(output: Output, database: Sequence[Question], *, force: bool) -> None:
    def of(*names: str) -> dict[str, str]:
        return {name: _as_read(name).replace("\n", "\\n") for name in names if os.environ.get(name)}

    base = of("RUNPOD_API_BASE_URL") if "RUNPOD_API_BASE_URL" in os.environ else {}
    mine = of("WORKER_CODE_DIR", "WORKER_HANDLERS")
    if "WORKER_HANDLERS" not in mine:
        mine |= init_files.handlers(Path(mine.get("WORKER_CODE_DIR", CODE_DIR)), FUNCTION)
    sections = {
        "Database": of(*(name for name, _, _ in database if name != "WORKER_JWT_SECRET")),
        "RunPod": of("RUNPOD_API_KEY", "RUNPOD_GPU_TYPE", "RUNPOD_WORKER_IMAGE", REGISTRY) | base,
        "Bucket": of(*(name for name, _, _ in BUCKET)),
        "SSH key pair of the pods": of("RUNPOD_SSH_PUBLIC_KEY", "RUNPOD_SSH_PRIVATE_KEY"),
        "Secrets": of("WORKER_JWT_SECRET", "METRICS_TOKEN"),
        "Public URL by which pods reach the orchestrator": of("WORKER_API_URL"),
        "Handlers": mine,
    }
    text = init_files.env_text({title: values for title, values in sections.items() if values})
    init_files.write_new(ENV_FILE, text, mode=init_files.PRIVATE_MODE, force=force)
    compose = init_files.compose(COMPOSE_FILE, os.environ.get("PORT", "8080"), mine.get("WORKER_CODE_DIR"))
    init_files.write_new(COMPOSE_FILE, compose, mode=0o644, force=force)
    output.say(f"Wrote {ENV_FILE} (only you can read it) and {COMPOSE_FILE}.", "green")
    if "WORKER_HANDLERS" in mine:
        output.say(f"{ENV_FILE} names your handlers: {mine['WORKER_HANDLERS']}")
    if not (os.environ.get("WORKER_API_URL") or os.environ.get("SUPABASE_URL")):
        output.say("WORKER_API_URL is empty: without it, pods can reach the orchestrator on Railway only.", "yellow")
    values = {name: value for section in sections.values() for name, value in section.items()}
    lines = [whole(line) for line in init_files.railway(values, ENV_FILE)]
    output.show(Text("To deploy on Railway:", style="bold"), *lines)
