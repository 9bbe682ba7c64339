"""Calls as spans of OpenTelemetry, of real processes, sent to a real receiver."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from typing_extensions import override

pytestmark = [pytest.mark.processes, pytest.mark.slow]

CLIENT, SERVER = 3, 2


class Receiver(ThreadingHTTPServer):
    """Takes spans as an OTLP collector does, over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Take)
        self.spans: list[dict[str, Any]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Take(BaseHTTPRequestHandler):
    server: Receiver  # type: ignore[mutable-override]  # no other makes it

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers.get("Content-Encoding") is None
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            said = {each.key: each.value.string_value for each in group.resource.attributes}
            for span in (span for scope in group.scope_spans for span in scope.spans):
                self.server.spans.append({
                    "service": said["service.name"], "job": said["paramfleet.job"],
                    "name": span.name, "kind": span.kind, "trace": span.trace_id,
                    "id": span.span_id, "parent": span.parent_span_id,
                    "path": self.path,
                })  # fmt: skip
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def pairs(spans: list[dict[str, Any]], name: str) -> list[tuple[str, str]]:
    """Return the services of each server's span and the call's that it belongs to."""
    calls = {span["id"]: span for span in spans if span["kind"] == CLIENT}
    served = [span for span in spans if span["kind"] == SERVER and span["name"] == name]
    assert all(calls[span["parent"]]["trace"] == span["trace"] for span in served)
    assert all(calls[span["parent"]]["name"] == name for span in served)
    return [(span["service"], calls[span["parent"]]["service"]) for span in served]


def test_a_servers_span_is_a_child_of_the_workers(jobs: Any, receiver: Receiver) -> None:
    env = {
        "PARAMFLEET_TRACES": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    running = jobs.start("train_long.py", "--mode", "geo", "--steps_of_0", "12",
                         workers=1, servers=1, **env)  # fmt: skip
    ended = running.end()
    assert set(ended.codes.values()) == {0}, ended.story()

    of_pserver, of_coordinator = "paramfleet-pserver", "paramfleet-coordinator"
    exchanges = pairs(receiver.spans, "exchange")
    assert len(exchanges) >= 6
    assert set(exchanges) == {(of_pserver, "paramfleet-worker")}
    assert (of_coordinator, "paramfleet-worker") in pairs(receiver.spans, "barrier")
    assert (of_pserver, "paramfleet-worker") in pairs(receiver.spans, "declare")
    assert (of_coordinator, of_pserver) in pairs(receiver.spans, "join")
    assert {span["path"] for span in receiver.spans} == {"/v1/traces"}
    assert {span["job"] for span in receiver.spans} == {running.job}
