"""A pod's system log: server-sent events that do not end while the pod lives, read until they pause."""

import json
import os
from collections.abc import Iterator
from http import HTTPStatus

import requests
from runpod.error import AuthenticationError, QueryError
from runpod.user_agent import USER_AGENT

CONNECT_TIMEOUT_S = 5.0
PAUSE_S = 2.0  # silence after which what came is all there is
TAIL_LINES = 100
MAX_BYTES = 64 * 1024
MAX_MESSAGE_CHARACTERS = 500


def system_log(pod_id: str, api_key: str) -> str:
    """The last TAIL_LINES lines, oldest first. Raises what the SDK and requests raise."""
    path = f"/v2/pods/{pod_id}/logs"
    with requests.get(
        os.environ["RUNPOD_API_BASE_URL"] + path,
        params={"source": "system", "tail": str(TAIL_LINES)},
        headers={"Accept": "text/event-stream", "User-Agent": USER_AGENT, "Authorization": f"Bearer {api_key}"},
        timeout=(CONNECT_TIMEOUT_S, PAUSE_S),
        stream=True,
    ) as response:
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            raise AuthenticationError("Unauthorized request")
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            raise QueryError(f"no log of pod {pod_id}", f"GET {path}", status_code=response.status_code)
        return "\n".join(_messages(response))


def _messages(response: requests.Response) -> Iterator[str]:
    seen = lines = 0
    try:
        for line in response.iter_lines(chunk_size=1):
            seen += len(line)
            if line.startswith(b"data:"):
                lines += 1
                yield _message(line.removeprefix(b"data:"))
            if lines >= TAIL_LINES or seen > MAX_BYTES:
                return
    except requests.ConnectionError:  # what requests makes of a pause in a stream; the answer itself was a good one
        return


def _message(event: bytes) -> str:
    text = event.decode("utf-8", "replace").strip()
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return text[:MAX_MESSAGE_CHARACTERS]
    message = fields.get("message") if isinstance(fields, dict) else None
    return str(message if message is not None else text)[:MAX_MESSAGE_CHARACTERS]
