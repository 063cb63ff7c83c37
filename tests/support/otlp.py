"""A collector for tests: takes spans by OTLP over HTTP, as any collector does, and keeps them.

`SPECGATE_OTLP_COPY` names another collector that gets the same, to look at them.
"""

import gzip
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import Request, urlopen

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclass(frozen=True)
class CollectedSpan:
    """One span as it arrived.

    Attributes:
        service: The `service.name` of its process.
        resource: The other attributes of its process.
        parent_id: Empty for the first span of a trace.
        failed: True if its status is an error.
        events: Names and attributes.
    """

    service: str
    resource: dict[str, Any]
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, Any]
    events: tuple[tuple[str, dict[str, Any]], ...]


class Collector:
    """Keeps the spans that it gets.

    Attributes:
        url: What exporters take as their endpoint.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1/traces"
        self._spans: list[CollectedSpan] = []

    def take(self, body: bytes) -> None:
        if copy_to := os.environ.get("SPECGATE_OTLP_COPY"):
            urlopen(Request(copy_to, body, {"content-type": "application/x-protobuf"}), timeout=20).close()
        self._spans += _spans_in(ExportTraceServiceRequest.FromString(body))

    def trace(self, trace_id: str) -> list[CollectedSpan]:
        """The spans of one trace so far, in the order of their beginnings."""
        return sorted((span for span in self._spans if span.trace_id == trace_id), key=lambda span: span.start_ns)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Runs a collector on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(server.server_port)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield collector
        finally:
            server.shutdown()


def _spans_in(request: ExportTraceServiceRequest) -> Iterator[CollectedSpan]:
    for of_process in request.resource_spans:
        resource = _values(of_process.resource.attributes)
        service = str(resource.pop("service.name", ""))
        for scope in of_process.scope_spans:
            for span in scope.spans:
                yield CollectedSpan(
                    service=service,
                    resource=resource,
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    failed=span.status.code == span.status.STATUS_CODE_ERROR,
                    attributes=_values(span.attributes),
                    events=tuple((event.name, _values(event.attributes)) for event in span.events),
                )


def _values(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
