"""A collector gets one trace for each gang that has started."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from extender.process import main, trace_with
from serried.api.names import Key
from serried.ops.traces import make_traces
from tests.support.builders import pod
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes
from tests.support.threaded_server import ThreadedServer


class Collector:
    """An OTLP/HTTP collector on a loopback socket."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []

    @contextmanager
    def serve(self) -> Iterator[str]:
        """The address that it takes traces at."""
        taken = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                taken.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        with ThreadedServer(HTTPServer(("127.0.0.1", 0), Handler)) as server:
            yield f"{server.url}/v1/traces"

    def spans(self) -> dict[str, tuple[float, float]]:
        """Begin and end of each span by name, in seconds after the first of them began."""
        found = [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        assert len({span.trace_id for span in found}) == 1
        first = min(span.start_time_unix_nano for span in found)
        return {
            span.name: ((span.start_time_unix_nano - first) / 1e9, (span.end_time_unix_nano - first) / 1e9)
            for span in found
        }


@pytest.fixture
def collector() -> Collector:
    return Collector()


async def test_a_gang_that_has_started_is_one_trace_of_what_it_waited_for(collector: Collector) -> None:
    world = Harness()
    with collector.serve() as address:
        traces = make_traces(address)
        world.core.context.timelines.on_bound = trace_with(traces)
        await world.add(gang(2), *members(1)).run_until_idle()
        await world.pass_time(30.0)
        await world.add(*members(2)).run_until_idle()
        await world.pass_time(10.0)
        await world.add(*small_nodes(2)).run_until_idle()
        await world.pass_time(20.0)
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        traces.flush()
    spans = collector.spans()
    assert spans[f"gang {GANG}"] == pytest.approx((0.0, 60.0), abs=0.01)
    assert spans["wait for the quorum"] == pytest.approx((0.0, 30.0), abs=0.01)
    assert spans["wait for room"] == pytest.approx((30.0, 40.0), abs=0.01)
    assert spans.keys() >= {"wait for the scheduler", "bind"}
    await world.close()


async def test_a_gang_for_which_others_ended_is_one_trace_too(collector: Collector) -> None:
    world = Harness()
    with collector.serve() as address:
        traces = make_traces(address)
        world.core.context.timelines.on_bound = trace_with(traces)
        world.api.graceful.add(Key("default", "low"))
        world.add(*small_nodes(1), pod("low").cpu(2).on("n1"))
        await world.add(gang(1).priority(9), *(each.priority(9) for each in members(1))).run_until_idle()
        await world.pass_time(30.0)
        world.delete("low")
        await world.run_until_idle()
        await world.pass_time(5.0)
        call = world.bind("m0")
        await world.run_until_idle()
        assert call.error == ""
        traces.flush()
    spans = collector.spans()
    assert spans["wait for victims"] == pytest.approx((0.0, 30.0), abs=0.01)
    assert spans["wait for the scheduler"] == pytest.approx((30.0, 35.0), abs=0.01)
    await world.close()


async def test_a_gang_that_was_up_before_makes_no_trace(collector: Collector) -> None:
    world = Harness()
    with collector.serve() as address:
        traces = make_traces(address)
        world.core.context.timelines.on_bound = trace_with(traces)
        running = [member.on(f"n{place}") for place, member in enumerate(members(2))]
        await world.add(*small_nodes(2), gang(2), *running).run_until_idle()
        traces.flush()
    assert collector.requests == []
    await world.close()


def test_without_the_extra_it_is_said_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert main(["--lease-holder-prefix", "me", "--traces", "http://collector:4318/v1/traces"]) == 2
    assert "docs/metrics.md" in capsys.readouterr().err
