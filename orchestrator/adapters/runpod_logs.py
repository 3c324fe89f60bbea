"""A pod's system log: server-sent events that do not end while the pod exists, read until they pause."""

import json
import os
import time
from collections.abc import Iterator
from http import HTTPStatus

import requests
from runpod.error import AuthenticationError, QueryError
from runpod.user_agent import USER_AGENT

from orchestrator.adapters import http_deadline
from orchestrator.adapters.runpod_transport import refuse_redirect

CONNECT_TIMEOUT_S = 5.0
PAUSE_S = 2.0  # seconds without a new line after which the log counts as complete
MAX_READ_S = 8.0  # for which a log is read that never pauses
MAX_CALL_S = 20.0  # of the whole call
TAIL_LINES = 100
MAX_BYTES = 64 * 1024
MAX_MESSAGE_CHARACTERS = 500


def system_log(pod_id: str, api_key: str) -> str:
    """Return the last TAIL_LINES lines, oldest first. Raises the errors of the SDK and of requests."""
    path = f"/v2/pods/{pod_id}/logs"
    with http_deadline.response(
        "GET",
        os.environ["RUNPOD_API_BASE_URL"] + path,
        MAX_CALL_S,
        params={"source": "system", "tail": str(TAIL_LINES)},
        headers={"Accept": "text/event-stream", "User-Agent": USER_AGENT, "Authorization": f"Bearer {api_key}"},
        timeout=(CONNECT_TIMEOUT_S, PAUSE_S),
        allow_redirects=False,
    ) as response:
        refuse_redirect(response)
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            raise AuthenticationError("Unauthorized request")
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            raise QueryError(f"no log of pod {pod_id}", f"GET {path}", status_code=response.status_code)
        return "\n".join(_messages(response))


def _messages(response: requests.Response) -> Iterator[str]:
    """Yield the messages until the log pauses, and for MAX_READ_S at most: comments may keep it from pausing."""
    until_s = time.monotonic() + MAX_READ_S
    seen = lines = 0
    line = bytearray()
    try:
        for byte in response.iter_content(chunk_size=1):
            seen += len(byte)
            if byte != b"\n":
                line += byte
            else:
                if line.startswith(b"data:"):
                    lines += 1
                    yield _message(bytes(line).removeprefix(b"data:"))
                line.clear()
            if lines >= TAIL_LINES or seen > MAX_BYTES or time.monotonic() > until_s:
                return
    except requests.ConnectionError:  # requests raises this for a pause in a stream; the answer itself was good
        return


def _message(event: bytes) -> str:
    text = event.decode("utf-8", "replace").strip()
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return text[:MAX_MESSAGE_CHARACTERS]
    message = fields.get("message") if isinstance(fields, dict) else None
    return str(message if message is not None else text)[:MAX_MESSAGE_CHARACTERS]
