"""Tracing as the settings say."""

from octavo.server.settings import ServerSettings
from octavo.server.tracing.exporter import SpanExporter
from octavo.server.tracing.sender import SpanSender
from octavo.server.tracing.tracing import Tracing


def trace_requests(settings: ServerSettings) -> Tracing:
    """
    Raises:
        ConfigurationError: see SpanExporter.
    """
    assert settings.otlp_traces_endpoint is not None
    return Tracing(SpanSender(SpanExporter(settings.otlp_traces_endpoint), settings.served_model_name))
