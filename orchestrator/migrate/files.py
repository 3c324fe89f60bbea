"""The SQL files: their list, how each is applied, and the schema version that they define."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal

from psycopg import sql

from orchestrator import __version__ as release
from orchestrator.ports import SchemaMismatch

CHECKOUT = Path(__file__).resolve().parents[2] / "migrations"
NUMBERED_FROM = 31  # the files after the baseline; the numbers between were those of versions before the first release
TABLE_FILE = re.compile(r"tables/(\d{4})_([a-z0-9_]+)\.sql")
# No function calls one of a later folder.
FOLDERS = ("base", "queue", "fleet", "clusters", "api", "messages", "reports")
CURRENT = ("views.sql", "triggers.sql", "grants.sql")  # after the functions, in this order
DEPLOY = re.compile(r"-- (pre|post)-deploy")
NO_TRANSACTION = "-- no transaction"
TABLE = re.compile(r"^create table public\.(\w+)", re.MULTILINE)  # not "if not exists": a project's own
FUNCTION = re.compile(r"create or replace function (?:public|orchestrator)\.(\w+)", re.IGNORECASE)
# What the schema of the queue has, but for functions; each file that makes some of it can be applied again.
MADE = re.compile(r"^\s*create (?:table if not exists|or replace view|type) (orchestrator\.\w+)", re.MULTILINE)
# A semicolon within these ends no statement: comments, strings, quoted names, dollar-quoted texts.
TOKEN = re.compile(r"""--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"[^"]*"|\$(\w*)\$.*?\$\1\$|;""", re.DOTALL)
DIGEST_DIGITS = 8


@dataclass(frozen=True)
class SqlFile:
    """One file. `path` is relative to the directory of migrations. Line ends are Unix."""

    path: str
    sql: str

    @property
    def version(self) -> str:
        """Return the file's name in the ledger: the number of a table file, or the path of any other file."""
        match = TABLE_FILE.fullmatch(self.path)
        return match[1] if match else self.path

    @property
    def name(self) -> str:
        """Return the file's subject."""
        return re.sub(r"^\d{4}_", "", self.path.rpartition("/")[2].removesuffix(".sql"))

    @cached_property
    def checksum(self) -> str:
        """Return the SHA-256 of the text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def post_deploy(self) -> bool:
        """Return whether a table file is applied after the functions and triggers."""
        match = DEPLOY.fullmatch(self.sql.partition("\n")[0])
        if match is None:
            raise SchemaMismatch(f"{self.path} does not begin with '-- pre-deploy' or '-- post-deploy'")
        return match[1] == "post"

    @property
    def in_transaction(self) -> bool:
        """Return whether a table file is applied as one transaction.

        Otherwise it can be repeated after an interruption.
        """
        return self.sql.split("\n", 2)[1] != NO_TRANSACTION

    @property
    def functions(self) -> tuple[str, ...]:
        """Return the names of the functions that the file makes."""
        return tuple(sorted(set(FUNCTION.findall(self.sql))))

    @property
    def made(self) -> frozenset[str]:
        """Return the names of the tables, types and views that the file makes in the schema `orchestrator`."""
        return frozenset(MADE.findall(self.sql))

    def statements(self) -> list[str]:
        """Return the statements, each with the comment in front of it."""
        ends = [match.end() for match in TOKEN.finditer(self.sql) if match[0] == ";"]
        return [self.sql[start:end].strip() for start, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True)
class SqlFiles:
    """All files: `tables` are applied once, in order; `current` again after a change."""

    tables: tuple[SqlFile, ...]
    current: tuple[SqlFile, ...]

    @property
    def version(self) -> "SchemaVersion":
        """Return the version of a database that has all of them."""
        rows = ((file.version, file.checksum) for file in (*self.tables, *self.current))
        return SchemaVersion(self.tables[-1].version, release, digest(rows))


@dataclass(frozen=True)
class SchemaVersion:
    """`<last table file>-<release that applied the files>-<digest of all files>`, as fleet_describe returns it."""

    tables: str
    release: str
    digest: str

    def __str__(self) -> str:
        return f"{self.tables}-{self.release}-{self.digest}"

    @classmethod
    def parse(cls, text: str) -> "SchemaVersion | None":
        """Parse a version. None if no release made the database."""
        match = re.fullmatch(r"(\d{4})-([^-]+)-([0-9a-f]+)", text)
        return cls(*match.groups()) if match else None

    def standing(self, there: str) -> Literal["older", "current", "newer"]:
        """Compare the database's version with the version of the files.

        The files of one release have one text. If they differ under the same release, they are being developed, and the
        present ones are applied.
        """
        other = SchemaVersion.parse(there)
        if other is None:
            return "older"
        if (other.tables, other.digest) == (self.tables, self.digest):
            return "current"
        return "newer" if _order(other) > _order(self) else "older"


def _order(version: SchemaVersion) -> tuple[str, list[int]]:
    return version.tables, [int(number) for number in re.findall(r"\d+", version.release)[:3]]


def digest(rows: Iterable[tuple[str, str]]) -> str:
    """Return the digest of versions and checksums. fleet_describe computes the same from the ledger."""
    text = "\n".join(f"{version} {checksum}" for version, checksum in sorted(rows))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]


def sql_files(directory: Traversable | None = None) -> SqlFiles:
    """Return the files of the installed package or, in a checkout, of its directory `migrations`."""
    packaged = resources.files("orchestrator") / "migrations"
    directory = directory or (packaged if packaged.is_dir() else CHECKOUT)
    if not (directory / "tables").is_dir():
        raise SchemaMismatch(f"no migrations in {directory}")
    tables = tuple(file for file in _read(directory, "tables/") if TABLE_FILE.fullmatch(file.path))
    if [int(file.version) for file in tables] != [1, *range(NUMBERED_FROM, NUMBERED_FROM + len(tables) - 1)]:
        raise SchemaMismatch(f"the table files in {directory} are not numbered 0001, {NUMBERED_FROM:04}, …")
    others = {file.path: file for file in _read(directory, "")}
    return SqlFiles(tables, (*_functions(directory), *(others[path] for path in CURRENT if path in others)))


def _functions(directory: Traversable) -> list[SqlFile]:
    return [file for folder in FOLDERS for file in _read(directory, f"functions/{folder}/")]


def _read(directory: Traversable, folder: str) -> list[SqlFile]:
    there = (directory / folder.rstrip("/") if folder else directory).iterdir()
    found = {f"{folder}{entry.name}": entry for entry in there if entry.name.endswith(".sql")}
    return [SqlFile(path, found[path].read_bytes().decode("utf-8").replace("\r\n", "\n")) for path in sorted(found)]


def array(names: Iterable[str]) -> str:
    """Return an array of SQL with these names."""
    return f"array[{', '.join(sql.Literal(name).as_string() for name in sorted(names))}]"
