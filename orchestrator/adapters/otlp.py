"""Spans to a collector, over OTLP/HTTP with the OpenTelemetry SDK, from a thread with a bounded queue.

Only this module imports the SDK, and only when an exporter is made.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from orchestrator.adapters.http_deadline import session_for
from orchestrator.core.task_spans import TaskSpan

MAX_WAITING = 4_096  # spans; more are dropped
BATCH = 512  # spans of one request
TIMEOUT_S = 10.0  # of one request with its repetitions
Count = Callable[[str, int], None]  # exported, failed or dropped; how many


class OtlpExporter:
    """Exports spans. `put` never waits."""

    def __init__(self, endpoint: str, fleet: str, version: str, count: Count, *, timeout_s: float = TIMEOUT_S) -> None:
        """Raise ModuleNotFoundError without the SDK, and SettingsError if a proxy of the environment cannot be used.

        The SDK reads OTEL_EXPORTER_OTLP_HEADERS.
        """
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

        self._count = count
        url = f"{endpoint.rstrip('/')}/v1/traces"
        self._sender = OTLPSpanExporter(url, timeout=timeout_s, session=session_for(url))
        about = {"service.name": "gpu-orchestrator", "service.version": version, "gpu_orchestrator.fleet": fleet}
        self._resource = Resource.create(about)
        self._waiting: queue.Queue[TaskSpan] = queue.Queue(MAX_WAITING)
        # A daemon thread: a request to a collector that does not answer must not delay the end of the process.
        threading.Thread(target=self._run, name="otlp", daemon=True).start()

    def put(self, spans: Sequence[TaskSpan]) -> None:
        """Export them soon; what does not fit into the queue is dropped and counted."""
        for number, span in enumerate(spans):
            try:
                self._waiting.put_nowait(span)
            except queue.Full:
                self._count("dropped", len(spans) - number)
                return

    def _run(self) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415

        while True:
            batch = [self._waiting.get()]  # no timeout: a daemon thread without work
            while len(batch) < BATCH and not self._waiting.empty():
                batch.append(self._waiting.get())
            result = self._sender.export([self._sdk_span(span) for span in batch])
            self._count("exported" if result is SpanExportResult.SUCCESS else "failed", len(batch))

    def _sdk_span(self, span: TaskSpan) -> Any:
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415

        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        parent = None
        if span.parent_id is not None:
            parent = trace.SpanContext(span.trace_id, span.parent_id, span.has_remote_parent, flags)
        status = trace.Status(trace.StatusCode.ERROR, span.failed) if span.failed else trace.Status()
        return ReadableSpan(
            span.name,
            trace.SpanContext(span.trace_id, span.span_id, is_remote=False, trace_flags=flags),
            parent,
            self._resource,
            dict(span.attributes),
            status=status,
            start_time=_nanoseconds(span.start),
            end_time=_nanoseconds(span.end),
        )


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000) * 1_000
