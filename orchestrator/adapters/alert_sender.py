"""Sends one message to an operator's address: JSON, or the format of Slack or Discord, depending on the URL.

The URL is a secret: no error, log or row contains it.
"""

import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from orchestrator.adapters.http_client import outgoing
from orchestrator.adapters.posting import TIMEOUT_S, accepted, encoded, post
from orchestrator.config.errors import SettingsError
from orchestrator.ports import Unavailable

DISCORD_CHARS, SLACK_CHARS = 2_000, 3_000
MARKDOWN = re.compile(r"[\\`*_~|<>#\[\]]")  # a pod's text must not become a link, or a heading
MARKS = {"opened": "ALERT", "resolved": "RESOLVED", "summary": "MORE ALERTS", "test": "TEST"}


class AlertSender:
    """One address of the operator, who may choose any, also behind a proxy of the environment."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._url, self._host = url, urllib.parse.urlsplit(url).hostname or ""

    async def send(self, message_id: str, body: Mapping[str, Any]) -> int:
        """Send a message and return the status. Raises WebhookRefused, ReceiverFailed or Unavailable."""
        content, given = encoded(self.form(message_id, body)), {"Idempotency-Key": message_id}
        try:
            client = outgoing(self._url)
        except SettingsError as error:
            raise Unavailable(str(error)) from None
        sending = post(self._url, content, given, quotes=True, timeout=self._timeout_s, **client)
        return await accepted(sending, timeout_s=self._timeout_s, is_final=_is_final)

    def form(self, message_id: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the JSON body of the request."""
        if self._host == "hooks.slack.com":
            text = line(message_id, body).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            return {"text": text[:SLACK_CHARS]}
        if self._host in {"discord.com", "discordapp.com", "canary.discord.com", "ptb.discord.com"}:
            text = MARKDOWN.sub(r"\\\g<0>", line(message_id, body))
            return {"content": text[:DISCORD_CHARS], "allowed_mentions": {"parse": []}}
        return {"schema_version": 1, "id": message_id, **body}


def line(message_id: str, body: Mapping[str, Any]) -> str:
    """Return the message as text for people."""
    head = f"{MARKS[body['event']]} [{body['severity']}] fleet {body['fleet']} (id {message_id})"
    parts = [head, body["text"], body.get("evidence"), f"fix: {body['fix']}" if body.get("fix") else None]
    return "\n".join(part for part in parts if part)


def _is_final(status: int) -> bool:
    return status not in {408, 425, 429} and status < 500  # noqa: PLR2004  others are failures of the server
