"""Spans of tasks, from rows to a collector that decodes what it gets."""

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from orchestrator.adapters.otlp import MAX_WAITING, OtlpExporter
from orchestrator.core.task_spans import TaskSpan, spans_of
from orchestrator.leader_jobs.traces import Traces
from tests.db.conformance.builders import FLEET, Fleet

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """What a collector has got."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.counts: Counter[str] = Counter()
        self.status = 200
        self.go_on = threading.Event()
        self.url = ""

    def count(self, result: str, spans: int) -> None:
        """What the exporter counts."""
        self.counts[result] += spans

    async def until(self, result: str, spans: int) -> None:
        """Wait until so many were counted."""
        async with asyncio.timeout(30):
            while self.counts[result] < spans:
                await asyncio.sleep(0.01)


@contextmanager
def collecting(*, holds: bool = False) -> Iterator[Collector]:
    """A collector on this machine; one that holds answers nothing until it may go on."""
    collector = Collector()
    if not holds:
        collector.go_on.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.go_on.wait(30)
            assert self.path == "/v1/traces"
            for one in ExportTraceServiceRequest.FromString(body).resource_spans:
                about = {item.key: item.value.string_value for item in one.resource.attributes}
                collector.resources.append(about)
                collector.spans += [span for scope in one.scope_spans for span in scope.spans]
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        collector.go_on.set()
        server.shutdown()
        server.server_close()


async def test_a_tasks_attempts_are_spans_of_the_submitters_trace(fleet: Fleet) -> None:
    """A first attempt that failed and a second one. The next leader makes the same spans again."""
    (task_id,) = await fleet.submit({"traceparent": f"00-{TRACE}-{PARENT}-01", "task_type": "film"})
    agent = await fleet.agent()
    fleet.wait(7)
    (task,) = await agent.claim()
    fleet.wait(3)
    await agent.fail(task, code="HANDLER_ERROR")
    fleet.wait(300)
    (task,) = await agent.claim()
    fleet.wait(5)
    await agent.complete(task)
    await fleet.submit({"traceparent": f"00-{TRACE}-{PARENT}-00"})  # not sampled
    await agent.complete((await agent.claim())[0])
    fleet.wait(60)
    with collecting() as collector:
        exporter = OtlpExporter(collector.url, FLEET, "1", collector.count)
        for _ in range(2):
            await Traces(fleet, FLEET, exporter).step(fleet.term)  # type: ignore[arg-type]
        await collector.until("exported", 10)
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    ids = Counter((span.name, span.span_id) for span in collector.spans)
    assert (len(ids), set(ids.values())) == (5, {2})
    spans = {(span.name, span.start_time_unix_nano): span for span in collector.spans}
    submit, first_wait, first, second_wait, second = sorted(spans.values(), key=lambda one: one.start_time_unix_nano)
    assert [one.name for one in (submit, first_wait, first, second_wait, second)] == [
        "submit", "queued", "attempt", "queued", "attempt",
    ]  # fmt: skip
    assert submit.parent_span_id.hex() == PARENT
    assert {one.parent_span_id for one in (first_wait, first, second_wait, second)} == {submit.span_id}
    seconds = [(one.end_time_unix_nano - one.start_time_unix_nano) / 1e9 for one in (first_wait, first, second)]
    assert seconds == [7, 3, 5]
    assert (first.status.message, second.status.message) == ("HANDLER_ERROR", "")
    about = {item.key: item.value.string_value for item in first.attributes}
    assert (about["gpu_orchestrator.task_id"], about["gpu_orchestrator.task_type"]) == (task_id, "film")
    assert collector.resources[0]["gpu_orchestrator.fleet"] == FLEET


async def test_an_upload_is_a_span_of_its_attempt(fleet: Fleet) -> None:
    """Its agent says with the completion when it was, in seconds since the claim."""
    agent = await fleet.agent()
    for said in ({"started_s": 40, "ended_s": 55.5}, {"started_s": 50, "ended_s": 60.2}, None):  # None: an older agent
        (task_id,) = await fleet.submit({"traceparent": f"00-{TRACE}-{PARENT}-01"})
        await agent.claim()
        fleet.wait(60)
        output = {"p_output": {"etag": "e", "upload": said}} if said else {"p_output": {"etag": "e"}}
        args = {"p_task_id": task_id, "p_attempt": 1, "p_output_location": "s3://b/k", "p_result_data": None}
        assert (await agent.call("complete_output", **args, **output))["outcome"] == "ok"
        stored = (await fleet.task(task_id))["output_object"]
        assert stored == {"etag": "e", "location": "s3://b/k"}
    fleet.wait(60)
    with collecting() as collector:
        await Traces(fleet, FLEET, OtlpExporter(collector.url, FLEET, "1", collector.count)).step(fleet.term)  # type: ignore[arg-type]
        await collector.until("exported", 11)
    attempts = {one.span_id: one.start_time_unix_nano for one in collector.spans if one.name == "attempt"}
    uploads = [
        [(at - attempts[one.parent_span_id]) / 1e9 for at in (one.start_time_unix_nano, one.end_time_unix_nano)]
        for one in collector.spans
        if one.name == "upload"
    ]
    assert sorted(uploads) == [[40, 55.5], [50, 60]]  # the clock of the second one's pod is a little fast


async def test_an_upload_that_cannot_have_been_is_unknown(fleet: Fleet) -> None:
    """The completion counts nevertheless, and the task's output has no word of it."""
    wrong: list[Any] = [
        {"started_s": -1, "ended_s": 5},
        {"started_s": 5, "ended_s": 4},
        {"started_s": 5, "ended_s": 46},  # later than the completion
        {"started_s": 5, "ended_s": 10**300},
        {"started_s": 5},
        {"started_s": "5", "ended_s": "6"},
        {"started_s": "NaN", "ended_s": "Infinity"},
        {"started_s": [], "ended_s": {}},
        {"started_s": None, "ended_s": None},
        [5, 6],
        "5",
        7,
    ]
    agent = await fleet.agent()
    for said in wrong:
        (task_id,) = await fleet.submit({})
        await agent.claim()
        fleet.wait(40)
        args = {"p_task_id": task_id, "p_attempt": 1, "p_output_location": "x", "p_result_data": None}
        assert (await agent.call("complete_output", **args, p_output={"upload": said}))["outcome"] == "ok"
        assert (await fleet.task(task_id))["output_object"] is None
    attempts = (await fleet.fleet("ended_attempts", p_cursor=None, p_lag_s=0, p_limit=99))["attempts"]
    assert len(attempts) == len(wrong)
    assert {(one["upload_started_at"], one["upload_ended_at"]) for one in attempts} == {(None, None)}


