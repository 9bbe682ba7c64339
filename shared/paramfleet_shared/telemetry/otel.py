"""Traces by OpenTelemetry, for processes whose settings ask for them.

Nothing of OpenTelemetry is imported without. Where the spans go, and how many, is said by
its own variables: ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME``,
``OTEL_TRACES_SAMPLER``, ``OTEL_BSP_SCHEDULE_DELAY`` and so on.
"""

from typing import TYPE_CHECKING, Any

from paramfleet_shared.errors import ContractError
from paramfleet_shared.settings.config import JobSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan

__all__ = ["OtelMissingError", "OtelTracing", "tracing_of"]

_CLOSE_TIMEOUT_MS = 3000
"""How long the last spans may take to be sent."""


class OtelMissingError(ContractError):
    """Traces are asked for, and OpenTelemetry isn't installed."""

    code = "contract.otel_missing"
    reason: str
    sentence = (
        "traces = 'otlp' needs OpenTelemetry ({reason}): pip install 'paramfleet[otel]', "
        "or traces = 'none'"
    )


def tracing_of(settings: JobSettings, role: str) -> "OtelTracing | None":
    """Return what traces this process, if the settings ask for it.

    Raises:
        OtelMissingError: if they do, and the extra ``otel`` isn't installed.
    """
    if settings.traces == "none":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 -- an extra
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 -- as above
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 -- as above
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 -- as above
    except ImportError as error:
        raise OtelMissingError(reason=str(error)) from error
    own = {"service.namespace": "paramfleet", "paramfleet.job": settings.job}
    named = Resource.create(own)
    if str(named.attributes.get("service.name", "")).startswith("unknown_service"):
        named = named.merge(Resource({"service.name": f"paramfleet-{role}"}))
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OtelTracing(provider)


class OtelTracing:
    """Begins spans with a provider of its own, below the spans of the script that calls.

    Args:
        provider: Where spans go; closed with this.
    """

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import trace  # noqa: PLC0415 -- an extra
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415 -- as above
            TraceContextTextMapPropagator,
        )

        self.provider = provider
        self._kinds = trace.SpanKind
        self._tracer = provider.get_tracer("paramfleet")
        self._propagator = TraceContextTextMapPropagator()

    def call(self, op: str, *, peer: str, endpoint: str, num_bytes: int) -> "_Span":
        """Begin the span of a call, below what the calling thread does."""
        facts: dict[str, str | int] = {
            "rpc.system": "paramfleet",
            "rpc.method": op,
            "server.address": endpoint,
            "paramfleet.peer": peer,
            "paramfleet.request_bytes": num_bytes,
        }
        return _Span(self._tracer.start_span(op, kind=self._kinds.CLIENT, attributes=facts))

    def serve(self, op: str, *, peer: str, parent: bytes) -> "_Span":
        """Begin the span of a request; what the caller sent says below which."""
        carrier = {"traceparent": parent.decode(errors="replace")} if parent else {}
        facts = {"rpc.system": "paramfleet", "rpc.method": op, "client.address": peer}
        span = self._tracer.start_span(
            op,
            context=self._propagator.extract(carrier),
            kind=self._kinds.SERVER,
            attributes=facts,
        )
        return _Span(span)

    def close(self) -> None:
        """Send what has ended, for three seconds at most. May be called again."""
        self.provider.force_flush(_CLOSE_TIMEOUT_MS)
        self.provider.shutdown()


class _Span:
    """A span of OpenTelemetry's."""

    __slots__ = ("_span", "traceparent")

    def __init__(self, span: "OtelSpan") -> None:
        self._span = span
        context = span.get_span_context()
        self.traceparent = (
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
        ).encode()

    def end(self, error: BaseException | None = None) -> None:
        """Say that it is over, and whether it failed."""
        if error is not None:
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(_failed(str(error)))
        self._span.end()


def _failed(reason: str) -> Any:
    from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 -- an extra

    return Status(StatusCode.ERROR, reason)
