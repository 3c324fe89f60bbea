"""`./run soak docker_image`: the Dockerfile's steps by hand in a clean root, then the service that it starts.

This needs no container engine: each instruction of the Dockerfile is executed in an empty directory, with a fresh
virtual environment in place of the base image. Instructions that only a container can execute (another user, an exposed
port) are reported.
"""

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import httpx

from demo.scenario import submit
from testbed.services.processes import Child
from testbed.stack import ROOT, Stack

BASE_MB = 130  # python:3.12-slim, unpacked
LIMIT_MB = 500
STEP_TIMEOUT_S = 900.0  # pip, on a slow line
DONE_TIMEOUT_S = 60.0
EXIT_LIMIT_S = 3.0
NOT_HERE = ("useradd",)  # programs of a RUN that would change this machine
KNOWN = {"FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "HEALTHCHECK", "CMD"}
DONE = "select 1 from tasks where status = 'Complete'"


@dataclass(slots=True)
class Image:
    """The result of the steps."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    directory: Path = Path("/")  # WORKDIR, under root
    user: str = "root"
    command: list[str] = field(default_factory=list)


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, the rest) of a Dockerfile, continued lines joined. ValueError for one that is not known here."""
    joined = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")).replace("\\\n", " ")
    found = [
        (word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word
    ]
    if unknown := {word for word, _ in found} - KNOWN:
        raise ValueError(f"nobody can do {', '.join(sorted(unknown))} by hand here")
    return found


def has_index() -> bool:
    """Whether pip can download a package here: the smallest of the locked ones."""
    with tempfile.TemporaryDirectory() as directory:
        command = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory, "sniffio")
        return subprocess.run(command, check=False, timeout=STEP_TIMEOUT_S, capture_output=True).returncode == 0


def ignored(name: str) -> bool:
    """Whether .dockerignore keeps a top-level name out of the build: the last line that matches decides."""
    out = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and fnmatch(name, line.removeprefix("!")):
            out = not line.startswith("!")
    return out


def build(root: Path, *, run: bool = True) -> Image:
    """Carry out every step under `root`; without `run` all but the RUNs."""
    image = Image(root)
    venv, shims = root / "venv", root / "shims"
    shims.mkdir(parents=True)
    for name in NOT_HERE:
        (shims / name).write_text("#!/bin/sh\nexit 0\n")
        (shims / name).chmod(0o755)
    if run:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=STEP_TIMEOUT_S)
    image.environment["PATH"] = os.pathsep.join((str(venv / "bin"), str(shims), os.defpath))
    for word, rest in instructions((ROOT / "Dockerfile").read_text()):
        if word == "ENV":
            image.environment |= {
                k: _inside(root, v) for k, _, v in (pair.partition("=") for pair in shlex.split(rest))
            }
        elif word == "WORKDIR":
            image.directory = Path(_inside(root, rest))
            image.directory.mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            _copy(image, shlex.split(rest))
        elif word == "RUN" and run:
            told = {
                name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "HTTPS_", "HTTP_"))
            }
            environment = {"HOME": str(root), **told, **image.environment}
            subprocess.run(
                ["/bin/sh", "-c", rest],
                cwd=image.directory,
                env=environment,
                check=True,
                timeout=STEP_TIMEOUT_S,
                stdout=sys.stderr,
            )
        elif word == "USER":
            image.user = rest
        elif word == "CMD":
            image.command = list(json.loads(rest))  # the exec form; a shell's line is no JSON
    return image


async def run(directory: Path) -> dict[str, Any]:
    """Build, migrate, start, work, stop; the summary, with `ok` and what was `wrong`."""
    root = Path(tempfile.mkdtemp(prefix="image-"))
    try:
        began_s = time.monotonic()
        image = await asyncio.to_thread(build, root)
        megabytes = (
            BASE_MB + sum(f.stat().st_size for f in root.rglob("*") if f.is_file() and not f.is_symlink()) // 2**20
        )
        summary: dict[str, Any] = {
            "build_s": round(time.monotonic() - began_s, 1),
            "image_mb": megabytes,
            "user": image.user,
        }
        async with Stack(directory, boot_s=(0.5, 1), light=True) as stack:
            summary |= await _live(stack, image)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    wrong = [name for name, bad in (
        ("image_mb", megabytes >= LIMIT_MB), ("user", image.user in {"root", "0"}), ("exit", summary["exit"] != 0),
        ("exit_s", summary["exit_s"] > EXIT_LIMIT_S), ("odd_lines", summary["odd_lines"]),
    ) if bad]  # fmt: skip
    return {**summary, "ok": not wrong, "wrong": wrong}


async def _live(stack: Stack, image: Image) -> dict[str, Any]:
    """Run the service once in the clean root: migrations, start, a task, SIGTERM."""
    only = {k: v for k, v in stack.environment.items() if k not in {"PATH", "HOME", "PYTHONPATH", "WORKER_CODE_DIR"}}
    environment = {"HOME": str(image.root), **image.environment, **only}
    deploy = tomllib.loads((ROOT / "railway.toml").read_text())["deploy"]
    for command in deploy["preDeployCommand"]:
        await asyncio.to_thread(
            subprocess.run, shlex.split(command), cwd=image.directory, env=environment, check=True, capture_output=True
        )
    log = stack.directory / "image.log"
    child = await Child.start(
        "image", ["/usr/bin/env", "-C", str(image.directory), *image.command], environment=environment, log=log
    )
    try:
        await stack.until_ready(child)
        await submit(stack, [{"task_type": "travel_segment", "params": {"seconds": 0.2}}])
        async with await stack.connect() as sql, asyncio.timeout(DONE_TIMEOUT_S):
            while not await (await sql.execute(DONE)).fetchone():
                await asyncio.sleep(0.1)
        async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
            health = (await client.get("/healthz")).json()
        began_s = time.monotonic()
        child.process.send_signal(signal.SIGTERM)
        status = await child.process.wait()
        took_s = time.monotonic() - began_s
    finally:
        await child.stop()
    odd = [line for line in log.read_text().splitlines() if not _is_structured(line)]
    return {"exit": status, "exit_s": round(took_s, 2), "health": health["status"], "odd_lines": odd[:5]}


def _is_structured(line: str) -> bool:
    """Whether a line is one JSON object with a level and a message, as a log viewer expects."""
    try:
        said = json.loads(line)
    except ValueError:
        return False
    return isinstance(said, dict) and {"level", "message"} <= said.keys()


def _copy(image: Image, names: list[str]) -> None:
    *sources, target = names
    for name in sources:
        if ignored(name):
            raise ValueError(f"COPY {name}: .dockerignore keeps it out")
        source, place = ROOT / name, image.directory / target
        if source.is_dir():
            shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place if target != "." else image.directory)


def _inside(root: Path, value: str) -> str:
    """Return an absolute path of the image as a path below the root; any other text unchanged."""
    return f"{root}{value}" if value.startswith("/") else value
