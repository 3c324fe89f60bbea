"""`tokens create|list|link|revoke`: the tokens of the API and the dashboard (docs/api.md, docs/dashboard.md)."""

import json
import secrets
from datetime import timedelta

import click

from orchestrator.cli.options import Choice, force_option
from orchestrator.cli.output import SCHEMA_VERSION, Output, json_option, one_line
from orchestrator.cli.session import actor, opened_store, runs, settings_for, utcnow
from orchestrator.cli.tables import table
from orchestrator.core.api_tokens import MAX_TENANT_CHARS, NAME_PATTERN, PREFIX, RANDOM_BYTES, TokenScope, hash_of
from orchestrator.core.model import ID_PATTERN
from orchestrator.diagnostics.amounts import ago, clock, relative, span
from orchestrator.errors import BAD_ARGUMENT, NO_TOKEN, Failure

MAX_DAYS = 3_650
LINK_S = 60.0  # for which a sign-in link is valid
DEFAULT_SCOPES = (TokenScope.SUBMIT, TokenScope.READ)


@click.group()
def tokens() -> None:
    """Create, list and revoke tokens of the API."""


@tokens.command()
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=Choice([scope.value for scope in TokenScope]),
    multiple=True,
    default=[scope.value for scope in DEFAULT_SCOPES],
    show_default=True,
    help="What it may do; may be repeated.",
)
@click.option("--pool", "pools", multiple=True, help="Only tasks and workers of this pool; may be repeated.")
@click.option("--tenant", help="Only tasks of this tenant; each task that it submits gets this tenant.")
@click.option("--days", type=click.FloatRange(0, MAX_DAYS, min_open=True), help="Days until it expires.")
@json_option
@click.pass_obj
@runs
async def create(
    output: Output, name: str, scopes: tuple[str, ...], pools: tuple[str, ...], tenant: str | None, days: float | None
) -> None:
    """Create a token called NAME, and print it. It is shown once and not stored."""
    if not NAME_PATTERN.fullmatch(name):
        raise Failure(BAD_ARGUMENT, why=f"{name!r} is not a name: letters, digits, '.', '-' and '_', at most 63")
    if wrong := [pool for pool in pools if not ID_PATTERN.fullmatch(pool)]:
        raise Failure(BAD_ARGUMENT, why=f"{wrong[0]!r} is not the name of a pool")
    if tenant is not None and not 0 < len(tenant) <= MAX_TENANT_CHARS:
        raise Failure(BAD_ARGUMENT, why=f"a tenant has 1 to {MAX_TENANT_CHARS} characters")
    token = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    row = {
        "name": name,
        "hash": hash_of(token),
        "scopes": sorted(set(scopes)),
        "pools": sorted(set(pools)) or None,
        "tenant": tenant,
        "expires_at": None if days is None else (utcnow() + timedelta(days=days)).isoformat(),
    }
    async with opened_store() as store:
        await store.api.create_token(row, actor())
    # Written as it is: this is the one place that shows a token, and the redaction would hide it.
    if output.json:
        shown = {key: value for key, value in row.items() if key != "hash"}
        click.echo(json.dumps({"schema_version": SCHEMA_VERSION, "token": token, **shown}))
        return
    click.echo(token)
    output.say("Keep it now: it is stored as a hash only, and cannot be shown again.")


@tokens.command("list")
@json_option
@click.pass_obj
@runs
async def listed(output: Output) -> None:
    """List the tokens, without their secrets."""
    async with opened_store() as store:
        rows = await store.api.tokens()
    if output.json:
        output.document(tokens=rows)
        return
    shown, now = table("name", "scopes", "pools", "tenant", "last used", "valid"), utcnow()
    for row in rows:
        used = span(ago(row["last_used_at"], now)) + " ago" if row["last_used_at"] else "never"
        valid = "for ever"
        if row["revoked_at"]:
            valid = f"revoked {clock(row['revoked_at'])}"
        elif row["expires_at"]:
            past = (ago(row["expires_at"], now) or 0) > 0
            valid = f"{'expired' if past else 'expires'} {relative(row['expires_at'], now)}"
        pools = ", ".join(row["pools"] or ()) or "all"
        shown.add_row(row["name"], ", ".join(row["scopes"]), pools, one_line(row["tenant"] or "all"), used, valid)
    output.show(shown if rows else "No tokens found.")


@tokens.command()
@click.option("--url", help="The address of the orchestrator; by default WORKER_API_URL, or this machine's.")
@json_option
@click.pass_obj
@runs
async def link(output: Output, url: str | None) -> None:
    """Print a link that opens the dashboard once, to read, within a minute."""
    settings = settings_for("database")
    base = (url or settings.worker_api_url or f"http://127.0.0.1:{settings.port}").rstrip("/")
    secret = secrets.token_urlsafe(RANDOM_BYTES)
    ends = (utcnow() + timedelta(seconds=LINK_S)).isoformat()
    row = {"hash": hash_of(secret), "token_hash": None, "is_link": True, "expires_at": ends}
    async with opened_store() as store:
        await store.api.open_session(row, actor())
    made = f"{base}/login/{secret}"
    # Written as it is, like a token.
    if output.json:
        click.echo(json.dumps({"schema_version": SCHEMA_VERSION, "url": made, "expires_at": ends}))
        return
    click.echo(made)
    output.say(f"It opens the dashboard once, to read, within {LINK_S:g} s.")


@tokens.command()
@click.argument("name")
@force_option
@json_option
@click.pass_obj
@runs
async def revoke(output: Output, name: str, force: bool) -> None:
    """End a token. Every process refuses it within 5 s."""
    output.confirm(f"Revoke token {name}? Its programs are refused within 5 s.", force=force)
    async with opened_store() as store:
        answer = await store.api.revoke_token(name, actor())
    if answer["outcome"] == "not_found":
        raise Failure(NO_TOKEN, why=f"the fleet has no token {name!r}")
    if output.json:
        output.document(**answer)
    else:
        output.show(f"{name}: {'revoked' if answer['outcome'] == 'revoked' else 'it was revoked before'}")
