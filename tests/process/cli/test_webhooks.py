"""`webhooks`: added, shown with its messages, tested against a receiver, retried, removed; each change is audited."""

from uuid import uuid4

import pytest

from orchestrator.adapters.webhook_store import WebhookStore
from tests.process.cli.builders import Cli, Fleet
from tests.process.service.test_webhooks import SECRET, Receiver

NAME, TASK_TYPE = "app-of-this-test", "type-of-this-test"  # webhooks belong to the database, which tests share
LOCAL = {"WEBHOOK_SECRET": SECRET, "WEBHOOK_PRIVATE_NETWORKS": "127.0.0.1/32"}


async def test_a_webhook_from_its_beginning_to_its_end(fleet: Fleet, fleet_id: str, cli: Cli) -> None:
    """The messages of its type are listed, given up, retried, and deleted with it."""
    add = ("webhooks", "add", NAME, "--type", TASK_TYPE, "--url", "https://hooks.example.com/a-secret")
    added = await cli(*add, "--progress")
    assert (added.out, "WEBHOOK_SECRET" in added.err) == (f"added {NAME}\n", True)
    assert (await cli(*add, **LOCAL)).out == f"replaced {NAME}\n"
    task = (await cli("tasks", "submit", "--type", TASK_TYPE)).out.strip()
    await cli("tasks", "cancel", task, "--force")
    about = ("webhooks", "list", "--task", task)
    (waiting,) = (await cli(*about, "--json")).json()["messages"]
    assert (waiting["event"], waiting["state"], waiting["host"]) == ("task.cancelled", "waiting", "hooks.example.com")
    store = WebhookStore(fleet.db, fleet_id)
    await store.close(fleet.term, waiting["id"], "it answered 410", None)
    assert "undeliverable: it answered 410" in (await cli(*about)).out
    assert (await cli("webhooks", "retry", waiting["id"])).out == "1 message is due now\n"
    assert "a-secret" not in (await cli(*about)).out.split("message", 1)[1]
    assert (await cli("webhooks", "remove", NAME)).code == 2, "without a terminal it needs --force"
    assert (await cli("webhooks", "remove", NAME, "--force")).out == f"removed {NAME}\n"
    assert (await cli(*about, "--json")).json()["messages"] == []
    entries = (await fleet.db.call("fleet_audit", p_fleet=fleet_id, p_before=None, p_limit=20))["entries"]
    about_it = [(one["action"], one["actor"].partition(":")[0]) for one in entries if one["action"][:8] == "webhook."]
    assert about_it == [
        ("webhook.remove", "cli"), ("webhook.retry", "cli"), ("webhook.put", "cli"), ("webhook.put", "cli"),
    ]  # fmt: skip


async def test_a_message_is_tried_out(cli: Cli) -> None:
    """With the signature of a real one; the exit code says whether it was accepted."""
    async with Receiver().open() as receiver:
        sent = await cli("webhooks", "test", receiver.url, "--json", **LOCAL)
        assert (sent.json()["status"], receiver.got[0][0]["webhook-id"]) == (204, sent.json()["id"])
        receiver.answer = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"
        refused = await cli("webhooks", "test", receiver.url, **LOCAL)
        assert (refused.code, "it answered 500" in refused.err) == (1, True), refused.err
    refused = await cli("webhooks", "test", receiver.url, WEBHOOK_SECRET=SECRET)
    assert "not a public one" in refused.err
    shown = await cli("webhooks", "key", "https://App.example.com/any", **LOCAL)
    assert shown.out == (await cli("webhooks", "key", "https://app.example.com:443", **LOCAL)).out
    assert shown.out.startswith("whsec_")


@pytest.mark.parametrize(
    ("arguments", "why", "code"),
    [
        (("add", "x", "--url", "ftp://example.com"), "names no host, or a user", 2),
        (("add", "x", "--url", "https://u@example.com/"), "names no host, or a user", 2),
        (("add", "x", "--url", "https://localhost/hook"), "not a public one", 2),
        (("add", "x", "--url", "https://10.0.0.7/hook"), "not a public one", 2),
        (("add", "x", "--url", "https://[::ffff:127.0.0.1]/hook"), "not a public one", 2),
        (("add", "x", "--url", "http://93.184.215.14/hook"), "does not begin with https://", 2),
        (("add", "x", "--url", "http://a-name.invalid/hook"), "does not begin with https://", 2),
        (("add", "No Name", "--url", "https://example.com"), "name", 2),
        (("remove", "unknown", "--force"), "no webhook 'unknown'", 3),
        (("retry", str(uuid4())), "it is unknown, or was sent", 3),
        (("key", "https://example.com"), "WEBHOOK_SECRET is not set", 4),
        (("test", "https://example.com"), "WEBHOOK_SECRET is not set", 4),
    ],
)
async def test_what_cannot_be_is_refused(cli: Cli, arguments: tuple[str, ...], why: str, code: int) -> None:
    """With what is wrong with it."""
    ran = await cli("webhooks", *arguments)
    assert (ran.code, why in ran.err) == (code, True), ran.err
