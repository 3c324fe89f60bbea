"""One PostgreSQL and one S3 for many tests: each test has its own database and its own prefix."""

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from orchestrator.migrate import migrate
from testbed.services.postgres import EmbeddedPostgres
from testbed.services.s3 import EmbeddedS3
from testbed.services.supabase_roles import create_roles
from testbed.stack import BUCKET, Servers

TEMPLATE = "migrated_template"


@dataclass(frozen=True, slots=True)
class Database:
    """A database of the shared server."""

    server: EmbeddedPostgres
    name: str

    @property
    def url(self) -> str:
        """Its address."""
        return self.server.url_of(self.name)


class SharedServices:
    """An async context manager; each server starts when it is asked for first, each database is migrated."""

    def __init__(self, directory: Path) -> None:
        self._postgres = EmbeddedPostgres(directory / "postgres", durable=False)
        self._s3 = EmbeddedS3(directory / "s3")
        self._lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.aclose()
        self._postgres.remove_in_background()

    async def postgres(self) -> EmbeddedPostgres:
        """The server, with the roles of a Supabase project."""
        async with self._lock:
            if self._postgres.pid is None:
                await self._exits.enter_async_context(self._postgres)
                await self._execute(sql.SQL("create database {}").format(sql.Identifier(TEMPLATE)))
                await create_roles(self._postgres.url_of(TEMPLATE))
                await migrate(self._postgres.url_of(TEMPLATE))
        return self._postgres

    async def s3(self) -> EmbeddedS3:
        """The store, with a bucket."""
        async with self._lock:
            if self._s3.pid is None:
                await self._exits.enter_async_context(self._s3)
                await self._s3.create_bucket(BUCKET)
        return self._s3

    async def database(self, name: str | None = None) -> Database:
        """A new database, migrated."""
        postgres, name = await self.postgres(), name or f"database_{next(self._numbers)}"
        copy = sql.SQL("create database {} template {} strategy file_copy")
        async with self._lock:  # a template can be copied once at a time
            await self._execute(copy.format(sql.Identifier(name), sql.Identifier(TEMPLATE)))
        return Database(postgres, name)

    async def servers(self, name: str) -> Servers:
        """Both servers, with a database and a prefix of that name."""
        await self.database(name)
        return Servers(self._postgres, await self.s3(), name, name)

    async def _execute(self, statement: sql.Composed) -> None:
        async with await psycopg.AsyncConnection.connect(
            self._postgres.url_of("postgres"), autocommit=True
        ) as connection:
            await connection.execute(statement)
