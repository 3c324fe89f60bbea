"""What both clients send, and how often: everything but the sending itself."""

import contextlib
import hashlib
import json
import os
import random
import re
import ssl
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from gpu_orchestrator_client.errors import IncompleteOutput
from gpu_orchestrator_client.models import TaskEvent
from gpu_orchestrator_client.proxies import proxy_of

BASE = "/api/v1"
WAIT_S = 20.0  # of one call that waits; the service allows 25 s
ANSWER_S = 30.0  # for the service to answer
LATE_S = 2.0  # how much later than the end of its wait an answer may come
STREAM_SILENCE_S = 45.0  # the service sends a comment every 15 s
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 10.0
MAX_LINE_CHARS = 4 << 20
CHUNK_BYTES = 1 << 20
# Of an object: its bytes as they are stored.
DOWNLOAD = {"timeout": ANSWER_S, "follow_redirects": True, "headers": {"Accept-Encoding": "identity"}}
PAGE = 200  # tasks of one page at most
LOG_BYTES = 32 << 20  # of a log that are kept, those at its end
NAME_BYTES = 200  # of a downloaded file's name
NOT_A_PART = 422  # HTTP status: the log is longer than what the service searches for a part of it
REPEATED = frozenset({429, 502, 503, 504})  # HTTP statuses after which a request may be sent again
NOT_DONE = frozenset({429})  # … and those that say that nothing was done


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True  # without doing something twice

    def may_repeat(self, response: httpx.Response | None) -> bool:
        """Whether to send it again after this answer, or after none."""
        if response is None:
            return self.is_repeatable
        return response.status_code in (REPEATED if self.is_repeatable else NOT_DONE)


def place(url: str | None, token: str | None) -> tuple[str, dict[str, str]]:
    """The address of the API and the headers of each request. Raises ValueError with what is missing or wrong."""
    url = url or os.environ.get("GPU_ORCHESTRATOR_URL")
    token = token or os.environ.get("GPU_ORCHESTRATOR_TOKEN")
    if not url or not token:
        raise ValueError("no address or no token: pass them, or set GPU_ORCHESTRATOR_URL and GPU_ORCHESTRATOR_TOKEN")
    url, token = url.strip().strip("'\"").rstrip("/"), token.strip().strip("'\"")
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment:
        raise ValueError("the address is not a URL such as https://gpu.example.com: see GPU_ORCHESTRATOR_URL")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("the token has a character that no token has: see GPU_ORCHESTRATOR_TOKEN")
    return url.removesuffix(BASE) + BASE, {"Authorization": f"Bearer {token}"}


def outgoing(url: str) -> dict[str, Any]:
    """The arguments of an httpx client for this URL's host: the environment's proxy and certificates.

    Raises ValueError if a variable about proxies cannot be used.
    """
    return {"proxy": proxy_of(url, os.environ), "verify": _trusted(), "trust_env": False}


@cache
def _trusted() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def pauses(retries: int) -> Iterator[float]:
    """Seconds before each repetition, with jitter."""
    for number in range(retries):
        yield min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**number) * random.uniform(0.5, 1)  # noqa: S311


def answer_s(left_s: float | None) -> float:
    """How long to wait for an answer, if the caller has so many seconds left."""
    return ANSWER_S if left_s is None else min(ANSWER_S, max(0.0, left_s) + LATE_S)


def is_answer(response: httpx.Response) -> bool:
    """Whether it is an answer of the service to a request that it has fulfilled: not a page, nor a redirect."""
    return response.is_success and "json" in response.headers.get("content-type", "")


def pause_of(response: httpx.Response | None, planned_s: float) -> float:
    """The pause, at least as long as the service asks for."""
    asked = response.headers.get("retry-after", "") if response is not None else ""
    return max(planned_s, min(float(asked), 60.0)) if asked.isdecimal() else planned_s


def submission(task: Mapping[str, Any], key: str | None) -> Call:
    """One task, under a key that every repetition has."""
    return Call("POST", "/tasks", body=dict(task), headers={"Idempotency-Key": key or uuid.uuid4().hex})


def submissions(tasks: Sequence[Mapping[str, Any]], key: str | None) -> Call:
    """Several tasks."""
    body = {"tasks": [dict(task) for task in tasks]}
    return Call("POST", "/tasks/batch", body=body, headers={"Idempotency-Key": key or uuid.uuid4().hex})


