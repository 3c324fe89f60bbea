"""Sends one signed message to an address that somebody outside has chosen.

The name is resolved first, every address is checked, and the connection goes to the address that was checked: a name
that changes in between leads nowhere else. Redirects are not followed, proxies of the environment are not used, and
only the status of an answer is read. URLs contain secrets: no error, log or row of a failure quotes one.
"""

import asyncio
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from orchestrator.adapters.webhook_signatures import headers
from orchestrator.core.webhook_addresses import Network, is_public, is_within
from orchestrator.ports import PortError, Unavailable

TIMEOUT_S = 10.0  # for all of it: name, connection, request and status
LOOKUPS = 64  # threads that ask for a name at once; one cannot be interrupted
ADDRESSES = 3  # of one name that are tried
GONE = 410  # the receiver wants no more of it


class WebhookAddressRefused(PortError):
    """This message must not, or need not, be sent to this address."""


class ReceiverFailed(Unavailable):
    """The receiver answered that it did not take the message. The host itself works."""


@dataclass(frozen=True, slots=True)
class SendingRules:
    """What the operator allows."""

    secrets: Sequence[str]  # the first one is the current one
    private: Sequence[Network] = ()  # networks that may be reached although they are not public, also by http
    timeout_s: float = TIMEOUT_S


class WebhookSender:
    """All receivers."""

    def __init__(self, rules: SendingRules) -> None:
        self._rules = rules
        self._ssl = httpx.create_ssl_context()
        self._lookups = threading.BoundedSemaphore(LOOKUPS)

    async def send(self, message_id: str, url: str, body: Mapping[str, Any]) -> int:
        """Send and return the status. Raises WebhookAddressRefused, ReceiverFailed or Unavailable."""
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        try:
            async with asyncio.timeout(self._rules.timeout_s):
                status = await self._send(message_id, url, content)
        except TimeoutError:
            raise Unavailable(f"no answer within {self._rules.timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise Unavailable(f"the connection failed: {type(error).__name__}") from None
        if status == GONE:
            raise WebhookAddressRefused(f"it answered {status}: it wants no more messages")
        if not 200 <= status < 300:  # noqa: PLR2004  HTTP statuses of success
            raise ReceiverFailed(f"it answered {status}" + (": redirects are not followed" if status < 400 else ""))  # noqa: PLR2004
        return status

    async def _send(self, message_id: str, url: str, content: bytes) -> int:
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise WebhookAddressRefused("its URL names no host, or a port that is none") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise WebhookAddressRefused("its URL names no host, or a user")
        addresses = await self._resolved(parts.hostname, port)
        if not all(is_within(one, self._rules.private) for one in addresses):
            if not all(is_public(one) or is_within(one, self._rules.private) for one in addresses):
                raise WebhookAddressRefused("its address is not a public one, and not in WEBHOOK_PRIVATE_NETWORKS")
            if parts.scheme != "https":
                raise WebhookAddressRefused("its URL does not begin with https://")
        signed = headers(self._rules.secrets, url, message_id, int(time.time()), content)
        for address in addresses[:-1]:
            try:
                return await self._post(parts, address, signed, content)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._post(parts, addresses[-1], signed, content)

    async def _post(
        self, parts: urllib.parse.SplitResult, address: str, signed: Mapping[str, str], content: bytes
    ) -> int:
        """One connection for one message: a connection that is kept could be used for another name at this address."""
        host = f"[{address}]" if ":" in address else address
        target = parts._replace(netloc=f"{host}:{parts.port}" if parts.port else host)
        given = {"Content-Type": "application/json", "User-Agent": "gpu-orchestrator", "Host": parts.netloc, **signed}
        async with (
            httpx.AsyncClient(
                verify=self._ssl, timeout=self._rules.timeout_s, follow_redirects=False, trust_env=False
            ) as client,
            client.stream(
                "POST",
                urllib.parse.urlunsplit(target),
                content=content,
                headers=given,
                extensions={"sni_hostname": parts.hostname},
            ) as answer,
        ):
            return answer.status_code

    async def _resolved(self, host: str, port: int) -> Sequence[str]:
        """Return the IP addresses of a name, ADDRESSES at most. Raises Unavailable.

        The system's resolver blocks. In the threads that the process shares, slow names could delay everything else.
        """
        if not self._lookups.acquire(blocking=False):
            raise Unavailable("too many names are being looked up")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def answered(found: list[str]) -> None:
            if not answer.done():  # nobody waits any more
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
