"""Traces of gangs for OpenTelemetry, sent over OTLP/HTTP. Only this module uses opentelemetry, an optional extra.

One trace is sent each time a gang has started. Its root span begins when Serried saw the gang first, or when a running
gang lost its quorum, and ends when the quorum is bound. It has a child span for each thing that the gang waited for.
"""

import atexit
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


_NANOS = 1_000_000_000

_NAMES = {
    "seen": "wait for the quorum",
    "broken": "wait for replacements",
    "quorum": "wait for room",
    "preempting": "wait for victims",
    "planned": "wait for the scheduler",
    "steered": "wait for bind calls",
    "atBind": "gather the quorum",
    "committed": "bind",
    "givenUp": "wait for another plan",
}
"""The name of a child span by the milestone that begins it. `extender.core.timeline` records the milestones."""


class MissingExtraError(Exception):
    """Raised when ``--traces`` is set, but the OpenTelemetry libraries are not installed."""


class Span(NamedTuple):
    """A child span: the time in which a gang waited for one thing. ``start`` and ``end`` are seconds since 1970."""

    name: str
    start: float
    end: float


def list_spans(milestones: Sequence[tuple[str, float]]) -> Iterator[Span]:
    """Yield a span from each milestone to the next one; it is named after the milestone that begins it.

    A milestone is a moment at which the gang began to wait for something else, such as ``planned`` or ``committed``.
    ``milestones`` are pairs of name and time (seconds since 1970), in the order of time. `_NAMES` has other names for
    the spans of some milestones. No span begins with the last milestone.
    """
    for (word, start), (_, end) in pairwise(milestones):
        yield Span(_NAMES.get(word, word), start, end)


class Traces:
    """Sends traces of gangs to an OpenTelemetry collector, in a thread of the library.

    If the collector does not accept a trace, the library drops it and logs that.
    """

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("serried")

    def send(self, name: str, attributes: Mapping[str, str], milestones: Sequence[tuple[str, float]]) -> None:
        """Queue the trace of one gang that has started. Does not block.

        ``name`` and ``attributes`` are those of the root span, which lasts from the first milestone to the last one.
        ``milestones`` are (name, time in seconds since 1970) of each step of the gang, such as ``committed``.
        """
        from opentelemetry import trace  # noqa: PLC0415 - an extra

        start, end = milestones[0][1], milestones[-1][1]
        root = self._tracer.start_span(name, attributes=dict(attributes), start_time=int(start * _NANOS))
        inside = trace.set_span_in_context(root)
        for span in list_spans(milestones):
            child = self._tracer.start_span(span.name, inside, start_time=int(span.start * _NANOS))
            child.end(int(span.end * _NANOS))
        root.end(int(end * _NANOS))

    def flush(self) -> None:
        """Send all queued traces, and wait until they are sent. Blocks."""
        self._provider.force_flush()


def make_traces(endpoint: str) -> Traces:
    """Return a `Traces` that sends to the URL ``endpoint``, for instance ``http://collector:4318/v1/traces``.

    Raises MissingExtraError.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError(
            f"--traces needs libraries that are not installed ({error}): see docs/metrics.md"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": "serried"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    atexit.register(provider.shutdown)
    return Traces(provider)
