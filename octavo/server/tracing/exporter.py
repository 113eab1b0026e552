"""Spans in OpenTelemetry's form, to a collector that speaks OTLP over HTTP. Needs the packages of extra ``otel``."""

import logging
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from octavo import __version__
from octavo.core.errors import ConfigurationError
from octavo.server.tracing.tree import Span

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan

SERVICE_NAME = "octavo"
TRACES_PATH = "/v1/traces"
MAX_REASON = 300
CLIENTS_FAULTS = ("opentelemetry.trace.propagation.tracecontext", "opentelemetry.trace.span")
"""Loggers that warn of each bad header: clients could fill the log with them."""


def traces_url(endpoint: str) -> str:
    """Where spans are sent: ``endpoint``, or, where it names no path, the one that collectors listen at.

    Raises:
        ConfigurationError: it is no such address.
    """
    try:
        parts = urlsplit(endpoint)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigurationError(f"otlp_traces_endpoint {endpoint!r:.200} is no address such as http://127.0.0.1:4318")
    if parts.username is not None or parts.query:  # it is told in the log
        raise ConfigurationError("otlp_traces_endpoint holds a key or a query; OTEL_EXPORTER_OTLP_HEADERS is for keys")
    path = TRACES_PATH if parts.path in ("", "/") else parts.path
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


class SpanExporter:
    """Belongs to one thread. What the variables OTEL_* say of service, headers, timeouts and sampling holds.

    Raises:
        ConfigurationError: the packages are not installed, or a variable holds what cannot be used.
    """

    def __init__(self, endpoint: str) -> None:
        self.url = traces_url(endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.http import trace_exporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            message = f"otlp_traces_endpoint needs OpenTelemetry ({error}): install Octavo with its extra otel"
            raise ConfigurationError(message) from None
        ended: list[ReadableSpan] = []

        class Collecting(SpanProcessor):
            def on_end(self, span: "ReadableSpan") -> None:
                ended.append(span)

        try:
            resource = Resource.create()
            if str(resource.attributes["service.name"]).startswith("unknown_service"):
                resource = resource.merge(Resource({"service.name": SERVICE_NAME}))
            resource = resource.merge(Resource({"service.version": __version__}))
            provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._exporter = trace_exporter.OTLPSpanExporter(endpoint=self.url)
        except (ValueError, OSError) as error:
            raise ConfigurationError(f"OpenTelemetry cannot use its variables (OTEL_*): {error}") from error
        provider.add_span_processor(Collecting())
        self._ended = ended
        self._tracer = provider.get_tracer("octavo", __version__)
        self._propagator = TraceContextTextMapPropagator()
        for name in CLIENTS_FAULTS:
            logging.getLogger(name).setLevel(logging.ERROR)
        self._reason = _FirstMessage(trace_exporter.__name__)

    def add(self, tree: Span, traceparent: str, tracestate: str) -> None:
        """``traceparent``, ``tracestate``: of the client's span; what is none is left out of account."""
        from opentelemetry.trace import SpanKind

        carrier = {"traceparent": traceparent, "tracestate": tracestate}
        self._emit(tree, self._propagator.extract(carrier), SpanKind.SERVER.value)

    def _emit(self, node: Span, context: "Context", kind: int) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        span = self._tracer.start_span(
            node.name, context, SpanKind(kind), node.attributes, start_time=_nanoseconds(node.start)
        )
        for event in node.events:
            span.add_event(event.name, event.attributes, _nanoseconds(event.time))
        if node.is_error:
            span.set_status(Status(StatusCode.ERROR))
        inner = set_span_in_context(span, context)
        for child in node.children:
            self._emit(child, inner, SpanKind.INTERNAL.value)
        span.end(_nanoseconds(max(node.start, node.end)))

    def send(self) -> str | None:
        """Send what has been added; it is gone then, whether it came there or not. Takes as long as the timeout at the
        most (OTEL_EXPORTER_OTLP_TIMEOUT). Returns why it did not come there; None: it did."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        spans = list(self._ended)
        self._ended.clear()
        if not spans:
            return None
        self._reason.text = ""
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            return None
        return self._reason.text or "the collector did not take them"

    def stop(self) -> None:
        """From any thread: what is being sent is not tried again."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


class _FirstMessage(logging.Handler):
    """Keeps the first of what the library would log, a line for each try, of which ours says what counts."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.WARNING)
        self.text = ""
        source = logging.getLogger(name)
        source.propagate = False
        source.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or record.getMessage()[:MAX_REASON]
