"""Sends one signed message to an address that a user has chosen.

The name is resolved first, every address is checked, and the connection goes to the address that was checked: a name
that changes in between leads nowhere else. Redirects are not followed, proxies of the environment are not used, and
only the status of an answer is read. URLs contain secrets: no error, log or row of a failure quotes one.
"""

import asyncio
import socket
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from orchestrator.adapters.http_client import trusted
from orchestrator.adapters.posting import TIMEOUT_S, WebhookRefused, accepted, encoded, post
from orchestrator.adapters.webhook_signatures import headers
from orchestrator.core.webhook_addresses import Network, is_public, is_within
from orchestrator.ports import Unavailable

LOOKUPS = 256  # threads that ask for a name at once; one cannot be interrupted, and may outlive its message by 30 s
ADDRESSES = 3  # of one name that are tried
GONE = 410  # the receiver wants no more of it
NOT_HTTPS = "its URL does not begin with https://"


@dataclass(frozen=True, slots=True)
class SendingRules:
    """What the operator allows."""

    secrets: Sequence[str]  # the first one is the current one
    private: Sequence[Network] = ()  # networks that may be reached although they are not public, also by http
    timeout_s: float = TIMEOUT_S


class WebhookSender:
    """Sends messages to any receiver."""

    def __init__(self, rules: SendingRules) -> None:
        self._rules = rules
        self._ssl = trusted()
        self._lookups = threading.BoundedSemaphore(LOOKUPS)

    async def send(self, message_id: str, url: str, body: Mapping[str, Any]) -> int:
        """Send and return the status. Raises WebhookRefused, ReceiverFailed or Unavailable."""
        sending = self._send(message_id, url, encoded(body))
        return await accepted(sending, timeout_s=self._rules.timeout_s, is_final=GONE.__eq__)

    async def check(self, url: str) -> None:
        """Raise WebhookRefused for an address to which nothing is ever sent, and Unavailable if that is not known."""
        try:
            async with asyncio.timeout(self._rules.timeout_s):
                await self._allowed(url)
        except TimeoutError:
            raise Unavailable("its name was not found in time") from None

    async def _allowed(self, url: str) -> tuple[urllib.parse.SplitResult, Sequence[str]]:
        """Return the parts of a URL, and the addresses of its host. Raises WebhookRefused or Unavailable."""
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise WebhookRefused("its URL names no host, or a port that is none") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise WebhookRefused("its URL names no host, or a user")
        try:
            addresses = await self._resolved(parts.hostname, port)
        except Unavailable:
            if parts.scheme != "https" and not self._rules.private:  # whatever addresses it has
                raise WebhookRefused(NOT_HTTPS) from None
            raise
        if not all(is_within(one, self._rules.private) for one in addresses):
            if not all(is_public(one) or is_within(one, self._rules.private) for one in addresses):
                raise WebhookRefused("its address is not a public one, and not in WEBHOOK_PRIVATE_NETWORKS")
            if parts.scheme != "https":
                raise WebhookRefused(NOT_HTTPS)
        return parts, addresses

    async def _send(self, message_id: str, url: str, content: bytes) -> tuple[int, str]:
        parts, addresses = await self._allowed(url)
        signed = headers(self._rules.secrets, url, message_id, int(time.time()), content)
        for address in addresses[:-1]:
            try:
                return await self._post(parts, address, signed, content)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._post(parts, addresses[-1], signed, content)

    async def _post(
        self, parts: urllib.parse.SplitResult, address: str, signed: Mapping[str, str], content: bytes
    ) -> tuple[int, str]:
        host = f"[{address}]" if ":" in address else address
        target = parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host).geturl()
        given, timeout_s = {"Host": parts.netloc, **signed}, self._rules.timeout_s
        return await post(
            target, content, given, sni=parts.hostname, verify=self._ssl, timeout=timeout_s, trust_env=False
        )

    async def _resolved(self, host: str, port: int) -> Sequence[str]:
        """Return the IP addresses of a name, ADDRESSES at most. Raises Unavailable.

        The system's resolver blocks. In the threads that the process shares, slow names could delay everything else.
        """
        if not self._lookups.acquire(blocking=False):
            raise Unavailable("too many names are being looked up")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def answered(found: list[str]) -> None:
            if not answer.done():  # the caller has gone
                answer.set_result(found)

        def look_up() -> None:
            found: list[str] = []
            with suppress(OSError, ValueError):  # no such name; a name that cannot be encoded
                rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                found = list(dict.fromkeys(str(row[4][0]) for row in rows))
            self._lookups.release()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(answered, found)

        threading.Thread(target=look_up, name="webhook_name", daemon=True).start()
        addresses = await answer
        if not addresses:
            raise Unavailable("its name has no address")
        return addresses[:ADDRESSES]