def span(number: int) -> TaskSpan:
    """Some span."""
    row = {"task_id": "4bf92f35-77b3-4da6-a3ce-929d0e0e4736", "attempt": number, "traceparent": None}
    row |= {f"{name}_at": "2026-01-01T00:00:00+00:00" for name in ("created", "started", "ended")}
    return spans_of({**row, "outcome": "complete", "previous_end": None})[-1]


async def test_a_collector_that_does_not_answer_delays_nothing() -> None:
    """What does not fit into the queue is dropped and counted; what waits is sent when it answers again."""
    with collecting(holds=True) as collector:
        exporter = OtlpExporter(collector.url, "f", "1", collector.count)
        for _ in range(100):
            exporter.put([span(1)] * 100)
        assert collector.counts["dropped"] >= 10_000 - MAX_WAITING - 1_000
        collector.go_on.set()
        await collector.until("exported", 10_000 - collector.counts["dropped"])


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_collector_that_refuses_or_is_not_there_is_counted(is_there: bool) -> None:
    """The next spans are tried again."""
    with collecting() as collector:
        collector.status = 401
    with collecting() as other:
        other.status = 401
        exporter = OtlpExporter(other.url if is_there else collector.url, "f", "1", other.count, timeout_s=1)
        for count in (1, 2):
            exporter.put([span(count)])
            await other.until("failed", count)


def test_without_a_collector_nothing_of_it_is_imported() -> None:
    """By the daemon."""
    program = "import sys, orchestrator.service; print([n for n in sys.modules if n.startswith('opentelemetry')])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
