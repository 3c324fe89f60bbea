"""What `init` makes: key pair and secrets, the text of `.env`, the Compose file, Railway's commands."""

import ast
import json
import os
import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from orchestrator.errors import BAD_ARGUMENT, Failure

PLAIN = re.compile(r"[A-Za-z0-9_./:@%+=,-]*")  # needs no quotes in any reader of .env
PRIVATE_MODE = 0o600
SECRET_BYTES = 32
MAX_HANDLERS, MAX_HANDLER_BYTES = 100, 1 << 20
OF_TYPE = re.compile(r"The handler of the task type ([A-Za-z][A-Za-z0-9_-]{0,62})\.")  # as `handlers new` writes it
WORKDIR = "/app"  # of the image
COMPOSE = """\
# Made by `orchestrator init`: docker compose -f {name} up -d
services:
  orchestrator:
    build: .
    command: ["sh", "-c", "python -m orchestrator migrate && exec python -m orchestrator run"]
    env_file: .env
    ports: ["127.0.0.1:{port}:8080"] # plain HTTP: a proxy with TLS on this machine passes WORKER_API_URL on to it
{volumes}    restart: unless-stopped
    stop_grace_period: 30s
"""


def compose(name: Path, port: str, code: str | None) -> str:
    """Return the Compose file. `code`: the directory with the handlers, which the image does not have."""
    volumes = ""
    if code:
        outside = code if Path(code).is_absolute() else f"./{code}"  # below the Compose file
        mount = f"{outside}:{PurePosixPath(WORKDIR, code)}:ro".replace(
            "$", "$$"
        )  # otherwise Compose fills in a variable
        volumes = f"    volumes: {json.dumps([mount])}\n"
    return COMPOSE.format(name=name, port=port, volumes=volumes)


def key_pair() -> tuple[str, str]:
    """Return a new SSH key pair: (private key in one line with escaped line breaks, public key)."""
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519", comment="gpu-orchestrator")
    private = key.export_private_key().decode().strip().replace("\n", "\\n")
    return private, key.export_public_key().decode().strip()


def secret() -> str:
    """Return a new secret."""
    return secrets.token_hex(SECRET_BYTES)


def handlers(folder: Path, function: str) -> dict[str, str]:
    """Return the settings for the files in `folder` that define `function`, as `handlers new` writes them, or {}."""
    found = {}
    for path in sorted(folder.glob("*.py"))[:MAX_HANDLERS]:
        try:
            source = path.read_bytes()
            tree = ast.parse(source if len(source) <= MAX_HANDLER_BYTES else b"")
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # `doctor` names what is wrong with a handler
        if any(isinstance(one, ast.FunctionDef) and one.name == function for one in tree.body):
            named = OF_TYPE.match(ast.get_docstring(tree) or "")
            found[named[1] if named else path.stem] = f"{path.stem}:{function}"
    listed = ",".join(f"{task_type}={target}" for task_type, target in found.items())
    return {"WORKER_CODE_DIR": str(folder), "WORKER_HANDLERS": listed} if found else {}


def env_text(sections: Mapping[str, Mapping[str, str]]) -> str:
    """Return the text of `.env`. Raises Failure for a value that its readers would read differently."""
    lines = ["# Made by `orchestrator init`. docs/settings.md lists all settings."]
    for title, values in sections.items():
        lines += ["", f"# {title}", *(f"{name}={_quoted(name, value)}" for name, value in values.items() if value)]
    return "\n".join(lines) + "\n"


def _quoted(name: str, value: str) -> str:
    """Quote a value so that a shell, Docker and this program read the same."""
    if PLAIN.fullmatch(value):
        return value
    if name == "RUNPOD_SSH_PRIVATE_KEY":
        return f'"{value}"'
    if not value.isprintable() or set(value) & set("'\\"):
        why = f"the value of {name} has a quote, a backslash or a control character"
        raise Failure(BAD_ARGUMENT, why=why, fix=f"set {name} in the environment instead; percent-encode passwords")
    return f"'{value}'"


def write_new(path: Path, text: str, *, mode: int, force: bool) -> None:
    """Write a file completely or not at all. Raises Failure if it exists, unless `force`."""
    if path.exists() and not force:
        raise Failure(BAD_ARGUMENT, why=f"{path} exists", fix="repeat it with --force to replace the file")
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as error:
        raise Failure(BAD_ARGUMENT, what=f"{path} cannot be written", why=error.strerror or str(error)) from None
    finally:
        fresh.unlink(missing_ok=True)


def railway(values: Mapping[str, str], env_file: Path) -> list[str]:
    """Return the commands of a deployment on Railway. The values come from the file, not from the screen."""
    loaded = f"set -a; . {shlex.quote(f'./{env_file}')}; set +a"
    own = [name for name, value in values.items() if value and name != "WORKER_API_URL"]
    variables = [f'railway variables --set "{name}=${name}" --skip-deploys' for name in own]
    return [
        "railway login && railway init --name gpu-orchestrator",
        "railway add --service orchestrator && railway service orchestrator",
        "railway domain   # sets RAILWAY_PUBLIC_DOMAIN, which the pods call",
        loaded,
        *variables,
        "railway up --detach && railway logs",
    ]
