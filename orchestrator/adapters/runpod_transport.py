"""The transport of the SDK's calls: it limits the size and time of replies, and exposes their headers.

The SDK does not limit its replies, does not expose their headers, and has no hook for either: it calls
`requests.request` through the name `requests` of its module `runpod.api.rest`. `install` puts a RunPodTransport under
that name.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

import requests
from runpod.api import rest
from runpod.error import QueryError

from orchestrator.adapters import http_deadline

MAX_REPLY_BYTES = 32 * 1024 * 1024  # bytes of one page: a pod's record is about 2 KiB
MAX_REPLY_NODES = 1_000_000  # values and keys of one page: a pod's record has about 100
MAX_REPLY_S = 60.0  # of a whole call; the SDK's own timeout applies to each read
CHUNK_BYTES = 64 * 1024
MAX_ERROR_BYTES = 64 * 1024
MAX_HOST_CHARACTERS = 100  # of a host to which a reply redirects
NODE_BYTES = (b",", b":", b"[", b"{")
Result = TypeVar("Result")
ReplyObserver = Callable[[int | None, Mapping[str, str]], None]
_call = threading.local()


class Reply:
    """The part of a response that the SDK reads."""

    def __init__(self, status_code: int, content: bytes) -> None:
        self.status_code, self.content = status_code, content

    @property
    def text(self) -> str:
        """The body of an error, up to a limit."""
        return self.content[:MAX_ERROR_BYTES].decode("utf-8", "replace")

    def json(self) -> Any:
        """Decode the body.

        Raises InvalidJSONError (an error of requests) if it is not JSON, is nested too deeply or has too many values.
        """
        if _has_too_many_nodes(self.content):
            raise requests.exceptions.InvalidJSONError(f"more than {MAX_REPLY_NODES} values")
        try:  # without hooks in Python, the decoder holds the GIL, and so the event loop, until its end
            return json.loads(self.content, object_hook=lambda fields: fields, parse_int=lambda digits: int(digits))  # noqa: PLW0108
        except (ValueError, RecursionError) as error:
            raise requests.exceptions.InvalidJSONError(type(error).__name__) from error


class RunPodTransport:
    """Replaces the module `requests` in the SDK."""

    def request(self, method: str, url: str, **options: Any) -> Reply:
        """Make one request.

        Raises the errors of `requests`; ContentDecodingError for a reply beyond the limit; QueryError for a redirect.
        """
        status: int | None = None
        headers: Mapping[str, str] = {}
        try:
            with http_deadline.response(method, url, MAX_REPLY_S, allow_redirects=False, **options) as response:
                status, headers = response.status_code, response.headers
                refuse_redirect(response)
                if method == "GET" and HTTPStatus.OK < status < HTTPStatus.MULTIPLE_CHOICES:
                    raise requests.exceptions.ContentDecodingError(f"status {status}: the list may be incomplete")
                return Reply(status, _body(response))
        finally:
            observer: ReplyObserver | None = getattr(_call, "observer", None)
            if observer is not None:
                observer(status, headers)


def refuse_redirect(response: requests.Response) -> None:
    """Raise QueryError for a redirect: the request carries secrets, and the answer of another host proves nothing."""
    if not HTTPStatus.MULTIPLE_CHOICES <= response.status_code < HTTPStatus.BAD_REQUEST:
        return
    host = re.split(r"[/?#]", response.headers.get("Location", "").partition("//")[2])[0].rpartition("@")[2]
    to = f" to {host[:MAX_HOST_CHARACTERS]!a}" if host else ""
    why = f"the API redirects{to}; redirects are not followed; check RUNPOD_API_BASE_URL"
    raise QueryError(why, str(response.request.method), status_code=response.status_code)


def _has_too_many_nodes(content: bytes) -> bool:
    """Count values and keys outside of strings. Of a body that is not JSON, no more is decoded than is counted."""
    if sum(map(content.count, NODE_BYTES)) <= MAX_REPLY_NODES:
        return False
    plain = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * MAX_REPLY_NODES:
        return True
    structure = b"".join(plain.split(b'"')[::2])
    return sum(map(structure.count, NODE_BYTES)) > MAX_REPLY_NODES


def _body(response: requests.Response) -> bytes:
    most = MAX_REPLY_BYTES if response.status_code < HTTPStatus.BAD_REQUEST else MAX_ERROR_BYTES
    content = bytearray()
    for chunk in response.iter_content(CHUNK_BYTES):
        content += chunk
        if len(content) > most:
            raise requests.exceptions.ContentDecodingError(f"more than {most} bytes")
    return bytes(content)


def install() -> None:
    """Install the transport in the SDK, which is otherwise unmodified."""
    if not isinstance(vars(rest).get("requests"), RunPodTransport):
        if vars(rest).get("requests") is not requests:
            raise RuntimeError("this version of the runpod SDK makes its calls in another way: pin runpod 2.0")
        vars(rest)["requests"] = RunPodTransport()


def observed_call(observer: ReplyObserver, request: Callable[[], Result]) -> Result:
    """Make a call of the SDK in this thread. `observer` gets the status and headers of each of its replies."""
    _call.observer = observer
    try:
        return request()
    finally:
        _call.observer = None
