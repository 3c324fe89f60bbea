"""`init`: ask for what only the user knows, check each answer, make the rest, and write `.env`."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from orchestrator.cli import init_files
from orchestrator.cli.commands.doctor import MARKS
from orchestrator.cli.commands.handlers import CODE_DIR, FUNCTION
from orchestrator.cli.fixes import whole
from orchestrator.cli.options import Choice
from orchestrator.cli.output import Output, usd
from orchestrator.cli.program import PROGRAM, typed
from orchestrator.config.env_file import ENV_FILE
from orchestrator.errors import BAD_ARGUMENT, MIGRATE, SETTING, Failure, Failures

TRIES = 5  # for each answer
COMPOSE_FILE = Path("compose.production.yaml")
DEFAULT_GPU = "NVIDIA GeForce RTX 4090"
CLOUD = "SECURE"
SHOWN_GPUS = 20
# Section of doctor -> title, and its settings with the question and whether the answer is secret.
Question = tuple[str, str, bool]
POSTGRES: tuple[Question, ...] = (
    ("DATABASE_URL", "Database (postgresql://user:password@host:5432/name)", True),
)  # fmt: skip
SUPABASE: tuple[Question, ...] = (
    ("SUPABASE_URL", "Supabase project (https://<ref>.supabase.co)", False),
    ("SUPABASE_SERVICE_ROLE_KEY", "Its secret key (sb_secret_… or service_role)", True),
    ("SUPABASE_PUBLISHABLE_KEY", "Its publishable key (sb_publishable_… or anon)", False),
    ("WORKER_JWT_SECRET", "Its JWT secret (Settings, API, JWT)", True),
)
RUNPOD: tuple[Question, ...] = (("RUNPOD_API_KEY", "RunPod API key (console, Settings, API keys)", True),)
BUCKET: tuple[Question, ...] = (
    ("S3_BUCKET", "Name of the bucket", False),
    ("S3_ENDPOINT_URL", "URL of the S3 service (empty: AWS)", False),
    ("AWS_REGION", "Region of the bucket", False),
    ("AWS_ACCESS_KEY_ID", "Access key id of the bucket", False),
    ("AWS_SECRET_ACCESS_KEY", "Secret access key of the bucket", True),
)
PUBLIC: tuple[Question, ...] = (
    ("WORKER_API_URL", "Public URL by which pods reach the orchestrator (on Railway: empty, Railway sets it)", False),
)  # fmt: skip
MAY_BE_EMPTY = {"S3_ENDPOINT_URL", "WORKER_API_URL"}
DEFAULTS = {"AWS_REGION": "us-east-1"}
OTHER = ("RUNPOD_SSH_PUBLIC_KEY", "RUNPOD_SSH_PRIVATE_KEY", "WORKER_JWT_SECRET", "METRICS_TOKEN", "RUNPOD_GPU_TYPE")


def _flag(name: str) -> str:
    return f"--{name.lower().replace('_', '-')}"


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, question, secret in reversed([*POSTGRES, *SUPABASE, *RUNPOD, *BUCKET]):
        text = f"{question}; better in the environment: {name}" if secret else question
        command = click.option(_flag(name), name.lower(), help=f"{text}.")(command)
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
    ask = _Ask(output, is_asking=output.interactive and not no_input)
    database = SUPABASE if ask.prefers_supabase() else POSTGRES
    ask.need([*database, *RUNPOD, *BUCKET])
    ask.section("database" if database is POSTGRES else "database gateway", database)  # gateway: the JWT secret, a key
    ask.title("2. RunPod")
    ask.section("runpod", RUNPOD)
    ask.gpu()
    ask.title("3. Bucket for logs and outputs")
    ask.section("s3", BUCKET)
    _generate()
    ask.title("4. Address of the orchestrator, and the key pair of the pods")
    ask.section("ssh", () if os.environ.get("SUPABASE_URL") else PUBLIC)  # with Supabase, pods call that
    _write(output, database, force=force)
    ask.offer()
    return 0


class _Ask:
    """The questions. Without a terminal, each value must be there already."""

    def __init__(self, output: Output, *, is_asking: bool) -> None:
        self._output, self._is_asking = output, is_asking

    def prefers_supabase(self) -> bool:
        """Whether the database is Supabase's API, and not a PostgreSQL URL."""
        self.title("1. Database")
        if os.environ.get("DATABASE_URL") or os.environ.get("SUPABASE_URL") or not self._is_asking:
            return bool(os.environ.get("SUPABASE_URL")) and not os.environ.get("DATABASE_URL")
        kind = Choice(["postgresql", "supabase"])
        return str(click.prompt("PostgreSQL URL, or Supabase's API", "postgresql", type=kind, err=True)) == "supabase"

    def need(self, questions: Sequence[Question]) -> None:
        """Without a terminal, raise Failures that name each value that is not there."""
        names = [name for name, _, _ in questions if name not in MAY_BE_EMPTY and name not in DEFAULTS]
        missing = [name for name in names if not os.environ.get(name)]
        if missing and not self._is_asking:
            why = "nothing may be asked"
            fixes = {name: f"set {name} in the environment, or give {_flag(name)}" for name in missing}
            raise Failures(Failure(SETTING, what=f"{name} is missing", why=why, fix=fixes[name]) for name in missing)

    def title(self, text: str) -> None:
        """Show what the next questions are about."""
        if self._is_asking:
            self._output.say(text, "bold")

    def section(self, sections: str, questions: Sequence[Question]) -> None:
        """Ask until the checks of these sections of `doctor` pass. Raises Failure if they do not."""
        asks = self._is_asking and bool(questions)
        for _ in range(TRIES if asks else 1):
            for question in questions:
                self._answer(*question)
            if self.check(sections, is_last=not asks):
                return
            for name, _, _ in questions:
                os.environ.pop(name, None)
        what = f"{sections.partition(' ')[0]} cannot be used"
        raise Failure(SETTING, what=what, why=f"{TRIES} answers failed the check")

    def _answer(self, name: str, question: str, secret: bool) -> None:
        if os.environ.get(name):
            return
        value = default = DEFAULTS.get(name, "" if name in MAY_BE_EMPTY else None)  # need() has found the others
        if self._is_asking:
            default = _own_address() if name == "WORKER_API_URL" else default
            value = click.prompt(question, default, hide_input=secret, err=True, show_default=bool(default))
        if value:
            os.environ[name] = str(value).strip()

    def check(self, sections: str, *, is_last: bool) -> bool:
        """Check as `doctor` does, and show the result. Raises Failure if `is_last`."""
        from orchestrator.diagnostics.doctor import diagnose

        with self._output.waiting(f"checking {sections.replace(' ', ' and ')}"):
            findings = asyncio.run(diagnose(sections.split()))
        bad = []
        for one in findings:
            if one.status == "fail" and one.fix in MIGRATE.values():  # `migrate` is the next step
                self._output.say("  next  the tables are not there yet: they are the last step", "yellow")
                continue
            mark, style = MARKS[one.status]
            self._output.say(f"  {mark}  {one.what}{f': {one.why}' if one.why else ''}", style)
            bad += [one] if one.status == "fail" else []
        if bad and is_last:
            what, why = f"{bad[0].section}: {bad[0].what}", bad[0].why or "the check failed"
            raise Failure(SETTING, what=what, why=why, fix=bad[0].fix)
        return not bad

    def gpu(self) -> None:
        """Show GPU types with price and stock, and ask which ones."""
        if os.environ.get("RUNPOD_GPU_TYPE") or not self._is_asking:
            os.environ.setdefault("RUNPOD_GPU_TYPE", DEFAULT_GPU)
            return
        offers = asyncio.run(_offers())
        table = Table("no.", "GPU type", "$/h", "stock", box=None, header_style="bold", pad_edge=False)
        for number, (gpu, price, level) in enumerate(offers, 1):
            table.add_row(str(number), gpu, usd(price), level)
        self._output.err.print(table)
        names = [gpu for gpu, _, _ in offers]
        default = str(names.index(DEFAULT_GPU) + 1) if DEFAULT_GPU in names else "1"
        for _ in range(TRIES):
            answer = str(click.prompt("GPU types in order of preference (numbers, comma-separated)", default, err=True))
            numbers = [int(one) for one in answer.split(",") if one.strip().isdecimal()]
            chosen = [names[number - 1] for number in numbers if 0 < number <= len(names)]
            if chosen:
                os.environ["RUNPOD_GPU_TYPE"] = ",".join(chosen)
                return
            self._output.say(f"  choose from 1 to {len(names)}", "yellow")
        raise Failure(BAD_ARGUMENT, why="no GPU type was chosen")

    def offer(self) -> None:
        """Offer the next steps on a terminal; otherwise name them."""
        if not self._is_asking:
            tables = MIGRATE["DATABASE_URL" if os.environ.get("DATABASE_URL") else "SUPABASE_URL"]
            self._output.say(f"Next: {tables}\nThen: {PROGRAM} doctor && {PROGRAM} run")
            return
        if click.confirm(f"Create the tables now ({typed()} migrate)?", default=True, err=True):
            self._migrate()
        if click.confirm(f"Check every part now ({typed()} doctor)?", default=True, err=True):
            _run("doctor")
        submit = f"{PROGRAM} tasks submit --help"
        self._output.say(f"Next: {PROGRAM} run starts the orchestrator; {submit} shows how to add a task.")

    def _migrate(self) -> None:
        """Create the tables. Supabase's API cannot: ask for the URL of the database itself, and do not keep it."""
        if os.environ.get("DATABASE_URL"):
            _run("migrate")
            return
        question = "URL of the session pooler (Supabase: Connect, port 5432), used once and not stored; empty: later"
        for _ in range(TRIES):
            url = str(click.prompt(question, "", hide_input=True, show_default=False, err=True)).strip()
            if not url or _run("migrate", DATABASE_URL=url) == 0:
                break
        if not url:
            self._output.say(f"  next  {MIGRATE['SUPABASE_URL']}", "yellow")


