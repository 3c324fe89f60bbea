"""The questions of `init`: what only the user knows, each answer checked at once as `doctor` does.

The answers are in the environment of this process, as if the user had set them there.
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import Any

import click

from orchestrator.cli.options import Choice
from orchestrator.cli.output import Output
from orchestrator.cli.program import PROGRAM, typed
from orchestrator.cli.tables import MARKS, table
from orchestrator.config.handler_check import RUNPODS_OWN
from orchestrator.config.types import unquoted
from orchestrator.diagnostics.amounts import usd
from orchestrator.errors import BAD_ARGUMENT, MIGRATE, SETTING, Failure, Failures

TRIES = 5  # for each answer
DEFAULT_GPU = "NVIDIA GeForce RTX 4090"
CLOUD = "SECURE"
SHOWN_GPUS = 20
# A setting, its question, and whether the answer is secret.
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
REGISTRY = "RUNPOD_REGISTRY_AUTH"
LOGIN: tuple[Question, ...] = (
    ("REGISTRY_USERNAME", "User name at the registry of the image", False),
    ("REGISTRY_PASSWORD", "Password or access token there (given to RunPod, not stored here)", True),
)
MAY_BE_EMPTY = {"S3_ENDPOINT_URL", "WORKER_API_URL"}
DEFAULTS = {"AWS_REGION": "us-east-1"}


def flag(name: str) -> str:
    """Return the option of a setting."""
    return f"--{name.lower().replace('_', '-')}"


class _KindOrUrl(Choice):
    """One of some words, or a URL that is pasted in their place."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word or the URL."""
        text = unquoted(value)
        return text if isinstance(text, str) and "://" in text else super().convert(text, param, ctx)


class Questions:
    """The questions. Without a terminal, each value must be there already."""

    def __init__(self, output: Output, *, is_asking: bool) -> None:
        self._output, self._is_asking = output, is_asking

    def prefers_supabase(self) -> bool:
        """Whether the database is Supabase's API, and not a PostgreSQL URL."""
        self.title("1. Database")
        if os.environ.get("DATABASE_URL") or os.environ.get("SUPABASE_URL") or not self._is_asking:
            return bool(os.environ.get("SUPABASE_URL")) and not os.environ.get("DATABASE_URL")
        question = "Database: a URL, or one of"
        answer = str(click.prompt(question, "postgresql", type=_KindOrUrl(["postgresql", "supabase"]), err=True))
        if "://" not in answer:
            return answer == "supabase"
        is_project = answer.startswith(("http://", "https://"))
        os.environ["SUPABASE_URL" if is_project else "DATABASE_URL"] = answer
        return is_project

    def need(self, questions: Sequence[Question]) -> None:
        """Without a terminal, raise Failures that name each value that is not there."""
        names = [name for name, _, _ in questions if name not in MAY_BE_EMPTY and name not in DEFAULTS]
        missing = [name for name in names if not os.environ.get(name)]
        if missing and not self._is_asking:
            why = "nothing may be asked"
            fixes = {name: f"set {name} in the environment, or give {flag(name)}" for name in missing}
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

    def registry(self, name: str) -> None:
        """Name the credentials for a private image, and add them to the account if it has none of this name."""
        from orchestrator.cli import registry_credentials

        image = os.environ.get("RUNPOD_WORKER_IMAGE", "")
        if not name and self._is_asking and image and not image.startswith(RUNPODS_OWN):
            question = f"Registry credentials in RunPod for {image} (a name; empty: the image is public)"
            name = str(click.prompt(question, "", err=True, show_default=False)).strip()
        if not name:
            return
        os.environ[REGISTRY] = name
        if not asyncio.run(registry_credentials.exist(name)):
            for question_of in LOGIN if self._is_asking else ():
                self._answer(*question_of)
            login = [os.environ.get(variable, "") for variable, _, _ in LOGIN]
            if all(login):
                asyncio.run(registry_credentials.add(name, *login))
        self.check("runpod", is_last=True)

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
        listed = table("no.", "GPU type", "$/h", "stock")
        for number, (gpu, price, level) in enumerate(offers, 1):
            listed.add_row(str(number), gpu, usd(price), level)
        self._output.err.print(listed)
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
