"""`webhooks`: the addresses that get messages about the end of tasks, and what could not be delivered."""

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.options import Choice, force_option
from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import actor, runs, settings_for
from orchestrator.cli.tables import table
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import relative
from orchestrator.errors import BAD_ARGUMENT, NO_WEBHOOK, NOT_TAKEN, SETTING, Failure
from orchestrator.ports import PortError, Unavailable

if TYPE_CHECKING:
    from orchestrator.adapters.webhook_store import WebhookStore
    from orchestrator.config.settings import Settings

Row = Mapping[str, Any]
STATES = ("waiting", "undeliverable", "sent")


@click.group()
def webhooks() -> None:
    """Tell addresses about the end of tasks: signed messages, sent until they are accepted."""


@asynccontextmanager
async def _opened() -> "AsyncIterator[WebhookStore]":
    settings = settings_for("database")
    from orchestrator import wiring

    async with wiring.open_webhooks(settings) as store:
        yield store


@webhooks.command()
@click.argument("name")
@click.option("--url", required=True, help="Where to send: https://host/path.")
@click.option("--type", "task_type", help="Only tasks of this type.")
@click.option("--progress", is_flag=True, help="Also the progress of running tasks, a message in 10 s at most.")
@json_option
@click.pass_obj
@runs
async def add(output: Output, name: str, **given: Any) -> None:
    """Add an address, or replace the one of this name."""
    await _refuse_unreachable(given["url"])
    async with _opened() as store:
        is_new = await store.put(actor(), {"name": name, **given})
    if output.json:
        output.document(name=name, created=is_new)
    else:
        output.show(f"{'added' if is_new else 'replaced'} {name}")
        if settings_for().webhook_secret is None:
            output.say("WEBHOOK_SECRET is not set here: an orchestrator without it sends nothing", "yellow")


@webhooks.command("list")
@click.option("--state", type=Choice(STATES), help="Only messages in this state.")
@click.option("--task", "task_id", type=click.UUID, help="Only messages about this task.")
@click.option("-n", "limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Messages at most.")
@json_option
@click.pass_obj
@runs
async def listed(output: Output, state: str | None, task_id: uuid.UUID | None, limit: int) -> None:
    """List the addresses, and the newest messages with what came of them."""
    async with _opened() as store:
        found = await store.all(state=state, task_id=str(task_id) if task_id else None, limit=limit)
    if output.json:
        output.document(**found)
        return
    now, addresses = datetime.fromisoformat(found["now"]), table("webhook", "task type", "url", "progress")
    for one in found["webhooks"]:
        addresses.add_row(one["name"], one["task_type"] or "every", one["url"], "yes" if one["progress"] else "no")
    output.show(addresses if found["webhooks"] else "No webhooks found. A task may have its own webhook_url.")
    messages = table("message", "task", "event", "host", "state", "attempts")
    for one in found["messages"]:
        messages.add_row(one["id"], one["task_id"], one["event"], one["host"], _state(one, now), str(one["attempts"]))
    output.show(messages if found["messages"] else "No messages found.")
    if lost := found["troubles"]["undeliverable"]:
        given_up = counted(lost, "message was", "messages were")
        then = "python -m orchestrator webhooks retry"
        output.say(f"{given_up} given up within a day: correct the receiver, then {then}", "yellow")


@webhooks.command()
@click.argument("message", required=False, type=click.UUID)
@json_option
@click.pass_obj
@runs
async def retry(output: Output, message: uuid.UUID | None) -> None:
    """Send a message again for another day; without an id, all that were given up."""
    async with _opened() as store:
        count = await store.retry(actor(), str(message) if message else None)
    if message and not count:
        raise Failure(NO_WEBHOOK, what=f"no unsent message {message}", why="it is unknown, or was sent")
    if output.json:
        output.document(due=count)
    else:
        output.show(f"{counted(count, 'message is', 'messages are')} due now")


