"""Sends one message to an operator's address: JSON, or the format of Slack or Discord, depending on the URL.

The URL is a secret: no error, log or row contains it. Redirects are not followed. Only the beginning of an answer is
read.
"""

import asyncio
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

import httpx

from orchestrator.ports import PortError, Unavailable

TIMEOUT_S = 10.0  # seconds for a whole request
ANSWER_BYTES = 4096
UNUSABLE = (OSError, ValueError, ImportError)  # a CA file, a name or a proxy that httpx cannot use
DISCORD_CHARS, SLACK_CHARS = 2_000, 3_000
MARKDOWN = re.compile(r"[\\`*_~|<>#\[\]]")  # a pod's text must not become a link, or a heading
MARKS = {"opened": "ALERT", "resolved": "RESOLVED", "summary": "MORE ALERTS", "test": "TEST"}


class WebhookRefused(PortError):
    """The address refuses this message, so a repetition is useless."""


class Webhook:
    """One address."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._url, self._host = url, urllib.parse.urlsplit(url).hostname or ""
        self._is_here = self._host == "localhost" or self._host.startswith("127.")  # without the environment's proxy

    async def send(self, message_id: str, body: Mapping[str, Any]) -> int:
        """Send a message and return the status. Raises Unavailable or WebhookRefused."""
        headers = {"Idempotency-Key": message_id, "User-Agent": "gpu-orchestrator"}
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                httpx.AsyncClient(
                    timeout=self._timeout_s, follow_redirects=False, trust_env=not self._is_here
                ) as client,
                client.stream("POST", self._url, json=self.form(message_id, body), headers=headers) as answer,
            ):
                beginning = await _beginning(answer)
        except TimeoutError:
            raise Unavailable(f"no answer within {self._timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, *UNUSABLE) as error:
            raise Unavailable(f"the connection failed: {type(error).__name__}") from None
        if answer.is_success:
            return answer.status_code
        why = f"it answered {answer.status_code}" + (f": {beginning}" if beginning else "")
        if answer.status_code in {408, 425, 429} or answer.status_code >= 500:  # noqa: PLR2004  a failure of the server
            raise Unavailable(why)
        raise WebhookRefused(why)

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


async def _beginning(answer: httpx.Response) -> str:
    content = b""
    async for piece in answer.aiter_raw(1024):
        content += piece
        if len(content) >= ANSWER_BYTES:
            break
    return " ".join(content[:200].decode("utf-8", "replace").split())
