"""The client for ordinary programs."""

import contextlib
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from gpu_orchestrator_client import protocol
from gpu_orchestrator_client.errors import ApiError, ServiceUnavailable, WaitTimeout
from gpu_orchestrator_client.models import TaskEvent, TaskInfo
from gpu_orchestrator_client.protocol import Call


class Client:
    """A service and a token. Close it, or use it in a `with` statement. Threads may share it."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        retries: int = 5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`retries`: how often a request is repeated after no answer, or 429, 502, 503 or 504."""
        base, headers = protocol.place(url, token)
        options = {"transport": transport} if transport else protocol.outgoing(base)
        self._http = httpx.Client(base_url=base, headers=headers, timeout=protocol.ANSWER_S, **options)
        self._retries = retries

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(
        self,
        task_type: str,
        params: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> "Task":
        """Submit a task, once. `fields`: pool, priority, depends_on, dedupe_key, labels, traceparent and others."""
        task = {"task_type": task_type, "params": dict(params or {}), **fields}
        return Task(self, self.send(protocol.submission(task, idempotency_key)).json()["id"])

    def submit_many(self, tasks: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None) -> list["Task"]:
        """Submit tasks, all or none, once. Each is {"task_type": …, "params": …, …}."""
        answer = self.send(protocol.submissions(tasks, idempotency_key)).json()
        return [Task(self, task["id"]) for task in answer["tasks"]]

    def task(self, task_id: str) -> "Task":
        """A task by its id; nothing is asked yet."""
        return Task(self, task_id)

    def tasks(self, *, limit: int | None = None, **filters: Any) -> Iterator[TaskInfo]:
        """Tasks, newest first, `limit` at most, page by page. `filters`: status, task_type, tenant, label."""
        pages = protocol.Pages(filters, limit)
        while (call := pages.next()) is not None:
            yield from map(TaskInfo.of, pages.taken(self.send(call).json()))

    def send(self, call: Call, until: float | None = None) -> httpx.Response:
        """Send a request of the API, repeatedly if need be. Raises ApiError or ServiceUnavailable.

        `until`: the time.monotonic() after which it raises WaitTimeout in place of another try.
        """
        pauses = protocol.pauses(self._retries)
        while True:
            response, why = None, ""
            left_s = None if until is None else until - time.monotonic()
            try:
                response = self._http.request(
                    call.method,
                    call.path,
                    params=call.params,
                    json=call.body,
                    headers=dict(call.headers),
                    timeout=protocol.answer_s(left_s),
                )
            except (httpx.TransportError, httpx.DecodingError) as error:
                why = f"{type(error).__name__}: {error}"
            if response is not None and protocol.is_answer(response):
                return response
            pause_s = next(pauses, None) if call.may_repeat(response) else None
            if pause_s is None:
                if response is None:
                    raise ServiceUnavailable(why)
                raise ApiError.of(response)
            pause_s = protocol.pause_of(response, pause_s)
            if until is not None and time.monotonic() + pause_s > until:
                raise WaitTimeout(f"no answer in time: {response.status_code if response else why}")
            time.sleep(pause_s)

    def stream(self, call: Call, last_id: str) -> Any:
        """A stream of server-sent events, as a context manager."""
        headers = {"Last-Event-ID": last_id} if last_id else {}
        timeout = httpx.Timeout(protocol.ANSWER_S, read=protocol.STREAM_SILENCE_S)
        return self._http.stream(call.method, call.path, params=call.params, headers=headers, timeout=timeout)

    def download(self, url: str, target: Path, received: protocol.Received) -> None:
        """Write an object of the bucket to a file. Raises IncompleteOutput."""
        options = protocol.outgoing(url) | protocol.DOWNLOAD
        with (
            received.broken(),
            httpx.Client(**options) as bucket,  # never sees the token
            bucket.stream("GET", url) as response,
            target.open("wb") as file,
        ):
            if not response.is_success:
                response.read()
                raise ApiError.of(response)
            for chunk in response.iter_raw(protocol.CHUNK_BYTES):
                file.write(received.add(chunk))
        received.check()


class Task:
    """One task of a service."""

    def __init__(self, client: Client, task_id: str) -> None:
        self._client, self.id = client, task_id

    def info(self) -> TaskInfo:
        """The task now."""
        return TaskInfo.of(self._client.send(protocol.of_task(self.id)).json())

    def wait(self, timeout_s: float | None = None) -> TaskInfo:
        """The task when it has ended; None waits for ever. Raises WaitTimeout."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = protocol.WAIT_S if until is None else max(0.0, min(protocol.WAIT_S, until - time.monotonic()))
            answer = self._client.send(protocol.of_task(self.id, "/wait", timeout_s=left_s), until).json()
            if answer["ended"]:
                return TaskInfo.of(answer["task"])
            if until is not None and time.monotonic() >= until:
                raise WaitTimeout(f"task {self.id} is {answer['task']['status']} after {timeout_s:g} s")

    def events(self) -> Iterator[TaskEvent]:
        """Each change until the task has ended. A broken stream goes on. Raises ApiError or ServiceUnavailable."""
        for event in self._stream(protocol.of_task(self.id, "/events"), ""):
            if event.name != protocol.SO_FAR:
                yield event.of_task()

    def _stream(self, call: Call, last_id: str) -> Generator[protocol.StreamEvent]:
        """The events after one, to the last one."""
        pauses = protocol.pauses(self._client._retries)  # noqa: SLF001
        while True:
            parser, response = protocol.EventParser(), None
            try:
                with self._client.stream(call, last_id) as response:
                    if not response.is_success:
                        response.read()
                    for line in response.iter_lines() if response.is_success else ():
                        if (event := parser.of(line)) is not None:
                            last_id, pauses = event.id or last_id, protocol.pauses(self._client._retries)  # noqa: SLF001
                            yield event
                            if event.name in protocol.LAST_EVENTS:
                                return
            except httpx.TransportError:
                response = None
            if response is not None and not response.is_success and response.status_code not in protocol.REPEATED:
                raise ApiError.of(response)

            pause_s = next(pauses, None)
            if pause_s is None:
                raise ServiceUnavailable("the stream of events cannot be continued")
            time.sleep(protocol.pause_of(response, pause_s))

    def cancel(self, *, version: str | None = None) -> TaskInfo:
        """End it, a running one with its worker's next heartbeat; with a version, only if it still has that one."""
        return TaskInfo.of_action(self._client.send(protocol.action(self.id, "cancel", version)).json())

    def retry(self, *, version: str | None = None) -> TaskInfo:
        """Queue it again after Failed or Cancelled."""
        return TaskInfo.of_action(self._client.send(protocol.action(self.id, "retry", version)).json())

    def log(self, attempt: int | None = None) -> str:
        """The log of an attempt as far as it is stored, by default of the last one.

        Of a log of more than 32 MiB, the end; the first line says how many bytes are left out. If bytes were lost with
        a pod, the first line says so too.
        """
        text = protocol.LogText()
        try:
            while True:
                call = protocol.log_part(self.id, attempt, offset=text.next, limit=protocol.CHUNK_BYTES)
                part = self._client.send(call).json()
                text.note(part)
                if part["next"] == text.next:
                    return str(text)
                text.add(part["text"], part["next"])
        except ApiError as error:
            if error.status != protocol.NOT_A_PART:
                raise
        follow = protocol.log_part(self.id, attempt, follow="true")
        with contextlib.closing(self._stream(follow, str(text.next))) as events:
            for event in events:
                if event.name != "lines":
                    text.note({"ended": event.name == "ended", **event.content})
                    break
                text.add(event.content["text"], int(event.id))
        return str(text)

    def output(self) -> "Output":
        """Where its output lies. Raises ApiError if it has none."""
        call = protocol.of_task(self.id, "/output")
        answer = self._client.send(Call("GET", call.path, headers={"Accept": "application/json"})).json()
        return Output(self._client, answer)


class Output:
    """The output of a task. The URL is valid for five minutes."""

    def __init__(self, client: Client, facts: Mapping[str, Any]) -> None:
        self._client = client
        self.location: str = facts["location"]
        self.url: str | None = facts["url"]
        self.size_bytes: int | None = facts.get("bytes")
        self.sha256: str | None = facts.get("sha256")

    def save(self, directory: str | Path) -> Path:
        """Download it into a directory, under its own name; the file is there whole or not at all.

        Raises IncompleteOutput if other bytes arrive than were stored.
        """
        if self.url is None:
            raise ValueError(f"the output lies outside of the orchestrator's bucket: {self.location}")
        target = Path(directory) / protocol.file_name(self.location)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.part")
        try:
            self._client.download(self.url, partial, protocol.Received(self.location, self.size_bytes, self.sha256))
            return partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
