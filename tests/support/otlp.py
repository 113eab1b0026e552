"""A collector as OpenTelemetry specifies it: takes spans in protobuf over HTTP, and shows them as trees."""

import gzip
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.waiting import wait_until


@dataclass
class Span:
    """``start``, ``end``: nanoseconds since the epoch; ``events``: name and attributes."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: int
    end: int
    is_error: bool
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    children: list["Span"] = field(default_factory=list)

    @property
    def shape(self) -> list[str]:
        return [child.name for child in self.children]


class Collector:
    """``status``: that it answers with; ``seconds``: that it takes for it."""

    def __init__(self) -> None:
        self.status = 200
        self.seconds = 0.0
        self.headers: list[dict[str, str]] = []
        self.resources: list[dict[str, Any]] = []
        self.spans: list[Span] = []
        self.url = ""

    def take(self, data: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(data).resource_spans:
            self.resources.append(_attributes(group.resource.attributes))
            self.spans += [_span(span) for scope in group.scope_spans for span in scope.spans]

    def roots(self) -> list[Span]:
        """Whole trees, by start."""
        spans = list(self.spans)
        by_id = {span.span_id: span for span in spans}
        for span in spans:
            span.children = []
        for span in sorted(spans, key=lambda span: (span.attributes.get("octavo.choice", 0), span.start)):
            if span.parent_id in by_id:
                by_id[span.parent_id].children.append(span)
        return sorted((span for span in spans if span.parent_id not in by_id), key=lambda span: span.start)

    def wait_roots(self, count: int) -> list[Span]:
        wait_until(lambda: len(self.roots()) >= count)
        assert len(self.roots()) == count
        return self.roots()

    def root(self, request_id: str) -> Span:
        """Of the request with this X-Request-Id, once it is there."""

        def found() -> list[Span]:
            return [root for root in self.roots() if root.attributes["octavo.x_request_id"] == request_id]

        wait_until(lambda: bool(found()))
        (root,) = found()
        return root


@contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            time.sleep(found.seconds)
            if found.status == 200:
                assert self.path == "/v1/traces"
                found.headers.append({name.lower(): value for name, value in self.headers.items()})
                found.take(data)
            body = ExportTraceServiceResponse().SerializeToString()
            self.send_response(found.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def _span(span: Any) -> Span:
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == span.status.STATUS_CODE_ERROR,
        _attributes(span.attributes),
        [(event.name, _attributes(event.attributes)) for event in span.events],
    )


def _attributes(given: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in given}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