class Pages:
    """The pages of a list of tasks, up to a number of tasks; None for all."""

    def __init__(self, filters: Mapping[str, Any], limit: int | None) -> None:
        self._filters, self._left = filters, limit
        self._cursor: str | None = None
        self._is_over = limit is not None and limit <= 0

    def next(self) -> Call | None:
        """The question for the next page; None after the last one."""
        if self._is_over:
            return None
        size = {} if self._left is None else {"limit": min(self._left, PAGE)}
        place = {"cursor": self._cursor} if self._cursor else {}
        return Call("GET", "/tasks", params={**self._filters, **size, **place})

    def taken(self, page: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """The tasks of a page that are wanted."""
        rows: Sequence[Mapping[str, Any]] = page["tasks"][: self._left]
        if self._left is not None:
            self._left -= len(rows)
        self._cursor = page["next"]
        self._is_over = self._cursor is None or self._left == 0
        return rows


def of_task(task_id: str, end: str = "", **params: Any) -> Call:
    """A question about one task."""
    return Call("GET", f"/tasks/{quote(task_id, safe='')}{end}", params=params)


def action(task_id: str, name: str, version: str | None) -> Call:
    """Cancel or retry. A second retry of one failure would be another one, so it is not repeated."""
    headers = {"If-Match": f'"{version}"'} if version else {}
    path = f"/tasks/{quote(task_id, safe='')}/{name}"
    return Call("POST", path, headers=headers, is_repeatable=name == "cancel" or version is not None)


def file_name(location: str) -> str:
    """The last part of a location, as a name that stays within its directory."""
    name = re.sub(r"[^\w.\- ]", "_", urlsplit(location).path.rpartition("/")[2])
    name = name.encode()[-NAME_BYTES:].decode(errors="ignore")  # its end is the kind of file
    return name.lstrip(".") or "output"


def log_part(task_id: str, attempt: int | None, **params: Any) -> Call:
    """A question about the log of an attempt."""
    return of_task(task_id, "/logs", **params, **({"attempt": attempt} if attempt else {}))


class Received:
    """What has arrived of an output, compared with what its task stored, as far as the service knows that."""

    def __init__(self, location: str, size_bytes: int | None, sha256: str | None) -> None:
        self._location, self._size, self._sha256 = location, size_bytes, sha256
        self._bytes, self._digest = 0, hashlib.sha256()

    def add(self, chunk: bytes) -> bytes:
        """Count a chunk, and return it."""
        self._bytes += len(chunk)
        self._digest.update(chunk)
        return chunk

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        """Raise IncompleteOutput where the connection breaks."""
        try:
            yield
        except httpx.TransportError as error:
            why = f"{type(error).__name__}: {error}"
            raise IncompleteOutput(f"the connection for {self._location} broke: {why}") from error

    def check(self) -> None:
        """Raise IncompleteOutput unless every byte is there."""
        if self._size not in (None, self._bytes):
            raise IncompleteOutput(f"{self._bytes} of {self._size} bytes of {self._location} arrived")
        if self._sha256 not in (None, self._digest.hexdigest()):
            raise IncompleteOutput(f"other bytes of {self._location} arrived than were stored")


class LogText:
    """The log of an attempt, part by part: its last LOG_BYTES, and how much is left out before."""

    def __init__(self) -> None:
        self._parts: deque[tuple[int, str]] = deque()  # each with the offset of its end
        self._left_out = self.next = 0
        self._lost = ""

    def add(self, text: str, following: int) -> None:
        """Add what comes next, up to the offset `following`."""
        self._parts.append((following, text))
        self.next = following
        while following - self._left_out > LOG_BYTES and len(self._parts) > 1:
            self._left_out, _ = self._parts.popleft()

    def note(self, part: Mapping[str, Any]) -> None:
        """Note whether bytes of it were lost; an earlier service does not say it."""
        if part.get("ended") and not part.get("complete", True):
            known = part.get("missing_bytes")
            what = f"{known} bytes of this log are missing" if known else "the end of this log may be missing"
            self._lost = f"--- {what}: the pod was lost\n"

    def __str__(self) -> str:
        """The text; the first lines say what is left out, and whether bytes are missing."""
        said = f"--- the first {self._left_out} bytes of this log are left out\n" if self._left_out else ""
        return said + self._lost + "".join(text for _, text in self._parts)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """A server-sent event. A comment that nothing more is there yet has the name SO_FAR."""

    name: str
    id: str
    content: Mapping[str, Any]

    def of_task(self) -> TaskEvent:
        """As the event of a task."""
        names = ("status", "progress", "attempt")
        return TaskEvent(self.name, self.id, *(self.content.get(name) for name in names))


class EventParser:
    """Server-sent events, line by line."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def of(self, line: str) -> StreamEvent | None:
        """The event that this line ends, if it ends one."""
        if len(line) > MAX_LINE_CHARS:
            raise ValueError(f"a line of more than {MAX_LINE_CHARS} characters")
        if line in COMMENTS_SO_FAR:
            return StreamEvent(SO_FAR, "", {})
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        return StreamEvent(fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"]))


SO_FAR = "so far"
COMMENTS_SO_FAR = frozenset({": that is all so far", ": still here"})
LAST_EVENTS = frozenset({"ended", "deleted"})
