"""What both clients send, and how often: everything but the sending itself."""

import json
import os
import random
import re
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from gpu_orchestrator_client.models import TaskEvent

BASE = "/api/v1"
WAIT_S = 20.0  # of one call that waits; the service allows 25 s
ANSWER_S = 30.0  # for the service to answer
LATE_S = 2.0  # how much later than the end of its wait an answer may come
STREAM_SILENCE_S = 45.0  # the service sends a comment every 15 s
FIRST_PAUSE_S, MAX_PAUSE_S = 0.2, 10.0
MAX_LINE_CHARS = 4 << 20
CHUNK_BYTES = 1 << 20
LOG_BYTES = 32 << 20  # of a log that are kept, those at its end
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
    """The address of the API and the headers of each request. Raises ValueError with what is missing."""
    url = url or os.environ.get("GPU_ORCHESTRATOR_URL")
    token = token or os.environ.get("GPU_ORCHESTRATOR_TOKEN")
    if not url or not token:
        raise ValueError("no address or no token: pass them, or set GPU_ORCHESTRATOR_URL and GPU_ORCHESTRATOR_TOKEN")
    return url.rstrip("/").removesuffix(BASE) + BASE, {"Authorization": f"Bearer {token}"}


def pauses(retries: int) -> Iterator[float]:
    """Seconds before each repetition, with jitter."""
    for number in range(retries):
        yield min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**number) * random.uniform(0.5, 1)  # noqa: S311


def answer_s(left_s: float | None) -> float:
    """How long to wait for an answer, if the caller has so many seconds left."""
    return ANSWER_S if left_s is None else min(ANSWER_S, max(0.0, left_s) + LATE_S)


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
    name = re.sub(r"[^\w.\- ]", "_", urlsplit(location).path.rpartition("/")[2]).lstrip(".")
    return name[:200] or "output"


def log_part(task_id: str, attempt: int | None, **params: Any) -> Call:
    """A question about the log of an attempt."""
    return of_task(task_id, "/logs", **params, **({"attempt": attempt} if attempt else {}))


class LogText:
    """The log of an attempt, part by part: its last LOG_BYTES, and how much is left out before."""

    def __init__(self) -> None:
        self._parts: deque[tuple[int, str]] = deque()  # each with the offset of its end
        self._left_out = self.next = 0

    def add(self, text: str, following: int) -> None:
        """Add what comes next, up to the offset `following`."""
        self._parts.append((following, text))
        self.next = following
        while following - self._left_out > LOG_BYTES and len(self._parts) > 1:
            self._left_out, _ = self._parts.popleft()

    def __str__(self) -> str:
        """The text; the first line says what is left out."""
        said = f"--- the first {self._left_out} bytes of this log are left out\n" if self._left_out else ""
        return said + "".join(text for _, text in self._parts)


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
