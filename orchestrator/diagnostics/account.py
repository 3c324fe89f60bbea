"""RunPod's data about the account beyond the port `Cloud`: its balance, and queries of the catalogue."""

import asyncio
import json
from collections.abc import Awaitable
from math import isfinite
from typing import Any

import httpx

from orchestrator.adapters import http_client
from orchestrator.ports import Unavailable

TIMEOUT_S = 10.0
ANSWER_BYTES = 65_536  # of the answer about the balance
BALANCE = {"query": "query { myself { clientBalance currentSpendPerHr } }"}


def account(base_url: str, api_key: str) -> httpx.AsyncClient:
    """Return a client with this key. Raises SettingsError."""
    headers = {"Authorization": f"Bearer {api_key}"}
    return http_client.client(base_url, base_url=base_url, headers=headers, timeout=TIMEOUT_S)


async def money(client: httpx.AsyncClient) -> tuple[float, float]:
    """Return the balance, and what the account spends per hour, in dollars.

    Only RunPod's old API (GraphQL) shows them, which ends in 2027: Unavailable, and nothing else may depend on them.
    """
    try:
        async with asyncio.timeout(TIMEOUT_S), client.stream("POST", "/graphql", json=BALANCE) as reply:
            reply.raise_for_status()
            myself = json.loads(await _bounded(reply))["data"]["myself"]
        balance_usd, hourly_usd = float(myself["clientBalance"]), float(myself["currentSpendPerHr"] or 0)
    except httpx.HTTPStatusError as error:
        raise Unavailable(f"RunPod shows no balance to programs ({error.response.status_code})") from error
    except (httpx.HTTPError, TimeoutError) as error:
        raise Unavailable(f"{type(error).__name__}: {error}".rstrip(": ")) from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Unavailable(f"RunPod does not show it to this key: {error}") from error
    if not (isfinite(balance_usd) and isfinite(hourly_usd)):
        raise Unavailable("the balance is no number")
    return balance_usd, hourly_usd


async def _bounded(reply: httpx.Response) -> bytes:
    content = b""
    async for piece in reply.aiter_bytes(1024):
        content += piece
        if len(content) > ANSWER_BYTES:
            raise Unavailable(f"the answer has more than {ANSWER_BYTES} bytes")
    return content


async def answer(request: Awaitable[httpx.Response]) -> Any:
    """Return the JSON of a reply. Raises Unavailable."""
    try:
        reply = await request
        reply.raise_for_status()
        return reply.json()
    except (httpx.HTTPError, ValueError) as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error
