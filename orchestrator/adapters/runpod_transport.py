"""What carries the SDK's calls: replies of bounded size and time, and their headers within reach.

The SDK gives its replies no bound and hands over no headers, and has no hook for either: it calls `requests.request`
through the name `requests` of its module `runpod.api.rest`. `install` puts a Transport under that name.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

import requests
from runpod.api import rest

MAX_REPLY_BYTES = 32 * 1024 * 1024  # of one page: a pod's record is about 2 KiB
MAX_REPLY_S = 60.0  # however slowly a reply drips; the SDK's own timeout is for each read
CHUNK_BYTES = 64 * 1024
MAX_ERROR_BYTES = 64 * 1024
Result = TypeVar("Result")
Heard = Callable[[int | None, Mapping[str, str]], None]
_call = threading.local()


class Reply:
    """What the SDK reads of a response."""

    def __init__(self, status_code: int, content: bytes) -> None:
        self.status_code, self.content = status_code, content

    @property
    def text(self) -> str:
        """The body of an error, as far as it is worth reading."""
        return self.content[:MAX_ERROR_BYTES].decode("utf-8", "replace")

    def json(self) -> Any:
        """The body. InvalidJSONError, which is a requests error, if it is none, or nested too deeply."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError) as error:
            raise requests.exceptions.InvalidJSONError(type(error).__name__) from error


class Transport:
    """Stands in for the module `requests` in the SDK."""

    def request(self, method: str, url: str, **said: Any) -> Reply:
        """Make one request. Raises what `requests` raises; ContentDecodingError for a reply without a bound."""
        status: int | None = None
        headers: Mapping[str, str] = {}
        try:
            response = requests.request(method, url, stream=True, **said)  # noqa: S113 - the SDK says a timeout
            with response:
                status, headers = response.status_code, response.headers
                return Reply(status, _body(response, begun_s=time.monotonic()))
        finally:
            heard: Heard | None = getattr(_call, "heard", None)
            if heard is not None:
                heard(status, headers)


def _body(response: requests.Response, begun_s: float) -> bytes:
    most = MAX_REPLY_BYTES if response.status_code < HTTPStatus.BAD_REQUEST else MAX_ERROR_BYTES
    content = bytearray()
    for chunk in response.iter_content(CHUNK_BYTES):
        content += chunk
        if len(content) > most:
            raise requests.exceptions.ContentDecodingError(f"more than {most} bytes")
        if time.monotonic() - begun_s > MAX_REPLY_S:
            raise requests.exceptions.ReadTimeout(f"not complete within {MAX_REPLY_S:g} s")
    return bytes(content)


def install() -> None:
    """Put the transport into the SDK; its functions are otherwise unmodified."""
    if not isinstance(vars(rest).get("requests"), Transport):
        if vars(rest).get("requests") is not requests:
            raise RuntimeError("this version of the runpod SDK makes its calls in another way: pin runpod 2.0")
        vars(rest)["requests"] = Transport()


def heard_by(heard: Heard, request: Callable[[], Result]) -> Result:
    """Make a call of the SDK in this thread; `heard` is told the status and headers of each of its replies."""
    _call.heard = heard
    try:
        return request()
    finally:
        _call.heard = None
