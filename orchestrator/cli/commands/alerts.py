"""`alerts`: test the address of the alerts, and list the open ones."""

import time
import uuid

import click

from orchestrator.cli.output import Output, json_option
from orchestrator.cli.session import opened_store, runs, settings_for, utcnow
from orchestrator.cli.tables import table
from orchestrator.core.plurals import counted
from orchestrator.diagnostics.amounts import ago, span
from orchestrator.errors import NOT_SENT, SETTING, Failure
from orchestrator.ports import PortError


@click.group()
def alerts() -> None:
    """Test the address that alerts are sent to (ALERT_WEBHOOK_URL), and list the open alerts."""


@alerts.command("test")
@json_option
@click.pass_obj
@runs
async def test(output: Output) -> None:
    """Send one message now, and show the result. Exit 1 if it was not accepted."""
    from orchestrator.adapters.alert_sender import AlertSender
    from orchestrator.leader_jobs.alerts import test_body

    settings = settings_for()
    if settings.alert_webhook_url is None:
        raise Failure(SETTING, why="ALERT_WEBHOOK_URL is not set", fix="set it; docs/alerts.md has examples")
    began_s, message_id = time.monotonic(), str(uuid.uuid4())
    try:
        sender = AlertSender(settings.alert_webhook_url.get_secret_value())
        status = await sender.send(message_id, test_body(settings.fleet_id))
    except PortError as error:
        raise Failure(NOT_SENT, why=str(error)) from None
    took_s = time.monotonic() - began_s
    if output.json:
        output.document(sent=True, id=message_id, status=status, took_s=round(took_s, 3))
    else:
        output.show(f"sent: the address answered {status} within {took_s:.1f} s (id {message_id})")


@alerts.command("list")
@json_option
@click.pass_obj
@runs
async def listed(output: Output) -> None:
    """List the alerts that are open or about to open, and why messages were not delivered."""
    async with opened_store() as store:
        found = await store.alerts()
    if output.json:
        output.document(**found)
        return
    shown, now = table("severity", "alert", "for", "sent", "what"), utcnow()
    for one in found["alerts"]:
        sent = "yes" if one["opened_at"] else "not yet"
        name = f"{one['kind']} {one['subject']}".strip()
        shown.add_row(one["severity"], name, span(ago(one["since"], now)), sent, one["text"])
    output.show(shown if found["alerts"] else "No open alerts.")
    if found["unsent"]:
        output.say(f"{counted(found['unsent'], 'message waits', 'messages wait')} to be delivered")
    if failure := found["last_failure"]:
        output.say(f"last failure: {failure['failure']}")
