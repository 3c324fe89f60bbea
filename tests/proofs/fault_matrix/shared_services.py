"""Postgres and S3 for a whole run of trials: a database and a prefix keep one trial apart from the next."""

import asyncio
from contextlib import AsyncExitStack
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

TEMPLATE = "trial_template"


class SharedServices:
    """An async context manager; `servers(name)` gives a trial a copy of the migrated database."""

    def __init__(self, directory: Path) -> None:
        self.postgres = EmbeddedPostgres(directory / "postgres", durable=False, keep=False)
        self.s3 = EmbeddedS3(directory / "s3")
        self._copying = asyncio.Lock()
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._exits.enter_async_context(self.postgres)
            await self._exits.enter_async_context(self.s3)
            await self.s3.create_bucket(BUCKET)
            await self._execute(sql.SQL("create database {}").format(sql.Identifier(TEMPLATE)))
            await create_roles(self.postgres.url_of(TEMPLATE))  # for trials over Supabase's transport
            await migrate(self.postgres.url_of(TEMPLATE))
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.aclose()

    async def servers(self, name: str) -> Servers:
        """Both servers, with a database of that name made from the template."""
        copy = sql.SQL("create database {} template {}").format(sql.Identifier(name), sql.Identifier(TEMPLATE))
        async with self._copying:
            await self._execute(copy)
        return Servers(self.postgres, self.s3, name, name)

    async def _execute(self, statement: sql.Composed) -> None:
        async with await psycopg.AsyncConnection.connect(
            self.postgres.url_of("postgres"), autocommit=True
        ) as connection:
            await connection.execute(statement)
