"""I6: the secrets of a stack, looked for in everything that it leaves behind.

Nothing here uses the product's own redaction: what a leak looks like is written down a second time.
"""

import asyncio
import base64
import functools
import gzip
import json
import secrets
import urllib.parse
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from testbed.stack import BUCKET, Stack
from tests.proofs.fault_matrix.environment import Environment

TOKEN, KEY, PASSWORD = "a worker's token", "RUNPOD_SSH_PRIVATE_KEY", "the database's password"
KNOWN = ("RUNPOD_API_KEY", "AWS_SECRET_ACCESS_KEY", "WORKER_JWT_SECRET", "SUPABASE_SERVICE_ROLE_KEY")
CONFIG = "**/run/*/config.json"  # the one file on a pod that holds a secret, its worker's token; for its owner alone
USERS_STREAMS = ("/handler/", "/system/")  # of the log objects: what the user's own programs say
AGENTS_LOG = "agent.log"  # on a pod: what no program of the user's writes
KEY_LINE = 20  # characters: a shorter one of a private key may be anything
OUTPUT, PODS = "the orchestrators' output", "files on pods"
TABLES = "select tablename as name from pg_tables where schemaname = 'public'"


@dataclass
class SecretScan:
    """Who was looked for, and where one was found."""

    known: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # name -> values
    hits: set[tuple[str, str]] = field(default_factory=set)  # (name, sink)
    searched: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # sink -> characters

    def search(self, sink: str, text: str, *, but: Iterable[str] = ()) -> None:
        """Look for every secret, raw, in both alphabets of base64 and URL-encoded."""
        self.searched[sink] += len(text)
        for name, values in self.known.items():
            if name not in but and any(form in text for value in values for form in forms(value)):
                self.hits.add((name, sink))

    def learn(self, config: Path) -> None:
        """Take the token out of a launch's configuration; one that others may read is a leak."""
        self.known[TOKEN].add(json.loads(config.read_text())["token"])
        if config.stat().st_mode & 0o077:
            self.hits.add((TOKEN, "a config.json that others may read"))


@functools.cache
def forms(value: str) -> tuple[str, ...]:
    """A value as a leak would show it."""
    found = [value, urllib.parse.quote(value, safe=""), json.dumps(value)[1:-1]]
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(b"\0" * before + value.encode()).decode().rstrip("=")
            found.append(text[4 if before else 0 : -2])
    return tuple(found)


def give_password(stack: Stack) -> None:
    """Give the database's address a password, where it has one; the embedded server asks for none, and takes any."""
    if url := stack.environment.get("DATABASE_URL"):
        parts = urllib.parse.urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        netloc = f"{user.partition(':')[0]}:canary-db-{secrets.token_hex(12)}@{host}"
        stack.environment |= {"DATABASE_URL": parts._replace(netloc=netloc).geturl()}


def of_stack(stack: Stack) -> dict[str, set[str]]:
    """The secrets that a stack has anyway: name -> values."""
    env = stack.environment
    known = {name: {env[name]} for name in KNOWN if name in env}
    if password := urllib.parse.urlsplit(env.get("DATABASE_URL", "")).password:
        known[PASSWORD] = {password}
    body = env[KEY].split("\n")[2:-2]  # its first line is the same in every key
    return known | {KEY: {line for line in body if len(line) > KEY_LINE}}


async def leaks(env: Environment) -> list[str]:
    """Which of the stack's own secrets are where they must not be; asked when all is over."""
    scan = SecretScan()
    scan.known |= of_stack(env.stack)
    await search_what_stayed(env, scan)
    return [f"{name} is in {sink}" for name, sink in sorted(scan.hits)]


async def search_what_stayed(env: Environment, scan: SecretScan, *, users_may: Collection[str] = ()) -> None:
    """Output, rows, objects, files on pods; `users_may`: what the user's own programs may say."""
    homes = [Path(pod["home"]) for pod in (await env.stack.control("GET", "ledger"))["pods"]]
    for config in (path for home in homes for path in home.glob(CONFIG)):
        scan.learn(config)
    log = env.stack.directory / "orchestrator.log"
    scan.search(OUTPUT, log.read_text(errors="replace") if log.exists() else "")
    for table in await env.rows(TABLES):
        rows = await env.rows(f'select to_jsonb(t)::text as row from "{table["name"]}" t')  # noqa: S608  our own names
        scan.search(f"table {table['name']}", "\n".join(row["row"].replace("\\/", "/") for row in rows))
    for key, content in (await env.stack.s3.objects(BUCKET, f"{env.stack.prefix}/")).items():
        raw = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        but = users_may if any(stream in key for stream in USERS_STREAMS) else ()
        scan.search("S3", f"{key}\n{raw.decode('utf-8', 'replace')}", but=but)
    for name, text in await asyncio.to_thread(_files, homes):
        scan.search(PODS, f"{name}\n{text}", but=() if name == AGENTS_LOG else users_may)


def _files(homes: Iterable[Path]) -> list[tuple[str, str]]:
    files = (path for home in homes for path in home.rglob("*") if path.is_file() and not path.match(CONFIG[3:]))
    return [(path.name, path.read_text(errors="replace")) for path in files]