def _run(command: str, **environment: str) -> int:
    """Run a command of this program on the terminal; its exit code."""
    import subprocess
    import sys

    line = [sys.executable, "-m", "orchestrator", command]
    return subprocess.run(line, check=False, env={**os.environ, **environment}).returncode


def _own_address() -> str:
    """Return the public URL that this machine's name suggests, or an empty text."""
    host = os.environ.get("RAILWAY_PUBLIC_DOMAIN") or socket.getfqdn()
    return f"https://{host}" if "." in host and not host.endswith((".local", ".arpa")) else ""


async def _offers() -> list[tuple[str, float, str]]:
    """Return (GPU type, $/h, stock), those in stock first, then by price."""
    from orchestrator import wiring
    from orchestrator.cli.session import settings_for
    from orchestrator.diagnostics.account import account
    from orchestrator.diagnostics.doctor import provider

    settings = settings_for("cloud")
    cloud = wiring.open_cloud(settings)
    try:
        prices = await cloud.prices()
    finally:
        await cloud.close()
    key = settings.runpod_api_key
    assert key is not None  # noqa: S101  settings_for() has checked it
    async with account(settings.runpod_api_base_url, key.get_secret_value()) as client:
        levels = await provider.levels(client, CLOUD)
    named = [(key.partition("|")[0], price) for key, price in prices.items() if key.endswith(f"|{CLOUD}")]
    offers = [(gpu, price, levels.get(gpu, "unknown")) for gpu, price in named]
    return sorted(offers, key=lambda offer: (offer[2] == "NONE", offer[1], offer[0]))[:SHOWN_GPUS]


