"""`mcp`: the facts and actions of the fleet for AI assistants (docs/mcp.md)."""

import os
import re
import secrets
from typing import TYPE_CHECKING, cast

import click

from orchestrator.cli.output import Output
from orchestrator.cli.progress import leave
from orchestrator.cli.session import runs, settings_for
from orchestrator.errors import BAD_ARGUMENT, MISSING_PART, Failure

if TYPE_CHECKING:
    from pydantic import SecretStr

    from orchestrator.adapters.api_rows import ApiRows
    from orchestrator.config.settings import Settings
    from orchestrator.ports import Blobs
    from orchestrator.web.api.operations import Api

TOKEN_VARIABLE = "GPU_ORCHESTRATOR_TOKEN"  # noqa: S105  a name; the Python client reads it too
ADDRESS = re.compile(r"(?:(?P<host>[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]):)?(?P<port>[0-9]{1,5})")
LOOPBACK = "127.0.0.1"
MAX_PORT = 65_535


@click.command()
@click.option("--http", "address", metavar="[HOST:]PORT", help=f"Serve at http://HOST:PORT/mcp; HOST is {LOOPBACK}.")
@click.pass_obj
@runs
async def mcp(output: Output, address: str | None) -> int:
    """Serve the fleet's facts and actions to AI assistants, by the Model Context Protocol.

    Without --http it uses stdin and stdout, and only reads, unless it is given a token with the scope operate.
    Over HTTP, each caller sends a token of the API: Authorization: Bearer <token>. docs/mcp.md has both.

    An action asks for a confirmation first, which the assistant must repeat.
    """
    try:
        from orchestrator.cli.assistants import server
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in {"mcp", "mcp_types"}:
            raise
        fix = "pip install 'gpu-orchestrator[mcp]'"
        raise Failure(MISSING_PART, why="mcp needs the package mcp, which is not installed", fix=fix) from None
    from orchestrator import wiring
    from orchestrator.cli.assistants.api import LocalApi
    from orchestrator.cli.assistants.commands import CommandRunner
    from orchestrator.cli.assistants.tools import FactSources
    from orchestrator.observability.logging import configure
    from orchestrator.web.connections import Connections

    place, settings = _place(address) if address else None, settings_for("database")
    configure("WARNING", settings.secrets())
    token = os.environ.get(TOKEN_VARIABLE)
    # Without a token, stdio has one of this process only, which may read: the settings allow as much.
    reader = None if place or token else secrets.token_urlsafe()
    connections, commands = Connections(settings.proxy_hops), CommandRunner()
    async with wiring.open_store(settings) as store:
        api, has_bucket = _api(settings, store.api, reader or _revealed(settings.viewer_token))
        sources = FactSources(LocalApi(api, connections, has_bucket=has_bucket), commands)
        try:
            if place:
                output.say(f"assistants are served at http://{place[0]}:{place[1]}{server.PATH}")
                await server.serve_http(sources, connections, *place)
            else:
                await server.serve_stdio(sources, token or reader or "")
        finally:
            commands.close()
    return leave(output, 0)


def _place(address: str) -> tuple[str, int]:
    """Host and port. Raises Failure."""
    found = ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"]) <= MAX_PORT:
        raise Failure(BAD_ARGUMENT, why=f"--http {address[:80]!r} is not HOST:PORT or PORT", fix="--http 8090")
    return (found["host"] or LOOPBACK).strip("[]"), int(found["port"])


def _api(settings: "Settings", rows: "ApiRows", viewer_token: str | None) -> tuple["Api", bool]:
    """The API of this process, and whether it has a bucket."""
    from orchestrator import wiring
    from orchestrator.config.validation import lacks
    from orchestrator.web.api.operations import Api
    from orchestrator.web.wakeups import WakeupHub

    has_bucket = lacks(settings, "blobs") is None
    # LocalApi refuses what needs a bucket if there is none.
    blobs = cast("Blobs", wiring.open_blobs(settings) if has_bucket else None)
    admin_token = _revealed(settings.admin_token)
    return Api(rows, blobs, WakeupHub(), admin_token=admin_token, viewer_token=viewer_token), has_bucket


def _revealed(secret: "SecretStr | None") -> str | None:
    return secret.get_secret_value() if secret else None