@webhooks.command()
@click.argument("name")
@force_option
@click.pass_obj
@runs
async def remove(output: Output, name: str, force: bool) -> None:
    """Remove an address with its unsent messages."""
    output.confirm(f"Remove the webhook {name} with its unsent messages?", force=force)
    async with _opened() as store:
        if not await store.remove(actor(), name):
            raise Failure(NO_WEBHOOK, why=f"the database has no webhook {name!r}")
    output.show(f"removed {name}")


@webhooks.command()
@click.argument("url")
@json_option
@click.pass_obj
@runs
async def key(output: Output, url: str) -> None:
    """Show the key with which the receiver of a URL verifies messages. It depends on the URL's host and port alone."""
    from orchestrator.adapters.webhook_signatures import origin_of, receiver_key

    secret = _secret(settings_for())
    try:
        origin, made = origin_of(url), receiver_key(secret, url)
    except ValueError:
        raise Failure(BAD_ARGUMENT, why="this is no URL such as https://host/path") from None
    if output.json:
        output.document(origin=origin, key=made)
    else:
        output.show(made)


@webhooks.command("test")
@click.argument("target", metavar="URL|NAME")
@json_option
@click.pass_obj
@runs
async def test(output: Output, target: str) -> None:
    """Send one message from here, and show the result. Exit 1 if it was not accepted."""
    settings = settings_for()
    _secret(settings)
    from orchestrator.adapters.webhook_sender import WebhookSender
    from orchestrator.wiring import sending_rules

    url, message_id, began_s = await _url(target), str(uuid.uuid4()), time.monotonic()
    rules = sending_rules(settings)
    assert rules is not None  # noqa: S101  _secret has checked it
    body = {"type": "test", "timestamp": datetime.now(UTC).isoformat(), "data": {"fleet": settings.fleet_id}}
    try:
        status = await WebhookSender(rules).send(message_id, url, body)
    except PortError as error:
        raise Failure(NOT_TAKEN, why=str(error)) from None
    took_s = time.monotonic() - began_s
    if output.json:
        output.document(sent=True, id=message_id, status=status, took_s=round(took_s, 3))
    else:
        output.show(f"sent: the receiver answered {status} within {took_s:.1f} s (id {message_id})")


async def _refuse_unreachable(url: str) -> None:
    """Raise Failure for an address to which the orchestrator would send nothing, by the settings of this machine."""
    from ipaddress import ip_network

    from orchestrator.adapters.posting import WebhookRefused
    from orchestrator.adapters.webhook_sender import SendingRules, WebhookSender

    private = tuple(map(ip_network, settings_for().webhook_private_networks))
    try:
        await WebhookSender(SendingRules((), private)).check(url)
    except WebhookRefused as error:
        fix = "give a public https:// address, or set WEBHOOK_PRIVATE_NETWORKS to the receiver's network"
        raise Failure(BAD_ARGUMENT, what="nothing can be sent to this address", why=str(error), fix=fix) from None
    except Unavailable:  # the name may come later, or be known to the orchestrator only
        return


async def _url(target: str) -> str:
    if "://" in target:
        return target
    async with _opened() as store:
        known = (await store.all(limit=1))["webhooks"]
    for one in known:
        if one["name"] == target:
            return str(one["url"])
    raise Failure(NO_WEBHOOK, why=f"the database has no webhook {target!r}")


def _secret(settings: "Settings") -> str:
    if settings.webhook_secret is None:
        raise Failure(SETTING, why="WEBHOOK_SECRET is not set", fix='set WEBHOOK_SECRET="$(openssl rand -hex 32)"')
    return settings.webhook_secret.get_secret_value()


def _state(one: Row, now: datetime) -> str:
    why = f": {one['failure']}" if one["failure"] else ""
    if one["state"] == "waiting":
        return f"next {relative(one['next_at'], now)}{why}"
    return f"sent {relative(one['sent_at'], now)}" if one["state"] == "sent" else f"undeliverable{why}"