def _generate() -> None:
    """Generate what is not given: the key pair, the secret that signs tokens, the token of /metrics."""
    if not (os.environ.get("RUNPOD_SSH_PRIVATE_KEY") and os.environ.get("RUNPOD_SSH_PUBLIC_KEY")):
        private, public = init_files.key_pair()
        os.environ |= {"RUNPOD_SSH_PRIVATE_KEY": private, "RUNPOD_SSH_PUBLIC_KEY": public}
    for name in ("WORKER_JWT_SECRET", "METRICS_TOKEN"):
        if not os.environ.get(name):
            os.environ[name] = init_files.secret()


def _write(output: Output, database: Sequence[Question], *, force: bool) -> None:
    def of(*names: str) -> dict[str, str]:
        return {name: os.environ[name].replace("\n", "\\n") for name in names if os.environ.get(name)}

    base = of("RUNPOD_API_BASE_URL") if "RUNPOD_API_BASE_URL" in os.environ else {}
    mine = of("WORKER_CODE_DIR", "WORKER_HANDLERS")
    if "WORKER_HANDLERS" not in mine:
        mine |= init_files.handlers(Path(mine.get("WORKER_CODE_DIR", CODE_DIR)), FUNCTION)
    sections = {
        "Database": of(*(name for name, _, _ in database if name != "WORKER_JWT_SECRET")),
        "RunPod": of("RUNPOD_API_KEY", "RUNPOD_GPU_TYPE") | base,
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
