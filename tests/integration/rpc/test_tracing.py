"""Spans on both ends of a connection, and nothing of them where nobody traces."""

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from paramfleet_shared.errors import FleetError
from paramfleet_shared.errors.served import UnknownTableError
from paramfleet_shared.net.rpc.client import Channel
from paramfleet_shared.net.rpc.server import Request, RpcServer
from paramfleet_shared.net.rpc.session import Session
from paramfleet_shared.net.rpc.tracing import open_channel
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.system.clock import SystemClock
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_shared.telemetry.otel import OtelMissingError, OtelTracing, tracing_of
from paramfleet_shared.testing.patience import LATE_S

CLOCK = SystemClock()
OURS = ("rpc/tracing.py", "paramfleet_shared/telemetry/otel.py")


def at_once(request: Request) -> Message:
    return Message(fields={"op": request.op})


async def later(request: Request) -> Message:
    raise UnknownTableError(table="none")


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(spans: InMemorySpanExporter) -> OtelTracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return OtelTracing(provider)


async def call_twice(tracing: OtelTracing | None) -> tuple[Channel, RpcServer]:
    """Make a call that succeeds and one that doesn't."""
    handlers: dict[str, Any] = {"pull": at_once, "push": later}
    server = RpcServer(handlers, name="here", clock=CLOCK, tracing=tracing)
    port = await server.start("127.0.0.1")
    channel = open_channel(f"127.0.0.1:{port}", tracing=tracing, peer="pserver 0", clock=CLOCK)
    assert (await channel.call("pull", Message(), timeout_s=LATE_S)).fields == {"op": "pull"}
    with pytest.raises(FleetError):
        await channel.call("push", Message(), timeout_s=LATE_S)
    await channel.close()
    await server.close()
    return channel, server


async def test_a_request_carries_its_callers_span(
    tracing: OtelTracing, spans: InMemorySpanExporter
) -> None:
    with trace.get_tracer("users", tracer_provider=tracing.provider).start_as_current_span(
        "step"
    ):
        await call_twice(tracing)

    found = {(span.name, span.kind.name): span for span in spans.get_finished_spans()}
    step = found["step", "INTERNAL"]
    for op in ("pull", "push"):
        call, served = found[op, "CLIENT"], found[op, "SERVER"]
        assert call.parent is not None
        assert call.parent.span_id == step.context.span_id
        assert served.parent is not None
        assert served.parent.span_id == call.context.span_id
        assert {call.context.trace_id, served.context.trace_id} == {step.context.trace_id}
    assert found["pull", "CLIENT"].attributes is not None
    assert found["pull", "CLIENT"].attributes["paramfleet.peer"] == "pserver 0"
    assert found["push", "SERVER"].status.description == "table 'none' was not declared"
    assert not found["pull", "SERVER"].status.is_ok or found["pull", "SERVER"].end_time


async def test_without_traces_calls_and_requests_pass_no_code_of_theirs() -> None:
    passed: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.endswith(OURS):
            passed.add(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        channel, server = await call_twice(None)
    finally:
        sys.setprofile(None)

    assert passed == {"open_channel"}, "once a connection, not once a call"
    assert type(channel) is Channel
    assert server._session is Session
    assert server._service.handlers["pull"] is at_once


def test_a_process_that_does_not_trace_imports_nothing_of_opentelemetry() -> None:
    code = (
        "import sys, paramfleet_shared.net.rpc.tracing, paramfleet_shared.telemetry.otel;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    said = subprocess.run(
        tied([sys.executable, "-c", code]), capture_output=True, text=True, check=True
    )

    assert said.stdout == "[]\n"


def test_traces_without_opentelemetry_are_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(OtelMissingError, match=r"pip install 'paramfleet\[otel\]'"):
        tracing_of(JobSettings(traces="otlp"), "worker")
    assert tracing_of(JobSettings(), "worker") is None
