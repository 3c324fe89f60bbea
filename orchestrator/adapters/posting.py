"""One POST of JSON to a receiver of messages: bounded in time and bytes, without redirects.

URLs contain secrets: no error quotes one.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import httpx

from orchestrator.ports import PortError, Unavailable

TIMEOUT_S = 10.0  # for all of it: name, connection, request and status
QUOTED_BYTES = 200  # of an answer that are read for an error
UNUSABLE = (OSError, ValueError, ImportError)  # a CA file, a name or a proxy that httpx cannot use


class WebhookRefused(PortError):
    """This message must not, or need not, be sent to this address: a repetition is useless."""


class ReceiverFailed(Unavailable):
    """The receiver answered that it did not take the message. The host itself works."""


async def accepted(
    sending: Coroutine[Any, Any, tuple[int, str]], *, timeout_s: float, is_final: Callable[[int], bool]
) -> int:
    """Wait for `post`, and return the status of success. Raises WebhookRefused, ReceiverFailed or Unavailable.

    `is_final` says after which other status a message is not sent again.
    """
    try:
        async with asyncio.timeout(timeout_s):
            status, answer = await sending
    except TimeoutError:
        raise Unavailable(f"no answer within {timeout_s:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, *UNUSABLE) as error:
        raise Unavailable(f"the connection failed: {type(error).__name__}") from None
    if httpx.codes.is_success(status):
        return status
    note = "redirects are not followed" if httpx.codes.is_redirect(status) else answer
    why = f"it answered {status}" + (f": {note}" if note else "")
    raise WebhookRefused(why) if is_final(status) else ReceiverFailed(why)


def encoded(body: Mapping[str, Any]) -> bytes:
    """Return the content of a request."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


async def post(
    url: str, content: bytes, headers: Mapping[str, str], *, quotes: bool = False, sni: str | None = None, **client: Any
) -> tuple[int, str]:
    """Return the status and, with `quotes`, the beginning of a refusal. `client`: arguments of httpx.AsyncClient.

    One connection for one message: a connection that is kept could be used for another name at the same address.
    """
    given = {"Content-Type": "application/json", "User-Agent": "gpu-orchestrator", **headers}
    async with (
        httpx.AsyncClient(follow_redirects=False, **client) as http,
        http.stream(
            "POST", url, content=content, headers=given, extensions={"sni_hostname": sni} if sni else None
        ) as answer,
    ):
        reads = quotes and not answer.is_success
        beginning = await anext(answer.aiter_raw(QUOTED_BYTES), b"") if reads else b""
        return answer.status_code, " ".join(beginning.decode("utf-8", "replace").split())
